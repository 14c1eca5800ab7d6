//! Protection domains.

crate::layout! {
    /// Input of ALLOC_PD (`mlx5_ifc.h`, `alloc_pd_in`).
    AllocPdIn "alloc_pd_in", 16 bytes, input uid {}
}

crate::layout! {
    /// Output of ALLOC_PD (`mlx5_ifc.h`, `alloc_pd_out`).
    AllocPdOut "alloc_pd_out", 16 bytes, output {
        PD "pd" (8:23..0);
    }
}

crate::layout! {
    /// Input of DEALLOC_PD (`mlx5_ifc.h`, `dealloc_pd_in`).
    DeallocPdIn "dealloc_pd_in", 16 bytes, input uid {
        PD "pd" (8:23..0);
    }
}

crate::layout! {
    /// Output of DEALLOC_PD (`mlx5_ifc.h`, `dealloc_pd_out`).
    DeallocPdOut "dealloc_pd_out", output;
}

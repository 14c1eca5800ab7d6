//! User access regions: pages of doorbells.

crate::layout! {
    /// Input of ALLOC_UAR (`mlx5_ifc.h`, `alloc_uar_in`).
    AllocUarIn "alloc_uar_in", 16 bytes, input uid {}
}

crate::layout! {
    /// Output of ALLOC_UAR (`mlx5_ifc.h`, `alloc_uar_out`).
    AllocUarOut "alloc_uar_out", 16 bytes, output {
        UAR "uar" (8:23..0);
    }
}

crate::layout! {
    /// Input of DEALLOC_UAR (`mlx5_ifc.h`, `dealloc_uar_in`).
    DeallocUarIn "dealloc_uar_in", 16 bytes, input uid {
        UAR "uar" (8:23..0);
    }
}

crate::layout! {
    /// Output of DEALLOC_UAR (`mlx5_ifc.h`, `dealloc_uar_out`).
    DeallocUarOut "dealloc_uar_out", output;
}

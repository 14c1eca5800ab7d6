//! XRC domains.

crate::layout! {
    /// Input of ALLOC_XRCD (`mlx5_ifc.h`, `alloc_xrcd_in`).
    AllocXrcdIn "alloc_xrcd_in", 16 bytes, input uid {}
}

crate::layout! {
    /// Output of ALLOC_XRCD (`mlx5_ifc.h`, `alloc_xrcd_out`).
    AllocXrcdOut "alloc_xrcd_out", 16 bytes, output {
        XRCD "xrcd" (8:23..0);
    }
}

crate::layout! {
    /// Input of DEALLOC_XRCD (`mlx5_ifc.h`, `dealloc_xrcd_in`).
    DeallocXrcdIn "dealloc_xrcd_in", 16 bytes, input uid {
        XRCD "xrcd" (8:23..0);
    }
}

crate::layout! {
    /// Output of DEALLOC_XRCD (`mlx5_ifc.h`, `dealloc_xrcd_out`).
    DeallocXrcdOut "dealloc_xrcd_out", output;
}

//! Multicast groups.

crate::layout! {
    /// Input of ATTACH_TO_MCG (`mlx5_ifc.h`, `attach_to_mcg_in`).
    AttachToMcgIn "attach_to_mcg_in", 32 bytes, input uid {
        QPN "qpn" (8:23..0);
        MULTICAST_GID "multicast_gid" (@16 [16]);
    }
}

crate::layout! {
    /// Output of ATTACH_TO_MCG (`mlx5_ifc.h`, `attach_to_mcg_out`).
    AttachToMcgOut "attach_to_mcg_out", output;
}

crate::layout! {
    /// Input of DETACH_FROM_MCG (`mlx5_ifc.h`, `detach_from_mcg_in`).
    DetachFromMcgIn "detach_from_mcg_in", 32 bytes, input uid {
        QPN "qpn" (8:23..0);
        MULTICAST_GID "multicast_gid" (@16 [16]);
    }
}

crate::layout! {
    /// Output of DETACH_FROM_MCG (`mlx5_ifc.h`, `detach_from_mcg_out`).
    DetachFromMcgOut "detach_from_mcg_out", output;
}

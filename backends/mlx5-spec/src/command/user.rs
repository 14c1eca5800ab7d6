//! User contexts and user memory objects (DEVX).

crate::layout! {
    /// User context (`mlx5_ifc.h`, `uctx`).
    Uctx "uctx", 48 bytes {
        CAP "cap" (0:31..0);
    }
}

crate::layout! {
    /// User memory object (`mlx5_ifc.h`, `umem`).
    Umem "umem", 32 bytes {
        ATS "ats" (16:31..31);
        LOG_PAGE_SIZE "log_page_size" (16:4..0);
        PAGE_OFFSET "page_offset" (20:31..0);
        NUM_OF_MTT "num_of_mtt" (@24 u64);
        MTT "mtt" (@32 [8]..);
    }
}

crate::layout! {
    /// Input of CREATE_UCTX (`mlx5_ifc.h`, `create_uctx_in`).
    CreateUctxIn "create_uctx_in", 64 bytes {
        OPCODE "opcode" (0:31..16);
        OP_MOD "op_mod" (4:15..0);
        UCTX "uctx" (@16 [48]);
    }
}

crate::layout! {
    /// Output of CREATE_UCTX (`mlx5_ifc.h`, `create_uctx_out`).
    CreateUctxOut "create_uctx_out", 16 bytes {
        STATUS "status" (0:31..24);
        SYNDROME "syndrome" (4:31..0);
        UID "uid" (8:15..0);
    }
}

crate::layout! {
    /// Input of DESTROY_UCTX (`mlx5_ifc.h`, `destroy_uctx_in`).
    DestroyUctxIn "destroy_uctx_in", 16 bytes {
        OPCODE "opcode" (0:31..16);
        OP_MOD "op_mod" (4:15..0);
        UID "uid" (8:15..0);
    }
}

crate::layout! {
    /// Output of DESTROY_UCTX (`mlx5_ifc.h`, `destroy_uctx_out`).
    DestroyUctxOut "destroy_uctx_out", 16 bytes {
        STATUS "status" (0:31..24);
        SYNDROME "syndrome" (4:31..0);
    }
}

crate::layout! {
    /// Input of CREATE_UMEM (`mlx5_ifc.h`, `create_umem_in`).
    CreateUmemIn "create_umem_in", 48 bytes {
        OPCODE "opcode" (0:31..16);
        UID "uid" (0:15..0);
        OP_MOD "op_mod" (4:15..0);
        UMEM "umem" (@16 [32]);
    }
}

crate::layout! {
    /// Output of CREATE_UMEM (`mlx5_ifc.h`, `create_umem_out`).
    CreateUmemOut "create_umem_out", 16 bytes {
        STATUS "status" (0:31..24);
        SYNDROME "syndrome" (4:31..0);
        UMEM_ID "umem_id" (8:23..0);
    }
}

crate::layout! {
    /// Input of DESTROY_UMEM (`mlx5_ifc.h`, `destroy_umem_in`).
    DestroyUmemIn "destroy_umem_in", 16 bytes {
        OPCODE "opcode" (0:31..16);
        UID "uid" (0:15..0);
        OP_MOD "op_mod" (4:15..0);
        UMEM_ID "umem_id" (8:23..0);
    }
}

crate::layout! {
    /// Output of DESTROY_UMEM (`mlx5_ifc.h`, `destroy_umem_out`).
    DestroyUmemOut "destroy_umem_out", 16 bytes {
        STATUS "status" (0:31..24);
        SYNDROME "syndrome" (4:31..0);
    }
}

crate::layout! {
    /// Input header of general object commands (`mlx5_ifc.h`, `general_obj_in_cmd_hdr`).
    GeneralObjInCmdHdr "general_obj_in_cmd_hdr", 16 bytes {
        OPCODE "opcode" (0:31..16);
        UID "uid" (0:15..0);
        VHCA_TUNNEL_ID "vhca_tunnel_id" (4:31..16);
        OBJ_TYPE "obj_type" (4:15..0);
        OBJ_ID "obj_id" (8:31..0);
    }
}

crate::layout! {
    /// Output header of general object commands (`mlx5_ifc.h`, `general_obj_out_cmd_hdr`).
    GeneralObjOutCmdHdr "general_obj_out_cmd_hdr", 16 bytes {
        STATUS "status" (0:31..24);
        SYNDROME "syndrome" (4:31..0);
        OBJ_ID "obj_id" (8:31..0);
    }
}

//! Shared receive queues: basic, XRC, and receive memory pools.

crate::layout! {
    /// Work queue of RMP, RQ and SQ (`mlx5_ifc.h`, `wq`).
    Wq "wq", 192 bytes {
        WQ_TYPE "wq_type" (0:31..28);
        WQ_SIGNATURE "wq_signature" (0:27..27);
        END_PADDING_MODE "end_padding_mode" (0:26..25);
        CD_SLAVE "cd_slave" (0:24..24);
        HDS_SKIP_FIRST_SGE "hds_skip_first_sge" (4:31..31);
        LOG2_HDS_BUF_SIZE "log2_hds_buf_size" (4:30..28);
        PAGE_OFFSET "page_offset" (4:20..16);
        LWM "lwm" (4:15..0);
        PD "pd" (8:23..0);
        UAR_PAGE "uar_page" (12:23..0);
        DBR_ADDR "dbr_addr" (@16 u64);
        HW_COUNTER "hw_counter" (24:31..0);
        SW_COUNTER "sw_counter" (28:31..0);
        LOG_WQ_STRIDE "log_wq_stride" (32:19..16);
        LOG_WQ_PG_SZ "log_wq_pg_sz" (32:12..8);
        LOG_WQ_SZ "log_wq_sz" (32:4..0);
        DBR_UMEM_VALID "dbr_umem_valid" (36:31..31);
        WQ_UMEM_VALID "wq_umem_valid" (36:30..30);
        LOG_HAIRPIN_NUM_PACKETS "log_hairpin_num_packets" (36:28..24);
        LOG_HAIRPIN_DATA_SZ "log_hairpin_data_sz" (36:20..16);
        LOG_WQE_NUM_OF_STRIDES "log_wqe_num_of_strides" (36:11..8);
        TWO_BYTE_SHIFT_EN "two_byte_shift_en" (36:7..7);
        LOG_WQE_STRIDE_SIZE "log_wqe_stride_size" (36:2..0);
        DBR_UMEM_ID "dbr_umem_id" (40:31..0);
        WQ_UMEM_ID "wq_umem_id" (44:31..0);
        WQ_UMEM_OFFSET "wq_umem_offset" (@48 u64);
        HEADERS_MKEY "headers_mkey" (56:31..0);
        SHAMPO_ENABLE "shampo_enable" (60:31..31);
        LOG_RESERVATION_SIZE "log_reservation_size" (60:26..24);
        LOG_MAX_NUM_OF_PACKETS_PER_RESERVATION "log_max_num_of_packets_per_reservation" (60:18..16);
        LOG_HEADERS_ENTRY_SIZE "log_headers_entry_size" (60:9..8);
        LOG_HEADERS_BUFFER_ENTRY_NUM "log_headers_buffer_entry_num" (60:3..0);
        PAS "pas" (@192 [8]..);
    }
}

crate::layout! {
    /// Receive memory pool context (`mlx5_ifc.h`, `rmpc`).
    Rmpc "rmpc", 240 bytes {
        STATE "state" (0:23..20);
        BASIC_CYCLIC_RCV_WQE "basic_cyclic_rcv_wqe" (4:31..31);
        WQ "wq" (@48 Wq);
    }
}

/// Values of [`Wq::WQ_TYPE`].
pub mod wq_type {
    /// Linked list: each WQE names the next one.
    pub const LINKED_LIST: u32 = 0;
}

/// Values of [`Rmpc::STATE`] and [`ModifyRmpIn::RMP_STATE`].
pub mod rmpc_state {
    /// In use (`MLX5_RMPC_STATE_RDY`).
    pub const READY: u32 = 1;
}

/// Bits of [`ModifyRmpIn::BITMASK`] (`mlx5_ifc.h`, `rmp_bitmask`).
pub mod rmp_bitmask {
    /// The limit, [`crate::Wq::LWM`].
    pub const LWM: u64 = 1;
}

crate::layout! {
    /// Shared receive queue context (`mlx5_ifc.h`, `srqc`).
    Srqc "srqc", 64 bytes {
        STATE "state" (0:31..28);
        LOG_SRQ_SIZE "log_srq_size" (0:27..24);
        WQ_SIGNATURE "wq_signature" (4:31..31);
        CONT_SRQ "cont_srq" (4:30..30);
        RLKY "rlky" (4:28..28);
        LOG_RQ_STRIDE "log_rq_stride" (4:26..24);
        XRCD "xrcd" (4:23..0);
        PAGE_OFFSET "page_offset" (8:31..26);
        CQN "cqn" (8:23..0);
        LOG_PAGE_SIZE "log_page_size" (16:29..24);
        PD "pd" (24:23..0);
        LWM "lwm" (28:31..16);
        WQE_CNT "wqe_cnt" (28:15..0);
        DBR_ADDR "dbr_addr" (@40 u64);
    }
}

crate::layout! {
    /// XRC shared receive queue context (`mlx5_ifc.h`, `xrc_srqc`).
    XrcSrqc "xrc_srqc", 64 bytes {
        STATE "state" (0:31..28);
        LOG_XRC_SRQ_SIZE "log_xrc_srq_size" (0:27..24);
        WQ_SIGNATURE "wq_signature" (4:31..31);
        CONT_SRQ "cont_srq" (4:30..30);
        RLKY "rlky" (4:28..28);
        BASIC_CYCLIC_RCV_WQE "basic_cyclic_rcv_wqe" (4:27..27);
        LOG_RQ_STRIDE "log_rq_stride" (4:26..24);
        XRCD "xrcd" (4:23..0);
        PAGE_OFFSET "page_offset" (8:31..26);
        DBR_UMEM_VALID "dbr_umem_valid" (8:24..24);
        CQN "cqn" (8:23..0);
        USER_INDEX_EQUAL_XRC_SRQN "user_index_equal_xrc_srqn" (16:31..31);
        LOG_PAGE_SIZE "log_page_size" (16:29..24);
        USER_INDEX "user_index" (16:23..0);
        PD "pd" (24:23..0);
        LWM "lwm" (28:31..16);
        WQE_CNT "wqe_cnt" (28:15..0);
        DB_RECORD_ADDR_H "db_record_addr_h" (40:31..0);
        DB_RECORD_ADDR_L "db_record_addr_l" (44:31..2);
    }
}

crate::layout! {
    /// Input of CREATE_SRQ (`mlx5_ifc.h`, `create_srq_in`).
    CreateSrqIn "create_srq_in", 272 bytes, input uid {
        SRQ_CONTEXT_ENTRY "srq_context_entry" (@16 Srqc);
        PAS "pas" (@272 [8]..);
    }
}

crate::layout! {
    /// Output of CREATE_SRQ (`mlx5_ifc.h`, `create_srq_out`).
    CreateSrqOut "create_srq_out", 16 bytes, output {
        SRQN "srqn" (8:23..0);
    }
}

crate::layout! {
    /// Input of DESTROY_SRQ (`mlx5_ifc.h`, `destroy_srq_in`).
    DestroySrqIn "destroy_srq_in", 16 bytes, input uid {
        SRQN "srqn" (8:23..0);
    }
}

crate::layout! {
    /// Output of DESTROY_SRQ (`mlx5_ifc.h`, `destroy_srq_out`).
    DestroySrqOut "destroy_srq_out", output;
}

crate::layout! {
    /// Input of QUERY_SRQ (`mlx5_ifc.h`, `query_srq_in`).
    QuerySrqIn "query_srq_in", 16 bytes, input {
        SRQN "srqn" (8:23..0);
    }
}

crate::layout! {
    /// Output of QUERY_SRQ (`mlx5_ifc.h`, `query_srq_out`).
    QuerySrqOut "query_srq_out", 272 bytes, output {
        SRQ_CONTEXT_ENTRY "srq_context_entry" (@16 Srqc);
        PAS "pas" (@272 [8]..);
    }
}

crate::layout! {
    /// Input of ARM_RQ (`mlx5_ifc.h`, `arm_rq_in`).
    ArmRqIn "arm_rq_in", 16 bytes, input uid {
        SRQ_NUMBER "srq_number" (8:23..0);
        LWM "lwm" (12:15..0);
    }
}

/// [`ArmRqIn::OP_MOD`] of a shared receive queue (Linux `MLX5_ARM_RQ_IN_OP_MOD_SRQ`).
pub const ARM_RQ_SRQ: u32 = 1;

crate::layout! {
    /// Output of ARM_RQ (`mlx5_ifc.h`, `arm_rq_out`).
    ArmRqOut "arm_rq_out", output;
}

crate::layout! {
    /// Input of CREATE_XRC_SRQ (`mlx5_ifc.h`, `create_xrc_srq_in`).
    CreateXrcSrqIn "create_xrc_srq_in", 272 bytes, input uid {
        XRC_SRQ_CONTEXT_ENTRY "xrc_srq_context_entry" (@16 XrcSrqc);
        XRC_SRQ_UMEM_VALID "xrc_srq_umem_valid" (92:31..31);
        PAS "pas" (@272 [8]..);
    }
}

crate::layout! {
    /// Output of CREATE_XRC_SRQ (`mlx5_ifc.h`, `create_xrc_srq_out`).
    CreateXrcSrqOut "create_xrc_srq_out", 16 bytes, output {
        XRC_SRQN "xrc_srqn" (8:23..0);
    }
}

crate::layout! {
    /// Input of DESTROY_XRC_SRQ (`mlx5_ifc.h`, `destroy_xrc_srq_in`).
    DestroyXrcSrqIn "destroy_xrc_srq_in", 16 bytes, input uid {
        XRC_SRQN "xrc_srqn" (8:23..0);
    }
}

crate::layout! {
    /// Output of DESTROY_XRC_SRQ (`mlx5_ifc.h`, `destroy_xrc_srq_out`).
    DestroyXrcSrqOut "destroy_xrc_srq_out", output;
}

crate::layout! {
    /// Input of QUERY_XRC_SRQ (`mlx5_ifc.h`, `query_xrc_srq_in`).
    QueryXrcSrqIn "query_xrc_srq_in", 16 bytes, input {
        XRC_SRQN "xrc_srqn" (8:23..0);
    }
}

crate::layout! {
    /// Output of QUERY_XRC_SRQ (`mlx5_ifc.h`, `query_xrc_srq_out`).
    QueryXrcSrqOut "query_xrc_srq_out", 272 bytes, output {
        XRC_SRQ_CONTEXT_ENTRY "xrc_srq_context_entry" (@16 XrcSrqc);
        PAS "pas" (@272 [8]..);
    }
}

crate::layout! {
    /// Input of ARM_XRC_SRQ (`mlx5_ifc.h`, `arm_xrc_srq_in`).
    ArmXrcSrqIn "arm_xrc_srq_in", 16 bytes, input uid {
        XRC_SRQN "xrc_srqn" (8:23..0);
        LWM "lwm" (12:15..0);
    }
}

/// The only [`ArmXrcSrqIn::OP_MOD`] (Linux `MLX5_ARM_XRC_SRQ_IN_OP_MOD_XRC_SRQ`).
pub const ARM_XRC_SRQ: u32 = 1;

crate::layout! {
    /// Output of ARM_XRC_SRQ (`mlx5_ifc.h`, `arm_xrc_srq_out`).
    ArmXrcSrqOut "arm_xrc_srq_out", output;
}

crate::layout! {
    /// Input of CREATE_RMP (`mlx5_ifc.h`, `create_rmp_in`).
    CreateRmpIn "create_rmp_in", 272 bytes, input uid {
        CTX "ctx" (@32 Rmpc);
    }
}

crate::layout! {
    /// Output of CREATE_RMP (`mlx5_ifc.h`, `create_rmp_out`).
    CreateRmpOut "create_rmp_out", 16 bytes, output {
        RMPN "rmpn" (8:23..0);
    }
}

crate::layout! {
    /// Input of MODIFY_RMP (`mlx5_ifc.h`, `modify_rmp_in`).
    ModifyRmpIn "modify_rmp_in", 272 bytes, input uid {
        RMP_STATE "rmp_state" (8:31..28);
        RMPN "rmpn" (8:23..0);
        BITMASK "bitmask" (@16 u64);
        CTX "ctx" (@32 Rmpc);
    }
}

crate::layout! {
    /// Output of MODIFY_RMP (`mlx5_ifc.h`, `modify_rmp_out`).
    ModifyRmpOut "modify_rmp_out", output;
}

crate::layout! {
    /// Input of DESTROY_RMP (`mlx5_ifc.h`, `destroy_rmp_in`).
    DestroyRmpIn "destroy_rmp_in", 16 bytes, input uid {
        RMPN "rmpn" (8:23..0);
    }
}

crate::layout! {
    /// Output of DESTROY_RMP (`mlx5_ifc.h`, `destroy_rmp_out`).
    DestroyRmpOut "destroy_rmp_out", output;
}

crate::layout! {
    /// Input of QUERY_RMP (`mlx5_ifc.h`, `query_rmp_in`).
    QueryRmpIn "query_rmp_in", 16 bytes, input {
        RMPN "rmpn" (8:23..0);
    }
}

crate::layout! {
    /// Output of QUERY_RMP (`mlx5_ifc.h`, `query_rmp_out`).
    QueryRmpOut "query_rmp_out", 272 bytes, output {
        RMP_CONTEXT "rmp_context" (@32 Rmpc);
    }
}

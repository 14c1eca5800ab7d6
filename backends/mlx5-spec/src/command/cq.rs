//! Completion queues.

crate::layout! {
    /// Completion queue context (`mlx5_ifc.h`, `cqc`).
    Cqc "cqc", 64 bytes {
        STATUS "status" (0:31..28);
        DBR_UMEM_VALID "dbr_umem_valid" (0:25..25);
        APU_CQ "apu_cq" (0:24..24);
        CQE_SZ "cqe_sz" (0:23..21);
        CC "cc" (0:20..20);
        SCQE_BREAK_MODERATION_EN "scqe_break_moderation_en" (0:18..18);
        OI "oi" (0:17..17);
        CQ_PERIOD_MODE "cq_period_mode" (0:16..15);
        CQE_COMP_EN "cqe_comp_en" (0:14..14);
        MINI_CQE_RES_FORMAT "mini_cqe_res_format" (0:13..12);
        ST "st" (0:11..8);
        CQE_COMPRESSION_LAYOUT "cqe_compression_layout" (0:1..0);
        PAGE_OFFSET "page_offset" (8:11..6);
        LOG_CQ_SIZE "log_cq_size" (12:28..24);
        UAR_PAGE "uar_page" (12:23..0);
        CQ_PERIOD "cq_period" (16:27..16);
        CQ_MAX_COUNT "cq_max_count" (16:15..0);
        C_EQN_OR_APU_ELEMENT "c_eqn_or_apu_element" (20:31..0);
        LOG_PAGE_SIZE "log_page_size" (24:28..24);
        LAST_NOTIFIED_INDEX "last_notified_index" (32:23..0);
        LAST_SOLICIT_INDEX "last_solicit_index" (36:23..0);
        CONSUMER_COUNTER "consumer_counter" (40:23..0);
        PRODUCER_COUNTER "producer_counter" (44:23..0);
        DBR_ADDR "dbr_addr" (@56 u64);
    }
}

crate::layout! {
    /// Input of CREATE_CQ (`mlx5_ifc.h`, `create_cq_in`).
    CreateCqIn "create_cq_in", 272 bytes, input uid {
        CQ_CONTEXT "cq_context" (@16 Cqc);
        CQ_UMEM_VALID "cq_umem_valid" (92:31..31);
        PAS "pas" (@272 [8]..);
    }
}

crate::layout! {
    /// Output of CREATE_CQ (`mlx5_ifc.h`, `create_cq_out`).
    CreateCqOut "create_cq_out", 16 bytes, output {
        CQN "cqn" (8:23..0);
    }
}

crate::layout! {
    /// Input of DESTROY_CQ (`mlx5_ifc.h`, `destroy_cq_in`).
    DestroyCqIn "destroy_cq_in", 16 bytes, input uid {
        CQN "cqn" (8:23..0);
    }
}

crate::layout! {
    /// Output of DESTROY_CQ (`mlx5_ifc.h`, `destroy_cq_out`).
    DestroyCqOut "destroy_cq_out", output;
}

crate::layout! {
    /// Input of QUERY_CQ (`mlx5_ifc.h`, `query_cq_in`).
    QueryCqIn "query_cq_in", 16 bytes, input {
        CQN "cqn" (8:23..0);
    }
}

crate::layout! {
    /// Output of QUERY_CQ (`mlx5_ifc.h`, `query_cq_out`).
    QueryCqOut "query_cq_out", 272 bytes, output {
        CQ_CONTEXT "cq_context" (@16 Cqc);
        PAS "pas" (@272 [8]..);
    }
}

crate::layout! {
    /// Input of MODIFY_CQ (`mlx5_ifc.h`, `modify_cq_in`).
    ModifyCqIn "modify_cq_in", 272 bytes, input uid {
        CQN "cqn" (8:23..0);
        MODIFY_FIELD_SELECT_RESIZE_FIELD_SELECT "modify_field_select_resize_field_select" (12:31..0);
        CQ_CONTEXT "cq_context" (@16 Cqc);
        CQ_UMEM_VALID "cq_umem_valid" (92:31..31);
        PAS "pas" (@272 [8]..);
    }
}

crate::layout! {
    /// Output of MODIFY_CQ (`mlx5_ifc.h`, `modify_cq_out`).
    ModifyCqOut "modify_cq_out", output;
}

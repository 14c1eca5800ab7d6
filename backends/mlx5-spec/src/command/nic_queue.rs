//! Queues of the Ethernet port: transport interface send and receive objects (TIS, TIR), receive queue tables (RQT), receive and
//! send queues (RQ, SQ).

use super::srq::Wq;

crate::layout! {
    /// Context of a TIS (`mlx5_ifc.h`, `tisc`).
    Tisc "tisc", 160 bytes {
        STRICT_LAG_TX_PORT_AFFINITY "strict_lag_tx_port_affinity" (0:31..31);
        TLS_EN "tls_en" (0:30..30);
        LAG_TX_PORT_AFFINITY "lag_tx_port_affinity" (0:27..24);
        PRIO "prio" (0:19..16);
        TRANSPORT_DOMAIN "transport_domain" (36:23..0);
        UNDERLAY_QPN "underlay_qpn" (40:23..0);
        PD "pd" (44:23..0);
    }
}

crate::layout! {
    /// Input of CREATE_TIS (`mlx5_ifc.h`, `create_tis_in`).
    CreateTisIn "create_tis_in", 192 bytes, input uid {
        CTX "ctx" (@32 Tisc);
    }
}

crate::layout! {
    /// Output of CREATE_TIS (`mlx5_ifc.h`, `create_tis_out`).
    CreateTisOut "create_tis_out", 16 bytes, output {
        TISN "tisn" (8:23..0);
    }
}

crate::layout! {
    /// Input of DESTROY_TIS (`mlx5_ifc.h`, `destroy_tis_in`).
    DestroyTisIn "destroy_tis_in", 16 bytes, input uid {
        TISN "tisn" (8:23..0);
    }
}

crate::layout! {
    /// Output of DESTROY_TIS (`mlx5_ifc.h`, `destroy_tis_out`).
    DestroyTisOut "destroy_tis_out", output;
}

crate::layout! {
    /// Input of QUERY_TIS (`mlx5_ifc.h`, `query_tis_in`).
    QueryTisIn "query_tis_in", 16 bytes, input {
        TISN "tisn" (8:23..0);
    }
}

crate::layout! {
    /// Output of QUERY_TIS (`mlx5_ifc.h`, `query_tis_out`).
    QueryTisOut "query_tis_out", 176 bytes, output {
        TIS_CONTEXT "tis_context" (@16 Tisc);
    }
}

crate::layout! {
    /// Context of a TIR (`mlx5_ifc.h`, `tirc`).
    Tirc "tirc", 240 bytes {
        DISP_TYPE "disp_type" (4:31..28);
        TLS_EN "tls_en" (4:27..27);
        LRO_TIMEOUT_PERIOD_USECS "lro_timeout_period_usecs" (16:27..12);
        PACKET_MERGE_MASK "packet_merge_mask" (16:11..8);
        LRO_MAX_IP_PAYLOAD_SIZE "lro_max_ip_payload_size" (16:7..0);
        INLINE_RQN "inline_rqn" (28:23..0);
        RX_HASH_SYMMETRIC "rx_hash_symmetric" (32:31..31);
        TUNNELED_OFFLOAD_EN "tunneled_offload_en" (32:29..29);
        INDIRECT_TABLE "indirect_table" (32:23..0);
        RX_HASH_FN "rx_hash_fn" (36:31..28);
        SELF_LB_BLOCK "self_lb_block" (36:25..24);
        TRANSPORT_DOMAIN "transport_domain" (36:23..0);
        RX_HASH_TOEPLITZ_KEY "rx_hash_toeplitz_key" (@40 [40]);
        RX_HASH_FIELD_SELECTOR_OUTER "rx_hash_field_selector_outer" (@80 RxHashFieldSelect);
        RX_HASH_FIELD_SELECTOR_INNER "rx_hash_field_selector_inner" (@84 RxHashFieldSelect);
    }
}

crate::layout! {
    /// Fields of a packet that its hash is over (`mlx5_ifc.h`, `rx_hash_field_select`).
    RxHashFieldSelect "rx_hash_field_select", 4 bytes {
        L3_PROT_TYPE "l3_prot_type" (0:31..31);
        L4_PROT_TYPE "l4_prot_type" (0:30..30);
        SELECTED_FIELDS "selected_fields" (0:29..0);
    }
}

crate::layout! {
    /// [`ModifyTirIn::BITMASK`]: the fields to change (`mlx5_ifc.h`, `modify_tir_bitmask`).
    ModifyTirBitmask "modify_tir_bitmask", 8 bytes {
        SELF_LB_EN "self_lb_en" (4:4..4);
        HASH "hash" (4:2..2);
        PACKET_MERGE "packet_merge" (4:0..0);
    }
}

crate::layout! {
    /// Input of CREATE_TIR (`mlx5_ifc.h`, `create_tir_in`).
    CreateTirIn "create_tir_in", 272 bytes, input uid {
        CTX "ctx" (@32 Tirc);
    }
}

crate::layout! {
    /// Output of CREATE_TIR (`mlx5_ifc.h`, `create_tir_out`).
    CreateTirOut "create_tir_out", 16 bytes, output {
        ICM_ADDRESS_63_40 "icm_address_63_40" (0:23..0);
        ICM_ADDRESS_39_32 "icm_address_39_32" (8:31..24);
        TIRN "tirn" (8:23..0);
        ICM_ADDRESS_31_0 "icm_address_31_0" (12:31..0);
    }
}

crate::layout! {
    /// Input of MODIFY_TIR (`mlx5_ifc.h`, `modify_tir_in`).
    ModifyTirIn "modify_tir_in", 272 bytes, input uid {
        TIRN "tirn" (8:23..0);
        BITMASK "bitmask" (@16 ModifyTirBitmask);
        CTX "ctx" (@32 Tirc);
    }
}

crate::layout! {
    /// Output of MODIFY_TIR (`mlx5_ifc.h`, `modify_tir_out`).
    ModifyTirOut "modify_tir_out", output;
}

crate::layout! {
    /// Input of DESTROY_TIR (`mlx5_ifc.h`, `destroy_tir_in`).
    DestroyTirIn "destroy_tir_in", 16 bytes, input uid {
        TIRN "tirn" (8:23..0);
    }
}

crate::layout! {
    /// Output of DESTROY_TIR (`mlx5_ifc.h`, `destroy_tir_out`).
    DestroyTirOut "destroy_tir_out", output;
}

crate::layout! {
    /// Context of an RQT (`mlx5_ifc.h`, `rqtc`).
    Rqtc "rqtc", 240 bytes {
        LIST_Q_TYPE "list_q_type" (20:26..24);
        RQT_MAX_SIZE "rqt_max_size" (20:15..0);
        RQ_VHCA_ID_FORMAT "rq_vhca_id_format" (24:31..31);
        RQT_ACTUAL_SIZE "rqt_actual_size" (24:15..0);
    }
}

crate::layout! {
    /// [`ModifyRqtIn::BITMASK`]: the fields to change (`mlx5_ifc.h`, `rqt_bitmask`).
    RqtBitmask "rqt_bitmask", 8 bytes {
        RQN_LIST "rqn_list" (4:0..0);
    }
}

crate::layout! {
    /// Input of CREATE_RQT (`mlx5_ifc.h`, `create_rqt_in`).
    CreateRqtIn "create_rqt_in", 272 bytes, input uid {
        RQT_CONTEXT "rqt_context" (@32 Rqtc);
    }
}

crate::layout! {
    /// Output of CREATE_RQT (`mlx5_ifc.h`, `create_rqt_out`).
    CreateRqtOut "create_rqt_out", 16 bytes, output {
        RQTN "rqtn" (8:23..0);
    }
}

crate::layout! {
    /// Input of MODIFY_RQT (`mlx5_ifc.h`, `modify_rqt_in`).
    ModifyRqtIn "modify_rqt_in", 272 bytes, input uid {
        RQTN "rqtn" (8:23..0);
        BITMASK "bitmask" (@16 RqtBitmask);
        CTX "ctx" (@32 Rqtc);
    }
}

crate::layout! {
    /// Output of MODIFY_RQT (`mlx5_ifc.h`, `modify_rqt_out`).
    ModifyRqtOut "modify_rqt_out", output;
}

crate::layout! {
    /// Input of DESTROY_RQT (`mlx5_ifc.h`, `destroy_rqt_in`).
    DestroyRqtIn "destroy_rqt_in", 16 bytes, input uid {
        RQTN "rqtn" (8:23..0);
    }
}

crate::layout! {
    /// Output of DESTROY_RQT (`mlx5_ifc.h`, `destroy_rqt_out`).
    DestroyRqtOut "destroy_rqt_out", output;
}

crate::layout! {
    /// Context of an RQ (`mlx5_ifc.h`, `rqc`).
    Rqc "rqc", 240 bytes {
        RLKY "rlky" (0:31..31);
        DELAY_DROP_EN "delay_drop_en" (0:30..30);
        SCATTER_FCS "scatter_fcs" (0:29..29);
        VSD "vsd" (0:28..28);
        MEM_RQ_TYPE "mem_rq_type" (0:27..24);
        STATE "state" (0:23..20);
        FLUSH_IN_ERROR_EN "flush_in_error_en" (0:18..18);
        HAIRPIN "hairpin" (0:17..17);
        TS_FORMAT "ts_format" (0:5..4);
        USER_INDEX "user_index" (4:23..0);
        CQN "cqn" (8:23..0);
        COUNTER_SET_ID "counter_set_id" (12:31..24);
        RMPN "rmpn" (16:23..0);
        HAIRPIN_PEER_SQ "hairpin_peer_sq" (20:23..0);
        HAIRPIN_PEER_VHCA "hairpin_peer_vhca" (24:15..0);
        SHAMPO_NO_MATCH_ALIGNMENT_GRANULARITY "shampo_no_match_alignment_granularity" (36:25..24);
        SHAMPO_MATCH_CRITERIA_TYPE "shampo_match_criteria_type" (36:17..16);
        RESERVATION_TIMEOUT "reservation_timeout" (36:15..0);
        WQ "wq" (@48 Wq);
    }
}

crate::layout! {
    /// Input of CREATE_RQ (`mlx5_ifc.h`, `create_rq_in`).
    CreateRqIn "create_rq_in", 272 bytes, input uid {
        CTX "ctx" (@32 Rqc);
    }
}

crate::layout! {
    /// Output of CREATE_RQ (`mlx5_ifc.h`, `create_rq_out`).
    CreateRqOut "create_rq_out", 16 bytes, output {
        RQN "rqn" (8:23..0);
    }
}

crate::layout! {
    /// Input of MODIFY_RQ (`mlx5_ifc.h`, `modify_rq_in`).
    ModifyRqIn "modify_rq_in", 272 bytes, input uid {
        RQ_STATE "rq_state" (8:31..28);
        RQN "rqn" (8:23..0);
        MODIFY_BITMASK "modify_bitmask" (@16 u64);
        CTX "ctx" (@32 Rqc);
    }
}

crate::layout! {
    /// Output of MODIFY_RQ (`mlx5_ifc.h`, `modify_rq_out`).
    ModifyRqOut "modify_rq_out", output;
}

crate::layout! {
    /// Input of DESTROY_RQ (`mlx5_ifc.h`, `destroy_rq_in`).
    DestroyRqIn "destroy_rq_in", 16 bytes, input uid {
        RQN "rqn" (8:23..0);
    }
}

crate::layout! {
    /// Output of DESTROY_RQ (`mlx5_ifc.h`, `destroy_rq_out`).
    DestroyRqOut "destroy_rq_out", output;
}

crate::layout! {
    /// Input of QUERY_RQ (`mlx5_ifc.h`, `query_rq_in`).
    QueryRqIn "query_rq_in", 16 bytes, input {
        RQN "rqn" (8:23..0);
    }
}

crate::layout! {
    /// Output of QUERY_RQ (`mlx5_ifc.h`, `query_rq_out`).
    QueryRqOut "query_rq_out", 272 bytes, output {
        RQ_CONTEXT "rq_context" (@32 Rqc);
    }
}

crate::layout! {
    /// Context of an SQ (`mlx5_ifc.h`, `sqc`).
    Sqc "sqc", 240 bytes {
        RLKY "rlky" (0:31..31);
        CD_MASTER "cd_master" (0:30..30);
        FRE "fre" (0:29..29);
        FLUSH_IN_ERROR_EN "flush_in_error_en" (0:28..28);
        ALLOW_MULTI_PKT_SEND_WQE "allow_multi_pkt_send_wqe" (0:27..27);
        MIN_WQE_INLINE_MODE "min_wqe_inline_mode" (0:26..24);
        STATE "state" (0:23..20);
        REG_UMR "reg_umr" (0:19..19);
        ALLOW_SWP "allow_swp" (0:18..18);
        HAIRPIN "hairpin" (0:17..17);
        NON_WIRE "non_wire" (0:16..16);
        TS_FORMAT "ts_format" (0:5..4);
        USER_INDEX "user_index" (4:23..0);
        CQN "cqn" (8:23..0);
        HAIRPIN_PEER_RQ "hairpin_peer_rq" (12:23..0);
        HAIRPIN_PEER_VHCA "hairpin_peer_vhca" (16:15..0);
        TS_CQE_TO_DEST_CQN "ts_cqe_to_dest_cqn" (24:23..0);
        PACKET_PACING_RATE_LIMIT_INDEX "packet_pacing_rate_limit_index" (28:15..0);
        TIS_LST_SZ "tis_lst_sz" (32:31..16);
        QOS_QUEUE_GROUP_ID "qos_queue_group_id" (32:15..0);
        TIS_NUM_0 "tis_num_0" (44:23..0);
        WQ "wq" (@48 Wq);
    }
}

crate::layout! {
    /// Input of CREATE_SQ (`mlx5_ifc.h`, `create_sq_in`).
    CreateSqIn "create_sq_in", 272 bytes, input uid {
        CTX "ctx" (@32 Sqc);
    }
}

crate::layout! {
    /// Output of CREATE_SQ (`mlx5_ifc.h`, `create_sq_out`).
    CreateSqOut "create_sq_out", 16 bytes, output {
        SQN "sqn" (8:23..0);
    }
}

crate::layout! {
    /// Input of MODIFY_SQ (`mlx5_ifc.h`, `modify_sq_in`).
    ModifySqIn "modify_sq_in", 272 bytes, input uid {
        SQ_STATE "sq_state" (8:31..28);
        SQN "sqn" (8:23..0);
        MODIFY_BITMASK "modify_bitmask" (@16 u64);
        CTX "ctx" (@32 Sqc);
    }
}

crate::layout! {
    /// Output of MODIFY_SQ (`mlx5_ifc.h`, `modify_sq_out`).
    ModifySqOut "modify_sq_out", output;
}

crate::layout! {
    /// Input of DESTROY_SQ (`mlx5_ifc.h`, `destroy_sq_in`).
    DestroySqIn "destroy_sq_in", 16 bytes, input uid {
        SQN "sqn" (8:23..0);
    }
}

crate::layout! {
    /// Output of DESTROY_SQ (`mlx5_ifc.h`, `destroy_sq_out`).
    DestroySqOut "destroy_sq_out", output;
}

crate::layout! {
    /// Input of QUERY_SQ (`mlx5_ifc.h`, `query_sq_in`).
    QuerySqIn "query_sq_in", 16 bytes, input {
        SQN "sqn" (8:23..0);
    }
}

crate::layout! {
    /// Output of QUERY_SQ (`mlx5_ifc.h`, `query_sq_out`).
    QuerySqOut "query_sq_out", 272 bytes, output {
        SQ_CONTEXT "sq_context" (@32 Sqc);
    }
}

crate::codes! {
    /// States of RQ and SQ ([`Rqc::STATE`], [`Sqc::STATE`], `MLX5_RQC_STATE_*`).
    QueueState {
        Reset = 0 "RST",
        Ready = 1 "RDY",
        Error = 3 "ERR",
    }
}

/// Bits of [`ModifyRqIn::MODIFY_BITMASK`] (`MLX5_MODIFY_RQ_IN_MODIFY_BITMASK_*`).
pub mod modify_rq {
    /// `vsd`.
    pub const VSD: u64 = 1 << 1;
    /// `scatter_fcs`.
    pub const SCATTER_FCS: u64 = 1 << 2;
    /// `counter_set_id`.
    pub const COUNTER_SET_ID: u64 = 1 << 3;
}

/// [`Tirc::DISP_TYPE`] of a TIR with one receive queue (`MLX5_TIRC_DISP_TYPE_DIRECT`).
pub const TIR_DIRECT: u32 = 0;
/// [`Tirc::DISP_TYPE`] of a TIR with a table of receive queues (`MLX5_TIRC_DISP_TYPE_INDIRECT`).
pub const TIR_INDIRECT: u32 = 1;
/// [`Wq::WQ_TYPE`] of a ring of WQEs (`MLX5_WQ_TYPE_CYCLIC`).
pub const WQ_CYCLIC: u32 = 1;

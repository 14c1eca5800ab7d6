//! Queue pairs.

crate::layout! {
    /// Address path of a queue pair (`mlx5_ifc.h`, `ads`).
    Ads "ads", 44 bytes {
        FL "fl" (0:31..31);
        FREE_AR "free_ar" (0:30..30);
        PKEY_INDEX "pkey_index" (0:15..0);
        PLANE_INDEX "plane_index" (4:31..24);
        GRH "grh" (4:23..23);
        MLID "mlid" (4:22..16);
        RLID "rlid" (4:15..0);
        ACK_TIMEOUT "ack_timeout" (8:31..27);
        SRC_ADDR_INDEX "src_addr_index" (8:23..16);
        STAT_RATE "stat_rate" (8:11..8);
        HOP_LIMIT "hop_limit" (8:7..0);
        TCLASS "tclass" (12:27..20);
        FLOW_LABEL "flow_label" (12:19..0);
        RGID_RIP "rgid_rip" (@16 [16]);
        F_DSCP "f_dscp" (32:27..27);
        F_ECN "f_ecn" (32:26..26);
        F_ETH_PRIO "f_eth_prio" (32:24..24);
        ECN "ecn" (32:23..22);
        DSCP "dscp" (32:21..16);
        UDP_SPORT "udp_sport" (32:15..0);
        DEI_CFI "dei_cfi" (36:31..31);
        ETH_PRIO "eth_prio" (36:30..28);
        SL "sl" (36:27..24);
        VHCA_PORT_NUM "vhca_port_num" (36:23..16);
        RMAC_47_32 "rmac_47_32" (36:15..0);
        RMAC_31_0 "rmac_31_0" (40:31..0);
    }
}

crate::layout! {
    /// Queue pair context (`mlx5_ifc.h`, `qpc`).
    Qpc "qpc", 232 bytes {
        STATE "state" (0:31..28);
        LAG_TX_PORT_AFFINITY "lag_tx_port_affinity" (0:27..24);
        ST "st" (0:23..16);
        ISOLATE_VL_TC "isolate_vl_tc" (0:13..13);
        PM_STATE "pm_state" (0:12..11);
        REQ_E2E_CREDIT_MODE "req_e2e_credit_mode" (0:9..8);
        OFFLOAD_TYPE "offload_type" (0:7..4);
        END_PADDING_MODE "end_padding_mode" (0:3..2);
        WQ_SIGNATURE "wq_signature" (4:31..31);
        BLOCK_LB_MC "block_lb_mc" (4:30..30);
        ATOMIC_LIKE_WRITE_EN "atomic_like_write_en" (4:29..29);
        LATENCY_SENSITIVE "latency_sensitive" (4:28..28);
        DRAIN_SIGERR "drain_sigerr" (4:26..26);
        PD "pd" (4:23..0);
        MTU "mtu" (8:31..29);
        LOG_MSG_MAX "log_msg_max" (8:28..24);
        LOG_RQ_SIZE "log_rq_size" (8:22..19);
        LOG_RQ_STRIDE "log_rq_stride" (8:18..16);
        NO_SQ "no_sq" (8:15..15);
        LOG_SQ_SIZE "log_sq_size" (8:14..11);
        RETRY_MODE "retry_mode" (8:9..8);
        TS_FORMAT "ts_format" (8:7..6);
        RLKY "rlky" (8:4..4);
        ULP_STATELESS_OFFLOAD_MODE "ulp_stateless_offload_mode" (8:3..0);
        COUNTER_SET_ID "counter_set_id" (12:31..24);
        UAR_PAGE "uar_page" (12:23..0);
        USER_INDEX "user_index" (16:23..0);
        LOG_PAGE_SIZE "log_page_size" (20:28..24);
        REMOTE_QPN "remote_qpn" (20:23..0);
        PRIMARY_ADDRESS_PATH "primary_address_path" (@24 Ads);
        SECONDARY_ADDRESS_PATH "secondary_address_path" (@68 Ads);
        LOG_ACK_REQ_FREQ "log_ack_req_freq" (112:31..28);
        LOG_SRA_MAX "log_sra_max" (112:23..21);
        RETRY_COUNT "retry_count" (112:18..16);
        RNR_RETRY "rnr_retry" (112:15..13);
        FRE "fre" (112:11..11);
        CUR_RNR_RETRY "cur_rnr_retry" (112:10..8);
        CUR_RETRY_COUNT "cur_retry_count" (112:7..5);
        NEXT_SEND_PSN "next_send_psn" (120:23..0);
        LOG_NUM_DCI_STREAM_CHANNELS "log_num_dci_stream_channels" (124:28..24);
        CQN_SND "cqn_snd" (124:23..0);
        LOG_NUM_DCI_ERRORED_STREAMS "log_num_dci_errored_streams" (128:28..24);
        DETH_SQPN "deth_sqpn" (128:23..0);
        LAST_ACKED_PSN "last_acked_psn" (136:23..0);
        SSN "ssn" (140:23..0);
        LOG_RRA_MAX "log_rra_max" (144:23..21);
        ATOMIC_MODE "atomic_mode" (144:19..16);
        RRE "rre" (144:15..15);
        RWE "rwe" (144:14..14);
        RAE "rae" (144:13..13);
        PAGE_OFFSET "page_offset" (144:11..6);
        CD_SLAVE_RECEIVE "cd_slave_receive" (144:2..2);
        CD_SLAVE_SEND "cd_slave_send" (144:1..1);
        CD_MASTER "cd_master" (144:0..0);
        MIN_RNR_NAK "min_rnr_nak" (148:28..24);
        NEXT_RCV_PSN "next_rcv_psn" (148:23..0);
        XRCD "xrcd" (152:23..0);
        CQN_RCV "cqn_rcv" (156:23..0);
        DBR_ADDR "dbr_addr" (@160 u64);
        Q_KEY "q_key" (168:31..0);
        RQ_TYPE "rq_type" (172:26..24);
        SRQN_RMPN_XRQN "srqn_rmpn_xrqn" (172:23..0);
        RMSN "rmsn" (176:23..0);
        HW_SQ_WQEBB_COUNTER "hw_sq_wqebb_counter" (180:31..16);
        SW_SQ_WQEBB_COUNTER "sw_sq_wqebb_counter" (180:15..0);
        HW_RQ_COUNTER "hw_rq_counter" (184:31..0);
        SW_RQ_COUNTER "sw_rq_counter" (188:31..0);
        CGS "cgs" (196:16..16);
        CS_REQ "cs_req" (196:15..8);
        CS_RES "cs_res" (196:7..0);
        DC_ACCESS_KEY "dc_access_key" (@200 u64);
        DBR_UMEM_VALID "dbr_umem_valid" (208:28..28);
    }
}

crate::layout! {
    /// Input of CREATE_QP (`mlx5_ifc.h`, `create_qp_in`).
    CreateQpIn "create_qp_in", 272 bytes, input uid {
        QPC_EXT "qpc_ext" (8:31..31);
        INPUT_QPN "input_qpn" (8:23..0);
        OPT_PARAM_MASK "opt_param_mask" (16:31..0);
        ECE "ece" (20:31..0);
        QPC "qpc" (@24 Qpc);
        WQ_UMEM_OFFSET "wq_umem_offset" (@256 u64);
        WQ_UMEM_ID "wq_umem_id" (264:31..0);
        WQ_UMEM_VALID "wq_umem_valid" (268:31..31);
        PAS "pas" (@272 [8]..);
    }
}

crate::layout! {
    /// Output of CREATE_QP (`mlx5_ifc.h`, `create_qp_out`).
    CreateQpOut "create_qp_out", 16 bytes, output {
        QPN "qpn" (8:23..0);
        ECE "ece" (12:31..0);
    }
}

crate::layout! {
    /// Input of DESTROY_QP (`mlx5_ifc.h`, `destroy_qp_in`).
    DestroyQpIn "destroy_qp_in", 16 bytes, input uid {
        QPN "qpn" (8:23..0);
    }
}

crate::layout! {
    /// Output of DESTROY_QP (`mlx5_ifc.h`, `destroy_qp_out`).
    DestroyQpOut "destroy_qp_out", output;
}

crate::layout! {
    /// Input of QUERY_QP (`mlx5_ifc.h`, `query_qp_in`).
    QueryQpIn "query_qp_in", 16 bytes, input {
        QPC_EXT "qpc_ext" (8:31..31);
        QPN "qpn" (8:23..0);
    }
}

crate::layout! {
    /// Output of QUERY_QP (`mlx5_ifc.h`, `query_qp_out`).
    QueryQpOut "query_qp_out", 464 bytes, output {
        OPT_PARAM_MASK "opt_param_mask" (16:31..0);
        ECE "ece" (20:31..0);
        QPC "qpc" (@24 Qpc);
        QP_PAS_OR_QPC_EXT_AND_PAS "qp_pas_or_qpc_ext_and_pas" (@272 [192]);
    }
}

crate::layout! {
    /// Input of RST2INIT_QP (`mlx5_ifc.h`, `rst2init_qp_in`).
    Rst2initQpIn "rst2init_qp_in", 272 bytes, input uid {
        QPN "qpn" (8:23..0);
        OPT_PARAM_MASK "opt_param_mask" (16:31..0);
        ECE "ece" (20:31..0);
        QPC "qpc" (@24 Qpc);
    }
}

crate::layout! {
    /// Output of RST2INIT_QP (`mlx5_ifc.h`, `rst2init_qp_out`).
    Rst2initQpOut "rst2init_qp_out", 16 bytes, output {
        ECE "ece" (12:31..0);
    }
}

crate::layout! {
    /// Input of INIT2INIT_QP (`mlx5_ifc.h`, `init2init_qp_in`).
    Init2initQpIn "init2init_qp_in", 272 bytes, input uid {
        QPN "qpn" (8:23..0);
        OPT_PARAM_MASK "opt_param_mask" (16:31..0);
        ECE "ece" (20:31..0);
        QPC "qpc" (@24 Qpc);
    }
}

crate::layout! {
    /// Output of INIT2INIT_QP (`mlx5_ifc.h`, `init2init_qp_out`).
    Init2initQpOut "init2init_qp_out", 16 bytes, output {
        ECE "ece" (12:31..0);
    }
}

crate::layout! {
    /// Input of INIT2RTR_QP (`mlx5_ifc.h`, `init2rtr_qp_in`).
    Init2rtrQpIn "init2rtr_qp_in", 272 bytes, input uid {
        QPN "qpn" (8:23..0);
        OPT_PARAM_MASK "opt_param_mask" (16:31..0);
        ECE "ece" (20:31..0);
        QPC "qpc" (@24 Qpc);
    }
}

crate::layout! {
    /// Output of INIT2RTR_QP (`mlx5_ifc.h`, `init2rtr_qp_out`).
    Init2rtrQpOut "init2rtr_qp_out", 16 bytes, output {
        ECE "ece" (12:31..0);
    }
}

crate::layout! {
    /// Input of RTR2RTS_QP (`mlx5_ifc.h`, `rtr2rts_qp_in`).
    Rtr2rtsQpIn "rtr2rts_qp_in", 272 bytes, input uid {
        QPN "qpn" (8:23..0);
        OPT_PARAM_MASK "opt_param_mask" (16:31..0);
        ECE "ece" (20:31..0);
        QPC "qpc" (@24 Qpc);
    }
}

crate::layout! {
    /// Output of RTR2RTS_QP (`mlx5_ifc.h`, `rtr2rts_qp_out`).
    Rtr2rtsQpOut "rtr2rts_qp_out", 16 bytes, output {
        ECE "ece" (12:31..0);
    }
}

crate::layout! {
    /// Input of RTS2RTS_QP (`mlx5_ifc.h`, `rts2rts_qp_in`).
    Rts2rtsQpIn "rts2rts_qp_in", 272 bytes, input uid {
        QPN "qpn" (8:23..0);
        OPT_PARAM_MASK "opt_param_mask" (16:31..0);
        ECE "ece" (20:31..0);
        QPC "qpc" (@24 Qpc);
    }
}

crate::layout! {
    /// Output of RTS2RTS_QP (`mlx5_ifc.h`, `rts2rts_qp_out`).
    Rts2rtsQpOut "rts2rts_qp_out", 16 bytes, output {
        ECE "ece" (12:31..0);
    }
}

crate::layout! {
    /// Input of SQERR2RTS_QP (`mlx5_ifc.h`, `sqerr2rts_qp_in`).
    Sqerr2rtsQpIn "sqerr2rts_qp_in", 272 bytes, input uid {
        QPN "qpn" (8:23..0);
        OPT_PARAM_MASK "opt_param_mask" (16:31..0);
        QPC "qpc" (@24 Qpc);
    }
}

crate::layout! {
    /// Output of SQERR2RTS_QP (`mlx5_ifc.h`, `sqerr2rts_qp_out`).
    Sqerr2rtsQpOut "sqerr2rts_qp_out", output;
}

crate::layout! {
    /// Input of SQD2RTS_QP (`mlx5_ifc.h`, `sqd2rts_qp_in`).
    Sqd2rtsQpIn "sqd2rts_qp_in", 272 bytes, input uid {
        QPN "qpn" (8:23..0);
        OPT_PARAM_MASK "opt_param_mask" (16:31..0);
        QPC "qpc" (@24 Qpc);
    }
}

crate::layout! {
    /// Output of SQD2RTS_QP (`mlx5_ifc.h`, `sqd2rts_qp_out`).
    Sqd2rtsQpOut "sqd2rts_qp_out", output;
}

crate::layout! {
    /// Input of QP_2ERR (`mlx5_ifc.h`, `qp_2err_in`).
    Qp2errIn "qp_2err_in", 16 bytes, input uid {
        QPN "qpn" (8:23..0);
    }
}

crate::layout! {
    /// Output of QP_2ERR (`mlx5_ifc.h`, `qp_2err_out`).
    Qp2errOut "qp_2err_out", output;
}

crate::layout! {
    /// Input of QP_2RST (`mlx5_ifc.h`, `qp_2rst_in`).
    Qp2rstIn "qp_2rst_in", 16 bytes, input uid {
        QPN "qpn" (8:23..0);
    }
}

crate::layout! {
    /// Output of QP_2RST (`mlx5_ifc.h`, `qp_2rst_out`).
    Qp2rstOut "qp_2rst_out", output;
}

crate::codes! {
    /// [`Qpc::STATE`] (`MLX5_QP_STATE_*`).
    QpcState {
        Rst = 0 "RST",
        Init = 1 "INIT",
        Rtr = 2 "RTR",
        Rts = 3 "RTS",
        SqEr = 4 "SQER",
        Sqd = 5 "SQD",
        Err = 6 "ERR",
        SqDraining = 7 "SQ_DRAINING",
        Suspended = 9 "SUSPENDED",
    }
}

crate::codes! {
    /// [`Qpc::ST`], the service type (`MLX5_QP_ST_*`).
    QpcSt {
        Rc = 0x0 "RC",
        Uc = 0x1 "UC",
        Ud = 0x2 "UD",
        Xrc = 0x3 "XRC",
        Dci = 0x5 "DCI",
        Qp0 = 0x7 "QP0",
        Qp1 = 0x8 "QP1",
        RawEthertype = 0x9 "RAW_ETHERTYPE",
        RegUmr = 0xc "REG_UMR",
    }
}

/// Values of [`Qpc::RQ_TYPE`].
pub mod rq_type {
    /// A receive queue of its own.
    pub const OWN: u32 = 0;
    /// A shared receive queue.
    pub const SRQ: u32 = 1;
    /// No receive queue.
    pub const NONE: u32 = 3;
}

/// Values of [`Qpc::PM_STATE`].
pub mod pm_state {
    /// Armed.
    pub const ARMED: u32 = 0;
    /// To be rearmed.
    pub const REARM: u32 = 1;
    /// Migrated.
    pub const MIGRATED: u32 = 3;
}

/// Bits of `opt_param_mask`: which optional fields of the context a transition takes (`MLX5_QP_OPTPAR_*`).
pub mod opt_param {
    /// `secondary_address_path`.
    pub const ALT_ADDR_PATH: u32 = 1;
    /// `rre`.
    pub const RRE: u32 = 1 << 1;
    /// `rae`.
    pub const RAE: u32 = 1 << 2;
    /// `rwe`.
    pub const RWE: u32 = 1 << 3;
    /// `pkey_index` of the primary path.
    pub const PKEY_INDEX: u32 = 1 << 4;
    /// `q_key`.
    pub const Q_KEY: u32 = 1 << 5;
    /// `min_rnr_nak`.
    pub const RNR_TIMEOUT: u32 = 1 << 6;
    /// `primary_address_path`.
    pub const PRIMARY_ADDR_PATH: u32 = 1 << 7;
    /// `log_sra_max`.
    pub const SRA_MAX: u32 = 1 << 8;
    /// `log_rra_max`.
    pub const RRA_MAX: u32 = 1 << 9;
    /// `pm_state`.
    pub const PM_STATE: u32 = 1 << 10;
    /// `retry_count`.
    pub const RETRY_COUNT: u32 = 1 << 12;
    /// `rnr_retry`.
    pub const RNR_RETRY: u32 = 1 << 13;
    /// `ack_timeout`.
    pub const ACK_TIMEOUT: u32 = 1 << 14;
    /// `vhca_port_num` of the primary path.
    pub const PRI_PORT: u32 = 1 << 16;
}

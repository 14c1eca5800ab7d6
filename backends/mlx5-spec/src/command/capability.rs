//! Capabilities: what the device has and what the driver chose.

crate::layout! {
    /// Input of QUERY_HCA_CAP (`mlx5_ifc.h`, `query_hca_cap_in`).
    QueryHcaCapIn "query_hca_cap_in", 16 bytes, input {
        OTHER_FUNCTION "other_function" (8:31..31);
        EC_VF_FUNCTION "ec_vf_function" (8:30..30);
        FUNCTION_ID "function_id" (8:15..0);
    }
}

crate::layout! {
    /// Output of QUERY_HCA_CAP (`mlx5_ifc.h`, `query_hca_cap_out`).
    QueryHcaCapOut "query_hca_cap_out", 4112 bytes, output {
        CAPABILITY "capability" (@16 [4096]);
    }
}

crate::layout! {
    /// Input of SET_HCA_CAP (`mlx5_ifc.h`, `set_hca_cap_in`).
    SetHcaCapIn "set_hca_cap_in", 4112 bytes, input {
        OTHER_FUNCTION "other_function" (8:31..31);
        EC_VF_FUNCTION "ec_vf_function" (8:30..30);
        FUNCTION_ID "function_id" (8:15..0);
        CAPABILITY "capability" (@16 [4096]);
    }
}

crate::layout! {
    /// Output of SET_HCA_CAP (`mlx5_ifc.h`, `set_hca_cap_out`).
    SetHcaCapOut "set_hca_cap_out", output;
}

crate::layout! {
    /// General device capabilities (`mlx5_ifc.h`, `cmd_hca_cap`).
    CmdHcaCap "cmd_hca_cap", 256 bytes {
        PAGE_REQUEST_DISABLE "page_request_disable" (0:25..25);
        SHARED_OBJECT_TO_USER_OBJECT_ALLOWED "shared_object_to_user_object_allowed" (0:15..15);
        VHCA_RESOURCE_MANAGER "vhca_resource_manager" (0:0..0);
        HCA_CAP_2 "hca_cap_2" (4:31..31);
        CREATE_LAG_WHEN_NOT_MASTER_UP "create_lag_when_not_master_up" (4:30..30);
        DTOR "dtor" (4:29..29);
        EVENT_ON_VHCA_STATE_TEARDOWN_REQUEST "event_on_vhca_state_teardown_request" (4:28..28);
        EVENT_ON_VHCA_STATE_IN_USE "event_on_vhca_state_in_use" (4:27..27);
        EVENT_ON_VHCA_STATE_ACTIVE "event_on_vhca_state_active" (4:26..26);
        EVENT_ON_VHCA_STATE_ALLOCATED "event_on_vhca_state_allocated" (4:25..25);
        EVENT_ON_VHCA_STATE_INVALID "event_on_vhca_state_invalid" (4:24..24);
        VHCA_ID "vhca_id" (4:15..0);
        LOG_MAX_SRQ_SZ "log_max_srq_sz" (16:31..24);
        LOG_MAX_QP_SZ "log_max_qp_sz" (16:23..16);
        EVENT_CAP "event_cap" (16:15..15);
        ISOLATE_VL_TC_NEW "isolate_vl_tc_new" (16:12..12);
        PRIO_TAG_REQUIRED "prio_tag_required" (16:7..7);
        LOG_MAX_QP "log_max_qp" (16:4..0);
        ECE_SUPPORT "ece_support" (20:28..28);
        REG_C_PRESERVE "reg_c_preserve" (20:22..22);
        LOG_MAX_SRQ "log_max_srq" (20:20..16);
        UPLINK_FOLLOW "uplink_follow" (20:14..14);
        TS_CQE_TO_DEST_CQN "ts_cqe_to_dest_cqn" (20:13..13);
        GO_BACK_N "go_back_n" (20:6..6);
        MAX_SGL_FOR_OPTIMIZED_PERFORMANCE "max_sgl_for_optimized_performance" (24:31..24);
        LOG_MAX_CQ_SZ "log_max_cq_sz" (24:23..16);
        RELAXED_ORDERING_WRITE_UMR "relaxed_ordering_write_umr" (24:15..15);
        RELAXED_ORDERING_READ_UMR "relaxed_ordering_read_umr" (24:14..14);
        VIRTIO_NET_DEVICE_EMUALTION_MANAGER "virtio_net_device_emualtion_manager" (24:6..6);
        VIRTIO_BLK_DEVICE_EMUALTION_MANAGER "virtio_blk_device_emualtion_manager" (24:5..5);
        LOG_MAX_CQ "log_max_cq" (24:4..0);
        LOG_MAX_EQ_SZ "log_max_eq_sz" (28:31..24);
        RELAXED_ORDERING_WRITE "relaxed_ordering_write" (28:23..23);
        RELAXED_ORDERING_READ_PCI_ENABLED "relaxed_ordering_read_pci_enabled" (28:22..22);
        LOG_MAX_MKEY "log_max_mkey" (28:21..16);
        TERMINATE_SCATTER_LIST_MKEY "terminate_scatter_list_mkey" (28:9..9);
        REPEATED_MKEY "repeated_mkey" (28:8..8);
        DUMP_FILL_MKEY "dump_fill_mkey" (28:7..7);
        FAST_TEARDOWN "fast_teardown" (28:4..4);
        LOG_MAX_EQ "log_max_eq" (28:3..0);
        MAX_INDIRECTION "max_indirection" (32:31..24);
        FIXED_BUFFER_SIZE "fixed_buffer_size" (32:23..23);
        LOG_MAX_MRW_SZ "log_max_mrw_sz" (32:22..16);
        FORCE_TEARDOWN "force_teardown" (32:15..15);
        LOG_MAX_BSF_LIST_SIZE "log_max_bsf_list_size" (32:13..8);
        UMR_EXTENDED_TRANSLATION_OFFSET "umr_extended_translation_offset" (32:7..7);
        NULL_MKEY "null_mkey" (32:6..6);
        LOG_MAX_KLM_LIST_SIZE "log_max_klm_list_size" (32:5..0);
        QPC_EXTENSION "qpc_extension" (36:29..29);
        LOG_MAX_RA_REQ_DC "log_max_ra_req_dc" (36:21..16);
        ETH_WQE_TOO_SMALL "eth_wqe_too_small" (36:13..13);
        VNIC_ENV_CQ_OVERRUN "vnic_env_cq_overrun" (36:6..6);
        LOG_MAX_RA_RES_DC "log_max_ra_res_dc" (36:5..0);
        RELEASE_ALL_PAGES "release_all_pages" (40:26..26);
        MUST_NOT_USE "must_not_use" (40:25..25);
        ROCE_ACCL "roce_accl" (40:22..22);
        LOG_MAX_RA_REQ_QP "log_max_ra_req_qp" (40:21..16);
        LOG_MAX_RA_RES_QP "log_max_ra_res_qp" (40:5..0);
        END_PAD "end_pad" (44:31..31);
        CC_QUERY_ALLOWED "cc_query_allowed" (44:30..30);
        CC_MODIFY_ALLOWED "cc_modify_allowed" (44:29..29);
        START_PAD "start_pad" (44:28..28);
        CACHE_LINE_128BYTE "cache_line_128byte" (44:27..27);
        RTS2RTS_QP_COUNTERS_SET_ID "rts2rts_qp_counters_set_id" (44:22..22);
        VNIC_ENV_INT_RQ_OOB "vnic_env_int_rq_oob" (44:19..19);
        SBCAM_REG "sbcam_reg" (44:18..18);
        QCAM_REG "qcam_reg" (44:16..16);
        GID_TABLE_SIZE "gid_table_size" (44:15..0);
        OUT_OF_SEQ_CNT "out_of_seq_cnt" (48:31..31);
        VPORT_COUNTERS "vport_counters" (48:30..30);
        RETRANSMISSION_Q_COUNTERS "retransmission_q_counters" (48:29..29);
        DEBUG "debug" (48:28..28);
        MODIFY_RQ_COUNTER_SET_ID "modify_rq_counter_set_id" (48:27..27);
        RQ_DELAY_DROP "rq_delay_drop" (48:26..26);
        MAX_QP_CNT "max_qp_cnt" (48:25..16);
        PKEY_TABLE_SIZE "pkey_table_size" (48:15..0);
        VPORT_GROUP_MANAGER "vport_group_manager" (52:31..31);
        VHCA_GROUP_MANAGER "vhca_group_manager" (52:30..30);
        IB_VIRT "ib_virt" (52:29..29);
        ETH_VIRT "eth_virt" (52:28..28);
        VNIC_ENV_QUEUE_COUNTERS "vnic_env_queue_counters" (52:27..27);
        ETS "ets" (52:26..26);
        NIC_FLOW_TABLE "nic_flow_table" (52:25..25);
        ESWITCH_MANAGER "eswitch_manager" (52:24..24);
        DEVICE_MEMORY "device_memory" (52:23..23);
        MCAM_REG "mcam_reg" (52:22..22);
        PCAM_REG "pcam_reg" (52:21..21);
        LOCAL_CA_ACK_DELAY "local_ca_ack_delay" (52:20..16);
        PORT_MODULE_EVENT "port_module_event" (52:15..15);
        ENHANCED_ERROR_Q_COUNTERS "enhanced_error_q_counters" (52:14..14);
        PORTS_CHECK "ports_check" (52:13..13);
        DISABLE_LINK_UP "disable_link_up" (52:11..11);
        BEACON_LED "beacon_led" (52:10..10);
        PORT_TYPE "port_type" (52:9..8);
        NUM_PORTS "num_ports" (52:7..0);
        PPS "pps" (56:30..30);
        PPS_MODIFY "pps_modify" (56:29..29);
        LOG_MAX_MSG "log_max_msg" (56:28..24);
        MAX_TC "max_tc" (56:19..16);
        TEMP_WARN_EVENT "temp_warn_event" (56:15..15);
        DCBX "dcbx" (56:14..14);
        GENERAL_NOTIFICATION_EVENT "general_notification_event" (56:13..13);
        FPGA "fpga" (56:10..10);
        ROL_S "rol_s" (56:9..9);
        ROL_G "rol_g" (56:8..8);
        WOL_S "wol_s" (56:6..6);
        WOL_G "wol_g" (56:5..5);
        WOL_A "wol_a" (56:4..4);
        WOL_B "wol_b" (56:3..3);
        WOL_M "wol_m" (56:2..2);
        WOL_U "wol_u" (56:1..1);
        WOL_P "wol_p" (56:0..0);
        STAT_RATE_SUPPORT "stat_rate_support" (60:31..16);
        PCI_SYNC_FOR_FW_UPDATE_EVENT "pci_sync_for_fw_update_event" (60:14..14);
        INIT2_LAG_TX_PORT_AFFINITY "init2_lag_tx_port_affinity" (60:7..7);
        WQE_BASED_FLOW_TABLE_UPDATE_CAP "wqe_based_flow_table_update_cap" (60:4..4);
        CQE_VERSION "cqe_version" (60:3..0);
        COMPACT_ADDRESS_VECTOR "compact_address_vector" (64:31..31);
        STRIDING_RQ "striding_rq" (64:30..30);
        IPOIB_ENHANCED_OFFLOADS "ipoib_enhanced_offloads" (64:28..28);
        IPOIB_BASIC_OFFLOADS "ipoib_basic_offloads" (64:27..27);
        REPEATED_BLOCK_DISABLED "repeated_block_disabled" (64:25..25);
        UMR_MODIFY_ENTITY_SIZE_DISABLED "umr_modify_entity_size_disabled" (64:24..24);
        UMR_MODIFY_ATOMIC_DISABLED "umr_modify_atomic_disabled" (64:23..23);
        UMR_INDIRECT_MKEY_DISABLED "umr_indirect_mkey_disabled" (64:22..22);
        UMR_FENCE "umr_fence" (64:21..20);
        DC_REQ_SCAT_DATA_CQE "dc_req_scat_data_cqe" (64:19..19);
        DRAIN_SIGERR "drain_sigerr" (64:16..16);
        CMDIF_CHECKSUM "cmdif_checksum" (64:15..14);
        SIGERR_CQE "sigerr_cqe" (64:13..13);
        WQ_SIGNATURE "wq_signature" (64:11..11);
        SCTR_DATA_CQE "sctr_data_cqe" (64:10..10);
        SHO "sho" (64:8..8);
        TPH "tph" (64:7..7);
        RF "rf" (64:6..6);
        DCT "dct" (64:5..5);
        QOS "qos" (64:4..4);
        ETH_NET_OFFLOADS "eth_net_offloads" (64:3..3);
        ROCE "roce" (64:2..2);
        ATOMIC "atomic" (64:1..1);
        CQ_OI "cq_oi" (68:31..31);
        CQ_RESIZE "cq_resize" (68:30..30);
        CQ_MODERATION "cq_moderation" (68:29..29);
        CQ_PERIOD_MODE_MODIFY "cq_period_mode_modify" (68:28..28);
        CQ_EQ_REMAP "cq_eq_remap" (68:25..25);
        PG "pg" (68:24..24);
        BLOCK_LB_MC "block_lb_mc" (68:23..23);
        SCQE_BREAK_MODERATION "scqe_break_moderation" (68:21..21);
        CQ_PERIOD_START_FROM_CQE "cq_period_start_from_cqe" (68:20..20);
        CD "cd" (68:19..19);
        APM "apm" (68:17..17);
        VECTOR_CALC "vector_calc" (68:16..16);
        UMR_PTR_RLKY "umr_ptr_rlky" (68:15..15);
        IMAICL "imaicl" (68:14..14);
        QP_PACKET_BASED "qp_packet_based" (68:13..13);
        QKV "qkv" (68:9..9);
        PKV "pkv" (68:8..8);
        SET_DETH_SQPN "set_deth_sqpn" (68:7..7);
        XRC "xrc" (68:3..3);
        UD "ud" (68:2..2);
        UC "uc" (68:1..1);
        RC "rc" (68:0..0);
        UAR_4K "uar_4k" (72:31..31);
        FL_RC_QP_WHEN_ROCE_DISABLED "fl_rc_qp_when_roce_disabled" (72:23..23);
        REGEXP_PARAMS "regexp_params" (72:22..22);
        UAR_SZ "uar_sz" (72:21..16);
        PORT_SELECTION_CAP "port_selection_cap" (72:15..15);
        UMEM_UID_0 "umem_uid_0" (72:13..13);
        LOG_PG_SZ "log_pg_sz" (72:7..0);
        BF "bf" (76:31..31);
        DRIVER_VERSION "driver_version" (76:30..30);
        PAD_TX_ETH_PACKET "pad_tx_eth_packet" (76:29..29);
        MKEY_BY_NAME "mkey_by_name" (76:25..25);
        LOG_BF_REG_SIZE "log_bf_reg_size" (76:20..16);
        QP_ERROR_SYNDROME "qp_error_syndrome" (76:12..12);
        LAG_DCT "lag_dct" (76:9..8);
        LAG_TX_PORT_AFFINITY "lag_tx_port_affinity" (76:7..7);
        LAG_NATIVE_FDB_SELECTION "lag_native_fdb_selection" (76:6..6);
        LAG_MASTER "lag_master" (76:4..4);
        NUM_LAG_PORTS "num_lag_ports" (76:3..0);
        MAX_WQE_SZ_SQ "max_wqe_sz_sq" (80:15..0);
        SHAMPO "shampo" (84:20..20);
        MAX_WQE_SZ_RQ "max_wqe_sz_rq" (84:15..0);
        MAX_FLOW_COUNTER_31_16 "max_flow_counter_31_16" (88:31..16);
        MAX_WQE_SZ_SQ_DC "max_wqe_sz_sq_dc" (88:15..0);
        MAX_QP_MCG "max_qp_mcg" (92:24..0);
        FLOW_COUNTER_BULK_ALLOC "flow_counter_bulk_alloc" (96:15..8);
        LOG_MAX_MCG "log_max_mcg" (96:7..0);
        LOG_MAX_TRANSPORT_DOMAIN "log_max_transport_domain" (100:28..24);
        RELAXED_ORDERING_READ "relaxed_ordering_read" (100:21..21);
        LOG_MAX_PD "log_max_pd" (100:20..16);
        PCIE_RESET_USING_HOTRESET_METHOD "pcie_reset_using_hotreset_method" (100:10..10);
        PCI_SYNC_FOR_FW_UPDATE_WITH_DRIVER_UNLOAD "pci_sync_for_fw_update_with_driver_unload" (100:9..9);
        VNIC_ENV_CNT_STEERING_FAIL "vnic_env_cnt_steering_fail" (100:8..8);
        VPORT_COUNTER_LOCAL_LOOPBACK "vport_counter_local_loopback" (100:7..7);
        Q_COUNTER_AGGREGATION "q_counter_aggregation" (100:6..6);
        Q_COUNTER_OTHER_VPORT "q_counter_other_vport" (100:5..5);
        LOG_MAX_XRCD "log_max_xrcd" (100:4..0);
        NIC_RECEIVE_STEERING_DISCARD "nic_receive_steering_discard" (104:31..31);
        RECEIVE_DISCARD_VPORT_DOWN "receive_discard_vport_down" (104:30..30);
        TRANSMIT_DISCARD_VPORT_DOWN "transmit_discard_vport_down" (104:29..29);
        EQ_OVERRUN_COUNT "eq_overrun_count" (104:28..28);
        INVALID_COMMAND_COUNT "invalid_command_count" (104:26..26);
        QUOTA_EXCEEDED_COUNT "quota_exceeded_count" (104:25..25);
        LOG_MAX_FLOW_COUNTER_BULK "log_max_flow_counter_bulk" (104:23..16);
        MAX_FLOW_COUNTER_15_0 "max_flow_counter_15_0" (104:15..0);
        LOG_MAX_RQ "log_max_rq" (108:28..24);
        LOG_MAX_SQ "log_max_sq" (108:20..16);
        LOG_MAX_TIR "log_max_tir" (108:12..8);
        LOG_MAX_TIS "log_max_tis" (108:4..0);
        BASIC_CYCLIC_RCV_WQE "basic_cyclic_rcv_wqe" (112:31..31);
        LOG_MAX_RMP "log_max_rmp" (112:28..24);
        LOG_MAX_RQT "log_max_rqt" (112:20..16);
        LOG_MAX_RQT_SIZE "log_max_rqt_size" (112:12..8);
        LOG_MAX_TIS_PER_SQ "log_max_tis_per_sq" (112:4..0);
        EXT_STRIDE_NUM_RANGE "ext_stride_num_range" (116:31..31);
        ROCE_RW_SUPPORTED "roce_rw_supported" (116:30..30);
        LOG_MAX_CURRENT_UC_LIST_WR_SUPPORTED "log_max_current_uc_list_wr_supported" (116:29..29);
        LOG_MAX_STRIDE_SZ_RQ "log_max_stride_sz_rq" (116:28..24);
        LOG_MIN_STRIDE_SZ_RQ "log_min_stride_sz_rq" (116:20..16);
        LOG_MAX_STRIDE_SZ_SQ "log_max_stride_sz_sq" (116:12..8);
        LOG_MIN_STRIDE_SZ_SQ "log_min_stride_sz_sq" (116:4..0);
        HAIRPIN "hairpin" (120:31..31);
        LOG_MAX_HAIRPIN_QUEUES "log_max_hairpin_queues" (120:28..24);
        LOG_MAX_HAIRPIN_WQ_DATA_SZ "log_max_hairpin_wq_data_sz" (120:20..16);
        LOG_MAX_HAIRPIN_NUM_PACKETS "log_max_hairpin_num_packets" (120:12..8);
        LOG_MAX_WQ_SZ "log_max_wq_sz" (120:4..0);
        NIC_VPORT_CHANGE_EVENT "nic_vport_change_event" (124:31..31);
        DISABLE_LOCAL_LB_UC "disable_local_lb_uc" (124:30..30);
        DISABLE_LOCAL_LB_MC "disable_local_lb_mc" (124:29..29);
        LOG_MIN_HAIRPIN_WQ_DATA_SZ "log_min_hairpin_wq_data_sz" (124:28..24);
        SILENT_MODE "silent_mode" (124:22..22);
        VHCA_STATE "vhca_state" (124:21..21);
        LOG_MAX_VLAN_LIST "log_max_vlan_list" (124:20..16);
        LOG_MAX_CURRENT_MC_LIST "log_max_current_mc_list" (124:12..8);
        LOG_MAX_CURRENT_UC_LIST "log_max_current_uc_list" (124:4..0);
        GENERAL_OBJ_TYPES "general_obj_types" (@128 u64);
        SQ_TS_FORMAT "sq_ts_format" (136:31..30);
        RQ_TS_FORMAT "rq_ts_format" (136:29..28);
        STEERING_FORMAT_VERSION "steering_format_version" (136:27..24);
        CREATE_QP_START_HINT "create_qp_start_hint" (136:23..0);
        ATS "ats" (140:30..30);
        CROSS_VHCA_RQT "cross_vhca_rqt" (140:29..29);
        LOG_MAX_UCTX "log_max_uctx" (140:28..24);
        CRYPTO "crypto" (140:22..22);
        IPSEC_OFFLOAD "ipsec_offload" (140:21..21);
        LOG_MAX_UMEM "log_max_umem" (140:20..16);
        MAX_NUM_EQS "max_num_eqs" (140:15..0);
        TLS_TX "tls_tx" (144:30..30);
        TLS_RX "tls_rx" (144:29..29);
        LOG_MAX_L2_TABLE "log_max_l2_table" (144:28..24);
        LOG_UAR_PAGE_SZ "log_uar_page_sz" (144:15..0);
        DEVICE_FREQUENCY_MHZ "device_frequency_mhz" (152:31..0);
        DEVICE_FREQUENCY_KHZ "device_frequency_khz" (156:31..0);
        NUM_OF_UARS_PER_PAGE "num_of_uars_per_page" (164:31..0);
        FLEX_PARSER_PROTOCOLS "flex_parser_protocols" (168:31..0);
        MAX_GENEVE_TLV_OPTIONS "max_geneve_tlv_options" (172:31..24);
        MAX_GENEVE_TLV_OPTION_DATA_LEN "max_geneve_tlv_option_data_len" (172:20..16);
        ADV_VIRTUALIZATION "adv_virtualization" (172:6..6);
        LOG_MAX_DCI_STREAM_CHANNELS "log_max_dci_stream_channels" (176:20..16);
        LOG_MAX_DCI_ERRORED_STREAMS "log_max_dci_errored_streams" (176:12..8);
        ENHANCED_CQE_COMPRESSION "enhanced_cqe_compression" (180:15..15);
        CROSSING_VHCA_MKEY "crossing_vhca_mkey" (180:13..13);
        LOG_MAX_DEK "log_max_dek" (180:12..8);
        MINI_CQE_RESP_STRIDE_INDEX "mini_cqe_resp_stride_index" (180:3..3);
        CQE_128_ALWAYS "cqe_128_always" (180:2..2);
        CQE_COMPRESSION_128 "cqe_compression_128" (180:1..1);
        CQE_COMPRESSION "cqe_compression" (180:0..0);
        CQE_COMPRESSION_TIMEOUT "cqe_compression_timeout" (184:31..16);
        CQE_COMPRESSION_MAX_NUM "cqe_compression_max_num" (184:15..0);
        FLEX_PARSER_ID_GTPU_DW_0 "flex_parser_id_gtpu_dw_0" (188:23..20);
        TAG_MATCHING "tag_matching" (188:15..15);
        RNDV_OFFLOAD_RC "rndv_offload_rc" (188:14..14);
        RNDV_OFFLOAD_DC "rndv_offload_dc" (188:13..13);
        LOG_TAG_MATCHING_LIST_SZ "log_tag_matching_list_sz" (188:12..8);
        LOG_MAX_XRQ "log_max_xrq" (188:4..0);
        AFFILIATE_NIC_VPORT_CRITERIA "affiliate_nic_vport_criteria" (192:31..24);
        NATIVE_PORT_NUM "native_port_num" (192:23..16);
        NUM_VHCA_PORTS "num_vhca_ports" (192:15..8);
        FLEX_PARSER_ID_GTPU_TEID "flex_parser_id_gtpu_teid" (192:7..4);
        SW_OWNER_ID "sw_owner_id" (192:1..1);
        MAX_NUM_OF_MONITOR_COUNTERS "max_num_of_monitor_counters" (196:31..16);
        NUM_PPCNT_MONITOR_COUNTERS "num_ppcnt_monitor_counters" (196:15..0);
        MAX_NUM_SF "max_num_sf" (200:31..16);
        NUM_Q_MONITOR_COUNTERS "num_q_monitor_counters" (200:15..0);
        SF "sf" (208:31..31);
        SF_SET_PARTITION "sf_set_partition" (208:30..30);
        LOG_MAX_SF "log_max_sf" (208:28..24);
        APU "apu" (208:23..23);
        MIGRATION "migration" (208:18..18);
        LOG_MIN_SF_SIZE "log_min_sf_size" (208:15..8);
        MAX_NUM_SF_PARTITIONS "max_num_sf_partitions" (208:7..0);
        UCTX_CAP "uctx_cap" (212:31..0);
        FLEX_PARSER_ID_GENEVE_TLV_OPTION_0 "flex_parser_id_geneve_tlv_option_0" (216:27..24);
        FLEX_PARSER_ID_ICMP_DW1 "flex_parser_id_icmp_dw1" (216:23..20);
        FLEX_PARSER_ID_ICMP_DW0 "flex_parser_id_icmp_dw0" (216:19..16);
        FLEX_PARSER_ID_ICMPV6_DW1 "flex_parser_id_icmpv6_dw1" (216:15..12);
        FLEX_PARSER_ID_ICMPV6_DW0 "flex_parser_id_icmpv6_dw0" (216:11..8);
        FLEX_PARSER_ID_OUTER_FIRST_MPLS_OVER_GRE "flex_parser_id_outer_first_mpls_over_gre" (216:7..4);
        FLEX_PARSER_ID_OUTER_FIRST_MPLS_OVER_UDP_LABEL "flex_parser_id_outer_first_mpls_over_udp_label" (216:3..0);
        MAX_NUM_MATCH_DEFINER "max_num_match_definer" (220:31..16);
        SF_BASE_ID "sf_base_id" (220:15..0);
        FLEX_PARSER_ID_GTPU_DW_2 "flex_parser_id_gtpu_dw_2" (224:31..28);
        FLEX_PARSER_ID_GTPU_FIRST_EXT_DW_0 "flex_parser_id_gtpu_first_ext_dw_0" (224:27..24);
        NUM_TOTAL_DYNAMIC_VF_MSIX "num_total_dynamic_vf_msix" (224:23..0);
        DYNAMIC_MSIX_TABLE_SIZE "dynamic_msix_table_size" (228:11..0);
        MIN_DYNAMIC_VF_MSIX_TABLE_SIZE "min_dynamic_vf_msix_table_size" (232:19..16);
        DATA_DIRECT "data_direct" (232:13..13);
        MAX_DYNAMIC_VF_MSIX_TABLE_SIZE "max_dynamic_vf_msix_table_size" (232:11..0);
        LOG_MAX_NUM_HEADER_MODIFY_ARGUMENT "log_max_num_header_modify_argument" (236:28..24);
        LOG_HEADER_MODIFY_ARGUMENT_GRANULARITY_OFFSET "log_header_modify_argument_granularity_offset" (236:23..20);
        LOG_HEADER_MODIFY_ARGUMENT_GRANULARITY "log_header_modify_argument_granularity" (236:19..16);
        LOG_HEADER_MODIFY_ARGUMENT_MAX_ALLOC "log_header_modify_argument_max_alloc" (236:12..8);
        VHCA_TUNNEL_COMMANDS "vhca_tunnel_commands" (@240 u64);
        MATCH_DEFINER_FORMAT_SUPPORTED "match_definer_format_supported" (@248 u64);
    }
}

crate::layout! {
    /// Atomic capabilities (`mlx5_ifc.h`, `atomic_caps`).
    AtomicCaps "atomic_caps", 256 bytes {
        ATOMIC_REQ_8B_ENDIANNESS_MODE "atomic_req_8B_endianness_mode" (8:31..30);
        SUPPORTED_ATOMIC_REQ_8B_ENDIANNESS_MODE_1 "supported_atomic_req_8B_endianness_mode_1" (8:25..25);
        ATOMIC_OPERATIONS "atomic_operations" (16:15..0);
        ATOMIC_SIZE_QP "atomic_size_qp" (20:15..0);
        ATOMIC_SIZE_DC "atomic_size_dc" (24:15..0);
    }
}

crate::layout! {
    /// RoCE capabilities (`mlx5_ifc.h`, `roce_cap`).
    RoceCap "roce_cap", 256 bytes {
        ROCE_APM "roce_apm" (0:31..31);
        SW_R_ROCE_SRC_UDP_PORT "sw_r_roce_src_udp_port" (0:27..27);
        FL_RC_QP_WHEN_ROCE_DISABLED "fl_rc_qp_when_roce_disabled" (0:26..26);
        FL_RC_QP_WHEN_ROCE_ENABLED "fl_rc_qp_when_roce_enabled" (0:25..25);
        ROCE_CC_GENERAL "roce_cc_general" (0:24..24);
        QP_OOO_TRANSMIT_DEFAULT "qp_ooo_transmit_default" (0:23..23);
        QP_TS_FORMAT "qp_ts_format" (0:1..0);
        L3_TYPE "l3_type" (16:19..16);
        ROCE_VERSION "roce_version" (16:7..0);
        R_ROCE_DEST_UDP_PORT "r_roce_dest_udp_port" (20:15..0);
        R_ROCE_MAX_SRC_UDP_PORT "r_roce_max_src_udp_port" (24:31..16);
        R_ROCE_MIN_SRC_UDP_PORT "r_roce_min_src_udp_port" (24:15..0);
        ROCE_ADDRESS_TABLE_SIZE "roce_address_table_size" (28:15..0);
    }
}

crate::layout! {
    /// Capabilities of Ethernet offloads (`mlx5_ifc.h`, `per_protocol_networking_offload_caps`).
    PerProtocolNetworkingOffloadCaps "per_protocol_networking_offload_caps", 256 bytes {
        CSUM_CAP "csum_cap" (0:31..31);
        VLAN_CAP "vlan_cap" (0:30..30);
        LRO_CAP "lro_cap" (0:29..29);
        LRO_PSH_FLAG "lro_psh_flag" (0:28..28);
        LRO_TIME_STAMP "lro_time_stamp" (0:27..27);
        WQE_VLAN_INSERT "wqe_vlan_insert" (0:24..24);
        SELF_LB_EN_MODIFIABLE "self_lb_en_modifiable" (0:23..23);
        MAX_LSO_CAP "max_lso_cap" (0:20..16);
        MULTI_PKT_SEND_WQE "multi_pkt_send_wqe" (0:15..14);
        WQE_INLINE_MODE "wqe_inline_mode" (0:13..12);
        RSS_IND_TBL_CAP "rss_ind_tbl_cap" (0:11..8);
        REG_UMR_SQ "reg_umr_sq" (0:7..7);
        SCATTER_FCS "scatter_fcs" (0:6..6);
        ENHANCED_MULTI_PKT_SEND_WQE "enhanced_multi_pkt_send_wqe" (0:5..5);
        TUNNEL_LSO_CONST_OUT_IP_ID "tunnel_lso_const_out_ip_id" (0:4..4);
        TUNNEL_LRO_GRE "tunnel_lro_gre" (0:3..3);
        TUNNEL_LRO_VXLAN "tunnel_lro_vxlan" (0:2..2);
        TUNNEL_STATELESS_GRE "tunnel_stateless_gre" (0:1..1);
        TUNNEL_STATELESS_VXLAN "tunnel_stateless_vxlan" (0:0..0);
        SWP "swp" (4:31..31);
        SWP_CSUM "swp_csum" (4:30..30);
        SWP_LSO "swp_lso" (4:29..29);
        CQE_CHECKSUM_FULL "cqe_checksum_full" (4:28..28);
        TUNNEL_STATELESS_GENEVE_TX "tunnel_stateless_geneve_tx" (4:27..27);
        TUNNEL_STATELESS_MPLS_OVER_UDP "tunnel_stateless_mpls_over_udp" (4:26..26);
        TUNNEL_STATELESS_MPLS_OVER_GRE "tunnel_stateless_mpls_over_gre" (4:25..25);
        TUNNEL_STATELESS_VXLAN_GPE "tunnel_stateless_vxlan_gpe" (4:24..24);
        TUNNEL_STATELESS_IPV4_OVER_VXLAN "tunnel_stateless_ipv4_over_vxlan" (4:23..23);
        TUNNEL_STATELESS_IP_OVER_IP "tunnel_stateless_ip_over_ip" (4:22..22);
        INSERT_TRAILER "insert_trailer" (4:21..21);
        TUNNEL_STATELESS_IP_OVER_IP_RX "tunnel_stateless_ip_over_ip_rx" (4:19..19);
        TUNNEL_STATELESS_IP_OVER_IP_TX "tunnel_stateless_ip_over_ip_tx" (4:18..18);
        MAX_VXLAN_UDP_PORTS "max_vxlan_udp_ports" (4:15..8);
        SWP_CSUM_L4_PARTIAL "swp_csum_l4_partial" (4:7..7);
        MAX_GENEVE_OPT_LEN "max_geneve_opt_len" (4:1..1);
        TUNNEL_STATELESS_GENEVE_RX "tunnel_stateless_geneve_rx" (4:0..0);
        LRO_MIN_MSS_SIZE "lro_min_mss_size" (8:15..0);
        LRO_TIMER_SUPPORTED_PERIODS "lro_timer_supported_periods" (@48 [16]);
    }
}

crate::layout! {
    /// Capabilities of one kind of flow table (`mlx5_ifc.h`, `flow_table_prop_layout`).
    FlowTablePropLayout "flow_table_prop_layout", 64 bytes {
        FT_SUPPORT "ft_support" (0:31..31);
        FLOW_COUNTER "flow_counter" (0:29..29);
        FLOW_MODIFY_EN "flow_modify_en" (0:28..28);
        MODIFY_ROOT "modify_root" (0:27..27);
        IDENTIFIED_MISS_TABLE_MODE "identified_miss_table_mode" (0:26..26);
        FLOW_TABLE_MODIFY "flow_table_modify" (0:25..25);
        REFORMAT "reformat" (0:24..24);
        DECAP "decap" (0:23..23);
        RESET_ROOT_TO_DEFAULT "reset_root_to_default" (0:22..22);
        POP_VLAN "pop_vlan" (0:21..21);
        PUSH_VLAN "push_vlan" (0:20..20);
        POP_VLAN_2 "pop_vlan_2" (0:18..18);
        PUSH_VLAN_2 "push_vlan_2" (0:17..17);
        REFORMAT_AND_VLAN_ACTION "reformat_and_vlan_action" (0:16..16);
        SW_OWNER "sw_owner" (0:14..14);
        REFORMAT_L3_TUNNEL_TO_L2 "reformat_l3_tunnel_to_l2" (0:13..13);
        REFORMAT_L2_TO_L3_TUNNEL "reformat_l2_to_l3_tunnel" (0:12..12);
        REFORMAT_AND_MODIFY_ACTION "reformat_and_modify_action" (0:11..11);
        IGNORE_FLOW_LEVEL "ignore_flow_level" (0:10..10);
        TABLE_MISS_ACTION_DOMAIN "table_miss_action_domain" (0:8..8);
        TERMINATION_TABLE "termination_table" (0:7..7);
        REFORMAT_AND_FWD_TO_TABLE "reformat_and_fwd_to_table" (0:6..6);
        IPSEC_ENCRYPT "ipsec_encrypt" (0:3..3);
        IPSEC_DECRYPT "ipsec_decrypt" (0:2..2);
        SW_OWNER_V2 "sw_owner_v2" (0:1..1);
        TERMINATION_TABLE_RAW_TRAFFIC "termination_table_raw_traffic" (4:31..31);
        LOG_MAX_FT_SIZE "log_max_ft_size" (4:29..24);
        LOG_MAX_MODIFY_HEADER_CONTEXT "log_max_modify_header_context" (4:23..16);
        MAX_MODIFY_HEADER_ACTIONS "max_modify_header_actions" (4:15..8);
        MAX_FT_LEVEL "max_ft_level" (4:7..0);
        REFORMAT_ADD_ESP_TRASPORT "reformat_add_esp_trasport" (8:31..31);
        REFORMAT_L2_TO_L3_ESP_TUNNEL "reformat_l2_to_l3_esp_tunnel" (8:30..30);
        REFORMAT_ADD_ESP_TRANSPORT_OVER_UDP "reformat_add_esp_transport_over_udp" (8:29..29);
        REFORMAT_DEL_ESP_TRASPORT "reformat_del_esp_trasport" (8:28..28);
        REFORMAT_L3_ESP_TUNNEL_TO_L2 "reformat_l3_esp_tunnel_to_l2" (8:27..27);
        REFORMAT_DEL_ESP_TRANSPORT_OVER_UDP "reformat_del_esp_transport_over_udp" (8:26..26);
        EXECUTE_ASO "execute_aso" (8:25..25);
        REFORMAT_INSERT "reformat_insert" (12:29..29);
        REFORMAT_REMOVE "reformat_remove" (12:28..28);
        MACSEC_ENCRYPT "macsec_encrypt" (12:27..27);
        MACSEC_DECRYPT "macsec_decrypt" (12:26..26);
        REFORMAT_ADD_MACSEC "reformat_add_macsec" (12:23..23);
        REFORMAT_REMOVE_MACSEC "reformat_remove_macsec" (12:22..22);
        REPARSE "reparse" (12:21..21);
        CROSS_VHCA_OBJECT "cross_vhca_object" (12:19..19);
        REFORMAT_L2_TO_L3_AUDP_TUNNEL "reformat_l2_to_l3_audp_tunnel" (12:18..18);
        REFORMAT_L3_AUDP_TUNNEL_TO_L2 "reformat_l3_audp_tunnel_to_l2" (12:17..17);
        IGNORE_FLOW_LEVEL_RTC_VALID "ignore_flow_level_rtc_valid" (12:16..16);
        LOG_MAX_FT_NUM "log_max_ft_num" (12:7..0);
        LOG_MAX_FLOW_COUNTER "log_max_flow_counter" (16:15..8);
        LOG_MAX_DESTINATION "log_max_destination" (16:7..0);
        LOG_MAX_FLOW "log_max_flow" (20:7..0);
        FT_FIELD_SUPPORT "ft_field_support" (@32 [16]);
        FT_FIELD_BITMASK_SUPPORT "ft_field_bitmask_support" (@48 [16]);
    }
}

crate::layout! {
    /// Capabilities of flow tables (`mlx5_ifc.h`, `flow_table_nic_cap`).
    FlowTableNicCap "flow_table_nic_cap", 4096 bytes {
        NIC_RX_MULTI_PATH_TIRS "nic_rx_multi_path_tirs" (0:31..31);
        NIC_RX_MULTI_PATH_TIRS_FTS "nic_rx_multi_path_tirs_fts" (0:30..30);
        ALLOW_SNIFFER_AND_NIC_RX_SHARED_TIR "allow_sniffer_and_nic_rx_shared_tir" (0:29..29);
        SW_OWNER_REFORMAT_SUPPORTED "sw_owner_reformat_supported" (0:24..24);
        ENCAP_GENERAL_HEADER "encap_general_header" (4:31..31);
        LOG_MAX_PACKET_REFORMAT_CONTEXT "log_max_packet_reformat_context" (4:20..16);
        MAX_ENCAP_HEADER_SIZE "max_encap_header_size" (4:9..0);
        FLOW_TABLE_PROPERTIES_NIC_RECEIVE "flow_table_properties_nic_receive" (@64 FlowTablePropLayout);
        FLOW_TABLE_PROPERTIES_NIC_RECEIVE_RDMA "flow_table_properties_nic_receive_rdma" (@128 FlowTablePropLayout);
        FLOW_TABLE_PROPERTIES_NIC_RECEIVE_SNIFFER "flow_table_properties_nic_receive_sniffer" (@192 FlowTablePropLayout);
        FLOW_TABLE_PROPERTIES_NIC_TRANSMIT "flow_table_properties_nic_transmit" (@256 FlowTablePropLayout);
        FLOW_TABLE_PROPERTIES_NIC_TRANSMIT_RDMA "flow_table_properties_nic_transmit_rdma" (@320 FlowTablePropLayout);
        FLOW_TABLE_PROPERTIES_NIC_TRANSMIT_SNIFFER "flow_table_properties_nic_transmit_sniffer" (@384 FlowTablePropLayout);
        FT_FIELD_SUPPORT_2_NIC_RECEIVE "ft_field_support_2_nic_receive" (@640 [16]);
        FT_FIELD_SUPPORT_2_NIC_RECEIVE_RDMA "ft_field_support_2_nic_receive_rdma" (@672 [16]);
        FT_FIELD_SUPPORT_2_NIC_TRANSMIT_RDMA "ft_field_support_2_nic_transmit_rdma" (@768 [16]);
        SW_STEERING_NIC_RX_ACTION_DROP_ICM_ADDRESS "sw_steering_nic_rx_action_drop_icm_address" (@1024 u64);
        SW_STEERING_NIC_TX_ACTION_DROP_ICM_ADDRESS "sw_steering_nic_tx_action_drop_icm_address" (@1032 u64);
        SW_STEERING_NIC_TX_ACTION_ALLOW_ICM_ADDRESS "sw_steering_nic_tx_action_allow_icm_address" (@1040 u64);
    }
}

crate::codes! {
    /// Kinds of port ([`CmdHcaCap::PORT_TYPE`], `MLX5_CAP_PORT_TYPE_*`).
    PortType {
        InfiniBand = 0 "INFINIBAND",
        Ethernet = 1 "ETHERNET",
    }
}

crate::codes! {
    /// Capability pages of QUERY_HCA_CAP and SET_HCA_CAP (`MLX5_CAP_*`); the `op_mod` is the page shifted left by one,
    /// plus one for the values in force (0: the greatest that can be set).
    CapabilityType {
        General = 0x00 "GENERAL",
        EthernetOffloads = 0x01 "ETHERNET_OFFLOADS",
        Odp = 0x02 "ODP",
        Atomic = 0x03 "ATOMIC",
        Roce = 0x04 "ROCE",
        IpoibOffloads = 0x05 "IPOIB_OFFLOADS",
        FlowTable = 0x07 "FLOW_TABLE",
        Qos = 0x0c "QOS",
        DeviceMemory = 0x0f "DEV_MEM",
        General2 = 0x20 "GENERAL_2",
    }
}

crate::codes! {
    /// How much of a frame's headers a send WQE must contain ([`PerProtocolNetworkingOffloadCaps::WQE_INLINE_MODE`],
    /// `MLX5_CAP_INLINE_MODE_*`).
    WqeInlineCap {
        L2 = 0 "L2",
        VportContext = 1 "VPORT_CONTEXT",
        NotRequired = 2 "NOT_REQUIRED",
    }
}

/// Values of [`Qpc::TS_FORMAT`](crate::Qpc::TS_FORMAT), `Sqc` and `Rqc` (`mlx5_ifc.h`: `MLX5_TIMESTAMP_FORMAT_…`). A device that has others
/// than the first says so by [`CmdHcaCap::SQ_TS_FORMAT`], [`CmdHcaCap::RQ_TS_FORMAT`] and [`RoceCap::QP_TS_FORMAT`].
pub mod ts_format {
    /// Of the free-running clock.
    pub const FREE_RUNNING: u32 = 0;
    /// Of the clock that the device's queues have.
    pub const DEFAULT: u32 = 1;
    /// Of the real-time clock.
    pub const REAL_TIME: u32 = 2;
}

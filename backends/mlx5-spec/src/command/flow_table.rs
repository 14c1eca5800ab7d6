//! Flow tables: which frames of the Ethernet port go to which receive queues.

crate::layout! {
    /// Context of a flow table (`mlx5_ifc.h`, `flow_table_context`).
    FlowTableContext "flow_table_context", 40 bytes {
        REFORMAT_EN "reformat_en" (0:31..31);
        DECAP_EN "decap_en" (0:30..30);
        SW_OWNER "sw_owner" (0:29..29);
        TERMINATION_TABLE "termination_table" (0:28..28);
        TABLE_MISS_ACTION "table_miss_action" (0:27..24);
        LEVEL "level" (0:23..16);
        RTC_VALID "rtc_valid" (0:15..15);
        LOG_SIZE "log_size" (0:7..0);
        TABLE_MISS_ID "table_miss_id" (4:23..0);
        LAG_MASTER_NEXT_TABLE_ID "lag_master_next_table_id" (8:23..0);
    }
}

crate::layout! {
    /// Input of CREATE_FLOW_TABLE (`mlx5_ifc.h`, `create_flow_table_in`).
    CreateFlowTableIn "create_flow_table_in", 64 bytes, input uid {
        OTHER_VPORT "other_vport" (8:31..31);
        VPORT_NUMBER "vport_number" (8:15..0);
        TABLE_TYPE "table_type" (16:31..24);
        FLOW_TABLE_CONTEXT "flow_table_context" (@24 FlowTableContext);
    }
}

crate::layout! {
    /// Output of CREATE_FLOW_TABLE (`mlx5_ifc.h`, `create_flow_table_out`).
    CreateFlowTableOut "create_flow_table_out", 16 bytes, output {
        ICM_ADDRESS_63_40 "icm_address_63_40" (0:23..0);
        ICM_ADDRESS_39_32 "icm_address_39_32" (8:31..24);
        TABLE_ID "table_id" (8:23..0);
        ICM_ADDRESS_31_0 "icm_address_31_0" (12:31..0);
    }
}

crate::layout! {
    /// Input of DESTROY_FLOW_TABLE (`mlx5_ifc.h`, `destroy_flow_table_in`).
    DestroyFlowTableIn "destroy_flow_table_in", 64 bytes, input {
        OTHER_VPORT "other_vport" (8:31..31);
        VPORT_NUMBER "vport_number" (8:15..0);
        TABLE_TYPE "table_type" (16:31..24);
        TABLE_ID "table_id" (20:23..0);
    }
}

crate::layout! {
    /// Output of DESTROY_FLOW_TABLE (`mlx5_ifc.h`, `destroy_flow_table_out`).
    DestroyFlowTableOut "destroy_flow_table_out", output;
}

crate::layout! {
    /// Input of MODIFY_FLOW_TABLE (`mlx5_ifc.h`, `modify_flow_table_in`).
    ModifyFlowTableIn "modify_flow_table_in", 64 bytes, input {
        OTHER_VPORT "other_vport" (8:31..31);
        VPORT_NUMBER "vport_number" (8:15..0);
        MODIFY_FIELD_SELECT "modify_field_select" (12:15..0);
        TABLE_TYPE "table_type" (16:31..24);
        TABLE_ID "table_id" (20:23..0);
        FLOW_TABLE_CONTEXT "flow_table_context" (@24 FlowTableContext);
    }
}

crate::layout! {
    /// Output of MODIFY_FLOW_TABLE (`mlx5_ifc.h`, `modify_flow_table_out`).
    ModifyFlowTableOut "modify_flow_table_out", output;
}

crate::layout! {
    /// Input of SET_FLOW_TABLE_ROOT (`mlx5_ifc.h`, `set_flow_table_root_in`).
    SetFlowTableRootIn "set_flow_table_root_in", 64 bytes, input {
        OTHER_VPORT "other_vport" (8:31..31);
        VPORT_NUMBER "vport_number" (8:15..0);
        TABLE_TYPE "table_type" (16:31..24);
        TABLE_OF_OTHER_VPORT "table_of_other_vport" (16:16..16);
        TABLE_VPORT_NUMBER "table_vport_number" (16:15..0);
        TABLE_ID "table_id" (20:23..0);
        UNDERLAY_QPN "underlay_qpn" (24:23..0);
        TABLE_ESWITCH_OWNER_VHCA_ID_VALID "table_eswitch_owner_vhca_id_valid" (28:31..31);
        TABLE_ESWITCH_OWNER_VHCA_ID "table_eswitch_owner_vhca_id" (28:15..0);
    }
}

crate::layout! {
    /// Output of SET_FLOW_TABLE_ROOT (`mlx5_ifc.h`, `set_flow_table_root_out`).
    SetFlowTableRootOut "set_flow_table_root_out", output;
}

crate::layout! {
    /// Input of CREATE_FLOW_GROUP (`mlx5_ifc.h`, `create_flow_group_in`).
    CreateFlowGroupIn "create_flow_group_in", 1024 bytes, input {
        OTHER_VPORT "other_vport" (8:31..31);
        VPORT_NUMBER "vport_number" (8:15..0);
        TABLE_TYPE "table_type" (16:31..24);
        GROUP_TYPE "group_type" (16:19..16);
        TABLE_ID "table_id" (20:23..0);
        SOURCE_ESWITCH_OWNER_VHCA_ID_VALID "source_eswitch_owner_vhca_id_valid" (24:31..31);
        START_FLOW_INDEX "start_flow_index" (28:31..0);
        END_FLOW_INDEX "end_flow_index" (36:31..0);
        MATCH_DEFINER_ID "match_definer_id" (40:15..0);
        MATCH_CRITERIA_ENABLE "match_criteria_enable" (60:7..0);
        MATCH_CRITERIA "match_criteria" (@64 [512]);
    }
}

crate::layout! {
    /// Fields of layers 2 to 4 that a flow group matches: the start of [`CreateFlowGroupIn::MATCH_CRITERIA`], and of
    /// [`FlowContext::MATCH_VALUE`] (`mlx5_ifc.h`, `fte_match_set_lyr_2_4`). An IPv4 address is in the last four bytes of its field.
    FteMatchSetLyr24 "fte_match_set_lyr_2_4", 64 bytes {
        SMAC_47_16 "smac_47_16" (0:31..0);
        SMAC_15_0 "smac_15_0" (4:31..16);
        ETHERTYPE "ethertype" (4:15..0);
        DMAC_47_16 "dmac_47_16" (8:31..0);
        DMAC_15_0 "dmac_15_0" (12:31..16);
        FIRST_PRIO "first_prio" (12:15..13);
        FIRST_CFI "first_cfi" (12:12..12);
        FIRST_VID "first_vid" (12:11..0);
        IP_PROTOCOL "ip_protocol" (16:31..24);
        IP_DSCP "ip_dscp" (16:23..18);
        IP_ECN "ip_ecn" (16:17..16);
        CVLAN_TAG "cvlan_tag" (16:15..15);
        SVLAN_TAG "svlan_tag" (16:14..14);
        FRAG "frag" (16:13..13);
        IP_VERSION "ip_version" (16:12..9);
        TCP_FLAGS "tcp_flags" (16:8..0);
        TCP_SPORT "tcp_sport" (20:31..16);
        TCP_DPORT "tcp_dport" (20:15..0);
        L4_TYPE "l4_type" (24:31..30);
        IPV4_IHL "ipv4_ihl" (24:15..12);
        TTL_HOPLIMIT "ttl_hoplimit" (24:7..0);
        UDP_SPORT "udp_sport" (28:31..16);
        UDP_DPORT "udp_dport" (28:15..0);
        SRC_IPV4_SRC_IPV6 "src_ipv4_src_ipv6" (@32 [16]);
        DST_IPV4_DST_IPV6 "dst_ipv4_dst_ipv6" (@48 [16]);
    }
}

crate::layout! {
    /// Output of CREATE_FLOW_GROUP (`mlx5_ifc.h`, `create_flow_group_out`).
    CreateFlowGroupOut "create_flow_group_out", 16 bytes, output {
        GROUP_ID "group_id" (8:23..0);
    }
}

crate::layout! {
    /// Input of DESTROY_FLOW_GROUP (`mlx5_ifc.h`, `destroy_flow_group_in`).
    DestroyFlowGroupIn "destroy_flow_group_in", 64 bytes, input {
        OTHER_VPORT "other_vport" (8:31..31);
        VPORT_NUMBER "vport_number" (8:15..0);
        TABLE_TYPE "table_type" (16:31..24);
        TABLE_ID "table_id" (20:23..0);
        GROUP_ID "group_id" (24:31..0);
    }
}

crate::layout! {
    /// Output of DESTROY_FLOW_GROUP (`mlx5_ifc.h`, `destroy_flow_group_out`).
    DestroyFlowGroupOut "destroy_flow_group_out", output;
}

crate::layout! {
    /// Context of a flow table entry (`mlx5_ifc.h`, `flow_context`).
    FlowContext "flow_context", 768 bytes {
        PUSH_VLAN "push_vlan" (0:31..0);
        GROUP_ID "group_id" (4:31..0);
        FLOW_TAG "flow_tag" (8:23..0);
        ACTION "action" (12:15..0);
        EXTENDED_DESTINATION "extended_destination" (16:31..31);
        UPLINK_HAIRPIN_EN "uplink_hairpin_en" (16:30..30);
        FLOW_SOURCE "flow_source" (16:29..28);
        ENCRYPT_DECRYPT_TYPE "encrypt_decrypt_type" (16:27..24);
        DESTINATION_LIST_SIZE "destination_list_size" (16:23..0);
        FLOW_COUNTER_LIST_SIZE "flow_counter_list_size" (20:23..0);
        PACKET_REFORMAT_ID "packet_reformat_id" (24:31..0);
        MODIFY_HEADER_ID "modify_header_id" (28:31..0);
        PUSH_VLAN_2 "push_vlan_2" (32:31..0);
        ENCRYPT_DECRYPT_OBJ_ID "encrypt_decrypt_obj_id" (36:31..0);
        MATCH_VALUE "match_value" (@64 [512]);
        EXECUTE_ASO "execute_aso" (@576 [32]);
        DESTINATION "destination" (@768 [8]..);
    }
}

crate::layout! {
    /// Destination of a flow table entry (`mlx5_ifc.h`, `dest_format_struct`).
    DestFormatStruct "dest_format_struct", 8 bytes {
        DESTINATION_TYPE "destination_type" (0:31..24);
        DESTINATION_ID "destination_id" (0:23..0);
        DESTINATION_ESWITCH_OWNER_VHCA_ID_VALID "destination_eswitch_owner_vhca_id_valid" (4:31..31);
        PACKET_REFORMAT "packet_reformat" (4:30..30);
        DESTINATION_TABLE_TYPE "destination_table_type" (4:23..16);
        DESTINATION_ESWITCH_OWNER_VHCA_ID "destination_eswitch_owner_vhca_id" (4:15..0);
    }
}

crate::layout! {
    /// Input of SET_FLOW_TABLE_ENTRY (`mlx5_ifc.h`, `set_fte_in`).
    SetFteIn "set_fte_in", 832 bytes, input {
        OTHER_VPORT "other_vport" (8:31..31);
        VPORT_NUMBER "vport_number" (8:15..0);
        TABLE_TYPE "table_type" (16:31..24);
        TABLE_ID "table_id" (20:23..0);
        IGNORE_FLOW_LEVEL "ignore_flow_level" (24:31..31);
        MODIFY_ENABLE_MASK "modify_enable_mask" (24:7..0);
        FLOW_INDEX "flow_index" (32:31..0);
        FLOW_CONTEXT "flow_context" (@64 FlowContext);
    }
}

crate::layout! {
    /// Output of SET_FLOW_TABLE_ENTRY (`mlx5_ifc.h`, `set_fte_out`).
    SetFteOut "set_fte_out", output;
}

crate::layout! {
    /// Input of DELETE_FLOW_TABLE_ENTRY (`mlx5_ifc.h`, `delete_fte_in`).
    DeleteFteIn "delete_fte_in", 64 bytes, input {
        OTHER_VPORT "other_vport" (8:31..31);
        VPORT_NUMBER "vport_number" (8:15..0);
        TABLE_TYPE "table_type" (16:31..24);
        TABLE_ID "table_id" (20:23..0);
        FLOW_INDEX "flow_index" (32:31..0);
    }
}

crate::layout! {
    /// Output of DELETE_FLOW_TABLE_ENTRY (`mlx5_ifc.h`, `delete_fte_out`).
    DeleteFteOut "delete_fte_out", output;
}

crate::layout! {
    /// Counter of a flow table entry, behind its destinations (`mlx5_ifc.h`, `flow_counter_list`).
    FlowCounterList "flow_counter_list", 8 bytes {
        FLOW_COUNTER_ID "flow_counter_id" (0:31..0);
    }
}

crate::layout! {
    /// Input of ALLOC_FLOW_COUNTER (`mlx5_ifc.h`, `alloc_flow_counter_in`).
    AllocFlowCounterIn "alloc_flow_counter_in", 16 bytes, input {
        FLOW_COUNTER_BULK_LOG_SIZE "flow_counter_bulk_log_size" (12:12..8);
        FLOW_COUNTER_BULK "flow_counter_bulk" (12:7..0);
    }
}

crate::layout! {
    /// Output of ALLOC_FLOW_COUNTER (`mlx5_ifc.h`, `alloc_flow_counter_out`).
    AllocFlowCounterOut "alloc_flow_counter_out", 16 bytes, output {
        FLOW_COUNTER_ID "flow_counter_id" (8:31..0);
    }
}

crate::layout! {
    /// Input of DEALLOC_FLOW_COUNTER (`mlx5_ifc.h`, `dealloc_flow_counter_in`).
    DeallocFlowCounterIn "dealloc_flow_counter_in", 16 bytes, input {
        FLOW_COUNTER_ID "flow_counter_id" (8:31..0);
    }
}

crate::layout! {
    /// Output of DEALLOC_FLOW_COUNTER (`mlx5_ifc.h`, `dealloc_flow_counter_out`).
    DeallocFlowCounterOut "dealloc_flow_counter_out", output;
}

crate::layout! {
    /// Input of QUERY_FLOW_COUNTER (`mlx5_ifc.h`, `query_flow_counter_in`).
    QueryFlowCounterIn "query_flow_counter_in", 32 bytes, input {
        CLEAR "clear" (24:31..31);
        NUM_OF_COUNTERS "num_of_counters" (24:15..0);
        FLOW_COUNTER_ID "flow_counter_id" (28:31..0);
    }
}

crate::layout! {
    /// Output of QUERY_FLOW_COUNTER (`mlx5_ifc.h`, `query_flow_counter_out`), with one [`TrafficCounter`](crate::TrafficCounter) for
    /// each counter behind it.
    QueryFlowCounterOut "query_flow_counter_out", 16 bytes, output {
        FLOW_STATISTICS "flow_statistics" (@16 [16]..);
    }
}

/// [`CreateFlowTableIn::TABLE_TYPE`] of what the port receives (`FS_FT_NIC_RX`).
pub const FLOW_TABLE_NIC_RECEIVE: u32 = 0;

/// [`FlowTableContext::TABLE_MISS_ACTION`] of a table that names the next one (`MLX5_FLOW_TABLE_MISS_ACTION_FWD`).
pub const FLOW_MISS_FORWARD: u32 = 1;

/// Bits of [`FlowContext::ACTION`] (`MLX5_FLOW_CONTEXT_ACTION_*`).
pub mod flow_action {
    /// Allow.
    pub const ALLOW: u32 = 1;
    /// Drop.
    pub const DROP: u32 = 1 << 1;
    /// Forward to each destination.
    pub const FORWARD: u32 = 1 << 2;
    /// Count.
    pub const COUNT: u32 = 1 << 3;
}

crate::codes! {
    /// Kinds of destination ([`DestFormatStruct::DESTINATION_TYPE`], `MLX5_IFC_FLOW_DESTINATION_TYPE_*`).
    FlowDestination {
        FlowTable = 1 "FLOW_TABLE",
        Tir = 2 "TIR",
    }
}

/// Bits of [`SetFteIn::MODIFY_ENABLE_MASK`] (`MLX5_SET_FTE_MODIFY_ENABLE_MASK_*`).
pub mod set_fte {
    /// `action`.
    pub const ACTION: u32 = 1;
    /// `flow_tag`.
    pub const FLOW_TAG: u32 = 1 << 1;
    /// `destination`.
    pub const DESTINATION_LIST: u32 = 1 << 2;
    /// `flow_counter`.
    pub const FLOW_COUNTERS: u32 = 1 << 3;
}

/// [`CreateFlowGroupIn::MATCH_CRITERIA_ENABLE`]: of the outermost headers (`MLX5_MATCH_OUTER_HEADERS`).
pub const MATCH_OUTER_HEADERS: u32 = 1;

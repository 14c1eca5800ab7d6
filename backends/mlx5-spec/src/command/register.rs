//! Access registers of the port and the node.

crate::layout! {
    /// Input of ACCESS_REGISTER (`mlx5_ifc.h`, `access_register_in`).
    AccessRegisterIn "access_register_in", 16 bytes, input {
        REGISTER_ID "register_id" (8:15..0);
        ARGUMENT "argument" (12:31..0);
        REGISTER_DATA "register_data" (@16 [4]..);
    }
}

crate::layout! {
    /// Output of ACCESS_REGISTER (`mlx5_ifc.h`, `access_register_out`).
    AccessRegisterOut "access_register_out", 16 bytes, output {
        REGISTER_DATA "register_data" (@16 [4]..);
    }
}

crate::layout! {
    /// Port type and speed register (`mlx5_ifc.h`, `ptys_reg`).
    PtysReg "ptys_reg", 64 bytes {
        AN_DISABLE_ADMIN "an_disable_admin" (0:30..30);
        AN_DISABLE_CAP "an_disable_cap" (0:29..29);
        LOCAL_PORT "local_port" (0:23..16);
        PLANE_IND "plane_ind" (0:7..4);
        PROTO_MASK "proto_mask" (0:2..0);
        AN_STATUS "an_status" (4:31..28);
        DATA_RATE_OPER "data_rate_oper" (4:15..0);
        EXT_ETH_PROTO_CAPABILITY "ext_eth_proto_capability" (8:31..0);
        ETH_PROTO_CAPABILITY "eth_proto_capability" (12:31..0);
        IB_LINK_WIDTH_CAPABILITY "ib_link_width_capability" (16:31..16);
        IB_PROTO_CAPABILITY "ib_proto_capability" (16:15..0);
        EXT_ETH_PROTO_ADMIN "ext_eth_proto_admin" (20:31..0);
        ETH_PROTO_ADMIN "eth_proto_admin" (24:31..0);
        IB_LINK_WIDTH_ADMIN "ib_link_width_admin" (28:31..16);
        IB_PROTO_ADMIN "ib_proto_admin" (28:15..0);
        EXT_ETH_PROTO_OPER "ext_eth_proto_oper" (32:31..0);
        ETH_PROTO_OPER "eth_proto_oper" (36:31..0);
        IB_LINK_WIDTH_OPER "ib_link_width_oper" (40:31..16);
        IB_PROTO_OPER "ib_proto_oper" (40:15..0);
        CONNECTOR_TYPE "connector_type" (44:3..0);
        ETH_PROTO_LP_ADVERTISE "eth_proto_lp_advertise" (48:31..0);
    }
}

crate::layout! {
    /// Port capabilities register (`mlx5_ifc.h`, `pcap_reg`).
    PcapReg "pcap_reg", 20 bytes {
        LOCAL_PORT "local_port" (0:23..16);
        PORT_CAPABILITY_MASK "port_capability_mask" (@4 [16]);
    }
}

crate::layout! {
    /// Port MTU register (`mlx5_ifc.h`, `pmtu_reg`).
    PmtuReg "pmtu_reg", 16 bytes {
        LOCAL_PORT "local_port" (0:23..16);
        MAX_MTU "max_mtu" (4:31..16);
        ADMIN_MTU "admin_mtu" (8:31..16);
        OPER_MTU "oper_mtu" (12:31..16);
    }
}

crate::layout! {
    /// Port virtual lane capabilities register (`mlx5_ifc.h`, `pvlc_reg`).
    PvlcReg "pvlc_reg", 16 bytes {
        LOCAL_PORT "local_port" (0:23..16);
        VL_HW_CAP "vl_hw_cap" (4:3..0);
        VL_ADMIN "vl_admin" (8:3..0);
        VL_OPERATIONAL "vl_operational" (12:3..0);
    }
}

crate::layout! {
    /// Port administrative and operational status register (`mlx5_ifc.h`, `paos_reg`).
    PaosReg "paos_reg", 16 bytes {
        SWID "swid" (0:31..24);
        LOCAL_PORT "local_port" (0:23..16);
        ADMIN_STATUS "admin_status" (0:11..8);
        OPER_STATUS "oper_status" (0:3..0);
        ASE "ase" (4:31..31);
        EE "ee" (4:30..30);
        E "e" (4:1..0);
    }
}

crate::layout! {
    /// Port counters register (`mlx5_ifc.h`, `ppcnt_reg`).
    PpcntReg "ppcnt_reg", 256 bytes {
        SWID "swid" (0:31..24);
        LOCAL_PORT "local_port" (0:23..16);
        PNAT "pnat" (0:15..14);
        GRP "grp" (0:5..0);
        CLR "clr" (4:31..31);
        PLANE_IND "plane_ind" (4:11..8);
        PRIO_TC "prio_tc" (4:4..0);
        COUNTER_SET "counter_set" (@8 [248]);
    }
}

crate::layout! {
    /// Counters of an InfiniBand port, as its performance management agent has them (`mlx5_ifc.h`,
    /// `ib_port_cntrs_grp_data_layout`).
    IbPortCntrs "ib_port_cntrs_grp_data_layout", 40 bytes {
        SYMBOL_ERROR_COUNTER "symbol_error_counter" (0:31..16);
        LINK_ERROR_RECOVERY_COUNTER "link_error_recovery_counter" (0:15..8);
        LINK_DOWNED_COUNTER "link_downed_counter" (0:7..0);
        PORT_RCV_ERRORS "port_rcv_errors" (4:31..16);
        PORT_RCV_REMOTE_PHYSICAL_ERRORS "port_rcv_remote_physical_errors" (4:15..0);
        PORT_RCV_SWITCH_RELAY_ERRORS "port_rcv_switch_relay_errors" (8:31..16);
        PORT_XMIT_DISCARDS "port_xmit_discards" (8:15..0);
        PORT_XMIT_CONSTRAINT_ERRORS "port_xmit_constraint_errors" (12:31..24);
        PORT_RCV_CONSTRAINT_ERRORS "port_rcv_constraint_errors" (12:23..16);
        LINK_OVERRUN_ERRORS "link_overrun_errors" (12:7..0);
        VL_15_DROPPED "vl_15_dropped" (16:15..0);
        PORT_XMIT_WAIT "port_xmit_wait" (36:31..0);
    }
}

crate::layout! {
    /// Traffic of an InfiniBand port, data in words of four bytes (`mlx5_ifc.h`, `ib_ext_port_cntrs_grp_data_layout`).
    IbExtPortCntrs "ib_ext_port_cntrs_grp_data_layout", 248 bytes {
        PORT_XMIT_DATA_HIGH "port_xmit_data_high" (96:31..0);
        PORT_XMIT_DATA_LOW "port_xmit_data_low" (100:31..0);
        PORT_RCV_DATA_HIGH "port_rcv_data_high" (104:31..0);
        PORT_RCV_DATA_LOW "port_rcv_data_low" (108:31..0);
        PORT_XMIT_PKTS_HIGH "port_xmit_pkts_high" (112:31..0);
        PORT_XMIT_PKTS_LOW "port_xmit_pkts_low" (116:31..0);
        PORT_RCV_PKTS_HIGH "port_rcv_pkts_high" (120:31..0);
        PORT_RCV_PKTS_LOW "port_rcv_pkts_low" (124:31..0);
        PORT_UNICAST_XMIT_PKTS_HIGH "port_unicast_xmit_pkts_high" (144:31..0);
        PORT_UNICAST_XMIT_PKTS_LOW "port_unicast_xmit_pkts_low" (148:31..0);
        PORT_MULTICAST_XMIT_PKTS_HIGH "port_multicast_xmit_pkts_high" (152:31..0);
        PORT_MULTICAST_XMIT_PKTS_LOW "port_multicast_xmit_pkts_low" (156:31..0);
        PORT_UNICAST_RCV_PKTS_HIGH "port_unicast_rcv_pkts_high" (160:31..0);
        PORT_UNICAST_RCV_PKTS_LOW "port_unicast_rcv_pkts_low" (164:31..0);
        PORT_MULTICAST_RCV_PKTS_HIGH "port_multicast_rcv_pkts_high" (168:31..0);
        PORT_MULTICAST_RCV_PKTS_LOW "port_multicast_rcv_pkts_low" (172:31..0);
    }
}

crate::layout! {
    /// Port flow control configuration register (`mlx5_ifc.h`, `pfcc_reg`).
    PfccReg "pfcc_reg", 32 bytes {
        BUF_OWNERSHIP "buf_ownership" (0:27..26);
        LOCAL_PORT "local_port" (0:23..16);
        PPAN_MASK_N "ppan_mask_n" (0:4..4);
        MINOR_STALL_MASK "minor_stall_mask" (0:3..3);
        CRITICAL_STALL_MASK "critical_stall_mask" (0:2..2);
        PPAN "ppan" (4:31..28);
        PRIO_MASK_TX "prio_mask_tx" (4:23..16);
        PRIO_MASK_RX "prio_mask_rx" (4:7..0);
        PPTX "pptx" (8:31..31);
        APTX "aptx" (8:30..30);
        PPTX_MASK_N "pptx_mask_n" (8:29..29);
        PFCTX "pfctx" (8:23..16);
        PPRX "pprx" (12:31..31);
        APRX "aprx" (12:30..30);
        PPRX_MASK_N "pprx_mask_n" (12:29..29);
        PFCRX "pfcrx" (12:23..16);
        DEVICE_STALL_MINOR_WATERMARK "device_stall_minor_watermark" (16:31..16);
        DEVICE_STALL_CRITICAL_WATERMARK "device_stall_critical_watermark" (16:15..0);
    }
}

crate::layout! {
    /// Counters of an Ethernet port by IEEE 802.3 (`mlx5_ifc.h`, `eth_802_3_cntrs_grp_data_layout`).
    Eth8023Cntrs "eth_802_3_cntrs_grp_data_layout", 248 bytes {
        A_FRAMES_TRANSMITTED_OK_HIGH "a_frames_transmitted_ok_high" (0:31..0);
        A_FRAMES_TRANSMITTED_OK_LOW "a_frames_transmitted_ok_low" (4:31..0);
        A_FRAMES_RECEIVED_OK_HIGH "a_frames_received_ok_high" (8:31..0);
        A_FRAMES_RECEIVED_OK_LOW "a_frames_received_ok_low" (12:31..0);
        A_OCTETS_TRANSMITTED_OK_HIGH "a_octets_transmitted_ok_high" (32:31..0);
        A_OCTETS_TRANSMITTED_OK_LOW "a_octets_transmitted_ok_low" (36:31..0);
        A_OCTETS_RECEIVED_OK_HIGH "a_octets_received_ok_high" (40:31..0);
        A_OCTETS_RECEIVED_OK_LOW "a_octets_received_ok_low" (44:31..0);
        A_MULTICAST_FRAMES_XMITTED_OK_HIGH "a_multicast_frames_xmitted_ok_high" (48:31..0);
        A_MULTICAST_FRAMES_XMITTED_OK_LOW "a_multicast_frames_xmitted_ok_low" (52:31..0);
        A_BROADCAST_FRAMES_XMITTED_OK_HIGH "a_broadcast_frames_xmitted_ok_high" (56:31..0);
        A_BROADCAST_FRAMES_XMITTED_OK_LOW "a_broadcast_frames_xmitted_ok_low" (60:31..0);
        A_MULTICAST_FRAMES_RECEIVED_OK_HIGH "a_multicast_frames_received_ok_high" (64:31..0);
        A_MULTICAST_FRAMES_RECEIVED_OK_LOW "a_multicast_frames_received_ok_low" (68:31..0);
        A_BROADCAST_FRAMES_RECEIVED_OK_HIGH "a_broadcast_frames_received_ok_high" (72:31..0);
        A_BROADCAST_FRAMES_RECEIVED_OK_LOW "a_broadcast_frames_received_ok_low" (76:31..0);
        A_FRAME_TOO_LONG_ERRORS_HIGH "a_frame_too_long_errors_high" (96:31..0);
        A_FRAME_TOO_LONG_ERRORS_LOW "a_frame_too_long_errors_low" (100:31..0);
    }
}

crate::layout! {
    /// Counters of an Ethernet port by RFC 2863 (`mlx5_ifc.h`, `eth_2863_cntrs_grp_data_layout`).
    Eth2863Cntrs "eth_2863_cntrs_grp_data_layout", 248 bytes {
        IF_OUT_DISCARDS_HIGH "if_out_discards_high" (56:31..0);
        IF_OUT_DISCARDS_LOW "if_out_discards_low" (60:31..0);
    }
}

crate::layout! {
    /// Host endianness register (`mlx5_ifc.h`, `register_host_endianness`).
    RegisterHostEndianness "register_host_endianness", 16 bytes {
        HE "he" (0:31..31);
    }
}

crate::layout! {
    /// Input of SET_NODE (`mlx5_ifc.h`, `set_node_in`).
    SetNodeIn "set_node_in", 64 bytes {
        NODE_DESCRIPTION "node_description" (@0 [64]);
    }
}

crate::codes! {
    /// Registers of ACCESS_REG ([`AccessRegisterIn::REGISTER_ID`], `MLX5_REG_*`).
    RegisterId {
        Pcap = 0x5001 "PCAP",
        Pmtu = 0x5003 "PMTU",
        Ptys = 0x5004 "PTYS",
        Paos = 0x5006 "PAOS",
        Pfcc = 0x5007 "PFCC",
        Ppcnt = 0x5008 "PPCNT",
        Pvlc = 0x500f "PVLC",
        NodeDesc = 0x6001 "NODE_DESC",
        HostEndianness = 0x7004 "HOST_ENDIANNESS",
        Dtor = 0xc00e "DTOR",
    }
}

/// [`PpcntReg::GRP`] of [`Eth8023Cntrs`] (`MLX5_IEEE_802_3_COUNTERS_GROUP`).
pub const IEEE_802_3_COUNTERS: u32 = 0;
/// [`PpcntReg::GRP`] of [`Eth2863Cntrs`] (`MLX5_RFC_2863_COUNTERS_GROUP`).
pub const RFC_2863_COUNTERS: u32 = 1;
/// [`PpcntReg::GRP`] of [`IbPortCntrs`] (`MLX5_INFINIBAND_PORT_COUNTERS_GROUP`).
pub const INFINIBAND_PORT_COUNTERS: u32 = 0x20;
/// [`PpcntReg::GRP`] of [`IbExtPortCntrs`] (`MLX5_INFINIBAND_EXTENDED_PORT_COUNTERS_GROUP`).
pub const INFINIBAND_EXTENDED_PORT_COUNTERS: u32 = 0x21;

/// [`PtysReg::PROTO_MASK`] of InfiniBand (`MLX5_PTYS_IB`).
pub const PTYS_INFINIBAND: u32 = 1;
/// [`PtysReg::PROTO_MASK`] of Ethernet (`MLX5_PTYS_EN`).
pub const PTYS_ETHERNET: u32 = 1 << 2;

/// [`AccessRegisterIn::OP_MOD`] of a read.
pub const REGISTER_READ: u32 = 1;
/// [`AccessRegisterIn::OP_MOD`] of a write.
pub const REGISTER_WRITE: u32 = 0;

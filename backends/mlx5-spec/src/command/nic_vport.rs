//! The Ethernet port of a function: context, state, addresses of RoCE.

crate::layout! {
    /// Context of an Ethernet port (`mlx5_ifc.h`, `nic_vport_context`).
    NicVportContext "nic_vport_context", 256 bytes {
        MIN_WQE_INLINE_MODE "min_wqe_inline_mode" (0:26..24);
        DISABLE_MC_LOCAL_LB "disable_mc_local_lb" (0:2..2);
        DISABLE_UC_LOCAL_LB "disable_uc_local_lb" (0:1..1);
        ROCE_EN "roce_en" (0:0..0);
        ARM_CHANGE_EVENT "arm_change_event" (4:31..31);
        EVENT_ON_MTU "event_on_mtu" (4:4..4);
        EVENT_ON_PROMISC_CHANGE "event_on_promisc_change" (4:3..3);
        EVENT_ON_VLAN_CHANGE "event_on_vlan_change" (4:2..2);
        EVENT_ON_MC_ADDRESS_CHANGE "event_on_mc_address_change" (4:1..1);
        EVENT_ON_UC_ADDRESS_CHANGE "event_on_uc_address_change" (4:0..0);
        VHCA_ID_TYPE "vhca_id_type" (8:31..31);
        AFFILIATION_CRITERIA "affiliation_criteria" (8:19..16);
        AFFILIATED_VHCA_ID "affiliated_vhca_id" (8:15..0);
        SD_GROUP "sd_group" (32:30..28);
        MTU "mtu" (36:15..0);
        SYSTEM_IMAGE_GUID "system_image_guid" (@40 u64);
        PORT_GUID "port_guid" (@48 u64);
        NODE_GUID "node_guid" (@56 u64);
        QKEY_VIOLATION_COUNTER "qkey_violation_counter" (104:31..16);
        PROMISC_UC "promisc_uc" (240:31..31);
        PROMISC_MC "promisc_mc" (240:30..30);
        PROMISC_ALL "promisc_all" (240:29..29);
        ALLOWED_LIST_TYPE "allowed_list_type" (240:26..24);
        ALLOWED_LIST_SIZE "allowed_list_size" (240:11..0);
        PERMANENT_ADDRESS "permanent_address" (@244 u64);
        CURRENT_UC_MAC_ADDRESS "current_uc_mac_address" (@256 [8]..);
    }
}

crate::layout! {
    /// [`ModifyNicVportContextIn::FIELD_SELECT`]: the fields to change (`mlx5_ifc.h`, `modify_nic_vport_field_select`).
    ModifyNicVportFieldSelect "modify_nic_vport_field_select", 4 bytes {
        AFFILIATION "affiliation" (0:13..13);
        DISABLE_UC_LOCAL_LB "disable_uc_local_lb" (0:11..11);
        DISABLE_MC_LOCAL_LB "disable_mc_local_lb" (0:10..10);
        NODE_GUID "node_guid" (0:9..9);
        PORT_GUID "port_guid" (0:8..8);
        MIN_INLINE "min_inline" (0:7..7);
        MTU "mtu" (0:6..6);
        CHANGE_EVENT "change_event" (0:5..5);
        PROMISC "promisc" (0:4..4);
        PERMANENT_ADDRESS "permanent_address" (0:3..3);
        ADDRESSES_LIST "addresses_list" (0:2..2);
        ROCE_EN "roce_en" (0:1..1);
    }
}

crate::layout! {
    /// Entry of a list of MAC addresses (`mlx5_ifc.h`, `mac_address_layout`).
    MacAddressLayout "mac_address_layout", 8 bytes {
        MAC_ADDR_47_32 "mac_addr_47_32" (0:15..0);
        MAC_ADDR_31_0 "mac_addr_31_0" (4:31..0);
    }
}

crate::layout! {
    /// Entry of a list of VLAN identifiers (`mlx5_ifc.h`, `vlan_layout`).
    VlanLayout "vlan_layout", 8 bytes {
        VLAN "vlan" (0:11..0);
    }
}

crate::layout! {
    /// Input of QUERY_NIC_VPORT_CONTEXT (`mlx5_ifc.h`, `query_nic_vport_context_in`).
    QueryNicVportContextIn "query_nic_vport_context_in", 16 bytes, input {
        OTHER_VPORT "other_vport" (8:31..31);
        VPORT_NUMBER "vport_number" (8:15..0);
        ALLOWED_LIST_TYPE "allowed_list_type" (12:26..24);
    }
}

crate::layout! {
    /// Output of QUERY_NIC_VPORT_CONTEXT (`mlx5_ifc.h`, `query_nic_vport_context_out`).
    QueryNicVportContextOut "query_nic_vport_context_out", 272 bytes, output {
        NIC_VPORT_CONTEXT "nic_vport_context" (@16 NicVportContext);
    }
}

crate::layout! {
    /// Input of MODIFY_NIC_VPORT_CONTEXT (`mlx5_ifc.h`, `modify_nic_vport_context_in`).
    ModifyNicVportContextIn "modify_nic_vport_context_in", 512 bytes, input {
        OTHER_VPORT "other_vport" (8:31..31);
        VPORT_NUMBER "vport_number" (8:15..0);
        FIELD_SELECT "field_select" (@12 ModifyNicVportFieldSelect);
        NIC_VPORT_CONTEXT "nic_vport_context" (@256 NicVportContext);
    }
}

crate::layout! {
    /// Output of MODIFY_NIC_VPORT_CONTEXT (`mlx5_ifc.h`, `modify_nic_vport_context_out`).
    ModifyNicVportContextOut "modify_nic_vport_context_out", output;
}

crate::layout! {
    /// Input of QUERY_VPORT_STATE (`mlx5_ifc.h`, `query_vport_state_in`).
    QueryVportStateIn "query_vport_state_in", 16 bytes, input {
        OTHER_VPORT "other_vport" (8:31..31);
        VPORT_NUMBER "vport_number" (8:15..0);
    }
}

crate::layout! {
    /// Output of QUERY_VPORT_STATE (`mlx5_ifc.h`, `query_vport_state_out`).
    QueryVportStateOut "query_vport_state_out", 16 bytes, output {
        ADMIN_STATE "admin_state" (12:7..4);
        STATE "state" (12:3..0);
    }
}

crate::layout! {
    /// Entry of the address table of RoCE (`mlx5_ifc.h`, `roce_addr_layout`).
    RoceAddrLayout "roce_addr_layout", 32 bytes {
        SOURCE_L3_ADDRESS "source_l3_address" (@0 [16]);
        VLAN_VALID "vlan_valid" (16:28..28);
        VLAN_ID "vlan_id" (16:27..16);
        SOURCE_MAC_47_32 "source_mac_47_32" (16:15..0);
        SOURCE_MAC_31_0 "source_mac_31_0" (20:31..0);
        ROCE_L3_TYPE "roce_l3_type" (24:11..8);
        ROCE_VERSION "roce_version" (24:7..0);
    }
}

crate::layout! {
    /// Input of SET_ROCE_ADDRESS (`mlx5_ifc.h`, `set_roce_address_in`).
    SetRoceAddressIn "set_roce_address_in", 48 bytes, input {
        ROCE_ADDRESS_INDEX "roce_address_index" (8:31..16);
        VHCA_PORT_NUM "vhca_port_num" (8:3..0);
        ROCE_ADDRESS "roce_address" (@16 RoceAddrLayout);
    }
}

crate::layout! {
    /// Output of SET_ROCE_ADDRESS (`mlx5_ifc.h`, `set_roce_address_out`).
    SetRoceAddressOut "set_roce_address_out", output;
}

crate::layout! {
    /// Input of QUERY_ROCE_ADDRESS (`mlx5_ifc.h`, `query_roce_address_in`).
    QueryRoceAddressIn "query_roce_address_in", 16 bytes, input {
        ROCE_ADDRESS_INDEX "roce_address_index" (8:31..16);
        VHCA_PORT_NUM "vhca_port_num" (8:3..0);
    }
}

crate::layout! {
    /// Output of QUERY_ROCE_ADDRESS (`mlx5_ifc.h`, `query_roce_address_out`).
    QueryRoceAddressOut "query_roce_address_out", 48 bytes, output {
        ROCE_ADDRESS "roce_address" (@16 RoceAddrLayout);
    }
}

/// Kinds of address list ([`NicVportContext::ALLOWED_LIST_TYPE`], `MLX5_NVPRT_LIST_TYPE_*`).
pub mod nic_vport_list {
    /// Unicast MAC addresses.
    pub const UNICAST: u32 = 0;
    /// Multicast MAC addresses.
    pub const MULTICAST: u32 = 1;
    /// VLAN identifiers.
    pub const VLAN: u32 = 2;
}

/// [`RoceAddrLayout::ROCE_VERSION`] of RoCEv2 (`MLX5_ROCE_VERSION_2`).
pub const ROCE_VERSION_2: u32 = 2;

/// Kinds of route ([`RoceAddrLayout::ROCE_L3_TYPE`], `MLX5_ROCE_L3_TYPE_*`).
pub mod roce_l3_type {
    /// IPv4, in the last four bytes of the address.
    pub const IPV4: u32 = 0;
    /// IPv6.
    pub const IPV6: u32 = 1;
}

crate::codes! {
    /// How much of a frame's headers a send WQE must contain ([`NicVportContext::MIN_WQE_INLINE_MODE`], `MLX5_INLINE_MODE_*`).
    InlineMode {
        None = 0 "NONE",
        L2 = 1 "L2",
        Ip = 2 "IP",
        TcpUdp = 3 "TCP_UDP",
    }
}

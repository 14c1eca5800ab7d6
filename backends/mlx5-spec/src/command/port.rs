//! The InfiniBand port: context, GIDs, P_Keys.

crate::layout! {
    /// InfiniBand port context (`mlx5_ifc.h`, `hca_vport_context`).
    HcaVportContext "hca_vport_context", 512 bytes {
        FIELD_SELECT "field_select" (0:31..0);
        SM_VIRT_AWARE "sm_virt_aware" (32:31..31);
        HAS_SMI "has_smi" (32:30..30);
        HAS_RAW "has_raw" (32:29..29);
        GRH_REQUIRED "grh_required" (32:28..28);
        NUM_PORT_PLANE "num_port_plane" (32:23..16);
        PORT_PHYSICAL_STATE "port_physical_state" (32:15..12);
        VPORT_STATE_POLICY "vport_state_policy" (32:11..8);
        PORT_STATE "port_state" (32:7..4);
        VPORT_STATE "vport_state" (32:3..0);
        SYSTEM_IMAGE_GUID "system_image_guid" (@40 u64);
        PORT_GUID "port_guid" (@48 u64);
        NODE_GUID "node_guid" (@56 u64);
        CAP_MASK1 "cap_mask1" (64:31..0);
        CAP_MASK1_FIELD_SELECT "cap_mask1_field_select" (68:31..0);
        CAP_MASK2 "cap_mask2" (72:31..0);
        CAP_MASK2_FIELD_SELECT "cap_mask2_field_select" (76:31..0);
        LID "lid" (96:31..16);
        INIT_TYPE_REPLY "init_type_reply" (96:11..8);
        LMC "lmc" (96:7..5);
        SUBNET_TIMEOUT "subnet_timeout" (96:4..0);
        SM_LID "sm_lid" (100:31..16);
        SM_SL "sm_sl" (100:15..12);
        QKEY_VIOLATION_COUNTER "qkey_violation_counter" (104:31..16);
        PKEY_VIOLATION_COUNTER "pkey_violation_counter" (104:15..0);
    }
}

crate::layout! {
    /// Input of QUERY_HCA_VPORT_CONTEXT (`mlx5_ifc.h`, `query_hca_vport_context_in`).
    QueryHcaVportContextIn "query_hca_vport_context_in", 16 bytes, input {
        OTHER_VPORT "other_vport" (8:31..31);
        PORT_NUM "port_num" (8:19..16);
        VPORT_NUMBER "vport_number" (8:15..0);
    }
}

crate::layout! {
    /// Output of QUERY_HCA_VPORT_CONTEXT (`mlx5_ifc.h`, `query_hca_vport_context_out`).
    QueryHcaVportContextOut "query_hca_vport_context_out", 528 bytes, output {
        HCA_VPORT_CONTEXT "hca_vport_context" (@16 HcaVportContext);
    }
}

crate::layout! {
    /// Input of MODIFY_HCA_VPORT_CONTEXT (`mlx5_ifc.h`, `modify_hca_vport_context_in`).
    ModifyHcaVportContextIn "modify_hca_vport_context_in", 528 bytes, input {
        OTHER_VPORT "other_vport" (8:31..31);
        PORT_NUM "port_num" (8:19..16);
        VPORT_NUMBER "vport_number" (8:15..0);
        HCA_VPORT_CONTEXT "hca_vport_context" (@16 HcaVportContext);
    }
}

crate::layout! {
    /// Output of MODIFY_HCA_VPORT_CONTEXT (`mlx5_ifc.h`, `modify_hca_vport_context_out`).
    ModifyHcaVportContextOut "modify_hca_vport_context_out", output;
}

crate::layout! {
    /// Input of QUERY_HCA_VPORT_GID (`mlx5_ifc.h`, `query_hca_vport_gid_in`).
    QueryHcaVportGidIn "query_hca_vport_gid_in", 16 bytes, input {
        OTHER_VPORT "other_vport" (8:31..31);
        PORT_NUM "port_num" (8:19..16);
        VPORT_NUMBER "vport_number" (8:15..0);
        GID_INDEX "gid_index" (12:15..0);
    }
}

crate::layout! {
    /// Output of QUERY_HCA_VPORT_GID (`mlx5_ifc.h`, `query_hca_vport_gid_out`).
    QueryHcaVportGidOut "query_hca_vport_gid_out", 16 bytes, output {
        GIDS_NUM "gids_num" (12:31..16);
        GID "gid" (@16 [16]..);
    }
}

crate::layout! {
    /// Input of QUERY_HCA_VPORT_PKEY (`mlx5_ifc.h`, `query_hca_vport_pkey_in`).
    QueryHcaVportPkeyIn "query_hca_vport_pkey_in", 16 bytes, input {
        OTHER_VPORT "other_vport" (8:31..31);
        PORT_NUM "port_num" (8:19..16);
        VPORT_NUMBER "vport_number" (8:15..0);
        PKEY_INDEX "pkey_index" (12:15..0);
    }
}

crate::layout! {
    /// Output of QUERY_HCA_VPORT_PKEY (`mlx5_ifc.h`, `query_hca_vport_pkey_out`).
    QueryHcaVportPkeyOut "query_hca_vport_pkey_out", 16 bytes, output {
        PKEY "pkey" (@16 [4]..);
    }
}

crate::layout! {
    /// Packets and bytes of one kind of traffic (`mlx5_ifc.h`, `traffic_counter`).
    TrafficCounter "traffic_counter", 16 bytes {
        PACKETS "packets" (@0 u64);
        OCTETS "octets" (@8 u64);
    }
}

crate::layout! {
    /// Input of QUERY_VPORT_COUNTER (`mlx5_ifc.h`, `query_vport_counter_in`).
    QueryVportCounterIn "query_vport_counter_in", 32 bytes, input {
        OTHER_VPORT "other_vport" (8:31..31);
        PORT_NUM "port_num" (8:19..16);
        VPORT_NUMBER "vport_number" (8:15..0);
        CLEAR "clear" (24:31..31);
    }
}

crate::layout! {
    /// Output of QUERY_VPORT_COUNTER (`mlx5_ifc.h`, `query_vport_counter_out`).
    QueryVportCounterOut "query_vport_counter_out", 528 bytes, output {
        RECEIVED_ERRORS "received_errors" (@16 TrafficCounter);
        TRANSMIT_ERRORS "transmit_errors" (@32 TrafficCounter);
        RECEIVED_IB_UNICAST "received_ib_unicast" (@48 TrafficCounter);
        TRANSMITTED_IB_UNICAST "transmitted_ib_unicast" (@64 TrafficCounter);
        RECEIVED_IB_MULTICAST "received_ib_multicast" (@80 TrafficCounter);
        TRANSMITTED_IB_MULTICAST "transmitted_ib_multicast" (@96 TrafficCounter);
        RECEIVED_ETH_BROADCAST "received_eth_broadcast" (@112 TrafficCounter);
        TRANSMITTED_ETH_BROADCAST "transmitted_eth_broadcast" (@128 TrafficCounter);
        RECEIVED_ETH_UNICAST "received_eth_unicast" (@144 TrafficCounter);
        TRANSMITTED_ETH_UNICAST "transmitted_eth_unicast" (@160 TrafficCounter);
        RECEIVED_ETH_MULTICAST "received_eth_multicast" (@176 TrafficCounter);
        TRANSMITTED_ETH_MULTICAST "transmitted_eth_multicast" (@192 TrafficCounter);
    }
}

crate::layout! {
    /// Input of MAD_IFC (`mlx5_ifc.h`, `mad_ifc_in`). OP_MOD: [`mad_ifc`].
    MadIfcIn "mad_ifc_in", 272 bytes, input {
        REMOTE_LID "remote_lid" (8:31..16);
        PLANE_INDEX "plane_index" (8:15..8);
        PORT "port" (8:7..0);
        MAD "mad" (@16 [256]);
    }
}

/// Bits of [`MadIfcIn::OP_MOD`] (Linux `MLX5_MAD_IFC_IGNORE_MKEY`, `MLX5_MAD_IFC_IGNORE_BKEY`).
pub mod mad_ifc {
    /// The M_Key of the datagram is not checked.
    pub const IGNORE_M_KEY: u32 = 1;
    /// The B_Key of the datagram is not checked.
    pub const IGNORE_B_KEY: u32 = 1 << 1;
}

crate::layout! {
    /// Output of MAD_IFC (`mlx5_ifc.h`, `mad_ifc_out`).
    MadIfcOut "mad_ifc_out", 272 bytes, output {
        RESPONSE_MAD_PACKET "response_mad_packet" (@16 [256]);
    }
}

crate::layout! {
    /// Several ports as one (`mlx5_ifc.h`, `lagc`).
    Lagc "lagc", 8 bytes {
        FDB_SELECTION_MODE "fdb_selection_mode" (0:31..31);
        PORT_SELECT_MODE "port_select_mode" (0:10..8);
        LAG_STATE "lag_state" (0:2..0);
        ACTIVE_PORT "active_port" (4:19..16);
        TX_REMAP_AFFINITY_2 "tx_remap_affinity_2" (4:11..8);
        TX_REMAP_AFFINITY_1 "tx_remap_affinity_1" (4:3..0);
    }
}

crate::layout! {
    /// Input of QUERY_LAG (`mlx5_ifc.h`, `query_lag_in`).
    QueryLagIn "query_lag_in", 16 bytes, input {}
}

crate::layout! {
    /// Output of QUERY_LAG (`mlx5_ifc.h`, `query_lag_out`).
    QueryLagOut "query_lag_out", 16 bytes, output {
        CTX "ctx" (@8 Lagc);
    }
}

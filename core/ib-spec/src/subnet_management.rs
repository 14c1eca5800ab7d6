//! Subnet management: its packets, and the attributes that the port's management agent reads and writes (IBTA volume 1, chapter 14).

crate::layout! {
    /// Subnet management packet (SMP): a management datagram of 256 bytes, LID-routed or directed (IBTA volume 1, 14.2.1).
    Smp "ib_smp", 256 bytes {
        BASE_VERSION "base_version" (0:31..24);
        MGMT_CLASS "mgmt_class" (0:23..16);
        CLASS_VERSION "class_version" (0:15..8);
        METHOD "method" (0:7..0);
        STATUS "status" (4:31..16);
        HOP_POINTER "hop_ptr" (4:15..8);
        HOP_COUNT "hop_cnt" (4:7..0);
        TRANSACTION "tid" (@8 u64);
        ATTRIBUTE "attr_id" (16:31..16);
        MODIFIER "attr_mod" (20:31..0);
        M_KEY "mkey" (@24 u64);
        DR_SLID "dr_slid" (32:31..16);
        DR_DLID "dr_dlid" (32:15..0);
        DATA "data" (@64 [64]);
        INITIAL_PATH "initial_path" (@128 [64]);
        RETURN_PATH "return_path" (@192 [64]);
    }
}

/// [`Smp::BASE_VERSION`] (IBTA volume 1, 13.4.2).
pub const SMP_BASE_VERSION: u32 = 1;
/// [`Smp::CLASS_VERSION`] (IBTA volume 1, 14.2.1).
pub const SMP_CLASS_VERSION: u32 = 1;
/// [`Smp::MGMT_CLASS`] of packets that are routed by LID (IBTA volume 1, 14.2.1.1).
pub const SMP_LID_ROUTED: u32 = 0x01;
/// [`Smp::METHOD`] of a question (IBTA volume 1, 13.4.5).
pub const SMP_GET: u32 = 0x01;
/// [`Smp::METHOD`] of the answer to a question, or to a change (IBTA volume 1, 13.4.5).
pub const SMP_GET_RESP: u32 = 0x81;
/// Bit of [`Smp::STATUS`]: the agent is busy, and did nothing (IBTA volume 1, 13.4.7).
pub const MAD_BUSY: u16 = 1;

crate::codes! {
    /// Attribute of subnet management: [`Smp::ATTRIBUTE`] (IBTA volume 1, table 120).
    SubnetAttribute {
        NodeDescription = 0x10 "NodeDescription",
        NodeInfo = 0x11 "NodeInfo",
        GuidInfo = 0x14 "GUIDInfo",
        PortInfo = 0x15 "PortInfo",
        PKeyTable = 0x16 "P_KeyTable",
        SlToVlTable = 0x17 "SLtoVLMappingTable",
        SmInfo = 0x20 "SMInfo",
    }
}

/// GUIDs in a block of [`SubnetAttribute::GuidInfo`], 8 bytes each. The modifier is the number of the block (IBTA volume 1, 14.2.5.5).
pub const GUIDS_PER_BLOCK: usize = 8;
/// P_Keys in a block of [`SubnetAttribute::PKeyTable`], 2 bytes each. The modifier's lower half is the number of the block (IBTA
/// volume 1, 14.2.5.7).
pub const PKEYS_PER_BLOCK: usize = 32;

crate::layout! {
    /// NodeInfo (IBTA volume 1, 14.2.5.3).
    NodeInfo "ib_node_info", 40 bytes {
        BASE_VERSION "base_version" (0:31..24);
        CLASS_VERSION "class_version" (0:23..16);
        NODE_TYPE "node_type" (0:15..8);
        NUM_PORTS "num_ports" (0:7..0);
        SYSTEM_IMAGE_GUID "sys_guid" (@4 u64);
        NODE_GUID "node_guid" (@12 u64);
        PORT_GUID "port_guid" (@20 u64);
        PARTITION_CAP "partition_cap" (28:31..16);
        DEVICE_ID "device_id" (28:15..0);
        REVISION "revision" (32:31..0);
        LOCAL_PORT_NUM "local_port_num" (36:31..24);
        VENDOR_ID "vendor_id" (36:23..0);
    }
}

crate::layout! {
    /// PortInfo (IBTA volume 1, 14.2.5.6).
    PortInfo "ib_port_info", 64 bytes {
        M_KEY "mkey" (@0 u64);
        GID_PREFIX "gid_prefix" (@8 u64);
        LID "lid" (16:31..16);
        SM_LID "sm_lid" (16:15..0);
        CAPABILITY_MASK "cap_mask" (20:31..0);
        DIAG_CODE "diag_code" (24:31..16);
        M_KEY_LEASE_PERIOD "mkey_lease_period" (24:15..0);
        LOCAL_PORT_NUM "local_port_num" (28:31..24);
        LINK_WIDTH_ENABLED "link_width_enabled" (28:23..16);
        LINK_WIDTH_SUPPORTED "link_width_supported" (28:15..8);
        LINK_WIDTH_ACTIVE "link_width_active" (28:7..0);
        LINK_SPEED_SUPPORTED "linkspeed" (32:31..28);
        PORT_STATE "portstate" (32:27..24);
        PORT_PHYSICAL_STATE "portphysstate" (32:23..20);
        LINK_DOWN_DEFAULT_STATE "linkdown" (32:19..16);
        M_KEY_PROTECT_BITS "mkeyprot" (32:15..14);
        LMC "lmc" (32:10..8);
        LINK_SPEED_ACTIVE "linkspeedactive" (32:7..4);
        LINK_SPEED_ENABLED "linkspeedenabled" (32:3..0);
        NEIGHBOR_MTU "neighbormtu" (36:31..28);
        MASTER_SM_SL "mastersmsl" (36:27..24);
        VL_CAP "vlcap" (36:23..20);
        INIT_TYPE "inittype" (36:19..16);
        MTU_CAP "mtucap" (40:19..16);
        OPERATIONAL_VLS "operationalvl" (40:7..4);
        M_KEY_VIOLATIONS "mkey_violations" (44:31..16);
        P_KEY_VIOLATIONS "pkey_violations" (44:15..0);
        Q_KEY_VIOLATIONS "qkey_violations" (48:31..16);
        GUID_CAP "guid_cap" (48:15..8);
        CLIENT_REREGISTER "clientrereg" (48:7..7);
        SUBNET_TIMEOUT "subnetto" (48:4..0);
        RESPONSE_TIME "resptimevalue" (52:28..24);
        CAPABILITY_MASK_2 "cap_mask2" (60:31..16);
        LINK_SPEED_EXT_ACTIVE "linkspeedextactive" (60:15..12);
        LINK_SPEED_EXT_SUPPORTED "linkspeedextsupported" (60:11..8);
        LINK_SPEED_EXT_ENABLED "linkspeedextenabled" (60:4..0);
    }
}

crate::layout! {
    /// Notice (IBTA volume 1, 13.4.8.2), as a trap has it: what is the same in all.
    Notice "ib_mad_notice_attr", 64 bytes {
        IS_GENERIC "is_generic" (0:31..31);
        TYPE "type" (0:30..24);
        PRODUCER_TYPE "prod_type" (0:23..0);
        TRAP_NUMBER "trap_num" (4:31..16);
        ISSUER_LID "issuer_lid" (4:15..0);
        TOGGLE "toggle" (8:31..31);
        COUNT "count" (8:30..16);
    }
}

crate::layout! {
    /// [`Notice`] of a wrong M_Key: the details of trap 256 (IBTA volume 1, 14.2.5.1).
    MKeyViolationNotice "ib_notice_256", 64 bytes {
        LID "lid" (12:31..16);
        DR_SLID "dr_slid" (12:15..0);
        METHOD "method" (16:31..24);
        ATTRIBUTE "attr_id" (16:15..0);
        MODIFIER "attr_mod" (20:31..0);
        M_KEY "mkey" (@24 u64);
        DR_HOPS "dr_trunc_hop" (32:23..16);
        DR_RETURN_PATH "dr_rtn_path" (@34 [30]);
    }
}

crate::layout! {
    /// [`Notice`] of a wrong P_Key or Q_Key: the details of traps 257 and 258 (IBTA volume 1, 14.2.5.1).
    KeyViolationNotice "ib_notice_257_258", 64 bytes {
        LID1 "lid1" (12:31..16);
        LID2 "lid2" (12:15..0);
        KEY "key" (16:31..0);
        SL "sl" (20:31..28);
        QP1 "qp1" (20:23..0);
        QP2 "qp2" (24:23..0);
        GID1 "gid1" (@28 [16]);
        GID2 "gid2" (@44 [16]);
    }
}

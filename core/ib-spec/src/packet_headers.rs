//! Headers of InfiniBand packets, in the order in which they follow each other (IBTA volume 1, 5.2).

crate::layout! {
    /// Local route header, LRH (IBTA volume 1, 5.2.1).
    LocalRouteHeader "lrh", 8 bytes {
        VIRTUAL_LANE "virtual_lane" (0:31..28);
        LINK_VERSION "link_version" (0:27..24);
        SERVICE_LEVEL "service_level" (0:23..20);
        /// A value of [`lnh`].
        LINK_NEXT_HEADER "link_next_header" (0:17..16);
        DESTINATION_LID "destination_lid" (0:15..0);
        /// In units of four bytes, from this header to the ICRC.
        PACKET_LENGTH "packet_length" (4:26..16);
        SOURCE_LID "source_lid" (4:15..0);
    }
}

/// Values of [`LocalRouteHeader::LINK_NEXT_HEADER`].
pub mod lnh {
    /// A base transport header.
    pub const LOCAL: u32 = 2;
    /// A global route header, then a base transport header.
    pub const GLOBAL: u32 = 3;
}

crate::layout! {
    /// Global route header, GRH (IBTA volume 1, 5.2.2).
    GlobalRouteHeader "grh", 40 bytes {
        IP_VERSION "ip_version" (0:31..28);
        TRAFFIC_CLASS "traffic_class" (0:27..20);
        FLOW_LABEL "flow_label" (0:19..0);
        /// In bytes, from the next header to the ICRC.
        PAYLOAD_LENGTH "payload_length" (4:31..16);
        NEXT_HEADER "next_header" (4:15..8);
        HOP_LIMIT "hop_limit" (4:7..0);
        SOURCE_GID "source_gid" (@8 [16]);
        DESTINATION_GID "destination_gid" (@24 [16]);
    }
}

impl GlobalRouteHeader {
    /// Value of [`Self::IP_VERSION`].
    pub const IPV6: u32 = 6;
    /// Value of [`Self::NEXT_HEADER`]: a base transport header.
    pub const IBA_TRANSPORT: u32 = 0x1b;
}

crate::layout! {
    /// Base transport header, BTH (IBTA volume 1, 5.2.3).
    BaseTransportHeader "bth", 12 bytes {
        OPCODE "opcode" (0:31..24);
        SOLICITED_EVENT "solicited_event" (0:23..23);
        MIG_REQ "mig_req" (0:22..22);
        PAD_COUNT "pad_count" (0:21..20);
        TRANSPORT_HEADER_VERSION "transport_header_version" (0:19..16);
        P_KEY "pkey" (0:15..0);
        /// FECN, BECN and the reserved bits beside them: what may change on the way.
        VARIANT "resv8a" (4:31..24);
        DESTINATION_QPN "destination_qpn" (4:23..0);
        ACK_REQ "ack_req" (8:31..31);
        PSN "psn" (8:23..0);
    }
}

crate::layout! {
    /// XRC extended transport header, XRCETH (IBTA volume 1, annex A14).
    XrcHeader "xrceth", 4 bytes {
        SRQN "xrcsrq" (0:23..0);
    }
}

crate::layout! {
    /// Datagram extended transport header, DETH (IBTA volume 1, 5.2.5).
    DatagramHeader "deth", 8 bytes {
        Q_KEY "qkey" (0:31..0);
        SOURCE_QPN "source_qpn" (4:23..0);
    }
}

crate::layout! {
    /// RDMA extended transport header, RETH (IBTA volume 1, 5.2.6).
    RdmaHeader "rxe_reth", 16 bytes {
        VIRTUAL_ADDRESS "va" (@0 u64);
        R_KEY "rkey" (8:31..0);
        DMA_LENGTH "len" (12:31..0);
    }
}

crate::layout! {
    /// Atomic extended transport header, AtomicETH (IBTA volume 1, 5.2.7).
    AtomicHeader "rxe_atmeth", 28 bytes {
        VIRTUAL_ADDRESS "va" (@0 u64);
        R_KEY "rkey" (8:31..0);
        SWAP_ADD "swap_add" (@12 u64);
        COMPARE "comp" (@20 u64);
    }
}

crate::layout! {
    /// Acknowledge extended transport header, AETH (IBTA volume 1, 5.2.8).
    AcknowledgeHeader "rxe_aeth", 4 bytes {
        SYNDROME "syn" (0:31..24);
        MSN "msn" (0:23..0);
    }
}

crate::layout! {
    /// Atomic acknowledge extended transport header, AtomicAckETH (IBTA volume 1, 5.2.9).
    AtomicAcknowledgeHeader "rxe_atmack", 8 bytes {
        ORIGINAL "orig" (@0 u64);
    }
}

crate::layout! {
    /// Immediate data extended transport header, ImmDt (IBTA volume 1, 5.2.10).
    ImmediateHeader "rxe_immdt", 4 bytes {
        IMMEDIATE "imm" (0:31..0);
    }
}

crate::layout! {
    /// Invalidate extended transport header, IETH (IBTA volume 1, 5.2.11).
    InvalidateHeader "rxe_ieth", 4 bytes {
        R_KEY "rkey" (0:31..0);
    }
}

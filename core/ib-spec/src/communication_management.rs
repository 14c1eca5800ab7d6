//! Communication management: the datagrams of the CM (IBTA volume 1, 12.6 and 12.11), and the private data of IP addressing
//! (annex A11).

crate::layout! {
    /// Header that all management datagrams have in common (IBTA volume 1, 13.4.2).
    MadHeader "ib_mad_hdr", 24 bytes {
        BASE_VERSION "base_version" (0:31..24);
        MGMT_CLASS "mgmt_class" (0:23..16);
        CLASS_VERSION "class_version" (0:15..8);
        METHOD "method" (0:7..0);
        STATUS "status" (4:31..16);
        CLASS_SPECIFIC "class_specific" (4:15..0);
        TRANSACTION "tid" (@8 u64);
        ATTRIBUTE "attr_id" (16:31..16);
        MODIFIER "attr_mod" (20:31..0);
    }
}

impl MadHeader {
    /// Value of [`Self::BASE_VERSION`] (IBTA volume 1, 13.4.2).
    pub const BASE: u32 = 1;
    /// [`Self::MGMT_CLASS`] of communication management (IBTA volume 1, table 114).
    pub const COMMUNICATION_MANAGEMENT: u32 = 7;
    /// [`Self::CLASS_VERSION`] of communication management (IBTA volume 1, 16.7).
    pub const CM_VERSION: u32 = 2;
    /// [`Self::METHOD`] of each datagram of communication management: Send (IBTA volume 1, 16.7).
    pub const SEND: u32 = 3;
}

crate::codes! {
    /// Attribute of communication management, [`MadHeader::ATTRIBUTE`]: which message it is (IBTA volume 1, 16.7).
    CmAttribute {
        ConnectRequest = 0x10 "REQ",
        MsgRcptAck = 0x11 "MRA",
        ConnectReject = 0x12 "REJ",
        ConnectReply = 0x13 "REP",
        ReadyToUse = 0x14 "RTU",
        DisconnectRequest = 0x15 "DREQ",
        DisconnectReply = 0x16 "DREP",
        ServiceIdResReq = 0x17 "SIDR_REQ",
        ServiceIdResReqResp = 0x18 "SIDR_REP",
        LoadAlternatePath = 0x19 "LAP",
        AlternatePathResponse = 0x1a "APR",
    }
}

crate::layout! {
    /// A path of a [`CmReq`] (IBTA volume 1, 12.6.5, the rows from "Local Port LID" on).
    CmReqPath "cm_req_path", 44 bytes {
        LOCAL_PORT_LID "local_port_lid" (0:31..16);
        REMOTE_PORT_LID "remote_port_lid" (0:15..0);
        LOCAL_PORT_GID "local_port_gid" (@4 [16]);
        REMOTE_PORT_GID "remote_port_gid" (@20 [16]);
        FLOW_LABEL "flow_label" (36:31..12);
        PACKET_RATE "packet_rate" (36:5..0);
        TRAFFIC_CLASS "traffic_class" (40:31..24);
        HOP_LIMIT "hop_limit" (40:23..16);
        SL "sl" (40:15..12);
        SUBNET_LOCAL "subnet_local" (40:11..11);
        LOCAL_ACK_TIMEOUT "local_ack_timeout" (40:7..3);
        /// Of the alternate path alone.
        SAP_SUPPORTED "sap_supported" (40:2..2);
    }
}

crate::layout! {
    /// REQ: request for communication (IBTA volume 1, 12.6.5).
    CmReq "cm_req_msg", 256 bytes {
        HEADER "hdr" (@0 MadHeader);
        LOCAL_COMM_ID "local_comm_id" (24:31..0);
        VENDOR_ID "vendor_id" (28:23..0);
        SERVICE_ID "service_id" (@32 u64);
        LOCAL_CA_GUID "local_ca_guid" (@40 u64);
        LOCAL_Q_KEY "local_q_key" (52:31..0);
        LOCAL_QPN "local_qpn" (56:31..8);
        RESPONDER_RESOURCES "responder_resources" (56:7..0);
        LOCAL_EECN "local_eecn" (60:31..8);
        INITIATOR_DEPTH "initiator_depth" (60:7..0);
        REMOTE_EECN "remote_eecn" (64:31..8);
        REMOTE_CM_RESPONSE_TIMEOUT "remote_cm_response_timeout" (64:7..3);
        TRANSPORT_SERVICE_TYPE "transport_service_type" (64:2..1);
        END_TO_END_FLOW_CONTROL "end_to_end_flow_control" (64:0..0);
        STARTING_PSN "starting_psn" (68:31..8);
        LOCAL_CM_RESPONSE_TIMEOUT "local_cm_response_timeout" (68:7..3);
        RETRY_COUNT "retry_count" (68:2..0);
        PARTITION_KEY "partition_key" (72:31..16);
        PATH_PACKET_PAYLOAD_MTU "path_packet_payload_mtu" (72:15..12);
        RDC_EXISTS "rdc_exists" (72:11..11);
        RNR_RETRY_COUNT "rnr_retry_count" (72:10..8);
        MAX_CM_RETRIES "max_cm_retries" (72:7..4);
        SRQ "srq" (72:3..3);
        EXTENDED_TRANSPORT_TYPE "extended_transport_type" (72:2..0);
        PRIMARY "primary" (@76 CmReqPath);
        ALTERNATE "alternate" (@120 CmReqPath);
        PRIVATE_DATA "private_data" (@164 [92]);
    }
}

crate::layout! {
    /// MRA: message receipt acknowledgement (IBTA volume 1, 12.6.6).
    CmMra "cm_mra_msg", 256 bytes {
        HEADER "hdr" (@0 MadHeader);
        LOCAL_COMM_ID "local_comm_id" (24:31..0);
        REMOTE_COMM_ID "remote_comm_id" (28:31..0);
        MESSAGE_MRAED "message_mraed" (32:31..30);
        SERVICE_TIMEOUT "service_timeout" (32:23..19);
        PRIVATE_DATA "private_data" (@34 [222]);
    }
}

crate::layout! {
    /// REJ: reject (IBTA volume 1, 12.6.7).
    CmRej "cm_rej_msg", 256 bytes {
        HEADER "hdr" (@0 MadHeader);
        LOCAL_COMM_ID "local_comm_id" (24:31..0);
        REMOTE_COMM_ID "remote_comm_id" (28:31..0);
        MESSAGE_REJECTED "message_rejected" (32:31..30);
        REJECTED_INFO_LENGTH "rejected_info_length" (32:23..17);
        REASON "reason" (32:15..0);
        ARI "ari" (@36 [72]);
        PRIVATE_DATA "private_data" (@108 [148]);
    }
}

crate::layout! {
    /// REP: reply to a request for communication (IBTA volume 1, 12.6.8).
    CmRep "cm_rep_msg", 256 bytes {
        HEADER "hdr" (@0 MadHeader);
        LOCAL_COMM_ID "local_comm_id" (24:31..0);
        REMOTE_COMM_ID "remote_comm_id" (28:31..0);
        LOCAL_Q_KEY "local_q_key" (32:31..0);
        LOCAL_QPN "local_qpn" (36:31..8);
        VENDOR_ID_H "vendor_id_h" (36:7..0);
        LOCAL_EE_CONTEXT_NUMBER "local_ee_context_number" (40:31..8);
        VENDOR_ID_M "vendor_id_m" (40:7..0);
        STARTING_PSN "starting_psn" (44:31..8);
        VENDOR_ID_L "vendor_id_l" (44:7..0);
        RESPONDER_RESOURCES "responder_resources" (48:31..24);
        INITIATOR_DEPTH "initiator_depth" (48:23..16);
        TARGET_ACK_DELAY "target_ack_delay" (48:15..11);
        FAILOVER_ACCEPTED "failover_accepted" (48:10..9);
        END_TO_END_FLOW_CONTROL "end_to_end_flow_control" (48:8..8);
        RNR_RETRY_COUNT "rnr_retry_count" (48:7..5);
        SRQ "srq" (48:4..4);
        LOCAL_CA_GUID "local_ca_guid" (@52 u64);
        PRIVATE_DATA "private_data" (@60 [196]);
    }
}

crate::layout! {
    /// RTU: ready to use (IBTA volume 1, 12.6.9).
    CmRtu "cm_rtu_msg", 256 bytes {
        HEADER "hdr" (@0 MadHeader);
        LOCAL_COMM_ID "local_comm_id" (24:31..0);
        REMOTE_COMM_ID "remote_comm_id" (28:31..0);
        PRIVATE_DATA "private_data" (@32 [224]);
    }
}

crate::layout! {
    /// DREQ: request for communication release (IBTA volume 1, 12.6.10).
    CmDreq "cm_dreq_msg", 256 bytes {
        HEADER "hdr" (@0 MadHeader);
        LOCAL_COMM_ID "local_comm_id" (24:31..0);
        REMOTE_COMM_ID "remote_comm_id" (28:31..0);
        REMOTE_QPN "remote_qpn_eecn" (32:31..8);
        PRIVATE_DATA "private_data" (@36 [220]);
    }
}

crate::layout! {
    /// DREP: reply to a request for communication release (IBTA volume 1, 12.6.11).
    CmDrep "cm_drep_msg", 256 bytes {
        HEADER "hdr" (@0 MadHeader);
        LOCAL_COMM_ID "local_comm_id" (24:31..0);
        REMOTE_COMM_ID "remote_comm_id" (28:31..0);
        PRIVATE_DATA "private_data" (@32 [224]);
    }
}

crate::layout! {
    /// LAP: load alternate path (IBTA volume 1, 12.8): what tells the connection, without the path.
    CmLap "cm_lap_msg", 256 bytes {
        HEADER "hdr" (@0 MadHeader);
        LOCAL_COMM_ID "local_comm_id" (24:31..0);
        REMOTE_COMM_ID "remote_comm_id" (28:31..0);
        REMOTE_QPN "remote_qpn_eecn" (36:31..8);
        REMOTE_CM_RESPONSE_TIMEOUT "remote_cm_response_timeout" (36:7..3);
        PRIVATE_DATA "private_data" (@88 [168]);
    }
}

crate::layout! {
    /// APR: alternate path response (IBTA volume 1, 12.8).
    CmApr "cm_apr_msg", 256 bytes {
        HEADER "hdr" (@0 MadHeader);
        LOCAL_COMM_ID "local_comm_id" (24:31..0);
        REMOTE_COMM_ID "remote_comm_id" (28:31..0);
        ADDITIONAL_INFORMATION_LENGTH "additional_information_length" (32:31..24);
        AP_STATUS "ar_status" (32:23..16);
        ADDITIONAL_INFORMATION "additional_information" (@36 [72]);
        PRIVATE_DATA "private_data" (@108 [148]);
    }
}

crate::layout! {
    /// SIDR_REQ: request to resolve a service ID (IBTA volume 1, 12.11).
    CmSidrReq "cm_sidr_req_msg", 256 bytes {
        HEADER "hdr" (@0 MadHeader);
        REQUEST_ID "requestid" (24:31..0);
        PARTITION_KEY "partition_key" (28:31..16);
        SERVICE_ID "serviceid" (@32 u64);
        PRIVATE_DATA "private_data" (@40 [216]);
    }
}

crate::layout! {
    /// SIDR_REP: response to a request to resolve a service ID (IBTA volume 1, 12.11).
    CmSidrRep "cm_sidr_rep_msg", 256 bytes {
        HEADER "hdr" (@0 MadHeader);
        REQUEST_ID "requestid" (24:31..0);
        STATUS "status" (28:31..24);
        ADDITIONAL_INFORMATION_LENGTH "additional_information_length" (28:23..16);
        QPN "qpn" (32:31..8);
        SERVICE_ID "serviceid" (@36 u64);
        Q_KEY "q_key" (44:31..0);
        ADDITIONAL_INFORMATION "additional_information" (@48 [72]);
        PRIVATE_DATA "private_data" (@120 [136]);
    }
}

crate::layout! {
    /// First bytes of the private data of a REQ or SIDR_REQ whose service ID stands for an IP port (IBTA volume 1, annex A11).
    IpCmPrivateData "cma_hdr", 36 bytes {
        MAJOR_VERSION "major_version" (0:31..28);
        MINOR_VERSION "minor_version" (0:27..24);
        IP_VERSION "ip_version" (0:23..20);
        SOURCE_PORT "port" (0:15..0);
        SOURCE_ADDRESS "src_addr" (@4 [16]);
        DESTINATION_ADDRESS "dst_addr" (@20 [16]);
    }
}

//! Numbers with names in the messages.

bareverbs_ib_spec::codes! {
    /// Why a message was rejected: [`Rej::reason`](crate::Rej::reason) (IBTA volume 1, 12.6.7.2).
    RejectReason {
        NoQp = 1 "no QP available",
        NoEec = 2 "no EEC available",
        NoResources = 3 "no resources available",
        Timeout = 4 "timeout",
        Unsupported = 5 "unsupported request",
        InvalidCommId = 6 "invalid communication ID",
        InvalidCommInstance = 7 "invalid communication instance",
        InvalidServiceId = 8 "invalid service ID",
        InvalidTransportType = 9 "invalid transport service type",
        StaleConnection = 10 "stale connection",
        RdcNotExist = 11 "RDC does not exist",
        InvalidGid = 12 "primary remote port GID rejected",
        InvalidLid = 13 "primary remote port LID rejected",
        InvalidSl = 14 "invalid primary SL",
        InvalidTrafficClass = 15 "invalid primary traffic class",
        InvalidHopLimit = 16 "invalid primary hop limit",
        InvalidPacketRate = 17 "invalid primary packet rate",
        InvalidAlternateGid = 18 "alternate remote port GID rejected",
        InvalidAlternateLid = 19 "alternate remote port LID rejected",
        InvalidAlternateSl = 20 "invalid alternate SL",
        InvalidAlternateTrafficClass = 21 "invalid alternate traffic class",
        InvalidAlternateHopLimit = 22 "invalid alternate hop limit",
        InvalidAlternatePacketRate = 23 "invalid alternate packet rate",
        PortAndCmRedirect = 24 "port and CM redirection",
        PortRedirect = 25 "port redirection",
        InvalidMtu = 26 "invalid path MTU",
        InsufficientResponderResources = 27 "insufficient responder resources",
        ConsumerReject = 28 "consumer reject",
        InvalidRnrRetryCount = 29 "RNR retry count rejected",
        DuplicateLocalCommId = 30 "duplicate local communication ID",
        InvalidClassVersion = 31 "invalid class version",
        InvalidFlowLabel = 32 "invalid primary flow label",
        InvalidAlternateFlowLabel = 33 "invalid alternate flow label",
        VendorOptionNotSupported = 35 "vendor option not supported",
    }
}

bareverbs_ib_spec::codes! {
    /// Which message is rejected ([`Rej::message_rejected`](crate::Rej::message_rejected)) or acknowledged
    /// ([`Mra::message_mraed`](crate::Mra::message_mraed); IBTA volume 1, 12.6.6, 12.6.7).
    MessageType {
        Req = 0 "REQ",
        Rep = 1 "REP",
        Other = 2 "other",
    }
}

bareverbs_ib_spec::codes! {
    /// How a request to resolve a service ID ended: [`SidrRep::status`](crate::SidrRep::status) (IBTA volume 1, 12.11).
    SidrStatus {
        Valid = 0 "QPN and Q_Key are valid",
        UnsupportedServiceId = 1 "service ID not supported",
        Rejected = 2 "rejected by service provider",
        NoQp = 3 "no QP available",
        Redirect = 4 "request should be redirected",
        UnsupportedVersion = 5 "unsupported version",
    }
}

bareverbs_ib_spec::codes! {
    /// Whether an alternate path was taken: [`Apr::ap_status`](crate::Apr::ap_status) (IBTA volume 1, 12.8).
    ApStatus {
        Accepted = 0 "alternate path loaded",
        InvalidCommId = 1 "invalid communication instance",
        Unsupported = 2 "alternate paths not supported",
        Rejected = 3 "failover rejected",
    }
}

bareverbs_ib_spec::codes! {
    /// Transport service of a connection. The number is [`Req::transport_service_type`](crate::Req::transport_service_type), with
    /// [`Req::extended_transport_type`](crate::Req::extended_transport_type) above it from bit 8 on (IBTA volume 1, 12.7; annex A14).
    Transport {
        Rc = 0x000 "RC",
        Uc = 0x001 "UC",
        Xrc = 0x103 "XRC",
    }
}

/// Makes the field of a message of a code. The tables have numbers of 32 bits, as all of this project.
macro_rules! fields {
    ($($name:ident: $field:ty,)+) => {
        $(impl From<$name> for $field {
            fn from(code: $name) -> Self {
                code as Self
            }
        })+
    };
}

fields! {
    RejectReason: u16,
    MessageType: u8,
    SidrStatus: u8,
    ApStatus: u8,
}

//! The messages, as values and as bytes.

use bareverbs::{Gid, Guid, Lid, Psn, Qkey, Qpn};
use bareverbs_ib_spec::{
    CmApr, CmAttribute, CmDrep, CmDreq, CmLap, CmMra, CmRej, CmRep, CmReq, CmReqPath, CmRtu, CmSidrRep, CmSidrReq, Layout,
    MadHeader, View, ViewMut,
};

use crate::codes::Transport;
use crate::service_id::ServiceId;

/// Bytes of a management datagram.
pub const MAD_BYTES: usize = CmReq::SIZE;
/// A management datagram, without packet headers (IBTA volume 1, 13.4.2).
pub type Mad = [u8; MAD_BYTES];

/// Communication ID: how one side names a connection (IBTA volume 1, 12.7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct CommId(pub u32);

/// A value in at most 32 bits of a message. Bits beyond those of the field are cut off.
trait Value: Copy {
    fn from_bits(bits: u32) -> Self;
    fn bits(self) -> u32;
}

macro_rules! value {
    ($($type:ty: $from:expr, $to:expr;)+) => {$(
        impl Value for $type {
            fn from_bits(bits: u32) -> Self {
                $from(bits)
            }

            fn bits(self) -> u32 {
                $to(self)
            }
        }
    )+};
}

value! {
    bool: |bits| bits != 0, u32::from;
    u8: |bits| bits as u8, u32::from;
    u16: |bits| bits as u16, u32::from;
    u32: |bits| bits, |value| value;
    CommId: CommId, |id: CommId| id.0;
    Lid: |bits| Lid::new(bits as u16), |lid: Lid| lid.get().into();
    Psn: Psn::new, Psn::get;
    Qkey: Qkey::new, Qkey::get;
    Qpn: Qpn::new, Qpn::get;
}

/// A value in 64 bits of a message.
trait Wide: Copy {
    fn from_bits(bits: u64) -> Self;
    fn bits(self) -> u64;
}

impl Wide for Guid {
    fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    fn bits(self) -> u64 {
        self.0
    }
}

impl Wide for ServiceId {
    fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    fn bits(self) -> u64 {
        self.0
    }
}

/// Returns which message a datagram is; `None` if it is none of communication management, or one that no version 2 has.
pub fn attribute(mad: &Mad) -> Option<CmAttribute> {
    let header = View::<MadHeader>::of(mad);
    let ours = header.get(MadHeader::BASE_VERSION) == MadHeader::BASE
        && header.get(MadHeader::MGMT_CLASS) == MadHeader::COMMUNICATION_MANAGEMENT
        && header.get(MadHeader::CLASS_VERSION) == MadHeader::CM_VERSION
        && header.get(MadHeader::METHOD) == MadHeader::SEND;
    ours.then(|| CmAttribute::from_code(header.get(MadHeader::ATTRIBUTE))).flatten()
}

fn write_header(mut header: ViewMut<'_, MadHeader>, transaction: u64, attribute: CmAttribute) {
    header
        .set(MadHeader::BASE_VERSION, MadHeader::BASE)
        .set(MadHeader::MGMT_CLASS, MadHeader::COMMUNICATION_MANAGEMENT)
        .set(MadHeader::CLASS_VERSION, MadHeader::CM_VERSION)
        .set(MadHeader::METHOD, MadHeader::SEND)
        .set64(MadHeader::TRANSACTION, transaction)
        .set(MadHeader::ATTRIBUTE, attribute.code());
}

/// Defines a message: each of its values with the field that it is in, from which both directions are made.
macro_rules! message {
    ($(#[$meta:meta])* $name:ident in $layout:ident, $attribute:ident {
        $($(#[$field_meta:meta])* $field:ident: $type:ty = $kind:ident $place:ident $(, $length:ident)?;)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[cfg_attr(feature = "defmt", derive(defmt::Format))]
        pub struct $name<'a> {
            /// Transaction ID (IBTA volume 1, 12.6.4).
            pub transaction: u64,
            $($(#[$field_meta])* pub $field: $type,)*
            /// Private data. As received it has all [`Self::PRIVATE_DATA`] bytes.
            pub private_data: &'a [u8],
        }

        impl<'a> $name<'a> {
            /// Bytes that the message has for private data.
            pub const PRIVATE_DATA: usize = $layout::PRIVATE_DATA.len();

            /// Reads a datagram. `None` if it is another message.
            pub fn decode(mad: &'a Mad) -> Option<Self> {
                if attribute(mad) != Some(CmAttribute::$attribute) {
                    return None;
                }
                let view = View::<$layout>::of(mad);
                Some(Self {
                    transaction: view.sub($layout::HEADER).get64(MadHeader::TRANSACTION),
                    $($field: message!(@get $kind, view, $layout::$place $(, $layout::$length)?),)*
                    private_data: view.bytes($layout::PRIVATE_DATA),
                })
            }

            /// Returns the datagram. What has no room in its field is cut off.
            pub fn encode(&self) -> Mad {
                let mut mad = [0; MAD_BYTES];
                let mut view = ViewMut::<$layout>::of(&mut mad);
                write_header(view.sub($layout::HEADER), self.transaction, CmAttribute::$attribute);
                $(message!(@put $kind, view, $layout::$place $(, $layout::$length)?, self.$field);)*
                view.set_bytes($layout::PRIVATE_DATA, self.private_data);
                mad
            }
        }
    };
    (@get narrow, $view:ident, $place:expr) => { Value::from_bits($view.get($place)) };
    (@get wide, $view:ident, $place:expr) => { Wide::from_bits($view.get64($place)) };
    (@get path, $view:ident, $place:expr) => { ReqPath::read($view.sub($place)) };
    (@get information, $view:ident, $place:expr, $length:expr) => {{
        let bytes = $view.bytes($place);
        bytes.get(..$view.get($length) as usize).unwrap_or(bytes)
    }};
    (@put narrow, $view:ident, $place:expr, $value:expr) => { $view.set($place, Value::bits($value)); };
    (@put wide, $view:ident, $place:expr, $value:expr) => { $view.set64($place, Wide::bits($value)); };
    (@put path, $view:ident, $place:expr, $value:expr) => { $value.write($view.sub($place)); };
    (@put information, $view:ident, $place:expr, $length:expr, $value:expr) => {
        $view.set_bytes($place, $value).set($length, $value.len().min($place.len()) as u32);
    };
}

/// A path of a [`Req`] (IBTA volume 1, 12.6.5). Local is the sender's side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct ReqPath {
    /// LID of the sender's port; 0xffff on Ethernet.
    pub local_port_lid: Lid,
    /// LID of the receiver's port; 0xffff on Ethernet.
    pub remote_port_lid: Lid,
    /// GID of the sender's port.
    pub local_port_gid: Gid,
    /// GID of the receiver's port.
    pub remote_port_gid: Gid,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Static rate, 6 bits, encoded as in a path record.
    pub packet_rate: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Service level, 4 bits.
    pub sl: u8,
    /// Whether both ports are in one subnet.
    pub subnet_local: bool,
    /// Local ACK timeout of the receiver's queue pair: 4.096 µs · 2^`local_ack_timeout`, 5 bits.
    pub local_ack_timeout: u8,
    /// Whether suggested alternate paths are supported; of the alternate path alone.
    pub sap_supported: bool,
}

impl ReqPath {
    fn read(view: View<'_, CmReqPath>) -> Self {
        let gid = |field| Gid(view.bytes(field).try_into().unwrap_or_default());
        Self {
            local_port_lid: Value::from_bits(view.get(CmReqPath::LOCAL_PORT_LID)),
            remote_port_lid: Value::from_bits(view.get(CmReqPath::REMOTE_PORT_LID)),
            local_port_gid: gid(CmReqPath::LOCAL_PORT_GID),
            remote_port_gid: gid(CmReqPath::REMOTE_PORT_GID),
            flow_label: view.get(CmReqPath::FLOW_LABEL),
            packet_rate: Value::from_bits(view.get(CmReqPath::PACKET_RATE)),
            traffic_class: Value::from_bits(view.get(CmReqPath::TRAFFIC_CLASS)),
            hop_limit: Value::from_bits(view.get(CmReqPath::HOP_LIMIT)),
            sl: Value::from_bits(view.get(CmReqPath::SL)),
            subnet_local: view.is_set(CmReqPath::SUBNET_LOCAL),
            local_ack_timeout: Value::from_bits(view.get(CmReqPath::LOCAL_ACK_TIMEOUT)),
            sap_supported: view.is_set(CmReqPath::SAP_SUPPORTED),
        }
    }

    fn write(&self, mut view: ViewMut<'_, CmReqPath>) {
        view.set(CmReqPath::LOCAL_PORT_LID, self.local_port_lid.bits())
            .set(CmReqPath::REMOTE_PORT_LID, self.remote_port_lid.bits())
            .set_bytes(CmReqPath::LOCAL_PORT_GID, &self.local_port_gid.0)
            .set_bytes(CmReqPath::REMOTE_PORT_GID, &self.remote_port_gid.0)
            .set(CmReqPath::FLOW_LABEL, self.flow_label)
            .set(CmReqPath::PACKET_RATE, self.packet_rate.bits())
            .set(CmReqPath::TRAFFIC_CLASS, self.traffic_class.bits())
            .set(CmReqPath::HOP_LIMIT, self.hop_limit.bits())
            .set(CmReqPath::SL, self.sl.bits())
            .set(CmReqPath::SUBNET_LOCAL, self.subnet_local.bits())
            .set(CmReqPath::LOCAL_ACK_TIMEOUT, self.local_ack_timeout.bits())
            .set(CmReqPath::SAP_SUPPORTED, self.sap_supported.bits());
    }
}

message! {
    /// REQ: request for communication (IBTA volume 1, 12.6.5).
    Req in CmReq, ConnectRequest {
        /// Sender's communication ID.
        local_comm_id: CommId = narrow LOCAL_COMM_ID;
        /// Vendor of the sender's adapter, 24 bits (enhanced connection establishment).
        vendor_id: u32 = narrow VENDOR_ID;
        /// Service that is asked for.
        service_id: ServiceId = wide SERVICE_ID;
        /// GUID of the sender's channel adapter.
        local_ca_guid: Guid = wide LOCAL_CA_GUID;
        /// Q_Key, for reliable datagrams.
        local_q_key: Qkey = narrow LOCAL_Q_KEY;
        /// Sender's queue pair.
        local_qpn: Qpn = narrow LOCAL_QPN;
        /// RDMA reads and atomics outstanding that the sender takes as target.
        responder_resources: u8 = narrow RESPONDER_RESOURCES;
        /// Sender's end-to-end context, for reliable datagrams.
        local_eecn: u32 = narrow LOCAL_EECN;
        /// RDMA reads and atomics outstanding that the sender wants as initiator.
        initiator_depth: u8 = narrow INITIATOR_DEPTH;
        /// Receiver's end-to-end context for reliable datagrams; of XRC the receiver's SRQ.
        remote_eecn: u32 = narrow REMOTE_EECN;
        /// How long the sender waits for an answer of the receiver's CM, encoded, 5 bits.
        remote_cm_response_timeout: u8 = narrow REMOTE_CM_RESPONSE_TIMEOUT;
        /// Transport service, 2 bits: see [`Req::transport`].
        transport_service_type: u8 = narrow TRANSPORT_SERVICE_TYPE;
        /// Whether the sender does end-to-end flow control.
        end_to_end_flow_control: bool = narrow END_TO_END_FLOW_CONTROL;
        /// First PSN that the sender expects: the receiver of the message begins with it (IBTA 12.7.31).
        starting_psn: Psn = narrow STARTING_PSN;
        /// How long the receiver is to wait for an answer of the sender's CM, encoded, 5 bits.
        local_cm_response_timeout: u8 = narrow LOCAL_CM_RESPONSE_TIMEOUT;
        /// Retries of the receiver's queue pair, 3 bits.
        retry_count: u8 = narrow RETRY_COUNT;
        /// P_Key.
        partition_key: u16 = narrow PARTITION_KEY;
        /// Path MTU, 4 bits, encoded as [`Mtu`](bareverbs::Mtu).
        path_packet_payload_mtu: u8 = narrow PATH_PACKET_PAYLOAD_MTU;
        /// Whether a reliable datagram channel exists.
        rdc_exists: bool = narrow RDC_EXISTS;
        /// Retries after RNR NAK of the receiver's queue pair, 3 bits, 7 for ever.
        rnr_retry_count: u8 = narrow RNR_RETRY_COUNT;
        /// How often a CM message is repeated, 4 bits.
        max_cm_retries: u8 = narrow MAX_CM_RETRIES;
        /// Whether the sender's queue pair receives through an SRQ.
        srq: bool = narrow SRQ;
        /// Extended transport service, 3 bits: see [`Req::transport`].
        extended_transport_type: u8 = narrow EXTENDED_TRANSPORT_TYPE;
        /// Primary path.
        primary: ReqPath = path PRIMARY;
        /// Alternate path; zeros for none.
        alternate: ReqPath = path ALTERNATE;
    }
}

impl Req<'_> {
    /// Returns the transport service; `None` if it is one for reliable datagrams or a reserved number.
    pub fn transport(&self) -> Option<Transport> {
        // The extended type counts if the type is 3 alone (IBTA volume 1, annex A14).
        let extended = if self.transport_service_type == 3 { self.extended_transport_type } else { 0 };
        Transport::from_code(u32::from(extended) << 8 | u32::from(self.transport_service_type))
    }
}

message! {
    /// MRA: message receipt acknowledgement (IBTA volume 1, 12.6.6).
    Mra in CmMra, MsgRcptAck {
        /// Sender's communication ID.
        local_comm_id: CommId = narrow LOCAL_COMM_ID;
        /// Receiver's communication ID.
        remote_comm_id: CommId = narrow REMOTE_COMM_ID;
        /// What was received, a number of [`MessageType`](crate::MessageType).
        message_mraed: u8 = narrow MESSAGE_MRAED;
        /// How long the sender needs for the answer, encoded, 5 bits.
        service_timeout: u8 = narrow SERVICE_TIMEOUT;
    }
}

message! {
    /// REJ: reject (IBTA volume 1, 12.6.7).
    Rej in CmRej, ConnectReject {
        /// Sender's communication ID, if it has one. Linux sends any number if it has none.
        local_comm_id: CommId = narrow LOCAL_COMM_ID;
        /// Receiver's communication ID, 0 if unknown.
        remote_comm_id: CommId = narrow REMOTE_COMM_ID;
        /// What is rejected, a number of [`MessageType`](crate::MessageType).
        message_rejected: u8 = narrow MESSAGE_REJECTED;
        /// Why, a number of [`RejectReason`](crate::RejectReason), 16 bits.
        reason: u16 = narrow REASON;
        /// Additional rejection information (ARI), 72 bytes at most.
        information: &'a [u8] = information ARI, REJECTED_INFO_LENGTH;
    }
}

message! {
    /// REP: reply to a request for communication (IBTA volume 1, 12.6.8).
    Rep in CmRep, ConnectReply {
        /// Sender's communication ID.
        local_comm_id: CommId = narrow LOCAL_COMM_ID;
        /// Receiver's communication ID.
        remote_comm_id: CommId = narrow REMOTE_COMM_ID;
        /// Q_Key, for reliable datagrams.
        local_q_key: Qkey = narrow LOCAL_Q_KEY;
        /// Sender's queue pair.
        local_qpn: Qpn = narrow LOCAL_QPN;
        /// Vendor of the sender's adapter, bits 23 to 16 (enhanced connection establishment).
        vendor_id_high: u8 = narrow VENDOR_ID_H;
        /// Sender's end-to-end context, for reliable datagrams.
        local_ee_context_number: u32 = narrow LOCAL_EE_CONTEXT_NUMBER;
        /// Vendor of the sender's adapter, bits 15 to 8.
        vendor_id_middle: u8 = narrow VENDOR_ID_M;
        /// First PSN that the sender expects: the receiver of the message begins with it (IBTA 12.7.31).
        starting_psn: Psn = narrow STARTING_PSN;
        /// Vendor of the sender's adapter, bits 7 to 0.
        vendor_id_low: u8 = narrow VENDOR_ID_L;
        /// RDMA reads and atomics outstanding that the sender takes as target.
        responder_resources: u8 = narrow RESPONDER_RESOURCES;
        /// RDMA reads and atomics outstanding that the sender wants as initiator.
        initiator_depth: u8 = narrow INITIATOR_DEPTH;
        /// ACK delay of the sender's adapter, encoded, 5 bits.
        target_ack_delay: u8 = narrow TARGET_ACK_DELAY;
        /// Whether the alternate path was taken, 2 bits; 1 is "alternate paths not supported".
        failover_accepted: u8 = narrow FAILOVER_ACCEPTED;
        /// Whether the sender does end-to-end flow control.
        end_to_end_flow_control: bool = narrow END_TO_END_FLOW_CONTROL;
        /// Retries after RNR NAK of the receiver's queue pair, 3 bits, 7 for ever.
        rnr_retry_count: u8 = narrow RNR_RETRY_COUNT;
        /// Whether the sender's queue pair receives through an SRQ.
        srq: bool = narrow SRQ;
        /// GUID of the sender's channel adapter.
        local_ca_guid: Guid = wide LOCAL_CA_GUID;
    }
}

message! {
    /// RTU: ready to use (IBTA volume 1, 12.6.9).
    Rtu in CmRtu, ReadyToUse {
        /// Sender's communication ID.
        local_comm_id: CommId = narrow LOCAL_COMM_ID;
        /// Receiver's communication ID.
        remote_comm_id: CommId = narrow REMOTE_COMM_ID;
    }
}

message! {
    /// DREQ: request for communication release (IBTA volume 1, 12.6.10).
    Dreq in CmDreq, DisconnectRequest {
        /// Sender's communication ID.
        local_comm_id: CommId = narrow LOCAL_COMM_ID;
        /// Receiver's communication ID.
        remote_comm_id: CommId = narrow REMOTE_COMM_ID;
        /// Receiver's queue pair.
        remote_qpn: Qpn = narrow REMOTE_QPN;
    }
}

message! {
    /// DREP: reply to a request for communication release (IBTA volume 1, 12.6.11).
    Drep in CmDrep, DisconnectReply {
        /// Sender's communication ID.
        local_comm_id: CommId = narrow LOCAL_COMM_ID;
        /// Receiver's communication ID.
        remote_comm_id: CommId = narrow REMOTE_COMM_ID;
    }
}

message! {
    /// LAP: load alternate path (IBTA volume 1, 12.8), without the path.
    Lap in CmLap, LoadAlternatePath {
        /// Sender's communication ID.
        local_comm_id: CommId = narrow LOCAL_COMM_ID;
        /// Receiver's communication ID.
        remote_comm_id: CommId = narrow REMOTE_COMM_ID;
        /// Receiver's queue pair.
        remote_qpn: Qpn = narrow REMOTE_QPN;
        /// How long the sender waits for an answer, encoded, 5 bits.
        remote_cm_response_timeout: u8 = narrow REMOTE_CM_RESPONSE_TIMEOUT;
    }
}

message! {
    /// APR: alternate path response (IBTA volume 1, 12.8).
    Apr in CmApr, AlternatePathResponse {
        /// Sender's communication ID.
        local_comm_id: CommId = narrow LOCAL_COMM_ID;
        /// Receiver's communication ID.
        remote_comm_id: CommId = narrow REMOTE_COMM_ID;
        /// A number of [`ApStatus`](crate::ApStatus).
        ap_status: u8 = narrow AP_STATUS;
        /// Additional information, 72 bytes at most.
        information: &'a [u8] = information ADDITIONAL_INFORMATION, ADDITIONAL_INFORMATION_LENGTH;
    }
}

message! {
    /// SIDR_REQ: request to resolve a service ID (IBTA volume 1, 12.11).
    SidrReq in CmSidrReq, ServiceIdResReq {
        /// Sender's name of this request.
        request_id: u32 = narrow REQUEST_ID;
        /// P_Key that the sender wants to use.
        partition_key: u16 = narrow PARTITION_KEY;
        /// Service that is asked for.
        service_id: ServiceId = wide SERVICE_ID;
    }
}

message! {
    /// SIDR_REP: response to a request to resolve a service ID (IBTA volume 1, 12.11).
    SidrRep in CmSidrRep, ServiceIdResReqResp {
        /// Which request it answers.
        request_id: u32 = narrow REQUEST_ID;
        /// A number of [`SidrStatus`](crate::SidrStatus).
        status: u8 = narrow STATUS;
        /// Queue pair of the service.
        qpn: Qpn = narrow QPN;
        /// Service.
        service_id: ServiceId = wide SERVICE_ID;
        /// Q_Key of that queue pair.
        q_key: Qkey = narrow Q_KEY;
        /// Additional information, 72 bytes at most.
        information: &'a [u8] = information ADDITIONAL_INFORMATION, ADDITIONAL_INFORMATION_LENGTH;
    }
}

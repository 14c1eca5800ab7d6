//! What an endpoint reports.

use bareverbs::{Lid, Mtu, Psn, Qpn};

use crate::codes::{MessageType, Transport};
use crate::message::{Rep, Req, SidrRep};
use crate::path::{Address, PathAddress, Source};
use crate::service_id::ServiceId;

/// A connection of an endpoint, until its [`Event::Closed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct ConnectionId {
    pub(crate) index: u16,
    pub(crate) generation: u32,
}

/// A request to resolve a service ID that was sent, until its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct QueryId {
    pub(crate) request_id: u32,
}

/// A request to resolve a service ID that was received: what its answer needs. The endpoint keeps nothing of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct ServiceTicket {
    pub(crate) transaction: u64,
    pub(crate) request_id: u32,
    pub(crate) service_id: ServiceId,
    pub(crate) to: Address,
}

/// What a queue pair of a connection needs to be modified with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Attributes {
    /// Transport service.
    pub transport: Transport,
    /// P_Key, whose index INIT needs.
    pub partition_key: u16,
    /// From INIT to RTR.
    pub rtr: RtrAttributes,
    /// From RTR to RTS.
    pub rts: RtsAttributes,
}

/// RNR timer of 0.64 ms (IBTA volume 1, table 45).
const RNR_TIMER_640_US: u8 = 12;

impl Attributes {
    /// Returns what leads a queue pair to RTS ([`Verbs::modify_qp_to_rts`](bareverbs::Verbs::modify_qp_to_rts)) on such a path
    /// ([`Carrier::address`](crate::Carrier::address)), with the partition of index 0, no rights for the peer, and an RNR timer of
    /// 0.64 ms.
    pub fn qp_attr(&self, av: bareverbs::AddressVector) -> bareverbs::QpAttr {
        let Self { rtr, rts, .. } = self;
        bareverbs::QpAttr {
            port_num: av.port_num,
            av,
            path_mtu: rtr.path_mtu,
            dest_qpn: rtr.dest_qpn,
            rq_psn: rtr.rq_psn,
            max_dest_rd_atomic: rtr.max_dest_rd_atomic,
            min_rnr_timer: RNR_TIMER_640_US,
            sq_psn: rts.sq_psn,
            timeout: rts.timeout,
            retry_cnt: rts.retry_cnt,
            rnr_retry: rts.rnr_retry,
            max_rd_atomic: rts.max_rd_atomic,
            ..bareverbs::QpAttr::default()
        }
    }
}

/// Attributes from INIT to RTR (IBTA volume 1, 11.2.5.2). The caller adds what it alone knows: port, index of the GID, RNR timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct RtrAttributes {
    /// Where packets go.
    pub path: PathAddress,
    /// LID that they come from, whose path bits are those below the port's LMC.
    pub source_lid: Lid,
    /// Path MTU.
    pub path_mtu: Mtu,
    /// Peer's queue pair.
    pub dest_qpn: Qpn,
    /// First PSN expected.
    pub rq_psn: Psn,
    /// RDMA reads and atomics outstanding as target.
    pub max_dest_rd_atomic: u8,
}

/// Attributes from RTR to RTS (IBTA volume 1, 11.2.5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct RtsAttributes {
    /// First PSN sent.
    pub sq_psn: Psn,
    /// Local ACK timeout: 4.096 µs · 2^`timeout`, 5 bits.
    pub timeout: u8,
    /// Retries before the connection is broken, 3 bits.
    pub retry_cnt: u8,
    /// Retries after RNR NAK, 3 bits, 7 for ever.
    pub rnr_retry: u8,
    /// RDMA reads and atomics outstanding as initiator.
    pub max_rd_atomic: u8,
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum Cause {
    /// The peer asked for it (DREQ), and was answered.
    Peer,
    /// The peer has answered our DREQ.
    Answered,
    /// Nobody has answered our DREQ.
    Unanswered,
    /// The peer connects with the same queue pair anew: it has forgotten this connection (IBTA volume 1, 12.9.8.3.1).
    Stale,
}

/// What was waited for in vain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum Unanswered {
    /// The peer's answer to our REQ.
    Req,
    /// The peer's answer to our REP.
    Rep,
    /// The caller's [`accept`](crate::Endpoint::accept), [`ready`](crate::Endpoint::ready) or [`reject`](crate::Endpoint::reject).
    Caller,
}

/// What happened. Private data has all bytes that the message has room for: its length is not transmitted.
///
/// Each connection has [`Event::Closed`] as its last event, whatever happened before. Not until then should its queue pair number be
/// given to another connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum Event<'a> {
    /// A peer asks for a connection (REQ): [`accept`](crate::Endpoint::accept) or [`reject`](crate::Endpoint::reject) it.
    Requested {
        /// Connection.
        id: ConnectionId,
        /// Its request.
        request: Req<'a>,
        /// Where it came from.
        from: Source,
    },
    /// The peer has our message, and needs more time for the answer (MRA).
    Delayed {
        /// Connection.
        id: ConnectionId,
        /// Private data, 222 bytes.
        private_data: &'a [u8],
    },
    /// The peer has accepted (REP): modify the queue pair and call [`ready`](crate::Endpoint::ready), or
    /// [`reject`](crate::Endpoint::reject).
    Replied {
        /// Connection.
        id: ConnectionId,
        /// The reply.
        reply: Rep<'a>,
        /// What the queue pair is to be modified with.
        attributes: Attributes,
    },
    /// The peer is ready (RTU): the connection that we accepted is established.
    Established {
        /// Connection.
        id: ConnectionId,
        /// Private data, 224 bytes.
        private_data: &'a [u8],
    },
    /// The peer rejected (REJ).
    Rejected {
        /// Connection.
        id: ConnectionId,
        /// A number of [`RejectReason`](crate::RejectReason), or another, in 16 bits as in the message. Compare it with
        /// `RejectReason::ConsumerReject.into()`; `RejectReason::from_code(reason.into())` names it.
        reason: u16,
        /// What it rejected; `None` is a reserved number.
        message: Option<MessageType>,
        /// Additional information, 72 bytes at most.
        information: &'a [u8],
        /// Private data, 148 bytes.
        private_data: &'a [u8],
    },
    /// Too long no answer.
    TimedOut {
        /// Connection.
        id: ConnectionId,
        /// To what.
        message: Unanswered,
    },
    /// The connection is released: move the queue pair to the error state, and then to RESET.
    Disconnected {
        /// Connection.
        id: ConnectionId,
        /// Why.
        cause: Cause,
        /// Private data of the peer's DREQ (220 bytes) or DREP (224 bytes), else empty.
        private_data: &'a [u8],
    },
    /// No packet of the connection can be under way any more (TimeWait is over). Its ID is void.
    Closed {
        /// Connection.
        id: ConnectionId,
        /// Our queue pair of it, which may be used again; 0 if it never had one.
        qpn: Qpn,
    },
    /// A peer asks for the queue pair of a service ID (SIDR_REQ): [`answer`](crate::Endpoint::answer) it. A request that is repeated
    /// is reported again.
    ServiceRequested {
        /// What the answer needs.
        ticket: ServiceTicket,
        /// Service ID that it asks for.
        service_id: ServiceId,
        /// P_Key that it wants to use.
        partition_key: u16,
        /// Private data, 216 bytes.
        private_data: &'a [u8],
        /// Where it came from.
        from: Source,
    },
    /// Our question for a service ID was answered (SIDR_REP).
    Resolved {
        /// Question.
        query: QueryId,
        /// The answer; its status says whether QPN and Q_Key are valid.
        answer: SidrRep<'a>,
    },
    /// Our question for a service ID was not answered.
    Unresolved {
        /// Question.
        query: QueryId,
    },
}

//! What the caller does with connections.

use bareverbs::platform::Instant;
use bareverbs::{Gid, Guid, Psn, Qkey, Qpn};

use super::connection::{Connection, Role, State, Terms};
use super::{Config, Endpoint};
use crate::codes::{MessageType, RejectReason, Transport};
use crate::error::CmError;
use crate::event::{Attributes, ConnectionId};
use crate::message::{CommId, Dreq, Mra, Rej, Rep, Req, ReqPath, Rtu};
use crate::path::{Address, Path};
use crate::service_id::ServiceId;
use crate::timeout::{ack_timeout, timeout};

/// CM response timeouts of `rdma_cm` on Linux: 4.3 s.
const CM_RESPONSE_TIMEOUT: u8 = 20;
/// Repetitions of CM messages of `rdma_cm` on Linux, and the most there are.
const MAX_CM_RETRIES: u8 = 15;
/// Retries of `rdma_cm` on Linux; of RNR NAKs 7 is for ever.
const MAX_RETRIES: u8 = 7;
/// A failover is not accepted: alternate paths are not supported (IBTA volume 1, 12.7).
const NO_FAILOVER: u8 = 1;

/// What [`Endpoint::connect`] asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct ConnectRequest<'a> {
    /// Service of the peer.
    pub service_id: ServiceId,
    /// Transport service.
    pub transport: Transport,
    /// Path of the connection and of its datagrams.
    pub path: Path,
    /// Our queue pair.
    pub qpn: Qpn,
    /// First PSN that we expect: the peer begins with it. Should be random.
    pub starting_psn: Psn,
    /// RDMA reads and atomics outstanding that we take as target.
    pub responder_resources: u8,
    /// RDMA reads and atomics outstanding that we want as initiator.
    pub initiator_depth: u8,
    /// Retries of both queue pairs, 3 bits.
    pub retry_count: u8,
    /// Retries after RNR NAK of the peer's queue pair, 3 bits, 7 for ever.
    pub rnr_retry_count: u8,
    /// Whether we do end-to-end flow control.
    pub end_to_end_flow_control: bool,
    /// Whether our queue pair receives through an SRQ.
    pub srq: bool,
    /// How long we wait for an answer of the peer: 4.096 µs · 2^n, 5 bits.
    pub remote_cm_response_timeout: u8,
    /// How long the peer is to wait for an answer of ours: 4.096 µs · 2^n, 5 bits.
    pub local_cm_response_timeout: u8,
    /// How often a CM message is repeated, 4 bits.
    pub max_cm_retries: u8,
    /// Private data, 92 bytes at most.
    pub private_data: &'a [u8],
}

impl ConnectRequest<'_> {
    /// Returns a request for RC with the numbers that `rdma_cm` of Linux has: one RDMA read or atomic, 7 retries, RNR retries for
    /// ever, 15 CM retries with 4.3 s each.
    pub const fn new(service_id: ServiceId, path: Path, qpn: Qpn, starting_psn: Psn) -> Self {
        Self {
            service_id,
            transport: Transport::Rc,
            path,
            qpn,
            starting_psn,
            responder_resources: 1,
            initiator_depth: 1,
            retry_count: MAX_RETRIES,
            rnr_retry_count: MAX_RETRIES,
            end_to_end_flow_control: true,
            srq: false,
            remote_cm_response_timeout: CM_RESPONSE_TIMEOUT,
            local_cm_response_timeout: CM_RESPONSE_TIMEOUT,
            max_cm_retries: MAX_CM_RETRIES,
            private_data: &[],
        }
    }
}

/// What [`Endpoint::accept`] offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Accept<'a> {
    /// Our queue pair.
    pub qpn: Qpn,
    /// First PSN that we expect: the peer begins with it. Should be random.
    pub starting_psn: Psn,
    /// RDMA reads and atomics outstanding that we take as target: no more than the request's initiator depth counts.
    pub responder_resources: u8,
    /// RDMA reads and atomics outstanding that we want as initiator: no more than the request's responder resources counts.
    pub initiator_depth: u8,
    /// Retries after RNR NAK of the peer's queue pair, 3 bits, 7 for ever.
    pub rnr_retry_count: u8,
    /// Whether we do end-to-end flow control.
    pub end_to_end_flow_control: bool,
    /// Whether our queue pair receives through an SRQ.
    pub srq: bool,
    /// Private data, 196 bytes at most.
    pub private_data: &'a [u8],
}

impl Accept<'_> {
    /// Returns what accepts one RDMA read or atomic and has RNR retries for ever.
    pub const fn new(qpn: Qpn, starting_psn: Psn) -> Self {
        Self {
            qpn,
            starting_psn,
            responder_resources: 1,
            initiator_depth: 1,
            rnr_retry_count: MAX_RETRIES,
            end_to_end_flow_control: true,
            srq: false,
            private_data: &[],
        }
    }
}

fn fits(bytes: &[u8], room: usize) -> Result<(), CmError> {
    if bytes.len() <= room { Ok(()) } else { Err(CmError::TooLong { room }) }
}

fn req(config: &Config, local_id: CommId, transaction: u64, request: &ConnectRequest<'_>) -> crate::Mad {
    let path = &request.path;
    let transport = request.transport.code();
    let req = Req {
        transaction,
        local_comm_id: local_id,
        vendor_id: 0,
        service_id: request.service_id,
        local_ca_guid: config.ca_guid,
        local_q_key: Qkey::default(),
        local_qpn: request.qpn,
        responder_resources: request.responder_resources,
        local_eecn: 0,
        initiator_depth: request.initiator_depth,
        remote_eecn: 0,
        remote_cm_response_timeout: request.remote_cm_response_timeout,
        transport_service_type: transport as u8,
        end_to_end_flow_control: request.end_to_end_flow_control,
        starting_psn: request.starting_psn,
        local_cm_response_timeout: request.local_cm_response_timeout,
        retry_count: request.retry_count,
        partition_key: path.partition_key,
        path_packet_payload_mtu: path.mtu as u8,
        rdc_exists: false,
        rnr_retry_count: request.rnr_retry_count,
        max_cm_retries: request.max_cm_retries,
        srq: request.srq,
        extended_transport_type: (transport >> 8) as u8,
        primary: ReqPath {
            local_port_lid: path.local_lid,
            remote_port_lid: path.remote_lid,
            local_port_gid: path.local_gid,
            remote_port_gid: path.remote_gid,
            flow_label: path.flow_label,
            packet_rate: path.packet_rate,
            traffic_class: path.traffic_class,
            hop_limit: path.hop_limit,
            sl: path.sl,
            subnet_local: path.subnet_local,
            local_ack_timeout: ack_timeout(path.packet_life_time, config.ack_delay),
            sap_supported: false,
        },
        alternate: ReqPath { local_port_gid: Gid::default(), ..ReqPath::default() },
        private_data: request.private_data,
    };
    req.encode()
}

impl<const CONNECTIONS: usize, const SERVICES: usize, const QUERIES: usize> Endpoint<CONNECTIONS, SERVICES, QUERIES> {
    /// Asks a peer for a connection (REQ). [`Event::Replied`](crate::Event::Replied) or [`Event::Rejected`](crate::Event::Rejected)
    /// follows, or [`Event::TimedOut`](crate::Event::TimedOut).
    ///
    /// `random` should be unpredictable: who guesses it can forge the peer's answer. The queue pair is in INIT.
    ///
    /// # Errors
    ///
    /// [`CmError::TableFull`], [`CmError::TooLong`].
    pub fn connect(&mut self, now: Instant, random: u64, request: &ConnectRequest<'_>) -> Result<ConnectionId, CmError> {
        fits(request.private_data, Req::PRIVATE_DATA)?;
        let path = request.path;
        let local_id = CommId(self.unused_comm_id(random as u32));
        let address = path.address();
        let round_trip = timeout(path.packet_life_time).saturating_mul(2);
        let wait = timeout(request.remote_cm_response_timeout).saturating_add(round_trip);
        let mut connection = Connection {
            generation: 0,
            role: Role::Active,
            state: State::ReqSent,
            local_id,
            remote_id: None,
            remote_guid: Guid(0),
            local_qpn: request.qpn,
            remote_qpn: Qpn::new(0),
            transaction: random,
            to: Address { path: address, qpn: Qpn::GENERAL_SERVICES, partition_key: path.partition_key },
            peer: address.peer(),
            terms: Terms {
                transport: request.transport,
                path: address,
                source_lid: path.local_lid,
                path_mtu: path.mtu,
                partition_key: path.partition_key,
                local_psn: request.starting_psn,
                remote_psn: Psn::default(),
                packet_life_time: path.packet_life_time,
                ack_timeout: 0,
                retry_count: request.retry_count,
                rnr_retry: 0,
                responder_resources: request.responder_resources,
                initiator_depth: request.initiator_depth,
            },
            wait: self.config.clamp(wait),
            time_wait: self.config.clamp(timeout(ack_timeout(path.packet_life_time, self.config.ack_delay))),
            max_retries: request.max_cm_retries & MAX_CM_RETRIES,
            retries_left: 0,
            deadline: None,
            expires: now,
            message: None,
            pending: false,
            reported: false,
        };
        connection.send(req(&self.config, local_id, random, request));
        connection.wait_for_answer(now, self.config.longest_exchange);
        self.insert(connection)
    }

    /// Accepts a request (REP), and returns what the queue pair is to be modified with. Modify it to RTR before the REP is
    /// transmitted: the peer may send at once. If that fails, [`Endpoint::reject`] takes the REP back.
    ///
    /// [`Event::Established`](crate::Event::Established) follows, or another end.
    ///
    /// # Errors
    ///
    /// [`CmError::UnknownConnection`], [`CmError::WrongState`], [`CmError::TooLong`].
    pub fn accept(&mut self, now: Instant, id: ConnectionId, accept: &Accept<'_>) -> Result<Attributes, CmError> {
        fits(accept.private_data, Rep::PRIVATE_DATA)?;
        let config = self.config;
        let connection = self.find(id)?;
        let (State::ReqReceived, Some(remote_comm_id)) = (connection.state, connection.remote_id) else {
            return Err(CmError::WrongState);
        };
        // These are what the request has: its own resources are our depth, and the other way round.
        let terms = &mut connection.terms;
        terms.responder_resources = accept.responder_resources.min(terms.responder_resources);
        terms.initiator_depth = accept.initiator_depth.min(terms.initiator_depth);
        terms.local_psn = accept.starting_psn;
        let rep = Rep {
            transaction: connection.transaction,
            local_comm_id: connection.local_id,
            remote_comm_id,
            local_q_key: Qkey::default(),
            local_qpn: accept.qpn,
            vendor_id_high: 0,
            local_ee_context_number: 0,
            vendor_id_middle: 0,
            starting_psn: accept.starting_psn,
            vendor_id_low: 0,
            responder_resources: terms.responder_resources,
            initiator_depth: terms.initiator_depth,
            target_ack_delay: config.ack_delay,
            failover_accepted: NO_FAILOVER,
            end_to_end_flow_control: accept.end_to_end_flow_control,
            rnr_retry_count: accept.rnr_retry_count,
            srq: accept.srq,
            local_ca_guid: config.ca_guid,
            private_data: accept.private_data,
        };
        connection.local_qpn = accept.qpn;
        connection.state = State::RepSent;
        connection.send(rep.encode());
        connection.wait_for_answer(now, config.longest_exchange);
        Ok(connection.attributes())
    }

    /// Says that the queue pair is in RTS (RTU): after [`Event::Replied`](crate::Event::Replied). The connection is established.
    ///
    /// # Errors
    ///
    /// [`CmError::UnknownConnection`], [`CmError::WrongState`], [`CmError::TooLong`].
    pub fn ready(&mut self, id: ConnectionId, private_data: &[u8]) -> Result<(), CmError> {
        fits(private_data, Rtu::PRIVATE_DATA)?;
        let connection = self.find(id)?;
        let (State::RepReceived, Some(remote_comm_id)) = (connection.state, connection.remote_id) else {
            return Err(CmError::WrongState);
        };
        let rtu = Rtu { transaction: connection.transaction, local_comm_id: connection.local_id, remote_comm_id, private_data };
        connection.state = State::Established;
        connection.deadline = None;
        connection.send(rtu.encode());
        Ok(())
    }

    /// Asks the peer for more time (MRA): after [`Event::Requested`](crate::Event::Requested) or
    /// [`Event::Replied`](crate::Event::Replied). `service_timeout` is 4.096 µs · 2^n, 5 bits.
    ///
    /// # Errors
    ///
    /// [`CmError::UnknownConnection`], [`CmError::WrongState`], [`CmError::TooLong`].
    pub fn delay(&mut self, now: Instant, id: ConnectionId, service_timeout: u8, private_data: &[u8]) -> Result<(), CmError> {
        fits(private_data, Mra::PRIVATE_DATA)?;
        let connection = self.find(id)?;
        let message = match connection.state {
            State::ReqReceived => MessageType::Req,
            State::RepReceived => MessageType::Rep,
            _ => return Err(CmError::WrongState),
        };
        let mra = Mra {
            transaction: connection.transaction,
            local_comm_id: connection.local_id,
            remote_comm_id: connection.remote_id.unwrap_or_default(),
            message_mraed: message.into(),
            service_timeout,
            private_data,
        };
        connection.send(mra.encode());
        connection.wait_longer(now, timeout(service_timeout));
        Ok(())
    }

    /// Rejects (REJ) what the peer asked for or replied, or takes back what we have accepted or asked for.
    /// [`Event::Closed`](crate::Event::Closed) follows. `reason` is [`RejectReason::ConsumerReject`] if it is the program's own. A
    /// request that nobody has answered yet is taken back with [`RejectReason::Timeout`].
    ///
    /// # Errors
    ///
    /// [`CmError::UnknownConnection`], [`CmError::WrongState`], [`CmError::TooLong`]; [`CmError::NotTransmitted`].
    pub fn reject(
        &mut self,
        now: Instant,
        id: ConnectionId,
        reason: RejectReason,
        information: &[u8],
        private_data: &[u8],
    ) -> Result<(), CmError> {
        fits(information, bareverbs_ib_spec::CmRej::ARI.len())?;
        fits(private_data, Rej::PRIVATE_DATA)?;
        let full = self.replies.is_full();
        let ca_guid = self.config.ca_guid.0.to_be_bytes();
        let connection = self.find(id)?;
        let message = match connection.state {
            State::ReqReceived => MessageType::Req,
            State::RepReceived => MessageType::Rep,
            State::ReqSent | State::RepSent => MessageType::Other,
            State::Established | State::DreqSent | State::TimeWait => return Err(CmError::WrongState),
        };
        if full {
            return Err(CmError::NotTransmitted);
        }
        // A peer whose communication ID is unknown finds our request by this reason alone (IBTA volume 1, 12.6.7.2).
        let (reason, information) =
            if connection.remote_id.is_none() { (RejectReason::Timeout, &ca_guid[..]) } else { (reason, information) };
        let rej = rejection(connection, message, reason, information, private_data);
        let to = connection.to;
        if matches!(connection.state, State::ReqReceived | State::ReqSent) {
            connection.end_at_once(now);
        } else {
            connection.end(now);
        }
        self.reply(to, rej);
        Ok(())
    }

    /// Says that the queue pair of an accepted connection has received something before the RTU came (the asynchronous event
    /// "communication established"). Returns whether that established it. No event follows.
    ///
    /// # Errors
    ///
    /// [`CmError::UnknownConnection`].
    pub fn established(&mut self, id: ConnectionId) -> Result<bool, CmError> {
        let connection = self.find(id)?;
        let was_waiting = connection.state == State::RepSent;
        if was_waiting {
            connection.state = State::Established;
            connection.deadline = None;
        }
        Ok(was_waiting)
    }

    /// Releases a connection (DREQ). [`Event::Disconnected`](crate::Event::Disconnected) follows.
    ///
    /// # Errors
    ///
    /// [`CmError::UnknownConnection`], [`CmError::WrongState`], [`CmError::TooLong`].
    pub fn disconnect(&mut self, now: Instant, id: ConnectionId, private_data: &[u8]) -> Result<(), CmError> {
        fits(private_data, Dreq::PRIVATE_DATA)?;
        let longest = self.config.longest_exchange;
        let connection = self.find(id)?;
        if !matches!(connection.state, State::Established | State::RepSent) {
            return Err(CmError::WrongState);
        }
        request_release(connection, now, longest, private_data);
        Ok(())
    }

    /// Forgets a connection without a message and without an event: for a device that is lost. The peer finds out by itself.
    ///
    /// # Errors
    ///
    /// [`CmError::UnknownConnection`].
    pub fn forget(&mut self, id: ConnectionId) -> Result<(), CmError> {
        self.find(id)?;
        if let Some(entry) = self.connections.get_mut(usize::from(id.index)) {
            *entry = None;
        }
        Ok(())
    }
}

/// Sends a DREQ.
pub(super) fn request_release(connection: &mut Connection, now: Instant, longest: core::time::Duration, private_data: &[u8]) {
    let dreq = Dreq {
        transaction: connection.transaction.wrapping_add(1),
        local_comm_id: connection.local_id,
        remote_comm_id: connection.remote_id.unwrap_or_default(),
        remote_qpn: connection.remote_qpn,
        private_data,
    };
    connection.state = State::DreqSent;
    connection.send(dreq.encode());
    connection.wait_for_answer(now, longest);
}

/// Returns a REJ of a connection.
pub(super) fn rejection(
    connection: &Connection,
    message: MessageType,
    reason: RejectReason,
    information: &[u8],
    private_data: &[u8],
) -> crate::Mad {
    Rej {
        transaction: connection.transaction,
        local_comm_id: connection.local_id,
        remote_comm_id: connection.remote_id.unwrap_or_default(),
        message_rejected: message.into(),
        reason: reason.into(),
        information,
        private_data,
    }
    .encode()
}

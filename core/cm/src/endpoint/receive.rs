//! What a received datagram does.

use bareverbs::platform::Instant;
use bareverbs::{Guid, Mtu, Psn, Qpn};
use bareverbs_ib_spec::{CmAttribute, MadHeader, View};

use super::Endpoint;
use super::calls::{rejection, request_release};
use super::connection::{Connection, Role, State, Terms};
use crate::codes::{ApStatus, MessageType, RejectReason};
use crate::event::{Cause, ConnectionId, Event};
use crate::message::{Apr, CommId, Drep, Dreq, Lap, Mad, Mra, Rej, Rep, Req, Rtu, attribute};
use crate::path::{GlobalRoute, Path, PathAddress, Peer, Source};
use crate::timeout::{ack_timeout, timeout};

impl<const CONNECTIONS: usize, const SERVICES: usize, const QUERIES: usize> Endpoint<CONNECTIONS, SERVICES, QUERIES> {
    /// Takes a datagram that was received on QP1, and says where it came from. Datagrams that belong to nothing, or are none of
    /// communication management, are answered or ignored.
    ///
    /// `random` is a new random number each time: a connection that begins takes its communication ID from it. It should be
    /// unpredictable, so that nobody but the peer knows the ID.
    pub fn receive<'a>(&mut self, now: Instant, random: u64, from: &Source, mad: &'a Mad) -> Option<Event<'a>> {
        let Some(attribute) = attribute(mad) else {
            self.refuse_version(from, mad);
            return None;
        };
        match attribute {
            CmAttribute::ConnectRequest => self.receive_req(now, random, from, &Req::decode(mad)?),
            CmAttribute::MsgRcptAck => self.receive_mra(now, &Mra::decode(mad)?),
            CmAttribute::ConnectReject => self.receive_rej(now, from, &Rej::decode(mad)?),
            CmAttribute::ConnectReply => self.receive_rep(now, from, &Rep::decode(mad)?),
            CmAttribute::ReadyToUse => self.receive_rtu(&Rtu::decode(mad)?),
            CmAttribute::DisconnectRequest => self.receive_dreq(now, from, &Dreq::decode(mad)?),
            CmAttribute::DisconnectReply => self.receive_drep(now, &Drep::decode(mad)?),
            CmAttribute::ServiceIdResReq => self.receive_sidr_req(from, mad),
            CmAttribute::ServiceIdResReqResp => self.receive_sidr_rep(mad),
            CmAttribute::LoadAlternatePath => {
                self.refuse_path(from, &Lap::decode(mad)?);
                None
            }
            // We ask for no alternate path.
            CmAttribute::AlternatePathResponse => None,
        }
    }

    /// A REQ of another version of the class is rejected (IBTA volume 1, 12.6.7.2). Its first fields are where ours has them.
    fn refuse_version(&mut self, from: &Source, mad: &Mad) {
        let header = View::<MadHeader>::of(mad);
        let other = header.get(MadHeader::BASE_VERSION) == MadHeader::BASE
            && header.get(MadHeader::MGMT_CLASS) == MadHeader::COMMUNICATION_MANAGEMENT
            && header.get(MadHeader::CLASS_VERSION) != MadHeader::CM_VERSION
            && header.get(MadHeader::METHOD) == MadHeader::SEND
            && header.get(MadHeader::ATTRIBUTE) == CmAttribute::ConnectRequest.code();
        if other {
            let view = View::<bareverbs_ib_spec::CmReq>::of(mad);
            let id = CommId(view.get(bareverbs_ib_spec::CmReq::LOCAL_COMM_ID));
            self.refuse(from, header.get64(MadHeader::TRANSACTION), id, MessageType::Req, RejectReason::InvalidClassVersion);
        }
    }

    /// Rejects a message without a connection.
    fn refuse(&mut self, from: &Source, transaction: u64, remote_comm_id: CommId, message: MessageType, reason: RejectReason) {
        let rej = Rej {
            transaction,
            local_comm_id: CommId(0),
            remote_comm_id,
            message_rejected: message.into(),
            reason: reason.into(),
            information: &[],
            private_data: &[],
        };
        self.reply(from.answer(), rej.encode());
    }

    fn receive_req<'a>(&mut self, now: Instant, random: u64, from: &Source, req: &Req<'a>) -> Option<Event<'a>> {
        let peer = from.peer();
        let theirs = (req.local_ca_guid, peer);
        let longest = self.config.longest_exchange;
        if let Some((_, known)) = self.matching(|other| {
            other.role == Role::Passive
                && (other.remote_guid, other.peer) == theirs
                && other.remote_id == Some(req.local_comm_id)
                && other.state != State::TimeWait
        }) {
            // It was repeated: the answer, if there was one, may be lost.
            if known.is_half_open() {
                known.send_again();
            }
            return None;
        }
        if let Some((id, known)) = self.matching(|other| is_of_queue_pair(other, theirs, req.local_qpn)) {
            let event = forget_stale(id, known, now, longest);
            self.refuse(from, req.transaction, req.local_comm_id, MessageType::Req, RejectReason::StaleConnection);
            return event;
        }
        match self.admit(now, random, from, req) {
            Ok(id) => Some(Event::Requested { id, request: *req, from: *from }),
            Err(reason) => {
                self.refuse(from, req.transaction, req.local_comm_id, MessageType::Req, reason);
                None
            }
        }
    }

    /// Makes an entry for a new request, or says why not.
    fn admit(&mut self, now: Instant, random: u64, from: &Source, req: &Req<'_>) -> Result<ConnectionId, RejectReason> {
        let transport = req.transport().ok_or(RejectReason::InvalidTransportType)?;
        let path_mtu = Mtu::from_encoding(req.path_packet_payload_mtu.into()).ok_or(RejectReason::InvalidMtu)?;
        if !self.services.contains(&req.service_id) {
            return Err(RejectReason::InvalidServiceId);
        }
        let peer = from.peer();
        self.check_limits(peer)?;
        let primary = &req.primary;
        let global = from.grh.is_some() || !primary.subnet_local;
        let grh = global.then_some(GlobalRoute {
            source_gid: primary.remote_port_gid,
            destination_gid: primary.local_port_gid,
            flow_label: primary.flow_label,
            hop_limit: primary.hop_limit,
            traffic_class: primary.traffic_class,
        });
        let path = PathAddress { dlid: primary.local_port_lid, sl: primary.sl, packet_rate: primary.packet_rate, grh };
        // What the sender waits until it gives up: then this entry is of no use.
        let attempts = u32::from(req.max_cm_retries) + 1;
        let patience = self.config.clamp(timeout(req.remote_cm_response_timeout)).saturating_mul(attempts);
        let expires = now.after(self.config.longest_exchange);
        let way = timeout(primary.local_ack_timeout);
        self.insert(Connection {
            generation: 0,
            role: Role::Passive,
            state: State::ReqReceived,
            local_id: CommId(self.unused_comm_id(random as u32)),
            remote_id: Some(req.local_comm_id),
            remote_guid: req.local_ca_guid,
            local_qpn: Qpn::new(0),
            remote_qpn: req.local_qpn,
            transaction: req.transaction,
            to: from.answer(),
            peer,
            terms: Terms {
                transport,
                path,
                source_lid: primary.remote_port_lid,
                path_mtu,
                partition_key: req.partition_key,
                local_psn: Psn::default(),
                remote_psn: req.starting_psn,
                packet_life_time: Path::default().packet_life_time,
                ack_timeout: primary.local_ack_timeout,
                retry_count: req.retry_count,
                rnr_retry: req.rnr_retry_count,
                // At most: what the sender wants as initiator, we take as target.
                responder_resources: req.initiator_depth,
                initiator_depth: req.responder_resources,
            },
            wait: self.config.clamp(timeout(req.local_cm_response_timeout).saturating_add(way)),
            time_wait: self.config.clamp(way),
            max_retries: req.max_cm_retries,
            retries_left: 0,
            deadline: Some(now.after(patience).min(expires)),
            expires,
            message: None,
            pending: false,
            reported: false,
        })
        .map_err(|_| RejectReason::NoResources)
    }

    /// Refuses what would let peers fill the table, one or all of them together.
    fn check_limits(&self, peer: Peer) -> Result<(), RejectReason> {
        let passive = || self.connections.iter().flatten().filter(|connection| connection.role == Role::Passive);
        let half_open = || passive().filter(|connection| connection.is_half_open());
        let fits = half_open().count() < self.config.half_open
            && half_open().filter(|connection| connection.peer == peer).count() < self.config.half_open_per_peer
            && passive().filter(|connection| connection.peer == peer).count() < self.config.per_peer;
        if fits { Ok(()) } else { Err(RejectReason::NoResources) }
    }

    fn receive_mra<'a>(&mut self, now: Instant, mra: &Mra<'a>) -> Option<Event<'a>> {
        let message = MessageType::from_code(mra.message_mraed.into());
        let (id, connection) = self.matching(|connection| {
            connection.local_id == mra.remote_comm_id
                && match connection.state {
                    State::ReqSent => {
                        message == Some(MessageType::Req) && connection.remote_id.is_none_or(|known| known == mra.local_comm_id)
                    }
                    State::RepSent => message == Some(MessageType::Rep) && connection.remote_id == Some(mra.local_comm_id),
                    _ => false,
                }
        })?;
        connection.remote_id = Some(mra.local_comm_id);
        connection.wait_longer(now, timeout(mra.service_timeout));
        // It has arrived: what was to be repeated need not be.
        connection.pending = false;
        Some(Event::Delayed { id, private_data: mra.private_data })
    }

    fn receive_rep<'a>(&mut self, now: Instant, from: &Source, rep: &Rep<'a>) -> Option<Event<'a>> {
        let known = self.matching(|connection| {
            connection.role == Role::Active
                && connection.local_id == rep.remote_comm_id
                && match (connection.state, connection.remote_id) {
                    (State::ReqSent, None) => true,
                    (_, known) => known == Some(rep.local_comm_id),
                }
        });
        let Some((id, connection)) = known else {
            self.refuse(from, rep.transaction, rep.local_comm_id, MessageType::Rep, RejectReason::InvalidCommId);
            return None;
        };
        match connection.state {
            State::ReqSent => {}
            // It was repeated: our MRA or RTU may be lost.
            State::RepReceived | State::Established => {
                connection.send_again();
                return None;
            }
            _ => return None,
        }
        connection.remote_id = Some(rep.local_comm_id);
        connection.remote_guid = rep.local_ca_guid;
        connection.remote_qpn = rep.local_qpn;
        connection.state = State::RepReceived;
        // What our datagrams went to. The peer may answer from elsewhere.
        let terms = &mut connection.terms;
        terms.remote_psn = rep.starting_psn;
        terms.ack_timeout = ack_timeout(terms.packet_life_time, rep.target_ack_delay);
        terms.rnr_retry = rep.rnr_retry_count;
        // The peer's depth is what we take as target, as far as we have offered it.
        terms.responder_resources = terms.responder_resources.min(rep.initiator_depth);
        terms.initiator_depth = terms.initiator_depth.min(rep.responder_resources);
        connection.message = None;
        connection.pending = false;
        let (remote_guid, remote_qpn, peer) = (connection.remote_guid, connection.remote_qpn, connection.peer);
        let attributes = connection.attributes();
        let patience = connection.wait.saturating_mul(u32::from(connection.max_retries) + 1);
        let longest = self.config.longest_exchange;
        // The peer's queue pair may be that of a connection which the peer has forgotten, but not so we. That one is released too.
        let theirs = (remote_guid, peer);
        let old = self.matching(|other| other.local_id != rep.remote_comm_id && is_of_queue_pair(other, theirs, remote_qpn));
        let stale = old.is_some();
        if let Some((_, old)) = old
            && matches!(old.state, State::Established | State::RepSent)
        {
            request_release(old, now, longest, &[]);
        }
        let connection = self.find(id).ok()?;
        if stale {
            let rej = rejection(connection, MessageType::Rep, RejectReason::StaleConnection, &[], &[]);
            let to = connection.to;
            connection.end(now);
            let event = connection.released(id, Cause::Stale, &[]);
            self.reply(to, rej);
            return event;
        }
        connection.expires = now.after(longest);
        connection.deadline = Some(now.after(patience).min(connection.expires));
        Some(Event::Replied { id, reply: *rep, attributes })
    }

    fn receive_rtu<'a>(&mut self, rtu: &Rtu<'a>) -> Option<Event<'a>> {
        let (id, connection) = self.matching(|connection| {
            connection.state == State::RepSent && connection.has_ids(rtu.local_comm_id, rtu.remote_comm_id)
        })?;
        connection.state = State::Established;
        connection.deadline = None;
        connection.pending = false;
        Some(Event::Established { id, private_data: rtu.private_data })
    }

    fn receive_rej<'a>(&mut self, now: Instant, from: &Source, rej: &Rej<'a>) -> Option<Event<'a>> {
        let timed_out = rej.reason == RejectReason::Timeout.into();
        let peer = from.peer();
        let (id, connection) = self.matching(|connection| {
            let by_ours = connection.local_id == rej.remote_comm_id
                && (connection.state == State::ReqSent || connection.remote_id == Some(rej.local_comm_id));
            // Who gives up a request does not know how we call it.
            let by_theirs = timed_out
                && connection.role == Role::Passive
                && connection.remote_id == Some(rej.local_comm_id)
                && connection.peer == peer
                && connection.is_half_open()
                && rej.information.first_chunk() == Some(&connection.remote_guid.0.to_be_bytes());
            connection.state != State::TimeWait && (by_ours || by_theirs)
        })?;
        let private_data = rej.private_data;
        match connection.state {
            // The peer does not know the connection any more: that is what we want.
            State::DreqSent => {
                connection.end(now);
                return connection.released(id, Cause::Answered, &[]);
            }
            State::ReqSent | State::ReqReceived if rej.reason != RejectReason::StaleConnection.into() => {
                connection.end_at_once(now);
            }
            _ => connection.end(now),
        }
        let message = MessageType::from_code(rej.message_rejected.into());
        Some(Event::Rejected { id, reason: rej.reason, message, information: rej.information, private_data })
    }

    fn receive_dreq<'a>(&mut self, now: Instant, from: &Source, dreq: &Dreq<'a>) -> Option<Event<'a>> {
        let drep = Drep {
            transaction: dreq.transaction,
            local_comm_id: dreq.remote_comm_id,
            remote_comm_id: dreq.local_comm_id,
            private_data: &[],
        };
        let Some((id, connection)) = self.matching(|other| other.has_ids(dreq.local_comm_id, dreq.remote_comm_id)) else {
            // It is closed already, or never was: the peer need not ask again.
            self.reply(from.answer(), drep.encode());
            return None;
        };
        match connection.state {
            State::TimeWait => {
                connection.send(drep.encode());
                None
            }
            State::RepReceived | State::RepSent | State::Established | State::DreqSent
                if dreq.remote_qpn == connection.local_qpn =>
            {
                connection.end(now);
                connection.send(drep.encode());
                connection.released(id, Cause::Peer, dreq.private_data)
            }
            _ => None,
        }
    }

    fn receive_drep<'a>(&mut self, now: Instant, drep: &Drep<'a>) -> Option<Event<'a>> {
        let (id, connection) = self.matching(|connection| {
            connection.state == State::DreqSent && connection.has_ids(drep.local_comm_id, drep.remote_comm_id)
        })?;
        connection.end(now);
        connection.released(id, Cause::Answered, drep.private_data)
    }

    /// Alternate paths are not supported: a LAP is answered so.
    fn refuse_path(&mut self, from: &Source, lap: &Lap<'_>) {
        let known = self.matching(|connection| connection.has_ids(lap.local_comm_id, lap.remote_comm_id)).is_some();
        let status = if known { ApStatus::Unsupported } else { ApStatus::InvalidCommId };
        let apr = Apr {
            transaction: lap.transaction,
            local_comm_id: lap.remote_comm_id,
            remote_comm_id: lap.local_comm_id,
            ap_status: status.into(),
            information: &[],
            private_data: &[],
        };
        self.reply(from.answer(), apr.encode());
    }
}

/// Whether a connection is with this queue pair of a peer.
fn is_of_queue_pair(connection: &Connection, (guid, peer): (Guid, Peer), qpn: Qpn) -> bool {
    connection.state != State::ReqSent && (connection.remote_guid, connection.peer, connection.remote_qpn) == (guid, peer, qpn)
}

/// Ends a connection that its peer has forgotten (IBTA volume 1, 12.9.8.3.1).
fn forget_stale(
    id: ConnectionId,
    connection: &mut Connection,
    now: Instant,
    longest: core::time::Duration,
) -> Option<Event<'static>> {
    match connection.state {
        // Its end was reported.
        State::TimeWait => return None,
        State::DreqSent => connection.end(now),
        State::ReqReceived => connection.end_at_once(now),
        _ => {
            request_release(connection, now, longest, &[]);
        }
    }
    connection.released(id, Cause::Stale, &[])
}

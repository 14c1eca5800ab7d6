//! The responder of a queue pair: requests checked and executed in order, responses queued and sent.

pub(super) mod execute;
pub(super) mod receive;
pub(super) mod reply;
pub(super) mod unreliable;
pub(super) mod xrc;

use std::collections::VecDeque;

use bareverbs_mlx5_spec::{CqeSyndrome, EventType, Qpc, QpcState};

use crate::engine::config::EngineEvent;
use crate::engine::psn;
use crate::engine::qp::Qp;
use crate::engine::responder::receive::Receive;
use crate::engine::responder::reply::{ACKNOWLEDGED, Fatal, Reply};
use crate::engine::responder::xrc::XrcSrq;
use crate::engine::work::Work;
use crate::packet::{Operation, Packet, Place, Syndrome};

/// The message that is arriving.
#[derive(Debug)]
pub(in crate::engine) enum Inbound {
    Send { receive: Receive, written: u64 },
    Write { addr: u64, rkey: u32, left: u64, total: u64 },
}

/// A request that cannot be carried out.
pub(in crate::engine) struct Refusal {
    /// What the peer is told; `None`: nothing.
    syndrome: Option<Syndrome>,
    pub(in crate::engine) receive: Option<CqeSyndrome>,
    event: Option<EventType>,
}

impl Refusal {
    pub(in crate::engine) const INVALID: Self =
        Self { syndrome: Some(Syndrome::InvalidRequest), receive: None, event: Some(EventType::WqInvalReqError) };
    pub(in crate::engine) const ACCESS: Self =
        Self { syndrome: Some(Syndrome::RemoteAccess), receive: None, event: Some(EventType::WqAccessError) };

    /// The shared receive queue has failed, and with it the receive queue of who takes from it.
    pub(in crate::engine) const QUEUE: Self =
        Self { syndrome: Some(Syndrome::RemoteOperational), receive: None, event: Some(EventType::WqCatasError) };

    /// The receive that the request uses completes with an error, which reports it instead of an event.
    pub(in crate::engine) const fn of_receive(syndrome: Syndrome, receive: CqeSyndrome) -> Self {
        Self { syndrome: Some(syndrome), receive: Some(receive), event: None }
    }

    /// The key that a message shall invalidate cannot be: the message arrived, so that the peer is told nothing, neither
    /// good nor bad (class J of InfiniBand Architecture 9.9.6.3). The receive says that the request was invalid, as with
    /// Linux's software device (`rxe_resp.c`, `RESPST_ERR_INVALIDATE_RKEY`).
    pub(super) const INVALIDATION: Self = Self { syndrome: None, receive: Some(CqeSyndrome::RemoteInvalReq), event: None };
}

/// Why a request was not carried out.
pub(in crate::engine) enum Stop {
    /// No receive is posted: the peer shall try again.
    NotReady,
    /// The queue pair fails.
    Refused(Refusal),
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// State of the receiving half.
#[derive(Debug, Default)]
pub(in crate::engine) struct Responder {
    /// Number of the next request packet.
    pub(in crate::engine) expected_psn: u32,
    /// Requests carried out, 24 bits.
    pub(in crate::engine) msn: u32,
    /// Receives used.
    pub(in crate::engine) consumed: u16,
    pub(in crate::engine) message: Option<Inbound>,
    /// Of an XRC target: the shared receive queue of the newest request.
    pub(in crate::engine) xrc_srq: Option<XrcSrq>,
    /// A receive that a forgotten message leaves to the next one.
    spare: Option<Receive>,
    /// A gap or a missing receive was reported by a NAK; no other one is sent until the expected packet comes.
    nak_sent: bool,
    /// The first request came.
    established: bool,
    /// A fatal response is queued; requests are ignored.
    fatal_queued: bool,
    /// The event that nothing more is taken from the shared receive queue was raised.
    pub(in crate::engine) last_wqe_reported: bool,
    pub(in crate::engine) replies: VecDeque<Reply>,
    /// Results of the newest atomics, by their packet's number.
    pub(in crate::engine) atomics: VecDeque<(u32, u64)>,
}

/// Answers that wait, at most. Reads and atomics are far fewer.
const MAX_REPLIES: usize = 1024;

impl Responder {
    pub(in crate::engine) fn start(&mut self, psn: u32) {
        self.expected_psn = psn;
    }

    /// Forgets the message that is arriving and the queued responses.
    pub(in crate::engine) fn abandon(&mut self) {
        self.message = None;
        self.replies.clear();
    }

    /// Leaves the receive of the present message, which is forgotten, to the next one.
    pub(in crate::engine) fn keep_receive(&mut self) {
        if let Some(Inbound::Send { receive, .. }) = self.message.take() {
            self.spare = Some(receive);
        }
    }

    pub(in crate::engine) fn take_spare(&mut self) -> Option<Receive> {
        self.spare.take()
    }

    /// Whether more of the present message must come.
    pub(in crate::engine) fn is_amid_message(&self) -> bool {
        self.message.is_some()
    }

    /// Reads and atomics whose responses are queued: of first requests, or of repeated ones.
    fn pending_responses(&self, repeated: bool) -> usize {
        let counts = |reply: &&Reply| match reply {
            Reply::Read { again, .. } | Reply::Atomic { again, .. } => *again == repeated,
            _ => false,
        };
        self.replies.iter().filter(counts).count()
    }

    /// Queues an acknowledgement; one takes the place of the one before it.
    fn acknowledge(&mut self, psn: u32, syndrome: Syndrome) {
        let msn = self.msn;
        if let (Syndrome::Ack(_), Some(Reply::Acknowledge { psn: last, syndrome: Syndrome::Ack(_), msn: counted })) =
            (syndrome, self.replies.back_mut())
            && psn::ahead(psn, *last) >= 0
        {
            *last = psn;
            *counted = msn;
            return;
        }
        // A peer that goes on asking while nothing can be sent asks again later.
        if self.replies.len() < MAX_REPLIES {
            self.replies.push_back(Reply::Acknowledge { psn, syndrome, msn });
        }
    }
}

impl Qp {
    /// Handles a request packet of a connected peer.
    pub(in crate::engine) fn handle_request(&mut self, work: &mut Work<'_, '_>, packet: &Packet) {
        if !self.can_receive() || self.responder.fatal_queued {
            return;
        }
        if !self.responder.established {
            self.responder.established = true;
            if self.state == QpcState::Rtr {
                let event = EngineEvent::Qp { event: EventType::CommEstablished, qpn: self.qpn };
                work.shared.events.push_back(event);
            }
        }
        let psn = packet.bth.psn;
        let ahead = psn::ahead(psn, self.responder.expected_psn);
        if ahead > 0 {
            self.counts(work).out_of_sequence += 1;
            if !self.responder.nak_sent {
                self.responder.nak_sent = true;
                work.env.note(|| format!("QP {:#x}: PSN {psn:#x} with a gap before it", self.qpn));
                let expected = self.responder.expected_psn;
                self.responder.acknowledge(expected, Syndrome::SequenceError);
            }
            return;
        }
        if ahead < 0 {
            self.handle_duplicate(work, packet);
            return;
        }
        self.responder.nak_sent = false;
        let done = match self.resolve_xrc_srq(work, packet) {
            Ok(()) => self.execute_request(work, packet),
            Err(refusal) => Err(refusal.into()),
        };
        match done {
            Ok(()) => {}
            Err(Stop::NotReady) => {
                self.counts(work).out_of_buffer += 1;
                self.responder.nak_sent = true;
                let timer = self.get(Qpc::MIN_RNR_NAK) as u8;
                self.responder.acknowledge(psn, Syndrome::RnrNak(timer));
            }
            Err(Stop::Refused(refusal)) => self.refuse_request(psn, &refusal),
        }
    }

    fn refuse_request(&mut self, psn: u32, refusal: &Refusal) {
        let held = match self.responder.message.take() {
            Some(Inbound::Send { receive, .. }) => Some(receive.index),
            _ => None,
        };
        // A receive in use completes with the error; there is no event then.
        let (receive, event) = match (held, refusal.receive) {
            (Some(index), syndrome) => (Some((index, syndrome.unwrap_or(CqeSyndrome::LocalQpOp))), None),
            (None, _) => (None, refusal.event),
        };
        self.responder.fatal_queued = true;
        let fatal = Fatal { psn, syndrome: refusal.syndrome, receive, event };
        self.responder.replies.push_back(Reply::Fatal(fatal));
    }

    /// A packet that came before: acknowledged, read or answered again, never executed again.
    fn handle_duplicate(&mut self, work: &mut Work<'_, '_>, packet: &Packet) {
        work.shared.stats.duplicates += 1;
        self.counts(work).duplicates += 1;
        let room = self.responder.pending_responses(true) < self.depth(Qpc::LOG_RRA_MAX);
        match packet.bth.opcode.operation {
            Operation::ReadRequest => {
                let (Some(reth), true) = (packet.reth, room) else { return };
                // A read repeated in the middle of a message to another queue can wait for the next repetition.
                if self.resolve_xrc_srq(work, packet).is_ok() && self.check_read(work, &reth).is_ok() {
                    self.queue_read(packet.bth.psn, reth, true);
                }
            }
            Operation::CompareSwap | Operation::FetchAdd => {
                let saved = self.responder.atomics.iter().find(|(psn, _)| *psn == packet.bth.psn);
                let (Some(&(psn, original)), true) = (saved, room) else { return };
                let msn = self.responder.msn;
                self.responder.replies.push_back(Reply::Atomic { psn, original, msn, again: true });
            }
            _ => {
                let newest = psn::add(self.responder.expected_psn, psn::HALF * 2 - 1);
                self.responder.acknowledge(newest, ACKNOWLEDGED);
            }
        }
    }

    pub(in crate::engine) fn execute_request(&mut self, work: &mut Work<'_, '_>, packet: &Packet) -> Result<(), Stop> {
        let operation = packet.bth.opcode.operation;
        let place = operation.place();
        self.check_shape(packet, operation, place)?;
        match operation {
            Operation::Write(_) | Operation::WriteImmediate(_) if place.is_start() => self.counts(work).writes += 1,
            Operation::ReadRequest => self.counts(work).reads += 1,
            Operation::CompareSwap | Operation::FetchAdd => self.counts(work).atomics += 1,
            _ => {}
        }
        match operation {
            Operation::Send(_) | Operation::SendImmediate(_) | Operation::SendInvalidate(_) => {
                self.handle_send(work, packet, place)?;
            }
            Operation::Write(_) | Operation::WriteImmediate(_) => self.handle_write(work, packet, place)?,
            Operation::ReadRequest => {
                let reth = packet.reth.ok_or(Refusal::INVALID)?;
                self.check_read(work, &reth)?;
                self.room_for_response()?;
                self.responder.msn = psn::add(self.responder.msn, 1);
                self.queue_read(packet.bth.psn, reth, false);
                let packets = self.packets_of(reth.len);
                self.responder.expected_psn = psn::add(packet.bth.psn, packets);
                return Ok(());
            }
            Operation::CompareSwap | Operation::FetchAdd => {
                self.handle_atomic(work, packet)?;
                self.responder.expected_psn = psn::add(packet.bth.psn, 1);
                return Ok(());
            }
            Operation::ReadResponse(_) | Operation::Acknowledge | Operation::AtomicAcknowledge => return Ok(()),
        }
        self.responder.expected_psn = psn::add(packet.bth.psn, 1);
        if place.is_end() {
            self.responder.msn = psn::add(self.responder.msn, 1);
        }
        if packet.bth.ack_req && self.service.is_reliable() {
            self.responder.acknowledge(packet.bth.psn, ACKNOWLEDGED);
        }
        Ok(())
    }

    pub(in crate::engine) fn packets_of(&self, len: u32) -> u32 {
        len.div_ceil(self.mtu() as u32).max(1)
    }

    pub(in crate::engine) fn room_for_response(&self) -> Result<(), Refusal> {
        if self.responder.pending_responses(false) < self.depth(Qpc::LOG_RRA_MAX) { Ok(()) } else { Err(Refusal::INVALID) }
    }

    /// Whether the packet fits the message that is arriving, and its length its place.
    fn check_shape(&self, packet: &Packet, operation: Operation, place: Place) -> Result<(), Refusal> {
        let sends = matches!(operation, Operation::Send(_) | Operation::SendImmediate(_) | Operation::SendInvalidate(_));
        let fits = match &self.responder.message {
            None => place.is_start(),
            Some(Inbound::Send { .. }) => sends && !place.is_start(),
            Some(Inbound::Write { .. }) => {
                matches!(operation, Operation::Write(_) | Operation::WriteImmediate(_)) && !place.is_start()
            }
        };
        let len = packet.payload.len();
        let length_fits = match (operation, place) {
            (Operation::ReadRequest | Operation::CompareSwap | Operation::FetchAdd, _) => len == 0,
            (_, Place::First | Place::Middle) => len == self.mtu(),
            (_, Place::Last) => (1..=self.mtu()).contains(&len),
            (_, Place::Only) => len <= self.mtu(),
        };
        if fits && length_fits { Ok(()) } else { Err(Refusal::INVALID) }
    }
}

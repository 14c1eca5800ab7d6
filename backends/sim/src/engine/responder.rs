//! The receiving half of a queue pair: requests checked and carried out in order, answers queued and sent.

use std::collections::VecDeque;

use bareverbs_mlx5_spec::{CqeOpcode, CqeSyndrome, EventType, Qpc, QpcState};

use super::cq::Source;
use super::key::Right;
use super::message::{ScatterError, scatter};
use super::psn;
use super::qp::{Qp, ReceiveDone};
use super::{EngineEvent, Work};
use crate::audit::Finding;
use crate::packet::{Aeth, AtomicEth, Operation, Packet, Place, Reth, Syndrome};
use crate::trace::Record;
use crate::wqe::{DataPointer, decode_receive};

/// Answers that one queue pair sends in one go.
const BUDGET: u32 = 64;
/// Longest message of any path.
const MAX_MESSAGE: u32 = 1 << 31;
/// Credit count of an acknowledgement that leaves the flow alone.
const UNLIMITED: Syndrome = Syndrome::Ack(31);

/// A receive in use.
#[derive(Debug)]
pub(super) struct Receive {
    pub(super) index: u16,
    pub(super) list: Vec<DataPointer>,
}

/// The message that is arriving.
#[derive(Debug)]
enum Inbound {
    Send { receive: Receive, written: u64 },
    Write { addr: u64, rkey: u32, left: u64, total: u64 },
}

/// An answer that waits to be sent.
#[derive(Debug)]
enum Reply {
    Acknowledge {
        psn: u32,
        syndrome: Syndrome,
        msn: u32,
    },
    /// `again`: the request came before, so it takes none of the places that the peer may use.
    Read {
        psn: u32,
        packets: u32,
        sent: u32,
        source: Reth,
        msn: u32,
        again: bool,
    },
    Atomic {
        psn: u32,
        original: u64,
        msn: u32,
        again: bool,
    },
    Fatal(Fatal),
}

/// The last answer of a queue pair: what it says, and what becomes of this side.
#[derive(Debug)]
struct Fatal {
    psn: u32,
    syndrome: Syndrome,
    receive: Option<(u16, CqeSyndrome)>,
    event: Option<EventType>,
}

/// A request that cannot be carried out.
pub(super) struct Refusal {
    syndrome: Syndrome,
    pub(super) receive: Option<CqeSyndrome>,
    event: Option<EventType>,
}

impl Refusal {
    const INVALID: Self = Self { syndrome: Syndrome::InvalidRequest, receive: None, event: Some(EventType::WqInvalReqError) };
    const ACCESS: Self = Self { syndrome: Syndrome::RemoteAccess, receive: None, event: Some(EventType::WqAccessError) };

    /// The receive that the request uses completes with an error, which tells the host instead of an event.
    const fn of_receive(syndrome: Syndrome, receive: CqeSyndrome) -> Self {
        Self { syndrome, receive: Some(receive), event: None }
    }
}

/// Why a request was not carried out.
pub(super) enum Stop {
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
pub(super) struct Responder {
    /// Number of the next request packet.
    pub(super) expected_psn: u32,
    /// Requests carried out, 24 bits.
    pub(super) msn: u32,
    /// Receives used.
    pub(super) consumed: u16,
    message: Option<Inbound>,
    /// A receive that a forgotten message leaves to the next one.
    spare: Option<Receive>,
    /// A gap or a missing receive was told; nothing more is said until the expected packet comes.
    told: bool,
    /// The first request came.
    established: bool,
    /// A fatal answer is queued; requests are ignored.
    dead: bool,
    /// The host knows that nothing more is taken from the shared receive queue.
    pub(super) told_last: bool,
    replies: VecDeque<Reply>,
    /// Results of the newest atomics, by their packet's number.
    atomics: VecDeque<(u32, u64)>,
}

impl Responder {
    pub(super) fn start(&mut self, psn: u32) {
        self.expected_psn = psn;
    }

    /// The receive that a half-arrived message holds.
    pub(super) fn abandon(&mut self) {
        self.message = None;
        self.replies.clear();
    }

    /// Leaves the receive of the present message, which is forgotten, to the next one.
    pub(super) fn keep_receive(&mut self) {
        if let Some(Inbound::Send { receive, .. }) = self.message.take() {
            self.spare = Some(receive);
        }
    }

    pub(super) fn take_spare(&mut self) -> Option<Receive> {
        self.spare.take()
    }

    /// Whether more of the present message must come.
    pub(super) fn is_amid_message(&self) -> bool {
        self.message.is_some()
    }

    /// Reads and atomics whose answers are queued; of those asked for the first time, or again.
    fn answers_pending(&self, repeated: bool) -> usize {
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
        self.replies.push_back(Reply::Acknowledge { psn, syndrome, msn });
    }
}

impl Qp {
    /// Takes a request packet of a connected peer.
    pub(super) fn take_request(&mut self, work: &mut Work<'_, '_>, packet: &Packet) {
        if !self.can_receive() || self.responder.dead {
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
            if !self.responder.told {
                self.responder.told = true;
                work.env.note(|| format!("QP {:#x}: PSN {psn:#x} with a gap before it", self.qpn));
                let expected = self.responder.expected_psn;
                self.responder.acknowledge(expected, Syndrome::SequenceError);
            }
            return;
        }
        if ahead < 0 {
            self.answer_duplicate(work, packet);
            return;
        }
        self.responder.told = false;
        match self.carry_out(work, packet) {
            Ok(()) => {}
            Err(Stop::NotReady) => {
                self.responder.told = true;
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
        // A receive in use tells the host; there is no event then.
        let (receive, event) = match (held, refusal.receive) {
            (Some(index), syndrome) => (Some((index, syndrome.unwrap_or(CqeSyndrome::LocalQpOp))), None),
            (None, _) => (None, refusal.event),
        };
        self.responder.dead = true;
        let fatal = Fatal { psn, syndrome: refusal.syndrome, receive, event };
        self.responder.replies.push_back(Reply::Fatal(fatal));
    }

    /// A packet that came before: acknowledged, read or answered again, never carried out again.
    fn answer_duplicate(&mut self, work: &mut Work<'_, '_>, packet: &Packet) {
        work.shared.stats.duplicates += 1;
        let room = self.responder.answers_pending(true) < self.depth(Qpc::LOG_RRA_MAX);
        match packet.bth.opcode.operation {
            Operation::ReadRequest => {
                let (Some(reth), true) = (packet.reth, room) else { return };
                if self.check_read(work, &reth).is_ok() {
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
                self.responder.acknowledge(newest, UNLIMITED);
            }
        }
    }

    pub(super) fn carry_out(&mut self, work: &mut Work<'_, '_>, packet: &Packet) -> Result<(), Stop> {
        let operation = packet.bth.opcode.operation;
        let place = operation.place();
        self.check_shape(packet, operation, place)?;
        match operation {
            Operation::Send(_) | Operation::SendImmediate(_) | Operation::SendInvalidate(_) => {
                self.take_send(work, packet, place)?;
            }
            Operation::Write(_) | Operation::WriteImmediate(_) => self.take_write(work, packet, place)?,
            Operation::ReadRequest => {
                let reth = packet.reth.ok_or(Refusal::INVALID)?;
                self.check_read(work, &reth)?;
                self.room_for_answer()?;
                self.responder.msn = psn::add(self.responder.msn, 1);
                self.queue_read(packet.bth.psn, reth, false);
                let packets = self.packets_of(reth.len);
                self.responder.expected_psn = psn::add(packet.bth.psn, packets);
                return Ok(());
            }
            Operation::CompareSwap | Operation::FetchAdd => {
                self.take_atomic(work, packet)?;
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
            self.responder.acknowledge(packet.bth.psn, UNLIMITED);
        }
        Ok(())
    }

    fn packets_of(&self, len: u32) -> u32 {
        len.div_ceil(self.mtu() as u32).max(1)
    }

    fn room_for_answer(&self) -> Result<(), Refusal> {
        if self.responder.answers_pending(false) < self.depth(Qpc::LOG_RRA_MAX) { Ok(()) } else { Err(Refusal::INVALID) }
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

    /// Takes the oldest posted receive.
    pub(super) fn take_receive(&mut self, work: &mut Work<'_, '_>) -> Option<Result<Receive, ()>> {
        if let Some(spare) = self.responder.take_spare() {
            return Some(Ok(spare));
        }
        if let Some(srqn) = self.srq {
            return self.take_shared(work, srqn);
        }
        let (posted, _) = self.record(work)?;
        let ring = self.rq.as_ref()?;
        let index = self.responder.consumed;
        let available = posted.wrapping_sub(index);
        if available == 0 {
            return None;
        }
        if u32::from(available) > ring.entries() {
            work.env.audit.report(Finding::RingOverrun { qpn: self.qpn, posted, completed: index });
        }
        let mut bytes = vec![0; ring.stride()];
        let read = ring.read(work.env.memory, u32::from(index), &mut bytes);
        self.responder.consumed = index.wrapping_add(1);
        work.env.trace(Record::RecvWqe { qpn: self.qpn, index, bytes: &bytes });
        Some(match (read, decode_receive(&bytes)) {
            (Ok(()), Ok(list)) => Ok(Receive { index, list }),
            _ => {
                // It can name no buffer, but it can fail.
                self.responder.message = Some(Inbound::Send { receive: Receive { index, list: Vec::new() }, written: 0 });
                Err(())
            }
        })
    }

    fn take_shared(&mut self, work: &mut Work<'_, '_>, srqn: u32) -> Option<Result<Receive, ()>> {
        let taken = work.shared.srqs.take(work.env.memory, srqn)?;
        let index = taken.index;
        if taken.below_limit {
            work.shared.events.push_back(EngineEvent::Srq { event: EventType::SrqRqLimit, srqn });
        }
        let list = taken.segments.and_then(|segments| {
            work.env.trace(Record::RecvWqe { qpn: self.qpn, index, bytes: &segments });
            decode_receive(&segments).ok()
        });
        Some(list.map(|list| Receive { index, list }).ok_or_else(|| {
            self.responder.message = Some(Inbound::Send { receive: Receive { index, list: Vec::new() }, written: 0 });
        }))
    }

    fn need_receive(&mut self, work: &mut Work<'_, '_>) -> Result<Receive, Stop> {
        match self.take_receive(work) {
            None => Err(Stop::NotReady),
            Some(Ok(receive)) => Ok(receive),
            Some(Err(())) => Err(Refusal::of_receive(Syndrome::RemoteOperational, CqeSyndrome::LocalQpOp).into()),
        }
    }

    fn take_send(&mut self, work: &mut Work<'_, '_>, packet: &Packet, place: Place) -> Result<(), Stop> {
        if place.is_start() {
            let receive = self.need_receive(work)?;
            self.responder.message = Some(Inbound::Send { receive, written: 0 });
        }
        let access = self.access(Right::LocalWrite);
        let Some(Inbound::Send { receive, written }) = &mut self.responder.message else {
            return Err(Refusal::INVALID.into());
        };
        let list = receive.list.iter().copied();
        match scatter(work, access, list, *written, &packet.payload) {
            Ok(()) => *written += packet.payload.len() as u64,
            Err(ScatterError::TooLong) => {
                return Err(Refusal::of_receive(Syndrome::InvalidRequest, CqeSyndrome::LocalLength).into());
            }
            Err(ScatterError::Key(_)) => {
                return Err(Refusal::of_receive(Syndrome::RemoteOperational, CqeSyndrome::LocalProt).into());
            }
        }
        if !place.is_end() {
            return Ok(());
        }
        let (index, byte_cnt) = (receive.index, *written as u32);
        if let Some(key) = packet.invalidate
            && let Err(error) = work.shared.keys.invalidate_remotely(key, access.pd, access.qpn)
        {
            work.env.note(|| format!("key {key:#010x} not invalidated: {error:?}"));
            return Err(Refusal::of_receive(Syndrome::RemoteAccess, CqeSyndrome::LocalAccess).into());
        }
        self.responder.message = None;
        let opcode = match (packet.immediate, packet.invalidate) {
            (Some(_), _) => CqeOpcode::RespSendImm,
            (None, Some(_)) => CqeOpcode::RespSendInv,
            (None, None) => CqeOpcode::RespSend,
        };
        self.finish_receive(work, packet, opcode, index, byte_cnt);
        Ok(())
    }

    pub(super) fn finish_receive(
        &mut self,
        work: &mut Work<'_, '_>,
        packet: &Packet,
        opcode: CqeOpcode,
        index: u16,
        byte_cnt: u32,
    ) {
        let done = ReceiveDone {
            opcode,
            index,
            byte_cnt,
            immediate: packet.immediate.or(packet.invalidate).unwrap_or(0),
            solicited: packet.bth.solicited,
            source: self.source(packet),
            error: None,
        };
        self.complete_receive(work, done);
    }

    fn source(&self, packet: &Packet) -> Source {
        Source {
            lid: packet.lrh.slid,
            sl: packet.lrh.sl,
            qpn: packet.deth.map_or(self.get(Qpc::REMOTE_QPN), |deth| deth.source_qpn),
            global: packet.grh.is_some(),
        }
    }

    fn take_write(&mut self, work: &mut Work<'_, '_>, packet: &Packet, place: Place) -> Result<(), Stop> {
        if place.is_start() {
            let reth = packet.reth.ok_or(Refusal::INVALID)?;
            if self.get(Qpc::RWE) == 0 || reth.len > MAX_MESSAGE {
                return Err(Refusal::INVALID.into());
            }
            self.check_key(work, &reth, Right::RemoteWrite)?;
            let total = u64::from(reth.len);
            self.responder.message = Some(Inbound::Write { addr: reth.addr, rkey: reth.rkey, left: total, total });
        }
        let access = self.access(Right::RemoteWrite);
        let Some(Inbound::Write { addr, rkey, left, total }) = &mut self.responder.message else {
            return Err(Refusal::INVALID.into());
        };
        let len = packet.payload.len() as u64;
        if (place.is_end() && len != *left) || (!place.is_end() && len >= *left) {
            return Err(Refusal::INVALID.into());
        }
        let (at, key, total) = (*addr, *rkey, *total);
        // The receive that immediate data needs comes first: without one nothing of this packet happens.
        let receive = match packet.immediate {
            Some(_) => match self.need_receive(work) {
                Err(Stop::NotReady) => {
                    if place == Place::Only {
                        self.responder.message = None;
                    }
                    return Err(Stop::NotReady);
                }
                taken => Some(taken?),
            },
            None => None,
        };
        if len > 0
            && let Err(error) = work.shared.keys.write(work.env.memory, (key, at), access, &packet.payload)
        {
            work.env.note(|| format!("rkey {key:#010x} refused: {error:?}"));
            let Some(receive) = receive else { return Err(Refusal::ACCESS.into()) };
            self.responder.message = Some(Inbound::Send { receive, written: 0 });
            return Err(Refusal::of_receive(Syndrome::RemoteAccess, CqeSyndrome::LocalAccess).into());
        }
        if place.is_end() {
            self.responder.message = None;
        } else if let Some(Inbound::Write { addr, left, .. }) = &mut self.responder.message {
            *addr = addr.wrapping_add(len);
            *left -= len;
        }
        if let Some(receive) = receive {
            self.finish_receive(work, packet, CqeOpcode::RespWrImm, receive.index, total as u32);
        }
        Ok(())
    }

    fn check_key(&self, work: &mut Work<'_, '_>, reth: &Reth, right: Right) -> Result<(), Refusal> {
        // Nothing is touched for a message of no bytes, so its key is not looked at.
        if reth.len == 0 {
            return Ok(());
        }
        let checked = work.shared.keys.check(reth.rkey, reth.addr, u64::from(reth.len), self.access(right));
        checked.map_err(|error| {
            work.env.note(|| format!("rkey {:#010x} refused: {error:?}", reth.rkey));
            Refusal::ACCESS
        })
    }

    fn check_read(&self, work: &mut Work<'_, '_>, reth: &Reth) -> Result<(), Refusal> {
        if self.get(Qpc::RRE) == 0 || reth.len > MAX_MESSAGE {
            return Err(Refusal::INVALID);
        }
        self.check_key(work, reth, Right::RemoteRead)
    }

    fn queue_read(&mut self, psn: u32, source: Reth, again: bool) {
        let (packets, msn) = (self.packets_of(source.len), self.responder.msn);
        self.responder.replies.push_back(Reply::Read { psn, packets, sent: 0, source, msn, again });
    }

    fn take_atomic(&mut self, work: &mut Work<'_, '_>, packet: &Packet) -> Result<(), Refusal> {
        let atomic = packet.atomic.ok_or(Refusal::INVALID)?;
        if self.get(Qpc::RAE) == 0 || !atomic.addr.is_multiple_of(8) {
            return Err(Refusal::INVALID);
        }
        self.room_for_answer()?;
        let swaps = packet.bth.opcode.operation == Operation::CompareSwap;
        let original = self.execute_atomic(work, &atomic, swaps)?;
        let saved = self.depth(Qpc::LOG_RRA_MAX);
        let responder = &mut self.responder;
        responder.msn = psn::add(responder.msn, 1);
        while responder.atomics.len() >= saved {
            responder.atomics.pop_front();
        }
        let (psn, msn) = (packet.bth.psn, responder.msn);
        responder.atomics.push_back((psn, original));
        responder.replies.push_back(Reply::Atomic { psn, original, msn, again: false });
        Ok(())
    }

    fn execute_atomic(&self, work: &mut Work<'_, '_>, atomic: &AtomicEth, swaps: bool) -> Result<u64, Refusal> {
        let access = self.access(Right::RemoteAtomic);
        let place = (atomic.rkey, atomic.addr);
        let mut bytes = [0; 8];
        work.shared.keys.read(work.env.memory, place, access, &mut bytes).map_err(|error| {
            work.env.note(|| format!("rkey {:#010x} refused: {error:?}", atomic.rkey));
            Refusal::ACCESS
        })?;
        let original = work.shared.config.atomic_value(bytes);
        let new = match (swaps, original == atomic.compare) {
            (false, _) => original.wrapping_add(atomic.swap_add),
            (true, true) => atomic.swap_add,
            (true, false) => original,
        };
        if new != original {
            let bytes = work.shared.config.atomic_bytes(new);
            work.shared.keys.write(work.env.memory, place, access, &bytes).map_err(|_| Refusal::ACCESS)?;
        }
        Ok(original)
    }

    /// Sends queued answers. `true` if there are more.
    pub(super) fn respond(&mut self, work: &mut Work<'_, '_>) -> bool {
        for _ in 0..BUDGET {
            if !work.shared.has_room() {
                break;
            }
            let Some(reply) = self.responder.replies.pop_front() else { return false };
            match reply {
                Reply::Acknowledge { psn, syndrome, msn } => self.send_acknowledge(work, psn, syndrome, msn),
                Reply::Atomic { psn, original, msn, .. } => {
                    let mut packet = self.packet(work.shared, Operation::AtomicAcknowledge, psn);
                    packet.aeth = Some(Aeth { syndrome: UNLIMITED, msn });
                    packet.atomic_ack = Some(original);
                    work.transmit(&packet);
                }
                Reply::Read { psn, packets, sent, source, msn, again } => {
                    if !self.send_read_response(work, psn, (sent, packets), &source, msn) {
                        let at = psn::add(psn, sent);
                        let event = Some(EventType::WqAccessError);
                        self.die(work, &Fatal { psn: at, syndrome: Syndrome::RemoteAccess, receive: None, event });
                        return false;
                    }
                    if sent + 1 < packets {
                        self.responder.replies.push_front(Reply::Read { psn, packets, sent: sent + 1, source, msn, again });
                    }
                }
                Reply::Fatal(fatal) => {
                    self.die(work, &fatal);
                    return false;
                }
            }
        }
        !self.responder.replies.is_empty()
    }

    fn send_acknowledge(&self, work: &mut Work<'_, '_>, psn: u32, syndrome: Syndrome, msn: u32) {
        let mut packet = self.packet(work.shared, Operation::Acknowledge, psn);
        packet.aeth = Some(Aeth { syndrome, msn });
        work.transmit(&packet);
    }

    fn send_read_response(
        &self,
        work: &mut Work<'_, '_>,
        psn: u32,
        (sent, packets): (u32, u32),
        source: &Reth,
        msn: u32,
    ) -> bool {
        let place = Place::of(sent, packets);
        let offset = u64::from(sent) * self.mtu() as u64;
        let len = u64::from(source.len).saturating_sub(offset).min(self.mtu() as u64) as usize;
        let mut packet = self.packet(work.shared, Operation::ReadResponse(place), psn::add(psn, sent));
        packet.aeth = (place != Place::Middle).then_some(Aeth { syndrome: UNLIMITED, msn });
        packet.payload = vec![0; len];
        let addr = source.addr.wrapping_add(offset);
        let access = self.access(Right::RemoteRead);
        let read = work.shared.keys.read(work.env.memory, (source.rkey, addr), access, &mut packet.payload);
        if read.is_ok() {
            work.transmit(&packet);
        }
        read.is_ok()
    }

    /// Sends the last answer and moves to the error state.
    fn die(&mut self, work: &mut Work<'_, '_>, fatal: &Fatal) {
        let msn = self.responder.msn;
        self.send_acknowledge(work, fatal.psn, fatal.syndrome, msn);
        if let Some((index, syndrome)) = fatal.receive {
            self.fail_receive(work, index, syndrome);
        }
        if self.state != QpcState::Err {
            self.fail(work, fatal.event);
        }
    }

    /// Completes a receive with an error.
    pub(super) fn fail_receive(&mut self, work: &mut Work<'_, '_>, index: u16, syndrome: CqeSyndrome) {
        let done = ReceiveDone {
            opcode: CqeOpcode::RespErr,
            index,
            byte_cnt: 0,
            immediate: 0,
            solicited: false,
            source: Source::default(),
            error: Some(syndrome),
        };
        self.complete_receive(work, done);
    }

    /// The index of the receive that a half-arrived message or an unsent fatal answer holds.
    pub(super) fn held_receive(&self) -> Option<u16> {
        let fatal = self.responder.replies.iter().find_map(|reply| match reply {
            Reply::Fatal(fatal) => fatal.receive.map(|(index, _)| index),
            _ => None,
        });
        match &self.responder.message {
            Some(Inbound::Send { receive, .. }) => Some(receive.index),
            _ => fatal,
        }
    }
}

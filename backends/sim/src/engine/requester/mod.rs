//! The requester of a queue pair: WQEs fetched, cut into packets, sent within a window, sent again when lost.

pub(super) mod build;
pub(super) mod fetch;
pub(super) mod response;
pub(super) mod retry;

use std::collections::VecDeque;
use std::time::Duration;

use bareverbs::Instant;
use bareverbs_mlx5_spec::{CqeSyndrome, EventType, Qpc, QpcState, fm};

use crate::audit::Finding;
use crate::engine::config::EngineEvent;
use crate::engine::memory::umr::{self, UmrIssuer};
use crate::engine::psn;
use crate::engine::qp::{Qp, SendDone, Service};
use crate::engine::work::{QpResources, Work};
use crate::registry::Resource;
use crate::wqe::{DataSegment, SendBody, SendWqe};

/// Packets sent and not acknowledged, at most.
pub(in crate::engine) const WINDOW: u32 = 128;
/// An acknowledgement is asked for at least once in this many packets.
const ACK_EVERY: u32 = 32;
/// Requests that are looked at in about the time of an access to memory.
const REQUESTS_A_STEP: u64 = 32;
/// Packets that one queue pair sends in one go.
const BUDGET: u32 = 64;
/// Requests under way, at most. The window is reached before, but for requests that send nothing.
pub(in crate::engine) const MAX_UNDER_WAY: usize = 1024;
/// Requests under way for which there is always room.
const KEPT_ROOM: usize = 128;
/// Bytes of this process that a request takes at most: an element of 64 blocks of 16 bytes, decoded.
pub(in crate::engine) const MAX_OP_MEMORY: u64 = 8192;

/// A request between its fetch and its completion.
#[derive(Debug)]
pub(in crate::engine) struct SendOp {
    /// The element, or what its completion needs if it could not be read.
    pub(in crate::engine) wqe: Option<SendWqe>,
    pub(in crate::engine) index: u16,
    pub(in crate::engine) send_opcode: u8,
    pub(in crate::engine) first_psn: u32,
    /// Sequence numbers that it takes: its packets, or those of the response to a read.
    pub(in crate::engine) psns: u32,
    pub(in crate::engine) len: u64,
    /// Packets of the response that came.
    pub(in crate::engine) received: u32,
    /// It cannot go on; reported when it is the oldest.
    pub(in crate::engine) failed: Option<CqeSyndrome>,
    /// Bytes of this process that it takes.
    pub(in crate::engine) memory: u64,
}

/// How a request is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Kind {
    /// Nothing to do.
    Nop,
    /// Changes a key here.
    Umr,
    /// A send or a write: bytes to the peer.
    SendOrWrite,
    /// A read: bytes from the peer.
    Read,
    /// An atomic: eight bytes in each direction.
    Atomic,
}

impl SendOp {
    pub(in crate::engine) fn kind(&self) -> Kind {
        match self.wqe.as_ref().map(|wqe| &wqe.body) {
            Some(SendBody::Send { .. } | SendBody::Write { .. }) => Kind::SendOrWrite,
            Some(SendBody::Read { .. }) => Kind::Read,
            Some(SendBody::Atomic { .. }) => Kind::Atomic,
            Some(SendBody::Umr(_)) => Kind::Umr,
            Some(SendBody::Nop) | None => Kind::Nop,
        }
    }

    /// Packets that ask for it.
    pub(in crate::engine) fn packets(&self) -> u32 {
        match self.kind() {
            Kind::SendOrWrite => self.psns,
            Kind::Read | Kind::Atomic => 1,
            Kind::Nop | Kind::Umr => 0,
        }
    }

    fn expects_response(&self) -> bool {
        matches!(self.kind(), Kind::Read | Kind::Atomic)
    }

    pub(in crate::engine) fn end_psn(&self) -> u32 {
        psn::add(self.first_psn, self.psns)
    }

    /// Data segments of its message.
    pub(in crate::engine) fn data(&self) -> &[DataSegment] {
        match self.wqe.as_ref().map(|wqe| &wqe.body) {
            Some(
                SendBody::Send { data, .. }
                | SendBody::Write { data, .. }
                | SendBody::Read { data, .. }
                | SendBody::Atomic { data, .. },
            ) => data,
            _ => &[],
        }
    }

    pub(in crate::engine) fn done(&self, error: Option<CqeSyndrome>) -> SendDone {
        let byte_cnt = if error.is_some() { 0 } else { self.len as u32 };
        SendDone { index: self.index, send_opcode: self.send_opcode, byte_cnt, error }
    }
}

/// State of the requester.
#[derive(Debug, Default)]
pub(in crate::engine) struct Requester {
    /// Blocks that the host announced, fetched, and retired.
    pub(in crate::engine) posted: u16,
    pub(in crate::engine) fetched: u16,
    pub(in crate::engine) retired: u16,
    /// Requests under way, oldest first.
    pub(in crate::engine) ops: VecDeque<SendOp>,
    /// The next packet: request among `ops`, packet of it.
    cursor: (usize, u32),
    /// Number of the next new packet, and of the oldest unacknowledged one.
    pub(in crate::engine) next_psn: u32,
    pub(in crate::engine) unacked: u32,
    /// The peer has everything before this number, and the turn was over before all of that completed.
    pub(in crate::engine) acknowledged: Option<u32>,
    /// After the greatest number that was ever sent.
    pub(in crate::engine) sent_end: u32,
    /// Where the window starts: the oldest unacknowledged packet, or the one after the newest read.
    window_start: u32,
    since_ack_req: u32,
    pub(in crate::engine) retries_left: u32,
    pub(in crate::engine) rnr_left: u32,
    /// When an acknowledgement must have come.
    pub(in crate::engine) ack_due: Option<Instant>,
    /// The timer ran out unwatched and was restarted; no retry or progress since.
    pub(in crate::engine) timer_restarted: bool,
    /// When the peer may have a receive.
    pub(in crate::engine) rnr_until: Option<Instant>,
    /// Packets are being sent again because one was found missing.
    pub(in crate::engine) retransmitting: bool,
    /// Report an event when nothing is under way (SQD).
    pub(in crate::engine) notify_drained: bool,
    /// Bytes of this process that the requests under way take.
    pub(in crate::engine) memory: u64,
}

impl Requester {
    /// Begins at a sequence number.
    pub(in crate::engine) fn start(&mut self, psn: u32, retries: u32, rnr: u32) {
        self.next_psn = psn;
        self.unacked = psn;
        self.sent_end = psn;
        self.window_start = psn;
        self.retries_left = retries;
        self.rnr_left = rnr;
    }

    pub(in crate::engine) fn next_psn(&self) -> u32 {
        self.next_psn
    }

    /// Whether the packet at `psn` was sent and is not acknowledged.
    pub(in crate::engine) fn is_outstanding(&self, psn: u32) -> bool {
        psn::ahead(psn, self.unacked) >= 0 && psn::ahead(psn, self.sent_end) < 0
    }

    /// Whether the oldest request has been passed by the cursor.
    pub(in crate::engine) fn head_is_sent(&self) -> bool {
        self.cursor.0 > 0
    }

    /// Forgets the oldest request, which is complete.
    pub(in crate::engine) fn pop(&mut self) -> Option<SendOp> {
        let op = self.ops.pop_front()?;
        self.memory = self.memory.saturating_sub(op.memory);
        if self.ops.is_empty() && self.ops.capacity() > KEPT_ROOM {
            // Room that no request is charged for.
            self.ops = VecDeque::new();
        }
        self.cursor = if self.cursor.0 == 0 { (0, 0) } else { (self.cursor.0 - 1, self.cursor.1) };
        self.advance_to(op.end_psn());
        let size = op.wqe.as_ref().map_or(1, SendWqe::blocks);
        self.retired = op.index.wrapping_add(size);
        Some(op)
    }

    /// Everything before `psn` is acknowledged.
    pub(in crate::engine) fn advance_to(&mut self, psn: u32) {
        if psn::ahead(psn, self.unacked) > 0 {
            self.unacked = psn;
        }
        if psn::ahead(self.unacked, self.window_start) > 0 {
            self.window_start = self.unacked;
        }
        // After a rewind an acknowledgement may overtake the cursor.
        if let (0, Some(head)) = (self.cursor.0, self.ops.front())
            && head.kind() == Kind::SendOrWrite
        {
            let acked = psn::ahead(self.unacked, head.first_psn).max(0).cast_unsigned();
            self.cursor.1 = self.cursor.1.max(acked.min(head.psns));
        }
    }

    /// Something new was acknowledged: counters and timer start afresh.
    pub(in crate::engine) fn progress(&mut self, retries: u32, rnr: u32, timeout: Option<Duration>, now: Instant) {
        self.retries_left = retries;
        self.rnr_left = rnr;
        self.retransmitting = false;
        self.timer_restarted = false;
        let waiting = self.unacked != self.sent_end;
        self.ack_due = if waiting { timeout.map(|timeout| now.after(timeout)) } else { None };
    }

    /// Nothing is under way: what comes next has new numbers.
    pub(in crate::engine) fn forget_sent(&mut self) {
        self.cursor = (0, 0);
        self.acknowledged = None;
        self.unacked = self.next_psn;
        self.window_start = self.next_psn;
        self.sent_end = self.next_psn;
    }

    /// Goes back to the oldest unacknowledged packet.
    pub(in crate::engine) fn rewind(&mut self) {
        let acked = match self.ops.front() {
            Some(head) if head.kind() == Kind::SendOrWrite => psn::ahead(self.unacked, head.first_psn).max(0).cast_unsigned(),
            _ => 0,
        };
        self.cursor = (0, acked);
        self.window_start = self.unacked;
        self.since_ack_req = 0;
    }
}

impl Qp {
    /// Sends what may be sent. `true` if there is more that could go on now.
    pub(in crate::engine) fn send(&mut self, work: &mut Work<'_, '_>) -> bool {
        self.resume_acknowledge(work);
        // What waited only for those before it may be the oldest now.
        self.retire_local(work);
        for _ in 0..BUDGET {
            if work.env.meter.is_spent() {
                return true;
            }
            work.env.meter.count(1);
            if !self.can_send() {
                return false;
            }
            if self.requester.rnr_until.is_some() {
                return false;
            }
            if !work.shared.has_room() {
                return true;
            }
            if self.requester.cursor.0 >= self.requester.ops.len() && !self.fetch(work) {
                self.report_drained(work);
                return false;
            }
            if !self.send_one(work) {
                return false;
            }
        }
        true
    }

    fn report_drained(&mut self, work: &mut Work<'_, '_>) {
        if self.state == QpcState::Sqd && self.requester.notify_drained && self.requester.ops.is_empty() {
            self.requester.notify_drained = false;
            work.shared.events.push_back(EngineEvent::Qp { event: EventType::SqDrained, qpn: self.qpn });
        }
    }

    /// Sends the packet under the cursor, or does the local work there. `false` if it must wait.
    fn send_one(&mut self, work: &mut Work<'_, '_>) -> bool {
        let (at, packet_index) = self.requester.cursor;
        let Some(op) = self.requester.ops.get(at) else { return false };
        if let Some(syndrome) = op.failed {
            // Requests before it complete first.
            if at == 0 {
                self.fail_head(work, syndrome);
            }
            return false;
        }
        // Those before it are counted, once and again.
        if op.expects_response() || op.wqe.as_ref().is_some_and(|wqe| wqe.fence != 0) {
            work.env.meter.count(at as u64 / REQUESTS_A_STEP);
        }
        if op.wqe.as_ref().is_some_and(|wqe| self.is_fenced(at, wqe)) {
            return false;
        }
        match op.kind() {
            Kind::Nop => {
                self.requester.cursor = (at + 1, 0);
                self.retire_local(work);
                true
            }
            Kind::Umr => at == 0 && self.execute_umr(work),
            Kind::SendOrWrite | Kind::Read | Kind::Atomic => {
                if packet_index >= op.packets() {
                    self.requester.cursor = (at + 1, 0);
                    return true;
                }
                self.may_send(at, packet_index) && self.send_packet(work, at, packet_index)
            }
        }
    }

    /// Whether the request waits for reads and atomics before it.
    fn is_fenced(&self, at: usize, wqe: &SendWqe) -> bool {
        // A small fence waits for key changes, which nothing passes anyway.
        u32::from(wqe.fence) > fm::INITIATOR_SMALL_FENCE && self.responses_before(at) > 0
    }

    fn responses_before(&self, at: usize) -> usize {
        self.requester.ops.iter().take(at).filter(|op| op.expects_response()).count()
    }

    fn may_send(&self, at: usize, packet_index: u32) -> bool {
        let requester = &self.requester;
        let Some(op) = requester.ops.get(at) else { return false };
        if op.expects_response() && self.responses_before(at) >= self.depth(Qpc::LOG_SRA_MAX) {
            return false;
        }
        let psn = psn::add(op.first_psn, packet_index);
        // Half of all numbers may be under way, or old and new could not be distinguished.
        psn::distance(op.end_psn(), requester.unacked) < psn::HALF
            && (!self.service.is_reliable() || psn::ahead(psn, requester.window_start) < WINDOW.cast_signed())
    }

    /// Executes a key change, which is the oldest request: it waits for all before it. The capability `umr_fence` is 0 here,
    /// for which Linux asks for strong ordering of every key change (`mlx5_get_umr_fence`).
    fn execute_umr(&mut self, work: &mut Work<'_, '_>) -> bool {
        let issuer = UmrIssuer {
            pd: self.pd(),
            qpn: self.qpn,
            privileged: self.service == Service::RegUmr,
            registers: self.get(Qpc::FRE) != 0 && work.shared.registry.is_kernels(Resource::qp(self.qpn)),
        };
        let changed = match self.requester.ops.front().and_then(|op| op.wqe.as_ref()) {
            Some(SendWqe { body: SendBody::Umr(umr), immediate, .. }) => {
                if work.shared.keys.was_destroyed(*immediate) {
                    work.env.audit.report(Finding::KeyAfterDestroy { key: *immediate });
                }
                let QpResources { keys, registry, .. } = &mut *work.shared;
                umr::apply(keys, registry, work.env, issuer, *immediate, umr)
            }
            _ => Ok(0),
        };
        match changed {
            Ok(entries) => {
                work.env.meter.count_entries(entries);
                self.retire(work);
            }
            Err(syndrome) => self.fail_head(work, syndrome),
        }
        changed.is_ok()
    }

    /// Completes the oldest request successfully.
    pub(in crate::engine) fn retire(&mut self, work: &mut Work<'_, '_>) {
        let Some(op) = self.requester.pop() else { return };
        if op.wqe.as_ref().is_some_and(SendWqe::is_signaled) {
            self.complete_send(work, op.done(None));
        }
    }

    /// Completes requests at the head that wait for nothing.
    pub(in crate::engine) fn retire_local(&mut self, work: &mut Work<'_, '_>) {
        while self.can_send()
            && !work.env.meter.is_spent()
            && self.requester.head_is_sent()
            && self.requester.ops.front().is_some_and(|op| {
                op.failed.is_none()
                    && (op.kind() == Kind::Nop || (op.kind() == Kind::SendOrWrite && !self.service.is_reliable()))
            })
        {
            work.env.meter.count(1);
            self.retire(work);
        }
    }

    /// Completes the oldest request with an error; the queue pair is in error from then on, or its send queue alone if the
    /// peer does not acknowledge (InfiniBand Architecture 10.3.1.6).
    pub(in crate::engine) fn fail_head(&mut self, work: &mut Work<'_, '_>, syndrome: CqeSyndrome) {
        if let Some(op) = self.requester.pop() {
            self.complete_send(work, op.done(Some(syndrome)));
        }
        if self.state == QpcState::Err {
            return;
        }
        match self.service {
            Service::Uc | Service::Ud => self.enter(QpcState::SqEr),
            Service::Rc | Service::Xrc | Service::RegUmr => self.fail(work, None),
        }
    }

    fn send_packet(&mut self, work: &mut Work<'_, '_>, at: usize, packet_index: u32) -> bool {
        let Some(built) = self.build(work, at, packet_index) else { return false };
        let mut packet = match built {
            Ok(packet) => packet,
            Err(syndrome) => {
                if let Some(op) = self.requester.ops.get_mut(at) {
                    op.failed = Some(syndrome);
                }
                // Reported on the next turn, if nothing is before it.
                return true;
            }
        };
        let Some(op) = self.requester.ops.get(at) else { return false };
        let last = packet_index + 1 >= op.packets();
        let end = if last { op.end_psn() } else { psn::add(packet.bth.psn, 1) };
        let answered = op.expects_response();
        let requester = &mut self.requester;
        requester.since_ack_req += 1;
        if self.service.is_reliable() && !answered && (last || requester.since_ack_req >= ACK_EVERY) {
            packet.bth.ack_req = true;
            requester.since_ack_req = 0;
        }
        if psn::ahead(end, requester.sent_end) > 0 {
            requester.sent_end = end;
        }
        if answered && psn::ahead(end, requester.window_start) > 0 {
            // A read takes many numbers and one packet: the window counts on from its end.
            requester.window_start = end;
        }
        requester.cursor = if last { (at + 1, 0) } else { (at, packet_index + 1) };
        if !self.service.is_reliable() {
            self.requester.unacked = end;
            self.requester.window_start = end;
        } else if self.requester.ack_due.is_none() {
            self.requester.ack_due = self.timeout().map(|timeout| work.env.now.after(timeout));
        }
        work.transmit(&packet);
        self.retire_local(work);
        true
    }
}

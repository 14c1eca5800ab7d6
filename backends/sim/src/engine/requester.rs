//! The sending half of a queue pair: WQEs fetched, cut into packets, sent within a window, sent again when lost.

use std::collections::VecDeque;
use std::time::Duration;

use bareverbs::Instant;
use bareverbs_mlx5_spec::{Ads, CqeSyndrome, EventType, Qpc, QpcState, WQEBB, WqeOpcode, fm};

use super::key::Right;
use super::message::gather;
use super::psn;
use super::qp::{Qp, SendDone, Service};
use super::umr::{self, Changer};
use super::{EngineEvent, Work};
use crate::audit::Finding;
use crate::packet::{AtomicEth, Deth, Grh, Operation, Packet, Place, Reth};
use crate::trace::Record;
use crate::wqe::{AtomicOperation, DataSegment, SendBody, SendWqe, announced_len, blocks};

/// Packets sent and not acknowledged, at most.
pub(super) const WINDOW: u32 = 128;
/// An acknowledgement is asked for at least once in this many packets.
const ACK_EVERY: u32 = 32;
/// Packets that one queue pair sends in one go.
const BUDGET: u32 = 64;
/// Longest message of any path (InfiniBand Architecture 9.3.3).
const MAX_MESSAGE: u64 = 1 << 31;
/// Unit of the local acknowledge timeout.
const TIMEOUT_UNIT: Duration = Duration::from_nanos(4096);

/// A request between its fetch and its completion.
#[derive(Debug)]
pub(super) struct SendOp {
    /// The element, or what its completion needs if it could not be read.
    pub(super) wqe: Option<SendWqe>,
    pub(super) index: u16,
    pub(super) send_opcode: u8,
    pub(super) first_psn: u32,
    /// Sequence numbers that it takes: its packets, or those of the answer to a read.
    pub(super) psns: u32,
    pub(super) len: u64,
    /// Packets of the answer that came.
    pub(super) received: u32,
    /// It cannot go on; told when it is the oldest.
    pub(super) failed: Option<CqeSyndrome>,
}

/// How a request is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Nothing to do.
    Nop,
    /// Changes a key here.
    Local,
    /// Bytes to the peer, acknowledged.
    Push,
    /// Bytes from the peer.
    Read,
    /// Eight bytes there and back.
    Atomic,
}

impl SendOp {
    pub(super) fn kind(&self) -> Kind {
        match self.wqe.as_ref().map(|wqe| &wqe.body) {
            Some(SendBody::Send { .. } | SendBody::Write { .. }) => Kind::Push,
            Some(SendBody::Read { .. }) => Kind::Read,
            Some(SendBody::Atomic { .. }) => Kind::Atomic,
            Some(SendBody::Umr(_)) => Kind::Local,
            Some(SendBody::Nop) | None => Kind::Nop,
        }
    }

    /// Packets that ask for it.
    fn packets(&self) -> u32 {
        match self.kind() {
            Kind::Push => self.psns,
            Kind::Read | Kind::Atomic => 1,
            Kind::Nop | Kind::Local => 0,
        }
    }

    fn waits_for_answer(&self) -> bool {
        matches!(self.kind(), Kind::Read | Kind::Atomic)
    }

    pub(super) fn end_psn(&self) -> u32 {
        psn::add(self.first_psn, self.psns)
    }

    /// Where the pieces of its message are.
    pub(super) fn data(&self) -> &[DataSegment] {
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

    pub(super) fn done(&self, error: Option<CqeSyndrome>) -> SendDone {
        let byte_cnt = if error.is_some() { 0 } else { self.len as u32 };
        SendDone { index: self.index, send_opcode: self.send_opcode, byte_cnt, error }
    }
}

/// State of the sending half.
#[derive(Debug, Default)]
pub(super) struct Requester {
    /// Blocks that the host announced, fetched, and retired.
    pub(super) posted: u16,
    pub(super) fetched: u16,
    pub(super) retired: u16,
    /// Requests under way, oldest first.
    pub(super) ops: VecDeque<SendOp>,
    /// The next packet: request among `ops`, packet of it.
    cursor: (usize, u32),
    /// Number of the next new packet, and of the oldest unacknowledged one.
    next_psn: u32,
    pub(super) unacked: u32,
    /// After the greatest number that was ever sent.
    pub(super) sent_end: u32,
    /// Where the window starts: the oldest unacknowledged packet, or the one after the newest read.
    window_start: u32,
    since_ack_req: u32,
    retries_left: u32,
    rnr_left: u32,
    /// When an acknowledgement must have come.
    pub(super) ack_due: Option<Instant>,
    /// When the peer may have a receive.
    pub(super) rnr_until: Option<Instant>,
    /// Packets are being sent again already because one was found missing.
    pub(super) repeating: bool,
    /// The host wants to know when nothing is under way (SQD).
    pub(super) tell_when_drained: bool,
}

impl Requester {
    /// Begins at a sequence number.
    pub(super) fn start(&mut self, psn: u32, retries: u32, rnr: u32) {
        self.next_psn = psn;
        self.unacked = psn;
        self.sent_end = psn;
        self.window_start = psn;
        self.retries_left = retries;
        self.rnr_left = rnr;
    }

    pub(super) fn next_psn(&self) -> u32 {
        self.next_psn
    }

    /// Whether the packet at `psn` was sent and is not acknowledged.
    pub(super) fn is_outstanding(&self, psn: u32) -> bool {
        psn::ahead(psn, self.unacked) >= 0 && psn::ahead(psn, self.sent_end) < 0
    }

    /// Whether the oldest request has been passed by the cursor.
    pub(super) fn head_is_sent(&self) -> bool {
        self.cursor.0 > 0
    }

    /// Forgets the oldest request, which is complete.
    pub(super) fn pop(&mut self) -> Option<SendOp> {
        let op = self.ops.pop_front()?;
        self.cursor = if self.cursor.0 == 0 { (0, 0) } else { (self.cursor.0 - 1, self.cursor.1) };
        self.advance_to(op.end_psn());
        let size = op.wqe.as_ref().map_or(1, SendWqe::blocks);
        self.retired = op.index.wrapping_add(size);
        Some(op)
    }

    /// Everything before `psn` is acknowledged.
    pub(super) fn advance_to(&mut self, psn: u32) {
        if psn::ahead(psn, self.unacked) > 0 {
            self.unacked = psn;
        }
        if psn::ahead(self.unacked, self.window_start) > 0 {
            self.window_start = self.unacked;
        }
        // After a rewind an acknowledgement may overtake the cursor.
        if let (0, Some(head)) = (self.cursor.0, self.ops.front())
            && head.kind() == Kind::Push
        {
            let acked = psn::ahead(self.unacked, head.first_psn).max(0).cast_unsigned();
            self.cursor.1 = self.cursor.1.max(acked.min(head.psns));
        }
    }

    /// Something new was acknowledged: counters and timer start afresh.
    pub(super) fn progress(&mut self, retries: u32, rnr: u32, timeout: Option<Duration>, now: Instant) {
        self.retries_left = retries;
        self.rnr_left = rnr;
        self.repeating = false;
        let waiting = self.unacked != self.sent_end;
        self.ack_due = if waiting { timeout.map(|timeout| now.after(timeout)) } else { None };
    }

    /// Goes back to the oldest unacknowledged packet.
    fn rewind(&mut self) {
        let acked = match self.ops.front() {
            Some(head) if head.kind() == Kind::Push => psn::ahead(self.unacked, head.first_psn).max(0).cast_unsigned(),
            _ => 0,
        };
        self.cursor = (0, acked);
        self.window_start = self.unacked;
        self.since_ack_req = 0;
    }
}

impl Qp {
    /// The local acknowledge timeout, if there is one.
    pub(super) fn timeout(&self) -> Option<Duration> {
        match self.path(Ads::ACK_TIMEOUT) {
            0 => None,
            exponent => Some(TIMEOUT_UNIT * (1 << exponent.min(31))),
        }
    }

    pub(super) fn note_progress(&mut self, now: Instant) {
        let (retries, rnr, timeout) = (self.get(Qpc::RETRY_COUNT), self.get(Qpc::RNR_RETRY), self.timeout());
        self.requester.progress(retries, rnr, timeout, now);
    }

    /// Sends what may be sent. `true` if there is more that could go on now.
    pub(super) fn send(&mut self, work: &mut Work<'_, '_>) -> bool {
        // What waited only for those before it may be the oldest now.
        self.retire_local(work);
        for _ in 0..BUDGET {
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
                self.tell_if_drained(work);
                return false;
            }
            if !self.send_one(work) {
                return false;
            }
        }
        true
    }

    fn tell_if_drained(&mut self, work: &mut Work<'_, '_>) {
        if self.state == QpcState::Sqd && self.requester.tell_when_drained && self.requester.ops.is_empty() {
            self.requester.tell_when_drained = false;
            work.shared.events.push_back(EngineEvent::Qp { event: EventType::SqDrained, qpn: self.qpn });
        }
    }

    /// Takes the next element from the ring. `false` if there is none to take.
    fn fetch(&mut self, work: &mut Work<'_, '_>) -> bool {
        if self.state != QpcState::Rts || self.requester.fetched == self.requester.posted {
            return false;
        }
        let index = self.requester.fetched;
        let Some((bytes, size)) = self.read_wqe(work, index) else {
            self.fail(work, Some(EventType::WqCatasError));
            return false;
        };
        work.env.trace(Record::SendWqe { qpn: self.qpn, index, bytes: &bytes });
        let mut op = SendOp {
            wqe: None,
            index,
            send_opcode: bytes.get(3).copied().unwrap_or(0),
            first_psn: self.requester.next_psn,
            psns: 0,
            len: 0,
            received: 0,
            failed: None,
        };
        match SendWqe::decode(&bytes, self.service.wqe()) {
            Err(error) => {
                work.env.note(|| format!("WQE {index} of QP {:#x}: {error}", self.qpn));
                op.failed = Some(error.syndrome());
            }
            Ok(wqe) if wqe.index != index || wqe.qpn != self.qpn => {
                let finding = Finding::WqeMismatch { qpn: self.qpn, index, wqe_index: wqe.index, wqe_qpn: wqe.qpn };
                work.env.audit.report(finding);
                op.failed = Some(CqeSyndrome::LocalQpOp);
            }
            Ok(wqe) => {
                op.len = wqe.message_len();
                op.failed = self.refuse(&wqe, op.len, work);
                op.wqe = Some(wqe);
                op.psns = match op.kind() {
                    Kind::Nop | Kind::Local => 0,
                    Kind::Atomic => 1,
                    Kind::Push | Kind::Read => (op.len.div_ceil(self.mtu() as u64) as u32).max(1),
                };
            }
        }
        if op.failed.is_some() {
            op.psns = 0;
        }
        self.requester.fetched = index.wrapping_add(size);
        self.requester.next_psn = psn::add(self.requester.next_psn, op.psns);
        self.requester.ops.push_back(op);
        true
    }

    /// Bytes of the element at `index` and its size in blocks, cut to what is posted.
    pub(super) fn read_wqe(&self, work: &Work<'_, '_>, index: u16) -> Option<(Vec<u8>, u16)> {
        let ring = self.sq.as_ref()?;
        let mut bytes = vec![0; WQEBB];
        ring.read(work.env.memory, u32::from(index), &mut bytes).ok()?;
        let len = announced_len(&bytes).unwrap_or(0);
        let size = blocks(bytes.get(7).copied().unwrap_or(0) & 0x3f);
        let posted = self.requester.posted.wrapping_sub(index);
        let size = size.min(posted).min(u16::try_from(ring.entries()).unwrap_or(u16::MAX)).max(1);
        if size > 1 {
            bytes.resize(usize::from(size) * WQEBB, 0);
            ring.read(work.env.memory, u32::from(index), &mut bytes).ok()?;
        }
        bytes.truncate(len.clamp(16, usize::from(size) * WQEBB));
        Some((bytes, size))
    }

    /// What is wrong with a request before anything of it is done.
    fn refuse(&self, wqe: &SendWqe, len: u64, work: &Work<'_, '_>) -> Option<CqeSyndrome> {
        let reliable_only = matches!(wqe.body, SendBody::Read { .. } | SendBody::Atomic { .. });
        let sends = !matches!(wqe.body, SendBody::Nop | SendBody::Umr(_));
        if (reliable_only && self.service != Service::Rc) || (sends && self.service == Service::KeyChanges) {
            return Some(CqeSyndrome::LocalQpOp);
        }
        let most = match self.service {
            Service::Ud => self.mtu() as u64,
            _ => MAX_MESSAGE.min(1 << work.shared.config.log_max_msg.min(31)),
        };
        let log_msg_max = self.get(Qpc::LOG_MSG_MAX);
        let most = if log_msg_max == 0 { most } else { most.min(1 << log_msg_max) };
        if sends && len > most {
            return Some(CqeSyndrome::LocalLength);
        }
        if let SendBody::Atomic { data, .. } = &wqe.body
            && data.iter().map(DataSegment::len).sum::<u64>() < 8
        {
            return Some(CqeSyndrome::LocalLength);
        }
        None
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
        if op.wqe.as_ref().is_some_and(|wqe| self.is_fenced(at, wqe)) {
            return false;
        }
        match op.kind() {
            Kind::Nop => {
                self.requester.cursor = (at + 1, 0);
                self.retire_local(work);
                true
            }
            Kind::Local => at == 0 && self.change_key(work),
            Kind::Push | Kind::Read | Kind::Atomic => {
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
        u32::from(wqe.fence) > fm::INITIATOR_SMALL_FENCE && self.answers_before(at) > 0
    }

    fn answers_before(&self, at: usize) -> usize {
        self.requester.ops.iter().take(at).filter(|op| op.waits_for_answer()).count()
    }

    fn may_send(&self, at: usize, packet_index: u32) -> bool {
        let requester = &self.requester;
        let Some(op) = requester.ops.get(at) else { return false };
        if op.waits_for_answer() && self.answers_before(at) >= self.depth(Qpc::LOG_SRA_MAX) {
            return false;
        }
        let psn = psn::add(op.first_psn, packet_index);
        // Half of all numbers may be under way, or old and new could not be told apart.
        psn::distance(op.end_psn(), requester.unacked) < psn::HALF
            && (!self.service.is_reliable() || psn::ahead(psn, requester.window_start) < WINDOW.cast_signed())
    }

    /// Executes a key change, which is the oldest request.
    fn change_key(&mut self, work: &mut Work<'_, '_>) -> bool {
        let changer = Changer { pd: self.pd(), qpn: self.qpn, privileged: self.service == Service::KeyChanges };
        let changed = match self.requester.ops.front().and_then(|op| op.wqe.as_ref()) {
            Some(SendWqe { body: SendBody::Umr(umr), immediate, .. }) => {
                umr::apply(&mut work.shared.keys, work.env.memory, changer, *immediate, umr)
            }
            _ => Ok(()),
        };
        match changed {
            Ok(()) => self.retire(work),
            Err(syndrome) => self.fail_head(work, syndrome),
        }
        changed.is_ok()
    }

    /// Completes the oldest request successfully.
    pub(super) fn retire(&mut self, work: &mut Work<'_, '_>) {
        let Some(op) = self.requester.pop() else { return };
        if op.wqe.as_ref().is_some_and(SendWqe::is_signaled) {
            self.complete_send(work, op.done(None));
        }
    }

    /// Completes requests at the head that wait for nothing.
    pub(super) fn retire_local(&mut self, work: &mut Work<'_, '_>) {
        while self.can_send()
            && self.requester.head_is_sent()
            && self.requester.ops.front().is_some_and(|op| {
                op.failed.is_none() && (op.kind() == Kind::Nop || (op.kind() == Kind::Push && !self.service.is_reliable()))
            })
        {
            self.retire(work);
        }
    }

    /// Completes the oldest request with an error; the queue pair is in error from then on.
    pub(super) fn fail_head(&mut self, work: &mut Work<'_, '_>, syndrome: CqeSyndrome) {
        if let Some(op) = self.requester.pop() {
            self.complete_send(work, op.done(Some(syndrome)));
        }
        if self.state != QpcState::Err {
            self.fail(work, None);
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
                // Told on the next turn, if nothing is before it.
                return true;
            }
        };
        let Some(op) = self.requester.ops.get(at) else { return false };
        let last = packet_index + 1 >= op.packets();
        let end = if last { op.end_psn() } else { psn::add(packet.bth.psn, 1) };
        let answered = op.waits_for_answer();
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

    /// Packet `packet_index` of request `at`: outer `None` if there is no such request, inner error if it cannot be made.
    fn build(&self, work: &mut Work<'_, '_>, at: usize, packet_index: u32) -> Option<Result<Packet, CqeSyndrome>> {
        let op = self.requester.ops.get(at)?;
        let wqe = op.wqe.as_ref()?;
        let mtu = self.mtu() as u64;
        let place = Place::of(packet_index, op.packets());
        let (operation, immediate, invalidate) = operation(wqe, place);
        let mut packet = self.packet(work.shared, operation, psn::add(op.first_psn, packet_index));
        packet.immediate = immediate;
        packet.invalidate = invalidate;
        packet.bth.solicited = wqe.solicited && place.is_end();
        match &wqe.body {
            SendBody::Send { .. } | SendBody::Write { .. } => {
                if let SendBody::Write { remote, .. } = &wqe.body
                    && place.is_start()
                {
                    packet.reth = Some(Reth { addr: remote.addr, rkey: remote.rkey, len: op.len as u32 });
                }
                if let SendBody::Send { address: Some(address), .. } = &wqe.body {
                    packet.lrh.dlid = address.rlid;
                    packet.lrh.sl = address.sl;
                    packet.bth.dest_qpn = address.dqpn;
                    // A queue key with its highest bit set stands for the queue pair's own.
                    let qkey = if address.qkey >> 31 == 0 { address.qkey } else { self.get(Qpc::Q_KEY) };
                    packet.deth = Some(Deth { qkey, source_qpn: self.wire_qpn() });
                    packet.grh = address.grh.map(|route| Grh {
                        tclass: route.tclass,
                        flow_label: route.flow_label,
                        hop_limit: route.hop_limit,
                        sgid: work.shared.config.port_gid,
                        dgid: route.dgid,
                    });
                }
                let offset = u64::from(packet_index) * mtu;
                let len = (op.len - offset.min(op.len)).min(mtu) as usize;
                match gather(work, self.access(Right::LocalRead), op.data(), offset, len) {
                    Ok(payload) => packet.payload = payload,
                    Err(_) => return Some(Err(CqeSyndrome::LocalProt)),
                }
            }
            SendBody::Read { remote, .. } => {
                // What came already is not asked for again.
                let offset = u64::from(op.received) * mtu;
                packet.bth.psn = psn::add(op.first_psn, op.received);
                let len = (op.len - offset.min(op.len)) as u32;
                packet.reth = Some(Reth { addr: remote.addr.wrapping_add(offset), rkey: remote.rkey, len });
            }
            SendBody::Atomic { remote, operation, .. } => {
                let (swap_add, compare) = match *operation {
                    AtomicOperation::CompareSwap { compare, swap } => (swap, compare),
                    AtomicOperation::FetchAdd { add } => (add, 0),
                };
                packet.atomic = Some(AtomicEth { addr: remote.addr, rkey: remote.rkey, swap_add, compare });
            }
            SendBody::Nop | SendBody::Umr(_) => return None,
        }
        Some(Ok(packet))
    }

    /// Something is missing: sends again from the oldest unacknowledged packet, or gives up.
    pub(super) fn repeat(&mut self, work: &mut Work<'_, '_>) {
        let Some(left) = self.requester.retries_left.checked_sub(1) else {
            self.fail_head(work, CqeSyndrome::TransportRetryExc);
            return;
        };
        work.shared.stats.retries += 1;
        self.requester.retries_left = left;
        self.requester.repeating = true;
        self.requester.rewind();
        self.requester.ack_due = self.timeout().map(|timeout| work.env.now.after(timeout));
    }

    /// The peer had no receive: waits as long as it said, or gives up.
    pub(super) fn wait_for_receive(&mut self, work: &mut Work<'_, '_>, timer: u8) {
        /// Retries without end.
        const FOREVER: u32 = 7;
        if self.get(Qpc::RNR_RETRY) != FOREVER {
            let Some(left) = self.requester.rnr_left.checked_sub(1) else {
                self.fail_head(work, CqeSyndrome::RnrRetryExc);
                return;
            };
            self.requester.rnr_left = left;
        }
        work.shared.stats.receiver_not_ready += 1;
        self.requester.rewind();
        self.requester.ack_due = None;
        self.requester.rnr_until = Some(work.env.now.after(rnr_delay(timer)));
    }

    /// Timers that are due at `now`.
    pub(super) fn check_timers(&mut self, work: &mut Work<'_, '_>) {
        let now = work.env.now;
        if self.requester.rnr_until.is_some_and(|due| due <= now) {
            self.requester.rnr_until = None;
        }
        if self.can_send() && self.requester.ack_due.is_some_and(|due| due <= now) {
            self.requester.ack_due = None;
            if self.requester.unacked != self.requester.sent_end {
                work.env.note(|| format!("QP {:#x}: no acknowledgement in time", self.qpn));
                self.repeat(work);
            }
        }
    }

    /// Holds a doorbell against the record and the ring.
    pub(super) fn audit_doorbell(&mut self, work: &mut Work<'_, '_>, doorbell: [u8; 8]) {
        let [_, high, low, _, .., ds] = doorbell;
        let index = u16::from_be_bytes([high, low]);
        let end = index.wrapping_add(blocks(ds & 0x3f));
        let posted = self.requester.posted;
        if end.wrapping_sub(posted).cast_signed() > 0 {
            work.env.audit.report(Finding::DoorbellPastRecord { qpn: self.qpn, doorbell: index, record: posted });
        }
        let mut bytes = [0; 8];
        let Some(ring) = self.sq.as_ref() else { return };
        if ring.read(work.env.memory, u32::from(index), &mut bytes).is_ok() && bytes != doorbell {
            work.env.audit.report(Finding::DoorbellNotWqe { qpn: self.qpn, index });
        }
        let under_way = posted.wrapping_sub(self.requester.retired);
        if u32::from(under_way) > ring.entries() {
            let completed = self.requester.retired;
            work.env.audit.report(Finding::RingOverrun { qpn: self.qpn, posted, completed });
        }
    }
}

/// Operation of a packet of `wqe`, with what travels at the end of the message.
fn operation(wqe: &SendWqe, place: Place) -> (Operation, Option<u32>, Option<u32>) {
    let end = place.is_end();
    match wqe.opcode {
        WqeOpcode::SendImm if end => (Operation::SendImmediate(place), Some(wqe.immediate), None),
        WqeOpcode::SendInval if end => (Operation::SendInvalidate(place), None, Some(wqe.immediate)),
        WqeOpcode::RdmaWriteImm if end => (Operation::WriteImmediate(place), Some(wqe.immediate), None),
        WqeOpcode::RdmaWrite | WqeOpcode::RdmaWriteImm => (Operation::Write(place), None, None),
        WqeOpcode::RdmaRead => (Operation::ReadRequest, None, None),
        WqeOpcode::AtomicCs => (Operation::CompareSwap, None, None),
        WqeOpcode::AtomicFa => (Operation::FetchAdd, None, None),
        _ => (Operation::Send(place), None, None),
    }
}

/// Delay that a timer code of an RNR NAK names (InfiniBand Architecture, table 45).
pub(super) fn rnr_delay(timer: u8) -> Duration {
    const UNITS: [u32; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144,
        8192, 12288, 16384, 24576, 32768, 49152,
    ];
    const UNIT: Duration = Duration::from_micros(10);
    UNIT * UNITS.get(usize::from(timer & 0x1f)).copied().unwrap_or(1)
}

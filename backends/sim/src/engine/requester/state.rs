//! State of the requester: requests in progress, the window of sequence numbers, timers and counters of retries.

use std::collections::VecDeque;
use std::time::Duration;

use bareverbs::platform::Instant;
use bareverbs_mlx5_spec::CqeSyndrome;

use crate::engine::psn;
use crate::wqe_decode::{DataSegment, SendBody, SendWqe};

/// Requests in progress whose places are counted with the queue pair. It keeps these when it has none.
const KEPT_PLACES: usize = 16;

/// Bytes of this process that the segments of a request take at most: a WQE of 64 units of 16 bytes, decoded. They are counted
/// with the queue pair for one.
const MAX_SEGMENTS_MEMORY: u64 = 4096;

/// How many messages there were, modulo 2 to the 24th as the peer counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::engine) struct MessageCount {
    pub(in crate::engine) messages: u32,
    /// Those that take a receive of the peer.
    pub(in crate::engine) receives: u32,
}

/// A request between its fetch and its completion.
#[derive(Debug)]
pub(in crate::engine) struct SendOp {
    /// The WQE, or what its completion needs if it could not be read.
    pub(in crate::engine) wqe: Option<SendWqe>,
    pub(in crate::engine) index: u16,
    pub(in crate::engine) send_opcode: u8,
    pub(in crate::engine) first_psn: u32,
    /// Sequence numbers that it takes: its packets, or those of the response to a read.
    pub(in crate::engine) psns: u32,
    pub(in crate::engine) len: u64,
    /// Messages of the queue pair up to this one.
    pub(in crate::engine) count: MessageCount,
    /// Packets of the response that came.
    pub(in crate::engine) received: u32,
    /// It has failed; this is reported when it is the oldest.
    pub(in crate::engine) failed: Option<CqeSyndrome>,
    /// Bytes of this process that its segments take.
    pub(in crate::engine) segments: u64,
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

    /// Returns the number of request packets.
    pub(in crate::engine) fn packets(&self) -> u32 {
        match self.kind() {
            Kind::SendOrWrite => self.psns,
            Kind::Read | Kind::Atomic => 1,
            Kind::Nop | Kind::Umr => 0,
        }
    }

    pub(in crate::engine) fn expects_response(&self) -> bool {
        matches!(self.kind(), Kind::Read | Kind::Atomic)
    }

    pub(in crate::engine) fn end_psn(&self) -> u32 {
        psn::add(self.first_psn, self.psns)
    }

    /// Returns the data segments of its message.
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

/// A send request that ended.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct SendDone {
    pub(in crate::engine) index: u16,
    pub(in crate::engine) send_opcode: u8,
    pub(in crate::engine) byte_cnt: u32,
    pub(in crate::engine) error: Option<CqeSyndrome>,
}

/// State of the requester.
#[derive(Debug, Default)]
pub(in crate::engine) struct Requester {
    /// Blocks that the host has posted since RESET, and those up to the end of what its last doorbell was for.
    pub(in crate::engine) posted_blocks: u64,
    pub(in crate::engine) rung_blocks: u64,
    /// Blocks fetched, and retired.
    pub(in crate::engine) fetched: u16,
    pub(in crate::engine) retired: u16,
    /// Messages fetched, and those done.
    pub(in crate::engine) count: MessageCount,
    pub(in crate::engine) done: MessageCount,
    /// Receives that the peer has posted in all, if it reports credits. No message is sent beyond them.
    pub(in crate::engine) receive_limit: Option<u32>,
    /// Requests in progress, oldest first.
    pub(in crate::engine) ops: VecDeque<SendOp>,
    /// The next packet: request among `ops`, packet of it.
    pub(in crate::engine) cursor: (usize, u32),
    /// Number of the next new packet, and of the oldest unacknowledged one.
    pub(in crate::engine) next_psn: u32,
    pub(in crate::engine) unacked: u32,
    /// The peer has everything before this number, and the turn was over before all of that completed.
    pub(in crate::engine) acknowledged: Option<u32>,
    /// After the greatest number that was ever sent.
    pub(in crate::engine) sent_end: u32,
    /// Where the window starts: the oldest unacknowledged packet, or the one after the newest read.
    pub(in crate::engine) window_start: u32,
    pub(in crate::engine) since_ack_req: u32,
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
    /// Report an event when nothing is in progress (SQD).
    pub(in crate::engine) notify_drained: bool,
    /// Bytes of this process that the segments of the requests in progress take.
    pub(in crate::engine) segments: u64,
    /// [`Requester::memory`] that the device has counted.
    pub(in crate::engine) counted: u64,
}

impl Requester {
    /// Starts at a sequence number.
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

    /// Returns the bytes of this process that the requests in progress take beyond what is counted with the queue pair.
    pub(in crate::engine) fn memory(&self) -> u64 {
        self.segments.saturating_sub(MAX_SEGMENTS_MEMORY)
            + (self.ops.capacity().saturating_sub(KEPT_PLACES) * size_of::<SendOp>()) as u64
    }

    /// Returns the bytes that one more request takes at most, and those that are not counted yet.
    pub(in crate::engine) fn memory_with_next(&self) -> u64 {
        let places = if self.ops.len() == self.ops.capacity() { self.ops.capacity() } else { 0 };
        let next = MAX_SEGMENTS_MEMORY + (places * size_of::<SendOp>()) as u64;
        self.memory().saturating_sub(self.counted) + next
    }

    /// Returns whether the packet at `psn` was sent and is not acknowledged.
    pub(in crate::engine) fn is_outstanding(&self, psn: u32) -> bool {
        psn::ahead(psn, self.unacked) >= 0 && psn::ahead(psn, self.sent_end) < 0
    }

    /// Returns whether the oldest request has been passed by the cursor.
    pub(in crate::engine) fn head_is_sent(&self) -> bool {
        self.cursor.0 > 0
    }

    /// Removes the oldest request, which is complete.
    pub(in crate::engine) fn pop(&mut self) -> Option<SendOp> {
        let op = self.ops.pop_front()?;
        self.segments = self.segments.saturating_sub(op.segments);
        if self.ops.is_empty() {
            self.ops.shrink_to(KEPT_PLACES);
        }
        self.cursor = if self.cursor.0 == 0 { (0, 0) } else { (self.cursor.0 - 1, self.cursor.1) };
        self.done = op.count;
        // Completed messages had receives, also if no credit count reported them.
        self.receive_limit = self.receive_limit.map(|limit| psn::later(limit, op.count.receives));
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

    /// Nothing is in progress: what comes next has new numbers.
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

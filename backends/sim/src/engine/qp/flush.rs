//! The error states: everything posted completes, in order, with the flush status; also what is posted later. In the error
//! state of the send queue alone, receives go on.

use std::collections::VecDeque;

use bareverbs_mlx5_spec::{CqeSyndrome, EventType};

use crate::engine::config::EngineEvent;
use crate::engine::qp::{Qp, SendDone};
use crate::engine::requester::SendOp;
use crate::engine::work::Work;

const FLUSHED: CqeSyndrome = CqeSyndrome::WrFlush;

impl Qp {
    /// Completes what is posted on both queues, as much as the turn allows. `true` if there is more.
    pub(in crate::engine) fn flush(&mut self, work: &mut Work<'_, '_>) -> bool {
        self.flush_sends(work) || self.flush_receives(work)
    }

    /// Completes what is posted on the send queue, as much as the turn allows. `true` if there is more.
    pub(in crate::engine) fn flush_sends(&mut self, work: &mut Work<'_, '_>) -> bool {
        self.requester.ack_due = None;
        self.requester.rnr_until = None;
        while !work.env.meter.is_spent()
            && let Some(op) = self.requester.ops.pop_front()
        {
            work.env.meter.count(1);
            self.requester.retired = op.index.wrapping_add(op.wqe.as_ref().map_or(1, |wqe| wqe.blocks()));
            self.complete_send(work, SendOp::done(&op, Some(FLUSHED)));
        }
        if !self.requester.ops.is_empty() {
            return true;
        }
        self.requester.memory = 0;
        // Its room is not charged any more.
        self.requester.ops = VecDeque::new();
        while self.sq.is_some() && self.requester.fetched != self.requester.posted {
            if work.env.meter.is_spent() {
                return true;
            }
            work.env.meter.count(1);
            let index = self.requester.fetched;
            let (send_opcode, size) = match self.read_wqe(work, index) {
                Some((bytes, size)) => (bytes.get(3).copied().unwrap_or(0), size),
                None => (0, 1),
            };
            self.requester.fetched = index.wrapping_add(size);
            self.requester.retired = self.requester.fetched;
            self.complete_send(work, SendDone { index, send_opcode, byte_cnt: 0, error: Some(FLUSHED) });
        }
        self.requester.forget_sent();
        false
    }

    fn flush_receives(&mut self, work: &mut Work<'_, '_>) -> bool {
        if self.rq.is_none() && self.srq.is_none() && self.responder.xrc_srq.is_none() {
            return false;
        }
        let held = self.held_receive().or(self.responder.take_spare().map(|spare| spare.index));
        if let Some(index) = held {
            self.fail_receive(work, index, FLUSHED);
        }
        self.responder.abandon();
        if self.srq.is_some() {
            // What is posted there belongs to others too: the host only learns that this one takes no more.
            if !self.responder.last_wqe_reported {
                self.responder.last_wqe_reported = true;
                work.shared.events.push_back(EngineEvent::Qp { event: EventType::SrqLastWqe, qpn: self.qpn });
            }
            return false;
        }
        if self.rq.is_none() {
            return false;
        }
        let Some((posted, _)) = self.record(work) else { return false };
        while self.responder.consumed != posted {
            if work.env.meter.is_spent() {
                return true;
            }
            work.env.meter.count(1);
            let index = self.responder.consumed;
            self.responder.consumed = index.wrapping_add(1);
            self.fail_receive(work, index, FLUSHED);
        }
        false
    }

    /// Whether receives were posted since the last flush.
    pub(in crate::engine) fn has_unflushed(&self, work: &Work<'_, '_>) -> bool {
        let receives = self.rq.is_some() && self.record(work).is_some_and(|(posted, _)| posted != self.responder.consumed);
        receives || (self.sq.is_some() && self.requester.fetched != self.requester.posted)
    }
}

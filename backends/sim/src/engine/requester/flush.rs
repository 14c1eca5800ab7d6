//! The error states: send requests in progress and posted complete in order, with the flush status; also those posted later.

use std::collections::VecDeque;

use bareverbs_mlx5_spec::CqeSyndrome;

use crate::engine::qp::context::QpContext;
use crate::engine::requester::complete_send;
use crate::engine::requester::state::{Requester, SendDone, SendOp};
use crate::engine::resources::QpStep;

const FLUSHED: CqeSyndrome = CqeSyndrome::WrFlush;

impl Requester {
    /// Completes what is posted on the send queue, as much as the turn allows. Returns `true` if there is more.
    pub(in crate::engine) fn flush_sends(&mut self, qp: &mut QpContext, step: &mut QpStep<'_, '_>) -> bool {
        self.ack_due = None;
        self.rnr_until = None;
        while !step.ctx.meter.is_spent()
            && let Some(op) = self.ops.pop_front()
        {
            step.ctx.meter.count(1);
            self.retired = op.index.wrapping_add(op.wqe.as_ref().map_or(1, |wqe| wqe.blocks()));
            complete_send(qp, step, SendOp::done(&op, Some(FLUSHED)));
        }
        if !self.ops.is_empty() {
            return true;
        }
        self.segments = 0;
        // Its room is not charged any more.
        self.ops = VecDeque::new();
        while qp.sq.is_some() && self.fetched != self.posted() {
            if step.ctx.meter.is_spent() {
                return true;
            }
            step.ctx.meter.count(1);
            let index = self.fetched;
            let (send_opcode, size) = match self.read_wqe(qp, step, index) {
                Some((bytes, size)) => (bytes.get(3).copied().unwrap_or(0), size),
                None => (0, 1),
            };
            self.fetched = index.wrapping_add(size);
            self.retired = self.fetched;
            complete_send(qp, step, SendDone { index, send_opcode, byte_cnt: 0, error: Some(FLUSHED) });
        }
        self.forget_sent();
        false
    }

    /// Returns whether sends were posted since the last flush.
    pub(in crate::engine) fn has_unflushed_sends(&self, qp: &QpContext) -> bool {
        qp.sq.is_some() && self.fetched != self.posted()
    }
}

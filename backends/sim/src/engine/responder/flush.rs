//! The error state: receives in use and posted complete in order, with the flush status; also those posted later. In the error
//! state of the send queue alone, receives continue.

use bareverbs_mlx5_spec::{CqeSyndrome, EventType};

use crate::engine::event::EngineEvent;
use crate::engine::qp::context::QpContext;
use crate::engine::resources::QpStep;
use crate::engine::responder::state::Responder;

const FLUSHED: CqeSyndrome = CqeSyndrome::WrFlush;

impl Responder {
    /// Completes what is posted on the receive queue, as much as the turn allows. Returns `true` if there is more.
    pub(in crate::engine) fn flush_receives(&mut self, qp: &mut QpContext, step: &mut QpStep<'_, '_>) -> bool {
        if qp.rq.is_none() && qp.srq.is_none() && self.xrc_srq.is_none() {
            return false;
        }
        let held = self.held_receive().or(self.take_spare().map(|spare| spare.index));
        if let Some(index) = held {
            self.fail_receive(qp, step, index, FLUSHED);
        }
        self.abandon();
        if qp.srq.is_some() {
            // What is posted there belongs to others too: the host only learns that this one takes no more.
            if !self.last_wqe_reported {
                self.last_wqe_reported = true;
                step.shared.events.push_back(EngineEvent::Qp { event: EventType::SrqLastWqe, qpn: qp.qpn });
            }
            return false;
        }
        if qp.rq.is_none() {
            return false;
        }
        let Some((posted, _)) = qp.record(step) else { return false };
        while self.consumed != posted {
            if step.ctx.meter.is_spent() {
                return true;
            }
            step.ctx.meter.count(1);
            let index = self.consumed;
            self.consumed = index.wrapping_add(1);
            self.fail_receive(qp, step, index, FLUSHED);
        }
        false
    }

    /// Returns whether receives were posted since the last flush.
    pub(in crate::engine) fn has_unflushed_receives(&self, qp: &QpContext, step: &QpStep<'_, '_>) -> bool {
        qp.rq.is_some() && qp.record(step).is_some_and(|(posted, _)| posted != self.consumed)
    }
}

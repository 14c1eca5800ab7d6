//! A queue pair's turn: it takes a packet, sends, responds or flushes. Also its context as a query shows it.

use bareverbs::platform::Instant;
use bareverbs_mlx5_spec::{Qpc, QpcState, ViewMut};

use crate::engine::psn;
use crate::engine::qp::Qp;
use crate::engine::qp::context::Service;
use crate::engine::resources::QpStep;
use crate::packet::Packet;

impl Qp {
    pub(in crate::engine) fn handle_packet(&mut self, step: &mut QpStep<'_, '_>, packet: &Packet<'_>) {
        match self.context.service {
            Service::Rc | Service::Xrc if packet.transport.bth.opcode.operation.is_response() => {
                self.requester.handle_response(&mut self.context, step, &packet.transport)
            }
            Service::Rc => self.responder.handle_request(&mut self.context, step, packet),
            // An initiator takes no requests.
            Service::Xrc if self.context.sq.is_some() => {}
            Service::Xrc => self.responder.handle_request(&mut self.context, step, packet),
            Service::Uc => self.responder.handle_uc_request(&mut self.context, step, packet),
            Service::Ud => self.responder.handle_datagram(&mut self.context, step, packet),
            Service::RegUmr => {}
        }
    }

    /// Does the work that can be done now. Returns `true` if there is more.
    pub(in crate::engine) fn run(&mut self, step: &mut QpStep<'_, '_>) -> bool {
        self.requester.check_timers(&mut self.context, step);
        let mut more = false;
        if self.context.state != QpcState::Err {
            more = self.responder.respond(&mut self.context, step);
            more |= self.requester.send(&mut self.context, step);
        }
        match self.context.state {
            QpcState::Err => self.flush(step),
            QpcState::SqEr => self.requester.flush_sends(&mut self.context, step) || more,
            _ => more,
        }
    }

    pub(in crate::engine) fn next_timer(&self) -> Option<Instant> {
        [self.requester.ack_due, self.requester.rnr_until].into_iter().flatten().min()
    }

    pub(in crate::engine) fn query(&self, out: &mut ViewMut<'_, Qpc>) {
        for (to, from) in out.as_bytes_mut().iter_mut().zip(self.context.qpc().as_bytes()) {
            *to = *from;
        }
        let requester = &self.requester;
        out.set(Qpc::NEXT_RCV_PSN, self.responder.expected_psn)
            .set(Qpc::RMSN, self.responder.msn)
            .set(Qpc::HW_SQ_WQEBB_COUNTER, u32::from(requester.retired))
            .set(Qpc::SW_SQ_WQEBB_COUNTER, u32::from(requester.posted()))
            .set(Qpc::HW_RQ_COUNTER, u32::from(self.responder.consumed));
        if self.context.state == QpcState::Sqd && !requester.ops.is_empty() {
            out.set(Qpc::STATE, QpcState::SqDraining.code());
        }
        if matches!(self.context.state, QpcState::Rts | QpcState::Sqd | QpcState::SqDraining) {
            out.set(Qpc::NEXT_SEND_PSN, requester.next_psn())
                .set(Qpc::LAST_ACKED_PSN, psn::add(requester.unacked, (1 << 24) - 1));
        }
    }

    /// Completes what is posted on both queues, as much as the turn allows. Returns `true` if there is more.
    pub(in crate::engine) fn flush(&mut self, step: &mut QpStep<'_, '_>) -> bool {
        self.requester.flush_sends(&mut self.context, step) || self.responder.flush_receives(&mut self.context, step)
    }

    /// Returns whether requests were posted since the last flush.
    pub(in crate::engine) fn has_unflushed(&self, step: &QpStep<'_, '_>) -> bool {
        self.responder.has_unflushed_receives(&self.context, step) || self.requester.has_unflushed_sends(&self.context)
    }
}

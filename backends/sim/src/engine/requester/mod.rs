//! The requester of a queue pair: WQEs fetched, cut into packets, sent within a window, sent again when lost.

pub(super) mod build;
pub(super) mod fetch;
pub(super) mod flow;
pub(super) mod flush;
pub(super) mod response;
pub(super) mod retry;
pub(super) mod state;

use bareverbs_mlx5_spec::{CqeOpcode, CqeSyndrome, EventType, Qpc, QpcState, fm};

use crate::audit::Finding;
use crate::engine::cq::{Completion, Source};
use crate::engine::event::EngineEvent;
use crate::engine::memory::umr::{self, UmrIssuer};
use crate::engine::psn;
use crate::engine::qp::context::{QpContext, Service, vendor};
use crate::engine::requester::state::{Kind, Requester, SendDone};
use crate::engine::resources::{QpResources, QpStep};
use crate::registry::Resource;
use crate::rejection::Rejection;
use crate::wqe_decode::{SendBody, SendWqe};

/// Maximum packets sent and not acknowledged.
pub(in crate::engine) const WINDOW: u32 = 128;
/// An acknowledgement is requested at least once in this many packets.
const ACK_EVERY: u32 = 32;
/// Requests that are examined in about the time of an access to memory.
const REQUESTS_PER_STEP: u64 = 32;
/// Maximum packets that one queue pair sends in a turn.
const BUDGET: u32 = 64;
/// Requests in progress, at most. The window is reached before, but for requests that send nothing.
pub(in crate::engine) const MAX_UNDER_WAY: usize = 1024;

impl Requester {
    /// Sends what may be sent. Returns `true` if more could be sent now.
    pub(in crate::engine) fn send(&mut self, qp: &mut QpContext, step: &mut QpStep<'_, '_>) -> bool {
        self.resume_acknowledge(qp, step);
        // What waited only for those before it may be the oldest now.
        self.retire_local(qp, step);
        for _ in 0..BUDGET {
            if step.ctx.meter.is_spent() {
                return true;
            }
            step.ctx.meter.count(1);
            if !qp.can_send() {
                return false;
            }
            if self.rnr_until.is_some() {
                return false;
            }
            if !step.shared.has_room() {
                return true;
            }
            if self.cursor.0 >= self.ops.len() && !self.fetch(qp, step) {
                self.report_drained(qp, step);
                return false;
            }
            if !self.send_one(qp, step) {
                return false;
            }
        }
        true
    }

    fn report_drained(&mut self, qp: &QpContext, step: &mut QpStep<'_, '_>) {
        if qp.state == QpcState::Sqd && self.notify_drained && self.ops.is_empty() {
            self.notify_drained = false;
            step.shared.events.push_back(EngineEvent::Qp { event: EventType::SqDrained, qpn: qp.qpn });
        }
    }

    /// Sends the packet under the cursor, or does the local work there. Returns `false` if it must wait.
    fn send_one(&mut self, qp: &mut QpContext, step: &mut QpStep<'_, '_>) -> bool {
        let (at, packet_index) = self.cursor;
        let Some(op) = self.ops.get(at) else { return false };
        if let Some(syndrome) = op.failed {
            // Requests before it complete first.
            if at == 0 {
                self.fail_head(qp, step, syndrome);
            }
            return false;
        }
        // Those before it are counted, once and again.
        if op.expects_response() || op.wqe.as_ref().is_some_and(|wqe| wqe.fence != 0) {
            step.ctx.meter.count(at as u64 / REQUESTS_PER_STEP);
        }
        if op.wqe.as_ref().is_some_and(|wqe| self.is_fenced(at, wqe)) {
            return false;
        }
        match op.kind() {
            Kind::Nop => {
                self.cursor = (at + 1, 0);
                self.retire_local(qp, step);
                true
            }
            Kind::Umr => at == 0 && self.execute_umr(qp, step),
            Kind::SendOrWrite | Kind::Read | Kind::Atomic => {
                if packet_index >= op.packets() {
                    self.cursor = (at + 1, 0);
                    return true;
                }
                self.may_send(qp, at, packet_index) && self.send_packet(qp, step, at, packet_index)
            }
        }
    }

    /// Returns whether the request waits for reads and atomics before it.
    fn is_fenced(&self, at: usize, wqe: &SendWqe) -> bool {
        // A small fence waits for key changes, which nothing passes anyway.
        u32::from(wqe.fence) > fm::INITIATOR_SMALL_FENCE && self.responses_before(at) > 0
    }

    fn responses_before(&self, at: usize) -> usize {
        self.ops.iter().take(at).filter(|op| op.expects_response()).count()
    }

    fn may_send(&self, qp: &QpContext, at: usize, packet_index: u32) -> bool {
        let Some(op) = self.ops.get(at) else { return false };
        if op.expects_response() && self.responses_before(at) >= qp.depth(Qpc::LOG_SRA_MAX) {
            return false;
        }
        let psn = psn::add(op.first_psn, packet_index);
        // Half of all numbers may be in progress, or old and new could not be distinguished.
        psn::distance(op.end_psn(), self.unacked) < psn::HALF
            && (!qp.service.is_reliable() || psn::ahead(psn, self.window_start) < WINDOW.cast_signed())
            && self.has_credit(op, packet_index)
    }

    /// Executes a key change, which is the oldest request: it waits for all before it. The capability `umr_fence` is 0 here,
    /// for which Linux asks for strong ordering of every key change (`mlx5_get_umr_fence`).
    fn execute_umr(&mut self, qp: &mut QpContext, step: &mut QpStep<'_, '_>) -> bool {
        let issuer = UmrIssuer {
            pd: qp.pd(),
            qpn: qp.qpn,
            privileged: qp.service == Service::RegUmr,
            registers: qp.get(Qpc::FRE) != 0 && step.shared.registry.is_kernels(Resource::qp(qp.qpn)),
            restricted: step.shared.config.restricted_umr,
        };
        let changed = match self.ops.front().and_then(|op| op.wqe.as_ref()) {
            Some(SendWqe { body: SendBody::Umr(umr), immediate, .. }) => {
                if step.shared.keys.was_destroyed(*immediate) {
                    step.ctx.audit.report(Finding::KeyAfterDestroy { key: *immediate });
                }
                let QpResources { keys, registry, .. } = &mut *step.shared;
                let changed = umr::apply(keys, registry, step.ctx, issuer, *immediate, umr);
                if changed.is_err() {
                    let is_bound = umr::is_bound_already(keys, *immediate, umr);
                    step.ctx.reject(Rejection::KeyChange { qpn: qp.qpn, key: *immediate, is_bound });
                }
                changed
            }
            _ => Ok(0),
        };
        match changed {
            Ok(entries) => {
                step.ctx.meter.count_entries(entries);
                self.retire(qp, step);
            }
            Err(syndrome) => self.fail_head(qp, step, syndrome),
        }
        changed.is_ok()
    }

    /// Completes the oldest request successfully.
    pub(in crate::engine) fn retire(&mut self, qp: &mut QpContext, step: &mut QpStep<'_, '_>) {
        let Some(op) = self.pop() else { return };
        if op.wqe.as_ref().is_some_and(SendWqe::is_signaled) {
            complete_send(qp, step, op.done(None));
        }
    }

    /// Completes requests at the head that wait for nothing.
    pub(in crate::engine) fn retire_local(&mut self, qp: &mut QpContext, step: &mut QpStep<'_, '_>) {
        while qp.can_send()
            && !step.ctx.meter.is_spent()
            && self.head_is_sent()
            && self.ops.front().is_some_and(|op| {
                op.failed.is_none() && (op.kind() == Kind::Nop || (op.kind() == Kind::SendOrWrite && !qp.service.is_reliable()))
            })
        {
            step.ctx.meter.count(1);
            self.retire(qp, step);
        }
    }

    /// Completes the oldest request with an error; the queue pair is in error from then on, or its send queue alone if the
    /// peer does not acknowledge (InfiniBand Architecture 10.3.1.6).
    pub(in crate::engine) fn fail_head(&mut self, qp: &mut QpContext, step: &mut QpStep<'_, '_>, syndrome: CqeSyndrome) {
        if let Some(op) = self.pop() {
            complete_send(qp, step, op.done(Some(syndrome)));
        }
        if qp.state == QpcState::Err {
            return;
        }
        match qp.service {
            Service::Uc | Service::Ud => qp.enter(QpcState::SqEr),
            Service::Rc | Service::Xrc | Service::RegUmr => qp.fail(step, None),
        }
    }

    fn send_packet(&mut self, qp: &mut QpContext, step: &mut QpStep<'_, '_>, at: usize, packet_index: u32) -> bool {
        let Some(built) = self.build(qp, step, at, packet_index) else { return false };
        let mut packet = match built {
            Ok(packet) => packet,
            Err(syndrome) => {
                if let Some(op) = self.ops.get_mut(at) {
                    op.failed = Some(syndrome);
                }
                // Reported on the next turn, if nothing is before it.
                return true;
            }
        };
        let Some(op) = self.ops.get(at) else { return false };
        let last = packet_index + 1 >= op.packets();
        let end = if last { op.end_psn() } else { psn::add(packet.transport.bth.psn, 1) };
        let answered = op.expects_response();
        self.since_ack_req += 1;
        if qp.service.is_reliable()
            && !answered
            && (last || self.since_ack_req >= ACK_EVERY || self.is_limited(op, packet_index))
        {
            packet.transport.bth.ack_req = true;
            self.since_ack_req = 0;
        }
        if psn::ahead(end, self.sent_end) > 0 {
            self.sent_end = end;
        }
        if answered && psn::ahead(end, self.window_start) > 0 {
            // A read takes many numbers and one packet: the window counts on from its end.
            self.window_start = end;
        }
        self.cursor = if last { (at + 1, 0) } else { (at, packet_index + 1) };
        if !qp.service.is_reliable() {
            self.unacked = end;
            self.window_start = end;
        } else if self.ack_due.is_none() {
            self.ack_due = qp.timeout().map(|timeout| step.ctx.now.after(timeout));
        }
        step.transmit(packet);
        self.retire_local(qp, step);
        true
    }
}

/// Completes a send request.
pub(in crate::engine) fn complete_send(qp: &mut QpContext, step: &mut QpStep<'_, '_>, done: SendDone) {
    let completion = Completion {
        opcode: if done.error.is_some() { CqeOpcode::ReqErr } else { CqeOpcode::Req },
        qpn: qp.qpn,
        user_index: qp.user_index(step.shared),
        wqe_counter: done.index,
        send_opcode: done.send_opcode,
        byte_cnt: done.byte_cnt,
        immediate: 0,
        solicited: false,
        source: Source::default(),
        error: done.error.map(|syndrome| (syndrome, vendor(syndrome))),
        frame: None,
    };
    qp.complete(step, qp.get(Qpc::CQN_SND), &completion);
}

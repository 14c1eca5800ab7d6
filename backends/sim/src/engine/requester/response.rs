//! Responses that come back to the requester: acknowledgements, data of reads, results of atomics.

use bareverbs_mlx5_spec::CqeSyndrome;

use crate::engine::memory::key::Right;
use crate::engine::memory::message::{ScatterError, pointers, scatter};
use crate::engine::psn;
use crate::engine::qp::context::QpContext;
use crate::engine::requester::state::{Kind, Requester};
use crate::engine::resources::QpStep;
use crate::packet::{Operation, Place, Syndrome, TransportPart};

/// What an acknowledgement completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Acknowledged {
    /// Everything that it covers.
    All,
    /// It covers a read or an atomic whose response did not come: it was lost.
    ResponseMissing,
}

impl Requester {
    /// Handles a response of the peer.
    pub(in crate::engine) fn handle_response(
        &mut self,
        qp: &mut QpContext,
        step: &mut QpStep<'_, '_>,
        packet: &TransportPart<'_>,
    ) {
        let psn = packet.bth.psn;
        if !qp.can_send() || !self.is_outstanding(psn) {
            // Stale or duplicate.
            return;
        }
        if let Some(aeth) = packet.aeth {
            self.take_credits(aeth);
        }
        match packet.bth.opcode.operation {
            Operation::ReadResponse(place) => self.handle_read_response(qp, step, packet, place),
            Operation::AtomicAcknowledge => self.handle_atomic_acknowledge(qp, step, packet),
            Operation::Acknowledge => {
                let Some(aeth) = packet.aeth else { return };
                self.handle_acknowledge(qp, step, psn, aeth.syndrome);
            }
            _ => {}
        }
    }

    /// Takes an acknowledgement of everything before `psn`.
    fn acknowledge(&mut self, qp: &mut QpContext, step: &mut QpStep<'_, '_>, psn: u32) -> Acknowledged {
        let before = self.unacked;
        let mut outcome = Acknowledged::All;
        // What the turn before left comes first.
        let psn = match self.acknowledged.take() {
            Some(earlier) if psn::ahead(earlier, psn) > 0 => earlier,
            _ => psn,
        };
        while qp.can_send()
            && let Some(head) = self.ops.front()
        {
            if step.ctx.meter.is_spent() {
                self.acknowledged = Some(psn);
                break;
            }
            step.ctx.meter.count(1);
            match head.kind() {
                Kind::Nop if self.head_is_sent() => self.retire(qp, step),
                Kind::SendOrWrite if head.failed.is_none() && psn::ahead(head.end_psn(), psn) <= 0 => self.retire(qp, step),
                Kind::SendOrWrite => {
                    // An acknowledgement of the middle of a message; `psn` may also lie before it.
                    let reached = if psn::ahead(psn, head.end_psn()) < 0 { psn } else { self.unacked };
                    self.advance_to(reached);
                    break;
                }
                Kind::Read | Kind::Atomic => {
                    if psn::ahead(psn, psn::add(head.first_psn, head.received)) > 0 {
                        outcome = Acknowledged::ResponseMissing;
                    }
                    break;
                }
                Kind::Nop | Kind::Umr => break,
            }
        }
        if self.unacked != before {
            self.note_progress(qp, step.ctx.now);
        }
        outcome
    }

    /// Completes what an acknowledgement covers that came in a turn which was over too soon.
    pub(in crate::engine) fn resume_acknowledge(&mut self, qp: &mut QpContext, step: &mut QpStep<'_, '_>) {
        if let Some(psn) = self.acknowledged
            && self.acknowledge(qp, step, psn) == Acknowledged::ResponseMissing
        {
            self.retransmit_once(qp, step);
        }
    }

    /// A response is missing: sends the request again, once until something new comes.
    fn retransmit_once(&mut self, qp: &mut QpContext, step: &mut QpStep<'_, '_>) {
        if !self.retransmitting {
            self.retransmit(qp, step);
        }
    }

    fn handle_acknowledge(&mut self, qp: &mut QpContext, step: &mut QpStep<'_, '_>, psn: u32, syndrome: Syndrome) {
        let upto = if matches!(syndrome, Syndrome::Ack(_)) { psn::add(psn, 1) } else { psn };
        if self.acknowledge(qp, step, upto) == Acknowledged::ResponseMissing {
            qp.counts(step).missing_responses += 1;
            self.retransmit_once(qp, step);
            return;
        }
        if !qp.can_send() || self.unacked != psn {
            // The rest is about another packet than the oldest one; only an acknowledgement may be.
            return;
        }
        match syndrome {
            Syndrome::Ack(_) | Syndrome::Other(_) => {}
            Syndrome::SequenceError => {
                step.shared.stats.sequence_errors += 1;
                qp.counts(step).sequence_errors += 1;
                self.retransmit_once(qp, step);
            }
            Syndrome::RnrNak(timer) => {
                if self.rnr_until.is_none() {
                    self.wait_for_receive(qp, step, timer);
                }
            }
            Syndrome::InvalidRequest => self.fail_head(qp, step, CqeSyndrome::RemoteInvalReq),
            Syndrome::RemoteAccess => self.fail_head(qp, step, CqeSyndrome::RemoteAccess),
            Syndrome::RemoteOperational => self.fail_head(qp, step, CqeSyndrome::RemoteOp),
        }
    }

    fn handle_read_response(
        &mut self,
        qp: &mut QpContext,
        step: &mut QpStep<'_, '_>,
        packet: &TransportPart<'_>,
        place: Place,
    ) {
        let psn = packet.bth.psn;
        if self.acknowledge(qp, step, psn) == Acknowledged::ResponseMissing {
            qp.counts(step).missing_responses += 1;
            self.retransmit_once(qp, step);
            return;
        }
        let (mtu, access) = (qp.mtu() as u64, qp.access(Right::LocalWrite));
        let Some(head) = self.ops.front() else { return };
        if head.kind() != Kind::Read || psn != psn::add(head.first_psn, head.received) {
            return;
        }
        let last = head.received + 1 == head.psns;
        let offset = u64::from(head.received) * mtu;
        let expected = if last { head.len - offset.min(head.len) } else { mtu };
        if place.is_end() != last || packet.payload.len() as u64 != expected {
            self.fail_head(qp, step, CqeSyndrome::BadResp);
            return;
        }
        let list = pointers(head.data());
        match scatter(step, access, list, offset, &packet.payload) {
            Ok(()) => {}
            Err(ScatterError::TooLong) => return self.fail_head(qp, step, CqeSyndrome::LocalLength),
            Err(ScatterError::Key(_)) => return self.fail_head(qp, step, CqeSyndrome::LocalProt),
        }
        if let Some(head) = self.ops.front_mut() {
            head.received += 1;
        }
        if last {
            self.retire(qp, step);
        } else {
            self.advance_to(psn::add(psn, 1));
        }
        self.note_progress(qp, step.ctx.now);
    }

    fn handle_atomic_acknowledge(&mut self, qp: &mut QpContext, step: &mut QpStep<'_, '_>, packet: &TransportPart<'_>) {
        if self.acknowledge(qp, step, packet.bth.psn) == Acknowledged::ResponseMissing {
            qp.counts(step).missing_responses += 1;
            self.retransmit_once(qp, step);
            return;
        }
        let access = qp.access(Right::LocalWrite);
        let Some(head) = self.ops.front() else { return };
        if head.kind() != Kind::Atomic || head.first_psn != packet.bth.psn {
            return;
        }
        let Some(original) = packet.atomic_ack else { return };
        let bytes = step.shared.config.atomic_bytes(original, head.len as usize);
        let list = pointers(head.data());
        match scatter(step, access, list, 0, &bytes) {
            Ok(()) => {
                self.retire(qp, step);
                self.note_progress(qp, step.ctx.now);
            }
            Err(ScatterError::TooLong) => self.fail_head(qp, step, CqeSyndrome::LocalLength),
            Err(ScatterError::Key(_)) => self.fail_head(qp, step, CqeSyndrome::LocalProt),
        }
    }
}

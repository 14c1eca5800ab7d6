//! The responder of a queue pair: requests checked and executed in order, responses queued and sent.

pub(super) mod aeth_credit;
pub(super) mod error_poll;
pub(super) mod execute;
pub(super) mod flush;
pub(super) mod receive;
pub(super) mod reply;
pub(super) mod state;
pub(super) mod unreliable;
pub(super) mod xrc;

use bareverbs_mlx5_spec::{CqeSyndrome, EventType, Qpc, QpcState};

use crate::engine::event::EngineEvent;
use crate::engine::psn;
use crate::engine::qp::context::QpContext;
use crate::engine::resources::QpStep;
use crate::engine::responder::state::{ACKNOWLEDGED, Fatal, Inbound, Refusal, Reply, Responder, Stop};
use crate::packet::{Operation, Packet, Place, Syndrome, TransportPart};
use crate::rejection::Rejection;

impl Responder {
    /// Handles a request packet of a connected peer.
    pub(in crate::engine) fn handle_request(&mut self, qp: &mut QpContext, step: &mut QpStep<'_, '_>, packet: &Packet<'_>) {
        if !qp.can_receive() || self.fatal_queued {
            return;
        }
        let is_first = !self.established;
        if is_first {
            self.established = true;
            if qp.state == QpcState::Rtr {
                let event = EngineEvent::Qp { event: EventType::CommEstablished, qpn: qp.qpn };
                step.shared.events.push_back(event);
            }
        }
        let psn = packet.transport.bth.psn;
        let ahead = psn::ahead(psn, self.expected_psn);
        // Of the first alone: each packet has another, and later ones are lost or come twice on any wire.
        if is_first && ahead != 0 {
            step.ctx.reject(Rejection::Psn { qpn: qp.qpn, psn, expected: self.expected_psn });
        }
        if ahead > 0 {
            qp.counts(step).out_of_sequence += 1;
            if !self.nak_sent {
                self.nak_sent = true;
                step.ctx.note(|| format!("QP {:#x}: PSN {psn:#x} with a gap before it", qp.qpn));
                let expected = self.expected_psn;
                self.acknowledge(&step.shared.registry, expected, Syndrome::SequenceError);
            }
            return;
        }
        if ahead < 0 {
            self.handle_duplicate(qp, step, &packet.transport);
            return;
        }
        self.nak_sent = false;
        let done = match self.resolve_xrc_srq(qp, step, &packet.transport) {
            Ok(()) => self.execute_request(qp, step, packet),
            Err(refusal) => Err(refusal.into()),
        };
        match done {
            Ok(()) => {}
            Err(Stop::NotReady) => {
                qp.counts(step).out_of_buffer += 1;
                self.report_no_receive(qp, step, true);
                self.nak_sent = true;
                let timer = qp.get(Qpc::MIN_RNR_NAK) as u8;
                self.acknowledge(&step.shared.registry, psn, Syndrome::RnrNak(timer));
            }
            Err(Stop::Refused(refusal)) => self.refuse_request(step, psn, &refusal),
        }
    }

    fn refuse_request(&mut self, step: &QpStep<'_, '_>, psn: u32, refusal: &Refusal) {
        let held = match self.message.take() {
            Some(Inbound::Send { receive, .. }) if self.can_complete(step) => Some(receive.index),
            _ => None,
        };
        // A receive in use completes with the error; there is no event then.
        let (receive, event) = match (held, refusal.receive) {
            (Some(index), syndrome) => (Some((index, syndrome.unwrap_or(CqeSyndrome::LocalQpOp))), None),
            (None, _) => (None, refusal.event),
        };
        self.fatal_queued = true;
        let fatal = Fatal { psn, syndrome: refusal.syndrome, receive, event };
        self.replies.push_back(Reply::Fatal(fatal));
    }

    /// A packet that came before: acknowledged, read or answered again, never executed again.
    fn handle_duplicate(&mut self, qp: &QpContext, step: &mut QpStep<'_, '_>, packet: &TransportPart<'_>) {
        step.shared.stats.duplicates += 1;
        qp.counts(step).duplicates += 1;
        let room = self.pending_responses(true) < qp.depth(Qpc::LOG_RRA_MAX);
        match packet.bth.opcode.operation {
            Operation::ReadRequest => {
                let (Some(reth), true) = (packet.reth, room) else { return };
                // A read repeated in the middle of a message to another queue can wait for the next repetition.
                if self.resolve_xrc_srq(qp, step, packet).is_ok() && self.check_read(qp, step, &reth).is_ok() {
                    self.queue_read(qp, packet.bth.psn, reth, true);
                }
            }
            operation if operation.is_atomic() => {
                // Sequence numbers wrap after 2^24 packets: the newest atomic with this one is meant.
                let saved = self.atomics.iter().rev().find(|(psn, _)| *psn == packet.bth.psn);
                let (Some(&(psn, original)), true) = (saved, room) else { return };
                let msn = self.msn;
                self.replies.push_back(Reply::Atomic { psn, original, msn, again: true });
            }
            _ => {
                let newest = psn::add(self.expected_psn, psn::HALF * 2 - 1);
                self.acknowledge(&step.shared.registry, newest, ACKNOWLEDGED);
            }
        }
    }

    pub(in crate::engine) fn execute_request(
        &mut self,
        qp: &mut QpContext,
        step: &mut QpStep<'_, '_>,
        packet: &Packet<'_>,
    ) -> Result<(), Stop> {
        let operation = packet.transport.bth.opcode.operation;
        let place = operation.place();
        self.check_shape(qp, step, &packet.transport, operation, place)?;
        match operation {
            Operation::ReadRequest => qp.counts(step).reads += 1,
            operation if operation.is_atomic() => qp.counts(step).atomics += 1,
            _ => {}
        }
        match operation {
            Operation::Send(_) | Operation::SendImmediate(_) | Operation::SendInvalidate(_) => {
                self.handle_send(qp, step, packet, place)?;
            }
            Operation::Write(_) | Operation::WriteImmediate(_) => {
                let done = self.handle_write(qp, step, packet, place);
                // A request without a receive is repeated.
                if place.is_start() && !matches!(done, Err(Stop::NotReady)) {
                    qp.counts(step).writes += 1;
                }
                done?;
            }
            Operation::ReadRequest => {
                let reth = packet.transport.reth.ok_or(Refusal::INVALID)?;
                self.check_read(qp, step, &reth)?;
                self.room_for_response(qp)?;
                self.msn = psn::add(self.msn, 1);
                self.queue_read(qp, packet.transport.bth.psn, reth, false);
                let packets = qp.packets_of(reth.len);
                self.expected_psn = psn::add(packet.transport.bth.psn, packets);
                return Ok(());
            }
            Operation::CompareSwap | Operation::FetchAdd | Operation::MaskedCompareSwap | Operation::MaskedFetchAdd => {
                self.handle_atomic(qp, step, &packet.transport)?;
                self.expected_psn = psn::add(packet.transport.bth.psn, 1);
                return Ok(());
            }
            Operation::ReadResponse(_) | Operation::Acknowledge | Operation::AtomicAcknowledge => return Ok(()),
        }
        self.expected_psn = psn::add(packet.transport.bth.psn, 1);
        if place.is_end() {
            self.msn = psn::add(self.msn, 1);
        }
        if packet.transport.bth.ack_req && qp.service.is_reliable() {
            self.acknowledge(&step.shared.registry, packet.transport.bth.psn, ACKNOWLEDGED);
        }
        Ok(())
    }

    pub(in crate::engine) fn room_for_response(&self, qp: &QpContext) -> Result<(), Refusal> {
        if self.pending_responses(false) < qp.depth(Qpc::LOG_RRA_MAX) { Ok(()) } else { Err(Refusal::INVALID) }
    }

    /// Returns whether the packet fits the message that is arriving, and its length its place.
    fn check_shape(
        &self,
        qp: &QpContext,
        step: &mut QpStep<'_, '_>,
        packet: &TransportPart<'_>,
        operation: Operation,
        place: Place,
    ) -> Result<(), Refusal> {
        let sends = matches!(operation, Operation::Send(_) | Operation::SendImmediate(_) | Operation::SendInvalidate(_));
        let fits = match &self.message {
            None => place.is_start(),
            Some(Inbound::Send { .. }) => sends && !place.is_start(),
            Some(Inbound::Write { .. }) => {
                matches!(operation, Operation::Write(_) | Operation::WriteImmediate(_)) && !place.is_start()
            }
        };
        let len = packet.payload.len();
        let length_fits = match (operation, place) {
            (Operation::ReadRequest | Operation::CompareSwap | Operation::FetchAdd, _) => len == 0,
            (_, Place::First | Place::Middle) => len == qp.mtu(),
            (_, Place::Last) => (1..=qp.mtu()).contains(&len),
            (_, Place::Only) => len <= qp.mtu(),
        };
        let (len, mtu) = (len as u64, qp.mtu() as u64);
        // Another path MTU is the common mistake of a program; what else is wrong here is one of a device.
        if fits && (len > mtu || len < mtu && matches!(place, Place::First | Place::Middle)) {
            step.ctx.reject(Rejection::PacketLength { qpn: qp.qpn, len, mtu });
        }
        if fits && length_fits { Ok(()) } else { Err(Refusal::INVALID) }
    }
}

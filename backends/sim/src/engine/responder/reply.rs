//! Responses of the responder: queued in the order of the requests, sent when there is room.

use bareverbs_mlx5_spec::{EventType, QpcState};

use crate::engine::memory::key::{Access, Right};
use crate::engine::psn;
use crate::engine::qp::context::QpContext;
use crate::engine::resources::QpStep;
use crate::engine::responder::aeth_credit;
use crate::engine::responder::state::{ACKNOWLEDGED, Fatal, Inbound, Reply, Responder};
use crate::engine::responder::xrc::domain_of;
use crate::engine::srq::SrqName;
use crate::packet::{Aeth, Operation, Place, Reth, Syndrome};

/// Maximum responses that one queue pair sends in a turn.
const BUDGET: u32 = 64;

impl Responder {
    pub(in crate::engine) fn queue_read(&mut self, qp: &QpContext, psn: u32, source: Reth, again: bool) {
        let (packets, srq, msn) = (qp.packets_of(source.len), self.xrc_srq, self.msn);
        self.replies.push_back(Reply::Read { psn, packets, sent: 0, source, srq, msn, again });
    }

    /// Sends queued responses. Returns `true` if there are more.
    pub(in crate::engine) fn respond(&mut self, qp: &mut QpContext, step: &mut QpStep<'_, '_>) -> bool {
        for _ in 0..BUDGET {
            if !step.shared.has_room() || step.ctx.meter.is_spent() {
                break;
            }
            let Some(reply) = self.next_reply() else { return false };
            match reply {
                Reply::Acknowledge { psn, syndrome, msn } => self.send_acknowledge(qp, step, psn, syndrome, msn),
                Reply::Atomic { psn, original, msn, .. } => {
                    let mut packet = qp.packet(step.shared, Operation::AtomicAcknowledge, psn);
                    packet.transport.aeth = Some(Aeth { syndrome: self.acknowledged(qp, step), msn });
                    packet.transport.atomic_ack = Some(original);
                    step.transmit(packet);
                }
                Reply::Read { psn, packets, sent, source, srq, msn, again } => {
                    if !self.send_read_response(qp, step, psn, (sent, packets), (&source, srq), msn) {
                        // The peer may have had everything from the first response, and have invalidated the key since. If it
                        // still wants the data, it asks once more.
                        if again {
                            continue;
                        }
                        let at = psn::add(psn, sent);
                        let event = Some(EventType::WqAccessError);
                        self.send_fatal(
                            qp,
                            step,
                            &Fatal { psn: at, syndrome: Some(Syndrome::RemoteAccess), receive: None, event },
                        );
                        return false;
                    }
                    if sent + 1 < packets {
                        let rest = Reply::Read { psn, packets, sent: sent + 1, source, srq, msn, again };
                        self.replies.push_front(rest);
                    }
                }
                Reply::Fatal(fatal) => {
                    self.send_fatal(qp, step, &fatal);
                    return false;
                }
            }
        }
        !self.replies.is_empty()
    }

    /// Returns an acknowledgement with the receives that are posted now.
    fn acknowledged(&self, qp: &QpContext, step: &QpStep<'_, '_>) -> Syndrome {
        let Some((posted, _)) = qp.rq.as_ref().and_then(|_| qp.record(step)) else { return ACKNOWLEDGED };
        // The message that is arriving is not counted as done yet, so its receive is not as used.
        let in_use = matches!(self.message, Some(Inbound::Send { .. }));
        Syndrome::Ack(aeth_credit::encode(u32::from(posted.wrapping_sub(self.consumed)) + u32::from(in_use)))
    }

    pub(in crate::engine) fn send_acknowledge(
        &self,
        qp: &QpContext,
        step: &mut QpStep<'_, '_>,
        psn: u32,
        syndrome: Syndrome,
        msn: u32,
    ) {
        let mut packet = qp.packet(step.shared, Operation::Acknowledge, psn);
        let syndrome = if let Syndrome::Ack(_) = syndrome { self.acknowledged(qp, step) } else { syndrome };
        packet.transport.aeth = Some(Aeth { syndrome, msn });
        step.transmit(packet);
    }

    pub(in crate::engine) fn send_read_response(
        &self,
        qp: &QpContext,
        step: &mut QpStep<'_, '_>,
        psn: u32,
        (sent, packets): (u32, u32),
        (source, srq): (&Reth, Option<SrqName>),
        msn: u32,
    ) -> bool {
        let place = Place::of(sent, packets);
        let offset = u64::from(sent) * qp.mtu() as u64;
        let len = u64::from(source.len).saturating_sub(offset).min(qp.mtu() as u64) as usize;
        let mut packet = qp.packet(step.shared, Operation::ReadResponse(place), psn::add(psn, sent));
        packet.transport.aeth = (place != Place::Middle).then(|| Aeth { syndrome: self.acknowledged(qp, step), msn });
        let addr = source.addr.wrapping_add(offset);
        let Some(pd) = domain_of(srq, qp, step) else { return false };
        let access = Access { pd, right: Right::RemoteRead, qpn: qp.qpn };
        let mut payload = step.payload(len);
        let read = step.shared.keys.read(step.ctx, (source.rkey, addr), access, &mut payload);
        if read.is_ok() {
            packet.transport.payload = payload.into();
            step.transmit(packet);
        }
        read.is_ok()
    }

    /// Sends the last response and moves to the error state.
    pub(in crate::engine) fn send_fatal(&mut self, qp: &mut QpContext, step: &mut QpStep<'_, '_>, fatal: &Fatal) {
        if let Some(syndrome) = fatal.syndrome {
            self.send_acknowledge(qp, step, fatal.psn, syndrome, self.msn);
        }
        if let Some((index, syndrome)) = fatal.receive {
            self.fail_receive(qp, step, index, syndrome);
        }
        if qp.state != QpcState::Err {
            qp.fail(step, fatal.event);
        }
    }
}

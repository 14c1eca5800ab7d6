//! Receives: taken from the ring of a queue pair or a shared one, and completed.

use bareverbs_mlx5_spec::{CqeOpcode, CqeSyndrome, EventType, Qpc};

use crate::audit::Finding;
use crate::engine::cq::{Completion, Source};
use crate::engine::event::EngineEvent;
use crate::engine::qp::context::{QpContext, user_index, vendor};
use crate::engine::resources::QpStep;
use crate::engine::responder::state::{Inbound, NoReceive, Receive, ReceiveDone, Refusal, Reply, Responder, Stop};
use crate::packet::{LinkCompletion, Packet, Syndrome};
use crate::rejection::Rejection;
use crate::trace::Record;
use crate::wqe_decode::decode_receive;

impl Responder {
    /// Takes the oldest posted receive.
    pub(in crate::engine) fn next_receive(
        &mut self,
        qp: &QpContext,
        step: &mut QpStep<'_, '_>,
    ) -> Option<Result<Receive, NoReceive>> {
        if let Some(spare) = self.take_spare() {
            return Some(Ok(spare));
        }
        if let Some(srqn) = self.xrc_srq.map(|srq| srq.srqn).or(qp.srq) {
            return self.next_srq_receive(qp, step, srqn);
        }
        let (posted, _) = qp.record(step)?;
        let pd = qp.pd();
        let ring = qp.rq.as_ref()?;
        let index = self.consumed;
        let available = posted.wrapping_sub(index);
        if available == 0 {
            return None;
        }
        if u32::from(available) > ring.entries() {
            step.ctx.audit.report(Finding::RingOverrun { qpn: qp.qpn, posted, completed: index });
        }
        let mut bytes = vec![0; ring.stride()];
        let read = ring.read(step.ctx.memory, u32::from(index), &mut bytes);
        self.consumed = index.wrapping_add(1);
        step.ctx.trace(Record::RecvWqe { qpn: qp.qpn, index, bytes: &bytes });
        Some(match (read, decode_receive(&bytes)) {
            (Ok(()), Ok(list)) => Ok(Receive { index, pd, list }),
            _ => {
                // It can name no buffer, but it can fail.
                self.message = Some(Inbound::Send { receive: Receive { index, pd, list: Vec::new() }, written: 0 });
                Err(NoReceive::BadWqe)
            }
        })
    }

    pub(in crate::engine) fn next_srq_receive(
        &mut self,
        qp: &QpContext,
        step: &mut QpStep<'_, '_>,
        srqn: u32,
    ) -> Option<Result<Receive, NoReceive>> {
        let wqe = match step.shared.srqs.pop(step.ctx.memory, srqn)? {
            Ok(wqe) => wqe,
            Err(failed) => {
                step.ctx.note(|| format!("SRQ {srqn:#x}: its record, a link or a WQE leads nowhere"));
                if failed.first {
                    step.shared.events.push_back(EngineEvent::Srq { event: EventType::SrqCatasError, srqn });
                }
                return Some(Err(NoReceive::Queue));
            }
        };
        let (index, pd) = (wqe.index, wqe.pd);
        if wqe.below_limit {
            step.shared.events.push_back(EngineEvent::Srq { event: EventType::SrqRqLimit, srqn });
        }
        step.ctx.trace(Record::RecvWqe { qpn: qp.qpn, index, bytes: &wqe.segments });
        let list = decode_receive(&wqe.segments);
        Some(list.map(|list| Receive { index, pd, list }).map_err(|_| {
            self.message = Some(Inbound::Send { receive: Receive { index, pd, list: Vec::new() }, written: 0 });
            NoReceive::BadWqe
        }))
    }

    /// Records that a message found no receive.
    pub(in crate::engine) fn report_no_receive(&self, qp: &QpContext, step: &mut QpStep<'_, '_>, answered: bool) {
        let srqn = self.xrc_srq.map(|srq| srq.srqn).or(qp.srq);
        step.ctx.reject(Rejection::NoReceive { qpn: qp.qpn, srqn, answered });
    }

    pub(in crate::engine) fn require_receive(&mut self, qp: &QpContext, step: &mut QpStep<'_, '_>) -> Result<Receive, Stop> {
        match self.next_receive(qp, step) {
            None => Err(Stop::NotReady),
            Some(Ok(receive)) => Ok(receive),
            Some(Err(NoReceive::BadWqe)) => {
                Err(Refusal::of_receive(Syndrome::RemoteOperational, CqeSyndrome::LocalQpOp).into())
            }
            Some(Err(NoReceive::Queue)) => Err(Refusal::QUEUE.into()),
        }
    }

    pub(in crate::engine) fn finish_receive(
        &mut self,
        qp: &mut QpContext,
        step: &mut QpStep<'_, '_>,
        packet: &Packet<'_>,
        opcode: CqeOpcode,
        index: u16,
        byte_cnt: u32,
    ) {
        let done = ReceiveDone {
            opcode,
            index,
            byte_cnt,
            // Without either, a datagram's completion carries its P_Key, by which a host responds.
            immediate: packet
                .transport
                .immediate
                .or(packet.transport.invalidate)
                .or(packet.transport.deth.map(|_| packet.transport.bth.pkey.into()))
                .unwrap_or(0),
            solicited: packet.transport.bth.solicited,
            source: source(qp, packet),
            error: None,
        };
        self.complete_receive(qp, step, done);
    }

    /// Completes a receive with an error.
    pub(in crate::engine) fn fail_receive(
        &mut self,
        qp: &mut QpContext,
        step: &mut QpStep<'_, '_>,
        index: u16,
        syndrome: CqeSyndrome,
    ) {
        let done = ReceiveDone {
            opcode: CqeOpcode::RespErr,
            index,
            byte_cnt: 0,
            immediate: 0,
            solicited: false,
            source: Source::default(),
            error: Some(syndrome),
        };
        self.complete_receive(qp, step, done);
    }

    /// Returns the index of the receive that an arriving message or an unsent fatal response uses.
    pub(in crate::engine) fn held_receive(&self) -> Option<u16> {
        let fatal = self.replies.iter().find_map(|reply| match reply {
            Reply::Fatal(fatal) => fatal.receive.map(|(index, _)| index),
            _ => None,
        });
        match &self.message {
            Some(Inbound::Send { receive, .. }) => Some(receive.index),
            _ => fatal,
        }
    }

    /// Completes a receive.
    pub(in crate::engine) fn complete_receive(&mut self, qp: &mut QpContext, step: &mut QpStep<'_, '_>, done: ReceiveDone) {
        let (cqn, user_index) = match self.xrc_srq {
            // Receives of a destroyed queue do not complete.
            Some(name) => match step.shared.srqs.find(name) {
                Some(srq) => (srq.spec.cqn, user_index(srq.spec.user_index, name.srqn, step.shared)),
                None => return,
            },
            None => (qp.get(Qpc::CQN_RCV), qp.recv_user_index(step.shared)),
        };
        let completion = Completion {
            opcode: if done.error.is_some() { CqeOpcode::RespErr } else { done.opcode },
            qpn: qp.qpn,
            user_index,
            wqe_counter: done.index,
            send_opcode: 0,
            byte_cnt: done.byte_cnt,
            immediate: done.immediate,
            solicited: done.solicited,
            source: done.source,
            error: done.error.map(|syndrome| (syndrome, vendor(syndrome))),
            frame: None,
        };
        qp.complete(step, cqn, &completion);
    }
}

/// Returns where a message came from.
fn source(qp: &QpContext, packet: &Packet<'_>) -> Source {
    let LinkCompletion { slid, sl, grh, vlan } = packet.link.completion();
    Source {
        slid,
        sl,
        qpn: packet.transport.deth.map_or(qp.get(Qpc::REMOTE_QPN), |deth| deth.source_qpn),
        // Of datagrams alone, as `ibv_poll_cq(3)` has `IBV_WC_GRH`.
        grh: packet.transport.deth.is_some() && grh,
        vlan: vlan.filter(|_| packet.transport.deth.is_some()),
    }
}

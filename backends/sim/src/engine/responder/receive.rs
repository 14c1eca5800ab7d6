//! Receives: taken from the ring of a queue pair or a shared one, and completed.

use bareverbs_mlx5_spec::{CqeOpcode, CqeSyndrome, EventType, Qpc};

use crate::audit::Finding;
use crate::engine::config::EngineEvent;
use crate::engine::cq::Source;
use crate::engine::memory::key::{Access, Right};
use crate::engine::qp::{Qp, ReceiveDone};
use crate::engine::responder::reply::Reply;
use crate::engine::responder::{Inbound, Refusal, Stop};
use crate::engine::work::Work;
use crate::packet::{Packet, Syndrome};
use crate::trace::Record;
use crate::wqe::{DataPointer, decode_receive};

/// A receive in use.
#[derive(Debug)]
pub(in crate::engine) struct Receive {
    pub(in crate::engine) index: u16,
    /// Domain of its keys: that of the queue it was posted to, which a shared one has for itself.
    pub(in crate::engine) pd: u32,
    pub(in crate::engine) list: Vec<DataPointer>,
}

/// Why a posted receive cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum NoReceive {
    /// It could not be read or makes no sense. The message in progress holds what of it can complete.
    Element,
    /// The shared queue has failed, and so does who takes from it.
    Queue,
}

impl Receive {
    /// Right of a queue pair to place bytes in it.
    pub(super) fn access(&self, qpn: u32) -> Access {
        Access { right: Right::LocalWrite, pd: self.pd, qpn }
    }
}

impl Qp {
    /// Takes the oldest posted receive.
    pub(in crate::engine) fn next_receive(&mut self, work: &mut Work<'_, '_>) -> Option<Result<Receive, NoReceive>> {
        if let Some(spare) = self.responder.take_spare() {
            return Some(Ok(spare));
        }
        if let Some(srqn) = self.responder.xrc_srq.map(|srq| srq.srqn).or(self.srq) {
            return self.next_srq_receive(work, srqn);
        }
        let (posted, _) = self.record(work)?;
        let pd = self.pd();
        let ring = self.rq.as_ref()?;
        let index = self.responder.consumed;
        let available = posted.wrapping_sub(index);
        if available == 0 {
            return None;
        }
        if u32::from(available) > ring.entries() {
            work.env.audit.report(Finding::RingOverrun { qpn: self.qpn, posted, completed: index });
        }
        let mut bytes = vec![0; ring.stride()];
        let read = ring.read(work.env.memory, u32::from(index), &mut bytes);
        self.responder.consumed = index.wrapping_add(1);
        work.env.trace(Record::RecvWqe { qpn: self.qpn, index, bytes: &bytes });
        Some(match (read, decode_receive(&bytes)) {
            (Ok(()), Ok(list)) => Ok(Receive { index, pd, list }),
            _ => {
                // It can name no buffer, but it can fail.
                self.responder.message = Some(Inbound::Send { receive: Receive { index, pd, list: Vec::new() }, written: 0 });
                Err(NoReceive::Element)
            }
        })
    }

    pub(in crate::engine) fn next_srq_receive(
        &mut self,
        work: &mut Work<'_, '_>,
        srqn: u32,
    ) -> Option<Result<Receive, NoReceive>> {
        let element = match work.shared.srqs.pop(work.env.memory, srqn)? {
            Ok(element) => element,
            Err(failed) => {
                work.env.note(|| format!("SRQ {srqn:#x}: its record, a link or an element leads nowhere"));
                if failed.first {
                    work.shared.events.push_back(EngineEvent::Srq { event: EventType::SrqCatasError, srqn });
                }
                return Some(Err(NoReceive::Queue));
            }
        };
        let (index, pd) = (element.index, element.pd);
        if element.below_limit {
            work.shared.events.push_back(EngineEvent::Srq { event: EventType::SrqRqLimit, srqn });
        }
        work.env.trace(Record::RecvWqe { qpn: self.qpn, index, bytes: &element.segments });
        let list = decode_receive(&element.segments);
        Some(list.map(|list| Receive { index, pd, list }).map_err(|_| {
            self.responder.message = Some(Inbound::Send { receive: Receive { index, pd, list: Vec::new() }, written: 0 });
            NoReceive::Element
        }))
    }

    pub(in crate::engine) fn require_receive(&mut self, work: &mut Work<'_, '_>) -> Result<Receive, Stop> {
        match self.next_receive(work) {
            None => Err(Stop::NotReady),
            Some(Ok(receive)) => Ok(receive),
            Some(Err(NoReceive::Element)) => {
                Err(Refusal::of_receive(Syndrome::RemoteOperational, CqeSyndrome::LocalQpOp).into())
            }
            Some(Err(NoReceive::Queue)) => Err(Refusal::QUEUE.into()),
        }
    }

    pub(in crate::engine) fn finish_receive(
        &mut self,
        work: &mut Work<'_, '_>,
        packet: &Packet,
        opcode: CqeOpcode,
        index: u16,
        byte_cnt: u32,
    ) {
        let done = ReceiveDone {
            opcode,
            index,
            byte_cnt,
            // Without either, a datagram's completion carries its P_Key, by which a host responds.
            immediate: packet.immediate.or(packet.invalidate).or(packet.deth.map(|_| packet.bth.pkey.into())).unwrap_or(0),
            solicited: packet.bth.solicited,
            source: self.source(packet),
            error: None,
        };
        self.complete_receive(work, done);
    }

    pub(in crate::engine) fn source(&self, packet: &Packet) -> Source {
        Source {
            lid: packet.lrh.slid,
            sl: packet.lrh.sl,
            qpn: packet.deth.map_or(self.get(Qpc::REMOTE_QPN), |deth| deth.source_qpn),
            global: packet.grh.is_some(),
        }
    }

    /// Completes a receive with an error.
    pub(in crate::engine) fn fail_receive(&mut self, work: &mut Work<'_, '_>, index: u16, syndrome: CqeSyndrome) {
        let done = ReceiveDone {
            opcode: CqeOpcode::RespErr,
            index,
            byte_cnt: 0,
            immediate: 0,
            solicited: false,
            source: Source::default(),
            error: Some(syndrome),
        };
        self.complete_receive(work, done);
    }

    /// The index of the receive that an arriving message or an unsent fatal response holds.
    pub(in crate::engine) fn held_receive(&self) -> Option<u16> {
        let fatal = self.responder.replies.iter().find_map(|reply| match reply {
            Reply::Fatal(fatal) => fatal.receive.map(|(index, _)| index),
            _ => None,
        });
        match &self.responder.message {
            Some(Inbound::Send { receive, .. }) => Some(receive.index),
            _ => fatal,
        }
    }
}

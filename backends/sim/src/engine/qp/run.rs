//! A queue pair from outside: packets that it takes, work that it does, its context as a query shows it.

use bareverbs::Instant;
use bareverbs_mlx5_spec::{Ads, Qpc, QpcState, ViewMut};

use crate::engine::psn;
use crate::engine::qp::{Qp, Service};
use crate::engine::work::{QpResources, Work};
use crate::packet::{PERMISSIVE_LID, Packet, same_partition};

impl Qp {
    /// Whether a packet is for this queue pair: service and path.
    pub(in crate::engine) fn accepts(&self, packet: &Packet, shared: &QpResources) -> bool {
        let lid = packet.lrh.dlid;
        if lid != shared.config.lid && lid != PERMISSIVE_LID && !packet.is_multicast() {
            return false;
        }
        if packet.bth.opcode.transport != self.service.transport() || self.service == Service::RegUmr {
            return false;
        }
        !self.service.is_connected() || u32::from(packet.lrh.slid) == self.path(Ads::RLID)
    }

    /// Whether a packet comes from the partition of this queue pair.
    pub(in crate::engine) fn shares_partition(&self, packet: &Packet, shared: &QpResources) -> bool {
        same_partition(shared.pkey(self.path(Ads::PKEY_INDEX)), packet.bth.pkey)
    }

    pub(in crate::engine) fn handle_packet(&mut self, work: &mut Work<'_, '_>, packet: &Packet) {
        match self.service {
            Service::Rc | Service::Xrc if packet.bth.opcode.operation.is_response() => self.handle_response(work, packet),
            Service::Rc => self.handle_request(work, packet),
            // An initiator takes no requests.
            Service::Xrc if self.sq.is_some() => {}
            Service::Xrc => self.handle_request(work, packet),
            Service::Uc => self.handle_uc_request(work, packet),
            Service::Ud => self.handle_datagram(work, packet),
            Service::RegUmr => {}
        }
    }

    /// Does what can be done now. `true` if there is more.
    pub(in crate::engine) fn run(&mut self, work: &mut Work<'_, '_>) -> bool {
        self.check_timers(work);
        let mut more = false;
        if self.state != QpcState::Err {
            more = self.respond(work);
            more |= self.send(work);
        }
        match self.state {
            QpcState::Err => self.flush(work),
            QpcState::SqEr => self.flush_sends(work) || more,
            _ => more,
        }
    }

    pub(in crate::engine) fn next_timer(&self) -> Option<Instant> {
        [self.requester.ack_due, self.requester.rnr_until].into_iter().flatten().min()
    }

    pub(in crate::engine) fn query(&self, out: &mut ViewMut<'_, Qpc>) {
        for (to, from) in out.as_bytes_mut().iter_mut().zip(self.context().as_bytes()) {
            *to = *from;
        }
        let requester = &self.requester;
        out.set(Qpc::NEXT_RCV_PSN, self.responder.expected_psn)
            .set(Qpc::RMSN, self.responder.msn)
            .set(Qpc::HW_SQ_WQEBB_COUNTER, u32::from(requester.retired))
            .set(Qpc::SW_SQ_WQEBB_COUNTER, u32::from(requester.posted))
            .set(Qpc::HW_RQ_COUNTER, u32::from(self.responder.consumed));
        if self.state == QpcState::Sqd && !requester.ops.is_empty() {
            out.set(Qpc::STATE, QpcState::SqDraining.code());
        }
        if matches!(self.state, QpcState::Rts | QpcState::Sqd | QpcState::SqDraining) {
            out.set(Qpc::NEXT_SEND_PSN, requester.next_psn())
                .set(Qpc::LAST_ACKED_PSN, psn::add(requester.unacked, (1 << 24) - 1));
        }
    }
}

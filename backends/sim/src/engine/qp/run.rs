//! A queue pair from outside: packets that it takes, work that it does, its context as a query shows it.

use bareverbs::Instant;
use bareverbs_mlx5_spec::{Ads, Qpc, QpcState, ViewMut};

use crate::engine::psn;
use crate::engine::qp::Qp;
use crate::engine::qp::context::Service;
use crate::engine::work::{QpResources, Work};
use crate::packet::{Addressing, GENERAL_QPN, MULTICAST_QPN, PERMISSIVE_LID, Packet, SUBNET_QPN, same_partition};

impl Qp {
    /// Whether a packet is for this queue pair: service and local route.
    pub(in crate::engine) fn accepts(&self, addressing: &Addressing, shared: &QpResources) -> bool {
        let Addressing { lrh, transport, dest_qpn } = *addressing;
        let group = lrh.is_multicast() && dest_qpn == MULTICAST_QPN;
        if lrh.dlid != shared.config.lid && lrh.dlid != PERMISSIVE_LID && !group {
            return false;
        }
        if transport != Some(self.context.service.transport()) || self.context.service == Service::RegUmr {
            return false;
        }
        !self.context.service.is_connected() || u32::from(lrh.slid) == self.context.path(Ads::RLID)
    }

    /// Whether the global route of a packet, if it has one, comes from the peer of this connection. That it ends at this port is
    /// checked for all packets.
    pub(in crate::engine) fn accepts_global_route(&self, packet: &Packet<'_>) -> bool {
        let Some(route) = packet.grh else { return true };
        let path = self.context.qpc().sub(Qpc::PRIMARY_ADDRESS_PATH);
        !self.context.service.is_connected() || !path.is_set(Ads::GRH) || path.bytes(Ads::RGID_RIP) == route.sgid
    }

    /// Whether a packet comes from the partition of this queue pair. Subnet management knows none; the queue pair of general
    /// management is in every partition of its port (InfiniBand Architecture 10.9.3).
    pub(in crate::engine) fn shares_partition(&self, packet: &Packet<'_>, shared: &QpResources) -> bool {
        match self.context.wire_qpn() {
            SUBNET_QPN => true,
            GENERAL_QPN => shared.config.shares_partition(packet.bth.pkey),
            _ => same_partition(shared.pkey(self.context.path(Ads::PKEY_INDEX)), packet.bth.pkey),
        }
    }

    pub(in crate::engine) fn handle_packet(&mut self, work: &mut Work<'_, '_>, packet: &Packet<'_>) {
        match self.context.service {
            Service::Rc | Service::Xrc if packet.bth.opcode.operation.is_response() => {
                self.requester.handle_response(&mut self.context, work, packet)
            }
            Service::Rc => self.responder.handle_request(&mut self.context, work, packet),
            // An initiator takes no requests.
            Service::Xrc if self.context.sq.is_some() => {}
            Service::Xrc => self.responder.handle_request(&mut self.context, work, packet),
            Service::Uc => self.responder.handle_uc_request(&mut self.context, work, packet),
            Service::Ud => self.responder.handle_datagram(&mut self.context, work, packet),
            Service::RegUmr => {}
        }
    }

    /// Does what can be done now. `true` if there is more.
    pub(in crate::engine) fn run(&mut self, work: &mut Work<'_, '_>) -> bool {
        self.requester.check_timers(&mut self.context, work);
        let mut more = false;
        if self.context.state != QpcState::Err {
            more = self.responder.respond(&mut self.context, work);
            more |= self.requester.send(&mut self.context, work);
        }
        match self.context.state {
            QpcState::Err => self.flush(work),
            QpcState::SqEr => self.requester.flush_sends(&mut self.context, work) || more,
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

    /// Completes what is posted on both queues, as much as the turn allows. `true` if there is more.
    pub(in crate::engine) fn flush(&mut self, work: &mut Work<'_, '_>) -> bool {
        self.requester.flush_sends(&mut self.context, work) || self.responder.flush_receives(&mut self.context, work)
    }

    /// Whether requests were posted since the last flush.
    pub(in crate::engine) fn has_unflushed(&self, work: &Work<'_, '_>) -> bool {
        self.responder.has_unflushed_receives(&self.context, work) || self.requester.has_unflushed_sends(&self.context)
    }
}

//! Frames from the wire: decoded, validated (IBTA 9.6), and given to their queue pair.

use bareverbs_mlx5_spec::{Ads, Qpc};

use super::Engine;
use super::qp::Qp;
use super::qp::context::Service;
use super::resources::{QpResources, QpStep};
use crate::management::{self, Violation};
use crate::packet::{
    Addressing, CongestionNotification, GENERAL_QPN, MULTICAST_QPN, Operation, Packet, SUBNET_QPN, is_marked, same_partition,
};
use crate::registry::FIRST_QPN;
use crate::rejection::Rejection;
use crate::step::StepContext;
use crate::trace::Record;

impl Engine {
    /// Takes a frame (LRH to ICRC, or an Ethernet frame without check sequence) from the wire. Answers are made by [`Engine::advance`].
    pub(crate) fn receive(&mut self, ctx: &mut StepContext<'_>, frame: &[u8]) {
        ctx.trace(Record::Received { bytes: frame });
        // The ICRC and the headers of a frame that nothing here takes are not worth their time.
        let addressing = self.shared.port.addressing(frame);
        if self.shared.port.is_ethernet() && !addressing.as_ref().is_some_and(|addressing| self.is_roce(addressing)) {
            let is_dropped = self.receive_frame(ctx, frame);
            if is_dropped && addressing.is_some_and(|addressing| addressing.transport.is_some()) {
                ctx.reject(Rejection::Packet { why: "a packet of RoCE for a GID that the table of this port does not have" });
            }
            return;
        }
        if let Some(addressing) = &addressing
            && self.shared.port.is_ethernet()
            && addressing.transport.is_none()
            && CongestionNotification::is_in(frame)
        {
            return self.receive_notification(ctx, frame, addressing);
        }
        if let Some(addressing) = addressing.filter(|addressing| self.has_no_taker(addressing)) {
            return self.drop_packet(ctx, Rejection::NoTaker { qpn: addressing.dest_qpn });
        }
        // Its queue pair has accepted it then, by the same fields.
        let is_accepted = addressing.is_some_and(|addressing| is_for_queue_pair(&addressing));
        let mut packet = match self.shared.port.decode(frame) {
            Ok(packet) => packet,
            Err(error) => {
                ctx.note(|| format!("frame dropped: {error}"));
                self.shared.stats.dropped += 1;
                self.shared.stats.malformed += 1;
                return;
            }
        };
        if packet.transport.payload.len() > usize::from(self.shared.config.max_mtu) {
            return self.drop_frame(ctx, "longer than the MTU of the port");
        }
        if let Err(broken) = self.shared.port.check(&packet) {
            return self.drop_frame(ctx, broken);
        }
        if packet.is_multicast() {
            return self.receive_multicast(ctx, &packet, frame.len());
        }
        if !self.shared.port.ends_route(&packet.link) {
            return self.drop_frame(ctx, "its route ends at another GID");
        }
        if self.is_management_request(&packet) {
            let subnet = packet.transport.bth.dest_qpn == SUBNET_QPN;
            if self.shared.management_requests.push(packet) {
                self.shared.stats.received.count(frame.len());
            } else {
                ctx.note(|| "datagram for an agent dropped: too many wait".to_owned());
                self.shared.stats.dropped += 1;
                self.shared.stats.subnet_management_dropped += u64::from(subnet);
            }
            return;
        }
        let qpn = self.local_qpn(packet.transport.bth.dest_qpn);
        let accepts = |qp: &&Qp| is_accepted || qp.accepts(&packet.addressing(), &self.shared);
        let Some(taker) = self.qps.get(&qpn).filter(accepts) else {
            return self.drop_packet(ctx, Rejection::NoTaker { qpn });
        };
        if !taker.accepts_global_route(&packet, &self.shared) {
            return self.drop_frame(ctx, "its route begins elsewhere than at the peer");
        }
        if !taker.shares_partition(&packet, &self.shared) {
            self.shared.stats.pkey_violations += 1;
            self.shared.report(Violation::of_partition(&packet));
            return self.drop_frame(ctx, "another partition");
        }
        self.shared.stats.received.count(frame.len());
        if packet.transport.bth.dest_qpn == SUBNET_QPN {
            management::remove_key(packet.transport.payload.to_mut());
        }
        // What the packet does to its queue pair comes later.
        let notifies = is_marked(&packet.link) && taker.takes(packet.transport.bth.opcode.operation);
        self.deliver(ctx, qpn, &packet);
        if notifies {
            self.notify_congestion(ctx, qpn);
        }
    }

    /// Returns whether no queue pair here accepts a frame for a queue pair. Groups and the agents of the port are another
    /// matter.
    fn has_no_taker(&self, addressing: &Addressing) -> bool {
        if addressing.link.is_multicast() {
            return addressing.dest_qpn != MULTICAST_QPN;
        }
        is_for_queue_pair(addressing)
            && self.qps.get(&addressing.dest_qpn).is_none_or(|qp| !qp.accepts(addressing, &self.shared))
    }

    pub(super) fn drop_frame(&mut self, ctx: &mut StepContext<'_>, why: &'static str) {
        self.drop_packet(ctx, Rejection::Packet { why });
    }

    fn drop_packet(&mut self, ctx: &mut StepContext<'_>, rejection: Rejection) {
        ctx.reject(rejection);
        self.shared.stats.dropped += 1;
    }

    fn deliver(&mut self, ctx: &mut StepContext<'_>, qpn: u32, packet: &Packet<'_>) {
        let Some(qp) = self.qps.get_mut(&qpn) else { return };
        let mut step = QpStep { shared: &mut self.shared, ctx };
        qp.handle_packet(&mut step, packet);
        self.busy.insert(qpn);
        self.reschedule(qpn, ctx.now);
    }

    /// Delivers a packet to each member of its group that takes it. The sender's own members get their copies too, but
    /// for those that asked not to hear their own device.
    fn receive_multicast(&mut self, ctx: &mut StepContext<'_>, packet: &Packet<'_>, octets: usize) {
        let members: Vec<u32> = packet.link.gids().into_iter().flat_map(|[_, group]| self.groups.members(group)).collect();
        // Each costs a step, whether it takes the packet or not.
        ctx.meter.count(members.len() as u64);
        let own = self.shared.port.is_source(&packet.link);
        let addressing = packet.addressing();
        let mut taken = false;
        for qpn in members {
            let Some(qp) = self
                .qps
                .get(&qpn)
                .filter(|qp| qp.accepts(&addressing, &self.shared) && qp.shares_partition(packet, &self.shared))
            else {
                continue;
            };
            if own && qp.context.get(Qpc::BLOCK_LB_MC) != 0 {
                continue;
            }
            taken = true;
            self.deliver(ctx, qpn, packet);
        }
        if taken {
            self.shared.stats.received_multicast.count(octets);
        } else {
            self.drop_frame(ctx, "no member of its multicast group takes it");
        }
    }

    /// Management queue pairs have ordinary numbers here and fixed ones on the wire.
    fn local_qpn(&self, wire_qpn: u32) -> u32 {
        if wire_qpn >= FIRST_QPN {
            return wire_qpn;
        }
        self.managers.range((wire_qpn, 0)..=(wire_qpn, u32::MAX)).next().map_or(wire_qpn, |&(_, qpn)| qpn)
    }
}

/// Returns whether a frame is for one queue pair that has the same number here as on the wire.
fn is_for_queue_pair(addressing: &Addressing) -> bool {
    addressing.dest_qpn >= FIRST_QPN && !addressing.link.is_multicast()
}

impl Qp {
    /// Returns whether a packet is for this queue pair: service and first fields of the link part.
    pub(in crate::engine) fn accepts(&self, addressing: &Addressing, shared: &QpResources) -> bool {
        let Addressing { link, transport, dest_qpn } = *addressing;
        let group = link.is_multicast() && dest_qpn == MULTICAST_QPN;
        if !shared.port.is_destination(&link) && !group {
            return false;
        }
        if transport != Some(self.context.service.transport()) || self.context.service == Service::RegUmr {
            return false;
        }
        !self.context.service.is_connected() || shared.port.is_from_peer(&link, self.context.primary_path())
    }

    /// Returns whether packets of an operation are taken in this state. Others are dropped in silence (InfiniBand Architecture
    /// 10.3.1).
    pub(in crate::engine) fn takes(&self, operation: Operation) -> bool {
        if operation.is_response() { self.context.can_send() } else { self.context.can_receive() }
    }

    /// Returns whether the global route of a packet, if it has one, comes from the peer of this connection. That it ends at
    /// this port is checked for all packets.
    pub(in crate::engine) fn accepts_global_route(&self, packet: &Packet<'_>, shared: &QpResources) -> bool {
        let context = &self.context;
        !context.service.is_connected() || shared.port.begins_route_at_peer(&packet.link, context.primary_path())
    }

    /// Returns whether a packet comes from the partition of this queue pair. Subnet management has no partition; the queue pair
    /// of general management is in every partition of its port (InfiniBand Architecture 10.9.3).
    pub(in crate::engine) fn shares_partition(&self, packet: &Packet<'_>, shared: &QpResources) -> bool {
        match self.context.wire_qpn() {
            SUBNET_QPN => true,
            GENERAL_QPN => shared.port.shares_partition(packet.transport.bth.pkey),
            _ => same_partition(shared.port.pkey(self.context.path(Ads::PKEY_INDEX)), packet.transport.bth.pkey),
        }
    }
}

//! Frames from the wire: decoded, validated (IBTA 9.6), and given to their queue pair.

use bareverbs_mlx5_spec::{Ads, Qpc};

use super::Engine;
use super::qp::Qp;
use super::qp::context::Service;
use super::resources::{QpResources, QpStep};
use crate::management::{self, Violation};
use crate::packet::{Addressing, GENERAL_QPN, MULTICAST_QPN, PERMISSIVE_LID, Packet, SUBNET_LANE, SUBNET_QPN, same_partition};
use crate::registry::FIRST_QPN;
use crate::step::StepContext;
use crate::trace::Record;

impl Engine {
    /// Takes a frame (LRH to ICRC) from the wire. Answers are made by [`Engine::advance`].
    pub(crate) fn receive(&mut self, ctx: &mut StepContext<'_>, frame: &[u8]) {
        ctx.trace(Record::Received { bytes: frame });
        // The ICRC and the headers of a frame that nothing here takes are not worth their time.
        if Addressing::of(frame).is_some_and(|addressing| self.has_no_taker(&addressing)) {
            return self.drop_frame(ctx, "no queue pair accepts it");
        }
        let mut packet = match Packet::decode(frame) {
            Ok(packet) => packet,
            Err(error) => {
                ctx.note(|| format!("frame dropped: {error}"));
                self.shared.stats.dropped += 1;
                self.shared.stats.malformed += 1;
                return;
            }
        };
        if packet.payload.len() > usize::from(self.shared.config.max_mtu) {
            return self.drop_frame(ctx, "longer than the MTU of the port");
        }
        if !packet.comes_from_a_port() {
            return self.drop_frame(ctx, "its source is no port");
        }
        if !packet.keeps_subnet_lane() {
            return self.drop_frame(ctx, "virtual lane 15 is for queue pair 0 alone");
        }
        if packet.lrh.dlid == PERMISSIVE_LID && packet.lrh.vl != SUBNET_LANE {
            return self.drop_frame(ctx, "the permissive LID is for subnet management alone");
        }
        if packet.is_multicast() {
            return self.receive_multicast(ctx, &packet, frame.len());
        }
        if packet.grh.is_some_and(|route| !self.shared.identity.has_gid(route.dgid)) {
            return self.drop_frame(ctx, "its route ends at another GID");
        }
        if self.is_management_request(&packet) {
            let subnet = packet.bth.dest_qpn == SUBNET_QPN;
            if self.shared.management_requests.push(packet) {
                self.shared.stats.received.count(frame.len());
            } else {
                ctx.note(|| "datagram for an agent dropped: too many wait".to_owned());
                self.shared.stats.dropped += 1;
                self.shared.stats.subnet_management_dropped += u64::from(subnet);
            }
            return;
        }
        let qpn = self.local_qpn(packet.bth.dest_qpn);
        let addressing = packet.addressing();
        let Some(taker) = self.qps.get(&qpn).filter(|qp| qp.accepts(&addressing, &self.shared)) else {
            return self.drop_frame(ctx, "no queue pair accepts it");
        };
        if !taker.accepts_global_route(&packet) {
            return self.drop_frame(ctx, "its route begins elsewhere than at the peer");
        }
        if !taker.shares_partition(&packet, &self.shared) {
            self.shared.stats.pkey_violations += 1;
            self.shared.report(Violation::of_partition(&packet));
            return self.drop_frame(ctx, "another partition");
        }
        self.shared.stats.received.count(frame.len());
        if packet.bth.dest_qpn == SUBNET_QPN {
            management::remove_key(packet.payload.to_mut());
        }
        self.deliver(ctx, qpn, &packet);
    }

    /// Returns whether no queue pair here accepts a frame for a queue pair. Groups and the agents of the port are another
    /// matter.
    fn has_no_taker(&self, addressing: &Addressing) -> bool {
        let Addressing { lrh, dest_qpn, .. } = *addressing;
        if lrh.is_multicast() {
            return dest_qpn != MULTICAST_QPN;
        }
        let ordinary = dest_qpn >= FIRST_QPN;
        ordinary && self.qps.get(&dest_qpn).is_none_or(|qp| !qp.accepts(addressing, &self.shared))
    }

    fn drop_frame(&mut self, ctx: &mut StepContext<'_>, why: &str) {
        ctx.note(|| format!("frame dropped: {why}"));
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
        let members: Vec<u32> = packet.grh.into_iter().flat_map(|route| self.groups.members(route.dgid)).collect();
        // Each costs a step, whether it takes the packet or not.
        ctx.meter.count(members.len() as u64);
        let own = packet.lrh.slid == self.shared.identity.lid();
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
            ctx.note(|| "multicast packet dropped: no member takes it".to_owned());
            self.shared.stats.dropped += 1;
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

impl Qp {
    /// Returns whether a packet is for this queue pair: service and local route.
    pub(in crate::engine) fn accepts(&self, addressing: &Addressing, shared: &QpResources) -> bool {
        let Addressing { lrh, transport, dest_qpn } = *addressing;
        let group = lrh.is_multicast() && dest_qpn == MULTICAST_QPN;
        if lrh.dlid != shared.identity.lid() && lrh.dlid != PERMISSIVE_LID && !group {
            return false;
        }
        if transport != Some(self.context.service.transport()) || self.context.service == Service::RegUmr {
            return false;
        }
        !self.context.service.is_connected() || u32::from(lrh.slid) == self.context.path(Ads::RLID)
    }

    /// Returns whether the global route of a packet, if it has one, comes from the peer of this connection. That it ends at
    /// this port is checked for all packets.
    pub(in crate::engine) fn accepts_global_route(&self, packet: &Packet<'_>) -> bool {
        let Some(route) = packet.grh else { return true };
        let path = self.context.qpc().sub(Qpc::PRIMARY_ADDRESS_PATH);
        !self.context.service.is_connected() || !path.is_set(Ads::GRH) || path.bytes(Ads::RGID_RIP) == route.sgid
    }

    /// Returns whether a packet comes from the partition of this queue pair. Subnet management has no partition; the queue pair
    /// of general management is in every partition of its port (InfiniBand Architecture 10.9.3).
    pub(in crate::engine) fn shares_partition(&self, packet: &Packet<'_>, shared: &QpResources) -> bool {
        match self.context.wire_qpn() {
            SUBNET_QPN => true,
            GENERAL_QPN => shared.identity.shares_partition(packet.bth.pkey),
            _ => same_partition(shared.pkey(self.context.path(Ads::PKEY_INDEX)), packet.bth.pkey),
        }
    }
}

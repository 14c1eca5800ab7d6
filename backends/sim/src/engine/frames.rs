//! Frames of an Ethernet port that are no packets of RoCE: sent, steered to receive queues, and put into them.

use super::Engine;
use super::nic::frame::Headers;
use super::nic::queue::Taken;
use super::nic::{FrameFilter, TirTarget};
use super::resources::QpStep;
use crate::config::is_group_address;
use crate::packet::{Addressing, LinkAddress};
use crate::step::StepContext;
use crate::trace::Record;

/// Bits of `self_lb_block`: a TIR takes unicast, or multicast, frames of its own transport domain.
const OWN_UNICAST: u32 = 1;
const OWN_MULTICAST: u32 = 1 << 1;

impl Engine {
    /// Sets which frames from the wire come to the flow tables.
    pub(crate) fn set_frame_filter(&mut self, filter: FrameFilter) {
        self.nic.filter = filter;
    }

    /// Returns whether a frame with these addresses is a packet of RoCE for this port: those to other IP addresses are frames
    /// like others, and so is what the switch of the card does not bring a virtual function.
    pub(in crate::engine) fn is_roce(&self, addressing: &Addressing) -> bool {
        let port = &self.shared.port;
        let has_members = |gid: [u8; 16]| self.groups.members(gid).next().is_some();
        let of_group = addressing.link.is_multicast()
            && port.is_in_vlan(&addressing.link)
            && addressing.link.gids().is_some_and(|[_, group]| has_members(group));
        port.has_roce() && self.is_delivered(&addressing.link) && (port.is_destination(&addressing.link) || of_group)
    }

    /// Returns whether the switch of the card, if the port is behind it, brings a packet of RoCE here.
    fn is_delivered(&self, link: &LinkAddress) -> bool {
        let config = &self.shared.config;
        match link {
            LinkAddress::RoceV2(address) if config.is_behind_switch => self.nic.filter.matches(address.destination, config),
            _ => true,
        }
    }

    /// Sends a frame of a queue in this transport domain. One for this port comes back without the wire, one for a group also.
    pub(in crate::engine) fn send_frame(&mut self, ctx: &mut StepContext<'_>, frame: Vec<u8>, domain: Option<u32>) {
        let Some(destination) = frame.first_chunk().copied() else { return };
        ctx.trace(Record::Sent { bytes: &frame });
        let is_group = is_group_address(destination);
        self.shared.stats.frames_sent.counts_of(destination).count(frame.len());
        let is_own = self.nic.filter.is_own(destination, &self.shared.config);
        if is_group || is_own {
            self.steer(ctx, &frame, domain);
        }
        if !is_own {
            self.shared.frames.push_back(frame);
        }
    }

    /// Takes a frame from the wire. Returns whether it is for this port and was dropped.
    pub(in crate::engine) fn receive_frame(&mut self, ctx: &mut StepContext<'_>, frame: &[u8]) -> bool {
        let stats = &mut self.shared.stats;
        let Some(headers) = Headers::of(frame) else {
            ctx.note(|| "frame dropped: too short for its header".to_owned());
            stats.dropped += 1;
            stats.malformed += 1;
            return true;
        };
        if !self.nic.filter.matches(headers.destination, &self.shared.config) {
            stats.frames_for_others.count(frame.len());
            return false;
        }
        stats.frames_received.counts_of(headers.destination).count(frame.len());
        !self.steer(ctx, frame, None)
    }

    /// Gives a frame to each queue that a rule leads to. `sender`: the transport domain from which it came, if that was here. Returns
    /// whether one has taken it.
    fn steer(&mut self, ctx: &mut StepContext<'_>, frame: &[u8], sender: Option<u32>) -> bool {
        let Some(headers) = Headers::of(frame) else { return false };
        let allowed = if is_group_address(headers.destination) { OWN_MULTICAST } else { OWN_UNICAST };
        let mut is_taken = false;
        let steered = self.nic.flow_tables.steer(&headers.match_param(), frame.len());
        ctx.meter.count(steered.steps);
        for (tirn, flow_tag) in steered.tirs {
            ctx.meter.count(1);
            let Some(tir) = self.nic.tirs.get(&tirn) else { continue };
            if sender == Some(tir.domain) && tir.self_loopback & allowed == 0 {
                continue;
            }
            let hash = headers.hash(&tir.rss.key, tir.rss.fields);
            let rqn = match tir.target {
                TirTarget::Queue(rqn) => Some(rqn),
                TirTarget::Table(rqtn) => self.nic.queue_tables.get(&rqtn).and_then(|queues| {
                    let place = (hash.0 as usize).checked_rem(queues.len())?;
                    queues.get(place).copied()
                }),
            };
            let hash = if matches!(tir.target, TirTarget::Table(_)) { hash } else { (0, 0) };
            let Some(rqn) = rqn else { continue };
            let Some(queue) = self.nic.receive_queues.get_mut(&rqn) else { continue };
            let set = queue.counter_set();
            let mut step = QpStep { shared: &mut self.shared, ctx };
            match queue.take(&mut step, rqn, frame, &headers, (hash, flow_tag)) {
                Taken::Yes => is_taken = true,
                Taken::NoBuffer if set != 0 => self.shared.queue_counts.entry(set).or_default().out_of_buffer += 1,
                Taken::NoBuffer | Taken::No => {}
            }
        }
        if !is_taken && sender.is_none() {
            ctx.note(|| "frame dropped: no receive queue takes it".to_owned());
            self.shared.stats.dropped += 1;
        }
        is_taken
    }
}

//! Wires connect ports: a wire takes frames and delivers them later to the port that they are addressed to.

mod egress;
mod faulty;
mod frame;
mod mac_table;
mod probability;
mod random;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bareverbs::platform::Instant;

use crate::identity::{LidTable, PortIdentity};
use crate::packet::{NO_LID, PERMISSIVE_LID, destination, is_multicast_lid, is_subnet_management};
use mac_table::MacTable;

pub use egress::{EgressLimits, EgressQueues, EgressStats};
pub use faulty::{FaultyWire, WireFaults, WireStats};
pub use frame::Frame;
pub use probability::{Probability, ProbabilityError};
pub use random::Random;

/// A port on a wire, counted from 0 in the order of attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId(pub usize);

/// Where a wire brings a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// To one port.
    Port(PortId),
    /// To a group: to each of this many ports, all but the sender's. Or to an Ethernet port, but no one knows which.
    Everyone(usize),
    /// No port here has that local identifier, or the Ethernet port is the sender's own, or the frame ends at the switch.
    Nowhere,
}

/// A delivered frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The port that sent it.
    pub from: PortId,
    /// The port where it arrived.
    pub to: PortId,
    /// LRH to ICRC; of Ethernet from the addresses on, without the frame check sequence.
    pub frame: Frame,
    /// Whether it is for a group, so that other ports get it too.
    pub group: bool,
}

/// A subnet: frames go in at one port and come out at another.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a wire between ports",
    note = "wires are `PerfectWire`, and `FaultyWire` of any other"
)]
pub trait Wire {
    /// Takes a frame (LRH to ICRC, or an Ethernet frame without check sequence) from a port at `now`.
    fn send(&mut self, now: Instant, from: PortId, frame: Vec<u8>);
    /// Returns the next frame that has arrived by `now`.
    fn deliver(&mut self, now: Instant) -> Option<Delivery>;
    /// Returns when the next frame arrives.
    fn next_due(&self) -> Option<Instant>;
    /// Who a port is. `None` if there is no such port.
    fn identity(&self, port: PortId) -> Option<&PortIdentity>;
    /// Returns where a frame from this port goes, if nothing happens to it.
    fn destination(&self, from: PortId, frame: &[u8]) -> Destination;
    /// Returns the frames from this port that have not arrived yet.
    fn in_flight(&self, from: PortId) -> usize;
    /// Lets frames for a MAC address go to this port from now on, also when another port sends from it. A wire that does not learn has
    /// nothing to do.
    fn fix_station(&mut self, port: PortId, mac: [u8; 6]);
}

impl<W: Wire + ?Sized> Wire for Box<W> {
    fn send(&mut self, now: Instant, from: PortId, frame: Vec<u8>) {
        (**self).send(now, from, frame);
    }

    fn deliver(&mut self, now: Instant) -> Option<Delivery> {
        (**self).deliver(now)
    }

    fn next_due(&self) -> Option<Instant> {
        (**self).next_due()
    }

    fn identity(&self, port: PortId) -> Option<&PortIdentity> {
        (**self).identity(port)
    }

    fn destination(&self, from: PortId, frame: &[u8]) -> Destination {
        (**self).destination(from, frame)
    }

    fn in_flight(&self, from: PortId) -> usize {
        (**self).in_flight(from)
    }

    fn fix_station(&mut self, port: PortId, mac: [u8; 6]) {
        (**self).fix_station(port, mac);
    }
}

/// Any number of ports behind one switch that loses nothing and keeps the order.
///
/// Ports of InfiniBand and of Ethernet may be attached; frames of one kind come to ports of the same kind alone.
///
/// On InfiniBand, a frame goes to the port with its destination LID, also if it came from there. A frame for a multicast LID goes to every
/// other port. A frame for a LID that no port has is counted and dropped. No two ports have the same LID.
///
/// On Ethernet it is a switch that learns: a frame goes to the port at which its destination was last a source, but never back
/// to the sender. A frame for a group, and one for an address that is not known, goes to every other port. What is for the groups between
/// neighbours (01:80:c2:00:00:00 to 0f, IEEE 802.1Q) ends here.
#[derive(Debug, Default)]
pub struct PerfectWire {
    ports: Vec<Arc<PortIdentity>>,
    lids: Arc<LidTable>,
    macs: MacTable,
    latency: Duration,
    in_flight: VecDeque<(Instant, Delivery)>,
    /// How many of them each port sent.
    sent_by: Vec<usize>,
    unroutable: u64,
}

impl PerfectWire {
    /// Creates a wire on which every frame takes `latency`.
    pub fn new(latency: Duration) -> Self {
        Self { latency, ..Self::default() }
    }

    /// Adds a port. Frames follow its local identifier from now on; if another port has that already, this one loses it.
    ///
    /// A port is at one place: one that is attached already, here or to another wire, stays where it is. The place that is
    /// added then has nobody's identity, so that it gets no frame and none of it passes.
    pub fn attach(&mut self, identity: Arc<PortIdentity>) -> PortId {
        let is_new = identity.attach(&self.lids);
        self.ports.push(if is_new { identity } else { Arc::new(PortIdentity::nobody()) });
        self.sent_by.push(0);
        PortId(self.ports.len() - 1)
    }

    /// Returns the frames for which there was no port.
    pub fn unroutable(&self) -> u64 {
        self.unroutable
    }

    /// Returns whether a port is one of Ethernet. `false` for one that does not exist.
    fn is_ethernet(&self, port: PortId) -> bool {
        self.ports.get(port.0).is_some_and(|identity| identity.is_ethernet())
    }

    /// Returns the ports to which a frame for a group from a port goes.
    fn others(&self, from: PortId) -> impl Iterator<Item = PortId> {
        let is_ethernet = self.is_ethernet(from);
        (0..self.ports.len()).map(PortId).filter(move |&port| port != from && self.is_ethernet(port) == is_ethernet)
    }

    /// Returns where an Ethernet frame goes.
    fn switched(&self, from: PortId, frame: &[u8]) -> Destination {
        let address = mac_table::destination(frame).filter(|address| !mac_table::is_reserved(*address));
        match address.map(|address| self.macs.port_of(address)) {
            Some(Some(port)) if port != from.0 => Destination::Port(PortId(port)),
            Some(None) => Destination::Everyone(self.others(from).count()),
            // The destination is where the frame comes from, or the switch, or there is none.
            _ => Destination::Nowhere,
        }
    }

    fn route(&self, from: PortId, frame: &[u8]) -> Option<PortId> {
        let lid = destination(frame).filter(|lid| *lid != NO_LID)?;
        if lid == PERMISSIVE_LID {
            // For the agent at the other end of the cable (IBTA 4.1.3).
            if !is_subnet_management(frame) {
                return None;
            }
            return self.others(from).next();
        }
        self.ports.iter().position(|port| port.lid() == lid).map(PortId)
    }

    fn carry(&mut self, now: Instant, delivery: Delivery) {
        if let Some(count) = self.sent_by.get_mut(delivery.from.0) {
            *count += 1;
        }
        self.in_flight.push_back((now.after(self.latency), delivery));
    }
}

impl Wire for PerfectWire {
    fn send(&mut self, now: Instant, from: PortId, frame: Vec<u8>) {
        if self.is_ethernet(from) {
            self.macs.learn(&frame, from.0);
        }
        match self.destination(from, &frame) {
            Destination::Port(to) => self.carry(now, Delivery { from, to, frame: Frame::Own(frame), group: false }),
            Destination::Everyone(_) => {
                let frame = Frame::shared(frame);
                let others: Vec<PortId> = self.others(from).collect();
                for to in others {
                    // To a port of another partition it would be carried only to be dropped.
                    if !self.identity(to).is_some_and(|identity| identity.matches(&frame)) {
                        continue;
                    }
                    self.carry(now, Delivery { from, to, frame: frame.clone(), group: true });
                }
            }
            Destination::Nowhere => self.unroutable += 1,
        }
    }

    fn deliver(&mut self, now: Instant) -> Option<Delivery> {
        if self.in_flight.front()?.0 > now {
            return None;
        }
        let (_, delivery) = self.in_flight.pop_front()?;
        if let Some(count) = self.sent_by.get_mut(delivery.from.0) {
            *count -= 1;
        }
        Some(delivery)
    }

    fn next_due(&self) -> Option<Instant> {
        self.in_flight.front().map(|(due, _)| *due)
    }

    fn identity(&self, port: PortId) -> Option<&PortIdentity> {
        self.ports.get(port.0).map(|port| &**port)
    }

    fn destination(&self, from: PortId, frame: &[u8]) -> Destination {
        if self.is_ethernet(from) {
            return self.switched(from, frame);
        }
        if destination(frame).is_some_and(is_multicast_lid) {
            return Destination::Everyone(self.others(from).count());
        }
        self.route(from, frame).map_or(Destination::Nowhere, Destination::Port)
    }

    fn in_flight(&self, from: PortId) -> usize {
        self.sent_by.get(from.0).copied().unwrap_or(0)
    }

    fn fix_station(&mut self, port: PortId, mac: [u8; 6]) {
        self.macs.fix(mac, port.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::DeviceConfig;

    fn ethernet(number: u16) -> Arc<PortIdentity> {
        Arc::new(PortIdentity::new(&DeviceConfig::with_lid(number).with_ethernet()))
    }

    /// An Ethernet frame between stations that end in these numbers.
    fn station_frame(destination: u8, source: u8) -> Vec<u8> {
        vec![2, 0, 0, 0, 0, destination, 2, 0, 0, 0, 0, source, 0x88, 0xb5]
    }

    fn arrived(wire: &mut PerfectWire, now: Instant) -> Vec<(PortId, PortId, bool)> {
        std::iter::from_fn(|| wire.deliver(now)).map(|sent| (sent.from, sent.to, sent.group)).collect()
    }

    #[test]
    fn an_ethernet_frame_goes_where_its_destination_was_last_seen() {
        let mut wire = PerfectWire::default();
        let now = Instant::from_nanos(100);
        let ports: Vec<PortId> = (1..=3).map(|number| wire.attach(ethernet(number))).collect();
        let [a, b, c] = ports[..] else { panic!("three ports") };
        wire.send(now, a, station_frame(2, 1));
        assert_eq!(arrived(&mut wire, now), [(a, b, true), (a, c, true)], "flooded");
        wire.send(now, b, station_frame(1, 2));
        wire.send(now, a, station_frame(2, 1));
        assert_eq!(arrived(&mut wire, now), [(b, a, false), (a, b, false)]);
        // Groups go to all, and a frame for the sender's own port to nobody.
        wire.send(now, c, [&[0xff; 6][..], &station_frame(0, 3)[6..]].concat());
        wire.send(now, b, station_frame(2, 2));
        assert_eq!(arrived(&mut wire, now), [(c, a, true), (c, b, true)]);
        assert_eq!(wire.unroutable(), 1);
        // A station that moved.
        wire.send(now, c, station_frame(1, 2));
        wire.send(now, a, station_frame(2, 1));
        assert_eq!(arrived(&mut wire, now), [(c, a, false), (a, c, false)]);
        for len in 0..6 {
            assert_eq!(wire.destination(a, &station_frame(2, 1)[..len]), Destination::Nowhere);
        }
        assert_eq!(wire.destination(a, &station_frame(2, 1)[..6]), Destination::Port(c));
    }

    /// Pause frames, spanning tree, link aggregation, authentication of ports.
    #[test]
    fn what_is_between_neighbours_ends_at_the_switch() {
        let mut wire = PerfectWire::default();
        let now = Instant::from_nanos(100);
        let ports: Vec<PortId> = (1..=3).map(|number| wire.attach(ethernet(number))).collect();
        let to_group = |last: u8| [&[1, 0x80, 0xc2, 0, 0, last][..], &station_frame(0, 1)[6..]].concat();
        for last in 0..=0x10 {
            wire.send(now, ports[0], to_group(last));
        }
        assert_eq!(arrived(&mut wire, now), [(ports[0], ports[1], true), (ports[0], ports[2], true)], "the last one alone");
    }

    #[test]
    fn a_fixed_station_is_at_its_port_also_when_another_sends_from_its_address() {
        // Through each wire that is put around the switch.
        let mut wire = FaultyWire::new(EgressQueues::new(PerfectWire::default(), None), WireFaults::default(), 1);
        let now = Instant::from_nanos(100);
        let [a, b, c] = [1, 2, 3].map(|number| wire.inner_mut().inner_mut().attach(ethernet(number)));
        wire.fix_station(a, [2, 0, 0, 0, 0, 1]);
        let go = |wire: &mut FaultyWire<EgressQueues<PerfectWire>>, from, frame| {
            wire.send(now, from, frame);
            std::iter::from_fn(|| wire.deliver(now)).map(|sent| sent.to).collect::<Vec<_>>()
        };
        assert_eq!(go(&mut wire, b, station_frame(1, 2)), [a], "it has not sent anything");
        go(&mut wire, c, station_frame(9, 1));
        assert_eq!(go(&mut wire, b, station_frame(1, 2)), [a]);
    }

    /// Also behind a port with more stations than are remembered.
    #[test]
    fn a_station_gets_its_frames_back_when_it_sends() {
        let mut wire = PerfectWire::default();
        let now = Instant::from_nanos(100);
        let (lan, thief, other) = (wire.attach(ethernet(1)), wire.attach(ethernet(2)), wire.attach(ethernet(3)));
        let from = |number: u16| [&[0xff; 6][..], &[2, 0, 0, 1], &number.to_be_bytes(), &[0x88, 0xb5]].concat();
        (0..1024).for_each(|number| wire.send(now, lan, from(number)));
        wire.send(now, thief, from(7));
        // Another of the many takes its place.
        wire.send(now, lan, from(2000));
        wire.send(now, lan, from(7));
        arrived(&mut wire, now);
        wire.send(now, other, [&from(7)[6..12], &[2, 0, 0, 0, 0, 9, 0x88, 0xb5]].concat());
        assert!(arrived(&mut wire, now).iter().any(|(_, to, _)| *to == lan));
    }

    #[test]
    fn frames_of_ethernet_and_of_infiniband_do_not_meet() {
        let mut wire = PerfectWire::default();
        let now = Instant::from_nanos(100);
        let (a, x, b, y) = (
            wire.attach(PortIdentity::with_lid(1)),
            wire.attach(ethernet(1)),
            wire.attach(PortIdentity::with_lid(2)),
            wire.attach(ethernet(2)),
        );
        // To a group and to the other end of a cable; to all stations.
        wire.send(now, b, frame(0xc001, 0));
        assert_eq!(wire.destination(b, &[0xf0, 0, 0xff, 0xff]), Destination::Port(a));
        wire.send(now, y, vec![0xff; 14]);
        // The first bytes of this one are those of a packet for LID 1.
        wire.send(now, y, vec![0, 0, 0, 1, 0, 0, 2, 0, 0, 0, 0, 1, 0x88, 0xb5]);
        assert_eq!(arrived(&mut wire, now), [(b, a, true), (y, x, true), (y, x, true)]);
    }

    fn frame(dlid: u16, mark: u8) -> Vec<u8> {
        let [high, low] = dlid.to_be_bytes();
        vec![0, 0, high, low, mark]
    }

    #[test]
    fn a_port_that_is_attached_twice_stays_where_it_is() {
        let identity = PortIdentity::with_lid(1);
        let (mut wire, mut other) = (PerfectWire::default(), PerfectWire::default());
        let here = wire.attach(Arc::clone(&identity));
        for wire in [&mut wire, &mut other] {
            let again = wire.attach(Arc::clone(&identity));
            assert_eq!(wire.identity(again).map(PortIdentity::lid), Some(NO_LID));
        }
        assert_eq!(identity.lid(), 1);
        assert_eq!(wire.destination(here, &frame(1, 0)), Destination::Port(here));
        assert_eq!(other.destination(PortId(0), &frame(1, 0)), Destination::Nowhere);
        identity.set_lid(2).unwrap();
        assert_eq!([1, 2].map(|lid| wire.destination(here, &frame(lid, 0))), [Destination::Nowhere, Destination::Port(here)]);
    }

    #[test]
    fn routes_by_lid_and_keeps_the_order() {
        let mut wire = PerfectWire::new(Duration::from_nanos(10));
        let (a, b) = (wire.attach(PortIdentity::with_lid(1)), wire.attach(PortIdentity::with_lid(2)));
        let start = Instant::from_nanos(100);
        wire.send(start, a, frame(2, 0));
        wire.send(start, b, frame(1, 1));
        wire.send(start, a, frame(1, 2));
        wire.send(start, a, frame(9, 3));
        wire.send(start, a, vec![0]);
        assert_eq!(wire.unroutable(), 2);
        // The permissive LID leads to the other end of the cable, for subnet management alone.
        assert_eq!(wire.destination(a, &frame(0xffff, 0)), Destination::Nowhere);
        assert_eq!(wire.destination(a, &[0xf0, 0, 0xff, 0xff]), Destination::Port(b));
        let identity = PortIdentity::with_lid(4);
        let waiting = wire.attach(Arc::clone(&identity));
        identity.set_lid(0).unwrap();
        wire.send(start, a, frame(0, 5));
        wire.send(start, a, frame(4, 5));
        assert_eq!(wire.unroutable(), 4, "nothing finds a port without an identifier");
        identity.set_lid(3).unwrap();
        let c = waiting;
        wire.send(start, a, frame(0xc001, 4));
        assert_eq!(wire.deliver(start), None);
        assert_eq!(wire.next_due(), Some(Instant::from_nanos(110)));
        assert_eq!((wire.in_flight(a), wire.in_flight(b), wire.in_flight(c)), (4, 1, 0));
        let now = Instant::from_nanos(110);
        let got: Vec<_> = std::iter::from_fn(|| wire.deliver(now)).map(|sent| (sent.from, sent.to, sent.frame[4])).collect();
        assert_eq!(got, [(a, b, 0), (b, a, 1), (a, a, 2), (a, b, 4), (a, c, 4)]);
    }
}

//! What connects ports: a wire takes frames and gives them up later, to whom they are addressed.

mod faulty;
mod probability;
mod random;

use std::collections::VecDeque;
use std::time::Duration;

use bareverbs::Instant;

use crate::packet::{NO_LID, PERMISSIVE_LID, destination, is_multicast_lid};

pub use faulty::{FaultyWire, WireFaults, WireStats};
pub use probability::{Probability, ProbabilityError};
pub use random::Random;

/// A port on a wire, counted from 0 in the order of attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId(pub usize);

/// A subnet: frames go in at one port and come out at another.
pub trait Wire {
    /// Takes a frame (LRH to ICRC) from a port at `now`.
    fn send(&mut self, now: Instant, from: PortId, frame: Vec<u8>);
    /// The next frame that has arrived by `now`, and the port where.
    fn deliver(&mut self, now: Instant) -> Option<(PortId, Vec<u8>)>;
    /// When the next frame arrives.
    fn next_due(&self) -> Option<Instant>;
    /// Says what local identifier a port has from now on; 0 for none.
    fn set_lid(&mut self, port: PortId, lid: u16);
}

/// Any number of ports behind one switch that loses nothing and keeps the order. A frame goes to the port with its
/// destination LID, also if it came from there, and one for a multicast LID to every other port; one for a LID that no port has is counted and forgotten.
#[derive(Clone, Debug, Default)]
pub struct PerfectWire {
    lids: Vec<u16>,
    latency: Duration,
    in_flight: VecDeque<(Instant, PortId, Vec<u8>)>,
    unroutable: u64,
}

impl PerfectWire {
    /// A wire on which every frame takes `latency`.
    pub fn new(latency: Duration) -> Self {
        Self { latency, ..Self::default() }
    }

    /// Adds a port with a local identifier.
    pub fn attach(&mut self, lid: u16) -> PortId {
        self.lids.push(lid);
        PortId(self.lids.len() - 1)
    }

    /// Frames for which there was no port.
    pub fn unroutable(&self) -> u64 {
        self.unroutable
    }

    fn route(&self, from: PortId, frame: &[u8]) -> Option<PortId> {
        let lid = destination(frame).filter(|lid| *lid != NO_LID)?;
        if lid == PERMISSIVE_LID {
            return (0..self.lids.len()).map(PortId).find(|&port| port != from);
        }
        self.lids.iter().position(|&known| known == lid).map(PortId)
    }
}

impl Wire for PerfectWire {
    fn send(&mut self, now: Instant, from: PortId, frame: Vec<u8>) {
        if destination(&frame).is_some_and(is_multicast_lid) {
            let others = (0..self.lids.len()).map(PortId).filter(|&port| port != from);
            let due = now.after(self.latency);
            self.in_flight.extend(others.map(|port| (due, port, frame.clone())));
            return;
        }
        match self.route(from, &frame) {
            Some(to) => self.in_flight.push_back((now.after(self.latency), to, frame)),
            None => self.unroutable += 1,
        }
    }

    fn deliver(&mut self, now: Instant) -> Option<(PortId, Vec<u8>)> {
        if self.in_flight.front()?.0 > now {
            return None;
        }
        self.in_flight.pop_front().map(|(_, to, frame)| (to, frame))
    }

    fn next_due(&self) -> Option<Instant> {
        self.in_flight.front().map(|(due, _, _)| *due)
    }

    fn set_lid(&mut self, port: PortId, lid: u16) {
        if let Some(place) = self.lids.get_mut(port.0) {
            *place = lid;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(dlid: u16, mark: u8) -> Vec<u8> {
        let [high, low] = dlid.to_be_bytes();
        vec![0, 0, high, low, mark]
    }

    #[test]
    fn routes_by_lid_and_keeps_the_order() {
        let mut wire = PerfectWire::new(Duration::from_nanos(10));
        let (a, b) = (wire.attach(1), wire.attach(2));
        let start = Instant::from_nanos(100);
        wire.send(start, a, frame(2, 0));
        wire.send(start, b, frame(1, 1));
        wire.send(start, a, frame(1, 2));
        wire.send(start, a, frame(9, 3));
        wire.send(start, a, vec![0]);
        assert_eq!(wire.unroutable(), 2);
        let waiting = wire.attach(4);
        wire.set_lid(waiting, 0);
        wire.send(start, a, frame(0, 5));
        wire.send(start, a, frame(4, 5));
        assert_eq!(wire.unroutable(), 4, "nothing finds a port without an identifier");
        wire.set_lid(waiting, 3);
        let c = waiting;
        wire.send(start, a, frame(0xc001, 4));
        assert_eq!(wire.deliver(start), None);
        assert_eq!(wire.next_due(), Some(Instant::from_nanos(110)));
        let now = Instant::from_nanos(110);
        let got: Vec<_> = std::iter::from_fn(|| wire.deliver(now)).map(|(port, frame)| (port, frame[4])).collect();
        assert_eq!(got, [(b, 0), (a, 1), (a, 2), (b, 4), (c, 4)]);
    }
}

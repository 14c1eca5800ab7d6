//! The queues of a switch in front of its ports: a rate, marks of congestion, and room that ends.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::time::Duration;

use bareverbs::platform::Instant;

use super::{Delivery, Destination, Frame, PortId, Wire};
use crate::identity::PortIdentity;
use crate::packet::mark_congestion;

/// What an Ethernet frame takes beside its bytes: preamble, check sequence and the gap behind it (IEEE 802.3, 3.1.1 and 4.4.2).
const ETHERNET_OVERHEAD: usize = 8 + 4 + 12;
/// What an InfiniBand packet takes beside its bytes from LRH to ICRC: variant check sequence and delimiters (IBTA 7.2, volume 2
/// chapter 5).
const INFINIBAND_OVERHEAD: usize = 2 + 2;

/// What each port of a switch sends, and what its queue does with frames that come faster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EgressLimits {
    rate: NonZeroU64,
    mark_above: Option<usize>,
    room: Option<usize>,
}

impl EgressLimits {
    /// The lowest rate, 1 Mbit/s: at less, a sender that waits for room would be taken for one whose receiver stands still.
    pub const MIN_RATE: u64 = 1_000_000;

    /// Creates limits with a rate in bits a second, without marks. Senders wait for room in the queue, as with pause frames or
    /// credits. `None` if the rate is below [`EgressLimits::MIN_RATE`].
    pub const fn new(rate: u64) -> Option<Self> {
        match NonZeroU64::new(rate) {
            Some(rate) if rate.get() >= Self::MIN_RATE => Some(Self { rate, mark_above: None, room: None }),
            _ => None,
        }
    }

    /// Marks an IP packet of Ethernet as it comes to a queue of more than `bytes`, if its sender knows of marks (ECN, RFC 3168).
    #[must_use]
    pub const fn mark_above(self, bytes: usize) -> Self {
        Self { mark_above: Some(bytes), ..self }
    }

    /// Loses a frame with which its queue would have more than `bytes`.
    #[must_use]
    pub const fn room(self, bytes: usize) -> Self {
        Self { room: Some(bytes), ..self }
    }

    /// Returns how long a port sends this many bytes, rounded up.
    fn time(&self, bytes: usize) -> Duration {
        let nanos = (bytes as u128 * 8 * 1_000_000_000).div_ceil(self.rate.get().into());
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Returns how many bytes a port sends in this time, rounded up.
    fn bytes(&self, time: Duration) -> usize {
        let bytes = (time.as_nanos() * u128::from(self.rate.get())).div_ceil(8 * 1_000_000_000);
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }
}

/// What happened in the queues of [`EgressQueues`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EgressStats {
    /// Packets marked.
    pub marked: u64,
    /// Frames lost for want of room.
    pub dropped: u64,
    /// The longest queue that a frame has found, in bytes.
    pub longest: usize,
}

/// Any wire behind a queue for each port that it leads to.
///
/// A frame that the wire delivers is the last one in the queue of its port, and arrives once the port has sent it and those before
/// it. Frames keep their order. Without limits the wire is as it is.
#[derive(Clone, Debug)]
pub struct EgressQueues<W> {
    inner: W,
    limits: Option<EgressLimits>,
    /// When each port has sent all of its queue.
    idle_at: BTreeMap<PortId, Instant>,
    /// The frames in all queues, by when they have been sent, and in the order in which they came.
    queued: BTreeMap<(Instant, u64), Delivery>,
    /// How many of them each port sent.
    queued_of: BTreeMap<PortId, usize>,
    count: u64,
    stats: EgressStats,
}

impl<W: Wire> EgressQueues<W> {
    /// Puts queues behind a wire, or nothing if there are no limits.
    pub fn new(inner: W, limits: Option<EgressLimits>) -> Self {
        Self {
            inner,
            limits,
            idle_at: BTreeMap::new(),
            queued: BTreeMap::new(),
            queued_of: BTreeMap::new(),
            count: 0,
            stats: EgressStats::default(),
        }
    }

    /// Returns the counts so far.
    pub fn stats(&self) -> EgressStats {
        self.stats
    }

    /// Returns the wire inside.
    pub fn inner_mut(&mut self) -> &mut W {
        &mut self.inner
    }

    /// Puts a frame into the queue of its port, or loses it.
    fn queue(&mut self, now: Instant, limits: &EgressLimits, mut delivery: Delivery) {
        let is_ethernet = self.inner.identity(delivery.to).is_some_and(PortIdentity::is_ethernet);
        let bytes = delivery.frame.len() + if is_ethernet { ETHERNET_OVERHEAD } else { INFINIBAND_OVERHEAD };
        let begins = self.idle_at.get(&delivery.to).copied().unwrap_or_default().max(now);
        let waiting = limits.bytes(Duration::from_nanos(begins.as_nanos().saturating_sub(now.as_nanos())));
        self.stats.longest = self.stats.longest.max(waiting);
        if limits.room.is_some_and(|room| waiting.saturating_add(bytes) > room) {
            self.stats.dropped += 1;
            return;
        }
        if is_ethernet && limits.mark_above.is_some_and(|most| waiting > most) {
            // Each port of a group has a queue of its own, so that others have the frame without a mark.
            let mut frame = delivery.frame.into_bytes();
            self.stats.marked += u64::from(mark_congestion(&mut frame));
            delivery.frame = Frame::Own(frame);
        }
        let sent = begins.after(limits.time(bytes));
        self.idle_at.insert(delivery.to, sent);
        *self.queued_of.entry(delivery.from).or_default() += 1;
        self.queued.insert((sent, self.count), delivery);
        self.count += 1;
    }
}

impl<W: Wire> Wire for EgressQueues<W> {
    fn send(&mut self, now: Instant, from: PortId, frame: Vec<u8>) {
        self.inner.send(now, from, frame);
    }

    fn deliver(&mut self, now: Instant) -> Option<Delivery> {
        let Some(limits) = self.limits else { return self.inner.deliver(now) };
        while let Some(delivery) = self.inner.deliver(now) {
            self.queue(now, &limits, delivery);
        }
        let first = self.queued.first_entry().filter(|first| first.key().0 <= now)?;
        let delivery = first.remove();
        if let Some(count) = self.queued_of.get_mut(&delivery.from) {
            *count = count.saturating_sub(1);
        }
        Some(delivery)
    }

    fn next_due(&self) -> Option<Instant> {
        let sent = self.queued.keys().next().map(|key| key.0);
        [self.inner.next_due(), sent].into_iter().flatten().min()
    }

    fn identity(&self, port: PortId) -> Option<&PortIdentity> {
        self.inner.identity(port)
    }

    fn destination(&self, from: PortId, frame: &[u8]) -> Destination {
        self.inner.destination(from, frame)
    }

    fn in_flight(&self, from: PortId) -> usize {
        self.inner.in_flight(from) + self.queued_of.get(&from).copied().unwrap_or(0)
    }

    fn fix_station(&mut self, port: PortId, mac: [u8; 6]) {
        self.inner.fix_station(port, mac);
    }
}

#[cfg(test)]
mod tests {
    use super::super::PerfectWire;
    use super::*;
    use crate::config::DeviceConfig;

    /// A byte takes a nanosecond.
    const GIGABYTE: u64 = 8_000_000_000;

    fn lan(limits: EgressLimits) -> (EgressQueues<PerfectWire>, [PortId; 3]) {
        let mut switch = PerfectWire::default();
        let ports = [1, 2, 3].map(|number| {
            let identity = PortIdentity::new(&DeviceConfig::with_lid(number).with_ethernet());
            let port = switch.attach(identity.into());
            switch.send(Instant::default(), port, frame(0xff, number as u8, 0, 60));
            port
        });
        while switch.deliver(Instant::default()).is_some() {}
        (EgressQueues::new(switch, Some(limits)), ports)
    }

    /// An IPv4 packet whose sender knows of marks, between stations that end in these numbers.
    fn frame(destination: u8, source: u8, mark: u8, len: usize) -> Vec<u8> {
        let first = if destination == 0xff { 0xff } else { 2 };
        let mut frame = vec![first, 0, 0, 0, 0, destination, 2, 0, 0, 0, 0, source, 8, 0, 0x45, 2, mark];
        frame.resize(len, 0);
        frame
    }

    /// Returns port, number and mark of each frame that has arrived.
    fn arrived(wire: &mut EgressQueues<PerfectWire>, now: u64) -> Vec<(usize, u8, bool)> {
        let now = Instant::from_nanos(now);
        std::iter::from_fn(|| wire.deliver(now)).map(|sent| (sent.to.0, sent.frame[16], sent.frame[15] == 3)).collect()
    }

    #[test]
    fn each_port_sends_at_its_rate_and_the_order_stays() {
        let (mut wire, [a, b, _]) = lan(EgressLimits::new(GIGABYTE).unwrap());
        let start = Instant::from_nanos(1000);
        // 100 and 24 bytes each.
        for (from, to, mark) in [(a, 3, 0), (b, 3, 1), (a, 2, 2), (b, 3, 3)] {
            wire.send(start, from, frame(to, from.0 as u8 + 1, mark, 100));
        }
        assert_eq!(arrived(&mut wire, 1000), []);
        assert_eq!((wire.in_flight(a), wire.in_flight(b)), (2, 2));
        assert_eq!(wire.next_due(), Some(Instant::from_nanos(1124)));
        assert_eq!(arrived(&mut wire, 1123), []);
        assert_eq!(arrived(&mut wire, 1124), [(2, 0, false), (1, 2, false)], "each port has a queue of its own");
        assert_eq!(arrived(&mut wire, 1371), [(2, 1, false)]);
        assert_eq!(arrived(&mut wire, 1372), [(2, 3, false)]);
        assert_eq!((wire.in_flight(a), wire.in_flight(b), wire.next_due()), (0, 0, None));
        // A port that was idle begins at once, not when it ended.
        wire.send(Instant::from_nanos(9000), a, frame(3, 1, 4, 100));
        assert_eq!(arrived(&mut wire, 9000), []);
        assert_eq!(arrived(&mut wire, 9124), [(2, 4, false)]);
        assert_eq!(wire.stats(), EgressStats { longest: 248, ..EgressStats::default() });
    }

    #[test]
    fn what_comes_to_a_long_queue_is_marked_and_what_finds_no_room_is_lost() {
        let limits = EgressLimits::new(GIGABYTE).unwrap().mark_above(124).room(496);
        let (mut wire, [a, b, c]) = lan(limits);
        let send = |wire: &mut EgressQueues<PerfectWire>, now, mark| {
            wire.send(Instant::from_nanos(now), a, frame(3, 1, mark, 100));
            // It comes into its queue when the wire is asked.
            assert_eq!(wire.deliver(Instant::from_nanos(now)), None);
        };
        (0..6).for_each(|mark| send(&mut wire, 0, mark));
        assert_eq!(wire.stats(), EgressStats { marked: 2, dropped: 2, longest: 496 });
        // The queue has a frame less after 124 ns, and none after 496.
        assert_eq!(arrived(&mut wire, 124), [(2, 0, false)]);
        send(&mut wire, 124, 6);
        assert_eq!(arrived(&mut wire, 10_000), [(2, 1, false), (2, 2, true), (2, 3, true), (2, 6, true)]);
        send(&mut wire, 10_000, 7);
        assert_eq!(arrived(&mut wire, 20_000), [(2, 7, false)]);
        // Of a group only the copy in the long queue.
        (8..11).for_each(|mark| send(&mut wire, 20_000, mark));
        wire.send(Instant::from_nanos(20_000), b, frame(0xff, 2, 11, 100));
        assert_eq!(arrived(&mut wire, 20_000), []);
        let all = arrived(&mut wire, 30_000);
        assert_eq!(all.iter().filter(|(_, mark, _)| *mark == 11).collect::<Vec<_>>(), [&(0, 11, false), &(2, 11, true)]);
        assert_eq!((wire.stats().dropped, wire.in_flight(a), wire.in_flight(c)), (2, 0, 0));
    }

    #[test]
    fn infiniband_has_the_rate_and_no_marks() {
        let mut switch = PerfectWire::default();
        let [a, b] = [1, 2].map(|lid| switch.attach(PortIdentity::with_lid(lid)));
        let limits = EgressLimits::new(GIGABYTE).unwrap().mark_above(0);
        let mut wire = EgressQueues::new(switch, Some(limits));
        let mut packet = vec![0, 0, 0, 2];
        packet.resize(96, 0);
        (0..2).for_each(|_| wire.send(Instant::default(), a, packet.clone()));
        assert_eq!(wire.deliver(Instant::default()), None);
        for (now, due) in [(100, Some(200)), (200, None)] {
            let delivery = wire.deliver(Instant::from_nanos(now)).unwrap();
            assert_eq!((delivery.to, &*delivery.frame, wire.next_due()), (b, &*packet, due.map(Instant::from_nanos)));
        }
        assert_eq!(wire.stats(), EgressStats { longest: 100, ..EgressStats::default() });
    }

    #[test]
    fn without_limits_nothing_is_held() {
        let (limited, [a, ..]) = lan(EgressLimits::new(GIGABYTE).unwrap());
        let mut wire = EgressQueues { limits: None, ..limited };
        (0..3).for_each(|mark| wire.send(Instant::default(), a, frame(3, 1, mark, 100)));
        assert_eq!(arrived(&mut wire, 0), [(2, 0, false), (2, 1, false), (2, 2, false)]);
        assert_eq!(wire.stats(), EgressStats::default());
        assert_eq!([0, 999_999].map(EgressLimits::new), [None, None]);
    }
}

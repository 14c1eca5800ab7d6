//! A wire with injected faults: loss, duplication, reordering and delay, repeatable by a seed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bareverbs::platform::Instant;

use super::{Delivery, Destination, PortId, Probability, Random, Wire};
use crate::identity::PortIdentity;
use crate::packet::destination;

/// Maximum frames of one source and destination that wait at a time to be passed.
const MAX_WAITING: usize = 16;

/// How often each fault happens to a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireFaults {
    /// Lost.
    pub loss: Probability,
    /// Sent twice.
    pub duplication: Probability,
    /// Delayed until the next frame of the same source and destination has passed it, or for `passing_time` if none comes.
    pub reordering: Probability,
    /// Delayed for a random time up to `delay_time`.
    pub delay: Probability,
    /// Maximum delay.
    pub delay_time: Duration,
    /// Maximum time that a frame waits for another one to pass it; at least a nanosecond.
    pub passing_time: Duration,
}

impl WireFaults {
    /// No fault. Delays are up to 20 microseconds, and a frame waits a millisecond to be passed.
    pub const NONE: Self = Self {
        loss: Probability::NEVER,
        duplication: Probability::NEVER,
        reordering: Probability::NEVER,
        delay: Probability::NEVER,
        delay_time: Duration::from_micros(20),
        passing_time: Duration::from_millis(1),
    };

    /// Returns each fault with a probability of `per_mille` in a thousand, with the times of [`WireFaults::NONE`].
    pub const fn all(per_mille: u16) -> Self {
        let each = Probability::per_mille(per_mille);
        Self { loss: each, duplication: each, reordering: each, delay: each, ..Self::NONE }
    }
}

impl Default for WireFaults {
    fn default() -> Self {
        Self::NONE
    }
}

/// What happened on a [`FaultyWire`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WireStats {
    /// Frames that ports sent.
    pub sent: u64,
    /// Frames delivered.
    pub delivered: u64,
    /// Frames lost.
    pub lost: u64,
    /// Frames sent twice.
    pub duplicated: u64,
    /// Frames that a later one of the same source and destination has passed.
    pub reordered: u64,
    /// Frames that were delayed, or waited to be passed when no other came.
    pub delayed: u64,
}

/// Who sends, and to which LID or MAC address: what a receiver expects in order.
type Flow = (PortId, u64);

/// A delayed frame, and how many copies are sent.
#[derive(Clone, Debug)]
struct Delayed {
    from: PortId,
    frame: Vec<u8>,
    copies: usize,
    /// It waits to be passed by the next frame of its flow.
    waits: bool,
    /// Frames that it is on the wire: of a group one for each port.
    frames: usize,
}

/// Any wire, with loss, duplication, reordering and delay from a seed.
#[derive(Clone, Debug)]
pub struct FaultyWire<W> {
    inner: W,
    faults: WireFaults,
    random: Random,
    stats: WireStats,
    /// Delayed frames, by when they are sent and in which order they came.
    held: BTreeMap<(Instant, u64), Delayed>,
    /// How many frames of each port they are.
    held_by: BTreeMap<PortId, usize>,
    /// Those of them that wait to be passed, in their order.
    waiting: BTreeMap<Flow, Vec<(Instant, u64)>>,
    count: u64,
    /// From where to where no frame arrives.
    cut: BTreeSet<(PortId, PortId)>,
}

impl<W: Wire> FaultyWire<W> {
    /// Puts `faults` on a wire; `seed` decides which frames they hit.
    pub fn new(inner: W, faults: WireFaults, seed: u64) -> Self {
        Self {
            inner,
            faults,
            random: Random::new(seed),
            stats: WireStats::default(),
            held: BTreeMap::new(),
            held_by: BTreeMap::new(),
            waiting: BTreeMap::new(),
            count: 0,
            cut: BTreeSet::new(),
        }
    }

    /// Returns the counts so far.
    pub fn stats(&self) -> WireStats {
        self.stats
    }

    /// Returns the wire inside.
    pub fn inner_mut(&mut self) -> &mut W {
        &mut self.inner
    }

    /// Changes the faults from now on.
    pub fn set_faults(&mut self, faults: WireFaults) {
        self.faults = faults;
    }

    fn flow(&self, from: PortId, frame: &[u8]) -> Flow {
        let is_ethernet = self.inner.identity(from).is_some_and(PortIdentity::is_ethernet);
        let address = match frame.first_chunk() {
            Some(&[a, b, c, d, e, f]) if is_ethernet => u64::from_be_bytes([0, 0, a, b, c, d, e, f]),
            _ => destination(frame).map_or(0, u64::from),
        };
        (from, address)
    }

    /// Loses each frame from `from` that would arrive at `to` from now on, or none any more. The other direction is as it was.
    pub fn set_cut(&mut self, from: PortId, to: PortId, cut: bool) {
        if cut {
            self.cut.insert((from, to));
        } else {
            self.cut.remove(&(from, to));
        }
    }

    fn delay(&mut self, until: Instant, mut held: Delayed) -> (Instant, u64) {
        if let Destination::Everyone(ports) = self.inner.destination(held.from, &held.frame) {
            held.frames = ports;
        }
        let key = (until, self.count);
        self.count += 1;
        *self.held_by.entry(held.from).or_default() += held.frames;
        self.held.insert(key, held);
        key
    }

    fn put(&mut self, now: Instant, held: Delayed) {
        let Delayed { from, frame, copies, .. } = held;
        for _ in 1..copies {
            self.inner.send(now, from, frame.clone());
        }
        self.inner.send(now, from, frame);
    }

    /// Sends a frame that was delayed.
    fn put_held(&mut self, now: Instant, held: Delayed) {
        if let Some(count) = self.held_by.get_mut(&held.from) {
            *count = count.saturating_sub(held.frames);
        }
        self.put(now, held);
    }

    /// Sends on what is due.
    fn release(&mut self, now: Instant) {
        while let Some(entry) = self.held.first_entry() {
            let key = *entry.key();
            if key.0 > now {
                break;
            }
            let held = entry.remove();
            if held.waits {
                // No other came.
                self.stats.delayed += 1;
                let flow = self.flow(held.from, &held.frame);
                if let Some(keys) = self.waiting.get_mut(&flow) {
                    keys.retain(|waiting| *waiting != key);
                    if keys.is_empty() {
                        self.waiting.remove(&flow);
                    }
                }
            }
            self.put_held(key.0, held);
        }
    }

    /// Sends a frame, or delays it.
    fn pass(&mut self, now: Instant, from: PortId, frame: Vec<u8>, copies: usize) {
        if self.random.strikes(self.faults.delay) {
            self.stats.delayed += 1;
            let most = u64::try_from(self.faults.delay_time.as_nanos()).unwrap_or(u64::MAX);
            let wait = Duration::from_nanos(self.random.below(most.saturating_add(1)));
            self.delay(now.after(wait), Delayed { from, frame, copies, waits: false, frames: 1 });
            return;
        }
        let flow = self.flow(from, &frame);
        let waiting = self.waiting.get(&flow).map_or(0, Vec::len);
        if self.random.strikes(self.faults.reordering) && waiting < MAX_WAITING {
            // Never at once: it would be sent before the frame that is to pass it.
            let wait = self.faults.passing_time.max(Duration::from_nanos(1));
            let key = self.delay(now.after(wait), Delayed { from, frame, copies, waits: true, frames: 1 });
            self.waiting.entry(flow).or_default().push(key);
            return;
        }
        self.put(now, Delayed { from, frame, copies, waits: false, frames: 1 });
        for key in self.waiting.remove(&flow).unwrap_or_default() {
            if let Some(held) = self.held.remove(&key) {
                self.stats.reordered += 1;
                self.put_held(now, held);
            }
        }
    }
}

impl<W: Wire> Wire for FaultyWire<W> {
    fn send(&mut self, now: Instant, from: PortId, frame: Vec<u8>) {
        self.stats.sent += 1;
        if self.random.strikes(self.faults.loss) {
            self.stats.lost += 1;
        } else if self.random.strikes(self.faults.duplication) {
            self.stats.duplicated += 1;
            // A copy may be delayed alone, but does not pass its original.
            if self.random.strikes(self.faults.delay) {
                self.pass(now, from, frame.clone(), 1);
                self.stats.delayed += 1;
                let until = now.after(self.faults.delay_time);
                self.delay(until, Delayed { from, frame, copies: 1, waits: false, frames: 1 });
            } else {
                self.pass(now, from, frame, 2);
            }
        } else {
            self.pass(now, from, frame, 1);
        }
        // After the frame: one that is due and waits to be passed, is.
        self.release(now);
    }

    fn deliver(&mut self, now: Instant) -> Option<Delivery> {
        self.release(now);
        // Bounded by what is in flight.
        loop {
            let delivered = self.inner.deliver(now)?;
            if !self.cut.contains(&(delivered.from, delivered.to)) {
                self.stats.delivered += 1;
                return Some(delivered);
            }
            self.stats.lost += 1;
        }
    }

    fn next_due(&self) -> Option<Instant> {
        let held = self.held.keys().next().map(|key| key.0);
        [self.inner.next_due(), held].into_iter().flatten().min()
    }

    fn identity(&self, port: PortId) -> Option<&PortIdentity> {
        self.inner.identity(port)
    }

    fn destination(&self, from: PortId, frame: &[u8]) -> Destination {
        self.inner.destination(from, frame)
    }

    fn in_flight(&self, from: PortId) -> usize {
        self.inner.in_flight(from) + self.held_by.get(&from).copied().unwrap_or(0)
    }

    fn fix_station(&mut self, port: PortId, mac: [u8; 6]) {
        self.inner.fix_station(port, mac);
    }
}

#[cfg(test)]
mod tests {
    use super::super::PerfectWire;
    use super::*;

    const FRAMES: u32 = 10_000;

    /// Returns the numbers of the frames in the order of their arrival. `gap` is the time from one to the next.
    fn run(faults: WireFaults, seed: u64, gap: u64) -> (WireStats, Vec<u32>) {
        let mut perfect = PerfectWire::new(Duration::ZERO);
        let port = perfect.attach(PortIdentity::with_lid(1));
        let mut wire = FaultyWire::new(perfect, faults, seed);
        let mut got = Vec::new();
        for number in 0..FRAMES {
            let mut frame = vec![0, 0, 0, 1];
            frame.extend(number.to_be_bytes());
            let now = Instant::from_nanos(u64::from(number) * gap);
            wire.send(now, port, frame);
            while let Some(delivery) = wire.deliver(now) {
                got.push(u32::from_be_bytes(*delivery.frame.last_chunk().unwrap()));
            }
        }
        while let Some(due) = wire.next_due() {
            while let Some(delivery) = wire.deliver(due) {
                got.push(u32::from_be_bytes(*delivery.frame.last_chunk().unwrap()));
            }
        }
        (wire.stats(), got)
    }

    /// Returns the frames that arrived after a later one.
    fn passed(got: &[u32]) -> usize {
        let mut latest = 0;
        let late = got.iter().filter(|number| {
            latest = latest.max(**number);
            **number < latest
        });
        late.count()
    }

    /// The fabric bounds what is on the wire by that number.
    #[test]
    fn a_frame_for_a_group_is_as_many_frames_as_it_becomes() {
        let mut perfect = PerfectWire::new(Duration::ZERO);
        let ports: Vec<PortId> = (1..=4).map(|lid| perfect.attach(PortIdentity::with_lid(lid))).collect();
        let late = WireFaults { delay: Probability::ALWAYS, delay_time: Duration::from_millis(1), ..WireFaults::NONE };
        let mut wire = FaultyWire::new(perfect, late, 1);
        let start = Instant::from_nanos(0);
        wire.send(start, ports[0], vec![0, 0, 0xc0, 0x01, 0, 0, 0, 0]);
        wire.send(start, ports[0], vec![0, 0, 0, 2, 0, 0, 0, 0]);
        assert_eq!((wire.in_flight(ports[0]), wire.in_flight(ports[1])), (4, 0));
        let end = start.after(Duration::from_secs(1));
        let arrived: Vec<PortId> = std::iter::from_fn(|| wire.deliver(end)).map(|delivery| delivery.to).collect();
        assert_eq!((arrived.len(), wire.in_flight(ports[0])), (4, 0));
    }

    #[test]
    fn nothing_armed_nothing_happens() {
        let (stats, got) = run(WireFaults::default(), 1, 50);
        assert_eq!((stats.sent, stats.delivered), (10_000, 10_000));
        assert!(got.iter().copied().eq(0..FRAMES));
    }

    #[test]
    fn each_fault_has_its_rate_and_repeats_with_the_seed() {
        let (stats, got) = run(WireFaults::all(10), 7, 50);
        for count in [stats.lost, stats.duplicated, stats.reordered, stats.delayed] {
            assert!((50..200).contains(&count), "{stats:?}");
        }
        assert_eq!(stats.delivered, stats.sent - stats.lost + stats.duplicated);
        assert!(!got.is_sorted());
        assert_eq!(run(WireFaults::all(10), 7, 50), (stats, got));
    }

    /// For any time from one frame to the next: no delay is configured here.
    #[test]
    fn as_many_frames_are_passed_as_asked() {
        for (per_mille, gap) in [(10, 0), (200, 0), (200, 50), (200, 2_000_000), (200, u64::from(u32::MAX))] {
            for passing_time in [WireFaults::NONE.passing_time, Duration::ZERO] {
                let reordering = Probability::per_mille(per_mille);
                let (stats, got) = run(WireFaults { reordering, passing_time, ..WireFaults::NONE }, 3, gap);
                let (late, asked) = (passed(&got), usize::from(per_mille) * 10);
                assert!(late > asked * 7 / 10 && late < asked * 13 / 10, "{late} of {asked}, gap {gap}, {passing_time:?}");
                assert_eq!(stats.reordered, late as u64);
                let mut sorted = got;
                sorted.sort_unstable();
                assert!(sorted.into_iter().eq(0..FRAMES), "each arrives once");
            }
        }
    }

    #[test]
    fn one_in_ten_thousand_is_lost() {
        let loss = Probability::per_cent(0.04).unwrap();
        let (stats, got) = run(WireFaults { loss, ..WireFaults::NONE }, 5, 50);
        assert!((1..20).contains(&stats.lost), "{stats:?}");
        assert_eq!(got.len() as u64, u64::from(FRAMES) - stats.lost);
    }

    #[test]
    fn a_frame_is_passed_by_one_of_its_own_flow_alone() {
        let mut perfect = PerfectWire::new(Duration::ZERO);
        let (a, b) = (perfect.attach(PortIdentity::with_lid(1)), perfect.attach(PortIdentity::with_lid(2)));
        let mut wire = FaultyWire::new(perfect, WireFaults::NONE, 1);
        let frame = |dlid: u8, number: u8| vec![0, 0, 0, dlid, number];
        let now = Instant::from_nanos(5);
        wire.set_faults(WireFaults { reordering: Probability::ALWAYS, ..WireFaults::NONE });
        wire.send(now, a, frame(2, 1));
        wire.set_faults(WireFaults::NONE);
        wire.send(now, a, frame(1, 2));
        wire.send(now, b, frame(2, 3));
        let got = |wire: &mut FaultyWire<PerfectWire>, now| -> Vec<u8> {
            std::iter::from_fn(|| wire.deliver(now)).map(|delivery| delivery.frame[4]).collect()
        };
        assert_eq!(got(&mut wire, now), [2, 3]);
        wire.send(now, a, frame(2, 4));
        assert_eq!(got(&mut wire, now), [4, 1]);
        // The last frame does not wait for another.
        wire.set_faults(WireFaults { reordering: Probability::ALWAYS, ..WireFaults::NONE });
        wire.send(now, a, frame(2, 5));
        assert_eq!(got(&mut wire, now), []);
        let due = wire.next_due().unwrap();
        assert_eq!(due.since(now), WireFaults::NONE.passing_time);
        assert_eq!(got(&mut wire, due), [5]);
    }

    #[test]
    fn a_cut_is_one_direction_of_two_ports() {
        let mut perfect = PerfectWire::new(Duration::ZERO);
        let [a, b, c] = [1, 2, 3].map(|lid| perfect.attach(PortIdentity::with_lid(lid)));
        let mut wire = FaultyWire::new(perfect, WireFaults::NONE, 1);
        let now = Instant::from_nanos(5);
        let pass = |wire: &mut FaultyWire<PerfectWire>| -> Vec<(PortId, PortId)> {
            for from in [a, b, c] {
                // A frame to each port, one of them to itself.
                (1..=3).for_each(|dlid| wire.send(now, from, vec![0, 0, 0, dlid, 0]));
            }
            std::iter::from_fn(|| wire.deliver(now)).map(|delivery| (delivery.from, delivery.to)).collect()
        };
        assert_eq!(pass(&mut wire).len(), 9);
        wire.set_cut(a, b, true);
        let got = pass(&mut wire);
        assert!(got.len() == 8 && !got.contains(&(a, b)) && got.contains(&(b, a)), "{got:?}");
        assert_eq!((wire.stats().lost, wire.in_flight(a)), (1, 0));
        wire.set_cut(a, b, false);
        assert_eq!(pass(&mut wire).len(), 9);
    }
}

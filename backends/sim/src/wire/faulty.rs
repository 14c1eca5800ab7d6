//! A wire that misbehaves on purpose, repeatably.

use std::collections::BTreeMap;
use std::time::Duration;

use bareverbs::Instant;

use super::{PortId, Random, Wire};

/// How often a frame meets each misfortune, in frames of a thousand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WireFaults {
    /// Lost.
    pub loss: u16,
    /// Sent twice.
    pub duplication: u16,
    /// Held back until the next frame has passed it, or for `delay_time` if none comes.
    pub reordering: u16,
    /// Held back for a random time up to `delay_time`.
    pub delay: u16,
    /// Longest time that a frame is held back.
    pub delay_time: Duration,
}

impl WireFaults {
    /// Each misfortune `per_mille` of a thousand times, delays up to 20 microseconds.
    pub const fn all(per_mille: u16) -> Self {
        Self {
            loss: per_mille,
            duplication: per_mille,
            reordering: per_mille,
            delay: per_mille,
            delay_time: Duration::from_micros(20),
        }
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
    /// Frames held back until after the next one.
    pub reordered: u64,
    /// Frames delayed.
    pub delayed: u64,
}

/// Any wire, with loss, duplication, reordering and delay from a seed.
#[derive(Clone, Debug)]
pub struct FaultyWire<W> {
    inner: W,
    faults: WireFaults,
    random: Random,
    stats: WireStats,
    /// Frames held back, by when they go on and in which order they came.
    held: BTreeMap<(Instant, u64), (PortId, Vec<u8>)>,
    behind_next: Option<(Instant, u64)>,
    count: u64,
}

impl<W: Wire> FaultyWire<W> {
    /// Puts `faults` on a wire; `seed` decides which frames they hit.
    pub fn new(inner: W, faults: WireFaults, seed: u64) -> Self {
        let (stats, held) = (WireStats::default(), BTreeMap::new());
        Self { inner, faults, random: Random::new(seed), stats, held, behind_next: None, count: 0 }
    }

    /// What happened so far.
    pub fn stats(&self) -> WireStats {
        self.stats
    }

    /// The wire inside.
    pub fn inner_mut(&mut self) -> &mut W {
        &mut self.inner
    }

    /// Changes the misfortunes from now on.
    pub fn set_faults(&mut self, faults: WireFaults) {
        self.faults = faults;
    }

    fn hold(&mut self, until: Instant, from: PortId, frame: Vec<u8>) -> (Instant, u64) {
        let key = (until, self.count);
        self.count += 1;
        self.held.insert(key, (from, frame));
        key
    }

    fn release(&mut self, now: Instant) {
        while let Some(entry) = self.held.first_entry() {
            let due = entry.key().0;
            if due > now {
                break;
            }
            let (from, frame) = entry.remove();
            self.inner.send(due, from, frame);
        }
    }

    fn pass(&mut self, now: Instant, from: PortId, frame: Vec<u8>) {
        if self.random.chance(self.faults.delay) {
            self.stats.delayed += 1;
            let most = u64::try_from(self.faults.delay_time.as_nanos()).unwrap_or(u64::MAX);
            let wait = Duration::from_nanos(self.random.below(most.saturating_add(1)));
            self.hold(now.after(wait), from, frame);
        } else if self.random.chance(self.faults.reordering) && self.behind_next.is_none() {
            self.stats.reordered += 1;
            self.behind_next = Some(self.hold(now.after(self.faults.delay_time), from, frame));
        } else {
            self.inner.send(now, from, frame);
            if let Some((from, frame)) = self.behind_next.take().and_then(|key| self.held.remove(&key)) {
                self.inner.send(now, from, frame);
            }
        }
    }
}

impl<W: Wire> Wire for FaultyWire<W> {
    fn send(&mut self, now: Instant, from: PortId, frame: Vec<u8>) {
        self.stats.sent += 1;
        self.release(now);
        if self.random.chance(self.faults.loss) {
            self.stats.lost += 1;
            return;
        }
        if self.random.chance(self.faults.duplication) {
            self.stats.duplicated += 1;
            self.pass(now, from, frame.clone());
        }
        self.pass(now, from, frame);
    }

    fn deliver(&mut self, now: Instant) -> Option<(PortId, Vec<u8>)> {
        self.release(now);
        let delivered = self.inner.deliver(now)?;
        self.stats.delivered += 1;
        Some(delivered)
    }

    fn next_due(&self) -> Option<Instant> {
        let held = self.held.keys().next().map(|key| key.0);
        [self.inner.next_due(), held].into_iter().flatten().min()
    }

    fn set_lid(&mut self, port: PortId, lid: u16) {
        self.inner.set_lid(port, lid);
    }
}

#[cfg(test)]
mod tests {
    use super::super::PerfectWire;
    use super::*;

    fn run(faults: WireFaults, seed: u64) -> (WireStats, Vec<u32>) {
        let mut perfect = PerfectWire::new(Duration::from_nanos(100));
        let port = perfect.attach(1);
        let mut wire = FaultyWire::new(perfect, faults, seed);
        let mut got = Vec::new();
        for number in 0..10_000u32 {
            let mut frame = vec![0, 0, 0, 1];
            frame.extend(number.to_be_bytes());
            let now = Instant::from_nanos(u64::from(number) * 50);
            wire.send(now, port, frame);
            while let Some((_, frame)) = wire.deliver(now) {
                got.push(u32::from_be_bytes(*frame.last_chunk().unwrap()));
            }
        }
        while let Some(due) = wire.next_due() {
            while let Some((_, frame)) = wire.deliver(due) {
                got.push(u32::from_be_bytes(*frame.last_chunk().unwrap()));
            }
        }
        (wire.stats(), got)
    }

    #[test]
    fn nothing_armed_nothing_happens() {
        let (stats, got) = run(WireFaults::default(), 1);
        assert_eq!((stats.sent, stats.delivered), (10_000, 10_000));
        assert!(got.iter().copied().eq(0..10_000));
    }

    #[test]
    fn each_fault_has_its_rate_and_repeats_with_the_seed() {
        let (stats, got) = run(WireFaults::all(10), 7);
        for count in [stats.lost, stats.duplicated, stats.reordered, stats.delayed] {
            assert!((50..200).contains(&count), "{stats:?}");
        }
        assert_eq!(stats.delivered, stats.sent - stats.lost + stats.duplicated);
        assert!(!got.is_sorted());
        assert_eq!(run(WireFaults::all(10), 7), (stats, got));
    }
}

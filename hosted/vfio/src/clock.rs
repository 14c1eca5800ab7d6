//! The driver's time on Linux.

use std::cell::Cell;
use std::time::Duration;

use bareverbs::platform::{Clock, Instant};

/// How long a wait spins before it sleeps: longer than most firmware commands take.
const SPIN_TIME: Duration = Duration::from_micros(200);
/// Interval at which a sleeping wait polls the device.
const SLEEP_INTERVAL: Duration = Duration::from_micros(50);
/// Calls further apart than this belong to different waits.
const NEW_WAIT_GAP: Duration = Duration::from_millis(1);

/// `CLOCK_MONOTONIC`, relative to the creation of the value.
#[derive(Debug)]
pub struct MonotonicClock {
    start: std::time::Instant,
    /// Start of the current wait, and the time of its last call.
    wait: Cell<(Duration, Duration)>,
}

impl MonotonicClock {
    /// Creates a clock that starts now.
    pub fn new() -> Self {
        Self { start: std::time::Instant::now(), wait: Cell::new((Duration::ZERO, Duration::ZERO)) }
    }
}

impl Default for MonotonicClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for MonotonicClock {
    fn now(&self) -> Instant {
        Instant::from_nanos(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Spins at first, and sleeps in a long wait, but not beyond `deadline`.
    fn relax(&self, deadline: Instant) {
        let now = self.start.elapsed();
        let (mut began, last) = self.wait.get();
        if now.saturating_sub(last) > NEW_WAIT_GAP {
            began = now;
        }
        if now.saturating_sub(began) < SPIN_TIME {
            std::hint::spin_loop();
        } else {
            std::thread::sleep(SLEEP_INTERVAL.min(deadline.since(self.now())));
        }
        self.wait.set((began, self.start.elapsed()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_advances_and_long_waits_sleep() {
        let clock = MonotonicClock::new();
        let start = clock.now();
        let mut calls = 0;
        while clock.now().since(start) < Duration::from_millis(50) {
            clock.relax(start.after(Duration::from_millis(50)));
            calls += 1;
        }
        assert!(clock.now() > start);
        // 50 ms of sleeps of at least 50 us; spinning alone would make far more calls.
        assert!(calls < 100_000, "{calls}");
    }

    #[test]
    fn the_clock_keeps_its_contract() {
        let report = bareverbs_conformance::check_clock(&MonotonicClock::new()).unwrap();
        assert!(report.step < Duration::from_millis(1), "{report:?}");
    }

    #[test]
    fn a_wait_does_not_sleep_after_its_deadline() {
        let clock = MonotonicClock::default();
        let started = std::time::Instant::now();
        for _ in 0..10_000 {
            clock.relax(Instant::default());
        }
        // 10,000 sleeps of 50 us would take half a second.
        assert!(started.elapsed() < SLEEP_INTERVAL * 10_000, "{:?}", started.elapsed());
    }
}

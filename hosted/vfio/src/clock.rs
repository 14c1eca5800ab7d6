//! The driver's time on Linux.

use std::cell::Cell;
use std::time::Duration;

use bareverbs::{Clock, Instant};

/// How long a wait spins before it begins to sleep: longer than most firmware commands take.
const SPIN: Duration = Duration::from_micros(200);
/// How long it sleeps then between two looks at the device.
const SLEEP: Duration = Duration::from_micros(50);
/// Looks that lie further apart than this belong to different waits.
const APART: Duration = Duration::from_millis(1);

/// `CLOCK_MONOTONIC`, from the moment at which the value was made.
#[derive(Debug)]
pub struct MonotonicClock {
    start: std::time::Instant,
    /// Begin of the present wait, and the last look in it.
    wait: Cell<(Duration, Duration)>,
}

impl MonotonicClock {
    /// A clock that starts now.
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

    /// Spins at first, and sleeps between looks once a wait is long, but not beyond `deadline`.
    fn relax(&self, deadline: Instant) {
        let now = self.start.elapsed();
        let (mut began, last) = self.wait.get();
        if now.saturating_sub(last) > APART {
            began = now;
        }
        if now.saturating_sub(began) < SPIN {
            std::hint::spin_loop();
        } else {
            std::thread::sleep(SLEEP.min(deadline.since(self.now())));
        }
        self.wait.set((began, self.start.elapsed()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_on_and_long_waits_sleep() {
        let clock = MonotonicClock::new();
        let start = clock.now();
        let mut looks = 0;
        while clock.now().since(start) < Duration::from_millis(50) {
            clock.relax(start.after(Duration::from_millis(50)));
            looks += 1;
        }
        assert!(clock.now() > start);
        // 50 ms of sleeps of 50 us and more; spinning alone would look far more often.
        assert!(looks < 100_000, "{looks}");
    }

    #[test]
    fn a_wait_does_not_sleep_after_its_deadline() {
        let clock = MonotonicClock::new();
        let started = std::time::Instant::now();
        for _ in 0..10_000 {
            clock.relax(Instant::default());
        }
        // 10,000 sleeps of 50 us would take half a second.
        assert!(started.elapsed() < SLEEP * 10_000, "{:?}", started.elapsed());
    }
}

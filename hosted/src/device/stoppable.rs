//! A platform whose waits end soon after Ctrl-C, so that a device that does not respond cannot block the process.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bareverbs::{Clock, Instant, Platform};

/// Total time of the driver's waits after Ctrl-C: enough to tear down a device that responds.
pub const STOP_TIMEOUT: Duration = Duration::from_secs(3);

/// Platform `P` with a [`StoppableClock`].
#[derive(Debug)]
pub struct Stoppable<P>(PhantomData<P>);

impl<P: Platform> Platform for Stoppable<P> {
    type Registers = P::Registers;
    type Memory = P::Memory;
    type Pages = P::Pages;
    type Fence = P::Fence;
    type Clock = StoppableClock<P::Clock>;
}

/// A clock that follows another one. When the waits after a stop have taken [`STOP_TIMEOUT`], it advances to the deadline of each
/// further wait at once. The driver then polls the device once more and times out.
#[derive(Debug)]
pub struct StoppableClock<C> {
    inner: C,
    stop: Arc<AtomicBool>,
    /// Total time of waits since the stop.
    waited: Cell<Duration>,
    /// Lead over the inner clock.
    ahead: Cell<Duration>,
}

impl<C> StoppableClock<C> {
    /// Creates a clock that follows `inner` until `stop` is set.
    pub const fn new(inner: C, stop: Arc<AtomicBool>) -> Self {
        Self { inner, stop, waited: Cell::new(Duration::ZERO), ahead: Cell::new(Duration::ZERO) }
    }
}

impl<C: Clock> Clock for StoppableClock<C> {
    fn now(&self) -> Instant {
        self.inner.now().after(self.ahead.get())
    }

    fn relax(&self, deadline: Instant) {
        let ahead = u64::try_from(self.ahead.get().as_nanos()).unwrap_or(u64::MAX);
        let inner_deadline = Instant::from_nanos(deadline.as_nanos().saturating_sub(ahead));
        if !self.stop.load(Ordering::Relaxed) {
            return self.inner.relax(inner_deadline);
        }
        let start = self.inner.now();
        self.inner.relax(inner_deadline);
        self.waited.set(self.waited.get().saturating_add(self.inner.now().since(start)));
        if self.waited.get() >= STOP_TIMEOUT {
            self.ahead.set(self.ahead.get().saturating_add(deadline.since(self.now())));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A clock whose pauses take a millisecond each.
    #[derive(Debug, Default)]
    struct Steps(Cell<u64>);

    impl Clock for Steps {
        fn now(&self) -> Instant {
            Instant::from_nanos(self.0.get() * 1_000_000)
        }

        fn relax(&self, _: Instant) {
            self.0.set(self.0.get() + 1);
        }
    }

    /// Returns the number of pauses of a wait that times out.
    fn wait(clock: &StoppableClock<Steps>, timeout: Duration) -> u32 {
        let deadline = clock.now().after(timeout);
        let mut pauses = 0;
        while clock.now() < deadline {
            clock.relax(deadline);
            pauses += 1;
        }
        pauses
    }

    #[test]
    fn waits_after_a_stop_take_no_longer_than_the_timeout_together() {
        const MINUTE: Duration = Duration::from_secs(60);
        let stop = Arc::new(AtomicBool::new(false));
        let clock = StoppableClock::new(Steps::default(), stop.clone());
        assert_eq!(wait(&clock, MINUTE), 60_000);
        stop.store(true, Ordering::Relaxed);
        // A device that responds after the stop has time to do so.
        assert_eq!(wait(&clock, Duration::from_secs(1)), 1000);
        let before = clock.now();
        assert_eq!(wait(&clock, MINUTE), 2000);
        assert_eq!(clock.now().since(before), MINUTE, "the wait ended at its deadline");
        assert_eq!(wait(&clock, MINUTE), 1, "one look is left to each");
    }
}

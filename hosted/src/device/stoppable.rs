//! A platform whose waits end soon after Ctrl-C, so that a device that does not respond cannot block the process.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bareverbs::platform::{Clock, Instant, Platform};

/// How long the driver waits for one answer after Ctrl-C: a device that responds is torn down.
pub const STOP_TIMEOUT: Duration = Duration::from_secs(3);

/// Total time of the driver's waits after Ctrl-C, for a device that responds slowly.
const TEARDOWN_TIMEOUT: Duration = Duration::from_secs(10);

/// Platform `P` with a [`StoppableClock`].
#[derive(Debug)]
pub struct Stoppable<P>(PhantomData<P>);

// SAFETY: those of `P`, but for the clock.
#[expect(unsafe_code, reason = "the trait is unsafe to implement")]
unsafe impl<P: Platform> Platform for Stoppable<P> {
    type Registers = P::Registers;
    type Memory = P::Memory;
    type Pages = P::Pages;
    type Fence = P::Fence;
    type Clock = StoppableClock<P::Clock>;
}

/// A clock that follows another one. When one wait after a stop has taken [`STOP_TIMEOUT`], or all of them `TEARDOWN_TIMEOUT`, it
/// advances to the deadline of that wait and of each further one at once. The driver then polls the device once more and times out.
#[derive(Debug)]
pub struct StoppableClock<C> {
    inner: C,
    stop: Arc<AtomicBool>,
    /// Deadline of the current wait, as its caller knows it.
    deadline: Cell<Option<Instant>>,
    /// Time of the current wait since the stop.
    waited: Cell<Duration>,
    /// Time of all waits since the stop.
    waited_in_all: Cell<Duration>,
    gave_up: Cell<bool>,
    /// Lead over the inner clock.
    ahead: Cell<Duration>,
}

impl<C> StoppableClock<C> {
    /// Creates a clock that follows `inner` until `stop` is set.
    pub const fn new(inner: C, stop: Arc<AtomicBool>) -> Self {
        Self {
            inner,
            stop,
            deadline: Cell::new(None),
            waited: Cell::new(Duration::ZERO),
            waited_in_all: Cell::new(Duration::ZERO),
            gave_up: Cell::new(false),
            ahead: Cell::new(Duration::ZERO),
        }
    }

    /// Returns whether a wait ended early because of the stop: the device may only have been slow.
    pub const fn gave_up(&self) -> bool {
        self.gave_up.get()
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
        if self.deadline.replace(Some(deadline)) != Some(deadline) {
            self.waited.set(Duration::ZERO);
        }
        let start = self.inner.now();
        self.inner.relax(inner_deadline);
        let took = self.inner.now().since(start);
        for total in [&self.waited, &self.waited_in_all] {
            total.set(total.get().saturating_add(took));
        }
        let is_over = self.waited.get() >= STOP_TIMEOUT || self.waited_in_all.get() >= TEARDOWN_TIMEOUT;
        if is_over || self.gave_up.get() {
            self.gave_up.set(true);
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

    const SECOND: Duration = Duration::from_secs(1);
    const MINUTE: Duration = Duration::from_secs(60);

    fn clock() -> (StoppableClock<Steps>, Arc<AtomicBool>) {
        let stop = Arc::new(AtomicBool::new(false));
        (StoppableClock::new(Steps::default(), stop.clone()), stop)
    }

    #[test]
    fn a_wait_after_a_stop_takes_no_longer_than_the_timeout_and_the_later_ones_no_time() {
        let (clock, stop) = clock();
        assert_eq!(wait(&clock, MINUTE), 60_000);
        stop.store(true, Ordering::Relaxed);
        let before = clock.now();
        assert_eq!((wait(&clock, MINUTE), clock.gave_up()), (3000, true));
        assert_eq!(clock.now().since(before), MINUTE, "the wait ended at its deadline");
        assert_eq!(wait(&clock, MINUTE), 1, "one look is left to each");
    }

    #[test]
    fn a_device_that_responds_slowly_has_more_time_in_all() {
        let (clock, stop) = clock();
        stop.store(true, Ordering::Relaxed);
        for _ in 0..4 {
            assert_eq!(wait(&clock, 2 * SECOND), 2000);
        }
        assert!(!clock.gave_up());
        assert_eq!((wait(&clock, MINUTE), clock.gave_up()), (2000, true), "ten seconds in all");
    }
}

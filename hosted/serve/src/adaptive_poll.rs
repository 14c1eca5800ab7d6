//! Spins before sleeping while recent spins succeeded.

use std::num::NonZero;
use std::thread;
use std::time::{Duration, Instant};

/// How long a thread polls before it sleeps: about the time that waking a thread takes.
const SPIN_TIME: Duration = Duration::from_micros(40);
/// When recent polls found nothing, only one wait in this many polls.
const PROBE_INTERVAL: u8 = 32;
/// Upper bound of the success count: as many failures in a row as half of it stop the polling.
const MAX_SUCCESSES: u8 = 8;

/// Decides from recent results whether a wait polls before it sleeps.
#[derive(Debug)]
pub(crate) struct AdaptivePoll {
    successes: u8,
    since_probe: u8,
    /// Whether the process may use more than one processor: polling on the only one would delay the thread waited for.
    spins: bool,
}

impl AdaptivePoll {
    pub(crate) fn new() -> Self {
        let spins = thread::available_parallelism().is_ok_and(|processors| processors > NonZero::<usize>::MIN);
        Self { successes: 0, since_probe: 0, spins }
    }

    /// Polls for up to [`SPIN_TIME`] and returns what was found. Returns `None` at once if recent polls failed, to leave the
    /// processor to other threads.
    pub(crate) fn wait<R>(&mut self, poll: impl FnMut() -> Option<R>) -> Option<R> {
        self.wait_for(SPIN_TIME, poll)
    }

    fn wait_for<R>(&mut self, limit: Duration, mut poll: impl FnMut() -> Option<R>) -> Option<R> {
        self.since_probe = self.since_probe.saturating_add(1);
        if !self.spins || (self.successes == 0 && self.since_probe < PROBE_INTERVAL) {
            return None;
        }
        self.since_probe = 0;
        let start = Instant::now();
        let found = loop {
            let found = poll();
            if found.is_some() || start.elapsed() >= limit {
                break found;
            }
            thread::yield_now();
        };
        self.successes = match found {
            Some(_) => self.successes.saturating_add(1).min(MAX_SUCCESSES),
            None => self.successes.saturating_sub(2),
        };
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn poll(successes: u8) -> AdaptivePoll {
        AdaptivePoll { successes, since_probe: 0, spins: true }
    }

    #[test]
    fn a_poll_returns_what_it_finds_and_ends_after_the_spin_time() {
        let mut poll = poll(1);
        let mut calls = 0;
        // A long limit, in case other threads occupy the processor.
        let found = poll.wait_for(Duration::from_secs(60), || {
            calls += 1;
            (calls == 3).then_some(calls)
        });
        assert_eq!(found, Some(3));
        let start = Instant::now();
        assert_eq!(poll.wait(|| None::<()>), None);
        assert!(start.elapsed() >= SPIN_TIME);
    }

    #[test]
    fn polling_is_rare_after_failures() {
        let mut poll = poll(MAX_SUCCESSES);
        let polls = |poll: &mut AdaptivePoll| {
            let mut called = false;
            poll.wait(|| {
                called = true;
                None::<()>
            });
            called
        };
        let waits: Vec<bool> = (0..100).map(|_| polls(&mut poll)).collect();
        let count = waits.iter().filter(|polled| **polled).count();
        assert!(waits.starts_with(&[true; 4]) && (5..=8).contains(&count), "{count}");
        while poll.wait(|| Some(())).is_none() {}
        assert!(polls(&mut poll), "one success restarts the polling");
    }

    #[test]
    fn nothing_polls_on_a_single_processor() {
        let mut poll = AdaptivePoll { spins: false, ..poll(MAX_SUCCESSES) };
        assert_eq!(poll.wait(|| Some(())), None);
    }
}

//! Waiting without sleeping, where that has been worth while lately.

use std::num::NonZero;
use std::thread;
use std::time::{Duration, Instant};

/// How long a thread looks for more before it sleeps: about what it takes to wake one.
const LIMIT: Duration = Duration::from_micros(40);
/// Where that is in vain most of the time, it is tried once in this many times.
const TRIAL: u8 = 32;
/// Most successes that are remembered.
const MAX_SUCCESSES: u8 = 8;

/// How often it was worth while to wait without sleeping.
#[derive(Debug)]
pub(crate) struct AdaptivePoll {
    successes: u8,
    since_trial: u8,
    /// This process may use more than one processor: one is left for those who are waited for.
    spins: bool,
}

impl AdaptivePoll {
    pub(crate) fn new() -> Self {
        let spins = thread::available_parallelism().is_ok_and(|processors| processors > NonZero::<usize>::MIN);
        Self { successes: 0, since_trial: 0, spins }
    }

    /// Looks for a moment, unless that has been in vain lately: others need the processor then. What was found.
    pub(crate) fn wait<R>(&mut self, look: impl FnMut() -> Option<R>) -> Option<R> {
        self.wait_for(LIMIT, look)
    }

    fn wait_for<R>(&mut self, limit: Duration, mut look: impl FnMut() -> Option<R>) -> Option<R> {
        self.since_trial = self.since_trial.saturating_add(1);
        if !self.spins || (self.successes == 0 && self.since_trial < TRIAL) {
            return None;
        }
        self.since_trial = 0;
        let start = Instant::now();
        let found = loop {
            let found = look();
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
        AdaptivePoll { successes, since_trial: 0, spins: true }
    }

    #[test]
    fn what_comes_is_found_and_nothing_ends_the_wait() {
        let mut poll = poll(1);
        let mut looks = 0;
        // However long the other threads have the processor.
        let found = poll.wait_for(Duration::from_secs(60), || {
            looks += 1;
            (looks == 3).then_some(looks)
        });
        assert_eq!(found, Some(3));
        let start = Instant::now();
        assert_eq!(poll.wait(|| None::<()>), None);
        assert!(start.elapsed() >= LIMIT);
    }

    #[test]
    fn what_is_in_vain_is_tried_seldom() {
        let mut poll = poll(MAX_SUCCESSES);
        let tried = |poll: &mut AdaptivePoll| {
            let mut looked = false;
            poll.wait(|| {
                looked = true;
                None::<()>
            });
            looked
        };
        let tries: Vec<bool> = (0..100).map(|_| tried(&mut poll)).collect();
        let count = tries.iter().filter(|tried| **tried).count();
        assert!(tries.starts_with(&[true; 4]) && (5..=8).contains(&count), "{count}");
        while poll.wait(|| Some(())).is_none() {}
        assert!(tried(&mut poll), "as soon as one is found it is worth while again");
    }

    #[test]
    fn one_processor_is_left_to_those_who_are_waited_for() {
        let mut poll = AdaptivePoll { spins: false, ..poll(MAX_SUCCESSES) };
        assert_eq!(poll.wait(|| Some(())), None);
    }
}

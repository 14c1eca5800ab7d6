//! Queue pairs in the error state that are polled for receives: a receive has no doorbell, and one that is posted in the error
//! state must complete too.
//!
//! A few are polled at a time, in turn, often after a queue pair failed and rarely when nothing is found, so that an idle
//! device costs next to nothing.

use std::collections::BTreeSet;
use std::time::Duration;

use bareverbs::platform::Instant;

/// Queue pairs polled at a time.
const QPS_PER_POLL: usize = 128;
/// Time from one poll to the next: at first, and at most.
const MIN_INTERVAL: Duration = Duration::from_millis(1);
const MAX_INTERVAL: Duration = Duration::from_millis(16);

/// The queue pairs, and when they are polled next.
#[derive(Debug, Default)]
pub(in crate::engine) struct FailedQueues {
    qpns: BTreeSet<u32>,
    /// The queue pair number from which the next poll continues.
    next: u32,
    /// Queue pairs polled in this round over all of them, and whether one of them had new receives.
    polled: usize,
    found: bool,
    wait: Duration,
    due: Option<Instant>,
}

impl FailedQueues {
    /// Polls a queue pair, which is in the error state, from now on.
    pub(in crate::engine) fn insert(&mut self, qpn: u32, now: Instant) {
        if self.qpns.insert(qpn) {
            self.wait = MIN_INTERVAL;
            let soon = now.after(MIN_INTERVAL);
            self.due = Some(self.due.map_or(soon, |due| due.min(soon)));
        }
    }

    /// Polls a queue pair no more.
    pub(in crate::engine) fn remove(&mut self, qpn: u32) {
        if self.qpns.remove(&qpn) && self.qpns.is_empty() {
            self.due = None;
        }
    }

    /// Returns when the next poll is due.
    pub(in crate::engine) fn next_due(&self) -> Option<Instant> {
        self.due
    }

    /// Polls, if that is due: calls `is_posted` for some queue pairs and returns those that have new receives.
    pub(in crate::engine) fn poll(&mut self, now: Instant, is_posted: impl Fn(u32) -> bool) -> Vec<u32> {
        if self.due.is_none_or(|due| due > now) {
            return Vec::new();
        }
        let count = self.qpns.len().min(QPS_PER_POLL);
        let turn = self.qpns.range(self.next..).chain(self.qpns.range(..self.next)).copied();
        let polled: Vec<u32> = turn.take(count).collect();
        self.next = polled.last().map_or(0, |qpn| qpn.saturating_add(1));
        let posted: Vec<u32> = polled.into_iter().filter(|&qpn| is_posted(qpn)).collect();
        self.found |= !posted.is_empty();
        self.polled += count;
        if self.polled >= self.qpns.len() {
            self.wait = if self.found { MIN_INTERVAL } else { self.wait.saturating_mul(2).clamp(MIN_INTERVAL, MAX_INTERVAL) };
            (self.polled, self.found) = (0, false);
        }
        self.due = Some(now.after(self.wait));
        posted
    }
}

//! Moderation: completion events delayed until some entries are there or some time has passed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bareverbs::platform::Instant;
use bareverbs_mlx5_spec::{Cqc, View};

/// [`Cqc::CQ_PERIOD_MODE`]: time counts from the newest entry (Linux `MLX5_CQ_PERIOD_MODE_START_FROM_CQE`), else from the
/// newest event.
const FROM_ENTRY: u32 = 1;

/// When a queue raises an event: the parameters and the count so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moderation {
    period: Duration,
    /// Entries that cause an event; with a count or a period of 0 every entry causes one at once.
    max_count: u32,
    from_entry: bool,
    /// Entries since the queue was armed.
    entries: u32,
    /// Time of the newest event.
    pub(super) last_event: Option<Instant>,
}

impl Moderation {
    /// Creates the parameters of a context.
    pub(super) fn new(cqc: View<'_, Cqc>) -> Self {
        Self {
            period: Duration::from_micros(cqc.get(Cqc::CQ_PERIOD).into()),
            max_count: cqc.get(Cqc::CQ_MAX_COUNT),
            from_entry: cqc.get(Cqc::CQ_PERIOD_MODE) == FROM_ENTRY,
            entries: 0,
            last_event: None,
        }
    }

    /// Takes the parameters of a context; the count so far stays.
    pub(super) fn change(&mut self, cqc: View<'_, Cqc>) {
        *self = Self { entries: self.entries, last_event: self.last_event, ..Self::new(cqc) };
    }

    /// The queue is armed: counts afresh.
    pub(super) fn start(&mut self) {
        self.entries = 0;
    }

    /// Counts an entry. Returns when the event for it is due.
    pub(super) fn count(&mut self, now: Instant) -> Instant {
        self.entries = self.entries.saturating_add(1);
        if self.period.is_zero() || self.entries >= self.max_count {
            return now;
        }
        let from = if self.from_entry { None } else { self.last_event };
        from.unwrap_or(now).after(self.period)
    }
}

/// Times at which queues raise delayed events.
#[derive(Debug, Default)]
pub(super) struct Due {
    times: BTreeSet<(Instant, u32)>,
    of: BTreeMap<u32, Instant>,
}

impl Due {
    pub(super) fn set(&mut self, cqn: u32, at: Instant) {
        self.forget(cqn);
        self.times.insert((at, cqn));
        self.of.insert(cqn, at);
    }

    /// The queue waits no more.
    pub(super) fn forget(&mut self, cqn: u32) {
        if let Some(at) = self.of.remove(&cqn) {
            self.times.remove(&(at, cqn));
        }
    }

    pub(super) fn is_set(&self, cqn: u32) -> bool {
        self.of.contains_key(&cqn)
    }

    pub(super) fn pop(&mut self, now: Instant) -> Option<u32> {
        let &(_, cqn) = self.times.first().filter(|(at, _)| *at <= now)?;
        self.forget(cqn);
        Some(cqn)
    }

    /// Returns the earliest time.
    pub(super) fn first(&self) -> Option<Instant> {
        self.times.first().map(|&(at, _)| at)
    }
}

//! Moderation: completion events held back until some entries are there or some time has passed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bareverbs::Instant;
use bareverbs_mlx5_spec::{Cqc, View};

use super::{Armed, Completion, Cq, CqTable, EngineEvent};

/// [`Cqc::CQ_PERIOD_MODE`]: time counts from the newest entry (Linux `MLX5_CQ_PERIOD_MODE_START_FROM_CQE`), else from the
/// newest event.
const FROM_ENTRY: u32 = 1;

/// What a queue waits for before it tells of its entries, and what it has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moderation {
    period: Duration,
    /// Entries that are enough; with 0 of these or of the time every entry is told of at once.
    enough: u32,
    from_entry: bool,
    /// Entries since the queue was armed.
    entries: u32,
    /// When it last told.
    told: Option<Instant>,
}

impl Moderation {
    /// What a context says.
    pub(super) fn new(cqc: View<'_, Cqc>) -> Self {
        Self {
            period: Duration::from_micros(cqc.get(Cqc::CQ_PERIOD).into()),
            enough: cqc.get(Cqc::CQ_MAX_COUNT),
            from_entry: cqc.get(Cqc::CQ_PERIOD_MODE) == FROM_ENTRY,
            entries: 0,
            told: None,
        }
    }

    /// Takes what a context says now; what was counted stays.
    pub(super) fn change(&mut self, cqc: View<'_, Cqc>) {
        *self = Self { entries: self.entries, told: self.told, ..Self::new(cqc) };
    }

    /// The queue is armed: counts afresh.
    pub(super) fn start(&mut self) {
        self.entries = 0;
    }

    /// One entry more; when to tell of it.
    fn count(&mut self, now: Instant) -> Instant {
        self.entries = self.entries.saturating_add(1);
        if self.period.is_zero() || self.entries >= self.enough {
            return now;
        }
        let from = if self.from_entry { None } else { self.told };
        from.unwrap_or(now).after(self.period)
    }
}

/// When queues tell of entries, of those that wait.
#[derive(Debug, Default)]
pub(super) struct Due {
    times: BTreeSet<(Instant, u32)>,
    of: BTreeMap<u32, Instant>,
}

impl Due {
    fn set(&mut self, cqn: u32, at: Instant) {
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

    fn is_set(&self, cqn: u32) -> bool {
        self.of.contains_key(&cqn)
    }

    fn pop(&mut self, now: Instant) -> Option<u32> {
        let &(_, cqn) = self.times.first().filter(|(at, _)| *at <= now)?;
        self.forget(cqn);
        Some(cqn)
    }
}

impl Cq {
    /// Tells of an entry that was just written, now or later, if the queue is armed for it.
    pub(super) fn tell(
        &mut self,
        cqn: u32,
        now: Instant,
        completion: &Completion,
        due: &mut Due,
        events: &mut VecDeque<EngineEvent>,
    ) {
        if self.armed != Armed::Next && !(self.armed == Armed::Solicited && completion.is_solicited()) {
            return;
        }
        let at = self.moderation.count(now);
        if at <= now {
            due.forget(cqn);
            self.fire(cqn, now, events);
        } else {
            due.set(cqn, at);
        }
    }

    /// Tells the host; it must arm the queue again.
    pub(super) fn fire(&mut self, cqn: u32, now: Instant, events: &mut VecDeque<EngineEvent>) {
        self.armed = Armed::No;
        self.moderation.told = Some(now);
        events.push_back(EngineEvent::Completion { eqn: self.eqn, cqn });
    }
}

impl CqTable {
    /// Tells of what was held back until now.
    pub(in crate::engine) fn tell_due(&mut self, now: Instant, events: &mut VecDeque<EngineEvent>) {
        while let Some(cqn) = self.due.pop(now) {
            if let Some(cq) = self.cqs.get_mut(&cqn) {
                cq.fire(cqn, now, events);
            }
        }
    }

    /// When [`CqTable::tell_due`] next has work.
    pub(in crate::engine) fn next_due(&self) -> Option<Instant> {
        self.due.times.first().map(|&(at, _)| at)
    }

    /// The moderation of a queue changed: what waits by the old one is told of.
    pub(super) fn hasten(&mut self, cqn: u32) {
        if self.due.is_set(cqn) {
            self.due.set(cqn, Instant::default());
        }
    }
}

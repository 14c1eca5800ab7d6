//! Moderation: completion events held back until some entries are there or some time has passed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bareverbs::Instant;
use bareverbs_mlx5_spec::{Cqc, View};

use super::{Armed, Completion, Cq, CqTable, EngineEvent};
use crate::step::Meter;

/// [`Cqc::CQ_PERIOD_MODE`]: time counts from the newest entry (Linux `MLX5_CQ_PERIOD_MODE_START_FROM_CQE`), else from the
/// newest event.
const FROM_ENTRY: u32 = 1;

/// Steps that an event of a queue costs of a turn: it is written, and an interrupt raised.
const EVENT_STEPS: u64 = 4;

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
    last_event: Option<Instant>,
}

impl Moderation {
    /// The parameters of a context.
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
    fn count(&mut self, now: Instant) -> Instant {
        self.entries = self.entries.saturating_add(1);
        if self.period.is_zero() || self.entries >= self.max_count {
            return now;
        }
        let from = if self.from_entry { None } else { self.last_event };
        from.unwrap_or(now).after(self.period)
    }
}

/// Times at which queues raise events that are held back.
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
    /// Raises the event for an entry that was just written, now or later, if the queue is armed for it.
    pub(super) fn notify(
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

    /// Raises the event and disarms the queue.
    pub(super) fn fire(&mut self, cqn: u32, now: Instant, events: &mut VecDeque<EngineEvent>) {
        self.armed = Armed::No;
        self.moderation.last_event = Some(now);
        events.push_back(EngineEvent::Completion { eqn: self.eqn, cqn });
    }
}

impl CqTable {
    /// Raises the events that are due, as many as half a turn allows.
    pub(in crate::engine) fn fire_due(&mut self, now: Instant, meter: &Meter, events: &mut VecDeque<EngineEvent>) {
        while !meter.is_half_spent()
            && let Some(cqn) = self.due.pop(now)
        {
            meter.count(EVENT_STEPS);
            if let Some(cq) = self.cqs.get_mut(&cqn) {
                cq.fire(cqn, now, events);
            }
        }
    }

    /// When [`CqTable::fire_due`] next has work.
    pub(in crate::engine) fn next_due(&self) -> Option<Instant> {
        self.due.times.first().map(|&(at, _)| at)
    }

    /// The moderation of a queue changed: an event that it holds back is due at once.
    pub(super) fn expedite(&mut self, cqn: u32) {
        if self.due.is_set(cqn) {
            self.due.set(cqn, Instant::default());
        }
    }
}

//! Completion events: raised for an entry of an armed queue, at once or as its moderation says.

use std::collections::VecDeque;

use bareverbs::platform::Instant;

use super::moderation::Due;
use super::{Armed, Completion, Cq, CqTable};
use crate::engine::event::EngineEvent;
use crate::step::Meter;

/// Steps that an event of a queue costs of a turn: it is written, and an interrupt raised.
const EVENT_STEPS: u64 = 4;

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
    /// Raises the events that are due, until half of the turn is over at most.
    pub(in crate::engine) fn fire_due(&mut self, now: Instant, meter: &Meter, events: &mut VecDeque<EngineEvent>) {
        let part = meter.begin_part();
        while let Some(cqn) = self.due.pop(now) {
            meter.count(EVENT_STEPS);
            if let Some(cq) = self.cqs.get_mut(&cqn) {
                cq.fire(cqn, now, events);
            }
            if meter.is_part_spent(&part) {
                break;
            }
        }
    }

    /// Returns when [`CqTable::fire_due`] next has work.
    pub(in crate::engine) fn next_due(&self) -> Option<Instant> {
        self.due.first()
    }

    /// The moderation of a queue changed: an event that it delays is due at once.
    pub(super) fn expedite(&mut self, cqn: u32) {
        if self.due.is_set(cqn) {
            self.due.set(cqn, Instant::default());
        }
    }
}

//! Completion events: what an interrupt handler does without the verbs.

use crate::log::{format_as, log_event};
use crate::shared::Shared;
use crate::sync::Ordering;
use crate::verbs::Verbs;
use crate::{CompletionEvent, CompletionEvents, CoreToken, Provider, TakeError};

/// Maximum events of one call, so that a device that floods its queues does not keep the handler. More than any queue has.
const MAX_EVENTS: usize = 1 << 17;

/// What an interrupt handler calls: needs neither the verbs nor any queue, never waits, and takes no lock.
pub struct InterruptHandler<'s, P: Provider> {
    events: P::CompletionEvents,
    shared: Shared<'s>,
}

format_as!([P: Provider] InterruptHandler<'_, P>, "InterruptHandler({} completion queues)", |this| this.shared.cqs.len());

/// What an interrupt was about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Interrupted {
    /// Completion events taken; each woke the task that waits for its completion queue.
    pub completions: u32,
    /// Whether events were lost because a queue of them was full: every completion queue was woken then.
    pub overflow: bool,
    /// Whether there may be asynchronous events, which [`Verbs::poll_event`] takes.
    pub asynchronous: bool,
}

impl<P: Provider> InterruptHandler<'_, P> {
    /// Handles the interrupt `vector` (MSI-X) of the device. Takes its completion events, wakes the tasks that wait for them,
    /// and lets the device interrupt again.
    pub fn on_interrupt(&mut self, vector: u16) -> Interrupted {
        let asynchronous = self.events.is_control(vector);
        Interrupted { asynchronous, ..drain(&mut self.events, self.shared, Some(vector)) }
    }
}

/// Takes every event of the queues that interrupt with `vector`, of all queues for `None`.
pub(crate) fn drain<E: CompletionEvents>(events: &mut E, shared: Shared<'_>, vector: Option<u16>) -> Interrupted {
    let mut taken = Interrupted::default();
    for _ in 0..MAX_EVENTS {
        match events.next(vector) {
            CompletionEvent::Empty => break,
            CompletionEvent::Completion(cqn) => {
                // An event of a queue that is gone is of no use to anybody.
                if let Some(slot) = shared.cqs.iter().find(|slot| slot.cqn.load(Ordering::Acquire) == cqn.get()) {
                    slot.event();
                    taken.completions = taken.completions.wrapping_add(1);
                }
            }
            CompletionEvent::Overflow => {
                log_event!(warn, "a queue of completion events was full: every completion queue is to be looked at");
                taken.overflow = true;
                for slot in shared.cqs {
                    slot.event();
                }
            }
        }
    }
    taken
}

impl<'s, P: Provider> Verbs<'s, P> {
    /// Splits the interrupt handler off, to be called on any core and from any context. While it is not split off,
    /// [`Self::poll_event`] takes completion events too. [`Self::return_interrupt_handler`] puts it back; until then no
    /// completion queue can be destroyed.
    ///
    /// # Errors
    /// It is taken already.
    pub fn take_interrupt_handler(&mut self) -> Result<InterruptHandler<'s, P>, TakeError> {
        let events = self.events.take().ok_or(TakeError::Taken)?;
        Ok(InterruptHandler { events, shared: self.shared })
    }

    /// Puts it back; one of other verbs is given back.
    ///
    /// # Errors
    /// It was not taken from these verbs.
    pub fn return_interrupt_handler(&mut self, handler: InterruptHandler<'s, P>) -> Result<(), InterruptHandler<'s, P>> {
        if self.is_ours(handler.shared) && self.events.is_none() {
            self.events = Some(handler.events);
            Ok(())
        } else {
            Err(handler)
        }
    }

    /// Gives the queues of completion events back to the backend; `false` if they are taken.
    pub(crate) fn release_events(&mut self) -> bool {
        match self.events.take() {
            Some(events) => {
                self.provider.return_completion_events(CoreToken::NEW, events);
                true
            }
            None => false,
        }
    }
}

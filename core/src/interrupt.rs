//! Completion events: what an interrupt handler does without the verbs.

use crate::backend::{CompletionEvent, CompletionEvents, CoreToken, Provider};
use crate::error::TakeError;
use crate::log::{format_as, log_event};
use crate::shared::{CqSlot, Shared, wake_all};
use crate::sync::{Lock, Ordering};
use crate::verbs::Verbs;

/// Maximum events of one call, so that a device that floods its queues does not keep the handler. More than any queue has.
const MAX_EVENTS: usize = 1 << 17;

/// What an interrupt handler calls: needs neither the verbs nor any queue, never waits, and takes no lock. When it is dropped, the
/// verbs take completion events again; that is not for an interrupt handler to do.
#[must_use = "the handler is back when it is dropped"]
pub struct InterruptHandler<'s, P: Provider> {
    /// Always there until the drop.
    events: Option<P::CompletionEvents>,
    shared: Shared<'s>,
    left: &'s Lock<Option<P::CompletionEvents>>,
}

/// What an interrupt was about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub struct Interrupted {
    /// Completion events taken; each woke the task that waits for its completion queue.
    pub completions: u32,
    /// Whether events were lost because a queue of them was full: every completion queue was woken then.
    pub overflow: bool,
    /// Whether there may be asynchronous events, which [`Verbs::poll_event`] takes.
    pub asynchronous: bool,
}

format_as!([P: Provider] InterruptHandler<'_, P>, "InterruptHandler({} completion queues)", |this| this.shared.cqs.len());

impl<P: Provider> InterruptHandler<'_, P> {
    /// Handles the interrupt `vector` (MSI-X) of the device. Takes its completion events, wakes the tasks that wait for them,
    /// and lets the device interrupt again.
    ///
    /// ```
    /// # use bareverbs::{Access, SendWr};
    /// # use bareverbs_testing::{Faults, connect, pair};
    /// # let [mut a, mut b] = pair(Faults::none())?;
    /// # let [mut qa, _qb] = connect(&mut a, &mut b)?;
    /// # let target = b.register(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    /// # a.host.take_interrupts();
    /// let mut handler = a.verbs.take_interrupt_handler()?;
    /// # qa.cq.req_notify(false)?;
    /// # qa.qp.send.post(&SendWr::write(target.remote(0), b"x"))?;
    /// # a.network().world().advance(std::time::Duration::from_millis(1));
    /// let mut events = 0;
    /// // As the interrupt controller of a machine says which were raised.
    /// for vector in a.host.take_interrupts() {
    ///     events += handler.on_interrupt(vector).completions;
    /// }
    /// assert_eq!(events, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_interrupt(&mut self, vector: u16) -> Interrupted {
        let asynchronous = self.events.as_ref().is_some_and(|events| events.is_control(vector));
        let taken = self.events.as_mut().map(|events| drain(events, self.shared, Some(vector)));
        Interrupted { asynchronous, ..taken.unwrap_or_default() }
    }
}

impl<P: Provider> Drop for InterruptHandler<'_, P> {
    fn drop(&mut self) {
        let events = self.events.take();
        self.left.with(|left| *left = events);
    }
}

/// Takes every event of the queues that interrupt with `vector`, of all queues for `None`.
fn drain<E: CompletionEvents>(events: &mut E, shared: Shared<'_>, vector: Option<u16>) -> Interrupted {
    let mut drain = Drain { events, shared, vector, left: MAX_EVENTS, taken: Interrupted::default() };
    drain.run();
    drain.taken
}

/// [`drain`], which a task or a logger that unwinds does not end: the device would not interrupt again, and others wait for the
/// events behind.
struct Drain<'a, 's, E: CompletionEvents> {
    events: &'a mut E,
    shared: Shared<'s>,
    vector: Option<u16>,
    /// Events that may still be taken.
    left: usize,
    taken: Interrupted,
}

impl<E: CompletionEvents> Drain<'_, '_, E> {
    fn run(&mut self) {
        let (cqs, taken) = (self.shared.cqs, &mut self.taken);
        while let Some(left) = self.left.checked_sub(1) {
            self.left = left;
            match self.events.next(self.vector) {
                CompletionEvent::Empty => self.left = 0,
                CompletionEvent::Completion(cqn) => {
                    // An event of a queue that is gone is of no use to anybody.
                    if let Some(slot) = cqs.iter().find(|slot| slot.cqn.load(Ordering::Acquire) == cqn.get()) {
                        slot.event();
                        taken.completions = taken.completions.wrapping_add(1);
                    }
                }
                CompletionEvent::Overflow => {
                    taken.overflow = true;
                    // All before the first waker or the log, which may unwind.
                    cqs.iter().for_each(CqSlot::count_event);
                    wake_all(cqs);
                    log_event!(warn, "a queue of completion events was full: every completion queue is to be looked at");
                }
            }
        }
    }
}

impl<E: CompletionEvents> Drop for Drain<'_, '_, E> {
    fn drop(&mut self) {
        self.run();
    }
}

impl<'s, P: Provider> Verbs<'s, P> {
    /// Splits the interrupt handler off, to be called on any core and from any context. While it is split off,
    /// [`Self::poll_event`] takes no completion events, and no completion queue can be destroyed.
    ///
    /// ```
    /// # use bareverbs::{Access, SendWr};
    /// # use bareverbs_testing::{Faults, connect, pair};
    /// # let [mut a, mut b] = pair(Faults::none())?;
    /// # let [mut qa, _qb] = connect(&mut a, &mut b)?;
    /// # let target = b.register(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    /// let mut handler = a.verbs.take_interrupt_handler()?;
    /// let vector = a.verbs.cq_info(qa.cq.handle())?.vector;
    /// qa.cq.req_notify(false)?;
    /// qa.qp.send.post(&SendWr::write(target.remote(0), b"x"))?;
    /// # a.network().world().advance(std::time::Duration::from_millis(1));
    /// // In the handler of this vector:
    /// let taken = handler.on_interrupt(vector);
    /// assert_eq!((taken.completions, taken.overflow), (1, false));
    /// // Its drop gives it back.
    /// drop(handler);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    /// # Errors
    /// It is split off already, or earlier verbs on the same backend were dropped without [`Self::into_provider`].
    pub fn take_interrupt_handler(&mut self) -> Result<InterruptHandler<'s, P>, TakeError> {
        let (shared, left) = (self.shared, self.events);
        let events = left.with(Option::take).ok_or(TakeError::Taken)?;
        Ok(InterruptHandler { events: Some(events), shared, left })
    }

    /// Takes every completion event, unless the interrupt handler is split off. Nobody waits for the lock meanwhile: only who
    /// splits it off or drops it wants it.
    pub(crate) fn drain_events(&self) -> Option<Interrupted> {
        self.events.with(|events| events.as_mut().map(|events| drain(events, self.shared, None)))
    }

    /// Returns whether the interrupt handler is split off.
    pub(crate) fn has_taken_events(&self) -> bool {
        self.has_events && self.events.with(|events| events.is_none())
    }

    /// Gives the queues of completion events back to the backend; `false` if they are taken.
    pub(crate) fn release_events(&mut self) -> bool {
        match self.events.with(Option::take) {
            Some(events) => {
                self.provider.return_completion_events(CoreToken::NEW, events);
                true
            }
            None => !self.has_events,
        }
    }
}

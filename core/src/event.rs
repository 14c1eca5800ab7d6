//! Asynchronous events and completion events, with numbers turned into handles.

use crate::backend::{AsyncEvent, Provider, QueriedQp};
use crate::completion::Cq;
use crate::error::{DeviceLoss, PollEventError};
use crate::log::log_event;
use crate::platform::Instant;
use crate::shared::NO_NUMBER;
use crate::sync::Ordering;
use crate::verbs::Verbs;
use crate::{CqHandle, Cqn, Handle, QpHandle, QpState, Qpn, SrqHandle, Srqn};

/// An event (`ibv_async_event`, and completion events).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum Event {
    /// A completion came into an armed queue.
    Completion(CqHandle),
    /// A completion queue overran or broke: the device's syndrome. Polling it says so too.
    CqError(CqHandle, u8),
    /// First message on a queue pair in RTR. May be of an earlier queue pair with the same number, so that it comes early.
    CommEstablished(QpHandle),
    /// The send queue is drained: the device says that the queue pair is in SQD, and that what had begun is done. Comes after each
    /// move to SQD, unless the queue pair has left SQD when the event is polled: then it is [`Event::Stray`]. May come twice, the first
    /// time of an earlier move to SQD or of an earlier queue pair with the same number.
    SqDrained(QpHandle),
    /// A queue pair in ERR takes no more from its shared receive queue: what it took completes with the completions that wait.
    LastWqeReached(QpHandle),
    /// A queue pair goes on by its alternate path, which is its path from here on. It has no alternate one until it is given
    /// another ([`QpAttrMask::ALT_PATH`](crate::QpAttrMask)) and is armed again.
    PathMigrated(QpHandle),
    /// A queue pair was to go on by its alternate path, and could not.
    PathMigrationFailed(QpHandle),
    /// Fewer requests than the limit are left in a shared receive queue ([`Verbs::arm_srq`]). The limit is not armed any more. May
    /// be of an earlier queue with the same number, so that it comes early; it is never left out.
    SrqLimitReached(SrqHandle),
    /// A shared receive queue broke: a queue pair that takes from it breaks too.
    SrqError(SrqHandle),
    /// A queue pair broke; it is in ERR.
    QpFatal(QpHandle),
    /// An invalid request came in; the queue pair is in ERR.
    QpRequestError(QpHandle),
    /// An access violation of an incoming request; the queue pair is in ERR.
    QpAccessError(QpHandle),
    /// A port went up.
    PortActive(u8),
    /// A port went down.
    PortDown(u8),
    /// LID, P_Key table, GID table or SM of a port changed, its link is up and waits for the SM, or the SM was started anew, so that
    /// groups are to be joined again (`IBV_EVENT_LID_CHANGE`, `PKEY_CHANGE`, `GID_CHANGE`, `CLIENT_REREGISTER`). Query which it was.
    PortChanged(u8),
    /// The device is lost: health syndrome, and extended one. Polling any completion queue says so too
    /// ([`CompletionQueue::poll`](crate::CompletionQueue::poll)).
    DeviceFatal(u8, u16),
    /// A queue of events was full, and some may be lost. Of completion queues none is: each counts as having had an event. The
    /// states of queue pairs and ports are to be queried.
    EventsLost,
    /// An event of a queue that is not in the tables (destroyed since, or never made), or of a queue pair before its last
    /// RESET.
    Stray(AsyncEvent),
    /// An event type that this library does not know: type and subtype.
    Unknown(u8, u8),
}

/// Completion events in a row after which those of each completion queue are reported once more, then `None`.
const COMPLETIONS_IN_A_ROW: u16 = 64;

impl<P: Provider> Verbs<'_, P> {
    /// Takes the next event, if one is waiting. A queue pair that the device says is broken is in ERR from here on.
    ///
    /// A loop until `None` ends, however many events the device writes: `None` also comes after as many as its queues hold. The
    /// device raises an interrupt for the others, and the next call takes them.
    ///
    /// ```
    /// # use bareverbs_testing::{Faults, pair};
    /// # let [mut a, _b] = pair(Faults::none())?;
    /// a.set_link(false);
    /// while let Some(event) = a.verbs.poll_event()? {
    ///     println!("{event:?}");
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The device is lost, or gave something that is no event.
    pub fn poll_event(&mut self) -> Result<Option<Event>, PollEventError<P::Error>> {
        let taken = self.provider.poll_event();
        if let Some(event) = taken.map_err(|error| PollEventError::Device(self.failed(error)))? {
            return Ok(Some(self.translate(event)));
        }
        // The queue whose turn it is at the end of a long row: no more events are taken, so that none is left behind unseen.
        let last_turn = self.completions_in_a_row.checked_sub(COMPLETIONS_IN_A_ROW);
        if last_turn.is_none() && self.drain_events().is_some_and(|taken| taken.overflow) {
            self.completions_in_a_row += 1;
            return Ok(Some(Event::EventsLost));
        }
        let mut queues = self.shared.cqs.iter().zip(0_u16..).skip(usize::from(last_turn.unwrap_or(0)));
        let found = queues.find_map(|(slot, index)| {
            let events = slot.events.load(Ordering::Acquire);
            if slot.cqn.load(Ordering::Relaxed) == NO_NUMBER || events == slot.reported_events.load(Ordering::Relaxed) {
                return None;
            }
            slot.reported_events.store(events, Ordering::Relaxed);
            Some((index, Handle::new(index, slot.generation.load(Ordering::Relaxed))))
        });
        self.completions_in_a_row = match found {
            None => 0,
            Some((index, _)) if last_turn.is_some() => COMPLETIONS_IN_A_ROW.saturating_add(index).saturating_add(1),
            Some(_) => self.completions_in_a_row + 1,
        };
        Ok(found.map(|(_, cq)| Event::Completion(cq)))
    }

    fn translate(&mut self, event: AsyncEvent) -> Event {
        let translated = match event {
            AsyncEvent::CqError(cqn, syndrome) => self.broken_cq(cqn, syndrome).map(|cq| Event::CqError(cq, syndrome)),
            AsyncEvent::CommEstablished(qpn) => self.qp_named(qpn).map(Event::CommEstablished),
            AsyncEvent::SqDrained(qpn) => self.drained_qp(qpn).map(Event::SqDrained),
            AsyncEvent::LastWqeReached(qpn) => self.last_wqe_of(qpn).map(Event::LastWqeReached),
            AsyncEvent::PathMigrated(qpn) => self.migrated_qp(qpn).map(Event::PathMigrated),
            AsyncEvent::PathMigrationFailed(qpn) => self.qp_named(qpn).map(Event::PathMigrationFailed),
            AsyncEvent::SrqLimitReached(srqn) => self.limit_reached(srqn).map(Event::SrqLimitReached),
            AsyncEvent::SrqError(srqn) => self.srq_named(srqn).map(Event::SrqError),
            AsyncEvent::QpFatal(qpn) => self.broken_qp(qpn).map(Event::QpFatal),
            AsyncEvent::QpRequestError(qpn) => self.broken_qp(qpn).map(Event::QpRequestError),
            AsyncEvent::QpAccessError(qpn) => self.broken_qp(qpn).map(Event::QpAccessError),
            AsyncEvent::PortActive(port) => Some(Event::PortActive(port)),
            AsyncEvent::PortDown(port) => Some(Event::PortDown(port)),
            AsyncEvent::PortChanged(port) => Some(Event::PortChanged(port)),
            AsyncEvent::DeviceFatal(syndrome, extended) => {
                self.lose(DeviceLoss::Fatal);
                Some(Event::DeviceFatal(syndrome, extended))
            }
            AsyncEvent::Overflow => Some(Event::EventsLost),
            AsyncEvent::Unknown(kind, subtype) => Some(Event::Unknown(kind, subtype)),
        };
        // Last, since a logger may unwind, and the event was taken.
        log_event!(debug, "event: {:?}", event);
        translated.unwrap_or_else(|| {
            log_event!(debug, "event {:?} is of no queue that there is, or of its past", event);
            Event::Stray(event)
        })
    }

    /// Does what is due for the device: gives it the memory that it requests, and checks its health. Returns when to call it
    /// again at the latest. Takes no asynchronous events: [`Verbs::poll_event`].
    ///
    /// ```
    /// # use bareverbs::platform::Clock;
    /// # use bareverbs_testing::{Faults, pair};
    /// # let [mut a, _b] = pair(Faults::none())?;
    /// let clock = a.host.clock();
    /// let due = a.verbs.maintain()?;
    /// assert!(due > clock.now());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The device is lost: from here on its completion queues flush what was posted
    /// ([`CompletionQueue::poll`](crate::CompletionQueue::poll)).
    pub fn maintain(&mut self) -> Result<Instant, P::Error> {
        self.provider.maintain().map_err(|error| self.failed(error))
    }

    /// Returns the error of a call to the backend, after it was looked whether the device is lost.
    #[cold]
    #[inline(never)]
    pub(crate) fn failed(&self, error: P::Error) -> P::Error {
        if let Some((loss, _)) = self.provider.lost() {
            self.lose(loss);
        }
        error
    }

    /// Marks everything as that of a lost device. The reason that was found first stays.
    pub(crate) fn lose(&self, loss: DeviceLoss) {
        let lost = self.shared.lose(loss);
        // Last, since a logger may do anything.
        if lost != 0 {
            log_event!(error, "{} completion queues are lost with their device: {:?}", lost, loss);
        }
    }

    /// Returns the completion queue of this number, if the device says that it is broken now. The event may be of an earlier one
    /// with the number.
    fn broken_cq(&mut self, cqn: Cqn, syndrome: u8) -> Option<CqHandle> {
        let named = |(_, cq): &(CqHandle, &Cq<P>)| cq.info().cqn == cqn;
        let (handle, cq) = self.cqs.iter().find(named)?;
        match self.provider.query_cq(cq.inner()) {
            Ok(true) => return None,
            Ok(false) => {}
            // If the query fails, the event is trusted.
            Err(error) => {
                self.failed(error);
            }
        }
        let slot = self.shared.cqs.get(usize::from(handle.index()))?;
        if DeviceLoss::of_word(slot.broken.load(Ordering::Relaxed)).is_none() {
            slot.broken.store(u32::from(syndrome).wrapping_add(1), Ordering::Relaxed);
        }
        log_event!(error, "completion queue {:?} is broken, syndrome {:x}", handle, syndrome);
        slot.wake();
        Some(handle)
    }

    fn srq_named(&self, srqn: Srqn) -> Option<SrqHandle> {
        self.srqs.iter().find(|(_, srq)| srq.srqn == srqn).map(|(handle, _)| handle)
    }

    /// Returns the shared receive queue of this number, whose limit is not armed any more.
    fn limit_reached(&mut self, srqn: Srqn) -> Option<SrqHandle> {
        let handle = self.srq_named(srqn)?;
        self.srqs.get_mut(handle)?.limit = 0;
        Some(handle)
    }

    /// Returns the queue pair with this number, whose alternate path is its path from now on.
    fn migrated_qp(&mut self, qpn: Qpn) -> Option<QpHandle> {
        let handle = self.qp_named(qpn)?;
        self.qps.get_mut(handle)?.migrate();
        Some(handle)
    }

    fn qp_named(&self, qpn: Qpn) -> Option<QpHandle> {
        self.qps.iter().find(|(_, qp)| qp.qpn() == qpn).map(|(handle, _)| handle)
    }

    /// Returns the queue pair of this number, if what the device says of it now is what the event says. The event may be older than its
    /// last RESET, or be of an earlier queue pair with the number.
    fn qp_that(&mut self, qpn: Qpn, is: fn(&QueriedQp) -> bool) -> Option<QpHandle> {
        let handle = self.qp_named(qpn)?;
        match self.provider.query_qp(self.qps.get(handle)?.inner()) {
            Ok(said) => is(&said).then_some(handle),
            // If the query fails, the event is trusted.
            Err(error) => {
                self.failed(error);
                Some(handle)
            }
        }
    }

    fn drained_qp(&mut self, qpn: Qpn) -> Option<QpHandle> {
        self.qp_that(qpn, |said| said.state == QpState::Sqd && !said.sq_draining)
    }

    /// Returns the queue pair of this number, of which it is noted that it takes no more shared receives, if it is in ERR now.
    fn last_wqe_of(&mut self, qpn: Qpn) -> Option<QpHandle> {
        let handle = self.qp_that(qpn, |said| said.state == QpState::Err)?;
        self.shared.qps.get(usize::from(handle.index()))?.note_last_wqe();
        Some(handle)
    }

    /// Returns the queue pair of this number, if the device says that it is broken now. The event may be older than its last
    /// RESET, or be of an earlier queue pair with the number.
    fn broken_qp(&mut self, qpn: Qpn) -> Option<QpHandle> {
        let handle = self.qp_named(qpn)?;
        let qp = self.qps.get(handle)?;
        let slot = self.shared.qps.get(usize::from(handle.index()))?;
        let before = slot.state();
        let state = match self.provider.query_qp(qp.inner()) {
            Ok(said) => said.state,
            // If the query fails, the event is trusted.
            Err(error) => {
                self.failed(error);
                QpState::Err
            }
        };
        if !matches!(state, QpState::Err | QpState::Sqe) {
            return None;
        }
        if !slot.is_draining() {
            self.shared.move_state(slot, Some(before), state);
        }
        log_event!(warn, "the device has moved queue pair {:?} to {:?}", handle, state);
        Some(handle)
    }
}

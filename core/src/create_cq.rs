//! Completion queues as the control path has them: created, described, destroyed.

use core::cell::Cell;

use crate::backend::{CoreToken, CreatedCq, Provider};
use crate::completion::flush::flush_next;
use crate::completion::{CompletionQueue, Cq, CqInfo, unknown};
use crate::error::{AnswerFault, CreateCqError, DestroyCqError, StaleHandle};
use crate::log::log_event;
use crate::shared::{CqSlot, NO_NUMBER, Owner, is_dropped};
use crate::sync::Ordering;
use crate::verbs::Verbs;
use crate::{CqHandle, Refused};

impl<'s, P: Provider> Verbs<'s, P> {
    /// Creates a completion queue of at least `entries`.
    ///
    /// A queue that is full when a completion comes is broken for ever, and so is the queue pair of that completion. So it
    /// needs an entry for each completion that can wait. The rings of a queue pair may be longer than was requested, and then as
    /// many requests as the rings hold can be posted ([`Self::ring_sizes`]), unless the program keeps fewer in flight. Unsignaled ones count:
    /// when the queue pair breaks, each has a completion. So do all receives of shared receive queues that its queue pairs take from. Stale
    /// completions of a queue pair that was reset or destroyed take entries until they are polled. If another core posts while this one polls
    /// into a slice, as many as the slice has on top: their places are free when the poll ends.
    ///
    /// ```
    /// # use bareverbs::{QpCap, QpType};
    /// # use bareverbs_testing::{Faults, pair};
    /// # let [mut a, _b] = pair(Faults::none())?;
    /// let cap = QpCap { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 16 };
    /// let sizes = a.verbs.ring_sizes(QpType::Rc, &cap)?;
    /// let cq = a.verbs.create_cq(sizes.send_blocks + sizes.recv_entries)?;
    /// assert!(a.verbs.cq_info(cq.handle())?.entries >= 32);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The device has none of that size, the table is full, or the device refuses; nothing is created.
    pub fn create_cq(&mut self, entries: u32) -> Result<CompletionQueue<'s, P>, CreateCqError<P::Error>> {
        let max = self.provider.device_attr().max_cqe;
        if entries == 0 || entries > max {
            return Err(CreateCqError::Entries { entries, max });
        }
        let full = CreateCqError::Full { capacity: self.cqs.capacity() };
        let handle = self.cqs.vacancy(self.first_generation).ok_or(full)?;
        let cqs: &'s [CqSlot] = self.shared.cqs;
        let slot = cqs.get(usize::from(handle.index())).ok_or(full)?;
        let created = self.provider.create_cq(CoreToken::NEW, entries);
        let created = created.map_err(|error| CreateCqError::Device(self.failed(error)))?;
        let CreatedCq { cq: inner, ring, cqn, entries, vector } = created;
        if self.cqs.iter().any(|(_, other)| other.info.cqn == cqn) {
            // Not destroyed: by its number that would be the other. The memory that it was given stays the device's.
            return Err(CreateCqError::Answer { fault: AnswerFault::NumberInUse { number: cqn.get() } });
        }
        for word in [&slot.events, &slot.reported_events, &slot.broken, &slot.clean_wanted, &slot.clean_done] {
            word.store(0, Ordering::Relaxed);
        }
        slot.generation.store(handle.generation(), Ordering::Relaxed);
        slot.cqn.store(cqn.get(), Ordering::Release);
        self.cqs.occupy(handle, Cq { inner, info: CqInfo { cqn, entries, vector }, users: 0 });
        let queue = CompletionQueue {
            ring,
            slot,
            shared: self.shared,
            handle,
            cqn,
            entries: entries.max(1),
            readable: Cell::new(entries.max(1)),
            flushing: Cell::new(0),
            unknown: unknown::<P>,
            flush: flush_next::<P>,
            has_xrc: false,
            _owner: Owner::new(&slot.owner),
        };
        // Last, since a logger may do anything: the queue is dropped, and not lost, if it unwinds.
        log_event!(debug, "completion queue {:?}: number {:?}, {} entries", handle, cqn, entries);
        Ok(queue)
    }

    /// Returns the attributes of a completion queue.
    ///
    /// # Errors
    /// The handle is stale.
    pub fn cq_info(&self, cq: CqHandle) -> Result<CqInfo, StaleHandle> {
        self.cqs.get(cq).map(|cq| cq.info).ok_or(StaleHandle)
    }

    /// Destroys a completion queue into which no queue pair completes. It raises no event afterwards. The completions that wait are dropped,
    /// and what a peer has invalidated by them is free.
    ///
    /// ```
    /// # use bareverbs::error::DestroyCqError;
    /// # use bareverbs_testing::{Faults, connect, pair};
    /// # let [mut a, mut b] = pair(Faults::none())?;
    /// # let [qa, _qb] = connect(&mut a, &mut b)?;
    /// use bareverbs::Refused;
    ///
    /// let (qp, cq) = qa.into_parts();
    /// // Not while a queue pair completes into it.
    /// let refused = a.verbs.destroy_cq(cq).unwrap_err();
    /// assert_eq!(refused.error, DestroyCqError::Busy { users: 2 });
    /// a.verbs.destroy_qp(qp).map_err(Refused::into_error)?;
    /// let cq = refused.returned.expect("it comes back");
    /// a.verbs.destroy_cq(cq).map_err(Refused::into_error)?;
    /// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    /// # Errors
    /// The queue is of another `Verbs`, queue pairs complete into it, the interrupt handler is taken, or the device refuses. The
    /// queue comes back and is as before.
    #[expect(clippy::result_large_err, reason = "the completion queue itself is given back")]
    pub fn destroy_cq(
        &mut self,
        mut cq: CompletionQueue<'s, P>,
    ) -> Result<(), Refused<CompletionQueue<'s, P>, DestroyCqError<P::Error>>> {
        let ours = self.shared.cqs.get(usize::from(cq.handle.index())).is_some_and(|slot| core::ptr::eq(slot, cq.slot));
        if ours && self.cqs.get(cq.handle).is_some_and(|kept| kept.users == 0) {
            // All that waits is dropped by one look, and may tell of invalidations by a peer.
            let _ = cq.completions().next();
        }
        let destroyed = if ours { self.end_cq(cq.handle) } else { Err(DestroyCqError::Stale) };
        destroyed.map_err(|error| Refused { error, returned: Some(cq) })
    }

    /// Destroys a completion queue whose value was dropped, as [`Self::destroy_cq`] does; its completions are not looked at.
    ///
    /// # Errors
    /// [`DestroyCqError`]: the handle is stale, the value was not dropped, queue pairs complete into the queue, the interrupt handler is
    /// taken, or the device refuses.
    pub fn destroy_dropped_cq(&mut self, handle: CqHandle) -> Result<(), DestroyCqError<P::Error>> {
        self.cqs.get(handle).ok_or(DestroyCqError::Stale)?;
        if !self.is_cq_dropped(handle) {
            return Err(DestroyCqError::Owned);
        }
        self.end_cq(handle)
    }

    pub(crate) fn is_cq_dropped(&self, handle: CqHandle) -> bool {
        self.shared.cqs.get(usize::from(handle.index())).is_none_or(|slot| is_dropped(&slot.owner))
    }

    /// Destroys a completion queue that nobody else has.
    fn end_cq(&mut self, handle: CqHandle) -> Result<(), DestroyCqError<P::Error>> {
        let cq = self.cqs.get(handle).ok_or(DestroyCqError::Stale)?;
        if cq.users != 0 {
            return Err(DestroyCqError::Busy { users: cq.users });
        }
        // Its events are taken by the interrupt handler: they must be gone before the number may come again.
        if self.has_taken_events() {
            return Err(DestroyCqError::EventsTaken);
        }
        // Nothing names it while it ends, also not after a panic in the middle: its number may be another's by then.
        let mut cq = self.cqs.remove(handle).ok_or(DestroyCqError::Stale)?;
        if let Err(error) = self.provider.destroy_cq(CoreToken::NEW, &mut cq.inner) {
            self.cqs.occupy(handle, cq);
            return Err(DestroyCqError::Device(self.failed(error)));
        }
        if let Some(slot) = self.shared.cqs.get(usize::from(handle.index())) {
            slot.cqn.store(NO_NUMBER, Ordering::Release);
        }
        // Last, since a task may do anything when it is woken.
        self.drain_events();
        log_event!(debug, "completion queue {:?} is gone", handle);
        Ok(())
    }
}

//! Shared receive queues: made, posted to, armed, queried, destroyed.

use crate::backend::{CoreToken, CreatedSrq, Provider, SrqRing, SrqSizes};
use crate::error::{
    AnswerFault, ArmSrqError, BadWr, CreateSrqError, DestroySrqError, PostRecvError, QuerySrqError, StaleHandle,
};
use crate::log::{format_as, log_event};
use crate::queue_pair::{is_cleaned, use_cq};
use crate::recv_queue::check_sges;
use crate::shared::{LoseOnDrop, Owner, Shared};
use crate::srq_slot::{Srq, SrqSlot};
use crate::verbs::Verbs;
use crate::{CqHandle, PdHandle, RecvWr, Refused, SrqCap, SrqHandle, Srqn};

/// A shared receive queue to make (`ibv_srq_init_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct SrqInit {
    /// Protection domain of the regions that its requests name. Its queue pairs may be in others.
    pub pd: PdHandle,
    /// Least capacities.
    pub cap: SrqCap,
}

/// Attributes of a shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub struct SrqInfo {
    /// Number.
    pub srqn: Srqn,
    /// Protection domain.
    pub pd: PdHandle,
    /// Capacities, at least the requested ones.
    pub cap: SrqCap,
    /// Limit below which an event comes; 0 for none.
    pub limit: u32,
    /// Requests in flight: posted, and not yet given back by a completion.
    pub recvs: u32,
    /// Queue pairs that take from it; 0 of an XRC one, which its domain's targets take from.
    pub queue_pairs: u32,
    /// Where an XRC one completes, and nothing of another.
    pub cq: Option<CqHandle>,
}

/// A shared receive queue: its owner posts receives, on any core, and several queue pairs take them
/// ([`Verbs::create_qp_with_srq`]). Each completes where the queue pair that took it completes its receives, in any order.
///
/// A value that is dropped leaves a queue that cannot be posted to. [`Verbs::destroy_dropped_srq`] destroys that.
///
/// # What happens to its requests
///
/// Each is given back once, by the completion of the queue pair that took it. These are not:
///
/// - A request that no queue pair took. It belongs to none, so that no completion gives it back: what is left when the queue is
///   destroyed is dropped, and its memory the caller's.
/// - A request that a queue pair had taken when it was reset or destroyed. Its completion is dropped with the others of that queue
///   pair, and its place is free when that completion was dropped. One that was still being filled has none, and takes its place
///   until the queue is destroyed. So move the queue pair to ERR first, wait for [`Event::LastWqeReached`](crate::Event), and poll.
///
/// An XRC one ([`Verbs::create_xrc_srq`]) completes into a queue of its own, whichever target took the request, and also after that target
/// was reset or destroyed. What waits when it is destroyed is dropped when that queue is polled.
///
/// If the device is lost, each request that is left is flushed once ([`WcStatus::WrFlushErr`](crate::WcStatus)), by a poll of a
/// completion queue into which a queue pair with this queue completes receives. One whose completion waits in another completion queue
/// may be flushed first; that completion is dropped then. If there is no such queue pair, none is flushed: they
/// are dropped with the queue, as above.
#[must_use = "nobody posts to a shared receive queue whose value is dropped"]
pub struct SharedReceiveQueue<'s, P: Provider> {
    ring: P::SrqRing,
    pub(crate) slot: &'s SrqSlot<'s>,
    shared: Shared<'s>,
    handle: SrqHandle,
    pd: PdHandle,
    max_sge: u32,
    /// Places of the ring.
    slots: u32,
    /// Requests written since the queue was made.
    written: u32,
    /// Where the next one goes: the last one names it.
    next: u16,
    /// Last, so that the ring is dropped before the control path may destroy it.
    _owner: Owner<'s>,
}

format_as!([P: Provider] SharedReceiveQueue<'_, P>, "SharedReceiveQueue({:?})", |this| this.handle());

impl<P: Provider> SharedReceiveQueue<'_, P> {
    /// Returns the handle of the queue.
    pub const fn handle(&self) -> SrqHandle {
        self.handle
    }

    /// Posts one receive and rings the doorbell.
    ///
    /// ```
    /// # use bareverbs::{Access, DmaBuffer, RecvWr, SendWr, SrqCap, SrqInit};
    /// # use bareverbs_testing::{Faults, connect_with_srq, pair};
    /// # let [mut a, mut b] = pair(Faults::none())?;
    /// let mut srq = b.verbs.create_srq(&SrqInit { pd: b.pd, cap: SrqCap { max_wr: 15, max_sge: 1 } })?;
    /// let (mut qa, mut qb) = connect_with_srq(&mut a, &mut b, srq.handle())?;
    /// let inbox = b.register(64, Access::LOCAL_WRITE)?;
    /// srq.post(&RecvWr { wr_id: 3, sges: &[inbox.sge(0, 64)] })?;
    /// qa.qp.send.post(&SendWr::send(b"hello"))?;
    /// let received = qb.wait()?;
    /// assert_eq!((received.wr_id, received.byte_len), (3, 5));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The request is refused, and the queue is as before.
    pub fn post(&mut self, wr: &RecvWr<'_>) -> Result<(), PostRecvError> {
        self.append(wr)?;
        self.ring_new();
        Ok(())
    }

    /// Posts receives up to the first that fails, with one doorbell; that one is named and not posted.
    ///
    /// ```
    /// # use bareverbs::{Access, RecvWr, SendWr, SrqCap, SrqInit};
    /// # use bareverbs_testing::{Faults, connect_with_srq, pair};
    /// # let [mut a, mut b] = pair(Faults::none())?;
    /// # let mut srq = b.verbs.create_srq(&SrqInit { pd: b.pd, cap: SrqCap { max_wr: 15, max_sge: 1 } })?;
    /// # let (mut qa, mut qb) = connect_with_srq(&mut a, &mut b, srq.handle())?;
    /// # let inbox = b.register(128, Access::LOCAL_WRITE)?;
    /// let (first, second) = ([inbox.sge(0, 64)], [inbox.sge(64, 64)]);
    /// srq.post_list(&[RecvWr { wr_id: 1, sges: &first }, RecvWr { wr_id: 2, sges: &second }])?;
    /// # for _ in 0..2 { qa.qp.send.post(&SendWr::send(b"hello"))?; }
    /// assert_eq!([qb.wait()?.wr_id, qb.wait()?.wr_id], [1, 2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// A request is refused, which [`BadWr`] names with the reason. Those before it are posted.
    pub fn post_list(&mut self, list: &[RecvWr<'_>]) -> Result<(), BadWr<PostRecvError>> {
        let mut refused = Ok(());
        for (index, wr) in list.iter().enumerate() {
            if let Err(error) = self.append(wr) {
                refused = Err(BadWr { index, error });
                break;
            }
        }
        if self.slot.published() != self.written {
            self.ring_new();
        }
        refused
    }

    /// Writes a receive without ringing the doorbell, or returns what is wrong with it.
    fn append(&mut self, wr: &RecvWr<'_>) -> Result<(), PostRecvError> {
        if let Some(loss) = self.slot.loss() {
            return Err(PostRecvError::DeviceLost { loss });
        }
        if wr.sges.len() > self.max_sge as usize {
            return Err(PostRecvError::SgeCount { count: wr.sges.len(), max: self.max_sge });
        }
        check_sges(&self.shared.regions, self.pd, wr.sges)?;
        // One slot is always kept back: each request names that of the one after it.
        let full = PostRecvError::SharedQueueFull { capacity: self.slots.saturating_sub(1) };
        let after = self.slot.free_place(self.written, self.slots).ok_or(full)?;
        self.ring.put(self.next, after, wr.sges);
        self.slot.remember(self.next, wr.wr_id);
        self.next = after;
        self.written = self.written.wrapping_add(1);
        Ok(())
    }

    /// Notifies the device of receives that it does not know.
    fn ring_new(&mut self) {
        self.slot.publish(self.written);
        self.ring.ring(self.written);
    }
}

/// Where a shared receive queue is kept.
pub(crate) type SrqPlace<'s> = (SrqHandle, &'s SrqSlot<'s>);

impl<'s, P: Provider> Verbs<'s, P> {
    /// Creates a shared receive queue. Of the free entries of the storage it gets the fewest in which its requests fit.
    ///
    /// ```
    /// # use bareverbs::{SrqCap, SrqInit};
    /// # use bareverbs_testing::{Faults, pair};
    /// # let [mut a, _b] = pair(Faults::none())?;
    /// let srq = a.verbs.create_srq(&SrqInit { pd: a.pd, cap: SrqCap { max_wr: 10, max_sge: 1 } })?;
    /// assert!(a.verbs.srq_info(srq.handle())?.cap.max_wr >= 10);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The domain's handle is stale, the capacities exceed the device's or those of all entries, the table is full, or the device
    /// refuses. Or stale completions of an earlier XRC one in the slot are not polled yet. Nothing is created.
    pub fn create_srq(&mut self, init: &SrqInit) -> Result<SharedReceiveQueue<'s, P>, CreateSrqError<P::Error>> {
        let (place, sizes) = self.place_of_srq(init, usize::MAX)?;
        let pd = self.pds.get(init.pd).ok_or(CreateSrqError::StalePd)?;
        let created = match self.provider.create_srq(CoreToken::NEW, &pd.inner, &sizes) {
            Ok(created) => created,
            Err(error) => return Err(CreateSrqError::Device(self.failed(error))),
        };
        self.adopt_srq(init, &sizes, place, created)
    }

    /// Returns the place for a shared receive queue, the smallest of the first `reach` in which its requests fit, and its sizes.
    pub(crate) fn place_of_srq(
        &self,
        init: &SrqInit,
        reach: usize,
    ) -> Result<(SrqPlace<'s>, SrqSizes), CreateSrqError<P::Error>> {
        let device = self.provider.device_attr();
        let (wanted, max) = (init.cap, SrqCap { max_wr: device.max_srq_wr, max_sge: device.max_srq_sge });
        if wanted.max_wr == 0 || wanted.max_wr > max.max_wr || wanted.max_sge > max.max_sge {
            return Err(CreateSrqError::Capacity { wanted, max });
        }
        self.pds.get(init.pd).ok_or(CreateSrqError::StalePd)?;
        let sizes = self.provider.srq_sizes(&wanted).map_err(CreateSrqError::Device)?;
        let SrqSizes { slots, cap } = sizes;
        if !slots.is_power_of_two() || !(2..=1 << 15).contains(&slots) || cap.max_wr >= slots {
            return Err(CreateSrqError::Answer { fault: AnswerFault::SrqSlots { slots } });
        }
        let srqs: &'s [SrqSlot<'s>] = self.shared.srqs;
        let table = srqs.get(..reach).unwrap_or(srqs);
        let fits = |slot: &SrqSlot<'_>| slot.capacity() >= slots as usize;
        let fitting = table.iter().filter(|slot| fits(slot)).count();
        if fitting == 0 {
            let most = table.iter().map(SrqSlot::capacity).max().unwrap_or(0) as u32;
            return Err(CreateSrqError::Entries { max_wr: wanted.max_wr, slots, most });
        }
        let mut chosen: Option<(SrqHandle, &'s SrqSlot<'s>)> = None;
        let mut none = CreateSrqError::Full { capacity: table.len(), fitting };
        for (index, slot) in table.iter().enumerate().filter(|(_, slot)| fits(slot)) {
            if chosen.is_none_or(|(_, other)| slot.capacity() < other.capacity())
                && let Some(handle) = self.srqs.vacancy_at(index, self.first_generation)
            {
                // A completion that waits of one that ended would be taken for one of the next.
                if slot.xrc().is_some_and(|(_, cq)| !is_cleaned(self.shared, cq)) {
                    none = CreateSrqError::Draining;
                } else {
                    chosen = Some((handle, slot));
                }
            }
        }
        Ok((chosen.ok_or(none)?, sizes))
    }

    /// Keeps a shared receive queue that was just made, and returns it.
    pub(crate) fn adopt_srq(
        &mut self,
        init: &SrqInit,
        sizes: &SrqSizes,
        (handle, slot): SrqPlace<'s>,
        created: CreatedSrq<P>,
    ) -> Result<SharedReceiveQueue<'s, P>, CreateSrqError<P::Error>> {
        let SrqSizes { slots, cap } = *sizes;
        let CreatedSrq { srq: inner, ring, srqn } = created;
        if self.srqs.iter().any(|(_, other)| other.srqn == srqn) {
            // Not destroyed: by its number that would be the other. The memory that it was given stays the device's.
            return Err(CreateSrqError::Answer { fault: AnswerFault::NumberInUse { number: srqn.get() } });
        }
        self.join_pd(init.pd);
        slot.set_xrc(None);
        slot.start(handle.generation(), slots);
        let (domain, cq) = (None, CqHandle::NONE);
        self.srqs.occupy(handle, Srq { inner, srqn, pd: init.pd, slots, cap, limit: 0, users: 0, domain, cq });
        let queue = SharedReceiveQueue {
            ring,
            slot,
            shared: self.shared,
            handle,
            pd: init.pd,
            max_sge: cap.max_sge,
            slots,
            written: 0,
            next: 0,
            _owner: Owner::new(&slot.owner),
        };
        // Last, since a logger may do anything: the queue is dropped, and not lost, if it unwinds.
        log_event!(debug, "shared receive queue {:?}: number {:?}, {} requests", handle, srqn, cap.max_wr);
        Ok(queue)
    }

    /// Asks for one [`Event::SrqLimitReached`](crate::Event) when fewer requests than `limit` are left in a shared receive queue: posted,
    /// and taken by no queue pair. It comes at once if there are fewer already. 0 asks for none. The limit is cleared by the event
    /// (`ibv_modify_srq` with `IBV_SRQ_LIMIT`; IBTA 11.2.3.3). The number of requests is not changed: an mlx5 device cannot.
    ///
    /// ```
    /// # use bareverbs::{Event, SrqCap, SrqInit};
    /// # use bareverbs_testing::{Faults, pair};
    /// # let [mut a, _b] = pair(Faults::none())?;
    /// let srq = a.verbs.create_srq(&SrqInit { pd: a.pd, cap: SrqCap { max_wr: 15, max_sge: 1 } })?;
    /// a.verbs.arm_srq(srq.handle(), 4)?;
    /// // Nothing is posted, which is less.
    /// let event = loop {
    ///     if let Some(event) = a.verbs.poll_event()? {
    ///         break event;
    ///     }
    /// };
    /// assert_eq!(event, Event::SrqLimitReached(srq.handle()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The handle is stale, the limit exceeds the queue's requests, or the device refuses. The limit is as before.
    #[doc(alias = "ibv_modify_srq")]
    pub fn arm_srq(&mut self, handle: SrqHandle, limit: u32) -> Result<(), ArmSrqError<P::Error>> {
        let srq = self.srqs.get_mut(handle).ok_or(ArmSrqError::Stale)?;
        let max = srq.cap.max_wr;
        if limit > max {
            return Err(ArmSrqError::Limit { limit, max });
        }
        if let Err(error) = self.provider.arm_srq(CoreToken::NEW, &mut srq.inner, limit) {
            return Err(ArmSrqError::Device(self.failed(error)));
        }
        srq.limit = limit;
        Ok(())
    }

    /// Returns the attributes of a shared receive queue that the verbs keep, without a command to the device. The limit is the one that
    /// was set last, or 0 since its event was taken.
    ///
    /// # Errors
    /// The handle is stale.
    pub fn srq_info(&self, handle: SrqHandle) -> Result<SrqInfo, StaleHandle> {
        let srq = self.srqs.get(handle).ok_or(StaleHandle)?;
        let slot = self.shared.srqs.get(usize::from(handle.index())).ok_or(StaleHandle)?;
        let Srq { srqn, pd, cap, limit, users: queue_pairs, slots, domain, cq, .. } = *srq;
        Ok(SrqInfo { srqn, pd, cap, limit, recvs: slot.in_flight(slots), queue_pairs, cq: domain.map(|_| cq) })
    }

    /// Returns the attributes of a shared receive queue, with the limit that it has in the device now (`ibv_query_srq`).
    ///
    /// ```
    /// # use bareverbs::{SrqCap, SrqInit};
    /// # use bareverbs_testing::{Faults, pair};
    /// # let [mut a, _b] = pair(Faults::none())?;
    /// let srq = a.verbs.create_srq(&SrqInit { pd: a.pd, cap: SrqCap { max_wr: 15, max_sge: 1 } })?;
    /// // Nothing is posted: the limit is reached at once, and cleared by the event.
    /// a.verbs.arm_srq(srq.handle(), 4)?;
    /// assert_eq!(a.verbs.query_srq(srq.handle())?.limit, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The handle is stale, or the device does not answer.
    pub fn query_srq(&mut self, handle: SrqHandle) -> Result<SrqInfo, QuerySrqError<P::Error>> {
        let info = self.srq_info(handle).map_err(|StaleHandle| QuerySrqError::Stale)?;
        let srq = self.srqs.get(handle).ok_or(QuerySrqError::Stale)?;
        let answer = self.provider.query_srq(&srq.inner);
        let limit = answer.map_err(|error| QuerySrqError::Device(self.failed(error)))?;
        Ok(SrqInfo { limit, ..info })
    }

    /// Destroys a shared receive queue that no queue pair uses, with all that is posted: no completion gives that back.
    ///
    /// ```
    /// # use bareverbs::error::DestroySrqError;
    /// # use bareverbs::{Refused, SrqCap, SrqInit};
    /// # use bareverbs_testing::{Faults, connect_with_srq, pair};
    /// # let [mut a, mut b] = pair(Faults::none())?;
    /// let srq = b.verbs.create_srq(&SrqInit { pd: b.pd, cap: SrqCap { max_wr: 15, max_sge: 1 } })?;
    /// let (_qa, qb) = connect_with_srq(&mut a, &mut b, srq.handle())?;
    /// let refused = b.verbs.destroy_srq(srq).unwrap_err();
    /// assert_eq!(refused.error, DestroySrqError::Busy { users: 1 });
    /// b.verbs.destroy_qp(qb.qp).map_err(Refused::into_error)?;
    /// b.verbs.destroy_srq(refused.returned.unwrap()).map_err(Refused::into_error)?;
    /// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    ///
    /// # Errors
    /// The queue is of another `Verbs`, queue pairs use it, or the device refuses. It comes back and is as before.
    #[expect(clippy::result_large_err, reason = "the shared receive queue itself is given back")]
    pub fn destroy_srq(
        &mut self,
        srq: SharedReceiveQueue<'s, P>,
    ) -> Result<(), Refused<SharedReceiveQueue<'s, P>, DestroySrqError<P::Error>>> {
        let ours = self.shared.srqs.get(usize::from(srq.handle.index())).is_some_and(|slot| core::ptr::eq(slot, srq.slot));
        let destroyed = if ours { self.end_srq(srq.handle) } else { Err(DestroySrqError::Stale) };
        destroyed.map_err(|error| Refused { error, returned: Some(srq) })
    }

    /// Destroys a shared receive queue whose value was dropped, as [`Self::destroy_srq`] does.
    ///
    /// # Errors
    /// [`DestroySrqError`]: the handle is stale, the value was not dropped, queue pairs use the queue, or the device refuses.
    pub fn destroy_dropped_srq(&mut self, handle: SrqHandle) -> Result<(), DestroySrqError<P::Error>> {
        self.srqs.get(handle).ok_or(DestroySrqError::Stale)?;
        if !self.is_srq_dropped(handle) {
            return Err(DestroySrqError::Owned);
        }
        self.end_srq(handle)
    }

    /// Destroys a shared receive queue to which nobody posts.
    fn end_srq(&mut self, handle: SrqHandle) -> Result<(), DestroySrqError<P::Error>> {
        let users = self.srqs.get(handle).ok_or(DestroySrqError::Stale)?.users;
        if users != 0 {
            return Err(DestroySrqError::Busy { users });
        }
        // Nothing names it while it ends, also not after a panic in the middle: its number may be another's by then.
        let mut srq = self.srqs.remove(handle).ok_or(DestroySrqError::Stale)?;
        let ended = LoseOnDrop::if_unwound(self.shared, || self.provider.destroy_srq(CoreToken::NEW, &mut srq.inner));
        if let Err(error) = ended {
            self.srqs.occupy(handle, srq);
            return Err(DestroySrqError::Device(self.failed(error)));
        }
        self.leave_pd(srq.pd);
        if let Some(slot) = self.shared.srqs.get(usize::from(handle.index())) {
            slot.end();
        }
        if srq.domain.is_some() {
            use_cq(&mut self.cqs, srq.cq, -1);
            if let Some(cq) = self.shared.cqs.get(usize::from(srq.cq.index())) {
                cq.ask_to_clean();
                // A sleeping poller would not poll, and the slot would drain for ever. A task may do anything when it is woken.
                cq.wake();
            }
        }
        log_event!(debug, "shared receive queue {:?} is gone", handle);
        Ok(())
    }
}

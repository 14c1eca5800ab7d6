//! What queues on different cores share: the facts of regions, completion queues and queue pairs that posting, polling and
//! interrupt handlers need.
//!
//! Each word names who writes it: one, but for the state of a queue pair, whose writers hold the lock. Others read it.

use crate::claim::Claim;
use crate::error::{DeviceLoss, SgeFault};
use crate::ring::locate;
use crate::srq_slot::SrqSlot;
use crate::storage::RingsView;
use crate::sync::{AtomicU32, Lock, Ordering, Word64, fence};
use crate::window::Windows;
use crate::{Access, CqHandle, Handle, Lkey, Mtu, QpHandle, QpState, QpType, Qpn, Sge, SrqHandle};

/// References to all shared tables of one device.
pub(crate) struct Shared<'s> {
    pub(crate) regions: Regions<'s>,
    pub(crate) cqs: &'s [CqSlot],
    pub(crate) qps: &'s [QpSlot<'s>],
    pub(crate) srqs: &'s [SrqSlot<'s>],
    /// Also the lock of the states of queue pairs: [`Self::with_qp_states`].
    pub(crate) windows: &'s Lock<Windows>,
}

impl Clone for Shared<'_> {
    fn clone(&self) -> Self {
        *self
    }
}

impl Copy for Shared<'_> {}

impl<'s> Shared<'s> {
    /// Returns the shared receive queue that a queue pair takes its receives from, and the generation of its handle.
    pub(crate) fn srq_of(&self, slot: &QpSlot<'_>) -> Option<(&'s SrqSlot<'s>, u32)> {
        let srq = slot.srq();
        Some((self.srqs.get(usize::from(srq.index()))?, srq.generation()))
    }

    /// Returns why the device of a queue pair is lost, if it is. One that is draining has no mark of that; its completion queue
    /// has.
    pub(crate) fn loss_of(&self, slot: &QpSlot<'_>) -> Option<DeviceLoss> {
        slot.loss().or_else(|| self.cqs.get(usize::from(slot.send_cq()))?.loss())
    }

    /// Marks every queue as that of a lost device; gives how many completion queues were none before. The reason that was found first stays.
    #[cold]
    #[inline(never)]
    pub(crate) fn lose(&self, loss: DeviceLoss) -> u32 {
        // Before the marks of the completion queues, whose pollers look for what is left.
        for slot in self.srqs {
            slot.lose(loss);
        }
        for slot in self.qps {
            // The requests of one that is draining were dropped before.
            if slot.qpn.load(Ordering::Relaxed) == NO_NUMBER || slot.is_draining() {
                continue;
            }
            if slot.loss().is_none() {
                slot.draining.store(loss.word(), Ordering::Release);
            }
            // Whoever is refused because of the state finds the reason.
            fence(Ordering::Release);
            self.move_state(slot, None, QpState::Err);
        }
        let mut lost = 0_u32;
        for slot in self.cqs {
            if DeviceLoss::of_word(slot.broken.load(Ordering::Relaxed)).is_none() {
                lost = lost.wrapping_add(u32::from(slot.cqn.load(Ordering::Relaxed) != NO_NUMBER));
                // After the marks of the queue pairs, which its poller looks for.
                slot.broken.store(loss.word(), Ordering::Release);
            }
        }
        // Last, since a task may do anything when it is woken.
        wake_all(self.cqs);
        lost
    }

    /// Does something under the lock of what both the control path and pollers change of queue pairs: their states and the numbers of
    /// their binds. It is the lock of the windows, whose changes go with those of the numbers.
    pub(crate) fn with_qp_states<R>(&self, work: impl FnOnce() -> R) -> R {
        self.windows.with(|_| work())
    }

    /// Moves a queue pair to the state `to` for the control path. With `from`, only if it is still in that: a poller may have
    /// seen a request fail since.
    #[inline(never)]
    pub(crate) fn move_state(&self, slot: &QpSlot<'_>, from: Option<QpState>, to: QpState) {
        self.with_qp_states(|| {
            if from.is_none_or(|from| slot.state() == from) {
                slot.set_state(to);
            }
        });
    }

    /// Moves a queue pair to the state that it has after a request failed, by a flush or with an error of its own: the send at
    /// block `sent_at`, or a receive. One that the control path has RESET or recovered since is not in error any more, because
    /// the completion is older. Unreliable transports keep receiving after a failed send (IBTA 10.3.1).
    #[cold]
    #[inline(never)]
    pub(crate) fn fail(&self, slot: &QpSlot<'_>, sent_at: Option<u32>, is_flush: bool) {
        const { assert!(code(QpState::Sqd) == 1 && code(QpState::Reset) == 5 && code(QpState::Err) == 6) };
        self.with_qp_states(|| {
            let now = slot.state.load(Ordering::Relaxed);
            if now >= code(QpState::Reset) {
                return;
            }
            let mut next = QpState::Err;
            if let Some(at) = sent_at
                && slot.is_unreliable()
            {
                if now == code(QpState::Sqe) || slot.is_recovered(at) {
                    return;
                }
                if !is_flush && now <= code(QpState::Sqd) {
                    next = QpState::Sqe;
                }
            }
            slot.set_state(next);
        });
    }
}

/// Marks the queues of verbs that are dropped: nobody drives their device any more. And of verbs in which a call unwinds whose command
/// the device may have executed: what the tables say of its object is not known to be true then.
pub(crate) struct LoseOnDrop<'s>(pub(crate) Shared<'s>);

impl<'s> LoseOnDrop<'s> {
    /// Makes a call, and marks the queues if it unwinds.
    pub(crate) fn if_unwound<T>(shared: Shared<'s>, call: impl FnOnce() -> T) -> T {
        let unwound = Self(shared);
        let done = call();
        core::mem::forget(unwound);
        done
    }
}

impl Drop for LoseOnDrop<'_> {
    fn drop(&mut self) {
        self.0.lose(DeviceLoss::Abandoned);
    }
}

/// The facts of a region that requests are checked against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RegionFacts {
    pub(crate) lkey: Lkey,
    /// Generation of its handle.
    pub(crate) generation: u32,
    /// Slot of its domain.
    pub(crate) pd: u16,
    /// Without RELAXED_ORDERING, which nothing is checked against.
    pub(crate) access: Access,
    /// First address by which requests name it: 0 if it is zero-based.
    pub(crate) base: u64,
    pub(crate) length: u64,
    /// The most bytes of a message of the device.
    pub(crate) max_message: u32,
}

impl RegionFacts {
    /// Returns whether `length` bytes from `addr`, an address of the region, lie inside it.
    #[inline(always)]
    pub(crate) const fn contains(&self, addr: u64, length: u64) -> bool {
        let offset = addr.wrapping_sub(self.base);
        offset <= self.length && length <= self.length.wrapping_sub(offset)
    }
}

/// The region of the last SGE, whose domain was checked. Posting checks the next SGE against it first.
#[derive(Clone, Copy)]
pub(crate) struct CachedRegion {
    pub(crate) lkey: Lkey,
    pub(crate) access: Access,
    limit: u32,
    base: u64,
    length: u64,
}

/// The word of a vacant slot of the table of regions: no key, and no domain.
const VACANT: u64 = domain_word(u16::MAX);

/// Returns the word of a region's key and domain, without rights: rights, key, slot of its domain, from the lowest bit up. All
/// that a request is checked against but the range is one comparison.
const fn key_word(lkey: Lkey, pd: u16) -> u64 {
    domain_word(pd) | (lkey.get() as u64) << 16
}

/// Returns the part of [`key_word`] that the domain makes.
pub(crate) const fn domain_word(pd: u16) -> u64 {
    (pd as u64) << 48
}

/// Returns the key in [`key_word`].
const fn lkey_of(word: u64) -> Lkey {
    Lkey::new((word >> 16) as u32)
}

impl CachedRegion {
    /// No region: it has no byte.
    pub(crate) const NONE: Self = Self { lkey: Lkey::new(0), access: Access::empty(), limit: 0, base: 0, length: 0 };

    /// Returns whether an SGE may have so many bytes, and at least one. Asked before [`Self::contains`].
    #[inline(always)]
    pub(crate) const fn fits(&self, length: u32) -> bool {
        length.wrapping_sub(1) < self.limit
    }

    /// Returns the same as [`RegionFacts::contains`]. The region has at least `length` bytes.
    #[inline(always)]
    pub(crate) const fn contains(&self, addr: u64, length: u32) -> bool {
        addr.wrapping_sub(self.base) <= self.length.wrapping_sub(length as u64)
    }
}

/// A slot of the table of regions. Written by the control path, that of a region for fast registration by its poster, under the lock of the
/// windows; read by the poster, at any time. The sequence number is odd
/// while the slot is written, and differs afterwards (a seqlock): it shows a reader that the words it has read do not belong
/// together.
// Aligned so that a slot is one line of the cache, and its address a shift.
#[cfg_attr(all(not(feature = "small"), target_pointer_width = "64"), repr(align(64)))]
#[derive(Debug)]
pub(crate) struct RegionSlot {
    sequence: AtomicU32,
    generation: AtomicU32,
    /// Key, slot of its domain, and rights: [`key_word`]. Key 0: vacant, and of no domain.
    key: Word64,
    /// The most bytes of an SGE: those of the region, and no more than a message has.
    limit: AtomicU32,
    base: Word64,
    length: Word64,
}

impl RegionSlot {
    pub(crate) const fn new() -> Self {
        Self {
            sequence: AtomicU32::new(0),
            generation: AtomicU32::new(0),
            key: Word64::new(VACANT),
            limit: AtomicU32::new(0),
            base: Word64::new(0),
            length: Word64::new(0),
        }
    }

    /// Writes the facts of a region, or that there is none.
    pub(crate) fn set(&self, facts: Option<&RegionFacts>) {
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        match facts {
            None => {
                self.key.set(VACANT);
                self.limit.store(0, Ordering::Relaxed);
                self.length.set(0);
                self.base.set(0);
            }
            Some(facts) => {
                self.key.set(key_word(facts.lkey, facts.pd) | u64::from(facts.access.bits() & 0xffff));
                self.generation.store(facts.generation, Ordering::Relaxed);
                let limit = u32::try_from(facts.length).unwrap_or(u32::MAX).min(facts.max_message);
                self.limit.store(limit, Ordering::Relaxed);
                self.base.set(facts.base);
                self.length.set(facts.length);
            }
        }
        self.sequence.store(sequence.wrapping_add(2), Ordering::Release);
    }

    pub(crate) fn is_vacant(&self) -> bool {
        lkey_of(self.key.get()).get() == 0
    }

    /// Returns the region with this key, if it is in this slot and is not being changed.
    #[inline(always)]
    fn find(&self, lkey: Lkey) -> Option<RegionFacts> {
        // A vacant slot has key 0; what is found for that has no bytes and no domain.
        let before = self.sequence.load(Ordering::Acquire);
        let key = self.key.get();
        if lkey_of(key).get() != lkey.get() {
            return None;
        }
        self.facts_since(before, key)
    }

    /// Returns the same as [`Self::find`] for a region whose key and domain are `wanted` ([`key_word`]), if SGEs may have
    /// `length` bytes of it and at least one, but reads only what posting needs.
    #[inline(always)]
    fn find_usable(&self, lkey: Lkey, wanted: u64, length: u32) -> Option<CachedRegion> {
        let before = self.sequence.load(Ordering::Acquire);
        let key = self.key.get();
        if key >> 16 != wanted >> 16 {
            return None;
        }
        let limit = self.limit.load(Ordering::Relaxed);
        // Here, so that it is not made one with the comparison of the range: that takes more instructions.
        if length.wrapping_sub(1) >= limit {
            return None;
        }
        let access = Access::from_bits_retain(key as u32 & 0xffff);
        let region = CachedRegion { lkey, access, limit, base: self.base.get(), length: self.length.get() };
        fence(Ordering::Acquire);
        // Never equal if it was odd, when the slot is being written.
        if self.sequence.load(Ordering::Relaxed) == before & !1 { Some(region) } else { None }
    }

    /// Returns the region in this slot, if there is one and it is not being changed.
    pub(crate) fn facts(&self) -> Option<RegionFacts> {
        let before = self.sequence.load(Ordering::Acquire);
        let key = self.key.get();
        if lkey_of(key).get() == 0 { None } else { self.facts_since(before, key) }
    }

    #[inline(always)]
    fn facts_since(&self, before: u32, key: u64) -> Option<RegionFacts> {
        let facts = RegionFacts {
            lkey: lkey_of(key),
            generation: self.generation.load(Ordering::Relaxed),
            pd: (key >> 48) as u16,
            access: Access::from_bits_retain(key as u32 & 0xffff),
            base: self.base.get(),
            length: self.length.get(),
            max_message: self.limit.load(Ordering::Relaxed),
        };
        fence(Ordering::Acquire);
        // An odd number is never the same after: the slot's writer makes it even.
        let unchanged = before & 1 == 0 && self.sequence.load(Ordering::Relaxed) == before;
        if unchanged { Some(facts) } else { None }
    }
}

/// The table of regions.
#[derive(Clone, Copy)]
pub(crate) struct Regions<'s> {
    slots: &'s [RegionSlot],
    /// Bits of a key's index that name the slot where the search for it begins: keys that a device assigns in turn spread
    /// evenly.
    mask: u32,
}

impl<'s> Regions<'s> {
    pub(crate) fn new(slots: &'s [RegionSlot]) -> Self {
        // The greatest power of two in the table, less one.
        let mask = slots.len().checked_ilog2().map_or(0, |log| (1 << log) - 1);
        Self { slots, mask }
    }

    pub(crate) const fn slots(&self) -> &'s [RegionSlot] {
        self.slots
    }

    /// Returns the region with this key in a domain ([`domain_word`]), if it is in the first slot of its search.
    #[inline(always)]
    pub(crate) fn find_usable(&self, lkey: Lkey, domain: u64, length: u32) -> Option<CachedRegion> {
        match self.slots.get((lkey.index() & self.mask) as usize) {
            Some(slot) => slot.find_usable(lkey, domain | u64::from(lkey.get()) << 16, length),
            None => None,
        }
    }

    /// Does the same for a region in any other slot.
    #[inline(never)]
    pub(crate) fn find_usable_beyond(&self, lkey: Lkey, domain: u64, length: u32) -> Option<CachedRegion> {
        let wanted = domain | u64::from(lkey.get()) << 16;
        // As two slices: an index that goes round costs several times as much for each slot.
        let (before, from) = self.slots.split_at_checked((lkey.index() & self.mask) as usize)?;
        let mut others = from.iter().skip(1).chain(before);
        others.find(|slot| slot.key.get() >> 16 == wanted >> 16)?.find_usable(lkey, wanted, length)
    }

    /// Returns the region with this key.
    #[inline(always)]
    pub(crate) fn find(&self, lkey: Lkey) -> Option<RegionFacts> {
        if cfg!(not(feature = "small"))
            && let Some(slot) = self.slots.get((lkey.index() & self.mask) as usize)
            && let Some(facts) = slot.find(lkey)
        {
            return Some(facts);
        }
        find_beyond(self.slots, self.mask, lkey)
    }

    /// Returns the region with this key, and the index of its slot.
    pub(crate) fn locate(&self, lkey: Lkey) -> Option<(u16, RegionFacts)> {
        let found = self.in_order(lkey).find_map(|(index, slot)| Some((index, slot.find(lkey)?)))?;
        if lkey.get() == 0 { None } else { Some((found.0 as u16, found.1)) }
    }

    /// Returns every slot with its index, in the order of the search for a key.
    pub(crate) fn in_order(&self, lkey: Lkey) -> impl Iterator<Item = (usize, &'s RegionSlot)> + use<'s> {
        let (slots, first) = (self.slots, (lkey.index() & self.mask) as usize);
        (0..slots.len()).filter_map(move |step| {
            let at = first.wrapping_add(step);
            let at = if at < slots.len() { at } else { at.wrapping_sub(slots.len()) };
            Some((at, slots.get(at)?))
        })
    }
}

/// Runs [`Regions::find`] on the slots after the first.
#[cold]
#[inline(never)]
fn find_beyond(slots: &[RegionSlot], mask: u32, lkey: Lkey) -> Option<RegionFacts> {
    // 0 marks a vacant slot, and no device gives it out.
    if lkey.get() == 0 {
        return None;
    }
    Regions { slots, mask }.in_order(lkey).find_map(|(_, slot)| slot.find(lkey))
}

/// Returns what is wrong with an SGE of a queue pair whose domain has slot `pd`, if its region must have the rights `need`.
#[cfg_attr(not(feature = "small"), inline(always))]
#[cfg_attr(feature = "small", inline(never))]
pub(crate) fn check_sge(regions: &Regions<'_>, pd: u16, need: Access, sge: &Sge) -> Result<(), SgeFault> {
    let Some(region) = regions.find(sge.lkey) else { return Err(SgeFault::UnknownKey) };
    // Both domains exist as long as their region and queue pair do: one slot is one domain.
    if region.pd != pd {
        return Err(if sge.lkey.get() == 0 { SgeFault::UnknownKey } else { SgeFault::Domain });
    }
    if !region.access.contains(need) {
        return Err(SgeFault::Access);
    }
    if !region.contains(sge.addr, u64::from(sge.length)) {
        let Sge { addr, length, .. } = *sge;
        return Err(SgeFault::Range { addr, length, start: region.base, size: region.length });
    }
    Ok(())
}

/// A slot of the table of completion queues.
#[derive(Debug)]
pub(crate) struct CqSlot {
    /// Number, [`NO_NUMBER`] for none. Written by the control path.
    pub(crate) cqn: AtomicU32,
    /// Generation of its handle. Written by the control path.
    pub(crate) generation: AtomicU32,
    /// Events that the queue has given. Written by the taker of completion events.
    pub(crate) events: AtomicU32,
    /// The events that [`crate::Verbs::poll_event`] has reported. Written by the control path.
    pub(crate) reported_events: AtomicU32,
    /// 1 above the syndrome with which the queue broke, 0 if it did not; or the word of a [`DeviceLoss`]. Written by the control
    /// path.
    pub(crate) broken: AtomicU32,
    /// Counts the queue pairs whose completions are to be dropped. Written by the control path.
    pub(crate) clean_wanted: AtomicU32,
    /// The count at the last time that the queue was found empty. Written by the poller.
    pub(crate) clean_done: AtomicU32,
    /// [`DROPPED`] if its value was dropped. Written by whoever drops it, and by the control path when the queue is made.
    pub(crate) owner: AtomicU32,
    /// Who waits for an event.
    #[cfg(feature = "multicore")]
    pub(crate) waker: crate::sync::AtomicWaker,
}

/// The word of a queue whose value was dropped.
pub(crate) const DROPPED: u32 = 1;

/// Marks the slot of a queue when the value of the queue is dropped: by its owner, by unwinding, or because it is destroyed.
/// The last field of the value, so that its ring is gone by then.
pub(crate) struct Owner<'s>(&'s AtomicU32);

impl<'s> Owner<'s> {
    /// Makes the owner of a queue that was just made: its only one.
    pub(crate) fn new(word: &'s AtomicU32) -> Self {
        word.store(0, Ordering::Relaxed);
        Self(word)
    }
}

impl Drop for Owner<'_> {
    fn drop(&mut self) {
        // What the owner did comes before what is done because there is none.
        self.0.store(DROPPED, Ordering::Release);
    }
}

/// Returns whether the value of a queue was dropped: nobody posts to it or polls it any more, then or later.
pub(crate) fn is_dropped(word: &AtomicU32) -> bool {
    word.load(Ordering::Acquire) == DROPPED
}

/// The number of no queue.
pub(crate) const NO_NUMBER: u32 = u32::MAX;
/// The slot of no completion queue: an XRC queue pair completes no receives, and its target no sends.
pub(crate) const NO_CQ: u16 = CqHandle::NONE.index();

impl CqSlot {
    /// Returns why the device of the queue is lost, if it is.
    pub(crate) fn loss(&self) -> Option<DeviceLoss> {
        DeviceLoss::of_word(self.broken.load(Ordering::Acquire))
    }

    pub(crate) const fn new() -> Self {
        Self {
            cqn: AtomicU32::new(NO_NUMBER),
            generation: AtomicU32::new(0),
            events: AtomicU32::new(0),
            reported_events: AtomicU32::new(0),
            broken: AtomicU32::new(0),
            clean_wanted: AtomicU32::new(0),
            clean_done: AtomicU32::new(0),
            owner: AtomicU32::new(0),
            #[cfg(feature = "multicore")]
            waker: crate::sync::AtomicWaker::new(),
        }
    }

    /// Counts an event: the next arm asks for the one after it.
    pub(crate) fn event(&self) {
        self.count_event();
        self.wake();
    }

    /// Does the part of [`Self::event`] that wakes nobody.
    pub(crate) fn count_event(&self) {
        self.events.store(self.events.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }

    /// Asks the poller of the queue to drop stale completions, and to say when it was found empty since.
    pub(crate) fn ask_to_clean(&self) {
        self.clean_wanted.store(self.clean_wanted.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }

    pub(crate) fn wake(&self) {
        #[cfg(feature = "multicore")]
        self.waker.wake();
    }
}

/// Completion queues whose tasks are still to be woken.
struct WakeAll<'s>(core::slice::Iter<'s, CqSlot>);

impl Drop for WakeAll<'_> {
    fn drop(&mut self) {
        self.0.by_ref().for_each(CqSlot::wake);
    }
}

/// Wakes the task of each queue, also those after one that unwinds.
pub(crate) fn wake_all(cqs: &[CqSlot]) {
    let mut sleeping = WakeAll(cqs.iter());
    for slot in sleeping.0.by_ref() {
        slot.wake();
    }
}

/// [`QpSlot::draining`] of a queue pair that was reset.
pub(crate) const RESET: u32 = 1;
/// [`QpSlot::draining`] of a queue pair that is gone.
pub(crate) const GONE: u32 = 2;

/// The states in the order of their codes. Those that send come first, those that take no receives last, so that each question
/// is one comparison.
const STATES: [QpState; 7] =
    [QpState::Rts, QpState::Sqd, QpState::Init, QpState::Rtr, QpState::Sqe, QpState::Reset, QpState::Err];

/// Returns the place of a state in [`STATES`].
const fn code(state: QpState) -> u32 {
    match state {
        QpState::Rts => 0,
        QpState::Sqd => 1,
        QpState::Init => 2,
        QpState::Rtr => 3,
        QpState::Sqe => 4,
        QpState::Reset => 5,
        QpState::Err => 6,
    }
}

/// [`QpSlot::service`] of an unreliable connection: less than any datagram has bytes.
const CONNECTED: u32 = 1;

/// [`QpSlot::service`]: whether [`QpSlot::recovered`] says something.
const RECOVERED: u32 = 1 << 15;
/// [`QpSlot::service`]: the device has said that it takes no more from its shared receive queue.
const LAST_WQE: u32 = 1 << 14;
/// [`QpSlot::service`]: the transport.
const SERVICE: u32 = LAST_WQE - 1;

/// A slot of the table of queue pairs.
#[derive(Debug)]
pub(crate) struct QpSlot<'r> {
    pub(crate) rings: RingsView<'r>,
    /// Taken by the control path.
    pub(crate) claim: Claim<'r>,
    /// Number, [`NO_NUMBER`] for none. Written by the control path.
    pub(crate) qpn: AtomicU32,
    /// Its handle. Written by the control path.
    handle: Word64,
    /// Handle of its shared receive queue, or [`Handle::NONE`]. Written by the control path.
    srq: Word64,
    /// Slots of its completion queues: of sends in the upper half, of receives in the lower, [`NO_CQ`] for none. Written by the
    /// control path.
    pub(crate) cqs: AtomicU32,
    /// [`RESET`] or [`GONE`] if its completions are stale, the word of a [`DeviceLoss`] if its device is lost, otherwise 0.
    /// Written by the control path.
    pub(crate) draining: AtomicU32,
    /// [`code`] of its state. Written under the lock of the windows, by the control path ([`Shared::move_state`]) and by the
    /// pollers of its completions ([`Shared::fail`]).
    state: AtomicU32,
    /// Slot of its domain in the upper half. In [`SERVICE`], 0 if the transport is reliable, [`CONNECTED`] if it is not, and for
    /// datagrams how many bytes one has at most. [`RECOVERED`], [`LAST_WQE`]. Written by the control path.
    service: AtomicU32,
    /// Sends before this block were posted before the control path has ended SQE. Written by the control path, with the state.
    recovered: AtomicU32,
    /// Binds and invalidations in flight. Written under the lock of the windows.
    pub(crate) binds: AtomicU32,
    /// [`DROPPED`] if the value of the send queue was dropped. Written by whoever drops it, and by the control path when the
    /// queue pair is made.
    pub(crate) send_owner: AtomicU32,
    /// The same of the receive queue.
    pub(crate) recv_owner: AtomicU32,
    /// Sends.
    pub(crate) send: RingCounters,
    /// Receives.
    pub(crate) recv: RingCounters,
}

/// How far one ring was filled and emptied. Apart from others in memory, because two cores write them.
#[cfg_attr(all(feature = "multicore", target_pointer_width = "64"), repr(align(64)))]
#[derive(Debug)]
pub(crate) struct RingCounters {
    /// Block of the next request that the device is notified of. Written by the poster.
    pub(crate) head: AtomicU32,
    /// The oldest request in flight. Written by the poller.
    pub(crate) tail: AtomicU32,
}

impl RingCounters {
    const fn new() -> Self {
        Self { head: AtomicU32::new(0), tail: AtomicU32::new(0) }
    }

    /// Sets both to `at`, while there is no poster and no poller.
    pub(crate) fn start_at(&self, at: u32) {
        self.head.store(at, Ordering::Relaxed);
        self.tail.store(at, Ordering::Relaxed);
    }

    pub(crate) fn in_flight(&self) -> u32 {
        self.head.load(Ordering::Relaxed).wrapping_sub(self.tail.load(Ordering::Relaxed))
    }

    /// Returns the oldest request in flight.
    pub(crate) fn oldest(&self) -> Option<u32> {
        let tail = self.tail.load(Ordering::Relaxed);
        if self.head.load(Ordering::Acquire) == tail { None } else { Some(tail) }
    }

    /// Returns the request in flight with these low bits of its counter.
    #[inline(always)]
    pub(crate) fn locate(&self, low: u16) -> Option<u32> {
        let tail = self.tail.load(Ordering::Relaxed);
        locate(self.head.load(Ordering::Acquire), tail, low)
    }
}

/// The slot of no queue pair: for a queue whose index is not in the table, which never happens.
pub(crate) static NO_QP: QpSlot<'static> = QpSlot::new(RingsView::NONE);

impl<'r> QpSlot<'r> {
    pub(crate) const fn new(rings: RingsView<'r>) -> Self {
        Self {
            claim: Claim::new(rings.taken),
            rings,
            qpn: AtomicU32::new(NO_NUMBER),
            handle: Word64::new(0),
            srq: Word64::new(SrqHandle::NONE.word()),
            cqs: AtomicU32::new(0),
            draining: AtomicU32::new(0),
            state: AtomicU32::new(code(QpState::Reset)),
            service: AtomicU32::new(0),
            recovered: AtomicU32::new(0),
            binds: AtomicU32::new(0),
            send_owner: AtomicU32::new(0),
            recv_owner: AtomicU32::new(0),
            send: RingCounters::new(),
            recv: RingCounters::new(),
        }
    }

    /// Gives it other rings, before there are verbs.
    pub(crate) const fn give(&mut self, rings: RingsView<'r>) {
        self.rings = rings;
        self.claim.change(rings.taken);
    }

    #[inline(always)]
    pub(crate) fn state(&self) -> QpState {
        match STATES.get(self.state.load(Ordering::Relaxed) as usize) {
            Some(state) => *state,
            None => QpState::Err,
        }
    }

    /// Returns whether send requests can be posted: [`QpState::Rts`] or [`QpState::Sqd`].
    #[inline(always)]
    pub(crate) fn can_send(&self) -> bool {
        self.state.load(Ordering::Relaxed) <= code(QpState::Sqd)
    }

    /// Returns whether receives can be posted: in every state but [`QpState::Reset`] and [`QpState::Err`].
    #[inline(always)]
    pub(crate) fn can_receive(&self) -> bool {
        self.state.load(Ordering::Relaxed) < code(QpState::Reset)
    }

    /// Sets the state where nobody else does: [`Shared::move_state`] is for all other places.
    pub(crate) fn set_state(&self, state: QpState) {
        self.state.store(code(state), Ordering::Relaxed);
    }

    /// Sets what never changes while a queue pair lives: its transport, and the slot of its domain.
    pub(crate) fn set_service(&self, qp_type: QpType, pd: u16) {
        let service = match qp_type {
            QpType::Rc | QpType::XrcSend | QpType::XrcRecv => 0,
            QpType::Uc => CONNECTED,
            QpType::Ud => Mtu::Mtu4096.bytes(),
            QpType::Gsi => Mtu::Mtu256.bytes(),
        };
        self.service.store(u32::from(pd) << 16 | service, Ordering::Relaxed);
        self.recovered.store(0, Ordering::Relaxed);
    }

    /// Sets how many bytes a datagram has at most.
    pub(crate) fn set_max_datagram(&self, mtu: Mtu) {
        let rest = self.service.load(Ordering::Relaxed) & !SERVICE;
        self.service.store(rest | mtu.bytes(), Ordering::Relaxed);
    }

    /// Returns the slot of its domain.
    pub(crate) fn pd(&self) -> u16 {
        (self.service.load(Ordering::Relaxed) >> 16) as u16
    }

    /// Returns whether a failed send leaves the receives going (SQE).
    fn is_unreliable(&self) -> bool {
        self.service.load(Ordering::Relaxed) & SERVICE != 0
    }

    /// Returns how many bytes a datagram has at most.
    pub(crate) fn max_datagram(&self) -> u32 {
        self.service.load(Ordering::Relaxed) & SERVICE
    }

    /// Returns whether the transport is that of datagrams.
    pub(crate) fn is_datagram(&self) -> bool {
        self.max_datagram() > CONNECTED
    }

    /// Notes that what was sent until now may have failed before the send queue was recovered from SQE.
    pub(crate) fn note_recovery(&self) {
        self.recovered.store(self.send.head.load(Ordering::Relaxed), Ordering::Relaxed);
        self.service.store(self.service.load(Ordering::Relaxed) | RECOVERED, Ordering::Relaxed);
    }

    /// Forgets that, and the last receive of a shared queue, after a RESET.
    pub(crate) fn forget_recovery(&self) {
        self.service.store(self.service.load(Ordering::Relaxed) & !(RECOVERED | LAST_WQE), Ordering::Relaxed);
    }

    /// Notes that the device takes no more from the shared receive queue for it.
    pub(crate) fn note_last_wqe(&self) {
        self.service.store(self.service.load(Ordering::Relaxed) | LAST_WQE, Ordering::Relaxed);
    }

    /// Returns whether that was noted since the last RESET.
    pub(crate) fn has_last_wqe(&self) -> bool {
        self.service.load(Ordering::Relaxed) & LAST_WQE != 0
    }

    /// Returns whether the send at block `at` was posted before its queue was recovered from SQE.
    fn is_recovered(&self, at: u32) -> bool {
        let distance = self.recovered.load(Ordering::Relaxed).wrapping_sub(at);
        self.service.load(Ordering::Relaxed) & RECOVERED != 0 && distance.wrapping_sub(1) < 1 << 15
    }

    #[inline(always)]
    pub(crate) fn handle(&self) -> QpHandle {
        Handle::of_word(self.handle.get())
    }

    pub(crate) fn set_handle(&self, handle: QpHandle) {
        self.handle.set(handle.word());
    }

    pub(crate) fn srq(&self) -> SrqHandle {
        Handle::of_word(self.srq.get())
    }

    pub(crate) fn set_srq(&self, srq: SrqHandle) {
        self.srq.set(srq.word());
    }

    pub(crate) fn qpn(&self) -> Qpn {
        Qpn::new(self.qpn.load(Ordering::Relaxed))
    }

    /// Returns whether its completions are common ones: neither to be dropped, nor of a lost device.
    #[inline(always)]
    pub(crate) fn is_common(&self) -> bool {
        self.draining.load(Ordering::Relaxed) == 0
    }

    /// Returns whether there is no queue pair here, or not any more.
    pub(crate) fn is_none_or_gone(&self) -> bool {
        self.qpn.load(Ordering::Acquire) == NO_NUMBER || self.draining.load(Ordering::Acquire) == GONE
    }

    /// Returns whether its completions are to be dropped.
    pub(crate) fn is_draining(&self) -> bool {
        matches!(self.draining.load(Ordering::Acquire), RESET | GONE)
    }

    /// Returns whether no request was posted since the last RESET that asked for a drain, or all are retired. None is posted to one that
    /// is still draining: a further RESET need not ask again. Counters that wrapped to 0 mean that each request before them is retired.
    pub(crate) fn is_untouched(&self) -> bool {
        let words = [&self.send.head, &self.send.tail, &self.recv.head, &self.recv.tail];
        self.is_draining() || words.into_iter().all(|word| word.load(Ordering::Relaxed) == 0)
    }

    /// Returns why its device is lost, if it is; in any case after the state was seen that it has because of that.
    pub(crate) fn loss(&self) -> Option<DeviceLoss> {
        fence(Ordering::Acquire);
        DeviceLoss::of_word(self.draining.load(Ordering::Acquire))
    }

    /// Returns the slot of the completion queue for sends.
    #[inline(always)]
    pub(crate) fn send_cq(&self) -> u16 {
        (self.cqs.load(Ordering::Relaxed) >> 16) as u16
    }

    /// Returns the slot of the completion queue for receives.
    #[inline(always)]
    pub(crate) fn recv_cq(&self) -> u16 {
        self.cqs.load(Ordering::Relaxed) as u16
    }
}

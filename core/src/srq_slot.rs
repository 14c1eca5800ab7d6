//! Slots of shared receive queues: the requests in flight, and the slots that are free.
//!
//! Requests of one such queue complete in any order, on every core that polls a completion queue of its queue pairs. The poster takes
//! free slots without a lock; pollers return them under the lock of the slot.

use crate::claim::{Claim, Taken};
use crate::error::DeviceLoss;
use crate::log::format_as;
use crate::ring::place;
use crate::sync::{AtomicU32, Lock, Ordering, Word64};
use crate::{CqHandle, PdHandle, SrqCap, Srqn, Xrcdn};

/// What is remembered of one place of a shared receive queue.
#[derive(Debug)]
pub(crate) struct SrqEntry {
    wr_id: Word64,
    /// 1 while a request is posted here. Set by the poster, cleared under the lock.
    posted: AtomicU32,
    /// An element of the row of free slots, which is a row of its own. Written under the lock.
    free: AtomicU32,
}

impl SrqEntry {
    pub(crate) const fn new() -> Self {
        Self { wr_id: Word64::new(0), posted: AtomicU32::new(0), free: AtomicU32::new(0) }
    }
}

/// The requests in flight of one shared receive queue: `N` slots, a power of two from 2 to 32,768. Other numbers do not compile.
///
/// They have room for `N - 1` requests: each request names the place of the one after it, so one place is always kept back.
pub struct SrqEntries<const N: usize> {
    entries: [SrqEntry; N],
    taken: Taken,
}

format_as!([const N: usize] SrqEntries<N>, "SrqEntries({} slots)", |_| N);

impl<const N: usize> SrqEntries<N> {
    const CAPACITY: () = assert!(N >= 2 && N.is_power_of_two() && N <= 1 << 15, "N is a power of two, from 2 to 32768");

    /// Creates slots without a request.
    pub const fn new() -> Self {
        const { Self::CAPACITY };
        Self { entries: [const { SrqEntry::new() }; N], taken: Taken::new() }
    }

    /// Returns a view, of which a [`Storage`](crate::storage::Storage) is made. The slots serve one queue of one storage, until that is dropped: a
    /// second place that is given them has no room for a queue.
    pub const fn view(&self) -> SrqEntriesView<'_> {
        SrqEntriesView { entries: &self.entries, taken: Some(&self.taken) }
    }

    /// Returns a view of each of several.
    pub fn views<const M: usize>(all: &[Self; M]) -> [SrqEntriesView<'_>; M] {
        all.each_ref().map(Self::view)
    }
}

impl<const N: usize> Default for SrqEntries<N> {
    fn default() -> Self {
        Self::new()
    }
}

/// [`SrqEntries`] of any number.
#[derive(Clone, Copy)]
pub struct SrqEntriesView<'r> {
    pub(crate) entries: &'r [SrqEntry],
    pub(crate) taken: Option<&'r Taken>,
}

impl SrqEntriesView<'_> {
    /// No place.
    pub(crate) const NONE: Self = Self { entries: &[], taken: None };
}

format_as!([] SrqEntriesView<'_>, "SrqEntriesView({} slots)", |this| this.entries.len());

/// A shared receive queue as the control path keeps it; `I` is the backend's part.
pub(crate) struct Srq<I> {
    pub(crate) inner: I,
    pub(crate) srqn: Srqn,
    pub(crate) pd: PdHandle,
    /// Places of its ring.
    pub(crate) slots: u32,
    pub(crate) cap: SrqCap,
    /// The limit that was set last, 0 since the device has reported it.
    pub(crate) limit: u32,
    /// Queue pairs that take from it.
    pub(crate) users: u32,
    /// XRC domain of an XRC one.
    pub(crate) domain: Option<Xrcdn>,
    /// Where an XRC one completes.
    pub(crate) cq: CqHandle,
}

/// What is under the lock of a slot.
#[derive(Debug)]
struct Returns {
    /// Generation of the queue's handle; completions of an earlier queue in the slot change nothing.
    generation: u32,
    /// Places of the queue, a power of two; 0 without one.
    slots: u32,
    /// Where the search for what a lost device has left goes on.
    flushing: u32,
}

/// A slot of the table of shared receive queues.
#[derive(Debug)]
pub(crate) struct SrqSlot<'r> {
    pub(crate) entries: &'r [SrqEntry],
    /// Taken by the control path.
    pub(crate) claim: Claim<'r>,
    returns: Lock<Returns>,
    /// Places that were returned since the queue was made, and those that were free then. Written under the lock.
    freed: AtomicU32,
    /// Requests that the device was notified of, since the queue was made. Written by the poster.
    posted: AtomicU32,
    /// The word of a [`DeviceLoss`] if the device is lost, otherwise 0. Written by the control path.
    loss: AtomicU32,
    /// Of an XRC one, also after its end until its completions are polled: slot of its protection domain in the upper half, of its
    /// completion queue in the lower. [`NO_XRC`] for all others. Written by the control path.
    xrc: AtomicU32,
    /// Whether the value of the queue was dropped: [`crate::shared::Owner`].
    pub(crate) owner: AtomicU32,
}

/// [`SrqSlot::xrc`] of a queue that is none of XRC: no completion queue has this slot.
const NO_XRC: u32 = u32::MAX;

impl<'r> SrqSlot<'r> {
    pub(crate) const fn new(view: SrqEntriesView<'r>) -> Self {
        Self {
            entries: view.entries,
            claim: Claim::new(view.taken),
            returns: Lock::new(Returns { generation: 0, slots: 0, flushing: 0 }),
            freed: AtomicU32::new(0),
            posted: AtomicU32::new(0),
            loss: AtomicU32::new(0),
            xrc: AtomicU32::new(NO_XRC),
            owner: AtomicU32::new(0),
        }
    }

    /// Gives it other slots, before there are verbs.
    pub(crate) const fn give(&mut self, view: SrqEntriesView<'r>) {
        self.entries = view.entries;
        self.claim.change(view.taken);
    }

    /// Returns how many slots the storage has here for itself.
    pub(crate) fn capacity(&self) -> usize {
        if self.claim.has() { self.entries.len() } else { 0 }
    }

    // ---- the control path

    /// Begins anew with a queue of `slots`, no more than the storage has here. All are free but the first, to which the device's list
    /// begins.
    pub(crate) fn start(&self, generation: u32, slots: u32) {
        self.returns.with(|returns| {
            for (entry, next) in self.entries.iter().zip(1..=slots) {
                entry.posted.store(0, Ordering::Relaxed);
                entry.free.store(next, Ordering::Relaxed);
            }
            *returns = Returns { generation, slots, flushing: 0 };
            self.posted.store(0, Ordering::Relaxed);
            self.loss.store(0, Ordering::Relaxed);
            self.freed.store(slots.wrapping_sub(1), Ordering::Release);
        });
    }

    /// Forgets the queue and its requests.
    pub(crate) fn end(&self) {
        self.returns.with(|returns| returns.slots = 0);
    }

    /// Makes the queue one of XRC, or of none.
    pub(crate) fn set_xrc(&self, pd_and_cq: Option<(u16, u16)>) {
        let word = pd_and_cq.map_or(NO_XRC, |(pd, cq)| u32::from(pd) << 16 | u32::from(cq));
        self.xrc.store(word, Ordering::Release);
    }

    /// Returns the slots of protection domain and completion queue of an XRC queue; of one that ended too, until [`Self::set_xrc`].
    pub(crate) fn xrc(&self) -> Option<(u16, u16)> {
        match self.xrc.load(Ordering::Acquire) {
            NO_XRC => None,
            word => Some(((word >> 16) as u16, word as u16)),
        }
    }

    /// Returns the generation of the queue's handle; `None` without one.
    pub(crate) fn generation(&self) -> Option<u32> {
        self.returns.with(|returns| if returns.slots == 0 { None } else { Some(returns.generation) })
    }

    /// Returns the requests in flight of a queue of so many slots.
    pub(crate) fn in_flight(&self, slots: u32) -> u32 {
        let returned = self.freed.load(Ordering::Relaxed).wrapping_sub(slots.wrapping_sub(1));
        // A device that completes a request before it is notified of it is none to count with.
        self.posted.load(Ordering::Relaxed).wrapping_sub(returned).min(slots)
    }

    /// Notes that the device is lost. The reason that was found first stays.
    pub(crate) fn lose(&self, loss: DeviceLoss) {
        if self.loss().is_none() {
            self.loss.store(loss.word(), Ordering::Release);
        }
    }

    pub(crate) fn loss(&self) -> Option<DeviceLoss> {
        DeviceLoss::of_word(self.loss.load(Ordering::Acquire))
    }

    // ---- the poster

    /// Returns the free place after the `taken` that were taken since the queue was made; `None` if there is none.
    pub(crate) fn free_place(&self, taken: u32, slots: u32) -> Option<u16> {
        // What a poller has read of a request comes before the place is used again.
        if self.freed.load(Ordering::Acquire) == taken {
            return None;
        }
        Some(self.entries.get(place(taken, slots as usize))?.free.load(Ordering::Relaxed) as u16)
    }

    /// Remembers the request at a place.
    pub(crate) fn remember(&self, at: u16, wr_id: u64) {
        if let Some(entry) = self.entries.get(usize::from(at)) {
            entry.wr_id.set(wr_id);
            entry.posted.store(1, Ordering::Release);
        }
    }

    /// Publishes how many requests were posted, before the device is notified of them.
    pub(crate) fn publish(&self, posted: u32) {
        self.posted.store(posted, Ordering::Release);
    }

    /// Returns how many requests were published.
    pub(crate) fn published(&self) -> u32 {
        self.posted.load(Ordering::Relaxed)
    }

    // ---- pollers

    /// Frees the place of a request of the queue with this generation and gives its `wr_id`, which nobody else is given. `None` if no
    /// request is posted there.
    pub(crate) fn retire(&self, generation: u32, at: u16) -> Option<u64> {
        self.returns.with(|returns| {
            if returns.generation != generation || u32::from(at) >= returns.slots {
                return None;
            }
            self.free(returns.slots, at)
        })
    }

    /// Retires some request that a lost device has left.
    pub(crate) fn flush(&self, generation: u32) -> Option<u64> {
        self.returns.with(|returns| {
            let slots = returns.slots;
            if returns.generation != generation || self.in_flight(slots) == 0 {
                return None;
            }
            let first = returns.flushing;
            (0..slots).find_map(|step| {
                let at = place(first.wrapping_add(step), slots as usize) as u16;
                let wr_id = self.free(slots, at)?;
                returns.flushing = u32::from(at).wrapping_add(1);
                Some(wr_id)
            })
        })
    }

    /// Puts a place at the end of the row of free ones, if a request is posted there. Called under the lock.
    fn free(&self, slots: u32, at: u16) -> Option<u64> {
        let entry = self.entries.get(usize::from(at))?;
        if entry.posted.load(Ordering::Acquire) == 0 {
            return None;
        }
        let wr_id = entry.wr_id.get();
        entry.posted.store(0, Ordering::Relaxed);
        let freed = self.freed.load(Ordering::Relaxed);
        // As many slots are free as the row has, less one: the poster does not read this element now.
        self.entries.get(place(freed, slots as usize))?.free.store(u32::from(at), Ordering::Relaxed);
        self.freed.store(freed.wrapping_add(1), Ordering::Release);
        Some(wr_id)
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::collections::VecDeque;
    use std::vec::Vec;

    use super::*;

    /// Returns the free place that is next, beside those of a queue.
    fn next(slot: &SrqSlot<'_>, taken: u32, slots: u32, free: &VecDeque<u16>) -> Option<u16> {
        let place = slot.free_place(taken, slots);
        assert_eq!(place, free.front().copied(), "{slots} slots, {taken:#x} taken");
        place
    }

    /// A queue of each size whose counters wrap on the way: places are posted and retired in an order that a generator picks, some twice,
    /// beside the queue of free places and the numbers at the others.
    #[test]
    #[cfg_attr(miri, ignore = "a whole domain of numbers takes minutes")]
    fn free_places_come_in_the_order_in_which_they_were_returned() {
        for log in 1..=8 {
            let slots = 1_u32 << log;
            // Behind the queue's places are those of a longer one from before, with its requests.
            let entries: Vec<SrqEntry> = (0..2 * slots).map(|_| SrqEntry::new()).collect();
            entries.iter().for_each(|entry| entry.posted.store(1, Ordering::Relaxed));
            for wrap in [1_u64 << 16, 1 << 32] {
                // From a whole round before the wrap on: place 0 is where a round begins.
                for rounds in 1..=3 {
                    let slot = SrqSlot::new(SrqEntriesView { entries: &entries, taken: None });
                    slot.start(7, slots);
                    let base = (wrap - u64::from(rounds * slots)) as u32;
                    slot.posted.store(base, Ordering::Relaxed);
                    slot.freed.store(base.wrapping_add(slots - 1), Ordering::Relaxed);
                    walk(&slot, base, slots);
                }
            }
        }
    }

    fn walk(slot: &SrqSlot<'_>, base: u32, slots: u32) {
        let mut free: VecDeque<u16> = (1..slots as u16).collect();
        // Place 0 is the one that the device takes first.
        let (mut at, mut taken, mut posted) = (0, base, Vec::new());
        let (mut state, mut number) = (base ^ slots, 0_u64);
        for _ in 0..6 * slots + 20 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let pick = (state >> 8) as usize;
            let wants_room = state >> 30 != 0 && next(slot, taken, slots, &free).is_some();
            if wants_room && let Some(after) = free.pop_front() {
                number += 1;
                slot.remember(at, number);
                posted.push((at, number));
                (at, taken) = (after, taken.wrapping_add(1));
                slot.publish(taken);
            } else if !posted.is_empty() {
                let (place, id) = posted.swap_remove(pick % posted.len());
                assert_eq!(slot.retire(8, place), None, "of another queue");
                assert_eq!(slot.retire(7, place), Some(id), "{slots} slots from {base:#x}");
                assert_eq!(slot.retire(7, place), None, "nothing is posted there any more");
                free.push_back(place);
            }
            assert_eq!(slot.retire(7, slots as u16), None, "no place of the queue");
            assert_eq!(slot.in_flight(slots) as usize, posted.len());
        }
        // What a lost device leaves comes once each.
        let mut left: Vec<u64> = core::iter::from_fn(|| slot.flush(7)).collect();
        left.sort_unstable();
        let mut wanted: Vec<u64> = posted.into_iter().map(|(_, id)| id).collect();
        wanted.sort_unstable();
        assert_eq!(left, wanted);
        assert_eq!(slot.in_flight(slots), 0);
    }
}

//! What queues on different cores share: the facts of regions, completion queues and queue pairs that posting, polling and
//! interrupt handlers need.
//!
//! Each word names who writes it: one, but for the state of a queue pair, which has two. Others read it.

use crate::ring::locate;
use crate::storage::RingsView;
use crate::sync::{AtomicU32, Lock, Ordering, Word64, fence};
use crate::window::Windows;
use crate::{Access, DeviceLoss, Lkey, QpState, Qpn, Sge};

/// References to all shared tables of one device.
pub(crate) struct Shared<'s> {
    pub(crate) regions: Regions<'s>,
    pub(crate) cqs: &'s [CqSlot],
    pub(crate) qps: &'s [QpSlot<'s>],
    pub(crate) windows: &'s Lock<Windows>,
}

impl Clone for Shared<'_> {
    fn clone(&self) -> Self {
        *self
    }
}

impl Copy for Shared<'_> {}

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
    /// Slot of its domain.
    pub(crate) pd: u16,
    pub(crate) access: Access,
    base: u64,
    length: u64,
}

impl CachedRegion {
    /// No region: it has no byte.
    pub(crate) const NONE: Self = Self { lkey: Lkey::new(0), pd: 0, access: Access::empty(), base: 0, length: 0 };

    /// Returns the same as [`RegionFacts::contains`].
    #[inline(always)]
    pub(crate) const fn contains(&self, addr: u64, length: u32) -> bool {
        match addr.wrapping_sub(self.base).checked_add(length as u64) {
            Some(end) => end <= self.length,
            None => false,
        }
    }
}

/// A slot of the table of regions. Written by the control path; read by the poster, at any time. The sequence number is odd
/// while the slot is written, and differs afterwards (a seqlock): it shows a reader that the words it has read do not belong
/// together.
#[derive(Debug)]
pub(crate) struct RegionSlot {
    sequence: AtomicU32,
    /// 0: vacant.
    lkey: AtomicU32,
    generation: AtomicU32,
    /// Domain in the upper half, rights in the lower.
    rights: AtomicU32,
    base: Word64,
    length: Word64,
}

impl RegionSlot {
    pub(crate) const fn new() -> Self {
        Self {
            sequence: AtomicU32::new(0),
            lkey: AtomicU32::new(0),
            generation: AtomicU32::new(0),
            rights: AtomicU32::new((u16::MAX as u32) << 16),
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
                self.lkey.store(0, Ordering::Relaxed);
                // No domain: a search for key 0 finds this.
                self.rights.store(u32::from(u16::MAX) << 16, Ordering::Relaxed);
                self.length.set(0);
                self.base.set(0);
            }
            Some(facts) => {
                self.lkey.store(facts.lkey.get(), Ordering::Relaxed);
                self.generation.store(facts.generation, Ordering::Relaxed);
                let rights = u32::from(facts.pd) << 16 | facts.access.bits() & 0xffff;
                self.rights.store(rights, Ordering::Relaxed);
                self.base.set(facts.base);
                self.length.set(facts.length);
            }
        }
        self.sequence.store(sequence.wrapping_add(2), Ordering::Release);
    }

    pub(crate) fn is_vacant(&self) -> bool {
        self.lkey.load(Ordering::Relaxed) == 0
    }

    /// Returns the region with this key, if it is in this slot and is not being changed.
    #[inline(always)]
    fn find(&self, lkey: Lkey) -> Option<RegionFacts> {
        // A vacant slot has key 0; what is found for that has no bytes and no domain.
        let before = self.sequence.load(Ordering::Acquire);
        if self.lkey.load(Ordering::Relaxed) != lkey.get() {
            return None;
        }
        self.facts_since(before, lkey)
    }

    /// Returns the same as [`Self::find`], but reads only what posting needs.
    #[inline(always)]
    fn find_usable(&self, lkey: Lkey) -> Option<CachedRegion> {
        let before = self.sequence.load(Ordering::Acquire);
        if self.lkey.load(Ordering::Relaxed) != lkey.get() {
            return None;
        }
        let rights = self.rights.load(Ordering::Relaxed);
        let access = Access::from_bits_retain(rights & 0xffff);
        let region = CachedRegion { lkey, pd: (rights >> 16) as u16, access, base: self.base.get(), length: self.length.get() };
        fence(Ordering::Acquire);
        // Never equal if it was odd, when the slot is being written.
        if self.sequence.load(Ordering::Relaxed) == before & !1 { Some(region) } else { None }
    }

    /// Returns the region in this slot, if there is one and it is not being changed.
    pub(crate) fn facts(&self) -> Option<RegionFacts> {
        let before = self.sequence.load(Ordering::Acquire);
        let lkey = Lkey::new(self.lkey.load(Ordering::Relaxed));
        if lkey.get() == 0 { None } else { self.facts_since(before, lkey) }
    }

    #[inline(always)]
    fn facts_since(&self, before: u32, lkey: Lkey) -> Option<RegionFacts> {
        let rights = self.rights.load(Ordering::Relaxed);
        let facts = RegionFacts {
            lkey,
            generation: self.generation.load(Ordering::Relaxed),
            pd: (rights >> 16) as u16,
            access: Access::from_bits_retain(rights & 0xffff),
            base: self.base.get(),
            length: self.length.get(),
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

    /// Returns the region with this key, if it is in the first slot of its search.
    #[inline(always)]
    pub(crate) fn find_usable(&self, lkey: Lkey) -> Option<CachedRegion> {
        match self.slots.get((lkey.index() & self.mask) as usize) {
            Some(slot) => slot.find_usable(lkey),
            None => None,
        }
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
pub(crate) fn check_sge(regions: &Regions<'_>, pd: u16, need: Access, sge: &Sge) -> Result<(), crate::SgeFault> {
    let Some(region) = regions.find(sge.lkey) else { return Err(crate::SgeFault::UnknownKey) };
    // Both domains exist as long as their region and queue pair do: one slot is one domain.
    if region.pd != pd {
        return Err(if sge.lkey.get() == 0 { crate::SgeFault::UnknownKey } else { crate::SgeFault::Domain });
    }
    if !region.access.contains(need) {
        return Err(crate::SgeFault::Access);
    }
    if !region.contains(sge.addr, u64::from(sge.length)) {
        return Err(crate::SgeFault::Range);
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
    /// Who waits for an event.
    #[cfg(feature = "multicore")]
    pub(crate) waker: crate::sync::AtomicWaker,
}

/// The number of no queue.
pub(crate) const NO_NUMBER: u32 = u32::MAX;

impl CqSlot {
    pub(crate) const fn new() -> Self {
        Self {
            cqn: AtomicU32::new(NO_NUMBER),
            generation: AtomicU32::new(0),
            events: AtomicU32::new(0),
            reported_events: AtomicU32::new(0),
            broken: AtomicU32::new(0),
            clean_wanted: AtomicU32::new(0),
            clean_done: AtomicU32::new(0),
            #[cfg(feature = "multicore")]
            waker: crate::sync::AtomicWaker::new(),
        }
    }

    /// Counts an event: the next arm asks for the one after it.
    pub(crate) fn event(&self) {
        self.events.store(self.events.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
        self.wake();
    }

    pub(crate) fn wake(&self) {
        #[cfg(feature = "multicore")]
        self.waker.wake();
    }
}

/// [`QpSlot::draining`] of a queue pair that was reset.
pub(crate) const RESET: u32 = 1;
/// [`QpSlot::draining`] of a queue pair that is gone.
pub(crate) const GONE: u32 = 2;

const _: () = assert!(QpState::Sqd as u32 == QpState::Rts as u32 + 1, "two states, one after the other, send");

/// A slot of the table of queue pairs.
#[derive(Debug)]
pub(crate) struct QpSlot<'r> {
    pub(crate) rings: RingsView<'r>,
    /// Number, [`NO_NUMBER`] for none. Written by the control path.
    pub(crate) qpn: AtomicU32,
    /// What the device gives back with each completion: the slot. Written by the control path.
    pub(crate) cookie: AtomicU32,
    /// Generation of its handle. Written by the control path.
    pub(crate) generation: AtomicU32,
    /// Slots of its completion queues: of sends in the upper half, of receives in the lower. Written by the control path.
    pub(crate) cqs: AtomicU32,
    /// [`RESET`] or [`GONE`] if its completions are stale, the word of a [`DeviceLoss`] if its device is lost, otherwise 0.
    /// Written by the control path.
    pub(crate) draining: AtomicU32,
    /// [`QpState`]. Written by the control path, and by the poller of its completions, which may move it to an error state.
    state: AtomicU32,
    /// Whether the transport is an unreliable one. Written by the control path.
    pub(crate) unreliable: AtomicU32,
    /// Slot of its domain. Written by the control path.
    pub(crate) pd: AtomicU32,
    /// Binds and invalidations in flight. Written under the lock of the windows.
    pub(crate) binds: AtomicU32,
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
pub(crate) static NO_QP: QpSlot<'static> = QpSlot::new(RingsView { send: &[], recv: &[] });

impl<'r> QpSlot<'r> {
    pub(crate) const fn new(rings: RingsView<'r>) -> Self {
        Self {
            rings,
            qpn: AtomicU32::new(NO_NUMBER),
            cookie: AtomicU32::new(0),
            generation: AtomicU32::new(0),
            cqs: AtomicU32::new(0),
            draining: AtomicU32::new(0),
            state: AtomicU32::new(0),
            unreliable: AtomicU32::new(0),
            pd: AtomicU32::new(0),
            binds: AtomicU32::new(0),
            send: RingCounters::new(),
            recv: RingCounters::new(),
        }
    }

    #[inline(always)]
    pub(crate) fn state(&self) -> QpState {
        /// In the order of their codes.
        const STATES: [QpState; 7] =
            [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Sqe, QpState::Err];
        match STATES.get(self.state.load(Ordering::Relaxed) as usize) {
            Some(state) => *state,
            None => QpState::Err,
        }
    }

    /// Returns [`Self::state`] for the control path. Of a queue pair that was reset, the poller may take a stale completion,
    /// and write ERR, until it has seen that the slot is draining.
    pub(crate) fn control_state(&self) -> QpState {
        if self.is_draining() { QpState::Reset } else { self.state() }
    }

    /// Returns whether send requests can be posted: [`QpState::Rts`] or [`QpState::Sqd`].
    #[inline(always)]
    pub(crate) fn can_send(&self) -> bool {
        self.state.load(Ordering::Relaxed).wrapping_sub(QpState::Rts as u32) < 2
    }

    /// Returns whether receives can be posted: in every state but [`QpState::Reset`] and [`QpState::Err`].
    #[inline(always)]
    pub(crate) fn can_receive(&self) -> bool {
        let state = self.state.load(Ordering::Relaxed);
        state != QpState::Reset as u32 && state != QpState::Err as u32
    }

    pub(crate) fn set_state(&self, state: QpState) {
        self.state.store(state as u32, Ordering::Relaxed);
    }

    pub(crate) fn qpn(&self) -> Qpn {
        Qpn::new(self.qpn.load(Ordering::Relaxed))
    }

    /// Returns whether its completions are common ones: neither to be dropped, nor of a lost device.
    #[inline(always)]
    pub(crate) fn is_common(&self) -> bool {
        self.draining.load(Ordering::Relaxed) == 0
    }

    /// Returns whether its completions are to be dropped.
    pub(crate) fn is_draining(&self) -> bool {
        matches!(self.draining.load(Ordering::Acquire), RESET | GONE)
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

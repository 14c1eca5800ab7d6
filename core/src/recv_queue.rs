//! Receive queues: posting of receive requests.

use crate::FAST_PATH;
use crate::log::format_as;
use crate::ring::place;
use crate::send_queue::slot_of;
use crate::shared::{CachedRegion, QpSlot, Shared, check_sge};
use crate::sync::Ordering;
use crate::{Access, BadWr, PdHandle, PostRecvError, Provider, QpHandle, RecvRing, RecvWr, Sge};

/// The state of a receive queue: all of it that only one may have at a time.
pub(crate) struct RecvState<P: Provider> {
    pub(crate) ring: P::RecvRing,
    pub(crate) handle: QpHandle,
    pub(crate) pd: PdHandle,
    pub(crate) max_sge: u32,
    /// Entries of the ring.
    pub(crate) entries: u32,
    /// Where the next receive goes.
    pub(crate) head: u32,
}

/// The receive queue of one queue pair, split off from [`crate::Verbs`], for use on any core: see
/// [`crate::Verbs::take_recv_queue`].
pub struct RecvQueue<'s, P: Provider> {
    pub(crate) state: RecvState<P>,
    pub(crate) shared: Shared<'s>,
}

format_as!([P: Provider] RecvQueue<'_, P>, "RecvQueue({:?})", |this| this.qp());

impl<P: Provider> RecvQueue<'_, P> {
    /// Returns the queue pair that it belongs to.
    pub const fn qp(&self) -> QpHandle {
        self.state.handle
    }

    /// Posts one receive and rings the doorbell.
    ///
    /// # Errors
    /// The request is refused, and the queue is as before.
    #[inline]
    pub fn post_recv(&mut self, wr: &RecvWr<'_>) -> Result<(), PostRecvError> {
        post_one(&mut self.state, &self.shared, wr)
    }

    /// Posts receives up to the first that fails, with one doorbell; that one is named and not posted.
    ///
    /// # Errors
    /// A request is refused.
    pub fn post_recv_list(&mut self, list: &[RecvWr<'_>]) -> Result<(), BadWr<PostRecvError>> {
        post_list(&mut self.state, &self.shared, list)
    }
}

/// Implements [`RecvQueue::post_recv`].
#[inline]
pub(crate) fn post_one<P: Provider>(
    state: &mut RecvState<P>,
    shared: &Shared<'_>,
    wr: &RecvWr<'_>,
) -> Result<(), PostRecvError> {
    let mut cached_region = CachedRegion::NONE;
    let slot = slot_of(shared, state.handle);
    if !FAST_PATH || !slot.can_receive() || !try_post(state, shared, slot, &mut cached_region, wr) {
        post_unusual(state, shared, wr)?;
    }
    ring_new(state, slot);
    Ok(())
}

/// Implements [`RecvQueue::post_recv_list`].
pub(crate) fn post_list<P: Provider>(
    state: &mut RecvState<P>,
    shared: &Shared<'_>,
    list: &[RecvWr<'_>],
) -> Result<(), BadWr<PostRecvError>> {
    let mut cached_region = CachedRegion::NONE;
    let slot = slot_of(shared, state.handle);
    let tries = FAST_PATH && slot.can_receive();
    let mut refused = Ok(());
    let mut rest = list.iter();
    while let Some(wr) = rest.next() {
        if (!tries || !try_post(state, shared, slot, &mut cached_region, wr))
            && let Err(error) = post_unusual(state, shared, wr)
        {
            refused = Err(BadWr { index: list.len().wrapping_sub(rest.len()).wrapping_sub(1), error });
            break;
        }
    }
    if slot.recv.head.load(Ordering::Relaxed) != state.head {
        ring_new(state, slot);
    }
    refused
}

/// Writes a receive without ringing the doorbell, if each of its SGEs names bytes of a region in the first slot of its search.
/// `false`: the fast path does not take it, and nothing has happened. `cached_region` is the region that the last SGE named.
#[inline(always)]
fn try_post<P: Provider>(
    state: &mut RecvState<P>,
    shared: &Shared<'_>,
    slot: &QpSlot<'_>,
    cached_region: &mut CachedRegion,
    wr: &RecvWr<'_>,
) -> bool {
    if wr.sges.len() > state.max_sge as usize {
        return false;
    }
    // Receives of one SGE, as almost all are, are copied into registers: it is read twice.
    match *wr.sges {
        [sge] => try_sges(state, shared, slot, cached_region, wr.wr_id, &[sge]),
        _ => try_sges(state, shared, slot, cached_region, wr.wr_id, wr.sges),
    }
}

#[inline(always)]
fn try_sges<P: Provider>(
    state: &mut RecvState<P>,
    shared: &Shared<'_>,
    slot: &QpSlot<'_>,
    cached_region: &mut CachedRegion,
    wr_id: u64,
    sges: &[Sge],
) -> bool {
    for sge in sges {
        if sge.length == 0 {
            return false;
        }
        if cached_region.lkey.get() != sge.lkey.get() {
            match shared.regions.find_usable(sge.lkey) {
                Some(region) if region.pd == state.pd.index() && region.access.contains(Access::LOCAL_WRITE) => {
                    *cached_region = region;
                }
                _ => return false,
            }
        }
        if !cached_region.contains(sge.addr, sge.length) {
            return false;
        }
    }
    if state.head.wrapping_sub(slot.recv.tail.load(Ordering::Acquire)) >= state.entries {
        return false;
    }
    write(state, slot, wr_id, sges);
    true
}

/// Writes a receive that was checked.
#[inline(always)]
fn write<P: Provider>(state: &mut RecvState<P>, slot: &QpSlot<'_>, wr_id: u64, sges: &[Sge]) {
    let at = state.head;
    state.ring.put(at, sges);
    if let Some(entry) = slot.rings.recv.get(place(at, slot.rings.recv.len())) {
        entry.set(wr_id);
    }
    state.head = at.wrapping_add(1);
}

/// Writes any receive without ringing the doorbell, or returns what is wrong with it.
#[cold]
#[inline(never)]
fn post_unusual<P: Provider>(state: &mut RecvState<P>, shared: &Shared<'_>, wr: &RecvWr<'_>) -> Result<(), PostRecvError> {
    let slot = slot_of(shared, state.handle);
    if !slot.can_receive() {
        return Err(match slot.loss() {
            Some(loss) => PostRecvError::DeviceLost { loss },
            None => PostRecvError::NotReady { state: slot.state() },
        });
    }
    if wr.sges.len() > state.max_sge as usize {
        return Err(PostRecvError::SgeCount { count: wr.sges.len(), max: state.max_sge });
    }
    for (index, sge) in wr.sges.iter().enumerate() {
        if sge.length != 0
            && let Err(fault) = check_sge(&shared.regions, state.pd.index(), Access::LOCAL_WRITE, sge)
        {
            return Err(PostRecvError::Sge { index, lkey: sge.lkey, fault });
        }
    }
    if state.head.wrapping_sub(slot.recv.tail.load(Ordering::Acquire)) >= state.entries {
        return Err(PostRecvError::QueueFull);
    }
    write(state, slot, wr.wr_id, wr.sges);
    Ok(())
}

/// Notifies the device of receives that it does not know.
#[inline(always)]
fn ring_new<P: Provider>(state: &mut RecvState<P>, slot: &QpSlot<'_>) {
    // The poller may see a completion as soon as the device was notified.
    slot.recv.head.store(state.head, Ordering::Release);
    state.ring.ring(state.head);
}

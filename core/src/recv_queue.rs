//! Receive queues: posting of receive requests.

use crate::attr::MAX_MESSAGE;
use crate::backend::{Provider, RecvRing};
use crate::error::{BadWr, PostRecvError};
use crate::log::format_as;
use crate::shared::{CachedRegion, NO_CQ, Owner, QpSlot, Regions, Shared, check_sge, domain_word};
use crate::sync::Ordering;
use crate::{Access, FAST_PATH, PdHandle, QpHandle, RecvWr, Sge, SrqHandle};

/// The receive queue of one queue pair: its owner posts, on any core.
pub struct RecvQueue<'s, P: Provider> {
    pub(crate) ring: P::RecvRing,
    pub(crate) slot: &'s QpSlot<'s>,
    pub(crate) shared: Shared<'s>,
    pub(crate) handle: QpHandle,
    pub(crate) pd: PdHandle,
    pub(crate) max_sge: u32,
    /// Entries of the ring.
    pub(crate) entries: u32,
    /// Where the next receive goes.
    pub(crate) head: u32,
    /// Last, so that the ring is dropped before the control path may destroy it.
    pub(crate) _owner: Owner<'s>,
}

format_as!([P: Provider] RecvQueue<'_, P>, "RecvQueue({:?})", |this| this.qp());

/// Where the receives of a queue pair come from: a [`RecvQueue`] of its own, [`SharedReceives`], or [`NoReceives`]. Nothing else does it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not where the receives of a queue pair come from",
    note = "it is a `RecvQueue`, `SharedReceives` or `NoReceives`"
)]
pub trait ReceiveSide<'s>: sealed::Side<'s> {}

impl<'s, P: Provider> ReceiveSide<'s> for RecvQueue<'s, P> {}
impl<'s> ReceiveSide<'s> for SharedReceives {}
impl<'s> ReceiveSide<'s> for NoReceives {}

pub(crate) mod sealed {
    use crate::shared::QpSlot;

    /// What the verbs ask of a [`super::ReceiveSide`].
    pub trait Side<'s> {
        /// Returns whether it may be that of the queue pair in this slot.
        #[expect(private_interfaces, reason = "nobody outside of this package can call it")]
        fn is_of(&self, slot: &QpSlot<'s>) -> bool;
        /// Forgets every receive, after a RESET.
        fn reset(&mut self);
    }
}

impl<'s, P: Provider> sealed::Side<'s> for RecvQueue<'s, P> {
    #[expect(private_interfaces, reason = "nobody outside of this package can call it")]
    fn is_of(&self, slot: &QpSlot<'s>) -> bool {
        core::ptr::eq(slot, self.slot)
    }

    fn reset(&mut self) {
        self.ring.reset();
        self.head = 0;
    }
}

/// In place of a receive queue: the queue pair takes its receives from a shared receive queue.
#[derive(Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct SharedReceives {
    srq: SrqHandle,
}

impl SharedReceives {
    pub(crate) const fn of(srq: SrqHandle) -> Self {
        Self { srq }
    }

    /// Returns the handle of the shared receive queue.
    pub const fn srq(&self) -> SrqHandle {
        self.srq
    }
}

impl<'s> sealed::Side<'s> for SharedReceives {
    #[expect(private_interfaces, reason = "nobody outside of this package can call it")]
    fn is_of(&self, slot: &QpSlot<'s>) -> bool {
        slot.srq() == self.srq
    }

    fn reset(&mut self) {}
}

/// In place of the receive queue of an XRC queue pair: an initiator receives nothing, and requests to a target name the shared receive
/// queue that they take from.
#[derive(Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub struct NoReceives;

impl<'s> sealed::Side<'s> for NoReceives {
    #[expect(private_interfaces, reason = "nobody outside of this package can call it")]
    fn is_of(&self, slot: &QpSlot<'s>) -> bool {
        // Others have a receive queue somewhere, with which somebody may post.
        slot.recv_cq() == NO_CQ
    }

    fn reset(&mut self) {}
}

/// Returns what is wrong with the SGEs of a receive into regions of a domain.
pub(crate) fn check_sges(regions: &Regions<'_>, pd: PdHandle, sges: &[Sge]) -> Result<(), PostRecvError> {
    for (index, sge) in sges.iter().enumerate().filter(|(_, sge)| sge.length != 0) {
        check_sge(regions, pd.index(), Access::LOCAL_WRITE, sge).map_err(|fault| PostRecvError::Sge {
            index,
            lkey: sge.lkey,
            fault,
        })?;
        // A ring has no more bits for a length: the device would be given a shorter one.
        if sge.length > MAX_MESSAGE {
            return Err(PostRecvError::SgeLength { index, max: MAX_MESSAGE });
        }
    }
    Ok(())
}

impl<P: Provider> RecvQueue<'_, P> {
    /// Returns the handle of the queue pair.
    pub const fn qp(&self) -> QpHandle {
        self.handle
    }

    /// Posts one receive and rings the doorbell.
    ///
    /// ```
    /// # use bareverbs::{Access, DmaBuffer, RecvWr, SendWr};
    /// # use bareverbs_testing::{Faults, connect, pair};
    /// # let [mut a, mut b] = pair(Faults::none())?;
    /// # let [mut qa, mut qb] = connect(&mut a, &mut b)?;
    /// let inbox = b.register(64, Access::LOCAL_WRITE)?;
    /// qb.qp.recv.post(&RecvWr { wr_id: 3, sges: &[inbox.sge(0, 64)] })?;
    /// qa.qp.send.post(&SendWr::send(b"hello"))?;
    /// let received = qb.wait()?;
    /// assert_eq!((received.wr_id, received.byte_len), (3, 5));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The request is refused, and the queue is as before.
    #[cfg_attr(not(feature = "small"), inline(always))]
    pub fn post(&mut self, wr: &RecvWr<'_>) -> Result<(), PostRecvError> {
        let mut cached_region = CachedRegion::NONE;
        // One SGE, as almost all have, is copied into registers: it is read twice.
        if FAST_PATH
            && self.is_common()
            && let [sge] = *wr.sges
            && self.contains(&mut cached_region, &sge)
            && self.end_from(self.head) != self.head
        {
            self.write(self.head, wr.wr_id, &[sge]);
            self.head = self.head.wrapping_add(1);
            self.ring_new();
            return Ok(());
        }
        self.post_copy(wr)
    }

    /// Posts receives up to the first that fails, with one doorbell; that one is named and not posted.
    ///
    /// ```
    /// # use bareverbs::{Access, RecvWr};
    /// # use bareverbs_testing::{Faults, connect, pair};
    /// # let [mut a, mut b] = pair(Faults::none())?;
    /// # let [mut qa, mut qb] = connect(&mut a, &mut b)?;
    /// let inbox = b.register(128, Access::LOCAL_WRITE)?;
    /// let (first, second) = ([inbox.sge(0, 64)], [inbox.sge(64, 64)]);
    /// qb.qp.recv.post_list(&[RecvWr { wr_id: 0, sges: &first }, RecvWr { wr_id: 1, sges: &second }])?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// A request is refused, which [`BadWr`] names with the reason. Those before it are posted.
    // Not part of the caller: the loop wants every register.
    #[inline(never)]
    pub fn post_list(&mut self, list: &[RecvWr<'_>]) -> Result<(), BadWr<PostRecvError>> {
        let mut cached_region = CachedRegion::NONE;
        let tries = FAST_PATH && self.is_common();
        let mut refused = Ok(());
        // In registers, but for `append`.
        let mut head = self.head;
        let mut end = head;
        let mut rest = list.iter();
        while let Some(wr) = rest.next() {
            if tries
                && let [sge] = *wr.sges
                && self.contains(&mut cached_region, &sge)
            {
                if head == end {
                    end = self.end_from(head);
                }
                if head != end {
                    self.write(head, wr.wr_id, &[sge]);
                    head = head.wrapping_add(1);
                    continue;
                }
            }
            self.head = head;
            if let Err(error) = self.append(wr) {
                refused = Err(BadWr { index: list.len().wrapping_sub(rest.len()).wrapping_sub(1), error });
                break;
            }
            head = self.head;
            // It may lie before the new head.
            end = head;
        }
        self.head = head;
        if self.slot.recv.head.load(Ordering::Relaxed) != self.head {
            self.ring_new();
        }
        refused
    }

    /// Posts one receive by [`Self::append`], with a copy of its SGE, so that the caller's own need not lie in memory for those
    /// that are posted before.
    #[inline(always)]
    fn post_copy(&mut self, wr: &RecvWr<'_>) -> Result<(), PostRecvError> {
        match *wr.sges {
            [sge] if FAST_PATH => self.append_and_ring(&RecvWr { wr_id: wr.wr_id, sges: &[sge] }),
            _ => self.append_and_ring(&RecvWr { ..*wr }),
        }
    }

    #[inline(never)]
    fn append_and_ring(&mut self, wr: &RecvWr<'_>) -> Result<(), PostRecvError> {
        self.append(wr)?;
        self.ring_new();
        Ok(())
    }

    /// Returns whether receives with one SGE may be posted without [`Self::append`].
    #[inline(always)]
    fn is_common(&self) -> bool {
        self.slot.can_receive() && self.max_sge != 0
    }

    /// Returns whether an SGE names bytes of a region in the first slot of its search. `cached_region` is the region that the last
    /// SGE named.
    #[inline(always)]
    fn contains(&self, cached_region: &mut CachedRegion, sge: &Sge) -> bool {
        if cached_region.lkey.get() != sge.lkey.get() {
            match self.shared.regions.find_usable(sge.lkey, domain_word(self.pd.index()), sge.length) {
                Some(region) if region.access.contains(Access::LOCAL_WRITE) => *cached_region = region,
                _ => return false,
            }
        } else if !cached_region.fits(sge.length) {
            return false;
        }
        cached_region.contains(sge.addr, sge.length)
    }

    /// Returns the place that the head may not go past now; that of the head itself, if the queue is full.
    #[inline(always)]
    fn end_from(&self, head: u32) -> u32 {
        let tail = self.slot.recv.tail.load(Ordering::Acquire);
        if head.wrapping_sub(tail) >= self.entries { head } else { tail.wrapping_add(self.entries) }
    }

    /// Writes a receive that was checked.
    #[inline(always)]
    fn write(&mut self, at: u32, wr_id: u64, sges: &[Sge]) {
        self.ring.put(at, sges);
        if let Some(entry) = self.slot.rings.recv.get(at) {
            entry.set(wr_id);
        }
    }

    /// Writes any receive without ringing the doorbell, or returns what is wrong with it.
    #[cold]
    #[inline(never)]
    fn append(&mut self, wr: &RecvWr<'_>) -> Result<(), PostRecvError> {
        if !self.slot.can_receive() {
            return Err(match self.shared.loss_of(self.slot) {
                Some(loss) => PostRecvError::DeviceLost { loss },
                None => PostRecvError::NotReady { state: self.slot.state() },
            });
        }
        if wr.sges.len() > self.max_sge as usize {
            return Err(PostRecvError::SgeCount { count: wr.sges.len(), max: self.max_sge });
        }
        check_sges(&self.shared.regions, self.pd, wr.sges)?;
        if self.end_from(self.head) == self.head {
            return Err(PostRecvError::QueueFull { capacity: self.entries });
        }
        self.write(self.head, wr.wr_id, wr.sges);
        self.head = self.head.wrapping_add(1);
        Ok(())
    }

    /// Notifies the device of receives that it does not know.
    #[inline(always)]
    fn ring_new(&mut self) {
        // The poller may see a completion as soon as the device was notified.
        self.slot.recv.head.store(self.head, Ordering::Release);
        self.ring.ring(self.head);
    }
}

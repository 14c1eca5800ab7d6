//! Fast registration: a key that a request opens, over pieces of a region that is registered already.
//!
//! The key is one of the device's, as that of a window is, and is kept in the table of windows. A request opens it, LOCAL_INV or the
//! peer ends it, and a request that fails is handled as that of a window. A program that posts none contains nothing of this.

use crate::backend::{CoreToken, Provider, RegOp, SendRing, SendWriter};
use crate::error::{AllocFastMrError, AnswerFault, DeallocMwError, FastRegError, StaleHandle};
use crate::log::log_event;
use crate::send_queue::{BASIC, OpSet, PostCursor, SendBatch, SendQueue, can_send, free_end};
use crate::shared::{RegionFacts, RegionSlot};
use crate::verbs::Verbs;
use crate::window::{CheckedBind, WINDOW_ACCESS};
use crate::{
    Access, Binding, Handle, KeyTag, Lkey, MrHandle, MwHandle, MwType, PdHandle, Remote, Rkey, SendFlags, Sge, WcOpcode,
};

/// A memory region for fast registration ([`Verbs::alloc_fast_mr`]). It names the region; the value may be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct FastMr {
    /// Slot of its key in the table of windows.
    pub(crate) mw: MwHandle,
    /// Slot in the table of regions. No region has this handle as long as the `FastMr` exists.
    region: MrHandle,
    max_sges: u16,
}

impl FastMr {
    /// Returns how many pieces a registration may have.
    pub const fn max_sges(&self) -> u32 {
        self.max_sges as u32
    }
}

/// A fast registration (`ib_reg_wr`, `mlx5dv_wr_mr_list`): [`SendQueue::post_reg_mr`].
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct FastReg<'a> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// FENCE and SIGNALED.
    pub flags: SendFlags,
    /// Low byte of the keys. One that differs from that of the last registrations: a peer with an old key opens nothing then.
    pub tag: KeyTag,
    /// The pieces, in the order in which they follow each other: all of one region, which was registered with MW_BIND. They need not be
    /// aligned, and may overlap.
    pub sges: &'a [Sge],
    /// LOCAL_WRITE, remote rights, and ZERO_BASED. Remote write rights need LOCAL_WRITE of the region, and not of this.
    pub access: Access,
}

/// What a registration has given: the bytes of its pieces as one range, until it is invalidated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct FastRegion {
    rkey: Rkey,
    base: u64,
    length: u64,
}

impl FastRegion {
    /// Returns the key for the peer, and for the invalidation.
    pub const fn rkey(&self) -> Rkey {
        self.rkey
    }

    /// Returns the key for SGEs.
    pub const fn lkey(&self) -> Lkey {
        Lkey::new(self.rkey.get())
    }

    /// Returns the bytes of all pieces.
    pub const fn len(&self) -> u64 {
        self.length
    }

    /// Returns whether there are no bytes, which is never so.
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns an SGE of `length` bytes from byte `at`. Posting checks that they lie inside.
    pub const fn sge(&self, at: u64, length: u32) -> Sge {
        Sge { addr: self.base.wrapping_add(at), length, lkey: self.lkey() }
    }

    /// Returns byte `at` as the peer names it.
    pub const fn remote(&self, at: u64) -> Remote {
        Remote { addr: self.base.wrapping_add(at), rkey: self.rkey }
    }
}

/// Attributes of a region for fast registration. A request changes them when it is posted, and a failed one changes them back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub struct FastMrInfo {
    /// Protection domain.
    pub pd: PdHandle,
    /// Key of the region; opens nothing while it is free.
    pub rkey: Rkey,
    /// The region whose pieces are registered, the first byte's address, the bytes of all pieces, and the rights; `None` while it is free.
    pub registered: Option<Binding>,
}

impl<P: Provider> Verbs<'_, P> {
    /// Makes a region for fast registration ([`SendQueue::post_reg_mr`]), with room for `max_sges` pieces: a free key. It takes a place among
    /// the regions and one among the windows of the [`Storage`](crate::storage::Storage).
    ///
    /// ```
    /// # use bareverbs::{Access, FastReg, KeyTag, SendFlags, SendWr, WcOpcode};
    /// # use bareverbs_testing::{Faults, connect, pair};
    /// # let [mut a, mut b] = pair(Faults::none())?;
    /// # let [mut qa, mut qb] = connect(&mut a, &mut b)?;
    /// let pool = b.register(8192, Access::LOCAL_WRITE | Access::MW_BIND)?;
    /// let mr = b.verbs.alloc_fast_mr(b.pd, 2)?;
    /// // Two pieces of the pool, which are one range for the peer.
    /// let sges = [pool.sge(100, 50), pool.sge(5000, 50)];
    /// let (tag, flags, access) = (KeyTag(1), SendFlags::SIGNALED, Access::REMOTE_WRITE);
    /// let region = qb.qp.send.post_reg_mr(mr, &FastReg { wr_id: 1, flags, tag, sges: &sges, access })?;
    /// assert_eq!(qb.wait()?.opcode, WcOpcode::RegMr);
    /// qa.qp.send.post(&SendWr::write(region.remote(45), b"0123456789"))?;
    /// qa.wait()?.result()?;
    /// let (mut end, mut start) = ([0; 5], [0; 5]);
    /// pool.read(145, &mut end)?;
    /// pool.read(5000, &mut start)?;
    /// assert_eq!((&end, &start), (b"01234", b"56789"));
    /// qb.qp.send.post(&SendWr::local_inv(region.rkey()).signaled())?;
    /// qb.wait()?.result()?;
    /// b.verbs.dealloc_fast_mr(mr)?;
    /// # use bareverbs::DmaBuffer;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The domain is stale, a table is full, or the device refuses, for instance because its requests carry fewer pieces; nothing was made.
    #[doc(alias = "ib_alloc_mr")]
    #[doc(alias = "mlx5dv_create_mkey")]
    pub fn alloc_fast_mr(&mut self, pd: PdHandle, max_sges: u32) -> Result<FastMr, AllocFastMrError<P::Error>> {
        let domain = self.pds.get(pd).ok_or(AllocFastMrError::StalePd)?;
        let max = u16::try_from(max_sges).ok().filter(|max| *max != 0).ok_or(AllocFastMrError::SgeCount { count: max_sges })?;
        let any = self.mw_vacancy().map_err(|capacity| AllocFastMrError::WindowsFull { capacity })?;
        let full = AllocFastMrError::RegionsFull { capacity: self.shared.regions.slots().len() };
        if !self.shared.regions.slots().iter().any(RegionSlot::is_vacant) {
            return Err(full);
        }
        let (mut inner, rkey) = match self.provider.create_fast_mr(CoreToken::NEW, &domain.inner, max_sges) {
            Ok(created) => created,
            Err(error) => return Err(AllocFastMrError::Device(self.failed(error))),
        };
        if self.has_key(rkey.index()) {
            // Not destroyed: by its index that would be the other.
            return Err(AllocFastMrError::Answer { fault: AnswerFault::KeyInUse { key: rkey.get() } });
        }
        let mut places = self.shared.regions.in_order(Lkey::new(rkey.get())).filter(|(_, slot)| slot.is_vacant());
        let place = places.find_map(|(index, slot)| Some((self.mrs.vacancy_at(index, self.first_generation)?, slot)));
        let Some((region, slot)) = place.filter(|_| rkey.get() != 0) else {
            let is_no_key = rkey.get() == 0;
            if let Err(error) = self.provider.destroy_mw(CoreToken::NEW, &mut inner) {
                return Err(AllocFastMrError::Device(self.failed(error)));
            }
            let fault = AnswerFault::NoKey;
            return Err(if is_no_key { AllocFastMrError::Answer { fault } } else { full });
        };
        let mw = self.adopt_mw(any, pd, inner, MwType::Type2, rkey);
        if let Some(kept) = self.mws.get_mut(mw) {
            kept.region = Some(region);
        }
        // Nobody else takes the slot. It is that of a region without a byte.
        slot.set(Some(&facts(&self.pieces_of_none(rkey, pd, region))));
        log_event!(debug, "region {:?} of requests: key {:?}", region, rkey);
        Ok(FastMr { mw, region, max_sges: max })
    }

    fn pieces_of_none(&self, rkey: Rkey, pd: PdHandle, region: MrHandle) -> Published {
        Published { rkey, pd: pd.index(), region, access: Access::empty(), base: 0, length: 0, max_message: 0 }
    }

    /// Returns the attributes of a region for fast registration.
    ///
    /// # Errors
    /// The region was destroyed, or is of another `Verbs`.
    pub fn fast_mr_info(&self, mr: FastMr) -> Result<FastMrInfo, StaleHandle> {
        let info = self.mw_info(mr.mw)?;
        Ok(FastMrInfo { pd: info.pd, rkey: info.rkey, registered: info.binding })
    }

    /// Destroys a region for fast registration, free or not: what its key opens ends at once.
    ///
    /// # Errors
    /// The region was destroyed before or is of another `Verbs`, registrations or invalidations of it are in flight, or the device refuses; it is as before.
    #[doc(alias = "ib_dereg_mr")]
    pub fn dealloc_fast_mr(&mut self, mr: FastMr) -> Result<(), DeallocMwError<P::Error>> {
        self.dealloc_mw(mr.mw)
    }
}

/// What requests see of a registration.
struct Published {
    rkey: Rkey,
    pd: u16,
    region: MrHandle,
    access: Access,
    base: u64,
    length: u64,
    max_message: u32,
}

fn facts(of: &Published) -> RegionFacts {
    RegionFacts {
        lkey: Lkey::new(of.rkey.get()),
        generation: of.region.generation(),
        pd: of.pd,
        // Without MW_BIND: neither windows nor other registrations are over it.
        access: of.access & Access::LOCAL_WRITE,
        base: of.base,
        length: of.length,
        max_message: of.max_message,
    }
}

impl<P: Provider> SendQueue<'_, P> {
    /// Registers pieces of a region by a request, and rings the doorbell. The keys are valid at once for requests that follow on this queue
    /// pair; for others, and for the peer, when the completion has come ([`WcOpcode::RegMr`]).
    ///
    /// The registration ends with the success of a [`SendWr::local_inv`](crate::SendWr::local_inv) on this queue pair, or when the completion
    /// of a receive says that the peer has invalidated it. Until then the region of its pieces is not deregistered. If the request fails, all
    /// is as it was when the completion is polled.
    ///
    /// An SGE may name the pieces by [`FastRegion::sge`]. One that does so after the invalidation is refused by the device
    /// ([`WcStatus::LocProtErr`](crate::WcStatus::LocProtErr)), and not here.
    ///
    /// A registration takes two blocks of the send ring and one for each four pieces, or a part of them. [`Verbs::ring_sizes`] counts on requests
    /// of four pieces at most. An example is at [`Verbs::alloc_fast_mr`].
    ///
    /// # Errors
    /// [`FastRegError`]: the queue pair cannot send, the SGEs or rights do not fit the region, its last registration has not ended, or the
    /// queue is full. Everything is as before.
    #[doc(alias = "ib_post_send")]
    #[doc(alias = "IB_WR_REG_MR")]
    #[doc(alias = "mlx5dv_wr_mr_list")]
    pub fn post_reg_mr(&mut self, mr: FastMr, reg: &FastReg<'_>) -> Result<FastRegion, FastRegError> {
        let registered = append_reg(self, mr, reg);
        PostCursor::new(self).ring();
        registered
    }
}

impl<P: Provider> SendBatch<'_, P> {
    /// Registers pieces of a region: [`SendQueue::post_reg_mr`] as part of a batch.
    ///
    /// # Errors
    /// [`FastRegError`], as a single request has it; the batch is as before.
    pub fn post_reg_mr(&mut self, mr: FastMr, reg: &FastReg<'_>) -> Result<FastRegion, FastRegError> {
        self.open.call(|queue| append_reg(queue, mr, reg))
    }
}

/// Posts a registration, on what is kept.
#[inline(never)]
fn append_reg<P: Provider>(queue: &SendQueue<'_, P>, mr: FastMr, reg: &FastReg<'_>) -> Result<FastRegion, FastRegError> {
    let mut open = PostCursor::new(queue);
    open.end = free_end(queue.slot, queue.limits.blocks);
    let region = open.put_reg(mr, reg)?;
    queue.keep_bind(true);
    // The key's state counts on the request, so it stays in the queue even if the batch is forgotten.
    open.save();
    Ok(region)
}

/// The pieces of a registration, as they were found good.
struct Pieces {
    mr: MrHandle,
    lkey: Lkey,
    addr: u64,
    length: u64,
}

impl<'a, P: Provider> PostCursor<'a, P> {
    fn put_reg(&mut self, mr: FastMr, reg: &FastReg<'_>) -> Result<FastRegion, FastRegError> {
        let FastReg { wr_id, flags, tag, sges, access } = *reg;
        let (queue, qp) = (self.queue, self.queue.limits.handle);
        let shared = &queue.shared;
        shared.windows.with(|windows| {
            let window = windows.get(mr.mw).ok_or(FastRegError::Stale)?;
            if !queue.limits.ops().contains(OpSet::WINDOW) {
                return Err(FastRegError::Transport { qp_type: queue.limits.qp_type });
            }
            let wrong = flags.difference(BASIC & queue.limits.flags());
            if !wrong.is_empty() {
                return Err(FastRegError::Flags { flags: wrong });
            }
            let wrong = access.difference(WINDOW_ACCESS | Access::LOCAL_WRITE);
            if !wrong.is_empty() {
                return Err(FastRegError::AccessFlags { access: wrong });
            }
            let state = self.slot.state();
            if !can_send(state) {
                return Err(match shared.loss_of(self.slot) {
                    Some(loss) => FastRegError::DeviceLost { loss },
                    None => FastRegError::NotReady { state },
                });
            }
            if window.pd != queue.limits.pd {
                return Err(FastRegError::Domain);
            }
            let pieces = self.check_pieces(mr, sges, access)?;
            if let Some(other) = window.elsewhere(qp) {
                return Err(FastRegError::OtherQueuePair { qp: other });
            }
            if window.state.binding.is_some() {
                return Err(FastRegError::Registered { rkey: window.state.rkey });
            }
            let (old, new) = (window.state.rkey, window.state.rkey.with_tag(tag));
            if windows.is_held(mr.mw, new) {
                return Err(FastRegError::KeyInUse { rkey: new });
            }
            let blocks = <P::SendRing as SendRing>::Writer::<'a>::reg_blocks(sges.len());
            let free = self.end.wrapping_sub(self.head);
            if free < blocks {
                return Err(FastRegError::QueueFull { needed: blocks, free, blocks: queue.limits.blocks });
            }
            let room = windows.room().ok_or(FastRegError::TooManyPending)?;
            let base = if access.contains(Access::ZERO_BASED) { 0 } else { pieces.addr };
            let op = RegOp { old, new, base, length: pieces.length, access, sges };
            self.writer.put_reg(self.head, &op, self.flags_after(flags));
            let binding = Binding { mr: pieces.mr, addr: pieces.addr, length: pieces.length, access };
            let checked = CheckedBind { mw: mr.mw, old, new, lkey: pieces.lkey, binding: Some(&binding) };
            self.remember_bind(windows, wr_id, blocks, WcOpcode::RegMr, &checked, room);
            let (pd, length, max_message) = (queue.limits.pd.index(), pieces.length, queue.limits.max_message);
            // Its slot is written under the lock, or while nobody can name it.
            if let Some(slot) = shared.regions.slots().get(usize::from(mr.region.index())) {
                slot.set(Some(&facts(&Published { rkey: new, pd, region: mr.region, access, base, length, max_message })));
            }
            Ok(FastRegion { rkey: new, base, length })
        })
    }

    /// Checks the pieces: all of one region of the queue pair's domain, which lets them be bound, and inside it.
    fn check_pieces(&self, mr: FastMr, sges: &[Sge], access: Access) -> Result<Pieces, FastRegError> {
        let max = mr.max_sges();
        let Some(first) = sges.first().filter(|_| sges.len() <= max as usize) else {
            return Err(FastRegError::SgeCount { count: sges.len(), max });
        };
        let limits = &self.queue.limits;
        let (at, region) = self.queue.shared.regions.locate(first.lkey).ok_or(FastRegError::UnknownKey { lkey: first.lkey })?;
        if region.pd != limits.pd.index() {
            return Err(FastRegError::Domain);
        }
        if !region.access.contains(Access::MW_BIND) {
            return Err(FastRegError::NoBindRight);
        }
        let writes = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        if access.intersects(writes) && !region.access.contains(Access::LOCAL_WRITE) {
            return Err(FastRegError::NoLocalWrite);
        }
        let mut length = 0_u64;
        for (index, piece) in sges.iter().enumerate() {
            if piece.lkey != first.lkey {
                return Err(FastRegError::OtherRegion { index });
            }
            let bytes = u64::from(piece.length);
            if bytes == 0 || bytes > limits.max_window {
                return Err(FastRegError::Length { index, max: limits.max_window });
            }
            if !region.contains(piece.addr, bytes) {
                let Sge { addr, length, .. } = *piece;
                return Err(FastRegError::Range { index, addr, length, start: region.base, size: region.length });
            }
            length = length.wrapping_add(bytes);
        }
        if first.addr.checked_add(length).is_none() {
            return Err(FastRegError::Overflow);
        }
        Ok(Pieces { mr: Handle::new(at, region.generation), lkey: first.lkey, addr: first.addr, length })
    }
}

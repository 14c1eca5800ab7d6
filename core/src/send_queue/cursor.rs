//! Requests on their way into the ring: the common ones as part of the caller, all others with their checks one by one.

use core::hint::cold_path;

use super::SendQueue;
use super::limits::{BASIC, OpSet, SendLimits, can_send, refusal};
use super::operations::OpProperties;
use crate::backend::{AtomicOp, BindOp, DataOp, Provider, SendRing, SendWriter};
use crate::error::{BindRefused, BindType1Error, PostSendError};
use crate::shared::{CachedRegion, QpSlot, RegionFacts, check_sge};
use crate::storage::SendFacts;
use crate::sync::Ordering;
use crate::window::{BindRequest, CheckedBind, Type1Bind};
use crate::{Access, Binding, KeyTag, MwHandle, MwType, Payload, Rkey, SendFlags, SendOp, SendWr, Sge, WcOpcode};

/// The most SGEs of a request that has empty ones among them.
const MAX_SGES: usize = 64;

/// The working state of a batch. It lives in registers, so nothing that is called and not inlined gets a reference to it: calls
/// work on what is kept in `queue` ([`Self::save`], [`Self::reload`]). Only what changes from request to request is here: the
/// rest costs no more where it lies.
pub(crate) struct PostCursor<'a, P: Provider> {
    pub(crate) writer: <P::SendRing as SendRing>::Writer<'a>,
    pub(crate) queue: &'a SendQueue<'a, P>,
    pub(crate) slot: &'a QpSlot<'a>,
    /// Where the next request goes.
    pub(crate) head: u32,
    /// The block that `head` may not go past.
    pub(crate) end: u32,
    /// The region that the last SGE named, with its domain found good.
    pub(super) cached_region: CachedRegion,
}

/// Notifies the device of every request before block `head`, if it does not know of them.
#[inline(always)]
pub(super) fn ring_from<'a, P: Provider>(
    writer: &mut <P::SendRing as SendRing>::Writer<'a>,
    queue: &'a SendQueue<'a, P>,
    head: u32,
) {
    if head != queue.head.get() || queue.left.get() {
        queue.left.set(false);
        ring_new(writer, queue, queue.slot, head);
    }
}

/// Rings the doorbell for new requests.
#[cfg_attr(not(feature = "small"), inline(always))]
#[cfg_attr(feature = "small", inline(never))]
fn ring_new<'a, P: Provider>(
    writer: &mut <P::SendRing as SendRing>::Writer<'a>,
    queue: &'a SendQueue<'a, P>,
    slot: &QpSlot<'_>,
    head: u32,
) {
    // The poller may see a completion as soon as the doorbell rings.
    slot.send.head.store(head, Ordering::Release);
    writer.ring(head);
    queue.head.set(head);
}

/// Returns the block that the head may not go past now, in a ring of `blocks`.
#[inline(always)]
pub(crate) fn free_end(slot: &QpSlot<'_>, blocks: u32) -> u32 {
    slot.send.tail.load(Ordering::Acquire).wrapping_add(blocks)
}

/// Returns the blocks that are free behind `head`. After a RESET the tail is stale until the drain ends.
pub(super) fn free_blocks<P: Provider>(queue: &SendQueue<'_, P>, head: u32) -> u32 {
    let blocks = queue.limits.blocks;
    if queue.slot.is_draining() { blocks } else { free_end(queue.slot, blocks).wrapping_sub(head) }
}

/// Returns the block that the head may not go past now by requests that are posted as part of the caller: the head itself, if
/// the queue pair does not send.
#[inline(always)]
fn common_end<P: Provider>(queue: &SendQueue<'_, P>, slot: &QpSlot<'_>, head: u32) -> u32 {
    let end = free_end(slot, queue.limits.blocks);
    if slot.can_send() { end } else { head }
}

impl<'a, P: Provider> PostCursor<'a, P> {
    #[cfg_attr(not(feature = "small"), inline(always))]
    #[cfg_attr(feature = "small", inline(never))]
    pub(crate) fn new(queue: &'a SendQueue<'a, P>) -> Self {
        let (slot, head) = (queue.slot, queue.head.get());
        let end = common_end(queue, slot, head);
        Self { writer: queue.ring.writer(), queue, slot, head, end, cached_region: CachedRegion::NONE }
    }

    /// Returns the cursor for one request, before [`Self::has_room`] reads where it goes.
    #[inline(always)]
    pub(super) fn unopened(queue: &'a SendQueue<'a, P>) -> Self {
        let cached_region = CachedRegion::NONE;
        Self { writer: queue.ring.writer(), queue, slot: queue.slot, head: 0, end: 0, cached_region }
    }

    /// Posts one of the short requests that most programs live on, as part of the caller. `false`: it is another one, or
    /// something is wrong; nothing has happened, and [`append`](super::append) takes it. `first`: no other was posted before by this cursor.
    #[inline(always)]
    pub(crate) fn post_common(&mut self, wr: &SendWr<'_>, first: bool) -> bool {
        let (id, flags) = (wr.wr_id, wr.flags);
        // Each operation has code of its own, which knows what it is. Each SGE is read twice, to be checked and to be written:
        // they are copied before, into registers.
        match wr.op {
            SendOp::Write { payload, remote } => self.post_payload(id, flags, DataOp::write(remote), payload, first),
            SendOp::Send { payload } => self.post_payload(id, flags, DataOp::send(), payload, first),
            SendOp::WriteWithImm { payload: Payload::Sges(&[one]), remote, imm } => {
                self.try_sges::<false>(id, flags, DataOp::write_imm(remote, imm), &[one], first)
            }
            SendOp::SendWithImm { payload: Payload::Sges(&[one]), imm } => {
                self.try_sges::<false>(id, flags, DataOp::send_imm(imm), &[one], first)
            }
            SendOp::SendWithInv { payload: Payload::Sges(&[one]), rkey } => {
                self.try_sges::<false>(id, flags, DataOp::send_inv(rkey), &[one], first)
            }
            SendOp::Read { sges: &[one], remote } => self.try_sges::<false>(id, flags, DataOp::read(remote), &[one], first),
            SendOp::CompareSwap { sge, remote, compare, swap } => {
                self.try_atomic(id, flags, AtomicOp::compare_swap(remote, compare, swap), sge, first)
            }
            SendOp::FetchAdd { sge, remote, add } => self.try_atomic(id, flags, AtomicOp::fetch_add(remote, add), sge, first),
            _ => false,
        }
    }

    #[inline(always)]
    fn post_payload(&mut self, wr_id: u64, flags: SendFlags, op: DataOp, payload: Payload<'_>, first: bool) -> bool {
        match payload {
            Payload::Sges(&[one]) => self.try_sges::<false>(wr_id, flags, op, &[one], first),
            Payload::Sges(&[one, two]) => self.try_sges::<false>(wr_id, flags, op, &[one, two], first),
            // With a doorbell of its own by `post_three`.
            Payload::Sges(&[one, two, three]) if !first => {
                cold_path();
                self.try_sges::<false>(wr_id, flags, op, &[one, two, three], first)
            }
            Payload::Sges(_) => false,
            Payload::Inline(bytes) => self.try_inline(wr_id, flags, op, bytes, first),
        }
    }

    /// Does the same for writes and sends with SGEs whose regions are `ANYWHERE` in the table, in one copy of the code for all
    /// callers.
    #[inline(always)]
    pub(crate) fn post_sges<const ANYWHERE: bool>(&mut self, wr: &SendWr<'_>) -> bool {
        // One or two in first slots were tried before.
        let few = |sges: &[Sge]| if ANYWHERE { sges.is_empty() } else { sges.len() < 4 };
        match wr.op {
            SendOp::Write { payload: Payload::Sges(sges), remote } if !few(sges) => {
                self.try_sges::<ANYWHERE>(wr.wr_id, wr.flags, DataOp::write(remote), sges, true)
            }
            SendOp::Send { payload: Payload::Sges(sges) } if !few(sges) => {
                self.try_sges::<ANYWHERE>(wr.wr_id, wr.flags, DataOp::send(), sges, true)
            }
            _ => false,
        }
    }

    /// Keeps what was posted, also without a doorbell.
    #[inline(always)]
    pub(crate) fn save(&mut self) {
        if self.head != self.queue.head.get() {
            self.queue.head.set(self.head);
            self.queue.left.set(true);
        }
        self.writer.close();
    }

    /// Goes on with what is kept.
    #[inline(always)]
    pub(super) fn reload(&mut self) {
        self.writer = self.queue.ring.writer();
        self.head = self.queue.head.get();
        self.end = common_end(self.queue, self.slot, self.head);
        // What was called may have let the region go.
        self.cached_region = CachedRegion::NONE;
    }

    /// Calls something that works on what is kept.
    #[inline(always)]
    pub(crate) fn call<R>(&mut self, call: impl FnOnce(&'a SendQueue<'a, P>) -> R) -> R {
        self.save();
        let result = call(self.queue);
        self.reload();
        result
    }

    /// Ends a request: rings the doorbell, or leaves that to a later one.
    #[inline(always)]
    pub(crate) fn finish(&mut self, ring: bool) {
        if ring {
            self.ring();
        } else {
            self.save();
        }
    }

    /// Notifies the device of what it does not know yet.
    #[inline(always)]
    pub(crate) fn ring(&mut self) {
        ring_from(&mut self.writer, self.queue, self.head);
    }

    /// Rings the doorbell for requests since the last one.
    #[inline(always)]
    pub(super) fn ring_new(&mut self) {
        ring_new(&mut self.writer, self.queue, self.slot, self.head);
    }

    /// Returns whether a request may be posted as part of the caller: the transport has the operation, its flags and `count`
    /// SGEs, and the request before is no bind.
    #[inline(always)]
    fn is_common(&self, op: OpSet, legal: SendFlags, flags: SendFlags, count: usize) -> bool {
        let sges = match count {
            0 => 0,
            few @ 1..=8 => 1 << few.wrapping_add(15),
            many if many <= self.queue.limits.max_sge as usize => 0,
            _ => return false,
        };
        let needs = u32::from(op.bits()) | (flags.bits() & 0xff) << 8 | sges;
        legal.contains(flags) && self.queue.uncommon.get() & needs == 0
    }

    /// Returns whether `blocks` blocks are free; reads `tail` again if they are not. `first`: the cursor is
    /// of one request, and its head is read only here, so that it takes no registers before.
    #[inline(always)]
    fn has_room(&mut self, blocks: u32, first: bool) -> bool {
        if first {
            self.head = self.queue.head.get();
            return self.slot.can_send() && free_end(self.slot, self.queue.limits.blocks).wrapping_sub(self.head) >= blocks;
        }
        if self.end.wrapping_sub(self.head) < blocks {
            self.end = common_end(self.queue, self.slot, self.head);
            return self.end.wrapping_sub(self.head) >= blocks;
        }
        true
    }

    /// Posts a request with few SGEs. `false`: something about it is not common or wrong, and nothing has happened.
    #[inline(always)]
    pub(super) fn try_sges<const ANYWHERE: bool>(
        &mut self,
        wr_id: u64,
        flags: SendFlags,
        op: DataOp,
        sges: &[Sge],
        first: bool,
    ) -> bool {
        let kind = OpProperties::of(op.opcode);
        if !self.is_common(kind.set, kind.legal(), flags, sges.len()) {
            return false;
        }
        let mut bytes = 0_u64;
        for (index, sge) in sges.iter().enumerate() {
            if !self.contains::<ANYWHERE>(sge, kind.need, first && index == 0) {
                return false;
            }
            bytes = bytes.wrapping_add(u64::from(sge.length));
        }
        let blocks = <P::SendRing as SendRing>::Writer::<'a>::sge_blocks(op.opcode, sges.len());
        if sges.len() > 1 && bytes > u64::from(self.queue.limits.max_message) || !self.has_room(blocks, first) {
            return false;
        }
        self.writer.put_sges(self.head, &op, sges, self.queue.limits.effective(flags));
        self.remember(wr_id, bytes as u32, blocks, kind.opcode);
        true
    }

    /// Posts a request with bytes inline. `false` as for [`Self::try_sges`].
    #[inline(always)]
    fn try_inline(&mut self, wr_id: u64, flags: SendFlags, op: DataOp, bytes: &[u8], first: bool) -> bool {
        let kind = OpProperties::of(op.opcode);
        // No byte and too many bytes in one comparison.
        let too_long = bytes.len().wrapping_sub(1) >= self.queue.limits.max_inline as usize;
        if too_long || !self.is_common(kind.set, kind.legal_inline(), flags, 0) {
            return false;
        }
        let blocks = <P::SendRing as SendRing>::Writer::<'a>::inline_blocks(op.opcode, bytes.len());
        if !self.has_room(blocks, first) {
            return false;
        }
        self.writer.put_inline(self.head, &op, bytes, self.queue.limits.effective(flags));
        self.remember(wr_id, bytes.len() as u32, blocks, kind.opcode);
        true
    }

    /// Posts an atomic. `false` as for [`Self::try_sges`].
    #[inline(always)]
    fn try_atomic(&mut self, wr_id: u64, flags: SendFlags, op: AtomicOp, sge: Sge, first: bool) -> bool {
        let blocks = <P::SendRing as SendRing>::Writer::<'a>::ATOMIC_BLOCKS;
        let good = self.is_common(OpSet::ATOMIC, BASIC, flags, 1) && sge.length == 8 && op.remote.addr.is_multiple_of(8);
        if !good || !self.contains::<false>(&sge, Access::LOCAL_WRITE, first) || !self.has_room(blocks, first) {
            return false;
        }
        self.writer.put_atomic(self.head, &op, &sge, self.queue.limits.effective(flags));
        self.remember(wr_id, 8, blocks, op.opcode.completion());
        true
    }

    /// Returns the flags of a request that [`append`](super::append) posts.
    pub(crate) fn flags_after(&self, flags: SendFlags) -> SendFlags {
        let flags = self.queue.limits.effective(flags);
        if self.queue.is_after_bind() { flags | SendFlags::AFTER_BIND } else { flags }
    }

    /// Returns an error if `blocks` blocks are not free.
    pub(crate) fn check_room(&mut self, needed: u32) -> Result<(), PostSendError> {
        let free = self.end.wrapping_sub(self.head);
        let blocks = self.queue.limits.blocks;
        if free < needed { Err(PostSendError::QueueFull { needed, free, blocks }) } else { Ok(()) }
    }

    pub(super) fn put_sges(&mut self, wr: &SendWr<'_>) -> Result<(), PostSendError> {
        let SendWr { wr_id, flags, .. } = *wr;
        let Some((ref op, Payload::Sges(sges))) = wr.op.data() else { return Ok(()) };
        let kind = OpProperties::of(op.opcode);
        if let Some(error) = refusal(&self.queue.limits, kind.set, kind.legal(), flags, kind.opcode, sges.len()) {
            return Err(error);
        }
        let mut filled = heapless::Vec::<Sge, MAX_SGES>::new();
        let bytes = self.collect_sges(kind.need, sges, &mut filled)?;
        let sges = if filled.is_empty() && bytes != 0 { sges } else { &filled };
        let blocks = <P::SendRing as SendRing>::Writer::<'_>::sge_blocks(op.opcode, sges.len());
        self.check_room(blocks)?;
        self.writer.put_sges(self.head, op, sges, self.flags_after(flags));
        self.remember(wr_id, bytes as u32, blocks, kind.opcode);
        Ok(())
    }

    /// Looks at the SGEs that name bytes, and collects them if there are others; gives how many bytes all have.
    fn collect_sges(
        &self,
        need: Access,
        sges: &[Sge],
        filled: &mut heapless::Vec<Sge, MAX_SGES>,
    ) -> Result<u64, PostSendError> {
        let SendLimits { pd, max_message: max, .. } = self.queue.limits;
        let has_empty = sges.iter().any(|sge| sge.length == 0);
        let mut bytes = 0_u64;
        for (index, sge) in sges.iter().enumerate().filter(|(_, sge)| sge.length != 0) {
            if let Err(fault) = check_sge(&self.queue.shared.regions, pd.index(), need, sge) {
                return Err(PostSendError::Sge { index, lkey: sge.lkey, fault });
            }
            bytes = bytes.wrapping_add(u64::from(sge.length));
            if bytes > u64::from(max) {
                return Err(PostSendError::MessageSize { max });
            }
            if has_empty && filled.push(*sge).is_err() {
                return Err(PostSendError::SgeCount { count: sges.len(), max: MAX_SGES as u32 });
            }
        }
        Ok(bytes)
    }

    pub(super) fn put_inline(&mut self, wr: &SendWr<'_>) -> Result<(), PostSendError> {
        let SendWr { wr_id, flags, .. } = *wr;
        let Some((ref op, Payload::Inline(bytes))) = wr.op.data() else { return Ok(()) };
        let (kind, max) = (OpProperties::of(op.opcode), self.queue.limits.max_inline);
        if let Some(error) = refusal(&self.queue.limits, kind.set, kind.legal_inline(), flags, kind.opcode, 0) {
            return Err(error);
        }
        if bytes.len() > max as usize {
            return Err(PostSendError::InlineSize { length: bytes.len(), max });
        }
        let blocks = <P::SendRing as SendRing>::Writer::<'_>::inline_blocks(op.opcode, bytes.len());
        self.check_room(blocks)?;
        self.writer.put_inline(self.head, op, bytes, self.flags_after(flags));
        self.remember(wr_id, bytes.len() as u32, blocks, kind.opcode);
        Ok(())
    }

    /// Returns what is wrong with the sizes of an atomic.
    pub(super) fn check_atomic(&self, op: &AtomicOp, sge: &Sge) -> Result<(), PostSendError> {
        if sge.length != 8 {
            return Err(PostSendError::AtomicLength { length: sge.length, needed: 8 });
        }
        if !op.remote.addr.is_multiple_of(8) {
            return Err(PostSendError::AtomicAlignment { addr: op.remote.addr, needed: 8 });
        }
        Ok(())
    }

    pub(super) fn put_atomic(&mut self, wr: &SendWr<'_>) -> Result<(), PostSendError> {
        let SendWr { wr_id, flags, .. } = *wr;
        let Some((ref op, ref sge)) = wr.op.atomic() else { return Ok(()) };
        let (limits, opcode) = (&self.queue.limits, op.opcode.completion());
        if let Some(error) = refusal(limits, OpSet::ATOMIC, BASIC, flags, opcode, 1) {
            return Err(error);
        }
        self.check_atomic(op, sge)?;
        if let Err(fault) = check_sge(&self.queue.shared.regions, limits.pd.index(), Access::LOCAL_WRITE, sge) {
            return Err(PostSendError::Sge { index: 0, lkey: sge.lkey, fault });
        }
        let blocks = <P::SendRing as SendRing>::Writer::<'a>::ATOMIC_BLOCKS;
        self.check_room(blocks)?;
        self.writer.put_atomic(self.head, op, sge, self.flags_after(flags));
        self.remember(wr_id, 8, blocks, opcode);
        Ok(())
    }

    pub(super) fn put_bind_type1(&mut self, mw: MwHandle, bind: &Type1Bind) -> Result<Rkey, BindType1Error> {
        let qp_type = self.queue.limits.qp_type;
        let binding = Binding { mr: bind.mr, addr: bind.addr, length: bind.length, access: bind.access };
        let request = self.bind_request(mw, MwType::Type1, &binding, None);
        let shared = &self.queue.shared;
        shared.windows.with(|windows| {
            windows.get(mw).ok_or(BindRefused::StaleWindow).map_err(BindType1Error::Refused)?;
            if !self.queue.limits.ops().contains(OpSet::WINDOW) {
                return Err(BindType1Error::Transport { qp_type });
            }
            let region = windows.check_arguments(shared, &request).map_err(BindType1Error::Refused)?;
            let flags = bind.flags.difference(BASIC & self.queue.limits.flags());
            if !flags.is_empty() {
                return Err(BindType1Error::Flags { flags });
            }
            let state = self.slot.state();
            if !can_send(state) {
                return Err(match shared.loss_of(self.slot) {
                    Some(loss) => BindType1Error::DeviceLost { loss },
                    None => BindType1Error::NotReady { state },
                });
            }
            self.put_bind(windows, bind.wr_id, bind.flags, &request, region.as_ref()).map_err(|fault| match fault {
                BindFault::Refused(refused) => BindType1Error::Refused(refused),
                BindFault::QueueFull { needed, free, blocks } => BindType1Error::QueueFull { needed, free, blocks },
                BindFault::TooManyPendingBinds => BindType1Error::TooManyPendingBinds,
            })
        })
    }

    pub(super) fn put_bind_type2(&mut self, wr: &SendWr<'_>) -> Result<(), PostSendError> {
        let SendWr { wr_id, flags, .. } = *wr;
        let SendOp::BindMw { mw, tag, ref binding } = wr.op else { return Ok(()) };
        if let Some(error) = refusal(&self.queue.limits, OpSet::WINDOW, BASIC, flags, WcOpcode::BindMw, 0) {
            return Err(error);
        }
        let request = self.bind_request(mw, MwType::Type2, binding, Some(tag));
        let shared = &self.queue.shared;
        shared.windows.with(|windows| {
            let region = windows.check_arguments(shared, &request).map_err(PostSendError::Bind)?;
            self.put_bind(windows, wr_id, flags, &request, region.as_ref()).map(drop).map_err(BindFault::into_post_send)
        })
    }

    pub(super) fn put_local_inv(&mut self, wr: &SendWr<'_>) -> Result<(), PostSendError> {
        let SendWr { wr_id, flags, .. } = *wr;
        let SendOp::LocalInv { rkey } = wr.op else { return Ok(()) };
        if let Some(error) = refusal(&self.queue.limits, OpSet::WINDOW, BASIC, flags, WcOpcode::LocalInv, 0) {
            return Err(error);
        }
        let shared = &self.queue.shared;
        shared.windows.with(|windows| {
            let checked =
                windows.check_invalidate(self.queue.limits.pd, self.queue.limits.handle, rkey).map_err(PostSendError::Bind)?;
            let blocks = <P::SendRing as SendRing>::Writer::<'a>::LOCAL_INV_BLOCKS;
            let room = self.check_bind_room(windows, blocks).map_err(BindFault::into_post_send)?;
            self.writer.put_local_inv(self.head, rkey, self.flags_after(flags));
            self.remember_bind(windows, wr_id, blocks, WcOpcode::LocalInv, &checked, room);
            Ok(())
        })
    }

    fn bind_request<'b>(&self, mw: MwHandle, kind: MwType, binding: &'b Binding, tag: Option<KeyTag>) -> BindRequest<'b> {
        let SendLimits { pd, handle: qp, max_window, .. } = self.queue.limits;
        BindRequest { pd, qp, mw, kind, binding, tag, max_length: max_window }
    }

    fn check_bind_room(&mut self, windows: &crate::window::Windows, blocks: u32) -> Result<usize, BindFault> {
        let free = self.end.wrapping_sub(self.head);
        if free < blocks {
            return Err(BindFault::QueueFull { needed: blocks, free, blocks: self.queue.limits.blocks });
        }
        windows.room().ok_or(BindFault::TooManyPendingBinds)
    }

    /// Posts a bind after its second check; gives the key that the window gets.
    fn put_bind(
        &mut self,
        windows: &mut crate::window::Windows,
        wr_id: u64,
        flags: SendFlags,
        request: &BindRequest<'_>,
        region: Option<&RegionFacts>,
    ) -> Result<Rkey, BindFault> {
        let checked = windows.check(request, region).map_err(BindFault::Refused)?;
        let Binding { addr, length, access, .. } = *request.binding;
        let (kind, new) = (request.kind, checked.new);
        let bind = BindOp { kind, old: checked.old, new, lkey: checked.lkey, addr, length, access };
        let blocks = <P::SendRing as SendRing>::Writer::<'a>::bind_blocks(&bind);
        let room = self.check_bind_room(windows, blocks)?;
        self.writer.put_bind(self.head, &bind, self.flags_after(flags));
        self.remember_bind(windows, wr_id, blocks, WcOpcode::BindMw, &checked, room);
        Ok(new)
    }

    pub(crate) fn remember_bind(
        &mut self,
        windows: &mut crate::window::Windows,
        wr_id: u64,
        blocks: u32,
        opcode: WcOpcode,
        checked: &CheckedBind<'_>,
        room: usize,
    ) {
        windows.post(self.queue.limits.handle, self.head, checked, room);
        self.slot.binds.store(self.slot.binds.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        self.remember(wr_id, 0, blocks, opcode);
    }

    /// Returns whether an SGE names bytes, not too many, and its region allows them and is in the first slot of its search, or
    /// `ANYWHERE`. `first`: no region is cached.
    #[inline(always)]
    pub(super) fn contains<const ANYWHERE: bool>(&mut self, sge: &Sge, need: Access, first: bool) -> bool {
        if first || self.cached_region.lkey.get() != sge.lkey.get() {
            let regions = &self.queue.shared.regions;
            let mut found = regions.find_usable(sge.lkey, self.queue.limits.domain, sge.length);
            if ANYWHERE && found.is_none() {
                found = regions.find_usable_beyond(sge.lkey, self.queue.limits.domain, sge.length);
            }
            match found {
                Some(region) => self.cached_region = region,
                None => return false,
            }
        } else if !self.cached_region.fits(sge.length) {
            return false;
        }
        self.cached_region.access.contains(need) && self.cached_region.contains(sge.addr, sge.length)
    }

    /// Remembers the request at the head, and goes on after it.
    #[cfg_attr(not(feature = "small"), inline(always))]
    #[cfg_attr(feature = "small", inline(never))]
    pub(crate) fn remember(&mut self, wr_id: u64, bytes: u32, blocks: u32, opcode: WcOpcode) {
        let (slot, at) = (self.slot, self.head);
        let entries = slot.rings.send;
        if let Some(entry) = entries.get(at) {
            entry.set(SendFacts { wr_id, bytes, blocks: blocks as u16, opcode });
        }
        // Two blocks are common, more are not: a loop here would be unrolled in every caller.
        if blocks > 1 {
            if let Some(entry) = entries.get(at.wrapping_add(1)) {
                entry.clear();
            }
            if blocks > 2 {
                clear_rest(slot, at.wrapping_add(2), blocks.wrapping_sub(2));
            }
        }
        self.head = at.wrapping_add(blocks);
    }
}

/// Records that no request starts in `count` blocks from `at` on.
#[inline(never)]
fn clear_rest(slot: &QpSlot<'_>, at: u32, count: u32) {
    for middle in 0..count {
        if let Some(entry) = slot.rings.send.get(at.wrapping_add(middle)) {
            entry.clear();
        }
    }
}

/// Why a bind whose arguments make sense was not posted.
enum BindFault {
    Refused(BindRefused),
    QueueFull { needed: u32, free: u32, blocks: u32 },
    TooManyPendingBinds,
}

impl BindFault {
    fn into_post_send(self) -> PostSendError {
        match self {
            Self::Refused(refused) => PostSendError::Bind(refused),
            Self::QueueFull { needed, free, blocks } => PostSendError::QueueFull { needed, free, blocks },
            Self::TooManyPendingBinds => PostSendError::TooManyPendingBinds,
        }
    }
}

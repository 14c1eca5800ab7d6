//! Send queues: posting, the checks that the verbs promise, and the record of what is in flight.

use core::cell::Cell;

use crate::FAST_PATH;
use crate::log::{format_as, log_event};
use crate::ring::place;
use crate::shared::{CachedRegion, NO_QP, QpSlot, Shared, check_sge};
use crate::storage::{SendEntry, SendFacts};
use crate::sync::Ordering;
use crate::window::{BindRequest, Binding, CheckedBind, MwBind};
use crate::{
    Access, AtomicOp, AtomicOpcode, BadWr, Bind, BindInfo, BindMwError, BindRefused, DataOp, DataOpcode, DeviceAttr, KeyTag,
    Lkey, MwHandle, MwType, Payload, PdHandle, PostSendError, Provider, QpHandle, QpState, QpType, Remote, Rkey,
    SendBatchError, SendFlags, SendOp, SendRing, SendWr, SendWriter, Sge, SgeFault, WcOpcode,
};

bitflags::bitflags! {
    /// Kinds of send operation.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct OpSet: u8 {
        const SEND = 1;
        const WRITE = 1 << 1;
        const READ = 1 << 2;
        const ATOMIC = 1 << 3;
        /// Binds, invalidations, and the send that invalidates.
        const WINDOW = 1 << 4;
    }
}

impl OpSet {
    /// Returns the requests that can be posted on a transport.
    fn of(qp_type: QpType, device: &DeviceAttr) -> Self {
        let all = match qp_type {
            QpType::Rc | QpType::XrcSend => Self::all(),
            QpType::Uc => Self::SEND | Self::WRITE | Self::WINDOW,
            // It would have SEND, with an address handle.
            QpType::Ud => Self::empty(),
        };
        if device.atomics { all } else { all - Self::ATOMIC }
    }
}

/// Returns the send flags that a transport has.
fn transport_flags(qp_type: QpType) -> SendFlags {
    match qp_type {
        QpType::Rc | QpType::XrcSend => SendFlags::KNOWN,
        QpType::Uc | QpType::Ud => SendFlags::KNOWN - SendFlags::FENCE,
    }
}

/// Returns the maximum message of a device in bytes: 2^31 (IBTA 9.7.7) where the device reports no limit.
fn max_message_of(device: &DeviceAttr) -> u32 {
    match device.max_msg_size {
        0 => 1 << 31,
        max => u32::try_from(max).unwrap_or(u32::MAX).min(1 << 31),
    }
}

/// Returns whether a queue pair of this state takes send requests.
#[inline(always)]
pub(crate) const fn can_send(state: QpState) -> bool {
    matches!(state, QpState::Rts | QpState::Sqd)
}

/// The most SGEs of a request that has empty ones among them.
const MAX_SGES: usize = 64;

/// Flags of requests that the peer does not take notice of and that carry no bytes of their own.
const BASIC: SendFlags = SendFlags::FENCE.union(SendFlags::SIGNALED);
/// Flags of those whose completion at the peer may be a solicited one.
const SOLICITABLE: SendFlags = BASIC.union(SendFlags::SOLICITED);

/// What posting asks of a queue pair and what never changes while it lives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendLimits {
    pub(crate) handle: QpHandle,
    pub(crate) qp_type: QpType,
    pub(crate) pd: PdHandle,
    /// What a request may not have, for one test: [`OpSet`] in bits 0 to 7, send flags in 8 to 15, bit 15 + n: n SGEs,
    /// up to 8.
    disallowed_mask: u32,
    /// SIGNALED, if every request gives a completion.
    always: SendFlags,
    max_message: u32,
    max_inline: u32,
    max_sge: u32,
    max_window: u64,
    /// Blocks of the ring.
    blocks: u32,
}

impl SendLimits {
    pub(crate) fn new(
        handle: QpHandle,
        qp_type: QpType,
        pd: PdHandle,
        sizes: &crate::RingSizes,
        sq_sig_all: bool,
        device: &DeviceAttr,
    ) -> Self {
        let (ops, flags, max_sge) = (OpSet::of(qp_type, device), transport_flags(qp_type), sizes.cap.max_send_sge);
        Self {
            handle,
            qp_type,
            pd,
            disallowed_mask: !(u32::from(ops.bits()) | flags.bits() << 8 | ((1_u32 << max_sge.min(8)).wrapping_sub(1)) << 16),
            always: if sq_sig_all { SendFlags::SIGNALED } else { SendFlags::empty() },
            max_message: max_message_of(device),
            max_inline: sizes.cap.max_inline_data,
            max_sge,
            max_window: device.max_mw_size,
            blocks: sizes.send_blocks,
        }
    }

    /// Returns the flags of a request that is posted with `flags`. The intersection says to the compiler that no flag but
    /// SIGNALED is added, so that it knows the result where it knows `flags`.
    #[inline(always)]
    const fn effective(&self, flags: SendFlags) -> SendFlags {
        flags.union(self.always.intersection(SendFlags::SIGNALED))
    }

    const fn ops(&self) -> OpSet {
        OpSet::from_bits_retain(!self.disallowed_mask as u8)
    }

    const fn flags(&self) -> SendFlags {
        SendFlags::from_bits_retain(!self.disallowed_mask >> 8 & 0xff)
    }
}

/// The state of a send queue: all of it that only one may have at a time.
pub(crate) struct SendState<P: Provider> {
    pub(crate) ring: P::SendRing,
    pub(crate) limits: SendLimits,
    /// Where the next request goes.
    pub(crate) head: Cell<u32>,
    /// Head of the last doorbell.
    pub(crate) doorbell_head: Cell<u32>,
}

/// The send queue of one queue pair, split off from [`crate::Verbs`], for use on any core: see
/// [`crate::Verbs::take_send_queue`].
pub struct SendQueue<'s, P: Provider> {
    pub(crate) state: SendState<P>,
    pub(crate) shared: Shared<'s>,
}

format_as!([P: Provider] SendQueue<'_, P>, "SendQueue({:?})", |this| this.qp());

impl<'s, P: Provider> SendQueue<'s, P> {
    /// Returns the queue pair that it belongs to.
    pub const fn qp(&self) -> QpHandle {
        self.state.limits.handle
    }

    /// Opens the queue for requests that share a doorbell; the state of the queue pair is checked once, here.
    ///
    /// # Errors
    /// The queue pair does not send in its state.
    #[inline(always)]
    pub fn batch(&mut self) -> Result<SendBatch<'_, P>, SendBatchError> {
        SendBatch::open(&mut self.state, &self.shared)
    }

    /// Posts one request and rings the doorbell.
    ///
    /// # Errors
    /// The request is refused, and the queue is as before.
    #[inline]
    pub fn post_send(&mut self, wr: &SendWr<'_>) -> Result<(), PostSendError> {
        post_one(&mut self.state, &self.shared, wr)
    }

    /// Posts requests up to the first that fails, with one doorbell; that one is named and not posted.
    ///
    /// # Errors
    /// A request is refused.
    pub fn post_send_list(&mut self, list: &[SendWr<'_>]) -> Result<(), BadWr<PostSendError>> {
        post_list(&mut self.state, &self.shared, list)
    }

    /// Binds a type 1 window: [`crate::Verbs::bind_mw`].
    ///
    /// # Errors
    /// As there.
    pub fn bind_mw(&mut self, mw: MwHandle, bind: &MwBind) -> Result<Rkey, BindMwError> {
        bind_one(&mut self.state, &self.shared, mw, bind)
    }

    /// Notifies the device of requests whose batch was forgotten before its end, in any state of the queue pair: then they
    /// complete, if only as flushed. Nothing if there are none.
    pub fn ring(&mut self) {
        ring_unannounced(&mut self.state, &self.shared);
    }
}

/// Returns why a queue pair takes no sends.
#[cold]
#[inline(never)]
fn refusal_to_post(slot: &QpSlot<'_>) -> PostSendError {
    match slot.loss() {
        Some(loss) => PostSendError::DeviceLost { loss },
        None => PostSendError::NotReady { state: slot.state() },
    }
}

/// Implements [`SendQueue::post_send`].
#[inline(always)]
pub(crate) fn post_one<P: Provider>(
    state: &mut SendState<P>,
    shared: &Shared<'_>,
    wr: &SendWr<'_>,
) -> Result<(), PostSendError> {
    let slot = slot_of(shared, state.limits.handle);
    if !slot.can_send() {
        return Err(refusal_to_post(slot));
    }
    let mut open = PostCursor::new(state, shared);
    if !open.post_fast(wr) {
        return append_copy(state, shared, wr, true);
    }
    open.ring_new();
    Ok(())
}

/// Implements [`SendQueue::post_send_list`]. Not part of the caller: the loop wants every register.
#[inline(never)]
pub(crate) fn post_list<P: Provider>(
    state: &mut SendState<P>,
    shared: &Shared<'_>,
    list: &[SendWr<'_>],
) -> Result<(), BadWr<PostSendError>> {
    let slot = slot_of(shared, state.limits.handle);
    if !slot.can_send() {
        return Err(BadWr { index: 0, error: refusal_to_post(slot) });
    }
    let mut open = PostCursor::new(state, shared);
    let mut result = Ok(());
    let mut rest = list.iter();
    while let Some(wr) = rest.next() {
        if !open.post_fast(wr)
            && let Err(error) = open.call(|state, shared| append(state, shared, wr, false))
        {
            result = Err(BadWr { index: list.len().wrapping_sub(rest.len()).wrapping_sub(1), error });
            break;
        }
    }
    open.ring();
    result
}

/// Does the work of [`append`] for requests that [`PostCursor::post_fast`] does not post. What that may post goes on as a copy,
/// with copies of its SGEs, so that the caller's own need not lie in memory for those that are posted.
#[inline(always)]
fn append_copy<P: Provider>(
    state: &SendState<P>,
    shared: &Shared<'_>,
    wr: &SendWr<'_>,
    ring: bool,
) -> Result<(), PostSendError> {
    let again = |op| append(state, shared, &SendWr { op, ..*wr }, ring);
    match wr.op {
        SendOp::Write { payload: Payload::Sges(&[sge]), remote } if FAST_PATH => {
            again(SendOp::Write { payload: Payload::Sges(&[sge]), remote })
        }
        SendOp::Write { payload: Payload::Sges(&[one, two]), remote } if FAST_PATH => {
            again(SendOp::Write { payload: Payload::Sges(&[one, two]), remote })
        }
        SendOp::Send { payload: Payload::Sges(&[sge]) } if FAST_PATH => again(SendOp::Send { payload: Payload::Sges(&[sge]) }),
        SendOp::Write { payload: Payload::Inline(bytes), remote } if FAST_PATH => {
            again(SendOp::Write { payload: Payload::Inline(bytes), remote })
        }
        _ => append(state, shared, wr, ring),
    }
}

/// Posts one request of any kind, on what is kept; rings the doorbell if `ring`. Each operation has code of its own here, which
/// knows what it is (not with the feature `small`: there all share one copy).
#[inline(never)]
fn append<P: Provider>(state: &SendState<P>, shared: &Shared<'_>, wr: &SendWr<'_>, ring: bool) -> Result<(), PostSendError> {
    let mut open = PostCursor::new(state, shared);
    let posted = open.put_wr(wr);
    open.finish(ring);
    posted
}

/// Implements [`SendQueue::bind_mw`].
pub(crate) fn bind_one<P: Provider>(
    state: &mut SendState<P>,
    shared: &Shared<'_>,
    mw: MwHandle,
    bind: &MwBind,
) -> Result<Rkey, BindMwError> {
    // The state comes after the arguments in the order of checks.
    let bound = append_bind_mw(state, shared, mw, bind);
    PostCursor::new(state, shared).ring();
    bound
}

/// Implements [`SendQueue::ring`].
pub(crate) fn ring_unannounced<P: Provider>(state: &mut SendState<P>, shared: &Shared<'_>) {
    PostCursor::new(state, shared).ring();
}

/// The send queue of one queue pair, open for requests that one doorbell announces.
///
/// [`Self::ring`] rings the doorbell, and so does the end of the batch. A batch may be forgotten (`mem::forget`). Then its
/// requests since the last doorbell wait for the next one: all up to its last bind, and perhaps some after that. The rest is
/// not posted.
#[must_use = "the doorbell rings when the batch ends"]
pub struct SendBatch<'a, P: Provider> {
    open: PostCursor<'a, P>,
}

format_as!([P: Provider] SendBatch<'_, P>, "SendBatch({:?})", |this| this.open.state.limits.handle);

/// The working state of a batch. It lives in registers, so nothing that is called and not inlined gets a reference to it: calls
/// work on what is kept in `state` ([`Self::keep`], [`Self::resume`]). Only what changes from request to request is here: the
/// rest costs no more where it lies.
struct PostCursor<'a, P: Provider> {
    writer: <P::SendRing as SendRing>::Writer<'a>,
    state: &'a SendState<P>,
    shared: &'a Shared<'a>,
    slot: &'a QpSlot<'a>,
    /// Where the next request goes.
    head: u32,
    /// The block that `head` may not go past.
    end: u32,
    /// The region that the last SGE named, with its domain found good.
    cached_region: CachedRegion,
}

/// Returns the slot of a queue pair whose queue the caller has.
#[inline(always)]
pub(crate) fn slot_of<'a>(shared: &Shared<'a>, handle: QpHandle) -> &'a QpSlot<'a> {
    match shared.qps.get(usize::from(handle.index())) {
        Some(slot) => slot,
        None => &NO_QP,
    }
}

impl<'a, P: Provider> SendBatch<'a, P> {
    #[inline(always)]
    pub(crate) fn open(state: &'a mut SendState<P>, shared: &'a Shared<'a>) -> Result<Self, SendBatchError> {
        let slot = slot_of(shared, state.limits.handle);
        if slot.can_send() {
            Ok(Self { open: PostCursor::new(state, shared) })
        } else {
            Err(SendBatchError::NotReady { state: slot.state() })
        }
    }

    /// Posts a request.
    ///
    /// # Errors
    /// The request is refused, and the queue is as before.
    #[cfg_attr(not(feature = "small"), inline(always))]
    pub fn post(&mut self, wr: &SendWr<'_>) -> Result<(), PostSendError> {
        if self.open.post_fast(wr) { Ok(()) } else { self.open.call(|state, shared| append_copy(state, shared, wr, false)) }
    }

    /// Posts a SEND.
    ///
    /// # Errors
    /// Same as [`Self::post`].
    #[cfg_attr(not(feature = "small"), inline(always))]
    pub fn send(&mut self, wr_id: u64, flags: SendFlags, sges: &[Sge]) -> Result<(), PostSendError> {
        self.open.put_sges(wr_id, flags, DataOp::send(), sges)
    }

    /// Posts a SEND of bytes that are copied now.
    ///
    /// # Errors
    /// Same as [`Self::post`].
    #[cfg_attr(not(feature = "small"), inline(always))]
    pub fn send_inline(&mut self, wr_id: u64, flags: SendFlags, bytes: &[u8]) -> Result<(), PostSendError> {
        self.open.put_inline(wr_id, flags, DataOp::send(), bytes)
    }

    /// Posts a SEND_WITH_IMM; `imm` in network byte order.
    ///
    /// # Errors
    /// Same as [`Self::post`].
    #[cfg_attr(not(feature = "small"), inline(always))]
    pub fn send_imm(&mut self, wr_id: u64, flags: SendFlags, imm: [u8; 4], sges: &[Sge]) -> Result<(), PostSendError> {
        self.open.put_sges(wr_id, flags, DataOp::send_imm(imm), sges)
    }

    /// Posts a SEND_WITH_IMM of bytes that are copied now; `imm` in network byte order.
    ///
    /// # Errors
    /// Same as [`Self::post`].
    #[cfg_attr(not(feature = "small"), inline(always))]
    pub fn send_imm_inline(&mut self, wr_id: u64, flags: SendFlags, imm: [u8; 4], bytes: &[u8]) -> Result<(), PostSendError> {
        self.open.put_inline(wr_id, flags, DataOp::send_imm(imm), bytes)
    }

    /// Posts a SEND_WITH_INV of the peer's type 2 window with key `rkey`.
    ///
    /// # Errors
    /// Same as [`Self::post`].
    #[cfg_attr(not(feature = "small"), inline(always))]
    pub fn send_inv(&mut self, wr_id: u64, flags: SendFlags, rkey: Rkey, sges: &[Sge]) -> Result<(), PostSendError> {
        self.open.put_sges(wr_id, flags, DataOp::send_inv(rkey), sges)
    }

    /// Posts a SEND_WITH_INV of bytes that are copied now.
    ///
    /// # Errors
    /// Same as [`Self::post`].
    #[cfg_attr(not(feature = "small"), inline(always))]
    pub fn send_inv_inline(&mut self, wr_id: u64, flags: SendFlags, rkey: Rkey, bytes: &[u8]) -> Result<(), PostSendError> {
        self.open.put_inline(wr_id, flags, DataOp::send_inv(rkey), bytes)
    }

    /// Posts an RDMA_WRITE.
    ///
    /// # Errors
    /// Same as [`Self::post`].
    #[cfg_attr(not(feature = "small"), inline(always))]
    pub fn write(&mut self, wr_id: u64, flags: SendFlags, remote: Remote, sges: &[Sge]) -> Result<(), PostSendError> {
        self.open.put_sges(wr_id, flags, DataOp::write(remote), sges)
    }

    /// Posts an RDMA_WRITE of bytes that are copied now.
    ///
    /// # Errors
    /// Same as [`Self::post`].
    #[cfg_attr(not(feature = "small"), inline(always))]
    pub fn write_inline(&mut self, wr_id: u64, flags: SendFlags, remote: Remote, bytes: &[u8]) -> Result<(), PostSendError> {
        self.open.put_inline(wr_id, flags, DataOp::write(remote), bytes)
    }

    /// Posts an RDMA_WRITE_WITH_IMM; `imm` in network byte order.
    ///
    /// # Errors
    /// Same as [`Self::post`].
    #[cfg_attr(not(feature = "small"), inline(always))]
    pub fn write_imm(
        &mut self,
        wr_id: u64,
        flags: SendFlags,
        remote: Remote,
        imm: [u8; 4],
        sges: &[Sge],
    ) -> Result<(), PostSendError> {
        self.open.put_sges(wr_id, flags, DataOp::write_imm(remote, imm), sges)
    }

    /// Posts an RDMA_WRITE_WITH_IMM of bytes that are copied now; `imm` in network byte order.
    ///
    /// # Errors
    /// Same as [`Self::post`].
    #[cfg_attr(not(feature = "small"), inline(always))]
    pub fn write_imm_inline(
        &mut self,
        wr_id: u64,
        flags: SendFlags,
        remote: Remote,
        imm: [u8; 4],
        bytes: &[u8],
    ) -> Result<(), PostSendError> {
        self.open.put_inline(wr_id, flags, DataOp::write_imm(remote, imm), bytes)
    }

    /// Posts an RDMA_READ into `sges`.
    ///
    /// # Errors
    /// Same as [`Self::post`].
    #[cfg_attr(not(feature = "small"), inline(always))]
    pub fn read(&mut self, wr_id: u64, flags: SendFlags, remote: Remote, sges: &[Sge]) -> Result<(), PostSendError> {
        self.open.put_sges(wr_id, flags, DataOp::read(remote), sges)
    }

    /// Posts an ATOMIC_CMP_AND_SWP; `sge` gets the old value.
    ///
    /// # Errors
    /// Same as [`Self::post`].
    #[cfg_attr(not(feature = "small"), inline(always))]
    pub fn compare_swap(
        &mut self,
        wr_id: u64,
        flags: SendFlags,
        remote: Remote,
        compare: u64,
        swap: u64,
        sge: &Sge,
    ) -> Result<(), PostSendError> {
        self.open.put_atomic(wr_id, flags, AtomicOp::compare_swap(remote, compare, swap), *sge)
    }

    /// Posts an ATOMIC_FETCH_AND_ADD; `sge` gets the old value.
    ///
    /// # Errors
    /// Same as [`Self::post`].
    #[cfg_attr(not(feature = "small"), inline(always))]
    pub fn fetch_add(
        &mut self,
        wr_id: u64,
        flags: SendFlags,
        remote: Remote,
        add: u64,
        sge: &Sge,
    ) -> Result<(), PostSendError> {
        self.open.put_atomic(wr_id, flags, AtomicOp::fetch_add(remote, add), *sge)
    }

    /// Posts a type 1 bind: [`crate::Verbs::bind_mw`] as part of a batch.
    ///
    /// # Errors
    /// As there.
    pub fn bind_mw(&mut self, mw: MwHandle, bind: &MwBind) -> Result<Rkey, BindMwError> {
        self.open.call(|state, shared| append_bind_mw(state, shared, mw, bind))
    }

    /// Posts a BIND_MW of a type 2 window; `tag` is that of its new key.
    ///
    /// # Errors
    /// Same as [`Self::post`].
    pub fn bind(
        &mut self,
        wr_id: u64,
        flags: SendFlags,
        mw: MwHandle,
        tag: KeyTag,
        info: &BindInfo,
    ) -> Result<(), PostSendError> {
        self.open.call(|state, shared| append_bind_type2(state, shared, wr_id, flags, mw, tag, info))
    }

    /// Posts a LOCAL_INV of the type 2 window with key `rkey`.
    ///
    /// # Errors
    /// Same as [`Self::post`].
    pub fn local_inv(&mut self, wr_id: u64, flags: SendFlags, rkey: Rkey) -> Result<(), PostSendError> {
        self.open.call(|state, shared| append_local_inv(state, shared, wr_id, flags, rkey))
    }

    /// Notifies the device of every request posted so far, with one doorbell; none if there is nothing new.
    #[inline(always)]
    pub fn ring(&mut self) {
        self.open.ring();
    }

    /// Returns the blocks that are free in the send queue.
    pub fn free_blocks(&mut self) -> u32 {
        self.open.end = free_end(self.open.slot, &self.open.state.limits);
        self.open.end.wrapping_sub(self.open.head)
    }
}

/// Notifies the device of every request before block `head`, if it does not know of them.
#[inline(always)]
fn ring_from<'a, P: Provider>(
    writer: &mut <P::SendRing as SendRing>::Writer<'a>,
    state: &'a SendState<P>,
    slot: &QpSlot<'_>,
    head: u32,
) {
    if head != state.doorbell_head.get() {
        ring_new(writer, state, slot, head);
    }
}

/// Rings the doorbell for new requests.
#[cfg_attr(not(feature = "small"), inline(always))]
#[cfg_attr(feature = "small", inline(never))]
fn ring_new<'a, P: Provider>(
    writer: &mut <P::SendRing as SendRing>::Writer<'a>,
    state: &'a SendState<P>,
    slot: &QpSlot<'_>,
    head: u32,
) {
    // The poller may see a completion as soon as the doorbell rings.
    slot.send.head.store(head, Ordering::Release);
    writer.ring(state.doorbell_head.get(), head);
    state.head.set(head);
    state.doorbell_head.set(head);
}

/// Returns the block that the head may not go past now.
#[inline(always)]
fn free_end(slot: &QpSlot<'_>, limits: &SendLimits) -> u32 {
    slot.send.tail.load(Ordering::Acquire).wrapping_add(limits.blocks)
}

/// Runs [`SendBatch::bind_mw`] on the saved state.
#[inline(never)]
fn append_bind_mw<P: Provider>(
    state: &SendState<P>,
    shared: &Shared<'_>,
    mw: MwHandle,
    bind: &MwBind,
) -> Result<Rkey, BindMwError> {
    let mut open = PostCursor::new(state, shared);
    let bound = open.put_bind_mw(mw, bind);
    // The window's state counts on the bind, so it stays in the queue even if the batch is forgotten.
    open.save();
    bound
}

/// Runs [`SendBatch::bind`] on the saved state.
#[inline(never)]
fn append_bind_type2<P: Provider>(
    state: &SendState<P>,
    shared: &Shared<'_>,
    wr_id: u64,
    flags: SendFlags,
    mw: MwHandle,
    tag: KeyTag,
    info: &BindInfo,
) -> Result<(), PostSendError> {
    let mut open = PostCursor::new(state, shared);
    let posted = open.put_bind_type2(wr_id, flags, mw, tag, info);
    open.save();
    posted
}

/// Runs [`SendBatch::local_inv`] on the saved state.
#[inline(never)]
fn append_local_inv<P: Provider>(
    state: &SendState<P>,
    shared: &Shared<'_>,
    wr_id: u64,
    flags: SendFlags,
    rkey: Rkey,
) -> Result<(), PostSendError> {
    let mut open = PostCursor::new(state, shared);
    let posted = open.put_local_inv(wr_id, flags, rkey);
    open.save();
    posted
}

/// Posts what [`PostCursor::try_sges`] does not: requests without SGEs, with SGEs of no byte, or with regions outside the first
/// slot of their search. Or returns what is wrong. Takes values that go in registers: a reference would keep what the caller
/// has in memory.
#[cold]
#[inline(never)]
fn append_sges_slow<P: Provider>(
    state: &SendState<P>,
    shared: &Shared<'_>,
    (wr_id, flags): (u64, SendFlags),
    opcode: DataOpcode,
    remote: Remote,
    immediate: u32,
    sges: &[Sge],
) -> Result<(), PostSendError> {
    let mut open = PostCursor::new(state, shared);
    let posted = open.put_any_sges((wr_id, flags), DataOp { opcode, remote, immediate }, sges);
    open.save();
    posted
}

/// Posts what [`PostCursor::try_inline`] does not: requests without a byte. Or returns what is wrong. Takes values, as
/// [`append_sges_slow`].
#[cold]
#[inline(never)]
fn append_inline_slow<P: Provider>(
    state: &SendState<P>,
    shared: &Shared<'_>,
    (wr_id, flags): (u64, SendFlags),
    opcode: DataOpcode,
    remote: Remote,
    immediate: u32,
    bytes: &[u8],
) -> Result<(), PostSendError> {
    let mut open = PostCursor::new(state, shared);
    let posted = open.put_any_inline((wr_id, flags), DataOp { opcode, remote, immediate }, bytes);
    open.save();
    posted
}

impl<'a, P: Provider> PostCursor<'a, P> {
    #[cfg_attr(not(feature = "small"), inline(always))]
    #[cfg_attr(feature = "small", inline(never))]
    fn new(state: &'a SendState<P>, shared: &'a Shared<'a>) -> Self {
        let SendState { ring, limits, head, .. } = state;
        let slot = slot_of(shared, limits.handle);
        let (end, head) = (free_end(slot, limits), head.get());
        Self { writer: ring.writer(), state, shared, slot, head, end, cached_region: CachedRegion::NONE }
    }

    /// Posts one of the short requests that most programs live on, as part of the caller. `false`: it is another one, or
    /// the fast path does not take it; nothing has happened, and [`append`] takes it.
    #[inline(always)]
    fn post_fast(&mut self, wr: &SendWr<'_>) -> bool {
        let (id, flags) = (wr.wr_id, wr.flags);
        match wr.op {
            SendOp::Write { payload: Payload::Sges(&[sge]), remote } if FAST_PATH => {
                self.try_sges(id, flags, DataOp::write(remote), &[sge])
            }
            SendOp::Write { payload: Payload::Sges(&[one, two]), remote } if FAST_PATH => {
                self.try_sges(id, flags, DataOp::write(remote), &[one, two])
            }
            SendOp::Send { payload: Payload::Sges(&[sge]) } if FAST_PATH => self.try_sges(id, flags, DataOp::send(), &[sge]),
            SendOp::Write { payload: Payload::Inline(bytes), remote } if FAST_PATH => {
                self.try_inline(id, flags, DataOp::write(remote), bytes)
            }
            _ => false,
        }
    }

    /// Keeps what was posted, also without a doorbell.
    #[inline(always)]
    fn save(&mut self) {
        self.state.head.set(self.head);
        self.writer.close();
    }

    /// Ends a call: rings the doorbell, or keeps what was posted.
    #[inline(always)]
    fn finish(&mut self, ring: bool) {
        if ring { self.ring() } else { self.save() }
    }

    /// Goes on with what is kept.
    #[inline(always)]
    fn reload(&mut self) {
        self.writer = self.state.ring.writer();
        self.head = self.state.head.get();
        self.end = free_end(self.slot, &self.state.limits);
    }

    /// Calls something that works on what is kept.
    #[inline(always)]
    fn call<R>(&mut self, call: impl FnOnce(&'a SendState<P>, &'a Shared<'a>) -> R) -> R {
        self.save();
        let result = call(self.state, self.shared);
        self.reload();
        result
    }

    /// Notifies the device of what it does not know yet.
    #[inline(always)]
    fn ring(&mut self) {
        ring_from(&mut self.writer, self.state, self.slot, self.head);
    }

    /// Rings the doorbell for requests since the last one.
    #[inline(always)]
    fn ring_new(&mut self) {
        ring_new(&mut self.writer, self.state, self.slot, self.head);
    }

    /// Returns whether the transport has the operation and its flags.
    #[inline(always)]
    fn admits(&self, op: OpSet, legal: SendFlags, flags: SendFlags) -> bool {
        let needs = u32::from(op.bits()) | (flags.bits() & 0xff) << 8;
        legal.contains(flags) && self.state.limits.disallowed_mask & needs == 0
    }

    /// Returns whether `blocks` blocks are free; reads `tail` again if they are not.
    #[inline(always)]
    fn has_room(&mut self, blocks: u32) -> bool {
        if self.end.wrapping_sub(self.head) < blocks {
            self.end = free_end(self.slot, &self.state.limits);
            return self.end.wrapping_sub(self.head) >= blocks;
        }
        true
    }

    /// Returns the error where [`Self::has_room`] has found no room.
    #[inline(always)]
    fn full(&self, needed: u32) -> PostSendError {
        PostSendError::QueueFull { needed, free: self.end.wrapping_sub(self.head) }
    }

    /// Posts a request of any kind. Each has code of its own, which knows what it is; or all share one copy. One `match` for
    /// both: a second one costs every request a jump.
    #[inline(always)]
    fn put_wr(&mut self, wr: &SendWr<'_>) -> Result<(), PostSendError> {
        let (id, flags) = (wr.wr_id, wr.flags);
        let (op, payload) = match wr.op {
            SendOp::Send { payload } if FAST_PATH => return self.put(id, flags, DataOp::send(), payload),
            SendOp::SendWithImm { payload, imm } if FAST_PATH => return self.put(id, flags, DataOp::send_imm(imm), payload),
            SendOp::SendWithInv { payload, rkey } if FAST_PATH => return self.put(id, flags, DataOp::send_inv(rkey), payload),
            SendOp::Write { payload, remote } if FAST_PATH => return self.put(id, flags, DataOp::write(remote), payload),
            SendOp::WriteWithImm { payload, remote, imm } if FAST_PATH => {
                return self.put(id, flags, DataOp::write_imm(remote, imm), payload);
            }
            SendOp::Read { sges, remote } if FAST_PATH => return self.put_sges(id, flags, DataOp::read(remote), sges),
            SendOp::Send { payload } => (DataOp::send(), payload),
            SendOp::SendWithImm { payload, imm } => (DataOp::send_imm(imm), payload),
            SendOp::SendWithInv { payload, rkey } => (DataOp::send_inv(rkey), payload),
            SendOp::Write { payload, remote } => (DataOp::write(remote), payload),
            SendOp::WriteWithImm { payload, remote, imm } => (DataOp::write_imm(remote, imm), payload),
            SendOp::Read { sges, remote } => (DataOp::read(remote), Payload::Sges(sges)),
            SendOp::CompareSwap { sge, remote, compare, swap } => {
                return self.put_atomic(id, flags, AtomicOp::compare_swap(remote, compare, swap), sge);
            }
            SendOp::FetchAdd { sge, remote, add } => {
                return self.put_atomic(id, flags, AtomicOp::fetch_add(remote, add), sge);
            }
            SendOp::BindMw { mw, tag, info } => {
                return self.call(|state, shared| append_bind_type2(state, shared, id, flags, mw, tag, &info));
            }
            SendOp::LocalInv { rkey } => {
                return self.call(|state, shared| append_local_inv(state, shared, id, flags, rkey));
            }
        };
        self.put(id, flags, op, payload)
    }

    #[cfg_attr(not(feature = "small"), inline(always))]
    fn put(&mut self, wr_id: u64, flags: SendFlags, op: DataOp, payload: Payload<'_>) -> Result<(), PostSendError> {
        match payload {
            Payload::Sges(sges) => self.put_sges(wr_id, flags, op, sges),
            Payload::Inline(bytes) => self.put_inline(wr_id, flags, op, bytes),
        }
    }

    #[cfg_attr(not(feature = "small"), inline(always))]
    fn put_sges(&mut self, wr_id: u64, flags: SendFlags, op: DataOp, sges: &[Sge]) -> Result<(), PostSendError> {
        if !FAST_PATH {
            return self.put_any_sges((wr_id, flags), op, sges);
        }
        // Each SGE is read twice, to be checked and to be written. The few of a short request are copied before, into
        // registers; what is called gets another copy.
        let posted = match *sges {
            [one] => self.try_sges(wr_id, flags, op, &[one]),
            [one, two] => self.try_sges(wr_id, flags, op, &[one, two]),
            _ => self.try_sges(wr_id, flags, op, sges),
        };
        if posted {
            return Ok(());
        }
        let (request, DataOp { opcode, remote, immediate }) = ((wr_id, flags), op);
        self.save();
        let (state, shared) = (self.state, self.shared);
        let posted = match *sges {
            [one] => append_sges_slow(state, shared, request, opcode, remote, immediate, &[one]),
            [one, two] => append_sges_slow(state, shared, request, opcode, remote, immediate, &[one, two]),
            _ => append_sges_slow(state, shared, request, opcode, remote, immediate, sges),
        };
        self.reload();
        posted
    }

    /// Posts any request with SGEs, or finds out what is wrong with it.
    #[cfg_attr(not(feature = "small"), inline(always))]
    fn put_any_sges(&mut self, (wr_id, flags): (u64, SendFlags), op: DataOp, sges: &[Sge]) -> Result<(), PostSendError> {
        let kind = OpProperties::of(op.opcode);
        if let Some(error) = refusal(&self.state.limits, kind.set, kind.legal(), flags, kind.opcode, sges.len()) {
            return Err(error);
        }
        let mut filled = heapless::Vec::<Sge, MAX_SGES>::new();
        let bytes = self.collect_sges(kind.need, sges, &mut filled)?;
        let sges = if filled.is_empty() && bytes != 0 { sges } else { &filled };
        let blocks = <P::SendRing as SendRing>::Writer::<'_>::sge_blocks(op.opcode, sges.len());
        if !self.has_room(blocks) {
            return Err(self.full(blocks));
        }
        self.write_sges(wr_id, flags, op, sges, bytes, blocks);
        Ok(())
    }

    /// Posts a common request. `false`: the fast path does not take it, and nothing has happened.
    #[inline(always)]
    fn try_sges(&mut self, wr_id: u64, flags: SendFlags, op: DataOp, sges: &[Sge]) -> bool {
        let kind = OpProperties::of(op.opcode);
        let count = match sges.len() {
            0 => 0,
            few @ 1..=8 => 1 << few.wrapping_add(15),
            many if many <= self.state.limits.max_sge as usize => 0,
            _ => return false,
        };
        let needs = u32::from(kind.set.bits()) | (flags.bits() & 0xff) << 8 | count;
        if !kind.legal().contains(flags) || self.state.limits.disallowed_mask & needs != 0 {
            return false;
        }
        let mut bytes = 0_u64;
        for sge in sges {
            if !self.contains(sge, kind.need) {
                return false;
            }
            bytes = bytes.wrapping_add(u64::from(sge.length));
        }
        let blocks = <P::SendRing as SendRing>::Writer::<'a>::sge_blocks(op.opcode, sges.len());
        if sges.len() > 1 && bytes > u64::from(self.state.limits.max_message) || !self.has_room(blocks) {
            return false;
        }
        self.write_sges(wr_id, flags, op, sges, bytes, blocks);
        true
    }

    /// Writes a request that was checked.
    #[cfg_attr(not(feature = "small"), inline(always))]
    fn write_sges(&mut self, wr_id: u64, flags: SendFlags, op: DataOp, sges: &[Sge], bytes: u64, blocks: u32) {
        self.writer.put_sges(self.head, &op, sges, self.state.limits.effective(flags));
        self.remember(wr_id, bytes as u32, blocks, OpProperties::of(op.opcode).opcode);
    }

    /// Looks at the SGEs that name bytes, and collects them if there are others; gives how many bytes all have.
    fn collect_sges(
        &self,
        need: Access,
        sges: &[Sge],
        filled: &mut heapless::Vec<Sge, MAX_SGES>,
    ) -> Result<u64, PostSendError> {
        let SendLimits { pd, max_message: max, .. } = self.state.limits;
        let has_empty = sges.iter().any(|sge| sge.length == 0);
        let mut bytes = 0_u64;
        for (index, sge) in sges.iter().enumerate().filter(|(_, sge)| sge.length != 0) {
            if let Err(fault) = check_sge(&self.shared.regions, pd.index(), need, sge) {
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

    #[cfg_attr(not(feature = "small"), inline(always))]
    fn put_inline(&mut self, wr_id: u64, flags: SendFlags, op: DataOp, bytes: &[u8]) -> Result<(), PostSendError> {
        if !FAST_PATH {
            return self.put_any_inline((wr_id, flags), op, bytes);
        }
        if self.try_inline(wr_id, flags, op, bytes) {
            return Ok(());
        }
        self.save();
        let DataOp { opcode, remote, immediate } = op;
        let posted = append_inline_slow(self.state, self.shared, (wr_id, flags), opcode, remote, immediate, bytes);
        self.reload();
        posted
    }

    /// Posts any request with bytes inline, or finds out what is wrong with it.
    #[cfg_attr(not(feature = "small"), inline(always))]
    fn put_any_inline(&mut self, (wr_id, flags): (u64, SendFlags), op: DataOp, bytes: &[u8]) -> Result<(), PostSendError> {
        let (kind, max) = (OpProperties::of(op.opcode), self.state.limits.max_inline);
        if let Some(error) = refusal(&self.state.limits, kind.set, kind.legal_inline(), flags, kind.opcode, 0) {
            return Err(error);
        }
        if bytes.len() > max as usize {
            return Err(PostSendError::InlineSize { length: bytes.len(), max });
        }
        let blocks = <P::SendRing as SendRing>::Writer::<'_>::inline_blocks(op.opcode, bytes.len());
        if !self.has_room(blocks) {
            return Err(self.full(blocks));
        }
        self.write_inline(wr_id, flags, op, bytes, blocks);
        Ok(())
    }

    /// Posts a request with bytes inline. `false`: it has no byte, or is refused, and nothing has happened.
    #[inline(always)]
    fn try_inline(&mut self, wr_id: u64, flags: SendFlags, op: DataOp, bytes: &[u8]) -> bool {
        let kind = OpProperties::of(op.opcode);
        // No byte and too many bytes in one comparison.
        let too_long = bytes.len().wrapping_sub(1) >= self.state.limits.max_inline as usize;
        if too_long || !self.admits(kind.set, kind.legal_inline(), flags) {
            return false;
        }
        let blocks = <P::SendRing as SendRing>::Writer::<'a>::inline_blocks(op.opcode, bytes.len());
        if !self.has_room(blocks) {
            return false;
        }
        self.write_inline(wr_id, flags, op, bytes, blocks);
        true
    }

    /// Writes a request that was checked.
    #[inline(always)]
    fn write_inline(&mut self, wr_id: u64, flags: SendFlags, op: DataOp, bytes: &[u8], blocks: u32) {
        self.writer.put_inline(self.head, &op, bytes, self.state.limits.effective(flags));
        self.remember(wr_id, bytes.len() as u32, blocks, OpProperties::of(op.opcode).opcode);
    }

    #[cfg_attr(not(feature = "small"), inline(always))]
    fn put_atomic(&mut self, wr_id: u64, flags: SendFlags, op: AtomicOp, sge: Sge) -> Result<(), PostSendError> {
        let opcode = match op.opcode {
            AtomicOpcode::CompareSwap => WcOpcode::CompSwap,
            AtomicOpcode::FetchAdd => WcOpcode::FetchAdd,
        };
        let limits = &self.state.limits;
        if !self.admits(OpSet::ATOMIC, BASIC, flags) || limits.max_sge == 0 {
            return Err(refused(limits, OpSet::ATOMIC, BASIC, flags, opcode, 1));
        }
        if sge.length != 8 {
            return Err(PostSendError::AtomicLength { length: sge.length });
        }
        if !op.remote.addr.is_multiple_of(8) {
            return Err(PostSendError::AtomicAlignment { addr: op.remote.addr });
        }
        if !(FAST_PATH && self.contains(&sge, Access::LOCAL_WRITE))
            && let Some(fault) = fault_of(self.shared, limits.pd, Access::LOCAL_WRITE, sge.addr, sge.length, sge.lkey)
        {
            return Err(PostSendError::Sge { index: 0, lkey: sge.lkey, fault });
        }
        let blocks = <P::SendRing as SendRing>::Writer::<'a>::ATOMIC_BLOCKS;
        if !self.has_room(blocks) {
            return Err(self.full(blocks));
        }
        self.writer.put_atomic(self.head, &op, &sge, limits.effective(flags));
        self.remember(wr_id, 8, blocks, opcode);
        Ok(())
    }

    fn put_bind_mw(&mut self, mw: MwHandle, bind: &MwBind) -> Result<Rkey, BindMwError> {
        let qp_type = self.state.limits.qp_type;
        let binding = Binding { mr: bind.mr, addr: bind.addr, length: bind.length, access: bind.access };
        let request = self.bind_request(mw, MwType::Type1, &binding, None);
        let shared = self.shared;
        shared.windows.with(|windows| {
            windows.get(mw).ok_or(BindRefused::StaleWindow).map_err(BindMwError::Refused)?;
            if !self.state.limits.ops().contains(OpSet::WINDOW) {
                return Err(BindMwError::Transport { qp_type });
            }
            windows.check_arguments(shared, &request).map_err(BindMwError::Refused)?;
            let flags = bind.flags.difference(BASIC & self.state.limits.flags());
            if !flags.is_empty() {
                return Err(BindMwError::Flags { flags });
            }
            let state = self.slot.state();
            if !can_send(state) {
                return Err(match self.slot.loss() {
                    Some(loss) => BindMwError::DeviceLost { loss },
                    None => BindMwError::NotReady { state },
                });
            }
            self.put_bind(windows, bind.wr_id, bind.flags, &request).map_err(|fault| match fault {
                BindFault::Refused(refused) => BindMwError::Refused(refused),
                BindFault::QueueFull { needed, free } => BindMwError::QueueFull { needed, free },
                BindFault::TooManyPendingBinds => BindMwError::TooManyPendingBinds,
            })
        })
    }

    fn put_bind_type2(
        &mut self,
        wr_id: u64,
        flags: SendFlags,
        mw: MwHandle,
        tag: KeyTag,
        info: &BindInfo,
    ) -> Result<(), PostSendError> {
        if !self.admits(OpSet::WINDOW, BASIC, flags) {
            return Err(refused(&self.state.limits, OpSet::WINDOW, BASIC, flags, WcOpcode::BindMw, 0));
        }
        let binding = Binding { mr: info.mr, addr: info.addr, length: info.length, access: info.access };
        let request = self.bind_request(mw, MwType::Type2, &binding, Some(tag));
        let shared = self.shared;
        shared.windows.with(|windows| {
            windows.check_arguments(shared, &request).map_err(PostSendError::Bind)?;
            self.put_bind(windows, wr_id, flags, &request).map(drop).map_err(BindFault::into_post_send)
        })
    }

    fn put_local_inv(&mut self, wr_id: u64, flags: SendFlags, rkey: Rkey) -> Result<(), PostSendError> {
        if !self.admits(OpSet::WINDOW, BASIC, flags) {
            return Err(refused(&self.state.limits, OpSet::WINDOW, BASIC, flags, WcOpcode::LocalInv, 0));
        }
        let shared = self.shared;
        shared.windows.with(|windows| {
            let checked = windows.check_invalidate(self.state.limits.pd, rkey).map_err(PostSendError::Bind)?;
            let blocks = <P::SendRing as SendRing>::Writer::<'a>::LOCAL_INV_BLOCKS;
            self.check_bind_room(windows, blocks).map_err(BindFault::into_post_send)?;
            self.writer.put_local_inv(self.head, rkey, self.state.limits.effective(flags));
            self.remember_bind(windows, wr_id, blocks, WcOpcode::LocalInv, &checked);
            Ok(())
        })
    }

    fn bind_request<'b>(&self, mw: MwHandle, kind: MwType, binding: &'b Binding, tag: Option<KeyTag>) -> BindRequest<'b> {
        let SendLimits { pd, max_window, .. } = self.state.limits;
        BindRequest { pd, mw, kind, binding, tag, max_length: max_window }
    }

    fn check_bind_room(&mut self, windows: &crate::window::Windows, blocks: u32) -> Result<(), BindFault> {
        if !self.has_room(blocks) {
            return Err(BindFault::QueueFull { needed: blocks, free: self.end.wrapping_sub(self.head) });
        }
        if windows.has_room() { Ok(()) } else { Err(BindFault::TooManyPendingBinds) }
    }

    /// Posts a bind after its second check; gives the key that the window gets.
    fn put_bind(
        &mut self,
        windows: &mut crate::window::Windows,
        wr_id: u64,
        flags: SendFlags,
        request: &BindRequest<'_>,
    ) -> Result<Rkey, BindFault> {
        let checked = windows.check(self.shared, request).map_err(BindFault::Refused)?;
        let Binding { addr, length, access, .. } = *request.binding;
        let (kind, new) = (request.kind, checked.new);
        let bind = Bind { kind, old: checked.old, new, lkey: checked.lkey, addr, length, access };
        let blocks = <P::SendRing as SendRing>::Writer::<'a>::bind_blocks(&bind);
        self.check_bind_room(windows, blocks)?;
        self.writer.put_bind(self.head, &bind, self.state.limits.effective(flags));
        self.remember_bind(windows, wr_id, blocks, WcOpcode::BindMw, &checked);
        Ok(new)
    }

    fn remember_bind(
        &mut self,
        windows: &mut crate::window::Windows,
        wr_id: u64,
        blocks: u32,
        opcode: WcOpcode,
        checked: &CheckedBind<'_>,
    ) {
        let SendLimits { handle, .. } = self.state.limits;
        windows.post(handle, self.head, checked);
        self.slot.binds.store(self.slot.binds.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        self.remember(wr_id, 0, blocks, opcode);
        log_event!(trace, "bind of {:?} posted on {:?}", checked.mw, handle);
    }

    /// Returns whether an SGE names bytes, not too many, and its region allows them and is in the first slot of its search.
    #[inline(always)]
    fn contains(&mut self, sge: &Sge, need: Access) -> bool {
        // No byte and too many bytes in one comparison.
        if sge.length.wrapping_sub(1) >= self.state.limits.max_message {
            return false;
        }
        if self.cached_region.lkey.get() != sge.lkey.get() {
            match self.shared.regions.find_usable(sge.lkey) {
                Some(region) if region.pd == self.state.limits.pd.index() => self.cached_region = region,
                _ => return false,
            }
        }
        self.cached_region.access.contains(need) && self.cached_region.contains(sge.addr, sge.length)
    }

    /// Remembers the request at the head, and goes on after it.
    #[cfg_attr(not(feature = "small"), inline(always))]
    #[cfg_attr(feature = "small", inline(never))]
    fn remember(&mut self, wr_id: u64, bytes: u32, blocks: u32, opcode: WcOpcode) {
        let (entries, at) = (self.slot.rings.send, self.head);
        if let Some(entry) = entries.get(place(at, entries.len())) {
            entry.set(SendFacts { wr_id, bytes, blocks: blocks as u16, opcode });
        }
        // Two blocks are common, more are not: a loop here would be unrolled in every caller.
        if blocks > 1 {
            if let Some(entry) = entries.get(place(at.wrapping_add(1), entries.len())) {
                entry.clear();
            }
            if blocks > 2 {
                clear_rest(entries, at.wrapping_add(2), blocks.wrapping_sub(2));
            }
        }
        self.head = at.wrapping_add(blocks);
    }
}

/// Records that no request starts in `count` blocks from `at` on.
#[inline(never)]
fn clear_rest(entries: &[SendEntry], at: u32, count: u32) {
    for middle in 0..count {
        if let Some(entry) = entries.get(place(at.wrapping_add(middle), entries.len())) {
            entry.clear();
        }
    }
}

/// Returns what is wrong with an operation, its flags or its number of SGEs.
fn refusal(
    limits: &SendLimits,
    op: OpSet,
    legal: SendFlags,
    flags: SendFlags,
    opcode: WcOpcode,
    count: usize,
) -> Option<PostSendError> {
    let qp_type = limits.qp_type;
    if !limits.ops().contains(op) {
        if op == OpSet::SEND {
            return Some(PostSendError::NoAddressHandle);
        }
        if op == OpSet::ATOMIC && matches!(qp_type, QpType::Rc | QpType::XrcSend) {
            return Some(PostSendError::NoAtomics);
        }
        return Some(PostSendError::Opcode { opcode, qp_type });
    }
    let wrong = flags.difference(legal & limits.flags());
    if !wrong.is_empty() {
        return Some(PostSendError::Flags { flags: wrong });
    }
    if count > limits.max_sge as usize { Some(PostSendError::SgeCount { count, max: limits.max_sge }) } else { None }
}

/// Returns [`refusal`] where something is wrong.
#[cold]
#[inline(never)]
fn refused(
    limits: &SendLimits,
    op: OpSet,
    legal: SendFlags,
    flags: SendFlags,
    opcode: WcOpcode,
    count: usize,
) -> PostSendError {
    match refusal(limits, op, legal, flags, opcode, count) {
        Some(error) => error,
        None => PostSendError::SgeCount { count, max: limits.max_sge },
    }
}

/// Returns what is wrong with an SGE, if anything is. By values: a reference would keep the caller's SGE out of its registers.
#[cold]
#[inline(never)]
fn fault_of(shared: &Shared<'_>, pd: PdHandle, need: Access, addr: u64, length: u32, lkey: Lkey) -> Option<SgeFault> {
    check_sge(&shared.regions, pd.index(), need, &Sge { addr, length, lkey }).err()
}

impl<P: Provider> Drop for SendBatch<'_, P> {
    #[inline(always)]
    fn drop(&mut self) {
        self.open.writer.close();
        let PostCursor { state, slot, head, .. } = self.open;
        ring_at_end(state, slot, head);
    }
}

/// Rings at the end of a batch. A call, and by values: the end is also part of the code that unwinds after a panic of the
/// caller, which is inlined only if it is very short. A reference there would keep the batch out of its registers everywhere.
#[inline(never)]
fn ring_at_end<P: Provider>(state: &SendState<P>, slot: &QpSlot<'_>, head: u32) {
    ring_from(&mut state.ring.writer(), state, slot, head);
}

/// Why a bind whose arguments make sense was not posted.
enum BindFault {
    Refused(BindRefused),
    QueueFull { needed: u32, free: u32 },
    TooManyPendingBinds,
}

impl BindFault {
    fn into_post_send(self) -> PostSendError {
        match self {
            Self::Refused(refused) => PostSendError::Bind(refused),
            Self::QueueFull { needed, free } => PostSendError::QueueFull { needed, free },
            Self::TooManyPendingBinds => PostSendError::TooManyPendingBinds,
        }
    }
}

/// What the checks ask of an operation.
struct OpProperties {
    set: OpSet,
    opcode: WcOpcode,
    /// Whether the peer takes notice of it.
    solicitable: bool,
    /// Rights that regions of SGEs need.
    need: Access,
}

impl DataOp {
    #[inline(always)]
    const fn send() -> Self {
        Self { opcode: DataOpcode::Send, remote: Remote::NONE, immediate: 0 }
    }

    #[inline(always)]
    const fn send_imm(imm: [u8; 4]) -> Self {
        Self { opcode: DataOpcode::SendWithImm, remote: Remote::NONE, immediate: u32::from_be_bytes(imm) }
    }

    #[inline(always)]
    const fn send_inv(rkey: Rkey) -> Self {
        Self { opcode: DataOpcode::SendWithInv, remote: Remote::NONE, immediate: rkey.get() }
    }

    #[inline(always)]
    const fn write(remote: Remote) -> Self {
        Self { opcode: DataOpcode::Write, remote, immediate: 0 }
    }

    #[inline(always)]
    const fn write_imm(remote: Remote, imm: [u8; 4]) -> Self {
        Self { opcode: DataOpcode::WriteWithImm, remote, immediate: u32::from_be_bytes(imm) }
    }

    #[inline(always)]
    const fn read(remote: Remote) -> Self {
        Self { opcode: DataOpcode::Read, remote, immediate: 0 }
    }
}

impl AtomicOp {
    #[inline(always)]
    const fn compare_swap(remote: Remote, compare: u64, swap: u64) -> Self {
        Self { opcode: AtomicOpcode::CompareSwap, remote, swap_add: swap, compare }
    }

    #[inline(always)]
    const fn fetch_add(remote: Remote, add: u64) -> Self {
        Self { opcode: AtomicOpcode::FetchAdd, remote, swap_add: add, compare: 0 }
    }
}

impl OpProperties {
    #[inline(always)]
    const fn of(opcode: DataOpcode) -> Self {
        let (set, opcode, solicitable, need) = match opcode {
            DataOpcode::Send | DataOpcode::SendWithImm => (OpSet::SEND, WcOpcode::Send, true, Access::empty()),
            DataOpcode::SendWithInv => (OpSet::WINDOW, WcOpcode::Send, true, Access::empty()),
            DataOpcode::Write => (OpSet::WRITE, WcOpcode::RdmaWrite, false, Access::empty()),
            DataOpcode::WriteWithImm => (OpSet::WRITE, WcOpcode::RdmaWrite, true, Access::empty()),
            DataOpcode::Read => (OpSet::READ, WcOpcode::RdmaRead, false, Access::LOCAL_WRITE),
        };
        Self { set, opcode, solicitable, need }
    }

    /// Flags that a request with SGEs may have.
    #[inline(always)]
    const fn legal(&self) -> SendFlags {
        if self.solicitable { SOLICITABLE } else { BASIC }
    }

    /// Flags that a request with bytes inline may have.
    #[inline(always)]
    const fn legal_inline(&self) -> SendFlags {
        self.legal().union(SendFlags::INLINE)
    }
}

//! Send queues: posting, the checks that the verbs promise, and the record of what is in flight.

pub(crate) mod datagram;
pub(crate) mod marker;
pub(crate) mod xrc;

use core::cell::Cell;

use crate::FAST_PATH;
use crate::log::format_as;
use crate::ring::place;
use crate::shared::{CachedRegion, Owner, QpSlot, RegionFacts, Shared, check_sge, domain_word};
use crate::storage::{SendEntry, SendFacts};
use crate::sync::Ordering;
use crate::window::{BindRequest, CheckedBind, Type1Bind};
use crate::{
    Access, AtomicOp, AtomicOpcode, BadWr, BindOp, BindRefused, BindType1Error, Binding, DataOp, DataOpcode, DeviceAttr,
    KeyTag, MwHandle, MwType, Payload, PdHandle, PostSendError, Provider, QpHandle, QpState, QpType, Remote, Rkey, SendFlags,
    SendOp, SendRing, SendWr, SendWriter, Sge, WcOpcode,
};

bitflags::bitflags! {
    /// Kinds of send operation.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct OpSet: u8 {
        const SEND = 1;
        const WRITE = 1 << 1;
        const READ = 1 << 2;
        const ATOMIC = 1 << 3;
        /// Binds and invalidations; with SEND, the send that invalidates.
        const WINDOW = 1 << 4;
        /// Sends to a destination.
        const DATAGRAM = 1 << 5;
        /// Requests to a shared receive queue of the peer, but atomics.
        const XRC = 1 << 6;
        /// Atomics to a shared receive queue of the peer.
        const XRC_ATOMIC = 1 << 7;
    }
}

impl OpSet {
    /// Returns the requests that can be posted on a transport.
    fn of(qp_type: QpType, device: &DeviceAttr) -> Self {
        let all = match qp_type {
            QpType::Rc => Self::SEND | Self::WRITE | Self::READ | Self::ATOMIC | Self::WINDOW,
            QpType::XrcSend => Self::XRC | Self::XRC_ATOMIC | Self::WINDOW,
            QpType::XrcRecv => Self::empty(),
            QpType::Uc => Self::SEND | Self::WRITE | Self::WINDOW,
            QpType::Ud | QpType::Gsi => Self::DATAGRAM,
        };
        if device.atomics { all } else { all - Self::ATOMIC - Self::XRC_ATOMIC }
    }
}

/// Returns the send flags that a transport has.
fn transport_flags(qp_type: QpType) -> SendFlags {
    match qp_type {
        QpType::Rc | QpType::XrcSend => SendFlags::KNOWN,
        QpType::Uc | QpType::Ud | QpType::Gsi | QpType::XrcRecv => SendFlags::KNOWN - SendFlags::FENCE,
    }
}

/// Returns the maximum message of a device in bytes: 2^31 (IBTA 9.7.7) where the device reports no limit.
pub(crate) fn max_message_of(device: &DeviceAttr) -> u32 {
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
pub(crate) const BASIC: SendFlags = SendFlags::FENCE.union(SendFlags::SIGNALED);
/// Flags of those whose completion at the peer may be a solicited one.
const SOLICITABLE: SendFlags = BASIC.union(SendFlags::SOLICITED);

/// What posting asks of a queue pair and what never changes while it lives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendLimits {
    pub(crate) handle: QpHandle,
    pub(crate) qp_type: QpType,
    pub(crate) pd: PdHandle,
    /// [`domain_word`] of it.
    domain: u64,
    /// What a request may not have, for one test: [`OpSet`] in bits 0 to 7, send flags in 8 to 15, bit 15 + n: n SGEs,
    /// up to 8.
    pub(crate) disallowed_mask: u32,
    /// SIGNALED, if every request gives a completion.
    always: SendFlags,
    pub(crate) max_message: u32,
    max_inline: u32,
    max_sge: u32,
    pub(crate) max_window: u64,
    /// Blocks of the ring.
    pub(crate) blocks: u32,
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
            domain: domain_word(pd.index()),
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

    pub(crate) const fn ops(&self) -> OpSet {
        OpSet::from_bits_retain(!self.disallowed_mask as u8)
    }

    pub(crate) const fn flags(&self) -> SendFlags {
        SendFlags::from_bits_retain(!self.disallowed_mask >> 8 & 0xff)
    }
}

/// Posts a request that names where it goes; rings the doorbell if `ring`. A queue has this as a function that its queue pair was
/// created with ([`datagram`], [`xrc`]): a program that creates none of its transport does not contain it.
pub(crate) type PostNamed<P> = fn(&SendQueue<'_, P>, &SendWr<'_>, bool) -> Result<(), PostSendError>;

/// The send queue of one queue pair: its owner posts, on any core. It refers to its slot directly, so that no post searches.
pub struct SendQueue<'s, P: Provider> {
    pub(crate) ring: P::SendRing,
    pub(crate) slot: &'s QpSlot<'s>,
    pub(crate) shared: Shared<'s>,
    pub(crate) limits: SendLimits,
    /// Posts requests that name where they go; `None` for transports without such.
    pub(crate) named: Option<PostNamed<P>>,
    /// Where the next request goes.
    pub(crate) head: Cell<u32>,
    /// What a request may not have that is posted as part of the caller: [`SendLimits::disallowed_mask`], or anything if the
    /// request before was a bind. The request after a bind has a fence, which only [`append`] gives it.
    pub(crate) uncommon: Cell<u32>,
    /// Whether there may be requests before `head` that the device was not notified of.
    pub(crate) left: Cell<bool>,
    /// Last, so that the ring is dropped before the control path may destroy it.
    pub(crate) _owner: Owner<'s>,
}

format_as!([P: Provider] SendQueue<'_, P>, "SendQueue({:?})", |this| this.qp());

impl<'s, P: Provider> SendQueue<'s, P> {
    /// Returns the handle of the queue pair.
    pub const fn qp(&self) -> QpHandle {
        self.limits.handle
    }

    /// Posts one request and rings the doorbell.
    ///
    /// ```
    /// # use bareverbs::{Access, SendWr, WcStatus};
    /// # use bareverbs_testing::{Faults, connect, pair};
    /// # let [mut a, mut b] = pair(Faults::none())?;
    /// # let [mut qa, mut qb] = connect(&mut a, &mut b)?;
    /// # let target = b.register(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    /// qa.qp.send.post(&SendWr::write(target.remote(0), b"hello").id(7))?;
    /// let done = qa.wait()?;
    /// assert_eq!((done.wr_id, done.status), (7, WcStatus::Success));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The request is refused, and the queue is as before.
    #[inline(always)]
    pub fn post(&mut self, wr: &SendWr<'_>) -> Result<(), PostSendError> {
        if FAST_PATH {
            let mut open = PostCursor::unopened(self);
            if open.post_common(wr, true) {
                open.ring_new();
                return Ok(());
            }
        }
        append_copy(self, wr, true)
    }

    /// Posts requests up to the first that fails, with one doorbell; that one is named and not posted.
    ///
    /// ```
    /// # use bareverbs::{Access, SendWr};
    /// # use bareverbs_testing::{Faults, connect, pair};
    /// # let [mut a, mut b] = pair(Faults::none())?;
    /// # let [mut qa, mut qb] = connect(&mut a, &mut b)?;
    /// # let target = b.register(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    /// let list = [SendWr::write(target.remote(0), b"one").id(1), SendWr::write(target.remote(8), b"two").id(2)];
    /// qa.qp.send.post_list(&list)?;
    /// assert_eq!([qa.wait()?.wr_id, qa.wait()?.wr_id], [1, 2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// A request is refused.
    // Not part of the caller: the loop wants every register.
    #[inline(never)]
    pub fn post_list(&mut self, list: &[SendWr<'_>]) -> Result<(), BadWr<PostSendError>> {
        let mut open = PostCursor::new(self);
        let mut result = Ok(());
        let mut rest = list.iter();
        while let Some(wr) = rest.next() {
            if !(FAST_PATH && open.post_common(wr, false))
                && let Err(error) = open.call(|queue| append(queue, wr, false))
            {
                result = Err(BadWr { index: list.len().wrapping_sub(rest.len()).wrapping_sub(1), error });
                break;
            }
        }
        open.ring();
        result
    }

    /// Opens the queue for requests that share a doorbell.
    ///
    /// ```
    /// # use bareverbs::{Access, SendWr};
    /// # use bareverbs_testing::{Faults, connect, pair};
    /// # let [mut a, mut b] = pair(Faults::none())?;
    /// # let [mut qa, mut qb] = connect(&mut a, &mut b)?;
    /// # let target = b.register(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    /// let mut batch = qa.qp.send.batch();
    /// for number in 0..4 {
    ///     batch.post(&SendWr::write(target.remote(8 * number), &number.to_be_bytes()).id(number))?;
    /// }
    /// // The doorbell rings when the batch ends.
    /// drop(batch);
    /// assert_eq!(qa.wait()?.wr_id, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline(always)]
    pub fn batch(&mut self) -> SendBatch<'_, P> {
        SendBatch { open: PostCursor::new(self) }
    }

    /// Binds a type 1 window to part of a region, or unbinds it (`length` 0), and rings the doorbell (`ibv_bind_mw`). The key that
    /// it gives is the window's from now on: requests posted after it on the same queue pair may carry it. The bind itself completes
    /// later; if it fails, polling puts the window back to what it was. After a RESET of the queue pair, or its end, the window is
    /// what the device says.
    ///
    /// A type 2 window is bound by a work request, with a tag that the caller chooses: [`SendWr::bind_mw`].
    ///
    /// Binds of one window are in flight on one queue pair at a time, since no order is promised among several. One on another queue
    /// pair is refused until the completions of the first are polled.
    ///
    /// ```
    /// # use bareverbs::{Access, Type1Bind, MwType, SendFlags};
    /// # use bareverbs_testing::{Faults, connect, pair};
    /// # let [mut a, mut b] = pair(Faults::none())?;
    /// # let [mut qa, mut qb] = connect(&mut a, &mut b)?;
    /// let region = a.register(4096, Access::LOCAL_WRITE | Access::MW_BIND)?;
    /// let mw = a.verbs.alloc_mw(a.pd, MwType::Type1)?;
    /// let (mr, access, flags) = (region.handle(), Access::REMOTE_WRITE, SendFlags::empty());
    /// let rkey = qa.qp.send.bind_type1(mw, &Type1Bind { wr_id: 1, flags, mr, addr: region.remote(0).addr, length: 64, access })?;
    /// qa.wait()?.result()?;
    /// println!("the peer may write the first 64 bytes with {rkey}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The bind is refused; window and queue are as before.
    #[doc(alias = "ibv_bind_mw")]
    pub fn bind_type1(&mut self, mw: MwHandle, bind: &Type1Bind) -> Result<Rkey, BindType1Error> {
        // The state comes after the arguments in the order of checks.
        let bound = append_bind_type1(self, mw, bind);
        PostCursor::new(self).ring();
        bound
    }

    /// Notifies the device of requests whose batch was forgotten before its end, in any state of the queue pair: then they
    /// complete, if only as flushed. Nothing if there are none.
    pub fn ring(&mut self) {
        PostCursor::new(self).ring();
    }

    /// Returns the blocks that are free. Blocks are the unit of the send ring, since requests differ in length: on mlx5 one for each 64
    /// bytes. [`Verbs::ring_sizes`](crate::Verbs::ring_sizes) gives those that so many requests need, [`PostSendError::QueueFull`] those
    /// that one needs.
    pub fn free_blocks(&self) -> u32 {
        free_blocks(self, self.head.get())
    }

    /// Forgets every request, after a RESET.
    pub(crate) fn reset(&mut self) {
        self.ring.reset();
        self.head.set(0);
        self.left.set(false);
        self.keep_bind(false);
    }

    /// Keeps the next request from being posted without a fence, if the one before was a bind.
    pub(crate) fn keep_bind(&self, bind: bool) {
        self.uncommon.set(if bind { u32::MAX } else { self.limits.disallowed_mask });
    }

    fn is_after_bind(&self) -> bool {
        self.uncommon.get() != self.limits.disallowed_mask
    }
}

/// Returns why a queue pair takes no sends.
pub(crate) fn refusal_to_post(shared: &Shared<'_>, slot: &QpSlot<'_>) -> PostSendError {
    match shared.loss_of(slot) {
        Some(loss) => PostSendError::DeviceLost { loss },
        None => PostSendError::NotReady { state: slot.state() },
    }
}

/// Does the work of [`append`] for requests that [`PostCursor::post_common`] does not post. What that may post goes on as a
/// copy, with copies of its SGEs, so that the caller's own need not lie in memory for those that are posted.
#[inline(always)]
fn append_copy<P: Provider>(queue: &SendQueue<'_, P>, wr: &SendWr<'_>, ring: bool) -> Result<(), PostSendError> {
    if !FAST_PATH {
        return append(queue, wr, ring);
    }
    let again = |payload| append(queue, &SendWr { op: wr.op.with_payload(payload), ..*wr }, ring);
    match wr.op.payload() {
        Some(Payload::Sges(&[sge])) => again(Payload::Sges(&[sge])),
        Some(Payload::Sges(&[one, two])) => again(Payload::Sges(&[one, two])),
        Some(payload) => again(payload),
        None => append(queue, &SendWr { ..*wr }, ring),
    }
}

/// Posts one request of any kind, on what is kept, or says what is wrong with it; rings the doorbell if `ring`.
// With `small` part of the caller, which mostly knows the kind: what posts the other kinds is then not linked.
#[cfg_attr(not(feature = "small"), inline(never))]
#[cfg_attr(feature = "small", inline(always))]
fn append<P: Provider>(queue: &SendQueue<'_, P>, wr: &SendWr<'_>, ring: bool) -> Result<(), PostSendError> {
    if FAST_PATH {
        let mut open = PostCursor::new(queue);
        if open.post_sges::<false>(wr) || open.post_sges::<true>(wr) {
            open.finish(ring);
            return Ok(());
        }
    }
    match (wr.op.payload(), &wr.op) {
        (Some(Payload::Sges(_)), _) => append_one(queue, wr, ring, PostCursor::put_sges),
        (Some(Payload::Inline(_)), _) => append_one(queue, wr, ring, PostCursor::put_inline),
        (None, SendOp::BindMw { .. }) => append_one(queue, wr, ring, PostCursor::put_bind_type2),
        (None, SendOp::LocalInv { .. }) => append_one(queue, wr, ring, PostCursor::put_local_inv),
        (None, SendOp::SendTo { .. } | SendOp::SendToWithImm { .. } | SendOp::ToSrq { .. }) => match queue.named {
            Some(post) => post(queue, wr, ring),
            None => Err(PostSendError::Destination { qp_type: queue.limits.qp_type }),
        },
        (None, _) => append_one(queue, wr, ring, PostCursor::put_atomic),
    }
}

/// Posts what `put` builds, on what is kept.
#[cfg_attr(feature = "small", inline(never))]
fn append_one<'a, P: Provider>(
    queue: &'a SendQueue<'a, P>,
    wr: &SendWr<'_>,
    ring: bool,
    put: impl FnOnce(&mut PostCursor<'a, P>, &SendWr<'_>) -> Result<(), PostSendError>,
) -> Result<(), PostSendError> {
    let mut open = PostCursor::new(queue);
    if !queue.slot.can_send() {
        return Err(refusal_to_post(&queue.shared, queue.slot));
    }
    open.end = free_end(queue.slot, queue.limits.blocks);
    put(&mut open, wr)?;
    queue.keep_bind(matches!(wr.op, SendOp::BindMw { .. } | SendOp::LocalInv { .. }));
    open.finish(ring);
    Ok(())
}

/// Runs [`SendBatch::bind_type1`] on the saved state.
#[inline(never)]
fn append_bind_type1<P: Provider>(queue: &SendQueue<'_, P>, mw: MwHandle, bind: &Type1Bind) -> Result<Rkey, BindType1Error> {
    let mut open = PostCursor::new(queue);
    open.end = free_end(queue.slot, queue.limits.blocks);
    let key = open.put_bind_type1(mw, bind)?;
    queue.keep_bind(true);
    // The window's state counts on the bind, so it stays in the queue even if the batch is forgotten.
    open.save();
    Ok(key)
}

/// The send queue of one queue pair, open for requests that one doorbell announces.
///
/// [`Self::ring`] rings the doorbell, and so does the end of the batch. A batch may be forgotten (`mem::forget`). Then its
/// requests since the last doorbell wait for the next one: all up to its last bind, and perhaps some after that. The rest is
/// not posted.
///
/// A batch remembers the region of its last SGE until it rings. A request for a region that was deregistered since may be posted, as
/// it may just before a deregistration on another core: the device refuses it
/// ([`WcStatus::LocProtErr`](crate::WcStatus::LocProtErr)), and no byte is moved.
#[must_use = "the doorbell rings when the batch ends"]
pub struct SendBatch<'a, P: Provider> {
    pub(crate) open: PostCursor<'a, P>,
}

format_as!([P: Provider] SendBatch<'_, P>, "SendBatch({:?})", |this| this.open.queue.limits.handle);

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
    cached_region: CachedRegion,
}

impl<P: Provider> SendBatch<'_, P> {
    /// Posts a request.
    ///
    /// # Errors
    /// The request is refused, and the queue is as before.
    #[inline(always)]
    pub fn post(&mut self, wr: &SendWr<'_>) -> Result<(), PostSendError> {
        if FAST_PATH && self.open.post_common(wr, false) {
            return Ok(());
        }
        // Not by `call`: the compiler would make the request in memory for its closure, also where it is not called.
        self.open.save();
        let posted = append_copy(self.open.queue, wr, false);
        self.open.reload();
        posted
    }

    /// Posts a type 1 bind: [`SendQueue::bind_type1`] as part of a batch.
    ///
    /// # Errors
    /// [`BindType1Error`]: the queue pair cannot send, window, region or rights do not fit, or the queue is full. The batch is as before.
    #[doc(alias = "ibv_bind_mw")]
    pub fn bind_type1(&mut self, mw: MwHandle, bind: &Type1Bind) -> Result<Rkey, BindType1Error> {
        self.open.call(|queue| append_bind_type1(queue, mw, bind))
    }

    /// Notifies the device of every request posted so far, with one doorbell; none if there is nothing new.
    #[inline(always)]
    pub fn ring(&mut self) {
        // What was posted may complete now, and its region go.
        self.open.cached_region = CachedRegion::NONE;
        self.open.ring();
    }

    /// Returns the blocks that are free in the send queue.
    pub fn free_blocks(&self) -> u32 {
        free_blocks(self.open.queue, self.open.head)
    }
}

/// Notifies the device of every request before block `head`, if it does not know of them.
#[inline(always)]
fn ring_from<'a, P: Provider>(writer: &mut <P::SendRing as SendRing>::Writer<'a>, queue: &'a SendQueue<'a, P>, head: u32) {
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

/// Returns the blocks that are free behind `head`. After a RESET the poller's counter is of before, until the queue pair is drained.
fn free_blocks<P: Provider>(queue: &SendQueue<'_, P>, head: u32) -> u32 {
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
    fn unopened(queue: &'a SendQueue<'a, P>) -> Self {
        let cached_region = CachedRegion::NONE;
        Self { writer: queue.ring.writer(), queue, slot: queue.slot, head: 0, end: 0, cached_region }
    }

    /// Posts one of the short requests that most programs live on, as part of the caller. `false`: it is another one, or
    /// something is wrong; nothing has happened, and [`append`] takes it. `first`: no other was posted before by this cursor.
    #[inline(always)]
    fn post_common(&mut self, wr: &SendWr<'_>, first: bool) -> bool {
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
            Payload::Sges(_) => false,
            Payload::Inline(bytes) => self.try_inline(wr_id, flags, op, bytes, first),
        }
    }

    /// Does the same for writes and sends with SGEs whose regions are `ANYWHERE` in the table, in one copy of the code for all
    /// callers.
    #[inline(always)]
    fn post_sges<const ANYWHERE: bool>(&mut self, wr: &SendWr<'_>) -> bool {
        // One or two in first slots were tried before.
        let few = |sges: &[Sge]| if ANYWHERE { sges.is_empty() } else { sges.len() < 3 };
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
    fn reload(&mut self) {
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
    fn ring_new(&mut self) {
        ring_new(&mut self.writer, self.queue, self.slot, self.head);
    }

    /// Returns whether a request may be posted as part of the caller: the transport has the operation, its flags and `count`
    /// SGEs, and the request before is no bind.
    #[inline(always)]
    fn admits(&self, op: OpSet, legal: SendFlags, flags: SendFlags, count: usize) -> bool {
        let sges = match count {
            0 => 0,
            few @ 1..=8 => 1 << few.wrapping_add(15),
            many if many <= self.queue.limits.max_sge as usize => 0,
            _ => return false,
        };
        let needs = u32::from(op.bits()) | (flags.bits() & 0xff) << 8 | sges;
        legal.contains(flags) && self.queue.uncommon.get() & needs == 0
    }

    /// Returns whether `blocks` blocks are free; reads `tail` again if they are not. `first`: what says it is read only here,
    /// so that it takes no registers before.
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
    fn try_sges<const ANYWHERE: bool>(&mut self, wr_id: u64, flags: SendFlags, op: DataOp, sges: &[Sge], first: bool) -> bool {
        let kind = OpProperties::of(op.opcode);
        if !self.admits(kind.set, kind.legal(), flags, sges.len()) {
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
        if too_long || !self.admits(kind.set, kind.legal_inline(), flags, 0) {
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
        let good = self.admits(OpSet::ATOMIC, BASIC, flags, 1) && sge.length == 8 && op.remote.addr.is_multiple_of(8);
        if !good || !self.contains::<false>(&sge, Access::LOCAL_WRITE, first) || !self.has_room(blocks, first) {
            return false;
        }
        self.writer.put_atomic(self.head, &op, &sge, self.queue.limits.effective(flags));
        self.remember(wr_id, 8, blocks, op.opcode.completion());
        true
    }

    /// Returns the flags of a request that [`append`] posts.
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

    fn put_sges(&mut self, wr: &SendWr<'_>) -> Result<(), PostSendError> {
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

    fn put_inline(&mut self, wr: &SendWr<'_>) -> Result<(), PostSendError> {
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
    fn check_atomic(&self, op: &AtomicOp, sge: &Sge) -> Result<(), PostSendError> {
        if sge.length != 8 {
            return Err(PostSendError::AtomicLength { length: sge.length });
        }
        if !op.remote.addr.is_multiple_of(8) {
            return Err(PostSendError::AtomicAlignment { addr: op.remote.addr });
        }
        Ok(())
    }

    fn put_atomic(&mut self, wr: &SendWr<'_>) -> Result<(), PostSendError> {
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

    fn put_bind_type1(&mut self, mw: MwHandle, bind: &Type1Bind) -> Result<Rkey, BindType1Error> {
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

    fn put_bind_type2(&mut self, wr: &SendWr<'_>) -> Result<(), PostSendError> {
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

    fn put_local_inv(&mut self, wr: &SendWr<'_>) -> Result<(), PostSendError> {
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
    fn contains<const ANYWHERE: bool>(&mut self, sge: &Sge, need: Access, first: bool) -> bool {
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
        } else if !self.cached_region.admits(sge.length) {
            return false;
        }
        self.cached_region.access.contains(need) && self.cached_region.contains(sge.addr, sge.length)
    }

    /// Remembers the request at the head, and goes on after it.
    #[cfg_attr(not(feature = "small"), inline(always))]
    #[cfg_attr(feature = "small", inline(never))]
    pub(crate) fn remember(&mut self, wr_id: u64, bytes: u32, blocks: u32, opcode: WcOpcode) {
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
pub(crate) fn refusal(
    limits: &SendLimits,
    op: OpSet,
    legal: SendFlags,
    flags: SendFlags,
    opcode: WcOpcode,
    count: usize,
) -> Option<PostSendError> {
    let qp_type = limits.qp_type;
    if !limits.ops().contains(op) {
        if qp_type == QpType::XrcSend && op != OpSet::WINDOW {
            return Some(PostSendError::NoSrqNumber);
        }
        if op == OpSet::SEND && qp_type != QpType::XrcRecv {
            return Some(PostSendError::NoAddressHandle);
        }
        if op == OpSet::ATOMIC && qp_type == QpType::Rc {
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

impl<P: Provider> Drop for SendBatch<'_, P> {
    #[inline(always)]
    fn drop(&mut self) {
        self.open.writer.close();
        let PostCursor { queue, head, .. } = self.open;
        ring_at_end(queue, head);
    }
}

/// Rings at the end of a batch. A call, and by values: the end is also part of the code that unwinds after a panic of the
/// caller, which is inlined only if it is very short. A reference there would keep the batch out of its registers everywhere.
#[inline(never)]
fn ring_at_end<P: Provider>(queue: &SendQueue<'_, P>, head: u32) {
    ring_from(&mut queue.ring.writer(), queue, head);
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

impl AtomicOpcode {
    const fn completion(self) -> WcOpcode {
        match self {
            Self::CompareSwap => WcOpcode::CompSwap,
            Self::FetchAdd => WcOpcode::FetchAdd,
        }
    }
}

impl<'a> SendOp<'a> {
    /// Returns an operation that moves bytes, and its bytes.
    #[inline(always)]
    const fn data(&self) -> Option<(DataOp, Payload<'a>)> {
        Some(match *self {
            Self::Send { payload } => (DataOp::send(), payload),
            Self::SendWithImm { payload, imm } => (DataOp::send_imm(imm), payload),
            Self::SendWithInv { payload, rkey } => (DataOp::send_inv(rkey), payload),
            Self::Write { payload, remote } => (DataOp::write(remote), payload),
            Self::WriteWithImm { payload, remote, imm } => (DataOp::write_imm(remote, imm), payload),
            Self::Read { sges, remote } => (DataOp::read(remote), Payload::Sges(sges)),
            Self::SendTo { .. }
            | Self::SendToWithImm { .. }
            | Self::ToSrq { .. }
            | Self::CompareSwap { .. }
            | Self::FetchAdd { .. }
            | Self::BindMw { .. }
            | Self::LocalInv { .. } => return None,
        })
    }

    /// Returns an atomic and its buffer.
    #[inline(always)]
    const fn atomic(&self) -> Option<(AtomicOp, Sge)> {
        match *self {
            Self::CompareSwap { sge, remote, compare, swap } => Some((AtomicOp::compare_swap(remote, compare, swap), sge)),
            Self::FetchAdd { sge, remote, add } => Some((AtomicOp::fetch_add(remote, add), sge)),
            _ => None,
        }
    }

    #[inline(always)]
    const fn payload(&self) -> Option<Payload<'a>> {
        match *self {
            Self::Read { sges, .. } => Some(Payload::Sges(sges)),
            Self::Send { payload }
            | Self::SendWithImm { payload, .. }
            | Self::SendWithInv { payload, .. }
            | Self::Write { payload, .. }
            | Self::WriteWithImm { payload, .. } => Some(payload),
            _ => None,
        }
    }

    /// Returns the operation with other bytes.
    #[inline(always)]
    const fn with_payload<'b>(&self, payload: Payload<'b>) -> SendOp<'b>
    where
        'a: 'b,
    {
        match (*self, payload) {
            (SendOp::Send { .. }, payload) => SendOp::Send { payload },
            (SendOp::SendWithImm { imm, .. }, payload) => SendOp::SendWithImm { payload, imm },
            (SendOp::SendWithInv { rkey, .. }, payload) => SendOp::SendWithInv { payload, rkey },
            (SendOp::Write { remote, .. }, payload) => SendOp::Write { payload, remote },
            (SendOp::WriteWithImm { remote, imm, .. }, payload) => SendOp::WriteWithImm { payload, remote, imm },
            (SendOp::Read { remote, .. }, Payload::Sges(sges)) => SendOp::Read { sges, remote },
            (other, _) => other,
        }
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
            DataOpcode::SendWithInv => (OpSet::SEND.union(OpSet::WINDOW), WcOpcode::Send, true, Access::empty()),
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

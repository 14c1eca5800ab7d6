//! Send queues: posting, the checks that the verbs promise, and the record of what is in flight.

mod cursor;
pub(crate) mod datagram;
mod limits;
pub(crate) mod marker;
mod operations;
pub(crate) mod xrc;

use core::cell::Cell;

pub(crate) use self::cursor::{PostCursor, free_end};
pub(crate) use self::limits::{BASIC, OpSet, SendLimits, can_send, refusal};

use self::cursor::{free_blocks, ring_from};
use crate::backend::{DataOp, Provider, SendRing, SendWriter};
use crate::error::{BadWr, BindType1Error, PostSendError};
use crate::log::format_as;
use crate::shared::{CachedRegion, Owner, QpSlot, Shared};
use crate::window::Type1Bind;
use crate::{FAST_PATH, MwHandle, Payload, QpHandle, Remote, Rkey, SendFlags, SendOp, SendWr, Sge};

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
    /// A request is refused, which [`BadWr`] names with the reason. Those before it are posted.
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
    /// later; if it fails, polling puts the window back to what it was. After a RESET of the queue pair, or its end, the device says
    /// whether it was done.
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

    /// Notifies the device of requests that a forgotten batch left posted, in any state of the queue pair: then they complete, if only as
    /// flushed. [`SendBatch`] says which are posted; the others never complete. Does nothing if there are none.
    pub fn ring(&mut self) {
        PostCursor::new(self).ring();
    }

    /// Returns the blocks that are free. Blocks are the unit of the send ring, since requests differ in length: on mlx5 one for each 64
    /// bytes. [`Verbs::ring_sizes`](crate::Verbs::ring_sizes) gives those that so many requests need, [`PostSendError::QueueFull`] those
    /// that one needs.
    ///
    /// ```
    /// # use bareverbs::SendWr;
    /// # use bareverbs_testing::{Faults, connect, pair};
    /// # let [mut a, mut b] = pair(Faults::none())?;
    /// # let [mut qa, mut qb] = connect(&mut a, &mut b)?;
    /// let free = qa.qp.send.free_blocks();
    /// qa.qp.send.post(&SendWr::send(b"hello"))?;
    /// assert_eq!(qa.qp.send.free_blocks(), free - 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
    if ring
        && let Some(posted) = match wr.op {
            SendOp::Write { payload: Payload::Sges(sges @ [_, _, _]), remote } => {
                Some(post_three::<P, true>(queue, wr.wr_id, wr.flags, remote, sges))
            }
            SendOp::Send { payload: Payload::Sges(sges @ [_, _, _]) } => {
                Some(post_three::<P, false>(queue, wr.wr_id, wr.flags, Remote::NONE, sges))
            }
            _ => None,
        }
        && posted
    {
        return Ok(());
    }
    let again = |payload| append(queue, &SendWr { op: wr.op.with_payload(payload), ..*wr }, ring);
    match wr.op.payload() {
        Some(Payload::Sges(&[sge])) => again(Payload::Sges(&[sge])),
        Some(Payload::Sges(&[one, two])) => again(Payload::Sges(&[one, two])),
        Some(payload) => again(payload),
        None => append(queue, &SendWr { ..*wr }, ring),
    }
}

/// Posts a WRITE or a SEND with three SGEs and rings the doorbell. `false`: something about it is not common or wrong, and nothing
/// has happened. By values, so that the request need not lie in memory.
#[inline(never)]
fn post_three<P: Provider, const WRITE: bool>(
    queue: &SendQueue<'_, P>,
    wr_id: u64,
    flags: SendFlags,
    remote: Remote,
    sges: &[Sge],
) -> bool {
    let &[one, two, three] = sges else { return false };
    let mut open = PostCursor::unopened(queue);
    let op = if WRITE { DataOp::write(remote) } else { DataOp::send() };
    if !open.try_sges::<false>(wr_id, flags, op, &[one, two, three], true) {
        return false;
    }
    open.ring_new();
    true
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

impl<P: Provider> SendBatch<'_, P> {
    /// Posts a request. An example is at [`SendQueue::batch`].
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

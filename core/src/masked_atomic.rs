//! Atomics with masks, on four bytes or eight: what devices offer beyond IBTA (extended atomics).
//!
//! They have a call of their own, beside that for all other requests. A program without such contains nothing of this.

use crate::backend::{Provider, SendRing, SendWriter};
use crate::error::PostSendError;
use crate::send_queue::{BASIC, OpSet, PostCursor, SendBatch, SendQueue, free_end, refusal, refusal_to_post};
use crate::shared::check_sge;
use crate::{Access, MaskedWr, QpType, Srqn};

impl<P: Provider> SendQueue<'_, P> {
    /// Posts a masked atomic and rings the doorbell. Which there are depends on the device
    /// ([`DeviceAttr::masked_atomics`](crate::DeviceAttr::masked_atomics)).
    ///
    /// ```
    /// # use bareverbs::{DmaBuffer, MaskedOp, MaskedWr, SendFlags};
    /// # use bareverbs_testing::{Faults, connect, pair};
    /// # let [mut a, mut b] = pair(Faults::none())?;
    /// # let [mut qa, mut qb] = connect(&mut a, &mut b)?;
    /// # let word = b.register(8, bareverbs::Access::LOCAL_WRITE | bareverbs::Access::REMOTE_ATOMIC)?;
    /// # let old = a.register(8, bareverbs::Access::LOCAL_WRITE)?;
    /// // Four counters of eight bits in a word: the second gets 3 more.
    /// let op = MaskedOp::FetchAdd4 { add: 3 << 8, boundary: 0x8080_8080 };
    /// let wr = MaskedWr { wr_id: 1, flags: SendFlags::SIGNALED, op, remote: word.remote(0), sge: old.sge(0, 4) };
    /// assert!(a.verbs.query_device().masked_atomics.four);
    /// qa.qp.send.post_masked(&wr)?;
    /// qa.wait()?.result()?;
    /// let mut word_now = [0; 4];
    /// word.read(0, &mut word_now)?;
    /// assert_eq!(u32::from_ne_bytes(word_now), 3 << 8);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`PostSendError`]: the queue pair cannot send, the device does not offer the operation, an address, region or flag does not fit, or
    /// the queue is full. The queue is as before.
    pub fn post_masked(&mut self, wr: &MaskedWr) -> Result<(), PostSendError> {
        append_masked(self, wr, None, true)
    }

    /// Posts a masked atomic of an XRC initiator to a shared receive queue of its peer, whose protection domain is that of the bytes
    /// ([`SendWr::to_srq`](crate::SendWr::to_srq)), and rings the doorbell.
    ///
    /// # Errors
    /// The request is refused, and the queue is as before.
    pub fn post_masked_to_srq(&mut self, wr: &MaskedWr, srqn: Srqn) -> Result<(), PostSendError> {
        append_masked(self, wr, Some(srqn), true)
    }
}

impl<P: Provider> SendBatch<'_, P> {
    /// Posts a masked atomic: [`SendQueue::post_masked`] as part of a batch.
    ///
    /// # Errors
    /// [`PostSendError`], as a single request has it; the batch is as before.
    pub fn post_masked(&mut self, wr: &MaskedWr) -> Result<(), PostSendError> {
        self.open.call(|queue| append_masked(queue, wr, None, false))
    }

    /// Posts a masked atomic to a shared receive queue: [`SendQueue::post_masked_to_srq`] as part of a batch.
    ///
    /// # Errors
    /// As there.
    pub fn post_masked_to_srq(&mut self, wr: &MaskedWr, srqn: Srqn) -> Result<(), PostSendError> {
        self.open.call(|queue| append_masked(queue, wr, Some(srqn), false))
    }
}

/// Posts a masked atomic, on what is kept.
#[inline(never)]
fn append_masked<P: Provider>(
    queue: &SendQueue<'_, P>,
    wr: &MaskedWr,
    srqn: Option<Srqn>,
    ring: bool,
) -> Result<(), PostSendError> {
    if !queue.slot.can_send() {
        return Err(refusal_to_post(&queue.shared, queue.slot));
    }
    let mut open = PostCursor::new(queue);
    open.end = free_end(queue.slot, queue.limits.blocks);
    open.put_masked(wr, srqn)?;
    queue.keep_bind(false);
    open.finish(ring);
    Ok(())
}

impl<'a, P: Provider> PostCursor<'a, P> {
    fn put_masked(&mut self, wr: &MaskedWr, srqn: Option<Srqn>) -> Result<(), PostSendError> {
        let MaskedWr { wr_id, flags, ref op, ref remote, ref sge } = *wr;
        let (limits, opcode, size) = (&self.queue.limits, op.completion(), op.size());
        let set = match srqn {
            None => OpSet::ATOMIC,
            Some(srqn) if srqn.get() >> 24 != 0 => return Err(PostSendError::SrqNumber { srqn }),
            Some(_) if limits.qp_type != QpType::XrcSend => return Err(PostSendError::Destination { qp_type: limits.qp_type }),
            Some(_) if !limits.ops().contains(OpSet::XRC_ATOMIC) => return Err(PostSendError::NoAtomics),
            Some(_) => OpSet::XRC_ATOMIC,
        };
        if let Some(error) = refusal(limits, set, BASIC, flags, opcode, 1) {
            return Err(error);
        }
        if !(if size == 4 { limits.masked_atomics.four } else { limits.masked_atomics.eight }) {
            return Err(PostSendError::NoAtomics);
        }
        if sge.length != size {
            return Err(PostSendError::AtomicLength { length: sge.length, needed: size });
        }
        if !remote.addr.is_multiple_of(size.into()) {
            return Err(PostSendError::AtomicAlignment { addr: remote.addr, needed: size });
        }
        if let Err(fault) = check_sge(&self.queue.shared.regions, limits.pd.index(), Access::LOCAL_WRITE, sge) {
            return Err(PostSendError::Sge { index: 0, lkey: sge.lkey, fault });
        }
        let blocks = <P::SendRing as SendRing>::Writer::<'a>::masked_blocks(op, srqn.is_some());
        self.check_room(blocks)?;
        self.writer.put_masked(self.head, op, srqn, remote, sge, self.flags_after(flags));
        self.remember(wr_id, size, blocks, opcode);
        Ok(())
    }
}

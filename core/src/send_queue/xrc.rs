//! Requests to a shared receive queue of the peer: what initiators of XRC post.

use super::operations::OpProperties;
use super::{BASIC, OpSet, PostCursor, SendQueue, refusal, refusal_to_post};
use crate::backend::{AtomicOp, DataOp, Provider, SendRing, SendWriter};
use crate::error::PostSendError;
use crate::shared::check_sge;
use crate::{Access, ConnectedOp, Payload, SendFlags, SendOp, SendWr, Sge, Srqn};

/// Posts a request to a shared receive queue, or says what is wrong with it.
#[inline(never)]
pub(crate) fn post_xrc<P: Provider>(queue: &SendQueue<'_, P>, wr: &SendWr<'_>, ring: bool) -> Result<(), PostSendError> {
    let SendOp::ToSrq { srqn, op: ConnectedOp(op) } = wr.op else {
        return Err(PostSendError::Destination { qp_type: queue.limits.qp_type });
    };
    if !queue.slot.can_send() {
        return Err(refusal_to_post(&queue.shared, queue.slot));
    }
    let mut open = PostCursor::new(queue);
    if srqn.get() >> 24 != 0 {
        return Err(PostSendError::SrqNumber { srqn });
    }
    match (op.data(), op.atomic()) {
        (Some((op, payload)), _) => open.put_xrc(wr, srqn, &op, payload)?,
        (None, Some((op, sge))) => open.put_xrc_atomic(wr, srqn, &op, &sge)?,
        (None, None) => return Err(PostSendError::NotToSrq),
    }
    queue.keep_bind(false);
    open.finish(ring);
    Ok(())
}

impl<'a, P: Provider> PostCursor<'a, P> {
    fn put_xrc(&mut self, wr: &SendWr<'_>, srqn: Srqn, op: &DataOp, payload: Payload<'_>) -> Result<(), PostSendError> {
        let &SendWr { wr_id, flags, .. } = wr;
        let (limits, kind) = (&self.queue.limits, OpProperties::of(op.opcode));
        let (legal, count) = match payload {
            Payload::Sges(sges) => (kind.legal(), sges.len()),
            Payload::Inline(_) => (kind.legal_inline(), 0),
        };
        if let Some(error) = refusal(limits, OpSet::XRC, legal, flags, kind.opcode, count) {
            return Err(error);
        }
        let (max, max_inline) = (limits.max_message, limits.max_inline);
        let (mut bytes, mut pieces) = (0_u64, 0_usize);
        let blocks = match payload {
            Payload::Sges(sges) => {
                for (index, sge) in sges.iter().enumerate().filter(|(_, sge)| sge.length != 0) {
                    self.check_xrc_sge(index, kind.need, sge)?;
                    bytes = bytes.wrapping_add(u64::from(sge.length));
                    pieces = pieces.wrapping_add(1);
                }
                <P::SendRing as SendRing>::Writer::<'a>::xrc_sge_blocks(op.opcode, pieces)
            }
            Payload::Inline(inline) => {
                if inline.len() > max_inline as usize {
                    return Err(PostSendError::InlineSize { length: inline.len(), max: max_inline });
                }
                bytes = inline.len() as u64;
                <P::SendRing as SendRing>::Writer::<'a>::xrc_inline_blocks(op.opcode, inline.len())
            }
        };
        if bytes > u64::from(max) {
            return Err(PostSendError::MessageSize { max });
        }
        self.check_room(blocks)?;
        let flags = self.flags_after(flags);
        self.writer.put_xrc(self.head, srqn, op, payload, flags);
        self.remember(wr_id, bytes as u32, blocks, kind.opcode);
        Ok(())
    }

    fn put_xrc_atomic(&mut self, wr: &SendWr<'_>, srqn: Srqn, op: &AtomicOp, sge: &Sge) -> Result<(), PostSendError> {
        let &SendWr { wr_id, flags, .. } = wr;
        let (limits, opcode) = (&self.queue.limits, op.opcode.completion());
        if !limits.ops().contains(OpSet::XRC_ATOMIC) {
            return Err(PostSendError::NoAtomics);
        }
        if let Some(error) = refusal(limits, OpSet::XRC_ATOMIC, BASIC, flags, opcode, 1) {
            return Err(error);
        }
        self.check_atomic(op, sge)?;
        self.check_xrc_sge(0, Access::LOCAL_WRITE, sge)?;
        let blocks = <P::SendRing as SendRing>::Writer::<'a>::XRC_ATOMIC_BLOCKS;
        self.check_room(blocks)?;
        let flags: SendFlags = self.flags_after(flags);
        self.writer.put_xrc_atomic(self.head, srqn, op, sge, flags);
        self.remember(wr_id, 8, blocks, opcode);
        Ok(())
    }

    fn check_xrc_sge(&self, index: usize, need: Access, sge: &Sge) -> Result<(), PostSendError> {
        let pd = self.queue.limits.pd.index();
        check_sge(&self.queue.shared.regions, pd, need, sge).map_err(|fault| PostSendError::Sge {
            index,
            lkey: sge.lkey,
            fault,
        })
    }
}

//! Sends to a destination: what queue pairs for datagrams post.

use super::limits::SOLICITABLE;
use super::{OpSet, PostCursor, SendQueue, refusal, refusal_to_post};
use crate::backend::{DatagramOp, Provider, SendRing, SendWriter};
use crate::error::PostSendError;
use crate::shared::check_sge;
use crate::{Access, Destination, Payload, SendFlags, SendOp, SendWr, WcOpcode};

/// Posts a datagram, or says what is wrong with it.
#[inline(never)]
pub(crate) fn post_datagram<P: Provider>(queue: &SendQueue<'_, P>, wr: &SendWr<'_>, ring: bool) -> Result<(), PostSendError> {
    let (to, payload, imm) = match wr.op {
        SendOp::SendTo { to, payload } => (to, payload, None),
        SendOp::SendToWithImm { to, payload, imm } => (to, payload, Some(imm)),
        _ => return Err(PostSendError::NoAddressHandle),
    };
    if !queue.slot.can_send() {
        return Err(refusal_to_post(&queue.shared, queue.slot));
    }
    let mut open = PostCursor::new(queue);
    open.put_datagram(wr, to, payload, imm)?;
    open.finish(ring);
    Ok(())
}

impl<'a, P: Provider> PostCursor<'a, P> {
    fn put_datagram(
        &mut self,
        wr: &SendWr<'_>,
        to: &Destination,
        payload: Payload<'_>,
        imm: Option<[u8; 4]>,
    ) -> Result<(), PostSendError> {
        let &SendWr { wr_id, flags, .. } = wr;
        let limits = &self.queue.limits;
        let (legal, count) = match payload {
            Payload::Sges(sges) => (SOLICITABLE, sges.len()),
            Payload::Inline(_) => (SOLICITABLE.union(SendFlags::INLINE), 0),
        };
        if let Some(error) = refusal(limits, OpSet::DATAGRAM, legal, flags, WcOpcode::Send, count) {
            return Err(error);
        }
        if to.ah.pd() != limits.pd {
            return Err(PostSendError::AddressDomain);
        }
        let qpn = to.remote_qpn;
        if qpn.get() >> 24 != 0 {
            return Err(PostSendError::RemoteQpn { qpn });
        }
        let (pd, max_inline) = (limits.pd.index(), limits.max_inline);
        let (mut bytes, mut pieces) = (0_u64, 0_usize);
        let blocks = match payload {
            Payload::Sges(sges) => {
                for (index, sge) in sges.iter().enumerate().filter(|(_, sge)| sge.length != 0) {
                    if !self.contains::<true>(sge, Access::empty(), false)
                        && let Err(fault) = check_sge(&self.queue.shared.regions, pd, Access::empty(), sge)
                    {
                        return Err(PostSendError::Sge { index, lkey: sge.lkey, fault });
                    }
                    bytes = bytes.wrapping_add(u64::from(sge.length));
                    pieces = pieces.wrapping_add(1);
                }
                <P::SendRing as SendRing>::Writer::<'a>::datagram_sge_blocks(pieces)
            }
            Payload::Inline(inline) => {
                if inline.len() > max_inline as usize {
                    return Err(PostSendError::InlineSize { length: inline.len(), max: max_inline });
                }
                bytes = inline.len() as u64;
                <P::SendRing as SendRing>::Writer::<'a>::datagram_inline_blocks(inline.len())
            }
        };
        // One packet each.
        let max = self.slot.max_datagram();
        if bytes > u64::from(max) {
            return Err(PostSendError::MessageSize { max });
        }
        self.check_room(blocks)?;
        let op = DatagramOp { address: to.ah.encoded(), remote_qpn: qpn, remote_qkey: to.remote_qkey, imm };
        self.writer.put_datagram(self.head, &op, payload, self.queue.limits.effective(flags));
        self.remember(wr_id, bytes as u32, blocks, WcOpcode::Send);
        Ok(())
    }
}

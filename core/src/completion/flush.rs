//! What a lost device has left of the requests that complete into a queue.

use super::CompletionQueue;
use super::poll::{end_binds, retire_recv, retire_send};
use crate::backend::Provider;
use crate::error::DeviceLoss;
use crate::shared::{QpSlot, Shared};
use crate::storage::MARKER_BYTES;
use crate::sync::Ordering;
use crate::{Completion, WcData, WcOpcode, WcStatus};

/// Implements [`FlushNext`](super::FlushNext) for a queue into which queue pairs alone complete.
pub(crate) fn flush_next<P: Provider>(queue: &CompletionQueue<'_, P>) -> Option<Completion> {
    let shared = &queue.shared;
    // Round all queue pairs from the last one that had something: one that is posting meanwhile may have something again.
    let (first, count) = (usize::from(queue.flushing.get()), shared.qps.len());
    (0..count).find_map(|step| {
        let index = first.wrapping_add(step);
        let index = if index < count { index } else { index.wrapping_sub(count) };
        let (slot, cq) = (shared.qps.get(index)?, queue.handle.index());
        let done = flush(shared, slot, cq).or_else(|| flush_shared(shared, slot, cq))?;
        queue.flushing.set(index as u16);
        Some(done)
    })
}

/// Returns the completion of a request that a lost device has left.
fn lost_request(slot: &QpSlot<'_>, wr_id: u64, opcode: WcOpcode, loss: DeviceLoss) -> Completion {
    let (qp, qpn, status, data) = (slot.handle(), slot.qpn(), WcStatus::WrFlushErr, WcData::Lost(loss));
    Completion { wr_id, qp, qpn, opcode, status, vendor_err: 0, byte_len: 0, data }
}

/// Flushes a request of the shared receive queue of a queue pair whose receives complete into the queue in slot `cq`.
fn flush_shared(shared: &Shared<'_>, slot: &QpSlot<'_>, cq: u16) -> Option<Completion> {
    if slot.recv_cq() != cq || slot.is_none_or_gone() {
        return None;
    }
    let (srq, generation) = shared.srq_of(slot)?;
    let loss = srq.loss()?;
    Some(lost_request(slot, srq.flush(generation)?, WcOpcode::Recv, loss))
}

/// Flushes the oldest request of a queue pair that completes into the queue in slot `cq`.
fn flush(shared: &Shared<'_>, slot: &QpSlot<'_>, cq: u16) -> Option<Completion> {
    let loss = slot.loss()?;
    let qp = slot.handle();
    let done = |wr_id, opcode| lost_request(slot, wr_id, opcode, loss);
    if slot.send_cq() == cq
        && let Some(at) = slot.send.oldest()
        && let Some(facts) = retire_send(slot, at)
    {
        if slot.binds.load(Ordering::Acquire) != 0 {
            end_binds(shared, slot, qp, at, at, true);
        }
        // A marker that a drain has left is known by its length; of all others it says nothing.
        let byte_len = if facts.bytes == MARKER_BYTES { MARKER_BYTES } else { 0 };
        return Some(Completion { byte_len, ..done(facts.wr_id, facts.opcode) });
    }
    if slot.recv_cq() == cq
        && let Some(at) = slot.recv.oldest()
        && let Some(wr_id) = retire_recv(slot, at)
    {
        return Some(done(wr_id, WcOpcode::Recv));
    }
    None
}

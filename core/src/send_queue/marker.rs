//! The last request of a send queue: its completion says that all before it are done.

use super::PostCursor;
use crate::backend::{DataOp, DataOpcode, Provider, SendRing, SendWriter};
use crate::storage::MARKER_BYTES;
use crate::{Remote, SendFlags, SendQueue, WcOpcode};

/// `wr_id` of a marker.
pub(crate) const MARKER_WR_ID: u64 = u64::MAX;

impl<P: Provider> SendQueue<'_, P> {
    /// Posts a marker to a queue pair in ERR and rings the doorbell; `false` if there is no room. The device flushes it whatever it
    /// is: Linux posts an RDMA_WRITE without bytes on each transport (`__ib_drain_sq`).
    pub(crate) fn post_marker(&mut self) -> bool {
        let op = DataOp { opcode: DataOpcode::Write, remote: Remote::NONE, immediate: 0 };
        let blocks = <P::SendRing as SendRing>::Writer::<'_>::sge_blocks(op.opcode, 0);
        if self.free_blocks() < blocks {
            return false;
        }
        let mut open = PostCursor::new(self);
        open.writer.put_sges(open.head, &op, &[], SendFlags::SIGNALED);
        open.remember(MARKER_WR_ID, MARKER_BYTES, blocks, WcOpcode::RdmaWrite);
        open.ring();
        true
    }
}

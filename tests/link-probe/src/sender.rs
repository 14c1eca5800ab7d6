//! Writes to the peer, and their completions.

use bareverbs::{Completion, CqHandle, Errno, PostSendError, QpHandle, Remote, SendFlags, Sge};

use crate::machine::ProbeVerbs;

/// Returns a result as C has it.
pub fn code(result: Result<(), Errno>) -> i32 {
    result.err().map_or(0, Errno::number)
}

/// Posts an RDMA_WRITE with its doorbell.
#[unsafe(no_mangle)]
pub extern "C" fn probe_write(verbs: &mut ProbeVerbs, qp: &QpHandle, wr_id: u64, remote: &Remote, sge: &Sge) -> i32 {
    let written = verbs
        .send_batch(*qp)
        .map_err(PostSendError::from)
        .and_then(|mut batch| batch.write(wr_id, SendFlags::SIGNALED, *remote, &[*sge]));
    code(written.map_err(|error| error.errno()))
}

/// Takes completions into the caller's slice; returns their number, or an errno below zero.
#[unsafe(no_mangle)]
pub extern "C" fn probe_poll_cq(verbs: &mut ProbeVerbs, cq: &CqHandle, out: &mut &mut [Completion]) -> i32 {
    verbs.poll_cq(*cq, out).map_or_else(|error| -error.errno().number(), |taken| taken as i32)
}

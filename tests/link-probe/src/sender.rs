//! Writes to the peer, and their completions.

use bareverbs::error::Errno;
use bareverbs::{Completion, Remote, SendWr, Sge};

use crate::machine::{ProbeCompletionQueue, ProbeSendQueue};

/// Returns a result as C has it.
pub fn code(result: Result<(), Errno>) -> i32 {
    result.err().map_or(0, Errno::number)
}

/// Posts an RDMA_WRITE with its doorbell.
#[unsafe(no_mangle)]
pub extern "C" fn probe_write(send: &mut ProbeSendQueue, wr_id: u64, remote: &Remote, sge: &Sge) -> i32 {
    code(send.post(&SendWr::write(*remote, &[*sge]).id(wr_id).signaled()).map_err(|error| error.errno()))
}

/// Takes completions into the caller's slice; returns their number, or an errno below zero.
#[unsafe(no_mangle)]
pub extern "C" fn probe_poll_cq(cq: &mut ProbeCompletionQueue, out: &mut &mut [Completion]) -> i32 {
    cq.poll(out).map_or_else(|error| -error.errno().number(), |taken| taken as i32)
}

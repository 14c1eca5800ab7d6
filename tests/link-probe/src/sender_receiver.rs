//! Messages to the peer and from it.

use bareverbs::{RecvWr, SendWr, Sge};

use crate::machine::{ProbeCompletionQueue, ProbeRecvQueue, ProbeSendQueue};
use crate::sender::code;

/// Posts a SEND with its doorbell.
#[unsafe(no_mangle)]
pub extern "C" fn probe_send(send: &mut ProbeSendQueue, wr_id: u64, sge: &Sge) -> i32 {
    code(send.post(&SendWr::send(&[*sge]).id(wr_id).signaled()).map_err(|error| error.errno()))
}

/// Posts one receive.
#[unsafe(no_mangle)]
pub extern "C" fn probe_post_recv(recv: &mut ProbeRecvQueue, wr: &RecvWr<'_>) -> i32 {
    code(recv.post(wr).map_err(|error| error.errno()))
}

/// Requests the next completion event.
#[unsafe(no_mangle)]
pub extern "C" fn probe_req_notify_cq(cq: &mut ProbeCompletionQueue) -> i32 {
    code(cq.req_notify(false).map_err(|error| error.errno()))
}

//! Messages to the peer and from it.

use bareverbs::{CqHandle, PostSendError, QpHandle, RecvWr, SendFlags, Sge};

use crate::machine::ProbeVerbs;
use crate::sender::code;

/// Posts a SEND with its doorbell.
#[unsafe(no_mangle)]
pub extern "C" fn probe_send(verbs: &mut ProbeVerbs, qp: &QpHandle, wr_id: u64, sge: &Sge) -> i32 {
    let sent = verbs
        .send_batch(*qp)
        .map_err(PostSendError::from)
        .and_then(|mut batch| batch.send(wr_id, SendFlags::SIGNALED, &[*sge]));
    code(sent.map_err(|error| error.errno()))
}

/// Posts one receive.
#[unsafe(no_mangle)]
pub extern "C" fn probe_post_recv(verbs: &mut ProbeVerbs, qp: &QpHandle, wr: &RecvWr<'_>) -> i32 {
    code(verbs.post_recv(*qp, wr).map_err(|error| error.errno()))
}

/// Requests the next completion event.
#[unsafe(no_mangle)]
pub extern "C" fn probe_req_notify_cq(verbs: &mut ProbeVerbs, cq: &CqHandle) -> i32 {
    code(verbs.req_notify_cq(*cq, false).map_err(|error| error.errno()))
}

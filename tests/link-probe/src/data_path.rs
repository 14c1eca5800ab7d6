//! Post and poll, each as one function that a linker can see.

use bareverbs::{Completion, CqHandle, Errno, MwBind, MwHandle, QpHandle, RecvWr, SendWr};

use crate::machine::ProbeVerbs;

fn code(result: Result<(), Errno>) -> i32 {
    result.err().map_or(0, |errno| errno.number())
}

/// One send with its doorbell.
#[unsafe(no_mangle)]
pub extern "C" fn probe_post_send(verbs: &mut ProbeVerbs, qp: &QpHandle, wr: &SendWr<'_>) -> i32 {
    code(verbs.post_send(*qp, wr).map_err(|error| error.errno()))
}

/// A list of sends with one doorbell.
#[unsafe(no_mangle)]
pub extern "C" fn probe_post_send_list(verbs: &mut ProbeVerbs, qp: &QpHandle, list: &&[SendWr<'_>]) -> i32 {
    code(verbs.post_send_list(*qp, list).map_err(|bad| bad.error.errno()))
}

/// A batch that is opened once.
#[unsafe(no_mangle)]
pub extern "C" fn probe_batch(verbs: &mut ProbeVerbs, qp: &QpHandle, list: &&[SendWr<'_>]) -> i32 {
    let Ok(mut queue) = verbs.send_queue(*qp) else { return -1 };
    for wr in *list {
        if queue.post(wr).is_err() {
            break;
        }
    }
    i32::from(queue.commit().is_err())
}

/// A type 1 bind.
#[unsafe(no_mangle)]
pub extern "C" fn probe_bind_mw(verbs: &mut ProbeVerbs, qp: &QpHandle, mw: &MwHandle, bind: &MwBind) -> i32 {
    code(verbs.bind_mw(*qp, *mw, bind).map(drop).map_err(|error| error.errno()))
}

/// One receive.
#[unsafe(no_mangle)]
pub extern "C" fn probe_post_recv(verbs: &mut ProbeVerbs, qp: &QpHandle, wr: &RecvWr<'_>) -> i32 {
    code(verbs.post_recv(*qp, wr).map_err(|error| error.errno()))
}

/// A list of receives.
#[unsafe(no_mangle)]
pub extern "C" fn probe_post_recv_list(verbs: &mut ProbeVerbs, qp: &QpHandle, list: &&[RecvWr<'_>]) -> i32 {
    code(verbs.post_recv_list(*qp, list).map_err(|bad| bad.error.errno()))
}

/// Completions into the caller's slice; gives their number, or an errno below zero.
#[unsafe(no_mangle)]
pub extern "C" fn probe_poll_cq(verbs: &mut ProbeVerbs, cq: &CqHandle, out: &mut &mut [Completion]) -> i32 {
    verbs.poll_cq(*cq, out).map_or_else(|error| -error.errno().number(), |taken| taken as i32)
}

/// A request for the next completion event.
#[unsafe(no_mangle)]
pub extern "C" fn probe_req_notify_cq(verbs: &mut ProbeVerbs, cq: &CqHandle) -> i32 {
    code(verbs.req_notify_cq(*cq, false).map_err(|error| error.errno()))
}

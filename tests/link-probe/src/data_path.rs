//! The other ways to post and poll, each as one function that a linker can see.

use bareverbs::{Completion, CqHandle, MwBind, MwHandle, QpHandle, RecvWr, SendWr};

use crate::machine::ProbeVerbs;
use crate::sender::code;

/// Posts one send with its doorbell.
#[unsafe(no_mangle)]
pub extern "C" fn probe_post_send(verbs: &mut ProbeVerbs, qp: &QpHandle, wr: &SendWr<'_>) -> i32 {
    code(verbs.post_send(*qp, wr).map_err(|error| error.errno()))
}

/// Posts a list of sends with one doorbell.
#[unsafe(no_mangle)]
pub extern "C" fn probe_post_send_list(verbs: &mut ProbeVerbs, qp: &QpHandle, list: &&[SendWr<'_>]) -> i32 {
    code(verbs.post_send_list(*qp, list).map_err(|bad| bad.error.errno()))
}

/// Opens a batch once; its end rings the doorbell.
#[unsafe(no_mangle)]
pub extern "C" fn probe_batch(verbs: &mut ProbeVerbs, qp: &QpHandle, list: &&[SendWr<'_>]) -> i32 {
    let Ok(mut batch) = verbs.send_batch(*qp) else { return -1 };
    for wr in *list {
        if let Err(error) = batch.post(wr) {
            return error.errno().number();
        }
    }
    0
}

/// Binds a type 1 window.
#[unsafe(no_mangle)]
pub extern "C" fn probe_bind_mw(verbs: &mut ProbeVerbs, qp: &QpHandle, mw: &MwHandle, bind: &MwBind) -> i32 {
    code(verbs.bind_mw(*qp, *mw, bind).map(drop).map_err(|error| error.errno()))
}

/// Rings the doorbell for what a forgotten batch has left.
#[unsafe(no_mangle)]
pub extern "C" fn probe_ring_send_queue(verbs: &mut ProbeVerbs, qp: &QpHandle) -> i32 {
    code(verbs.ring_send_queue(*qp).map_err(|error| error.errno()))
}

/// Posts a list of receives.
#[unsafe(no_mangle)]
pub extern "C" fn probe_post_recv_list(verbs: &mut ProbeVerbs, qp: &QpHandle, list: &&[RecvWr<'_>]) -> i32 {
    code(verbs.post_recv_list(*qp, list).map_err(|bad| bad.error.errno()))
}

/// Takes completions one by one; returns their number, or an errno below zero.
#[unsafe(no_mangle)]
pub extern "C" fn probe_completions(verbs: &mut ProbeVerbs, cq: &CqHandle, take: extern "C" fn(&Completion)) -> i32 {
    let completions = match verbs.completions(*cq) {
        Ok(completions) => completions,
        Err(error) => return -error.errno().number(),
    };
    let mut taken = 0_i32;
    for completion in completions {
        match completion {
            Ok(completion) => take(&completion),
            Err(error) => return -error.errno().number(),
        }
        taken = taken.wrapping_add(1);
    }
    taken
}

//! The other ways to post and poll, each as one function that a linker can see.

use bareverbs::{Completion, MwHandle, RecvWr, SendWr, Type1Bind};

use crate::machine::{ProbeCompletionQueue, ProbeRecvQueue, ProbeSendQueue};
use crate::sender::code;

/// Posts one send with its doorbell.
#[unsafe(no_mangle)]
pub extern "C" fn probe_post_send(send: &mut ProbeSendQueue, wr: &SendWr<'_>) -> i32 {
    code(send.post(wr).map_err(|error| error.errno()))
}

/// Posts a list of sends with one doorbell.
#[unsafe(no_mangle)]
pub extern "C" fn probe_post_send_list(send: &mut ProbeSendQueue, list: &&[SendWr<'_>]) -> i32 {
    code(send.post_list(list).map_err(|bad| bad.error.errno()))
}

/// Opens a batch once; its end rings the doorbell.
#[unsafe(no_mangle)]
pub extern "C" fn probe_batch(send: &mut ProbeSendQueue, list: &&[SendWr<'_>]) -> i32 {
    let mut batch = send.batch();
    for wr in *list {
        if let Err(error) = batch.post(wr) {
            return error.errno().number();
        }
    }
    0
}

/// Binds a type 1 window.
#[unsafe(no_mangle)]
pub extern "C" fn probe_bind_mw(send: &mut ProbeSendQueue, mw: &MwHandle, bind: &Type1Bind) -> i32 {
    code(send.bind_type1(*mw, bind).map(drop).map_err(|error| error.errno()))
}

/// Rings the doorbell for what a forgotten batch has left.
#[unsafe(no_mangle)]
pub extern "C" fn probe_ring_send_queue(send: &mut ProbeSendQueue) {
    send.ring();
}

/// Posts a list of receives.
#[unsafe(no_mangle)]
pub extern "C" fn probe_post_recv_list(recv: &mut ProbeRecvQueue, list: &&[RecvWr<'_>]) -> i32 {
    code(recv.post_list(list).map_err(|bad| bad.error.errno()))
}

/// Takes completions one by one; returns their number, or an errno below zero.
#[unsafe(no_mangle)]
pub extern "C" fn probe_completions(cq: &mut ProbeCompletionQueue, take: extern "C" fn(&Completion)) -> i32 {
    let mut taken = 0_i32;
    for completion in cq.completions() {
        match completion {
            Ok(completion) => take(&completion),
            Err(error) => return -error.errno().number(),
        }
        taken = taken.wrapping_add(1);
    }
    taken
}

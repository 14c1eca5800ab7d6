//! What a program with datagrams adds, each as a function that a linker can see.

use core::mem::MaybeUninit;

use bareverbs::{
    AddressHandle, AddressVector, Completion, Destination, Gid, PdHandle, QpHandle, QpInit, QpType, SendWr, Sge, Source,
};

use crate::control_path::give;
use crate::machine::{ProbeCompletionQueue, ProbeQueuePair, ProbeSendQueue, ProbeVerbs};
use crate::sender::code;

#[unsafe(no_mangle)]
pub extern "C" fn probe_create_ud_qp(verbs: &mut ProbeVerbs, init: &QpInit, qp: &mut MaybeUninit<ProbeQueuePair>) -> i32 {
    give(qp, verbs.create_qp(&QpInit { qp_type: QpType::Ud, ..*init }), |error| error.errno())
}

#[unsafe(no_mangle)]
pub extern "C" fn probe_create_ah(
    verbs: &mut ProbeVerbs,
    pd: &PdHandle,
    av: &AddressVector,
    ah: &mut MaybeUninit<AddressHandle>,
) -> i32 {
    give(ah, verbs.create_ah(*pd, av), |error| error.errno())
}

/// Posts a datagram with its doorbell.
#[unsafe(no_mangle)]
pub extern "C" fn probe_send_to(send: &mut ProbeSendQueue, wr_id: u64, to: &Destination, sge: &Sge) -> i32 {
    code(send.post(&SendWr::send_to(to, &[*sge]).id(wr_id).signaled()).map_err(|error| error.errno()))
}

/// Takes completions one by one, with their sources; returns their number, or an errno below zero.
#[unsafe(no_mangle)]
pub extern "C" fn probe_sources(cq: &mut ProbeCompletionQueue, take: extern "C" fn(&Completion, Option<&Source>)) -> i32 {
    let mut taken = 0_i32;
    for done in cq.completions().with_source() {
        match done {
            Ok((completion, source)) => take(&completion, source.as_ref()),
            Err(error) => return -error.errno().number(),
        }
        taken = taken.wrapping_add(1);
    }
    taken
}

#[unsafe(no_mangle)]
pub extern "C" fn probe_attach_mcast(verbs: &mut ProbeVerbs, qp: &QpHandle, gid: &Gid) -> i32 {
    code(verbs.attach_mcast(*qp, gid).map_err(|error| error.errno()))
}

#[unsafe(no_mangle)]
pub extern "C" fn probe_detach_mcast(verbs: &mut ProbeVerbs, qp: &QpHandle, gid: &Gid) -> i32 {
    code(verbs.detach_mcast(*qp, gid).map_err(|error| error.errno()))
}

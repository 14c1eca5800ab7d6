//! What a program with XRC adds, each as a function that a linker can see.

use core::mem::MaybeUninit;

use bareverbs::{Lkey, NoReceives, QpInit, QueuePair, RecvWr, SendWr, Sge, SharedReceiveQueue, SrqInit, Srqn, XrcDomain};

use crate::control_path::give;
use crate::machine::{ProbeCompletionQueue, ProbeDriver, ProbeSendQueue, ProbeVerbs};
use crate::sender::code;

type Domain = XrcDomain<&'static mut ProbeDriver>;
type Srq = SharedReceiveQueue<'static, &'static mut ProbeDriver>;
type Xrc = QueuePair<'static, &'static mut ProbeDriver, NoReceives>;

#[unsafe(no_mangle)]
pub extern "C" fn probe_alloc_xrcd(verbs: &mut ProbeVerbs, domain: &mut MaybeUninit<Domain>) -> i32 {
    give(domain, verbs.alloc_xrcd(), |error| error.errno())
}

/// Destroys a domain.
///
/// # Safety
/// `domain` is read, and not the caller's any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn probe_dealloc_xrcd(verbs: &mut ProbeVerbs, domain: &MaybeUninit<Domain>) -> i32 {
    // SAFETY: the caller gives the domain away.
    let domain = unsafe { domain.assume_init_read() };
    code(verbs.dealloc_xrcd(domain).map_err(|refused| refused.error.errno()))
}

#[unsafe(no_mangle)]
pub extern "C" fn probe_create_xrc_srq(
    verbs: &mut ProbeVerbs,
    init: &SrqInit,
    domain: &Domain,
    cq: &mut ProbeCompletionQueue,
    srq: &mut MaybeUninit<Srq>,
) -> i32 {
    give(srq, verbs.create_xrc_srq(init, domain, cq), |error| error.errno())
}

/// Destroys a shared receive queue.
///
/// # Safety
/// `srq` is read, and not the caller's any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn probe_destroy_srq(verbs: &mut ProbeVerbs, srq: &MaybeUninit<Srq>) -> i32 {
    // SAFETY: the caller gives the queue away.
    let srq = unsafe { srq.assume_init_read() };
    code(verbs.destroy_srq(srq).map_err(|refused| refused.error.errno()))
}

#[unsafe(no_mangle)]
pub extern "C" fn probe_post_srq(srq: &mut Srq, wr_id: u64, addr: u64, length: u32, lkey: u32) -> i32 {
    let sge = Sge { addr, length, lkey: Lkey::new(lkey) };
    code(srq.post(&RecvWr { wr_id, sges: &[sge] }).map_err(|error| error.errno()))
}

#[unsafe(no_mangle)]
pub extern "C" fn probe_create_xrc_send_qp(
    verbs: &mut ProbeVerbs,
    init: &QpInit,
    domain: &Domain,
    qp: &mut MaybeUninit<Xrc>,
) -> i32 {
    give(qp, verbs.create_xrc_send_qp(init, domain), |error| error.errno())
}

#[unsafe(no_mangle)]
pub extern "C" fn probe_create_xrc_recv_qp(verbs: &mut ProbeVerbs, domain: &Domain, qp: &mut MaybeUninit<Xrc>) -> i32 {
    give(qp, verbs.create_xrc_recv_qp(domain), |error| error.errno())
}

/// Posts a send to a shared receive queue with its doorbell.
#[unsafe(no_mangle)]
pub extern "C" fn probe_send_to_srq(send: &mut ProbeSendQueue, wr_id: u64, srqn: Srqn, sge: &Sge) -> i32 {
    code(send.post(&SendWr::send(&[*sge]).id(wr_id).signaled().to_srq(srqn)).map_err(|error| error.errno()))
}

//! Shared receive queues, and XRC.

use bareverbs::{PdHandle, SrqCap, SrqHandle, SrqInit};

use crate::argument::{Argument, Output, reference, slice};
use crate::call::{Up, cq_of, on_verbs, srq_place};
use crate::device::{CQueuePair, CSharedQueue, bv_device};
use crate::failure::Failure;
use crate::post::{post_list, post_receives};
use crate::queues::{bv_qp_init, keep_qp};
use crate::{BV_MAX_XRCD, bv_cq, bv_pd, bv_qp, bv_recv_wr, bv_srq, bv_xrcd};

/// A shared receive queue to make.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct bv_srq_init {
    /// Protection domain of the memory of its receives, and of the keys of XRC requests that name it.
    pub pd: bv_pd,
    /// XRC domain. bv_create_srq ignores it.
    pub xrcd: bv_xrcd,
    /// Queue for its completions, with room for each of its receives. bv_create_srq ignores it: each receive completes where the queue
    /// pair that took it says.
    pub cq: bv_cq,
    /// Receives in flight, at least.
    pub max_wr: u32,
    /// SGEs of a receive, at least.
    pub max_sge: u32,
}

/// Makes an XRC domain: requests that arrive at a target of it (bv_create_xrc_recv_qp) take from its shared receive queues, and from no
/// others. An initiator (bv_create_xrc_send_qp) needs a domain of its own device too, which need not have a queue.
///
/// Errors: BV_ENOMEM, there are BV_MAX_XRCD. BV_EOPNOTSUPP, the device has no XRC. Others: the device did not do it.
///
/// # Safety
/// `device` is of bv_init; `xrcd` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bv_alloc_xrcd(device: *mut bv_device, xrcd: *mut bv_xrcd) -> i32 {
    // SAFETY: as promised.
    unsafe {
        on_verbs(device, |up| {
            let place = Output::new(xrcd, "xrcd")?;
            if !up.domains.has_room() {
                return Err(Argument::Full("XRC domains", BV_MAX_XRCD).into());
            }
            place.set(bv_xrcd { number: up.domains.insert(up.verbs.alloc_xrcd()?) });
            Ok(0)
        })
    }
}

/// Destroys an XRC domain.
///
/// Errors: BV_EINVAL, the number names none. BV_EBUSY, queues are in it. Others: the device did not do it, and the domain is as
/// before.
///
/// # Safety
/// `device` is of bv_init.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bv_dealloc_xrcd(device: *mut bv_device, xrcd: bv_xrcd) -> i32 {
    // SAFETY: as promised.
    unsafe {
        on_verbs(device, |up| {
            let (made, domain) = up.domains.take(xrcd.number)?;
            if let Err(refused) = up.verbs.dealloc_xrcd(domain) {
                if let Some(domain) = refused.returned {
                    up.domains.put_back(xrcd.number, (made, domain));
                }
                return Err(refused.error.into());
            }
            Ok(0)
        })
    }
}

/// Makes a shared receive queue of an XRC domain. Peers name it in each request by srq_num.
///
/// A completion of it has the target by which the message came as its queue pair.
///
/// Errors: BV_EINVAL, a number is stale, or a capacity exceeds the device's. BV_ENOMEM, there are BV_MAX_SRQ, max_wr exceeds
/// BV_MAX_SRQ_RECV, or no memory is left. Others: the device did not do it.
///
/// # Safety
/// `device` is of bv_init; `init` is readable and `srq` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bv_create_xrc_srq(device: *mut bv_device, init: *const bv_srq_init, srq: *mut bv_srq) -> i32 {
    // SAFETY: as promised.
    unsafe {
        on_verbs(device, |up| {
            let place = Output::new(srq, "srq")?;
            let bv_srq_init { pd, xrcd, cq, max_wr, max_sge } = *reference(init, "init")?;
            let init = SrqInit { pd: PdHandle::from_raw(pd.number), cap: SrqCap { max_wr, max_sge } };
            let (domain, cq) = (up.domains.get(xrcd.number)?, cq_of(up.cqs, cq)?);
            let queue = up.verbs.create_xrc_srq(&init, domain, cq)?;
            place.set(keep_srq(up, queue)?);
            Ok(0)
        })
    }
}

/// Keeps a shared receive queue that was made, and returns what C gets of it.
fn keep_srq(up: Up<'_>, queue: CSharedQueue) -> Result<bv_srq, Failure> {
    let handle = queue.handle();
    let srq_num = up.verbs.srq_info(handle)?.srqn.get();
    if let Some(slot) = up.srqs.get_mut(usize::from(handle.index())) {
        *slot = Some(queue);
    }
    Ok(bv_srq { number: handle.into_raw(), srq_num })
}

/// Makes a shared receive queue, from which several queue pairs take their receives (bv_create_qp_with_srq). Each receive completes where
/// the queue pair that took it completes its receives, in any order. In `init` xrcd and cq are ignored.
///
/// Errors: BV_EINVAL, the protection domain's number is stale, or a capacity exceeds the device's. BV_ENOMEM, there are BV_MAX_SRQ, max_wr
/// exceeds BV_MAX_SRQ_RECV, or no memory is left. BV_EAGAIN, completions of an earlier XRC one are not polled yet. Others: the device
/// did not do it.
///
/// # Safety
/// `device` is of bv_init; `init` is readable and `srq` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bv_create_srq(device: *mut bv_device, init: *const bv_srq_init, srq: *mut bv_srq) -> i32 {
    // SAFETY: as promised.
    unsafe {
        on_verbs(device, |up| {
            let place = Output::new(srq, "srq")?;
            let bv_srq_init { pd, max_wr, max_sge, .. } = *reference(init, "init")?;
            let init = SrqInit { pd: PdHandle::from_raw(pd.number), cap: SrqCap { max_wr, max_sge } };
            let queue = up.verbs.create_srq(&init)?;
            place.set(keep_srq(up, queue)?);
            Ok(0)
        })
    }
}

/// Makes an initiator of XRC, in the state RESET: it sends to the shared receive queues of its peer's domain, each request to the
/// one that it names (bv_send_wr.remote_srqn). Its peer is a target. Of `init`, qp_type and what is about receives are ignored;
/// `xrcd` is any domain of this device.
///
/// Errors: as of bv_create_qp; BV_EINVAL also if the number names no domain.
///
/// # Safety
/// `device` is of bv_init; `init` is readable and `qp` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bv_create_xrc_send_qp(
    device: *mut bv_device,
    init: *const bv_qp_init,
    xrcd: bv_xrcd,
    qp: *mut bv_qp,
) -> i32 {
    // SAFETY: as promised.
    unsafe {
        on_verbs(device, |up| {
            let place = Output::new(qp, "qp")?;
            let init = reference(init, "init")?.verbs_init()?;
            let queues = up.verbs.create_xrc_send_qp(&init, up.domains.get(xrcd.number)?)?;
            place.set(keep_qp(up, CQueuePair::Xrc(queues))?);
            Ok(0)
        })
    }
}

/// Makes a target of XRC, in the state RESET: it receives for the shared receive queues of its domain, whichever a request names,
/// and has no completions of its own. Its peer is an initiator. RTR suffices for it, and nothing can be posted to it.
///
/// Errors: BV_EINVAL, the number names no domain. BV_ENOMEM, there are BV_MAX_QP. Others: the device did not do it.
///
/// # Safety
/// `device` is of bv_init; `qp` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bv_create_xrc_recv_qp(device: *mut bv_device, xrcd: bv_xrcd, qp: *mut bv_qp) -> i32 {
    // SAFETY: as promised.
    unsafe {
        on_verbs(device, |up| {
            let place = Output::new(qp, "qp")?;
            let queues = up.verbs.create_xrc_recv_qp(up.domains.get(xrcd.number)?)?;
            place.set(keep_qp(up, CQueuePair::Xrc(queues))?);
            Ok(0)
        })
    }
}

/// Asks for BV_EVENT_SRQ_LIMIT_REACHED when fewer than `limit` receives are left in a shared receive queue, once.
///
/// Errors: BV_EINVAL, the number is stale, or the limit is greater than the queue. Others: the device did not do it.
///
/// # Safety
/// `device` is of bv_init.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bv_arm_srq(device: *mut bv_device, srq: bv_srq, limit: u32) -> i32 {
    // SAFETY: as promised.
    unsafe {
        on_verbs(device, |up| {
            up.verbs.arm_srq(SrqHandle::from_raw(srq.number), limit)?;
            Ok(0)
        })
    }
}

/// Posts `count` receives to a shared receive queue up to the first that is refused, with a doorbell for each, and writes how many
/// were posted: the index of the one that was refused. `posted` may be NULL.
///
/// Errors: BV_EINVAL, a stale number, the number of SGEs or a key. BV_ENOSPC, the queue is full. BV_EPERM, BV_EACCES, BV_ERANGE,
/// BV_EIO as of bv_post_send.
///
/// # Safety
/// As of bv_post_send.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bv_post_srq_recv(
    device: *mut bv_device,
    srq: bv_srq,
    wrs: *const bv_recv_wr,
    count: usize,
    posted: *mut usize,
) -> i32 {
    // SAFETY: as promised.
    unsafe {
        on_verbs(device, |up| {
            post_list(posted, |done| {
                let wrs = slice(wrs, count, "wrs")?;
                let queue = srq_place(up.srqs, srq)?.as_mut().ok_or(Argument::Stale("shared receive queue"))?;
                post_receives(wrs, done, &mut |wr| queue.post(wr))
            })
        })
    }
}

/// Destroys a shared receive queue with all that is posted: no completion of it is given afterwards.
///
/// Errors: BV_EINVAL, the number names none. BV_EBUSY, queue pairs take their receives from it. Others: the device did not do it, and the
/// queue is as before.
///
/// # Safety
/// `device` is of bv_init.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bv_destroy_srq(device: *mut bv_device, srq: bv_srq) -> i32 {
    // SAFETY: as promised.
    unsafe {
        on_verbs(device, |up| {
            let place = srq_place(up.srqs, srq)?;
            let Some(queue) = place.take() else { return Err(Argument::Stale("shared receive queue").into()) };
            if let Err(refused) = up.verbs.destroy_srq(queue) {
                *place = refused.returned;
                return Err(refused.error.into());
            }
            Ok(0)
        })
    }
}

//! The end of queues before their memory is used for something else.

use core::ffi::c_void;
use core::time::Duration;

use bareverbs::{Completion, Drained};

use crate::argument::Argument;
use crate::call::{Up, cq_of, on_verbs, qp_of};
use crate::completion::bv_wc;
use crate::device::bv_device;
use crate::failure::Failure;
use crate::{bv_cq, bv_qp};

/// Gets each completion that comes out of the completion queue during a drain, of other queue pairs too.
type Give = Option<unsafe extern "C" fn(context: *mut c_void, wc: *const bv_wc)>;

/// Returns a function that gives completions to C; NULL drops them.
///
/// # Safety
/// The callback may be called with the context as long as the function is used.
unsafe fn giver(give: Give, context: *mut c_void) -> impl FnMut(Completion) {
    move |done| {
        if let Some(give) = give {
            let wc = bv_wc::from(&done);
            // SAFETY: as promised.
            unsafe { give(context, &raw const wc) };
        }
    }
}

/// Returns how many requests there were.
fn count(drained: Drained) -> i32 {
    i32::try_from(drained.total()).unwrap_or(i32::MAX)
}

/// Drains the sends of a queue pair.
///
/// # Safety
/// As of [`bv_drain_sq`].
unsafe fn drain_sends(up: Up<'_>, qp: bv_qp, timeout: Duration, give: Give, context: *mut c_void) -> Result<i32, Failure> {
    let (send, _) = qp_of(up.qps, qp)?.send();
    let cq = up.verbs.qp_info(send.qp())?.send_cq;
    let queue = cq_of(up.cqs, bv_cq { number: cq.into_raw(), cqe: 0 })?;
    // SAFETY: as promised.
    Ok(count(up.verbs.drain_sq(send, queue, timeout, unsafe { giver(give, context) })?))
}

/// Moves a queue pair to ERR and waits until each send that was posted is done or flushed; returns how many there were. Then the device
/// uses the memory of none of them. `give`, unless NULL, gets what comes out of the completion queue meanwhile, of other queue pairs too,
/// without the sources of datagrams. The completion queue needs an entry for one request more.
///
/// Errors: BV_EINVAL, the number is stale. BV_ETIMEDOUT, not all are done in time: the call may be repeated. If it is not,
/// one poll of the queue returns the marker of the drain, which is no request of yours: BV_WC_RDMA_WRITE, flushed, with wr_id and byte_len of all ones.
/// Others: the device did not do it, is lost, or wrote a completion that fits nothing.
///
/// # Safety
/// `device` is of bv_init. `give` is NULL or returns normally; it may be called with `context`, and a completion that is readable during
/// its call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bv_drain_sq(
    device: *mut bv_device,
    qp: bv_qp,
    timeout_ms: u32,
    give: Option<unsafe extern "C" fn(context: *mut c_void, wc: *const bv_wc)>,
    context: *mut c_void,
) -> i32 {
    // SAFETY: as promised.
    unsafe { on_verbs(device, |up| drain_sends(up, qp, Duration::from_millis(timeout_ms.into()), give, context)) }
}

/// Drains the receives of a queue pair.
///
/// # Safety
/// As of [`bv_drain_rq`].
unsafe fn drain_receives(up: Up<'_>, qp: bv_qp, timeout: Duration, give: Give, context: *mut c_void) -> Result<i32, Failure> {
    let recv = qp_of(up.qps, qp)?.recv().ok_or(Argument::NoReceives)?;
    let cq = up.verbs.qp_info(recv.qp())?.recv_cq;
    let queue = cq_of(up.cqs, bv_cq { number: cq.into_raw(), cqe: 0 })?;
    // SAFETY: as promised.
    Ok(count(up.verbs.drain_rq(recv, queue, timeout, unsafe { giver(give, context) })?))
}

/// Moves a queue pair to ERR and waits until each receive that was posted is done or flushed; returns how many there were. Then the device
/// writes into the memory of none of them. `give` is that of bv_drain_sq.
///
/// Errors: as of bv_drain_sq. BV_EOPNOTSUPP, the queue pair has no receives of its own.
///
/// # Safety
/// As of bv_drain_sq.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bv_drain_rq(
    device: *mut bv_device,
    qp: bv_qp,
    timeout_ms: u32,
    give: Option<unsafe extern "C" fn(context: *mut c_void, wc: *const bv_wc)>,
    context: *mut c_void,
) -> i32 {
    // SAFETY: as promised.
    unsafe { on_verbs(device, |up| drain_receives(up, qp, Duration::from_millis(timeout_ms.into()), give, context)) }
}

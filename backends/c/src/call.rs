//! One call of C on a device: let in, done, its failure kept.

use core::ptr::NonNull;

use bareverbs::error::Errno;
use bareverbs::{AddressHandle, CqHandle, QpHandle, SrqHandle};

use crate::argument::Argument;
use crate::device::{CCompletionQueue, CDomain, CQueuePair, CSharedQueue, CVerbs, PollDatagrams, State, bv_device};
use crate::failure::Failure;
use crate::gate::{Closed, Gate};
use crate::machine::CMap;
use crate::numbered::Numbered;
use crate::{BV_MAX_AH, BV_MAX_XRCD, bv_cq, bv_qp, bv_srq};

/// Ends a call.
struct Entered<'a>(&'a Gate);

impl Drop for Entered<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// Returns what C gets for an errno.
pub(crate) const fn negative(errno: Errno) -> i32 {
    -errno.number()
}

/// Keeps a failure and returns its code.
#[cold]
#[inline(never)]
fn failed(state: &mut State, failure: Failure) -> i32 {
    let code = negative(failure.errno());
    state.failure = Some(failure);
    code
}

/// Does one call on a device, up or not.
///
/// # Safety
/// Unless NULL, `device` is storage that is aligned to 4 and in which `bv_init` was done, or that begins with other bytes.
#[inline(always)]
pub(crate) unsafe fn on_device(
    device: *mut bv_device,
    work: impl FnOnce(NonNull<bv_device>, &mut State) -> Result<i32, Failure>,
) -> i32 {
    let Some(device) = NonNull::new(device).filter(|device| device.is_aligned()) else { return negative(Errno::Einval) };
    // SAFETY: a field of the storage. Only shared references to it exist.
    let gate = unsafe { &(*device.as_ptr()).gate };
    match gate.enter() {
        Ok(()) => {}
        Err(Closed::Busy) => return negative(Errno::Ebusy),
        Err(Closed::NoDevice) => return negative(Errno::Einval),
    }
    let _entered = Entered(gate);
    // SAFETY: the gate lets one call in at a time, so nobody else has a reference to the state.
    let state = unsafe { &mut (*device.as_ptr()).state };
    match work(device, state) {
        Ok(value) => value,
        Err(failure) => failed(state, failure),
    }
}

/// A device that is up.
pub(crate) struct Up<'a> {
    pub(crate) verbs: &'a mut CVerbs,
    pub(crate) map: CMap,
    pub(crate) cqs: &'a mut [Option<CCompletionQueue>],
    pub(crate) qps: &'a mut [Option<CQueuePair>],
    pub(crate) srqs: &'a mut [Option<CSharedQueue>],
    pub(crate) domains: &'a mut Numbered<CDomain, BV_MAX_XRCD>,
    pub(crate) ahs: &'a mut Numbered<AddressHandle, BV_MAX_AH>,
    pub(crate) poll_datagrams: &'a mut Option<PollDatagrams>,
}

/// Does one call on a device that is up.
///
/// # Safety
/// As of [`on_device`].
#[inline(always)]
pub(crate) unsafe fn on_verbs(device: *mut bv_device, work: impl FnOnce(Up<'_>) -> Result<i32, Failure>) -> i32 {
    let work = |_, state: &mut State| {
        let State { verbs, map, cqs, qps, srqs, domains, ahs, poll_datagrams, .. } = state;
        let verbs = verbs.as_mut().ok_or(Argument::Down)?;
        work(Up { verbs, map: *map, cqs, qps, srqs, domains, ahs, poll_datagrams })
    };
    // SAFETY: as promised.
    unsafe { on_device(device, work) }
}

/// Returns the place of a queue pair, which is not empty.
#[inline(always)]
pub(crate) fn qp_place(qps: &mut [Option<CQueuePair>], qp: bv_qp) -> Result<&mut Option<CQueuePair>, Argument> {
    let handle = QpHandle::from_raw(qp.number);
    let place = qps.get_mut(usize::from(handle.index()));
    place.filter(|place| place.as_ref().is_some_and(|qp| qp.handle() == handle)).ok_or(Argument::Stale("queue pair"))
}

/// Returns a queue pair.
#[inline(always)]
pub(crate) fn qp_of(qps: &mut [Option<CQueuePair>], qp: bv_qp) -> Result<&mut CQueuePair, Argument> {
    qp_place(qps, qp)?.as_mut().ok_or(Argument::Stale("queue pair"))
}

/// Returns the place of a completion queue, which is not empty.
#[inline(always)]
pub(crate) fn cq_place(cqs: &mut [Option<CCompletionQueue>], cq: bv_cq) -> Result<&mut Option<CCompletionQueue>, Argument> {
    let handle = CqHandle::from_raw(cq.number);
    let place = cqs.get_mut(usize::from(handle.index()));
    place.filter(|place| place.as_ref().is_some_and(|cq| cq.handle() == handle)).ok_or(Argument::Stale("completion queue"))
}

/// Returns a completion queue.
#[inline(always)]
pub(crate) fn cq_of(cqs: &mut [Option<CCompletionQueue>], cq: bv_cq) -> Result<&mut CCompletionQueue, Argument> {
    cq_place(cqs, cq)?.as_mut().ok_or(Argument::Stale("completion queue"))
}

/// Returns the place of a shared receive queue, which is not empty.
#[inline(always)]
pub(crate) fn srq_place(srqs: &mut [Option<CSharedQueue>], srq: bv_srq) -> Result<&mut Option<CSharedQueue>, Argument> {
    let handle = SrqHandle::from_raw(srq.number);
    let place = srqs.get_mut(usize::from(handle.index()));
    let is_it = |queue: &CSharedQueue| queue.handle() == handle;
    place.filter(|place| place.as_ref().is_some_and(is_it)).ok_or(Argument::Stale("shared receive queue"))
}

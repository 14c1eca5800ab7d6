//! Completions: taken and asked for.

use bareverbs::Completion;

use crate::argument::{Argument, Output};
use crate::call::{cq_of, on_verbs};
use crate::completion::bv_wc;
use crate::device::{CCompletionQueue, bv_device};
use crate::failure::Failure;
use crate::{BV_MAX_POLL, bv_cq};

/// A [`PollDatagrams`](crate::device::PollDatagrams).
///
/// # Safety
/// `wcs` is `count` writable completions.
pub(crate) unsafe fn poll_datagrams(queue: &mut CCompletionQueue, wcs: *mut bv_wc, count: usize) -> Result<i32, Failure> {
    let mut done = [(Completion::EMPTY, None); BV_MAX_POLL];
    let room = done.get_mut(..count.min(BV_MAX_POLL)).unwrap_or_default();
    let taken = queue.poll_with_source(room)?;
    for (index, (completion, source)) in done.iter().take(taken).enumerate() {
        let wc = bv_wc::from(completion);
        let wc = source.as_ref().map_or(wc, |source| wc.with_source(source));
        // SAFETY: one of the caller's (promised).
        unsafe { Output::new(wcs.wrapping_add(index), "wcs") }?.set(wc);
    }
    Ok(i32::try_from(taken).unwrap_or(0))
}

/// Takes up to `count` completions, BV_MAX_POLL at most, and returns how many: 0 if none is there.
///
/// Errors: BV_EINVAL, the number is stale. BV_EBADMSG, the device wrote a completion that fits nothing; the others are still
/// there. BV_EIO, the queue overran, or the device is lost and every request was returned.
///
/// # Safety
/// `device` is of bv_init; `wcs` is `count` writable completions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bv_poll_cq(device: *mut bv_device, cq: bv_cq, wcs: *mut bv_wc, count: usize) -> i32 {
    // SAFETY: as promised.
    unsafe {
        on_verbs(device, |up| {
            let queue = cq_of(up.cqs, cq)?;
            if count == 0 {
                return Ok(0);
            }
            Output::new(wcs, "wcs")?;
            if let Some(poll) = *up.poll_datagrams {
                return poll(queue, wcs, count);
            }
            let mut done = [Completion::EMPTY; BV_MAX_POLL];
            let room = done.get_mut(..count.min(BV_MAX_POLL)).unwrap_or_default();
            let taken = queue.poll(room)?;
            for (index, completion) in done.iter().take(taken).enumerate() {
                Output::new(wcs.wrapping_add(index), "wcs")?.set(completion.into());
            }
            Ok(i32::try_from(taken).unwrap_or(0))
        })
    }
}

/// Arms a completion queue: its next completion gives BV_EVENT_COMPLETION, and an interrupt. With `solicited_only` 1 the next
/// solicited one, or the next that failed.
///
/// Errors: BV_EINVAL, the number is stale. BV_EIO, the queue is broken or the device is lost.
///
/// # Safety
/// `device` is of bv_init.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bv_req_notify_cq(device: *mut bv_device, cq: bv_cq, solicited_only: u32) -> i32 {
    // SAFETY: as promised.
    unsafe {
        on_verbs(device, |up| {
            let queue = cq_of(up.cqs, cq)?;
            if solicited_only > 1 {
                return Err(Argument::Value("solicited_only", solicited_only.into()).into());
            }
            queue.req_notify(solicited_only != 0)?;
            Ok(0)
        })
    }
}

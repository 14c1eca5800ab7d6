//! A device from its storage to its teardown.

use core::ffi::c_void;
use core::ptr::NonNull;

use bareverbs::error::Errno;
use bareverbs_mlx5::Config;

use crate::argument::{Argument, Output, reference};
use crate::call::{negative, on_device, on_verbs};
use crate::device::{CVerbs, Driver, State, bv_device};
use crate::failure::Failure;
use crate::machine::{CMap, machine};
use crate::platform::{bv_config, bv_platform};

/// Returns the bytes of storage that a device needs.
#[unsafe(no_mangle)]
pub extern "C" fn bv_storage_size() -> usize {
    size_of::<bv_device>()
}

/// Returns the alignment in bytes of the storage of a device.
#[unsafe(no_mangle)]
pub extern "C" fn bv_storage_align() -> usize {
    align_of::<bv_device>()
}

/// Makes a device that is not up in `size` bytes of storage, and writes where it is. The physical device is not touched.
///
/// Errors: there is no device yet that could have a text, the number is all. BV_EINVAL, a pointer is NULL, or `device` is
/// not aligned. BV_EFAULT, the storage is not aligned to bv_storage_align. BV_ENOMEM, it has fewer bytes than bv_storage_size.
///
/// # Safety
/// The storage is readable and writable and used for nothing else, until no call on the device follows. It was no device
/// before, or that one is not up. `device` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bv_init(storage: *mut c_void, size: usize, device: *mut *mut bv_device) -> i32 {
    // SAFETY: as promised.
    let (Some(place), Ok(device)) = (NonNull::new(storage.cast::<bv_device>()), unsafe { Output::new(device, "device") })
    else {
        return negative(Errno::Einval);
    };
    if !place.is_aligned() {
        return negative(Errno::Efault);
    }
    if size < size_of::<bv_device>() {
        return negative(Errno::Enomem);
    }
    // SAFETY: aligned and large enough; the rest was promised.
    unsafe { bv_device::init(place) };
    device.set(place.as_ptr());
    0
}

/// Brings a device up: resets nothing, but initializes the firmware, which takes seconds on a card. `config` may be NULL.
///
/// Errors: BV_EINVAL, a pointer is NULL, or a member of the platform is missing or too small. BV_EBUSY, the device is up
/// already. Any other: the device failed, and bv_strerror_detail says in which step. The device is not up then, and the call
/// may be repeated. If bv_needs_reset returns 1, the memory and the pages must not be used for anything else before the device
/// was reset.
///
/// # Safety
/// `device` is of bv_init. Until bv_take_down has returned and bv_needs_reset returns 0, or the device was reset:
/// - The registers that the callbacks access are those of BAR0 of one device, at the offset given and at no other.
/// - `memory` is `memory_size` readable and writable bytes, contiguous for the device, coherent with it, and nobody else's.
/// - A page that `page_alloc` returns is used for nothing else until it is freed.
/// - The barriers order accesses as they say.
/// - What `context` points to, and the callbacks, stay, and each callback may be called by each thread that calls a function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bv_bring_up(device: *mut bv_device, platform: *const bv_platform, config: *const bv_config) -> i32 {
    // SAFETY: as promised.
    unsafe { on_device(device, |device, state| bring_up(device, state, platform, config)) }
}

/// Implements [`bv_bring_up`].
///
/// # Safety
/// As there, in a call on the device.
unsafe fn bring_up(
    device: NonNull<bv_device>,
    state: &mut State,
    platform: *const bv_platform,
    config: *const bv_config,
) -> Result<i32, Failure> {
    if state.verbs.is_some() {
        return Err(Argument::Up.into());
    }
    // SAFETY: as promised.
    let (machine, map) = unsafe { machine(reference(platform, "platform")?)? };
    let config = if config.is_null() {
        Config::DEFAULT
    } else {
        // SAFETY: as promised.
        let config = unsafe { reference(config, "config") }?;
        config.driver_config().ok_or(Argument::Value("flags", config.flags.into()))?
    };
    // SAFETY: there are no verbs, so that nothing that was lent to them is used any more.
    let (place, tables) = unsafe { bv_device::lend(device) };
    match Driver::bring_up_in(place, machine, &config) {
        Ok(driver) => {
            (state.map, state.needs_reset) = (map, false);
            state.verbs = Some(CVerbs::new(driver, tables));
            Ok(0)
        }
        Err(error) => {
            state.needs_reset = error.needs_reset;
            Err(error.into())
        }
    }
}

/// Takes a device down. Every object of it is destroyed with it, and its number names nothing from here on. The device may be
/// brought up again.
///
/// Errors: BV_ENODEV, the device is not up. Any other: the device did not do it. It is down all the same.
///
/// # Safety
/// `device` is of bv_init.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bv_take_down(device: *mut bv_device) -> i32 {
    // SAFETY: as promised.
    unsafe { on_device(device, |_, state| take_down(state)) }
}

fn take_down(state: &mut State) -> Result<i32, Failure> {
    let verbs = state.verbs.take().ok_or(Argument::Down)?;
    state.qps.fill_with(|| None);
    state.srqs.fill_with(|| None);
    state.domains.clear();
    state.ahs.clear();
    state.poll_datagrams = None;
    state.cqs.fill_with(|| None);
    let driver = match verbs.into_provider() {
        Ok(driver) => driver,
        Err(verbs) => {
            // Of queues that were all dropped nobody has any.
            state.verbs = Some(verbs);
            return Err(Argument::Up.into());
        }
    };
    state.map = CMap::NONE;
    let result = driver.teardown_in_place();
    state.needs_reset = match &result {
        Ok(report) => report.needs_reset,
        Err(error) => error.report.needs_reset,
    };
    result?;
    Ok(0)
}

/// Returns 1 if a device that is not up may still use its memory, its pages, and buffers that were registered: they must stay
/// untouched until the device was reset. 0 otherwise.
///
/// # Safety
/// `device` is of bv_init.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bv_needs_reset(device: *mut bv_device) -> i32 {
    // SAFETY: as promised.
    unsafe { on_device(device, |_, state| Ok(state.needs_reset.into())) }
}

/// Does what the device needs from time to time: gives its firmware pages, and checks its health. Writes when to call it next,
/// in the time of bv_platform.now; `next` may be NULL. A program that never calls it waits for ever on a card that was removed.
///
/// Errors: the device is lost. Each completion queue then returns what was posted as flushed.
///
/// # Safety
/// `device` is of bv_init; `next` is writable or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bv_maintain(device: *mut bv_device, next: *mut u64) -> i32 {
    let work = |up: crate::call::Up<'_>| {
        // SAFETY: as promised.
        let next = if next.is_null() { None } else { Some(unsafe { Output::new(next, "next") }?) };
        let due = up.verbs.maintain()?;
        if let Some(next) = next {
            next.set(due.as_nanos());
        }
        Ok(0)
    };
    // SAFETY: as promised.
    unsafe { on_verbs(device, work) }
}

//! Protection domains and memory regions.

use core::ffi::c_void;

use bareverbs::{Access, MrHandle, PdHandle};

use crate::argument::{Argument, Output};
use crate::call::on_verbs;
use crate::device::bv_device;
use crate::{bv_mr, bv_pd};

/// Makes a protection domain.
///
/// Errors: BV_ENOMEM, there are BV_MAX_PD.
///
/// # Safety
/// `device` is of bv_init; `pd` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bv_alloc_pd(device: *mut bv_device, pd: *mut bv_pd) -> i32 {
    // SAFETY: as promised.
    unsafe {
        on_verbs(device, |up| {
            let place = Output::new(pd, "pd")?;
            place.set(bv_pd { number: up.verbs.alloc_pd()?.into_raw() });
            Ok(0)
        })
    }
}

/// Destroys a protection domain.
///
/// Errors: BV_EINVAL, the number names none. BV_EBUSY, something belongs to it.
///
/// # Safety
/// `device` is of bv_init.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bv_dealloc_pd(device: *mut bv_device, pd: bv_pd) -> i32 {
    // SAFETY: as promised.
    unsafe {
        on_verbs(device, |up| {
            up.verbs.dealloc_pd(PdHandle::from_raw(pd.number))?;
            Ok(0)
        })
    }
}

/// Registers `length` bytes at `addr`, with the rights of `access` (BV_ACCESS_LOCAL_WRITE and the others; local read is always
/// on). Where they lie for the device says bv_platform.extent. SGEs and the peer name a byte by its address, or, with
/// BV_ACCESS_ZERO_BASED, by its offset.
///
/// Errors: BV_EINVAL, NULL, a length of 0, unknown or impossible rights, or a number that names no protection domain.
/// BV_ENOMEM, there are BV_MAX_MR, or the device has no room. BV_EFAULT, the device does not see all of the bytes.
/// BV_EOPNOTSUPP, the device lacks a right.
///
/// # Safety
/// `device` is of bv_init; `mr` is writable. The bytes stay where they are, are not const, and are used for nothing that must
/// not see the device write them, until bv_dereg_mr has returned 0 for the region, or bv_take_down has returned and
/// bv_needs_reset returns 0. The same holds after BV_EIO and BV_ETIMEDOUT from here: a device that did not answer may have
/// registered them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bv_reg_mr(
    device: *mut bv_device,
    pd: bv_pd,
    addr: *mut c_void,
    length: usize,
    access: u32,
    mr: *mut bv_mr,
) -> i32 {
    // SAFETY: as promised.
    unsafe {
        on_verbs(device, |up| {
            let place = Output::new(mr, "mr")?;
            if addr.is_null() {
                return Err(Argument::Null("addr").into());
            }
            let (pd, access) = (PdHandle::from_raw(pd.number), Access::from_bits_retain(access));
            let handle = up.verbs.reg_mr_raw(pd, addr.expose_provenance() as u64, length as u64, access, &up.map)?;
            let info = up.verbs.mr_info(handle)?;
            place.set(bv_mr { number: handle.into_raw(), lkey: info.lkey.get(), rkey: info.rkey.get() });
            Ok(0)
        })
    }
}

/// Deregisters a region: the device does not use its bytes any more.
///
/// Errors: BV_EINVAL, the number names none. Others: the device did not do it, and the region is as before.
///
/// # Safety
/// `device` is of bv_init.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bv_dereg_mr(device: *mut bv_device, mr: bv_mr) -> i32 {
    // SAFETY: as promised.
    unsafe {
        on_verbs(device, |up| {
            up.verbs.dereg_mr_raw(MrHandle::from_raw(mr.number))?;
            Ok(0)
        })
    }
}

//! Bring-up, every object, events, health and teardown, each as a function that a linker can see.

use core::mem::MaybeUninit;
use core::time::Duration;

use bareverbs::error::Errno;
use bareverbs::{
    Access, Event, Gid, InterruptHandler, MwHandle, MwType, PdHandle, PortAttr, QpAttr, QpAttrMask, QpHandle, QpInfo, QpInit,
    QpType, Region,
};
use bareverbs_mlx5::{Config, Health};
use bareverbs_mmio::IdentityBuffer;

use crate::machine::{ProbeCompletionQueue, ProbeDriver, ProbeMachine, ProbeQueuePair, ProbeVerbs};
use crate::sender::code;
use crate::tables::{DRIVER, TABLES};

pub(crate) fn give<T, E>(place: &mut MaybeUninit<T>, result: Result<T, E>, errno: impl Fn(&E) -> Errno) -> i32 {
    match result {
        Ok(value) => {
            place.write(value);
            0
        }
        Err(error) => errno(&error).number(),
    }
}

/// Brings the device up, once.
///
/// # Safety
/// `machine` is read, and not the caller's any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn probe_bring_up(verbs: &mut MaybeUninit<ProbeVerbs>, machine: &MaybeUninit<ProbeMachine>) -> i32 {
    // SAFETY: the caller gives the machine away.
    let machine = unsafe { machine.assume_init_read() };
    let (Some(tables), Some(place)) = (TABLES.try_take(), DRIVER.try_init(None)) else { return Errno::Ebusy.number() };
    match ProbeDriver::bring_up_in(place, machine, &Config::DEFAULT) {
        Ok(driver) => {
            verbs.write(ProbeVerbs::new(driver, tables));
            0
        }
        Err(_) => Errno::Eio.number(),
    }
}

/// Takes the device down.
///
/// # Safety
/// `verbs` is read, and not the caller's any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn probe_teardown(verbs: &MaybeUninit<ProbeVerbs>) -> i32 {
    // SAFETY: the caller gives the verbs away.
    match unsafe { verbs.assume_init_read() }.into_provider() {
        Ok(driver) => i32::from(driver.teardown_in_place().is_err()),
        Err(_) => Errno::Ebusy.number(),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn probe_health(verbs: &mut ProbeVerbs, health: &mut MaybeUninit<Health>) -> i32 {
    give(health, verbs.direct().health(), |_| Errno::Eio)
}

#[unsafe(no_mangle)]
pub extern "C" fn probe_maintain(verbs: &mut ProbeVerbs, next: &mut MaybeUninit<u64>) -> i32 {
    give(next, verbs.maintain().map(|moment| moment.as_nanos()), |_| Errno::Eio)
}

#[unsafe(no_mangle)]
pub extern "C" fn probe_take_interrupt_handler(
    verbs: &mut ProbeVerbs,
    handler: &mut MaybeUninit<InterruptHandler<'static, &'static mut ProbeDriver>>,
) -> i32 {
    give(handler, verbs.take_interrupt_handler(), |_| Errno::Ebusy)
}

#[unsafe(no_mangle)]
pub extern "C" fn probe_on_interrupt(handler: &mut InterruptHandler<'static, &'static mut ProbeDriver>, vector: u16) -> bool {
    handler.on_interrupt(vector).asynchronous
}

#[unsafe(no_mangle)]
pub extern "C" fn probe_poll_event(verbs: &mut ProbeVerbs, event: &mut MaybeUninit<Option<Event>>) -> i32 {
    give(event, verbs.poll_event(), |error| error.errno())
}

#[unsafe(no_mangle)]
pub extern "C" fn probe_query_port(verbs: &mut ProbeVerbs, port: &mut MaybeUninit<PortAttr>) -> i32 {
    give(port, verbs.query_port(1), |error| error.errno())
}

#[unsafe(no_mangle)]
pub extern "C" fn probe_wait_active(verbs: &mut ProbeVerbs, port: &mut MaybeUninit<PortAttr>) -> i32 {
    give(port, verbs.wait_active(1, Duration::from_secs(60)), |error| error.errno())
}

#[unsafe(no_mangle)]
pub extern "C" fn probe_query_gid(verbs: &mut ProbeVerbs, gid: &mut MaybeUninit<Gid>, pkey: &mut MaybeUninit<u16>) -> i32 {
    give(gid, verbs.query_gid(1, 0), |error| error.errno()) | give(pkey, verbs.query_pkey(1, 0), |error| error.errno())
}

#[unsafe(no_mangle)]
pub extern "C" fn probe_alloc_pd(verbs: &mut ProbeVerbs, pd: &mut MaybeUninit<PdHandle>) -> i32 {
    give(pd, verbs.alloc_pd(), |error| error.errno())
}

#[unsafe(no_mangle)]
pub extern "C" fn probe_dealloc_pd(verbs: &mut ProbeVerbs, pd: &PdHandle) -> i32 {
    code(verbs.dealloc_pd(*pd).map_err(|error| error.errno()))
}

/// Registers the buffer.
///
/// # Safety
/// `buffer` is read, and not the caller's any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn probe_reg_mr(
    verbs: &mut ProbeVerbs,
    pd: &PdHandle,
    buffer: &MaybeUninit<IdentityBuffer>,
    access: u32,
    region: &mut MaybeUninit<Region<'static, IdentityBuffer>>,
) -> i32 {
    // SAFETY: the caller gives the buffer away.
    let buffer = unsafe { buffer.assume_init_read() };
    let registered = verbs.reg_mr(*pd, buffer, Access::from_bits_retain(access));
    give(region, registered, |refused| refused.error.errno())
}

/// Gives the buffer back.
///
/// # Safety
/// `region` is read, and not the caller's any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn probe_dereg_mr(
    verbs: &mut ProbeVerbs,
    region: &MaybeUninit<Region<'static, IdentityBuffer>>,
    buffer: &mut MaybeUninit<IdentityBuffer>,
) -> i32 {
    // SAFETY: the caller gives the region away.
    let region = unsafe { region.assume_init_read() };
    give(buffer, verbs.dereg_mr(region), |refused| refused.error.errno())
}

#[unsafe(no_mangle)]
pub extern "C" fn probe_alloc_mw(verbs: &mut ProbeVerbs, pd: &PdHandle, mw: &mut MaybeUninit<MwHandle>) -> i32 {
    give(mw, verbs.alloc_mw(*pd, MwType::Type1), |error| error.errno())
}

#[unsafe(no_mangle)]
pub extern "C" fn probe_dealloc_mw(verbs: &mut ProbeVerbs, mw: &MwHandle) -> i32 {
    code(verbs.dealloc_mw(*mw).map_err(|error| error.errno()))
}

#[unsafe(no_mangle)]
pub extern "C" fn probe_create_cq(verbs: &mut ProbeVerbs, entries: u32, cq: &mut MaybeUninit<ProbeCompletionQueue>) -> i32 {
    give(cq, verbs.create_cq(entries), |error| error.errno())
}

/// Destroys a completion queue.
///
/// # Safety
/// `cq` is read, and not the caller's any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn probe_destroy_cq(verbs: &mut ProbeVerbs, cq: &MaybeUninit<ProbeCompletionQueue>) -> i32 {
    // SAFETY: the caller gives the queue away.
    let cq = unsafe { cq.assume_init_read() };
    code(verbs.destroy_cq(cq).map_err(|refused| refused.error.errno()))
}

#[unsafe(no_mangle)]
pub extern "C" fn probe_create_qp(verbs: &mut ProbeVerbs, init: &QpInit, qp: &mut MaybeUninit<ProbeQueuePair>) -> i32 {
    // A transport that the program knows: no other is linked.
    give(qp, verbs.create_qp(&QpInit { qp_type: QpType::Rc, ..*init }), |error| error.errno())
}

#[unsafe(no_mangle)]
pub extern "C" fn probe_modify_qp(verbs: &mut ProbeVerbs, qp: &QpHandle, attr: &QpAttr, mask: u32) -> i32 {
    let mask = QpAttrMask::from_bits_retain(mask);
    code(verbs.modify_qp(*qp, attr, mask).map_err(|error| error.errno()))
}

#[unsafe(no_mangle)]
pub extern "C" fn probe_reset_qp(verbs: &mut ProbeVerbs, qp: &mut ProbeQueuePair) -> i32 {
    code(verbs.reset_qp(qp).map_err(|error| error.errno()))
}

#[unsafe(no_mangle)]
pub extern "C" fn probe_query_qp(verbs: &mut ProbeVerbs, qp: &QpHandle, info: &mut MaybeUninit<QpInfo>) -> i32 {
    give(info, verbs.query_qp(*qp), |error| error.errno())
}

/// Destroys a queue pair.
///
/// # Safety
/// `qp` is read, and not the caller's any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn probe_destroy_qp(verbs: &mut ProbeVerbs, qp: &MaybeUninit<ProbeQueuePair>) -> i32 {
    // SAFETY: the caller gives the queue pair away.
    let qp = unsafe { qp.assume_init_read() };
    code(verbs.destroy_qp(qp).map_err(|refused| refused.error.errno()))
}

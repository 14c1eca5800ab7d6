//! Bring-up, every object, events, health and teardown, each as a function that a linker can see.

use core::mem::MaybeUninit;

use bareverbs::{
    Access, CqHandle, Errno, Event, Gid, MrHandle, MwHandle, MwType, OffsetMap, PdHandle, PortAttr, QpAttr, QpAttrMask,
    QpHandle, QpInfo, QpInit,
};
use bareverbs_mlx5::{Config, Health};

use crate::machine::{ProbeDriver, ProbeMachine, ProbeVerbs};

fn give<T>(place: &mut MaybeUninit<T>, result: Result<T, Errno>) -> i32 {
    match result {
        Ok(value) => {
            place.write(value);
            0
        }
        Err(errno) => errno.number(),
    }
}

fn code(result: Result<(), Errno>) -> i32 {
    result.err().map_or(0, Errno::number)
}

/// Brings the device up.
///
/// # Safety
/// `machine` is read, and not the caller's any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn probe_bring_up(verbs: &mut MaybeUninit<ProbeVerbs>, machine: &MaybeUninit<ProbeMachine>) -> i32 {
    // SAFETY: the caller gives the machine away.
    let machine = unsafe { machine.assume_init_read() };
    match ProbeDriver::bring_up(machine, &Config::DEFAULT) {
        Ok(driver) => {
            verbs.write(ProbeVerbs::new(driver));
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
    let driver = unsafe { verbs.assume_init_read() }.into_provider();
    i32::from(driver.teardown().is_err())
}

#[unsafe(no_mangle)]
pub extern "C" fn probe_health(verbs: &mut ProbeVerbs, health: &mut MaybeUninit<Health>) -> i32 {
    give(health, verbs.provider_mut().health().map_err(|_| Errno::Eio))
}

#[unsafe(no_mangle)]
pub extern "C" fn probe_poll_event(verbs: &mut ProbeVerbs, event: &mut MaybeUninit<Option<Event>>) -> i32 {
    give(event, verbs.poll_event().map_err(|error| error.errno()))
}

#[unsafe(no_mangle)]
pub extern "C" fn probe_query_port(verbs: &mut ProbeVerbs, port: &mut MaybeUninit<PortAttr>) -> i32 {
    give(port, verbs.query_port(1).map_err(|error| error.errno()))
}

#[unsafe(no_mangle)]
pub extern "C" fn probe_query_gid(verbs: &mut ProbeVerbs, gid: &mut MaybeUninit<Gid>, pkey: &mut MaybeUninit<u16>) -> i32 {
    give(gid, verbs.query_gid(1, 0).map_err(|error| error.errno()))
        | give(pkey, verbs.query_pkey(1, 0).map_err(|error| error.errno()))
}

#[unsafe(no_mangle)]
pub extern "C" fn probe_alloc_pd(verbs: &mut ProbeVerbs, pd: &mut MaybeUninit<PdHandle>) -> i32 {
    give(pd, verbs.alloc_pd().map_err(|error| error.errno()))
}

#[unsafe(no_mangle)]
pub extern "C" fn probe_dealloc_pd(verbs: &mut ProbeVerbs, pd: &PdHandle) -> i32 {
    code(verbs.dealloc_pd(*pd).map_err(|error| error.errno()))
}

#[unsafe(no_mangle)]
pub extern "C" fn probe_reg_mr(
    verbs: &mut ProbeVerbs,
    pd: &PdHandle,
    addr: u64,
    length: u64,
    access: u32,
    mr: &mut MaybeUninit<MrHandle>,
) -> i32 {
    let access = Access::from_bits_retain(access);
    give(mr, verbs.reg_mr(*pd, addr, length, access, &OffsetMap::default()).map_err(|error| error.errno()))
}

#[unsafe(no_mangle)]
pub extern "C" fn probe_dereg_mr(verbs: &mut ProbeVerbs, mr: &MrHandle) -> i32 {
    code(verbs.dereg_mr(*mr).map_err(|error| error.errno()))
}

#[unsafe(no_mangle)]
pub extern "C" fn probe_alloc_mw(verbs: &mut ProbeVerbs, pd: &PdHandle, mw: &mut MaybeUninit<MwHandle>) -> i32 {
    give(mw, verbs.alloc_mw(*pd, MwType::Type1).map_err(|error| error.errno()))
}

#[unsafe(no_mangle)]
pub extern "C" fn probe_dealloc_mw(verbs: &mut ProbeVerbs, mw: &MwHandle) -> i32 {
    code(verbs.dealloc_mw(*mw).map_err(|error| error.errno()))
}

#[unsafe(no_mangle)]
pub extern "C" fn probe_create_cq(verbs: &mut ProbeVerbs, entries: u32, cq: &mut MaybeUninit<CqHandle>) -> i32 {
    give(cq, verbs.create_cq(entries).map_err(|error| error.errno()))
}

#[unsafe(no_mangle)]
pub extern "C" fn probe_destroy_cq(verbs: &mut ProbeVerbs, cq: &CqHandle) -> i32 {
    code(verbs.destroy_cq(*cq).map_err(|error| error.errno()))
}

#[unsafe(no_mangle)]
pub extern "C" fn probe_create_qp(verbs: &mut ProbeVerbs, init: &QpInit, qp: &mut MaybeUninit<QpHandle>) -> i32 {
    give(qp, verbs.create_qp(init).map_err(|error| error.errno()))
}

#[unsafe(no_mangle)]
pub extern "C" fn probe_modify_qp(verbs: &mut ProbeVerbs, qp: &QpHandle, attr: &QpAttr, mask: u32) -> i32 {
    let mask = QpAttrMask::from_bits_retain(mask);
    code(verbs.modify_qp(*qp, attr, mask).map_err(|error| error.errno()))
}

#[unsafe(no_mangle)]
pub extern "C" fn probe_query_qp(verbs: &mut ProbeVerbs, qp: &QpHandle, info: &mut MaybeUninit<QpInfo>) -> i32 {
    give(info, verbs.query_qp(*qp).map_err(|error| error.errno()))
}

#[unsafe(no_mangle)]
pub extern "C" fn probe_destroy_qp(verbs: &mut ProbeVerbs, qp: &QpHandle) -> i32 {
    code(verbs.destroy_qp(*qp).map_err(|error| error.errno()))
}

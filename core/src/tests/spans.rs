//! Bytes against regions: every kind of start and length beside numbers in which nothing wraps, by each way that checks them.

use std::vec::Vec;

use super::post::REMOTE;
use super::{ALL_RIGHTS, Harness, register, shared_receives};
use crate::error::{BindRefused, BindType1Error, FastRegError, PostRecvError, PostSendError, RawKind, SgeFault};
use crate::shared::{CachedRegion, RegionFacts, RegionSlot, Regions, check_sge, domain_word};
use crate::{
    Access, FastReg, KeyTag, Lkey, MrHandle, MwType, Payload, RecvWr, SendFlags, SendOp, SendWr, Sge, Type1Bind, WcStatus,
};

const KEY: Lkey = Lkey::new(0x1234_5678);
const PD: u16 = 3;

fn facts(base: u64, length: u64, max_message: u32) -> RegionFacts {
    RegionFacts { lkey: KEY, generation: 1, pd: PD, access: Access::LOCAL_WRITE, base, length, max_message }
}

/// Returns whether bytes lie inside a region: numbers of 128 bits do not wrap.
fn inside(base: u64, size: u64, addr: u64, length: u64) -> bool {
    let (base, size, addr, length) = (u128::from(base), u128::from(size), u128::from(addr), u128::from(length));
    base <= addr && addr + length <= base + size
}

/// Checks one range against one region, alone in its table, by each function.
fn check(base: u64, size: u64, max_message: u32, addr: u64, length: u64) {
    let facts = facts(base, size, max_message);
    let is_inside = inside(base, size, addr, length);
    let text = || std::format!("{length} bytes from {addr:#x}, of {size} from {base:#x}");
    assert_eq!(facts.contains(addr, length), is_inside, "{}", text());
    let Ok(length) = u32::try_from(length) else { return };
    let slots = [RegionSlot::new()];
    slots[0].set(Some(&facts));
    let regions = Regions::new(&slots);
    let sge = Sge { addr, length, lkey: KEY };
    let range = SgeFault::Range { addr, length, start: base, size };
    assert_eq!(check_sge(&regions, PD, Access::LOCAL_WRITE, &sge), if is_inside { Ok(()) } else { Err(range) }, "{}", text());
    // What posting asks first: whether so many bytes are any, and no more than a message or the region has.
    let fits = length != 0 && u64::from(length) <= size && length <= max_message;
    let found = regions.find_usable(KEY, domain_word(PD), length);
    assert_eq!(found.is_some(), fits, "{}", text());
    let whole = regions.find_usable(KEY, domain_word(PD), 1).unwrap_or(CachedRegion::NONE);
    assert_eq!(whole.fits(length), fits && max_message != 0, "{}", text());
    if let Some(region) = found {
        assert_eq!(region.contains(addr, length), is_inside, "{}", text());
    }
}

/// Each small region at each edge of the addresses, and each range in it and about it.
#[test]
#[cfg_attr(miri, ignore = "a whole domain of numbers takes minutes")]
fn every_range_about_a_small_region() {
    for base in [0, 1, 5, (1 << 32) - 9, (1 << 63) - 9, u64::MAX - 40] {
        for size in 1..=18_u64 {
            for offset in 0..=60_u64 {
                // From before the region, round the end of all addresses too.
                let addr = base.wrapping_sub(20).wrapping_add(offset);
                for length in 0..=22 {
                    check(base, size, 17, addr, length);
                }
            }
        }
    }
}

/// Returns the numbers next to each of several.
fn about(numbers: &[u64]) -> Vec<u64> {
    let mut all: Vec<u64> = numbers.iter().flat_map(|number| (0..5).map(|n| number.wrapping_sub(2).wrapping_add(n))).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Ranges whose starts and lengths are about each edge: of the region, of 32 and 64 bits, of a message.
#[test]
#[cfg_attr(miri, ignore = "a whole domain of numbers takes minutes")]
fn every_edge_of_a_large_region() {
    for base in [0, 1, 4096, (1 << 32) - 1, 1 << 32, 1 << 63, u64::MAX - 4096] {
        for size in [1, 2, 4096, (1 << 31) - 1, 1 << 31, (1 << 31) + 1, (1 << 32) - 1, 1 << 32, (1 << 32) + 1, u64::MAX - base]
        {
            // What registration refuses.
            let Some(end) = base.checked_add(size) else { continue };
            for max_message in [1 << 31, 4096] {
                for addr in about(&[0, base, end, u64::from(u32::MAX), 1 << 63]) {
                    let room = end.wrapping_sub(addr);
                    for length in about(&[0, 4096, size, room, 1 << 31, u64::from(u32::MAX)]) {
                        check(base, size, max_message, addr, length);
                    }
                }
            }
        }
    }
}

/// A table of each size: a search for each place begins there and visits every slot once, and finds the region in whichever it is, by its
/// key and domain alone.
#[test]
#[cfg_attr(miri, ignore = "a whole domain of numbers takes minutes")]
fn a_region_is_found_in_every_slot_of_every_table() {
    for size in 1..=40_usize {
        let slots: Vec<RegionSlot> = (0..size).map(|_| RegionSlot::new()).collect();
        let regions = Regions::new(&slots);
        let begins = (0..).take_while(|log| 1 << log <= size).last().map_or(1, |log| 1_usize << log);
        for index in (1..2 * size as u32 + 2).chain([0xff_ffff]) {
            let lkey = Lkey::new(KeyTag(0x5a).key(index));
            let order: Vec<usize> = regions.in_order(lkey).map(|(at, _)| at).collect();
            assert_eq!(order[0], index as usize % begins, "key {index} of {size}");
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..size).collect::<Vec<_>>());
            for at in order {
                let facts = RegionFacts { lkey, ..facts(0x1000, 16, 1 << 31) };
                slots[at].set(Some(&facts));
                assert_eq!(regions.find(lkey), Some(RegionFacts { max_message: 16, ..facts }));
                assert_eq!(regions.locate(lkey).map(|(at, _)| usize::from(at)), Some(at));
                let first = regions.find_usable(lkey, domain_word(PD), 16);
                assert_eq!(first.is_some(), at == index as usize % begins);
                let beyond = regions.find_usable_beyond(lkey, domain_word(PD), 16);
                assert!(first.is_some() != beyond.is_some(), "key {index} in slot {at} of {size}");
                for (other, pd) in [(lkey.with_tag(KeyTag(0x5b)), PD), (lkey, PD + 1), (lkey, 0)] {
                    assert!(regions.find_usable(other, domain_word(pd), 16).is_none());
                    assert!(regions.find_usable_beyond(other, domain_word(pd), 16).is_none());
                }
                slots[at].set(None);
            }
        }
    }
}

/// The ways to post SGEs: one alone, behind another of its region, in a batch, in a list, as a read, an atomic, a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    One,
    Second,
    Third,
    Batch,
    Read,
    Atomic,
    Receive,
    ReceiveList,
}

const WAYS: [Way; 8] = [Way::One, Way::Second, Way::Third, Way::Batch, Way::Read, Way::Atomic, Way::Receive, Way::ReceiveList];

/// Posts an SGE, behind good ones of the same region in some ways, and completes what was posted. Gives what was wrong with it.
fn post(harness: &mut Harness, way: Way, good: Sge, sge: Sge) -> Result<(), SgeFault> {
    let qp = harness.qp;
    let write = |sges| SendWr {
        wr_id: 1,
        flags: SendFlags::SIGNALED,
        op: SendOp::Write { payload: Payload::Sges(sges), remote: REMOTE },
    };
    let fault = |error| match error {
        PostSendError::Sge { fault, .. } => fault,
        other => panic!("{way:?} of {sge:?}: {other}"),
    };
    let posted = match way {
        Way::One => harness.verbs.post_send(qp, &write(&[sge])),
        Way::Second => harness.verbs.post_send(qp, &write(&[good, sge])),
        Way::Third => harness.verbs.post_send(qp, &write(&[good, good, sge])),
        Way::Batch => {
            let (first, second) = ([good], [sge]);
            let mut batch = harness.verbs.send_batch(qp);
            batch.post(&write(&first)).unwrap();
            batch.post(&write(&second))
        }
        Way::Read => {
            let op = SendOp::Read { sges: &[sge], remote: REMOTE };
            harness.verbs.post_send(qp, &SendWr { wr_id: 1, flags: SendFlags::SIGNALED, op })
        }
        Way::Atomic => {
            let op = SendOp::FetchAdd { sge, remote: REMOTE, add: 1 };
            harness.verbs.post_send(qp, &SendWr { wr_id: 1, flags: SendFlags::SIGNALED, op })
        }
        Way::Receive | Way::ReceiveList => {
            let (first, second) = ([good], [sge]);
            let list = [RecvWr { wr_id: 1, sges: &first }, RecvWr { wr_id: 2, sges: &second }];
            let list = if way == Way::Receive { &list[1..] } else { &list[..] };
            let posted = match list {
                [one] => harness.verbs.post_recv(qp, one),
                list => harness.verbs.post_recv_list(qp, list).map_err(|bad| bad.error),
            };
            let entries = core::mem::take(&mut harness.device().received);
            for (_, at, _) in entries {
                let raw = harness.raw(RawKind::Recv, at as u16, WcStatus::Success);
                harness.push(raw);
            }
            harness.poll().unwrap();
            return posted.map_err(|error| match error {
                PostRecvError::Sge { fault, .. } => fault,
                other => panic!("{way:?} of {sge:?}: {other}"),
            });
        }
    };
    let qpn = harness.qpn();
    while harness.device().execute(qpn) {}
    harness.device().sent.clear();
    harness.poll().unwrap();
    posted.map_err(fault)
}

/// A request is posted if and only if all of its bytes lie in its region, whichever way it is checked.
#[test]
#[cfg_attr(miri, ignore = "a whole domain of numbers takes minutes")]
fn a_request_is_posted_if_its_bytes_lie_in_its_region() {
    let mut harness = Harness::new();
    for (base, size) in [(0_u64, 8_u64), (0x1_0000, 0x4000), ((1 << 32) - 16, 32), (1 << 40, 1 << 31), (u64::MAX - 64, 64)] {
        let mr = register(&mut harness.verbs, harness.pd, base, size, ALL_RIGHTS).unwrap();
        let lkey = harness.verbs.mr_info(mr).unwrap().lkey;
        let good = Sge { addr: base, length: 1, lkey };
        let end = base + size;
        for addr in about(&[0, base, base + size / 2, end, 1 << 31, 1 << 32, u64::MAX]) {
            // A message of 2^31 bytes leaves no room for the good one.
            for length in about(&[2, 8, size, end.wrapping_sub(addr), size / 2]) {
                let Some(length) = u32::try_from(length).ok().filter(|length| (1..(1 << 31) - 1).contains(length)) else {
                    continue;
                };
                for way in WAYS {
                    let is_inside = inside(base, size, addr, length.into());
                    if way == Way::Atomic && length != 8 {
                        continue;
                    }
                    let fault = SgeFault::Range { addr, length, start: base, size };
                    let wanted = if is_inside { Ok(()) } else { Err(fault) };
                    let posted = post(&mut harness, way, good, Sge { addr, length, lkey });
                    assert_eq!(posted, wanted, "{way:?}: {length} bytes from {addr:#x}, of {size} from {base:#x}");
                }
            }
        }
        harness.verbs.dereg_mr_raw(mr).unwrap();
    }
}

/// No SGE is longer than 2^31 bytes, in whichever queue: a ring has no more bits for its length. A region may be.
#[test]
#[cfg_attr(miri, ignore = "a whole domain of numbers takes minutes")]
fn an_sge_has_two_gigabytes_at_most() {
    let mut harness = Harness::new();
    let mr = register(&mut harness.verbs, harness.pd, 1 << 40, 1 << 33, ALL_RIGHTS).unwrap();
    let lkey = harness.verbs.mr_info(mr).unwrap().lkey;
    let mut other = shared_receives::harness();
    // Seven receives are all that is posted to it.
    let mut shared = shared_receives::create(&mut other, 7);
    let theirs = register(&mut other.verbs, other.pd, 1 << 40, 1 << 33, ALL_RIGHTS).unwrap();
    let theirs = other.verbs.mr_info(theirs).unwrap().lkey;
    for length in about(&[1, 1 << 31, u64::from(u32::MAX)]) {
        let Ok(length @ 1..) = u32::try_from(length) else { continue };
        let sges = [Sge { addr: 1 << 40, length: 1, lkey }, Sge { addr: 1 << 40, length, lkey }];
        let too_long = Err(PostRecvError::SgeLength { index: 1, max: 1 << 31 });
        let wanted = if length <= 1 << 31 { Ok(()) } else { too_long };
        let recv = RecvWr { wr_id: 1, sges: &sges };
        assert_eq!(harness.verbs.post_recv(harness.qp, &recv), wanted, "{length}");
        let one = RecvWr { wr_id: 1, sges: &sges[1..] };
        let wanted_one = wanted.map_err(|_| PostRecvError::SgeLength { index: 0, max: 1 << 31 });
        assert_eq!(harness.verbs.post_recv_list(harness.qp, &[one]).map_err(|bad| bad.error), wanted_one, "{length}");
        // A message that is as long as that was refused before.
        let send = SendWr { wr_id: 1, flags: SendFlags::SIGNALED, op: SendOp::Send { payload: Payload::Sges(&sges[1..]) } };
        let wanted_send = if length <= 1 << 31 { Ok(()) } else { Err(PostSendError::MessageSize { max: 1 << 31 }) };
        assert_eq!(harness.verbs.post_send(harness.qp, &send), wanted_send, "{length}");
        let among_empty = [Sge { length: 0, ..sges[0] }, sges[1]];
        let send = SendWr { wr_id: 1, flags: SendFlags::SIGNALED, op: SendOp::Send { payload: Payload::Sges(&among_empty) } };
        assert_eq!(harness.verbs.post_send(harness.qp, &send), wanted_send, "{length}");
        let qpn = harness.qpn();
        while harness.device().execute(qpn) {}
        let sges = sges.map(|sge| Sge { lkey: theirs, ..sge });
        assert_eq!(shared.post(&RecvWr { wr_id: 1, sges: &sges }), wanted, "{length}");
        let entries = core::mem::take(&mut harness.device().received);
        for (_, at, _) in entries {
            let raw = harness.raw(RawKind::Recv, at as u16, WcStatus::Success);
            harness.push(raw);
        }
        harness.poll().unwrap();
    }
}

/// A window is bound if and only if all of its bytes lie in its region, and no address of them wraps.
#[test]
#[cfg_attr(miri, ignore = "a whole domain of numbers takes minutes")]
fn a_window_is_bound_if_its_bytes_lie_in_its_region() {
    let mut harness = Harness::new();
    let mw = harness.window(MwType::Type1);
    for (base, size) in [(0_u64, 8_u64), (0x1_0000, 0x4000), ((1 << 32) - 16, 32), (1 << 39, 1 << 40), (u64::MAX - 64, 64)] {
        let mr: MrHandle = register(&mut harness.verbs, harness.pd, base, size, ALL_RIGHTS).unwrap();
        let end = base + size;
        for addr in about(&[0, base, base + size / 2, end, 1 << 31, 1 << 32, u64::MAX]) {
            for length in about(&[2, size, end.wrapping_sub(addr), 1 << 31, 1 << 32, u64::MAX]) {
                if length == 0 {
                    continue;
                }
                let access = Access::REMOTE_READ;
                let bind = Type1Bind { wr_id: 1, flags: SendFlags::SIGNALED, mr, addr, length, access };
                let bound = harness.verbs.bind_type1(harness.qp, mw, &bind).map(drop);
                let wanted = if u128::from(addr) + u128::from(length) > u128::from(u64::MAX) {
                    Err(BindRefused::Overflow)
                } else if !inside(base, size, addr, length) {
                    Err(BindRefused::Range { addr, length, start: base, size })
                } else if length > 1 << 31 {
                    Err(BindRefused::TooLong { max: 1 << 31 })
                } else {
                    Ok(())
                };
                assert_eq!(bound, wanted.map_err(BindType1Error::Refused), "{length} bytes from {addr:#x}");
                let qpn = harness.qpn();
                while harness.device().execute(qpn) {}
                harness.poll().unwrap();
            }
        }
        let unbind = Type1Bind { wr_id: 1, flags: SendFlags::SIGNALED, mr, addr: 0, length: 0, access: Access::empty() };
        harness.verbs.bind_type1(harness.qp, mw, &unbind).unwrap();
        let qpn = harness.qpn();
        while harness.device().execute(qpn) {}
        harness.poll().unwrap();
        harness.verbs.dereg_mr_raw(mr).unwrap();
    }
}

/// The mock device takes three blocks for a registration of a few pieces.
#[test]
fn a_registration_takes_the_last_blocks_and_no_fewer() {
    for (before, wanted) in [(13, Ok(8)), (14, Err(FastRegError::QueueFull { needed: 3, free: 2, blocks: 16 }))] {
        let mut harness = Harness::new();
        let fast = harness.verbs.alloc_fast_mr(harness.pd, 3).unwrap();
        for n in 0..before {
            harness.verbs.post_send(harness.qp, &SendWr::send(&[0_u8; 0]).id(n)).unwrap();
        }
        let (sges, access) = ([harness.sge(0, 8)], Access::REMOTE_READ);
        let reg = FastReg { wr_id: 1, flags: SendFlags::SIGNALED, tag: KeyTag(7), sges: &sges, access };
        let done = harness.verbs.send(harness.qp).post_reg_mr(fast, &reg);
        assert_eq!(done.map(|region| region.len()), wanted, "after {before} requests");
    }
}

/// Pieces are registered by a request if and only if the bytes of each lie in their region, and their sum leads to no address that wraps.
#[test]
#[cfg_attr(miri, ignore = "a whole domain of numbers takes minutes")]
fn pieces_are_registered_if_their_bytes_lie_in_their_region() {
    let mut harness = Harness::new();
    let fast = harness.verbs.alloc_fast_mr(harness.pd, 3).unwrap();
    for (base, size) in [(0_u64, 8_u64), (0x1_0000, 0x4000), (1 << 40, 1 << 33), (u64::MAX - 64, 64)] {
        let mr = register(&mut harness.verbs, harness.pd, base, size, ALL_RIGHTS).unwrap();
        let lkey = harness.verbs.mr_info(mr).unwrap().lkey;
        let end = base + size;
        for addr in about(&[0, base, base + size / 2, end, u64::MAX]) {
            for length in about(&[2, size / 2, size, end.wrapping_sub(addr), 1 << 31]) {
                let Ok(length) = u32::try_from(length) else { continue };
                let piece = Sge { addr, length, lkey };
                for count in 1..=3_usize {
                    let (tag, access) = (KeyTag(7), Access::REMOTE_READ);
                    let reg = FastReg { wr_id: 1, flags: SendFlags::SIGNALED, tag, sges: &[piece; 3][..count], access };
                    let done = harness.verbs.send(harness.qp).post_reg_mr(fast, &reg);
                    let sum = u64::from(length) * count as u64;
                    let wanted = if length == 0 || length > 1 << 31 {
                        Err(FastRegError::Length { index: 0, max: 1 << 31 })
                    } else if !inside(base, size, addr, length.into()) {
                        Err(FastRegError::Range { index: 0, addr, length, start: base, size })
                    } else if u128::from(addr) + u128::from(sum) > u128::from(u64::MAX) {
                        Err(FastRegError::Overflow)
                    } else {
                        Ok(sum)
                    };
                    assert_eq!(done.map(|region| region.len()), wanted, "{count} of {length} bytes from {addr:#x}");
                    if let Ok(region) = done {
                        harness.verbs.post_send(harness.qp, &SendWr::local_inv(region.rkey()).signaled()).unwrap();
                    }
                    let qpn = harness.qpn();
                    while harness.device().execute(qpn) {}
                    harness.poll().unwrap();
                }
            }
        }
        harness.verbs.dereg_mr_raw(mr).unwrap();
    }
}

//! Rows of the contract about binding windows.

use super::mock::Kind;
use super::post::send;
use super::{ALL_RIGHTS, BASE, Harness, LENGTH, register, set_state};
use crate::error::{AllocMwError, BindRefused, BindType1Error, DeallocMwError, DeregMrError, Errno, PostSendError};
use crate::sync::Ordering;
use crate::{
    Access, Binding, CqHandle, KeyTag, MwHandle, MwInfo, MwType, QpHandle, QpInit, QpState, QpType, RecvWr, Rkey, SendFlags,
    SendOp, SendWr, Type1Bind, WcData, WcOpcode, WcStatus,
};

fn bind(harness: &Harness, offset: u64, length: u64) -> Type1Bind {
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    Type1Bind { wr_id: 9, flags: SendFlags::SIGNALED, mr: harness.mr, addr: BASE + offset, length, access }
}

fn post(harness: &mut Harness, mw: MwHandle, offset: u64, length: u64) -> Rkey {
    let bind = bind(harness, offset, length);
    harness.verbs.bind_type1(harness.qp, mw, &bind).unwrap()
}

fn info(harness: &Harness, mw: MwHandle) -> MwInfo {
    harness.verbs.mw_info(mw).unwrap()
}

/// Checks that a bind fails with this errno and changes nothing.
fn refused(harness: &mut Harness, mw: MwHandle, bind: &Type1Bind, errno: Errno) -> BindType1Error {
    let before = (harness.verbs.mw_info(mw), harness.verbs.qp_info(harness.qp).unwrap().send_blocks);
    let error = harness.verbs.bind_type1(harness.qp, mw, bind).unwrap_err();
    assert_eq!(error.errno(), errno, "{error}");
    assert_eq!((harness.verbs.mw_info(mw), harness.verbs.qp_info(harness.qp).unwrap().send_blocks), before);
    error
}

// contract: bind-invalid
#[test]
fn arguments_that_make_no_sense_come_first() {
    let mut harness = Harness::new();
    let mw = harness.window(MwType::Type1);
    let two = harness.window(MwType::Type2);
    let good = bind(&harness, 0, 64);
    // Even where the state would be refused too.
    set_state(&harness.verbs, harness.qp, QpState::Init);
    let stale_mr = register(&mut harness.verbs, harness.pd, BASE, 64, ALL_RIGHTS).unwrap();
    harness.verbs.dereg_mr_raw(stale_mr).unwrap();
    refused(&mut harness, mw, &Type1Bind { mr: stale_mr, ..good }, Errno::Einval);
    refused(&mut harness, two, &good, Errno::Einval);
    for access in [1 << 12, Access::LOCAL_WRITE.bits(), Access::MW_BIND.bits()] {
        refused(&mut harness, mw, &Type1Bind { access: Access::from_bits_retain(access), ..good }, Errno::Einval);
    }
    for flags in [SendFlags::SOLICITED, SendFlags::INLINE, SendFlags::from_bits_retain(1 << 9)] {
        let error = refused(&mut harness, mw, &Type1Bind { flags, ..good }, Errno::Einval);
        assert_eq!(error, BindType1Error::Flags { flags });
    }
    harness.verbs.dealloc_mw(mw).unwrap();
    let stale = harness.verbs.bind_type1(harness.qp, mw, &good).unwrap_err();
    assert_eq!(stale, BindType1Error::Refused(BindRefused::StaleWindow));
    let mut harness = Harness::with(QpType::Ud, false);
    let mw = harness.window(MwType::Type1);
    let good = bind(&harness, 0, 64);
    refused(&mut harness, mw, &good, Errno::Einval);
}

// contract: bind-state, bind-domain, bind-rights, bind-overflow, bind-range
#[test]
fn then_the_state_then_domains_rights_and_range() {
    let mut harness = Harness::new();
    let mw = harness.window(MwType::Type1);
    let other_pd = harness.verbs.alloc_pd().unwrap();
    let foreign_mw = harness.verbs.alloc_mw(other_pd, MwType::Type1).unwrap();
    let foreign_mr = register(&mut harness.verbs, other_pd, BASE, LENGTH, Access::empty()).unwrap();
    let unbindable = register(&mut harness.verbs, harness.pd, BASE, LENGTH, Access::LOCAL_WRITE).unwrap();
    let readable = register(&mut harness.verbs, harness.pd, BASE, LENGTH, Access::MW_BIND).unwrap();
    // Each bind fails every later check too.
    let worst = Type1Bind { addr: u64::MAX, ..bind(&harness, 0, 64) };

    set_state(&harness.verbs, harness.qp, QpState::Rtr);
    refused(&mut harness, foreign_mw, &Type1Bind { mr: foreign_mr, ..worst }, Errno::Enotconn);
    set_state(&harness.verbs, harness.qp, QpState::Rts);
    refused(&mut harness, mw, &Type1Bind { mr: foreign_mr, ..worst }, Errno::Eperm);
    refused(&mut harness, foreign_mw, &worst, Errno::Eperm);
    refused(&mut harness, mw, &Type1Bind { mr: unbindable, ..worst }, Errno::Eacces);
    refused(&mut harness, mw, &Type1Bind { mr: readable, ..worst }, Errno::Eacces);
    refused(&mut harness, mw, &Type1Bind { mr: readable, access: Access::REMOTE_ATOMIC, ..worst }, Errno::Eacces);
    refused(&mut harness, mw, &worst, Errno::Efault);
    let good = bind(&harness, 0, 64);
    harness.verbs.bind_type1(harness.qp, mw, &Type1Bind { mr: readable, access: Access::REMOTE_READ, ..good }).unwrap();

    // The queue is full from here on, and there is no room to remember either.
    for n in 0..13 {
        harness.verbs.post_send(harness.qp, &send(n, &[])).unwrap();
    }
    refused(&mut harness, mw, &Type1Bind { addr: BASE - 1, ..good }, Errno::Erange);
    refused(&mut harness, mw, &Type1Bind { addr: BASE + LENGTH - 63, ..good }, Errno::Erange);
    refused(&mut harness, mw, &Type1Bind { length: LENGTH + 1, ..good }, Errno::Erange);
    let full = refused(&mut harness, mw, &good, Errno::Enospc);
    assert_eq!(full, BindType1Error::QueueFull { needed: 3, free: 0, blocks: 16 });
}

// contract: bind-records-full
#[test]
fn only_as_many_binds_as_windows_are_remembered() {
    let mut harness = Harness::new();
    let mw = harness.window(MwType::Type1);
    post(&mut harness, mw, 0, 64);
    post(&mut harness, mw, 64, 64);
    let third = bind(&harness, 128, 64);
    assert_eq!(refused(&mut harness, mw, &third, Errno::Enomem), BindType1Error::TooManyPendingBinds);
    harness.complete(0, WcStatus::Success);
    harness.poll().unwrap();
    post(&mut harness, mw, 128, 64);
}

#[test]
fn the_key_changes_at_once_and_the_device_gets_both() {
    let mut harness = Harness::new();
    let mw = harness.window(MwType::Type1);
    let old = info(&harness, mw).rkey;
    let new = post(&mut harness, mw, 16, 64);
    assert_eq!(new.get(), (old.get() & !0xff) | (old.get() + 1) & 0xff);
    assert_eq!(info(&harness, mw).rkey, new);
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    assert_eq!(info(&harness, mw).binding, Some(Binding { mr: harness.mr, addr: BASE + 16, length: 64, access }));
    let sent = harness.device().sent[0];
    let Kind::Bind(bind) = sent.kind else { panic!("a bind was posted: {sent:?}") };
    assert_eq!((bind.old, bind.new, bind.lkey, bind.addr, bind.length), (old, new, harness.lkey(), BASE + 16, 64));
    harness.complete(0, WcStatus::Success);
    let done = harness.poll().unwrap();
    assert_eq!((done[0].wr_id, done[0].opcode), (9, WcOpcode::BindMw));
    assert_eq!(info(&harness, mw).rkey, new);
}

#[test]
#[cfg_attr(miri, ignore = "256 binds take a minute")]
fn the_low_byte_of_the_key_wraps_without_touching_the_rest() {
    let mut harness = Harness::new();
    let mw = harness.window(MwType::Type1);
    let start = info(&harness, mw).rkey;
    for n in 0..256_u32 {
        let at = u16::try_from(n * 3).unwrap();
        post(&mut harness, mw, 0, 64);
        harness.complete(at, WcStatus::Success);
        harness.poll().unwrap();
        assert_eq!(info(&harness, mw).rkey.index(), start.index());
    }
    assert_eq!(info(&harness, mw).rkey, start);
}

// contract: bind-unbind
#[test]
fn length_zero_unbinds_and_ignores_the_rest() {
    let mut harness = Harness::new();
    let mw = harness.window(MwType::Type1);
    post(&mut harness, mw, 0, 64);
    let stale = register(&mut harness.verbs, harness.pd, BASE, 64, ALL_RIGHTS).unwrap();
    harness.verbs.dereg_mr_raw(stale).unwrap();
    let unbind = Type1Bind { mr: stale, addr: u64::MAX, length: 0, ..bind(&harness, 0, 0) };
    let before = info(&harness, mw).rkey;
    let after = harness.verbs.bind_type1(harness.qp, mw, &unbind).unwrap();
    assert_ne!(before, after);
    assert_eq!(info(&harness, mw).binding, None);
}

// contract: bind-failure
#[test]
fn a_failed_bind_restores_the_window_with_its_old_key() {
    let mut harness = Harness::new();
    let mw = harness.window(MwType::Type1);
    let unbound = info(&harness, mw);
    post(&mut harness, mw, 0, 64);
    harness.complete(0, WcStatus::MwBindErr);
    harness.poll().unwrap();
    assert_eq!(info(&harness, mw), unbound);
    assert_eq!(harness.verbs.qp_info(harness.qp).unwrap().state, QpState::Err);
    harness.verbs.dereg_mr_raw(harness.mr).unwrap();
}

#[test]
fn of_several_binds_of_one_window_each_restores_what_it_found() {
    // Every outcome of two binds in flight: the window ends as the last one that succeeded left it.
    for (first, second) in [(true, true), (true, false), (false, true), (false, false)] {
        let mut harness = Harness::new();
        let mw = harness.window(MwType::Type1);
        let before = info(&harness, mw);
        post(&mut harness, mw, 0, 64);
        let after_first = info(&harness, mw);
        post(&mut harness, mw, 64, 128);
        let after_second = info(&harness, mw);
        let status = |good| if good { WcStatus::Success } else { WcStatus::WrFlushErr };
        harness.complete(0, status(first));
        harness.complete(3, status(second));
        assert_eq!(harness.poll().unwrap().len(), 2);
        let expected = match (first, second) {
            (_, true) => after_second,
            (true, false) => after_first,
            (false, false) => before,
        };
        assert_eq!(info(&harness, mw), expected, "{first} {second}");
        let busy = harness.verbs.dereg_mr_raw(harness.mr);
        assert_eq!(busy.is_err(), expected.binding.is_some(), "{first} {second}: {busy:?}");
    }
}

#[test]
fn an_unsignaled_bind_is_retired_by_a_later_completion() {
    let mut harness = Harness::new();
    let mw = harness.window(MwType::Type1);
    let bind = Type1Bind { flags: SendFlags::empty(), ..bind(&harness, 0, 64) };
    harness.verbs.bind_type1(harness.qp, mw, &bind).unwrap();
    harness.verbs.post_send(harness.qp, &send(2, &[])).unwrap();
    let bound = info(&harness, mw);
    // The send fails: the bind before it has succeeded.
    harness.complete(3, WcStatus::RemAccessErr);
    assert_eq!(harness.poll_ids(), [2]);
    assert_eq!(info(&harness, mw), bound);
    harness.verbs.dealloc_mw(mw).unwrap();
    harness.verbs.dereg_mr_raw(harness.mr).unwrap();
}

#[test]
fn a_region_is_held_by_its_windows_and_by_what_a_failed_bind_would_bring_back() {
    let mut harness = Harness::new();
    let mw = harness.window(MwType::Type1);
    post(&mut harness, mw, 0, 64);
    harness.complete(0, WcStatus::Success);
    harness.poll().unwrap();
    let other = register(&mut harness.verbs, harness.pd, BASE, LENGTH, ALL_RIGHTS).unwrap();
    let rebind = Type1Bind { mr: other, ..bind(&harness, 0, 64) };
    harness.verbs.bind_type1(harness.qp, mw, &rebind).unwrap();
    let held = DeregMrError::Busy { bindings: 1 };
    let busy = Err(held);
    assert_eq!((harness.verbs.dereg_mr_raw(harness.mr), harness.verbs.dereg_mr_raw(other)), (busy, busy));
    harness.complete(3, WcStatus::Success);
    harness.poll().unwrap();
    assert_eq!((harness.verbs.dereg_mr_raw(harness.mr), harness.verbs.dereg_mr_raw(other)), (Ok(()), busy));
    assert_eq!(held.errno(), Errno::Ebusy);
    harness.verbs.dealloc_mw(mw).unwrap();
    harness.verbs.dereg_mr_raw(other).unwrap();
}

// contract: mw-dealloc-in-flight
#[test]
fn a_window_stays_while_its_binds_are_in_flight() {
    let mut harness = Harness::new();
    let mw = harness.window(MwType::Type1);
    post(&mut harness, mw, 0, 64);
    post(&mut harness, mw, 64, 64);
    let error = harness.verbs.dealloc_mw(mw).unwrap_err();
    assert_eq!((error, error.errno()), (DeallocMwError::Busy { binds: 2 }, Errno::Ebusy));
    harness.complete(0, WcStatus::WrFlushErr);
    harness.complete(3, WcStatus::WrFlushErr);
    assert_eq!(harness.poll_ids(), [9, 9]);
    harness.verbs.dealloc_mw(mw).unwrap();
    harness.verbs.dereg_mr_raw(harness.mr).unwrap();
}

/// A window is bound on a queue pair, without a doorbell, and then on another, where the device does it first: in the end the window is
/// what the first bind says, though the program posted it before. So the second is refused until the first is done.
#[test]
fn binds_of_a_window_are_in_flight_on_one_queue_pair_at_a_time() {
    let mut harness = Harness::new();
    let (other, other_cq) = harness.second();
    for kind in [MwType::Type1, MwType::Type2] {
        let (mw, mr) = (harness.window(kind), harness.region(ALL_RIGHTS));
        let refused = BindRefused::OtherQueuePair { qp: harness.qp };
        let (first, second) = (bind(&harness, 0, 64), Type1Bind { mr, ..bind(&harness, 0, 64) });
        let info2 = Binding { mr, addr: BASE, length: 64, access: Access::REMOTE_READ };
        match kind {
            MwType::Type1 => {
                let mut batch = harness.verbs.send_batch(harness.qp);
                batch.bind_type1(mw, &first).unwrap();
                core::mem::forget(batch);
                let unbind = Type1Bind { length: 0, ..second };
                for bind in [&second, &unbind] {
                    assert_eq!(harness.verbs.bind_type1(other, mw, bind), Err(BindType1Error::Refused(refused)));
                }
                harness.verbs.ring_send_queue(harness.qp);
            }
            MwType::Type2 => {
                let rkey = bind_type2(&mut harness, mw, 3);
                for wr in [SendWr::bind_mw(mw, KeyTag(4), info2), SendWr::local_inv(rkey)] {
                    assert_eq!(harness.verbs.post_send(other, &wr), Err(PostSendError::Bind(refused)));
                }
            }
        }
        assert_eq!(refused.errno(), Errno::Ebusy);
        assert_eq!(harness.verbs.dereg_mr_raw(harness.mr), Err(DeregMrError::Busy { bindings: 1 }));
        let (qpn, other_qpn) = (harness.qpn(), harness.verbs.qp_info(other).unwrap().qpn);
        assert!(harness.device().execute(qpn));
        assert_eq!(harness.poll().unwrap()[0].status, WcStatus::Success);
        // Done: now the other may.
        if kind == MwType::Type1 {
            harness.verbs.bind_type1(other, mw, &second).unwrap();
            assert!(harness.device().execute(other_qpn));
            assert_eq!(harness.poll_of(other_cq).unwrap()[0].status, WcStatus::Success);
            assert_eq!(harness.verbs.dereg_mr_raw(mr), Err(DeregMrError::Busy { bindings: 1 }));
        }
        harness.verbs.dealloc_mw(mw).unwrap();
        harness.verbs.dereg_mr_raw(mr).unwrap();
    }
    assert!(harness.device().violations.is_empty());
}

/// A reset leaves the question which of two bindings with one key the device has: so there are no two.
#[test]
fn a_window_is_not_bound_again_with_the_key_of_a_binding_that_it_may_have() {
    let mut harness = Harness::new();
    let mw = harness.window(MwType::Type2);
    let key = bind_type2(&mut harness, mw, 7);
    let info = Binding { mr: harness.mr, addr: BASE, length: 8, access: Access::REMOTE_READ };
    let same = SendWr::bind_mw(mw, KeyTag(7), info);
    let refused = Err(PostSendError::Bind(BindRefused::KeyInUse { rkey: key }));
    assert_eq!(harness.verbs.post_send(harness.qp, &same), refused);
    // Also before an invalidation is known to be done.
    let invalidate = SendWr { flags: SendFlags::SIGNALED, ..SendWr::local_inv(key) };
    harness.verbs.post_send(harness.qp, &invalidate).unwrap();
    assert_eq!(harness.verbs.post_send(harness.qp, &same), refused);
    while harness.device().execute(harness.qpn()) {}
    assert_eq!(harness.poll_ids(), [1, 0]);
    harness.verbs.post_send(harness.qp, &same).unwrap();
    // Also if nothing but the invalidation is in flight.
    let mw = harness.window(MwType::Type2);
    let key = bind_type2(&mut harness, mw, 7);
    while harness.device().execute(harness.qpn()) {}
    harness.poll_ids();
    harness.verbs.post_send(harness.qp, &SendWr::local_inv(key)).unwrap();
    let refused = Err(PostSendError::Bind(BindRefused::KeyInUse { rkey: key }));
    assert_eq!(harness.verbs.post_send(harness.qp, &SendWr::bind_mw(mw, KeyTag(7), info)), refused);
}

/// RESET and destruction drop binds without a completion: queries of the device show which of them it executed.
#[test]
fn after_reset_and_destruction_a_window_is_what_the_device_says() {
    for (executed, reset) in [(0, true), (1, true), (2, true), (0, false), (1, false), (2, false)] {
        let mut harness = Harness::new();
        let mw = harness.window(MwType::Type1);
        let mut expected = std::vec![info(&harness, mw)];
        for offset in [0, 64] {
            post(&mut harness, mw, offset, 64);
            expected.push(info(&harness, mw));
        }
        for _ in 0..executed {
            assert!(harness.device().execute(harness.qpn()));
        }
        if reset {
            harness.step(harness.qp, QpState::Reset);
            harness.poll_ids();
            harness.connect(harness.qp);
        } else {
            harness.verbs.destroy_qp(harness.qp).unwrap();
            harness.poll_ids();
            harness.qp = harness.verbs.create_qp(&harness.init(QpType::Rc)).unwrap();
            harness.connect(harness.qp);
        }
        assert_eq!(info(&harness, mw), expected[executed], "{executed} done");
        assert_eq!(harness.verbs.dereg_mr_raw(harness.mr).is_err(), executed != 0, "{executed} done");
    }
}

/// The device never sees a bind whose batch was forgotten: the region that the window is bound to by an older bind stays held.
#[test]
fn a_bind_without_a_doorbell_ends_with_reset() {
    let mut harness = Harness::new();
    let (mw, other) = (harness.window(MwType::Type1), harness.region(ALL_RIGHTS));
    post(&mut harness, mw, 0, 64);
    assert!(harness.device().execute(harness.qpn()));
    harness.poll().unwrap();
    let bound = info(&harness, mw);
    let rebind = Type1Bind { mr: other, ..bind(&harness, 0, 64) };
    let mut batch = harness.verbs.send_batch(harness.qp);
    batch.bind_type1(mw, &rebind).unwrap();
    core::mem::forget(batch);
    harness.step(harness.qp, QpState::Reset);
    assert_eq!(info(&harness, mw), bound);
    assert_eq!(harness.verbs.dereg_mr_raw(harness.mr), Err(DeregMrError::Busy { bindings: 1 }));
    harness.verbs.dereg_mr_raw(other).unwrap();
}

/// A poller on another core has freed the blocks of a bind, and has not ended it yet, when the queue pair is reset: the device has done
/// it, and its key opens the region.
#[test]
fn a_bind_that_a_poller_is_about_to_end_stays_after_reset() {
    let mut harness = Harness::new();
    let mw = harness.window(MwType::Type1);
    post(&mut harness, mw, 0, 64);
    let bound = info(&harness, mw);
    assert!(harness.device().execute(harness.qpn()));
    let slot = &harness.verbs.shared.qps[usize::from(harness.qp.index())];
    slot.send.tail.store(slot.send.head.load(Ordering::Relaxed), Ordering::Release);
    harness.step(harness.qp, QpState::Reset);
    assert_eq!(info(&harness, mw), bound);
    assert_eq!(harness.verbs.dereg_mr_raw(harness.mr), Err(DeregMrError::Busy { bindings: 1 }));
}

/// The device says whether an invalidation was done that a RESET drops: until then the region stays held.
#[test]
fn an_invalidation_that_reset_drops_frees_the_region_if_it_was_done() {
    for executed in [false, true] {
        let mut harness = Harness::new();
        let mw = harness.window(MwType::Type2);
        let bound = bind_type2(&mut harness, mw, 0x11);
        assert!(harness.device().execute(harness.qpn()));
        harness.poll().unwrap();
        let inv = SendWr { wr_id: 2, flags: SendFlags::SIGNALED, op: SendOp::LocalInv { rkey: bound } };
        harness.verbs.post_send(harness.qp, &inv).unwrap();
        if executed {
            assert!(harness.device().execute(harness.qpn()));
        }
        harness.step(harness.qp, QpState::Reset);
        let freed = if executed { Ok(()) } else { Err(DeregMrError::Busy { bindings: 1 }) };
        assert_eq!(harness.verbs.dereg_mr_raw(harness.mr), freed, "{executed}");
        harness.verbs.dealloc_mw(mw).unwrap();
        if !executed {
            harness.verbs.dereg_mr_raw(harness.mr).unwrap();
        }
        assert!(harness.device().violations.is_empty());
    }
}

/// The peer invalidates a window while a bind of it is in flight, which then fails: there is nothing to go back to.
// contract: bind-type-2
#[test]
fn what_the_peer_has_invalidated_does_not_come_back() {
    let mut harness = Harness::new();
    let mw = harness.window(MwType::Type2);
    let old = bind_type2(&mut harness, mw, 0x11);
    harness.verbs.post_recv(harness.qp, &RecvWr { wr_id: 5, sges: &[] }).unwrap();
    assert!(harness.device().execute(harness.qpn()));
    harness.poll().unwrap();
    assert!(harness.device().invalidate(harness.qpn(), old.index()));
    bind_type2(&mut harness, mw, 0x12);
    harness.complete(3, WcStatus::MwBindErr);
    assert_eq!(harness.poll_ids(), [5, 1]);
    assert_eq!((info(&harness, mw).rkey, info(&harness, mw).binding), (old, None));
    harness.verbs.dereg_mr_raw(harness.mr).unwrap();
}

/// The peer invalidates a window, and the program binds it again before it polls the completion that says so. That completion is about
/// the old binding: the new one holds its region, whichever completion is polled first, also once the key comes again.
// contract: bind-type-2
#[test]
fn an_invalidation_that_is_polled_late_leaves_a_newer_bind_with_the_same_key() {
    for polls_one_early in [true, false] {
        let mut harness = Harness::new();
        // So that the order of polls is the program's.
        let (qp, recv_cq) = with_recv_cq(&mut harness);
        harness.qp = qp;
        let (mw, qpn) = (harness.window(MwType::Type2), harness.qpn());
        for wr_id in 0..3 {
            harness.verbs.post_recv(qp, &RecvWr { wr_id, sges: &[] }).unwrap();
        }
        let mut keys = std::vec::Vec::new();
        for tag in [0x11, 0x12, 0x11] {
            keys.push(bind_type2(&mut harness, mw, tag));
            assert!(harness.device().execute(qpn));
            if polls_one_early && tag == 0x12 {
                assert_eq!(harness.poll_of(recv_cq).unwrap()[0].data, WcData::Invalidated(keys[0]));
            }
            assert_eq!(harness.poll().unwrap()[0].status, WcStatus::Success);
            if keys.len() < 3 {
                assert!(harness.device().invalidate(qpn, keys[0].index()));
            }
        }
        let late = harness.poll_of(recv_cq).unwrap();
        assert_eq!(late.len(), if polls_one_early { 1 } else { 2 });
        assert!(info(&harness, mw).binding.is_some(), "{polls_one_early}");
        assert_eq!(harness.verbs.dereg_mr_raw(harness.mr), Err(DeregMrError::Busy { bindings: 1 }));
        // That of the new one frees the region.
        assert!(harness.device().invalidate(qpn, keys[2].index()));
        assert_eq!(harness.poll_of(recv_cq).unwrap()[0].data, WcData::Invalidated(keys[2]));
        assert_eq!(info(&harness, mw).binding, None);
        harness.verbs.dereg_mr_raw(harness.mr).unwrap();
        assert!(harness.device().violations.is_empty());
    }
}

/// Two queue pairs complete their receives in queues of their own: what the second one received is polled first. That is about the binding
/// which the window has now, with another key than the one that was not polled yet.
// contract: bind-type-2
#[test]
fn an_invalidation_on_another_queue_pair_is_not_taken_for_one_that_was_not_polled() {
    let mut harness = Harness::new();
    let (first, (second, second_cq)) = (harness.qp, harness.second());
    let mw = harness.window(MwType::Type2);
    let mut keys = std::vec::Vec::new();
    for (qp, cq, tag) in [(first, harness.cq, 0x11), (second, second_cq, 0x12)] {
        harness.qp = qp;
        harness.verbs.post_recv(qp, &RecvWr { wr_id: u64::from(tag), sges: &[] }).unwrap();
        let rkey = bind_type2(&mut harness, mw, tag);
        assert!(harness.device().execute(harness.qpn()));
        assert_eq!(harness.poll_of(cq).unwrap()[0].status, WcStatus::Success);
        assert!(harness.device().invalidate(harness.qpn(), rkey.index()));
        keys.push(rkey);
    }
    assert_eq!(harness.poll_of(second_cq).unwrap()[0].data, WcData::Invalidated(keys[1]));
    assert_eq!(info(&harness, mw).binding, None);
    harness.verbs.dereg_mr_raw(harness.mr).unwrap();
    assert_eq!(harness.poll_of(harness.cq).unwrap()[0].data, WcData::Invalidated(keys[0]));
    assert_eq!(info(&harness, mw), MwInfo { rkey: keys[1], ..info(&harness, mw) });
}

/// A queue pair that completes its receives in a queue of their own, and sends in the harness's.
fn with_recv_cq(harness: &mut Harness) -> (QpHandle, CqHandle) {
    let recv_cq = harness.verbs.create_cq(64).unwrap();
    let qp = harness.verbs.create_qp(&QpInit { recv_cq, ..harness.init(QpType::Rc) }).unwrap();
    harness.connect(qp);
    (qp, recv_cq)
}

/// Binds a type 2 window on a queue pair, and lets the peer invalidate it there. Returns its key.
fn bound_and_invalidated(harness: &mut Harness, qp: QpHandle, mw: MwHandle, tag: u8) -> Rkey {
    harness.qp = qp;
    harness.verbs.post_recv(qp, &RecvWr { wr_id: 5, sges: &[] }).unwrap();
    let rkey = bind_type2(harness, mw, tag);
    let qpn = harness.qpn();
    assert!(harness.device().execute(qpn));
    assert!(harness.device().invalidate(qpn, rkey.index()));
    rkey
}

/// A RESET learns from the device that a bind was done and that the peer has ended it. The completion of that, which is polled after the
/// window was bound anew with the same key, is not about the new binding.
#[test]
fn an_invalidation_that_reset_has_learned_ends_no_later_bind() {
    let mut harness = Harness::new();
    let other = harness.qp;
    let (qp, recv_cq) = with_recv_cq(&mut harness);
    let mw = harness.window(MwType::Type2);
    let key = bound_and_invalidated(&mut harness, qp, mw, 7);
    harness.step(qp, QpState::Reset);
    assert_eq!(info(&harness, mw), MwInfo { rkey: key, binding: None, ..info(&harness, mw) });
    harness.qp = other;
    assert_eq!(bind_type2(&mut harness, mw, 7), key);
    assert!(harness.device().execute(harness.qpn()));
    assert_eq!(harness.poll_of(recv_cq).unwrap(), []);
    assert!(info(&harness, mw).binding.is_some());
    assert_eq!(harness.verbs.dereg_mr_raw(harness.mr), Err(DeregMrError::Busy { bindings: 1 }));
    // One that comes now is.
    harness.verbs.post_recv(other, &RecvWr { wr_id: 6, sges: &[] }).unwrap();
    assert!(harness.device().invalidate(harness.qpn(), key.index()));
    harness.poll().unwrap();
    assert_eq!(info(&harness, mw).binding, None);
    harness.verbs.dereg_mr_raw(harness.mr).unwrap();
    assert!(harness.device().violations.is_empty());
}

/// Two binds of a queue pair were done, and the peer has ended both, when it is reset: so many completions come still.
#[test]
fn each_invalidation_that_reset_has_learned_is_counted() {
    let mut harness = Harness::new();
    let other = harness.qp;
    let (qp, recv_cq) = with_recv_cq(&mut harness);
    let mw = harness.window(MwType::Type2);
    bound_and_invalidated(&mut harness, qp, mw, 7);
    let newest = bound_and_invalidated(&mut harness, qp, mw, 8);
    harness.step(qp, QpState::Reset);
    assert_eq!((info(&harness, mw).rkey, info(&harness, mw).binding), (newest, None));
    harness.qp = other;
    for tag in [7, 8] {
        bind_type2(&mut harness, mw, tag);
        assert!(harness.device().execute(harness.qpn()));
        if tag == 7 {
            // By its own queue pair: the key is free for the next.
            let inv = SendWr { flags: SendFlags::SIGNALED, ..SendWr::local_inv(info(&harness, mw).rkey) };
            harness.verbs.post_send(other, &inv).unwrap();
            assert!(harness.device().execute(harness.qpn()));
        }
        harness.poll().unwrap();
    }
    assert_eq!(harness.poll_of(recv_cq).unwrap(), []);
    assert!(info(&harness, mw).binding.is_some());
}

/// Ends a window that the peer has invalidated, and posts the bind of the next with its number and key. The completion of the invalidation
/// waits in the queue that is returned, with the window and the key.
fn bound_with_the_key_of_one_that_ended(harness: &mut Harness) -> (MwHandle, Rkey, CqHandle) {
    let other = harness.qp;
    let (qp, recv_cq) = with_recv_cq(harness);
    let first = harness.window(MwType::Type2);
    let key = bound_and_invalidated(harness, qp, first, 7);
    harness.poll().unwrap();
    harness.verbs.dealloc_mw(first).unwrap();
    let mw = harness.window(MwType::Type2);
    harness.qp = other;
    assert_eq!(bind_type2(harness, mw, 7), key, "the number comes again");
    (mw, key, recv_cq)
}

/// Returns a window that is bound with tag 7, and its key, of which a completion of an older window says that the peer has ended it.
fn doubtful(harness: &mut Harness) -> (MwHandle, Rkey) {
    let (mw, key, recv_cq) = bound_with_the_key_of_one_that_ended(harness);
    assert!(harness.device().execute(harness.qpn()));
    harness.poll().unwrap();
    assert_eq!(harness.poll_of(recv_cq).unwrap()[0].data, WcData::Invalidated(key));
    (mw, key)
}

/// The device gives a window the number of one that ended, and it is bound with the same key before the invalidation of the first is polled.
/// Nobody knows which of the two that is about: so the device is asked before the region ends.
#[test]
fn an_invalidation_of_a_window_that_ended_frees_no_region_under_the_next() {
    let mut harness = Harness::new();
    let other = harness.qp;
    let (_, key) = doubtful(&mut harness);
    assert_eq!(harness.verbs.dereg_mr_raw(harness.mr), Err(DeregMrError::Busy { bindings: 1 }));
    // Requests see the region still.
    let sges = [harness.sge(0, 8)];
    harness.verbs.post_send(other, &send(3, &sges)).unwrap();
    // A device that does not answer is no device that has unbound it.
    harness.device().fail_after = Some(0);
    assert_eq!(harness.verbs.dereg_mr_raw(harness.mr), Err(DeregMrError::Device(super::MockError::Refused)));
    harness.verbs.post_send(other, &send(4, &sges)).unwrap();
    let inv = SendWr { flags: SendFlags::SIGNALED, ..SendWr::local_inv(key) };
    harness.verbs.post_send(other, &inv).unwrap();
    while harness.device().execute(harness.qpn()) {}
    assert_eq!(harness.poll().unwrap().last().unwrap().status, WcStatus::Success);
    harness.verbs.dereg_mr_raw(harness.mr).unwrap();
    assert!(harness.device().violations.is_empty());
}

/// The same while the bind of the next window is in flight: that the device has not bound it yet says nothing of what it will do.
#[test]
fn an_invalidation_of_a_window_that_ended_frees_no_region_under_a_bind_in_flight() {
    let mut harness = Harness::new();
    let (mw, key, recv_cq) = bound_with_the_key_of_one_that_ended(&mut harness);
    assert_eq!(harness.poll_of(recv_cq).unwrap()[0].data, WcData::Invalidated(key));
    assert_eq!(harness.verbs.dereg_mr_raw(harness.mr), Err(DeregMrError::Busy { bindings: 1 }));
    assert!(harness.device().execute(harness.qpn()));
    assert_eq!(harness.poll().unwrap()[0].status, WcStatus::Success);
    assert_eq!(harness.verbs.dereg_mr_raw(harness.mr), Err(DeregMrError::Busy { bindings: 1 }));
    harness.verbs.dealloc_mw(mw).unwrap();
    harness.verbs.dereg_mr_raw(harness.mr).unwrap();
    assert!(harness.device().violations.is_empty());
}

/// A bind with the key of a binding that the peer is said to have ended is dropped by a RESET, and the device has not done it: by its key
/// alone that does not show, so both regions stay held.
#[test]
fn a_doubtful_binding_holds_its_region_over_a_reset_that_drops_a_bind_with_its_key() {
    let mut harness = Harness::new();
    let (other, first) = (harness.qp, harness.mr);
    let (mw, _) = doubtful(&mut harness);
    let unrelated = harness.region(ALL_RIGHTS);
    harness.mr = harness.region(ALL_RIGHTS);
    bind_type2(&mut harness, mw, 7);
    harness.step(other, QpState::Reset);
    harness.verbs.dereg_mr_raw(unrelated).unwrap();
    assert_eq!(harness.verbs.dereg_mr_raw(first), Err(DeregMrError::Busy { bindings: 1 }));
    assert_eq!(harness.verbs.dereg_mr_raw(harness.mr), Err(DeregMrError::Busy { bindings: 1 }));
    harness.verbs.dealloc_mw(mw).unwrap();
    harness.verbs.dereg_mr_raw(first).unwrap();
    harness.verbs.dereg_mr_raw(harness.mr).unwrap();
    assert!(harness.device().violations.is_empty());
}

/// A window is bound with the key that it has, and the completion of an older invalidation is polled before that of the bind. A RESET drops
/// the bind, which the device has done: by its key alone that does not show either.
#[test]
fn a_doubtful_bind_that_a_reset_drops_holds_its_region() {
    let mut harness = Harness::new();
    let (other, (qp, recv_cq)) = (harness.qp, with_recv_cq(&mut harness));
    let mw = harness.window(MwType::Type2);
    let tag = info(&harness, mw).rkey.tag().0;
    bound_and_invalidated(&mut harness, qp, mw, tag);
    harness.step(qp, QpState::Reset);
    harness.qp = other;
    let key = bind_type2(&mut harness, mw, tag);
    assert!(harness.device().execute(harness.qpn()));
    assert_eq!(harness.poll_of(recv_cq).unwrap(), []);
    harness.step(other, QpState::Reset);
    assert_eq!(harness.verbs.dereg_mr_raw(harness.mr), Err(DeregMrError::Busy { bindings: 1 }));
    assert_eq!(info(&harness, mw).rkey, key);
    harness.verbs.dealloc_mw(mw).unwrap();
    harness.verbs.dereg_mr_raw(harness.mr).unwrap();
    assert!(harness.device().violations.is_empty());
}

/// The binding that the peer has ended holds its region no longer, also while a bind to another region is in flight, done or not.
#[test]
fn a_region_whose_binding_the_peer_has_ended_is_free_while_the_window_is_bound_anew() {
    for is_done in [false, true] {
        let mut harness = Harness::new();
        let (qp, first) = (harness.qp, harness.mr);
        let mw = harness.window(MwType::Type2);
        bound_and_invalidated(&mut harness, qp, mw, 7);
        harness.poll().unwrap();
        harness.mr = harness.region(ALL_RIGHTS);
        bind_type2(&mut harness, mw, 8);
        if is_done {
            assert!(harness.device().execute(harness.qpn()));
        }
        harness.verbs.dereg_mr_raw(first).unwrap();
        assert_eq!(harness.verbs.dereg_mr_raw(harness.mr), Err(DeregMrError::Busy { bindings: 1 }));
    }
}

/// A window is looked up in the domain of the queue pair that received the invalidation, whichever domain that is.
#[test]
fn the_peer_invalidates_a_window_of_a_second_domain() {
    let mut harness = Harness::new();
    harness.pd = harness.verbs.alloc_pd().unwrap();
    (harness.qp, harness.cq) = harness.second();
    harness.mr = harness.region(ALL_RIGHTS);
    let mw = harness.window(MwType::Type2);
    harness.verbs.post_recv(harness.qp, &RecvWr { wr_id: 5, sges: &[] }).unwrap();
    let rkey = bind_type2(&mut harness, mw, 1);
    assert!(harness.device().execute(harness.qpn()));
    assert!(harness.device().invalidate(harness.qpn(), rkey.index()));
    assert_eq!(harness.poll().unwrap()[1].data, WcData::Invalidated(rkey));
    assert_eq!(info(&harness, mw).binding, None);
    harness.verbs.dereg_mr_raw(harness.mr).unwrap();
}

/// An error of the device that unwinds does not end a window: its binding still holds the region, and nothing else takes its place.
#[test]
fn a_window_whose_end_unwound_holds_its_region() {
    let mut harness = Harness::new();
    let (mw, other) = (harness.window(MwType::Type1), harness.window(MwType::Type1));
    post(&mut harness, mw, 0, 64);
    assert!(harness.device().execute(harness.qpn()));
    harness.poll().unwrap();
    harness.device().panics = true;
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| harness.verbs.dealloc_mw(mw)));
    assert!(ended.is_err());
    assert_eq!(harness.verbs.dealloc_mw(mw), Err(DeallocMwError::Stale));
    assert_eq!(harness.verbs.dereg_mr_raw(harness.mr), Err(DeregMrError::Busy { bindings: 1 }));
    // The table has room for two.
    assert_eq!(harness.verbs.alloc_mw(harness.pd, MwType::Type1), Err(AllocMwError::Full { capacity: 2 }));
    assert_eq!(harness.verbs.dereg_mr_raw(harness.mr), Err(DeregMrError::Busy { bindings: 1 }));
    harness.verbs.dealloc_mw(other).unwrap();
    let third = harness.window(MwType::Type1);
    assert_eq!(third.index(), other.index());
    assert!(harness.device().violations.is_empty());
}

#[test]
fn binds_go_into_a_batch_with_what_follows_them() {
    let mut harness = Harness::new();
    let mw = harness.window(MwType::Type1);
    let good = bind(&harness, 0, 64);
    let mut batch = harness.verbs.send_batch(harness.qp);
    batch.bind_type1(mw, &good).unwrap();
    batch.post(&send(2, &[])).unwrap();
    drop(batch);
    assert_eq!(harness.device().doorbells, [(harness.qpn(), 4, true)]);
}

#[test]
fn the_peer_invalidates_type_two_windows() {
    let mut harness = Harness::new();
    let mw = harness.window(MwType::Type2);
    let rkey = bind_type2(&mut harness, mw, 1);
    harness.verbs.post_recv(harness.qp, &RecvWr { wr_id: 5, sges: &[] }).unwrap();
    assert!(harness.device().execute(harness.qpn()));
    assert!(harness.device().invalidate(harness.qpn(), rkey.index()));
    let done = harness.poll().unwrap();
    assert_eq!((done[0].wr_id, done[1].wr_id, done[1].data), (1, 5, WcData::Invalidated(rkey)));
    assert_eq!(info(&harness, mw).binding, None);
    harness.verbs.dereg_mr_raw(harness.mr).unwrap();
}

/// Binds a type 2 window to the start of the region; gives its new key.
fn bind_type2(harness: &mut Harness, mw: MwHandle, tag: u8) -> Rkey {
    let binding = Binding { mr: harness.mr, addr: BASE, length: 64, access: Access::REMOTE_READ };
    let op = SendOp::BindMw { mw, tag: KeyTag(tag), binding };
    harness.verbs.post_send(harness.qp, &SendWr { wr_id: 1, flags: SendFlags::SIGNALED, op }).unwrap();
    info(harness, mw).rkey
}

/// The backend is told of each request that follows a bind or an invalidation, and of no other: however the two are posted, also
/// if the batch of the first was forgotten, but not after a RESET.
#[test]
fn the_request_after_a_bind_is_marked() {
    let mut harness = Harness::new();
    let (mw, two) = (harness.window(MwType::Type1), harness.window(MwType::Type2));
    let sges = [harness.sge(0, 8)];
    let marks = |harness: &Harness| {
        let flags: std::vec::Vec<bool> =
            harness.device().sent.iter().map(|sent| sent.flags.contains(SendFlags::AFTER_BIND)).collect();
        harness.device().sent.clear();
        flags
    };
    let first = bind(&harness, 0, 64);
    harness.verbs.bind_type1(harness.qp, mw, &first).unwrap();
    harness.verbs.post_send(harness.qp, &send(1, &sges)).unwrap();
    harness.verbs.post_send(harness.qp, &send(2, &sges)).unwrap();
    assert_eq!(marks(&harness), [false, true, false]);
    let qpn = harness.qpn();
    while harness.device().execute(qpn) {}
    harness.poll().unwrap();
    let (mr, access) = (harness.mr, Access::REMOTE_READ);
    let type2 = SendWr::bind_mw(two, KeyTag(7), Binding { mr, addr: BASE, length: 64, access });
    let mut batch = harness.verbs.send_batch(harness.qp);
    batch.post(&type2).unwrap();
    core::mem::forget(batch);
    let rkey = info(&harness, two).rkey;
    harness.verbs.post_send_list(harness.qp, &[SendWr::local_inv(rkey), send(3, &sges), send(4, &sges)]).unwrap();
    assert_eq!(marks(&harness), [false, true, true, false]);
    while harness.device().execute(qpn) {}
    harness.poll().unwrap();
    let (before, refused) = (bind(&harness, 0, 64), SendWr { flags: SendFlags::AFTER_BIND, ..send(5, &sges) });
    harness.verbs.bind_type1(harness.qp, mw, &before).unwrap();
    let error = harness.verbs.post_send(harness.qp, &refused).unwrap_err();
    assert_eq!(error, crate::error::PostSendError::Flags { flags: SendFlags::AFTER_BIND });
    harness.step(harness.qp, QpState::Reset);
    harness.poll().unwrap();
    harness.connect(harness.qp);
    harness.verbs.post_send(harness.qp, &send(6, &sges)).unwrap();
    assert_eq!(marks(&harness), [false, false]);
}

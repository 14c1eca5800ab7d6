//! Rows of the contract about binding windows.

use super::mock::Kind;
use super::post::send;
use super::{ALL_RIGHTS, BASE, LENGTH, Rig, register, set_state};
use crate::{
    Access, BindInfo, BindMwError, BindRefused, Binding, DeallocMwError, DeregMrError, Errno, MwBind, MwHandle, MwInfo, MwType,
    QpState, QpType, RecvWr, Rkey, SendFlags, SendOp, SendWr, WcData, WcOpcode, WcStatus,
};

fn bind(rig: &Rig, offset: u64, length: u64) -> MwBind {
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    MwBind { wr_id: 9, flags: SendFlags::SIGNALED, mr: rig.mr, addr: BASE + offset, length, access }
}

fn post(rig: &mut Rig, mw: MwHandle, offset: u64, length: u64) -> Rkey {
    let bind = bind(rig, offset, length);
    rig.verbs.bind_mw(rig.qp, mw, &bind).unwrap()
}

fn info(rig: &Rig, mw: MwHandle) -> MwInfo {
    rig.verbs.mw(mw).unwrap()
}

/// A check fails with this errno and changes nothing.
fn refused(rig: &mut Rig, mw: MwHandle, bind: &MwBind, errno: Errno) -> BindMwError {
    let before = (rig.verbs.mw(mw), rig.verbs.qp(rig.qp).unwrap().send_blocks);
    let error = rig.verbs.bind_mw(rig.qp, mw, bind).unwrap_err();
    assert_eq!(error.errno(), errno, "{error}");
    assert_eq!((rig.verbs.mw(mw), rig.verbs.qp(rig.qp).unwrap().send_blocks), before);
    error
}

#[test]
fn arguments_that_make_no_sense_come_first() {
    let mut rig = Rig::new();
    let mw = rig.window(MwType::Type1);
    let two = rig.window(MwType::Type2);
    let good = bind(&rig, 0, 64);
    // Even where the state would be refused too.
    set_state(&rig.verbs, rig.qp, QpState::Init);
    let stale_mr = register(&mut rig.verbs, rig.pd, BASE, 64, ALL_RIGHTS).unwrap();
    rig.verbs.dereg_mr_raw(stale_mr).unwrap();
    refused(&mut rig, mw, &MwBind { mr: stale_mr, ..good }, Errno::Einval);
    refused(&mut rig, two, &good, Errno::Einval);
    for access in [1 << 12, Access::LOCAL_WRITE.bits(), Access::MW_BIND.bits()] {
        refused(&mut rig, mw, &MwBind { access: Access::from_bits_retain(access), ..good }, Errno::Einval);
    }
    for flags in [SendFlags::SOLICITED, SendFlags::INLINE, SendFlags::from_bits_retain(1 << 9)] {
        let error = refused(&mut rig, mw, &MwBind { flags, ..good }, Errno::Einval);
        assert_eq!(error, BindMwError::Flags { flags });
    }
    rig.verbs.dealloc_mw(mw).unwrap();
    let stale = rig.verbs.bind_mw(rig.qp, mw, &good).unwrap_err();
    assert_eq!(stale, BindMwError::Refused(BindRefused::StaleWindow));
    let mw = rig.window(MwType::Type1);
    rig.verbs.destroy_qp(rig.qp).unwrap();
    assert_eq!(rig.verbs.bind_mw(rig.qp, mw, &good), Err(BindMwError::StaleQp));
    let mut rig = Rig::with(QpType::Ud, false);
    let mw = rig.window(MwType::Type1);
    let good = bind(&rig, 0, 64);
    refused(&mut rig, mw, &good, Errno::Einval);
}

#[test]
fn then_the_state_then_domains_rights_and_range() {
    let mut rig = Rig::new();
    let mw = rig.window(MwType::Type1);
    let other_pd = rig.verbs.alloc_pd().unwrap();
    let foreign_mw = rig.verbs.alloc_mw(other_pd, MwType::Type1).unwrap();
    let foreign_mr = register(&mut rig.verbs, other_pd, BASE, LENGTH, Access::empty()).unwrap();
    let unbindable = register(&mut rig.verbs, rig.pd, BASE, LENGTH, Access::LOCAL_WRITE).unwrap();
    let readable = register(&mut rig.verbs, rig.pd, BASE, LENGTH, Access::MW_BIND).unwrap();
    // Each bind fails every later check too.
    let worst = MwBind { addr: u64::MAX, ..bind(&rig, 0, 64) };

    set_state(&rig.verbs, rig.qp, QpState::Rtr);
    refused(&mut rig, foreign_mw, &MwBind { mr: foreign_mr, ..worst }, Errno::Enotconn);
    set_state(&rig.verbs, rig.qp, QpState::Rts);
    refused(&mut rig, mw, &MwBind { mr: foreign_mr, ..worst }, Errno::Eperm);
    refused(&mut rig, foreign_mw, &worst, Errno::Eperm);
    refused(&mut rig, mw, &MwBind { mr: unbindable, ..worst }, Errno::Eacces);
    refused(&mut rig, mw, &MwBind { mr: readable, ..worst }, Errno::Eacces);
    refused(&mut rig, mw, &MwBind { mr: readable, access: Access::REMOTE_ATOMIC, ..worst }, Errno::Eacces);
    refused(&mut rig, mw, &worst, Errno::Efault);
    let good = bind(&rig, 0, 64);
    rig.verbs.bind_mw(rig.qp, mw, &MwBind { mr: readable, access: Access::REMOTE_READ, ..good }).unwrap();

    // The queue is full from here on, and there is no room to remember either.
    for n in 0..13 {
        rig.verbs.post_send(rig.qp, &send(n, &[])).unwrap();
    }
    refused(&mut rig, mw, &MwBind { addr: BASE - 1, ..good }, Errno::Erange);
    refused(&mut rig, mw, &MwBind { addr: BASE + LENGTH - 63, ..good }, Errno::Erange);
    refused(&mut rig, mw, &MwBind { length: LENGTH + 1, ..good }, Errno::Erange);
    let full = refused(&mut rig, mw, &good, Errno::Enospc);
    assert_eq!(full, BindMwError::QueueFull { needed: 3, free: 0 });
}

#[test]
fn only_as_many_binds_as_windows_are_remembered() {
    let mut rig = Rig::new();
    let mw = rig.window(MwType::Type1);
    post(&mut rig, mw, 0, 64);
    post(&mut rig, mw, 64, 64);
    let third = bind(&rig, 128, 64);
    assert_eq!(refused(&mut rig, mw, &third, Errno::Enomem), BindMwError::TooManyPendingBinds);
    rig.complete(0, WcStatus::Success);
    rig.poll().unwrap();
    post(&mut rig, mw, 128, 64);
}

#[test]
fn the_key_changes_at_once_and_the_device_gets_both() {
    let mut rig = Rig::new();
    let mw = rig.window(MwType::Type1);
    let old = info(&rig, mw).rkey;
    let new = post(&mut rig, mw, 16, 64);
    assert_eq!(new.get(), (old.get() & !0xff) | (old.get() + 1) & 0xff);
    assert_eq!(info(&rig, mw).rkey, new);
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    assert_eq!(info(&rig, mw).binding, Some(Binding { mr: rig.mr, addr: BASE + 16, length: 64, access }));
    let sent = rig.device().sent[0];
    let Kind::Bind(bind) = sent.kind else { panic!("a bind was posted: {sent:?}") };
    assert_eq!((bind.old, bind.new, bind.lkey, bind.addr, bind.length), (old, new, rig.lkey(), BASE + 16, 64));
    rig.complete(0, WcStatus::Success);
    let done = rig.poll().unwrap();
    assert_eq!((done[0].wr_id, done[0].opcode), (9, WcOpcode::BindMw));
    assert_eq!(info(&rig, mw).rkey, new);
}

#[test]
#[cfg_attr(miri, ignore = "256 binds take a minute")]
fn the_low_byte_of_the_key_wraps_without_touching_the_rest() {
    let mut rig = Rig::new();
    let mw = rig.window(MwType::Type1);
    let start = info(&rig, mw).rkey;
    for n in 0..256_u32 {
        let at = u16::try_from(n * 3).unwrap();
        post(&mut rig, mw, 0, 64);
        rig.complete(at, WcStatus::Success);
        rig.poll().unwrap();
        assert_eq!(info(&rig, mw).rkey.get() >> 8, start.get() >> 8);
    }
    assert_eq!(info(&rig, mw).rkey, start);
}

#[test]
fn length_zero_unbinds_and_ignores_the_rest() {
    let mut rig = Rig::new();
    let mw = rig.window(MwType::Type1);
    post(&mut rig, mw, 0, 64);
    let stale = register(&mut rig.verbs, rig.pd, BASE, 64, ALL_RIGHTS).unwrap();
    rig.verbs.dereg_mr_raw(stale).unwrap();
    let unbind = MwBind { mr: stale, addr: u64::MAX, length: 0, ..bind(&rig, 0, 0) };
    let before = info(&rig, mw).rkey;
    let after = rig.verbs.bind_mw(rig.qp, mw, &unbind).unwrap();
    assert_ne!(before, after);
    assert_eq!(info(&rig, mw).binding, None);
}

#[test]
fn a_failed_bind_restores_the_window_with_its_old_key() {
    let mut rig = Rig::new();
    let mw = rig.window(MwType::Type1);
    let unbound = info(&rig, mw);
    post(&mut rig, mw, 0, 64);
    rig.complete(0, WcStatus::MwBindErr);
    rig.poll().unwrap();
    assert_eq!(info(&rig, mw), unbound);
    assert_eq!(rig.verbs.qp(rig.qp).unwrap().state, QpState::Err);
    rig.verbs.dereg_mr_raw(rig.mr).unwrap();
}

#[test]
fn of_several_binds_of_one_window_each_restores_what_it_found() {
    // Every outcome of two binds in flight: the window ends as the last one that succeeded left it.
    for (first, second) in [(true, true), (true, false), (false, true), (false, false)] {
        let mut rig = Rig::new();
        let mw = rig.window(MwType::Type1);
        let before = info(&rig, mw);
        post(&mut rig, mw, 0, 64);
        let after_first = info(&rig, mw);
        post(&mut rig, mw, 64, 128);
        let after_second = info(&rig, mw);
        let status = |good| if good { WcStatus::Success } else { WcStatus::WrFlushErr };
        rig.complete(0, status(first));
        rig.complete(3, status(second));
        assert_eq!(rig.poll().unwrap().len(), 2);
        let expected = match (first, second) {
            (_, true) => after_second,
            (true, false) => after_first,
            (false, false) => before,
        };
        assert_eq!(info(&rig, mw), expected, "{first} {second}");
        let busy = rig.verbs.dereg_mr_raw(rig.mr);
        assert_eq!(busy.is_err(), expected.binding.is_some(), "{first} {second}: {busy:?}");
    }
}

#[test]
fn an_unsignaled_bind_is_retired_by_a_later_completion() {
    let mut rig = Rig::new();
    let mw = rig.window(MwType::Type1);
    let bind = MwBind { flags: SendFlags::empty(), ..bind(&rig, 0, 64) };
    rig.verbs.bind_mw(rig.qp, mw, &bind).unwrap();
    rig.verbs.post_send(rig.qp, &send(2, &[])).unwrap();
    let bound = info(&rig, mw);
    // The send fails: the bind before it has succeeded.
    rig.complete(3, WcStatus::RemAccessErr);
    assert_eq!(rig.poll_ids(), [2]);
    assert_eq!(info(&rig, mw), bound);
    rig.verbs.dealloc_mw(mw).unwrap();
    rig.verbs.dereg_mr_raw(rig.mr).unwrap();
}

#[test]
fn a_region_is_held_by_its_windows_and_by_what_a_failed_bind_would_bring_back() {
    let mut rig = Rig::new();
    let mw = rig.window(MwType::Type1);
    post(&mut rig, mw, 0, 64);
    rig.complete(0, WcStatus::Success);
    rig.poll().unwrap();
    let other = register(&mut rig.verbs, rig.pd, BASE, LENGTH, ALL_RIGHTS).unwrap();
    let rebind = MwBind { mr: other, ..bind(&rig, 0, 64) };
    rig.verbs.bind_mw(rig.qp, mw, &rebind).unwrap();
    let held = DeregMrError::Busy { bindings: 1 };
    let busy = Err(held);
    assert_eq!((rig.verbs.dereg_mr_raw(rig.mr), rig.verbs.dereg_mr_raw(other)), (busy, busy));
    rig.complete(3, WcStatus::Success);
    rig.poll().unwrap();
    assert_eq!((rig.verbs.dereg_mr_raw(rig.mr), rig.verbs.dereg_mr_raw(other)), (Ok(()), busy));
    assert_eq!(held.errno(), Errno::Ebusy);
    rig.verbs.dealloc_mw(mw).unwrap();
    rig.verbs.dereg_mr_raw(other).unwrap();
}

#[test]
fn a_window_stays_while_its_binds_are_in_flight() {
    let mut rig = Rig::new();
    let mw = rig.window(MwType::Type1);
    post(&mut rig, mw, 0, 64);
    post(&mut rig, mw, 64, 64);
    let error = rig.verbs.dealloc_mw(mw).unwrap_err();
    assert_eq!((error, error.errno()), (DeallocMwError::Busy { binds: 2 }, Errno::Ebusy));
    rig.complete(0, WcStatus::WrFlushErr);
    rig.complete(3, WcStatus::WrFlushErr);
    assert_eq!(rig.poll_ids(), [9, 9]);
    rig.verbs.dealloc_mw(mw).unwrap();
    rig.verbs.dereg_mr_raw(rig.mr).unwrap();
}

/// A window is bound on two queue pairs, on the first without a doorbell; the device does the second bind. When the first one
/// is flushed later, it must not undo the second.
#[test]
fn an_older_bind_that_fails_does_not_undo_a_newer_one_of_another_queue_pair() {
    let mut rig = Rig::new();
    let (other, other_cq) = rig.second();
    rig.device().strict = false;
    let (mw, mr) = (rig.window(MwType::Type1), rig.region(ALL_RIGHTS));
    let (first, second) = (bind(&rig, 0, 64), MwBind { mr, ..bind(&rig, 0, 64) });
    let mut batch = rig.verbs.send_batch(rig.qp).unwrap();
    batch.bind_mw(mw, &first).unwrap();
    core::mem::forget(batch);
    let key = rig.verbs.bind_mw(other, mw, &second).unwrap();
    let (qpn, other_qpn) = (rig.qpn(), rig.verbs.qp(other).unwrap().qpn);
    assert!(rig.device().execute(other_qpn));
    assert_eq!(rig.poll_of(other_cq).unwrap()[0].status, WcStatus::Success);
    let done = info(&rig, mw);
    assert_eq!((done.rkey, done.binding.map(|binding| binding.mr)), (key, Some(mr)));
    rig.device().break_qp(qpn);
    rig.verbs.ring_send_queue(rig.qp).unwrap();
    assert!(rig.device().execute(qpn));
    assert_eq!(rig.poll().unwrap()[0].status, WcStatus::WrFlushErr);
    assert_eq!(info(&rig, mw), done);
    assert_eq!(rig.verbs.dereg_mr_raw(mr), Err(DeregMrError::Busy { bindings: 1 }));
    // What the first bind would have bound is free.
    rig.verbs.dereg_mr_raw(rig.mr).unwrap();
    assert!(rig.device().violations.is_empty());
}

/// RESET and destruction drop binds without a completion: the device is asked which of them it did.
#[test]
fn after_reset_and_destruction_a_window_is_what_the_device_says() {
    for (executed, reset) in [(0, true), (1, true), (2, true), (0, false), (1, false), (2, false)] {
        let mut rig = Rig::new();
        let mw = rig.window(MwType::Type1);
        let mut expected = std::vec![info(&rig, mw)];
        for offset in [0, 64] {
            post(&mut rig, mw, offset, 64);
            expected.push(info(&rig, mw));
        }
        for _ in 0..executed {
            assert!(rig.device().execute(rig.qpn()));
        }
        if reset {
            rig.step(rig.qp, QpState::Reset);
            rig.connect(rig.qp);
        } else {
            rig.verbs.destroy_qp(rig.qp).unwrap();
            rig.qp = rig.verbs.create_qp(&rig.init(QpType::Rc)).unwrap();
            rig.connect(rig.qp);
        }
        assert_eq!(info(&rig, mw), expected[executed], "{executed} done");
        assert_eq!(rig.verbs.dereg_mr_raw(rig.mr).is_err(), executed != 0, "{executed} done");
    }
}

/// The device never sees a bind whose batch was forgotten: the region that the window is bound to by an older bind stays held.
#[test]
fn a_bind_that_the_device_was_not_told_of_ends_with_reset() {
    let mut rig = Rig::new();
    let (mw, other) = (rig.window(MwType::Type1), rig.region(ALL_RIGHTS));
    post(&mut rig, mw, 0, 64);
    assert!(rig.device().execute(rig.qpn()));
    rig.poll().unwrap();
    let bound = info(&rig, mw);
    let rebind = MwBind { mr: other, ..bind(&rig, 0, 64) };
    let mut batch = rig.verbs.send_batch(rig.qp).unwrap();
    batch.bind_mw(mw, &rebind).unwrap();
    core::mem::forget(batch);
    rig.step(rig.qp, QpState::Reset);
    assert_eq!(info(&rig, mw), bound);
    assert_eq!(rig.verbs.dereg_mr_raw(rig.mr), Err(DeregMrError::Busy { bindings: 1 }));
    rig.verbs.dereg_mr_raw(other).unwrap();
}

/// By its key alone a window does not show whether an invalidation was done, so the region stays held.
#[test]
fn an_invalidation_that_reset_drops_frees_no_region() {
    for executed in [false, true] {
        let mut rig = Rig::new();
        let mw = rig.window(MwType::Type2);
        let bound = bind_type2(&mut rig, mw, 0x11);
        assert!(rig.device().execute(rig.qpn()));
        rig.poll().unwrap();
        let inv = SendWr { wr_id: 2, flags: SendFlags::SIGNALED, op: SendOp::LocalInv { rkey: bound } };
        rig.verbs.post_send(rig.qp, &inv).unwrap();
        if executed {
            assert!(rig.device().execute(rig.qpn()));
        }
        rig.step(rig.qp, QpState::Reset);
        assert_eq!(rig.verbs.dereg_mr_raw(rig.mr), Err(DeregMrError::Busy { bindings: 1 }), "{executed}");
        rig.verbs.dealloc_mw(mw).unwrap();
        rig.verbs.dereg_mr_raw(rig.mr).unwrap();
        assert!(rig.device().violations.is_empty());
    }
}

/// The peer invalidates a window while a bind of it is in flight, which then fails: there is nothing to go back to.
#[test]
fn what_the_peer_has_invalidated_does_not_come_back() {
    let mut rig = Rig::new();
    let mw = rig.window(MwType::Type2);
    let old = bind_type2(&mut rig, mw, 0x11);
    rig.verbs.post_recv(rig.qp, &RecvWr { wr_id: 5, sges: &[] }).unwrap();
    assert!(rig.device().execute(rig.qpn()));
    rig.poll().unwrap();
    assert!(rig.device().invalidate(rig.qpn(), old.get() >> 8));
    bind_type2(&mut rig, mw, 0x12);
    rig.complete(3, WcStatus::MwBindErr);
    assert_eq!(rig.poll_ids(), [5, 1]);
    assert_eq!((info(&rig, mw).rkey, info(&rig, mw).binding), (old, None));
    rig.verbs.dereg_mr_raw(rig.mr).unwrap();
}

#[test]
fn binds_go_into_a_batch_with_what_follows_them() {
    let mut rig = Rig::new();
    let mw = rig.window(MwType::Type1);
    let good = bind(&rig, 0, 64);
    let mut batch = rig.verbs.send_batch(rig.qp).unwrap();
    batch.bind_mw(mw, &good).unwrap();
    batch.post(&send(2, &[])).unwrap();
    drop(batch);
    assert_eq!(rig.device().doorbells, [(rig.qpn(), 4, true)]);
}

#[test]
fn the_peer_invalidates_type_two_windows() {
    let mut rig = Rig::new();
    let mw = rig.window(MwType::Type2);
    let rkey = bind_type2(&mut rig, mw, 1);
    rig.verbs.post_recv(rig.qp, &RecvWr { wr_id: 5, sges: &[] }).unwrap();
    assert!(rig.device().execute(rig.qpn()));
    assert!(rig.device().invalidate(rig.qpn(), rkey.get() >> 8));
    let done = rig.poll().unwrap();
    assert_eq!((done[0].wr_id, done[1].wr_id, done[1].data), (1, 5, WcData::Invalidated(rkey)));
    assert_eq!(info(&rig, mw).binding, None);
    rig.verbs.dereg_mr_raw(rig.mr).unwrap();
}

/// Binds a type 2 window to the start of the region; gives its new key.
fn bind_type2(rig: &mut Rig, mw: MwHandle, key: u8) -> Rkey {
    let binding = BindInfo { mr: rig.mr, addr: BASE, length: 64, access: Access::REMOTE_READ };
    let op = SendOp::BindMw { mw, key, info: binding };
    rig.verbs.post_send(rig.qp, &SendWr { wr_id: 1, flags: SendFlags::SIGNALED, op }).unwrap();
    info(rig, mw).rkey
}

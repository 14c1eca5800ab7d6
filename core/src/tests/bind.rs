//! Rows of the contract about binding windows.

use super::mock::{Kind, MockError};
use super::post::send;
use super::{ALL_RIGHTS, BASE, LENGTH, Rig};
use crate::{
    Access, BindMwError, BindRefused, Binding, DeregMrError, Errno, MwBind, MwHandle, MwInfo, MwType, OffsetMap, QpState,
    QpType, Rkey, SendFlags, WcOpcode, WcStatus,
};

const MAP: OffsetMap = OffsetMap { offset: 0 };

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
fn refused(rig: &mut Rig, mw: MwHandle, bind: &MwBind, errno: Errno) -> BindMwError<MockError> {
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
    rig.verbs.set_state_for_test(rig.qp, QpState::Init);
    let stale_mr = rig.verbs.reg_mr(rig.pd, BASE, 64, ALL_RIGHTS, &MAP).unwrap();
    rig.verbs.dereg_mr(stale_mr).unwrap();
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
    let foreign_mr = rig.verbs.reg_mr(other_pd, BASE, LENGTH, Access::empty(), &MAP).unwrap();
    let unbindable = rig.verbs.reg_mr(rig.pd, BASE, LENGTH, Access::LOCAL_WRITE, &MAP).unwrap();
    let readable = rig.verbs.reg_mr(rig.pd, BASE, LENGTH, Access::MW_BIND, &MAP).unwrap();
    // Each bind fails every later check too.
    let worst = MwBind { addr: u64::MAX, ..bind(&rig, 0, 64) };

    rig.verbs.set_state_for_test(rig.qp, QpState::Rtr);
    refused(&mut rig, foreign_mw, &MwBind { mr: foreign_mr, ..worst }, Errno::Enotconn);
    rig.verbs.set_state_for_test(rig.qp, QpState::Rts);
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
    assert_eq!(refused(&mut rig, mw, &third, Errno::Enomem), BindMwError::NoRecord);
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
    let sent = rig.verbs.provider().sent[0];
    let Kind::Bind(told) = sent.kind else { panic!("a bind was posted: {sent:?}") };
    assert_eq!((told.old, told.new, told.lkey, told.addr, told.length), (old, new, rig.lkey(), BASE + 16, 64));
    rig.complete(0, WcStatus::Success);
    let done = rig.poll().unwrap();
    assert_eq!((done[0].wr_id, done[0].opcode), (9, WcOpcode::BindMw));
    assert_eq!(info(&rig, mw).rkey, new);
}

#[test]
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
    let stale = rig.verbs.reg_mr(rig.pd, BASE, 64, ALL_RIGHTS, &MAP).unwrap();
    rig.verbs.dereg_mr(stale).unwrap();
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
    rig.verbs.dereg_mr(rig.mr).unwrap();
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
        let busy = rig.verbs.dereg_mr(rig.mr);
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
    rig.verbs.dereg_mr(rig.mr).unwrap();
}

#[test]
fn a_region_is_held_by_its_windows_and_by_what_a_failed_bind_would_bring_back() {
    let mut rig = Rig::new();
    let mw = rig.window(MwType::Type1);
    post(&mut rig, mw, 0, 64);
    rig.complete(0, WcStatus::Success);
    rig.poll().unwrap();
    let other = rig.verbs.reg_mr(rig.pd, BASE, LENGTH, ALL_RIGHTS, &MAP).unwrap();
    let rebind = MwBind { mr: other, ..bind(&rig, 0, 64) };
    rig.verbs.bind_mw(rig.qp, mw, &rebind).unwrap();
    let held = DeregMrError::Busy { bindings: 1 };
    let busy = Err(held);
    assert_eq!((rig.verbs.dereg_mr(rig.mr), rig.verbs.dereg_mr(other)), (busy, busy));
    rig.complete(3, WcStatus::Success);
    rig.poll().unwrap();
    assert_eq!((rig.verbs.dereg_mr(rig.mr), rig.verbs.dereg_mr(other)), (Ok(()), busy));
    assert_eq!(held.errno(), Errno::Ebusy);
    rig.verbs.dealloc_mw(mw).unwrap();
    rig.verbs.dereg_mr(other).unwrap();
}

#[test]
fn a_window_may_go_while_its_bind_is_in_flight() {
    let mut rig = Rig::new();
    let mw = rig.window(MwType::Type1);
    post(&mut rig, mw, 0, 64);
    post(&mut rig, mw, 64, 64);
    rig.verbs.dealloc_mw(mw).unwrap();
    rig.verbs.dereg_mr(rig.mr).unwrap();
    rig.complete(0, WcStatus::WrFlushErr);
    rig.complete(3, WcStatus::WrFlushErr);
    assert_eq!(rig.poll_ids(), [9, 9]);
}

#[test]
fn reset_and_destruction_leave_the_window_as_the_bind_was_to_leave_it() {
    for reset in [true, false] {
        let mut rig = Rig::new();
        let mw = rig.window(MwType::Type1);
        post(&mut rig, mw, 0, 64);
        post(&mut rig, mw, 64, 64);
        let posted = info(&rig, mw);
        if reset {
            rig.step(rig.qp, QpState::Reset);
            rig.connect(rig.qp);
        } else {
            rig.verbs.destroy_qp(rig.qp).unwrap();
            rig.qp = rig.verbs.create_qp(&rig.init(QpType::Rc)).unwrap();
            rig.connect(rig.qp);
        }
        assert_eq!(info(&rig, mw), posted);
        assert_eq!(rig.verbs.dereg_mr(rig.mr), Err(DeregMrError::Busy { bindings: 1 }));
        // The records are free again, and the next failure goes back to the posted state.
        post(&mut rig, mw, 0, 64);
        post(&mut rig, mw, 0, 0);
        rig.complete(0, WcStatus::LocQpOpErr);
        rig.complete(3, WcStatus::WrFlushErr);
        rig.poll().unwrap();
        assert_eq!(info(&rig, mw), posted);
    }
}

#[test]
fn a_bind_that_the_backend_cannot_write_changes_nothing() {
    let mut rig = Rig::new();
    let mw = rig.window(MwType::Type1);
    let good = bind(&rig, 0, 64);
    rig.verbs.provider_mut().fail_after = Some(0);
    assert_eq!(refused(&mut rig, mw, &good, Errno::Eio), BindMwError::Device(MockError));
    rig.verbs.dereg_mr(rig.mr).unwrap();
}

#[test]
fn binds_go_into_a_batch_with_what_follows_them() {
    let mut rig = Rig::new();
    let mw = rig.window(MwType::Type1);
    let good = bind(&rig, 0, 64);
    let mut batch = rig.verbs.send_queue(rig.qp).unwrap();
    batch.bind_mw(mw, &good).unwrap();
    batch.post(&send(2, &[])).unwrap();
    batch.commit().unwrap();
    assert_eq!(rig.verbs.provider().doorbells, [(rig.qpn(), 4, true)]);
}

#[test]
fn the_peer_invalidates_type_two_windows() {
    let mut rig = Rig::new();
    let mw = rig.window(MwType::Type2);
    let info_ = crate::BindInfo { mr: rig.mr, addr: BASE, length: 64, access: Access::REMOTE_READ };
    let op = crate::SendOp::BindMw { mw, key: 1, info: info_ };
    rig.verbs.post_send(rig.qp, &crate::SendWr { wr_id: 1, flags: SendFlags::SIGNALED, op }).unwrap();
    rig.verbs.post_recv(rig.qp, &crate::RecvWr { wr_id: 5, sges: &[] }).unwrap();
    rig.complete(0, WcStatus::Success);
    let mut raw = rig.raw(crate::RawKind::Recv, 0, WcStatus::Success);
    raw.data = crate::WcData::Invalidated(info(&rig, mw).rkey);
    rig.push(raw);
    assert_eq!(rig.poll_ids(), [1, 5]);
    assert_eq!(info(&rig, mw).binding, None);
    rig.verbs.dereg_mr(rig.mr).unwrap();
}

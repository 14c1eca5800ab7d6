//! A device that is lost: every request is given exactly once, and every call fails with the reason.

use crate::error::{
    AllocMwError, AllocPdError, CreateCqError, DeallocMwError, DestroyQpError, ModifyQpError, QueryError, QueryQpError,
};
use std::sync::Arc;
use std::vec;
use std::vec::Vec;

use super::mock::{Entry, MockError, raw};
use super::post::send;
use super::region::Buffer;
use super::{ALL_RIGHTS, BASE, Harness, attributes};
use crate::backend::AsyncEvent;
use crate::error::{
    BindType1Error, DeregMrError, DeviceLoss, Errno, NotifyCqError, PollCqError, PollEventError, PostRecvError, PostSendError,
    RawKind, RegMrError,
};
use crate::{
    Access, Completion, Event, MwType, Payload, QpAttr, QpAttrMask, QpState, QpType, Qpn, RecvWr, SendFlags, SendOp, SendWr,
    Type1Bind, WcData, WcOpcode, WcStatus,
};

const LOST: PollCqError = PollCqError::DeviceLost { loss: DeviceLoss::Reset };

fn recv(wr_id: u64) -> RecvWr<'static> {
    RecvWr { wr_id, sges: &[] }
}

fn unsignaled(wr_id: u64) -> SendWr<'static> {
    SendWr { flags: SendFlags::empty(), ..send(wr_id, &[]) }
}

/// Loses the device, and lets the verbs find it.
fn lose(harness: &mut Harness) {
    harness.device().loss = Some(DeviceLoss::Reset);
    assert_eq!(harness.verbs.maintain(), Err(MockError::NoAnswer));
}

/// `wr_id` and whether it was flushed, of every completion before the error, which stays.
fn all(harness: &mut Harness, cq: crate::CqHandle) -> Vec<(u64, bool)> {
    let mut given = Vec::new();
    let error = loop {
        match harness.poll_of(cq) {
            Ok(some) => given.extend(some.iter().map(|done| (done.wr_id, done.status == WcStatus::WrFlushErr))),
            Err(error) => break error,
        }
        assert!(given.len() < 1000, "it does not end");
    };
    assert_eq!((error, error.errno()), (LOST, Errno::Eio));
    assert_eq!(harness.verbs.completions(cq).next(), Some(Err(LOST)));
    given
}

/// Those of the first completion queue.
fn rest(harness: &mut Harness) -> Vec<(u64, bool)> {
    let cq = harness.cq;
    all(harness, cq)
}

#[test]
fn what_had_come_is_first_then_the_rest_is_flushed_in_its_order() {
    let mut harness = Harness::new();
    let (qpn, (other, other_cq)) = (harness.qpn(), harness.second());
    for wr_id in 1..=3 {
        harness.verbs.post_send(harness.qp, &send(wr_id, &[])).unwrap();
        harness.verbs.post_recv(harness.qp, &recv(wr_id + 10)).unwrap();
    }
    harness.verbs.post_send(harness.qp, &unsignaled(4)).unwrap();
    harness.verbs.post_send(harness.qp, &send(5, &[])).unwrap();
    harness.verbs.post_recv(other, &recv(21)).unwrap();
    harness.verbs.post_send(other, &unsignaled(22)).unwrap();
    assert!(harness.device().execute(qpn) && harness.device().execute(qpn));
    lose(&mut harness);
    let mut one = [Completion::EMPTY];
    assert_eq!(harness.verbs.poll_cq(harness.cq, &mut one), Ok(1));
    assert_eq!((one[0].wr_id, one[0].status, one[0].loss()), (1, WcStatus::Success, None));
    let given = rest(&mut harness);
    assert_eq!(given, [(2, false), (3, true), (4, true), (5, true), (11, true), (12, true), (13, true)]);
    assert_eq!(all(&mut harness, other_cq), [(22, true), (21, true)]);
    for cq in [harness.cq, other_cq] {
        assert_eq!(all(&mut harness, cq), [], "once");
    }
    let info = harness.verbs.qp_info(harness.qp).unwrap();
    assert_eq!((info.state, info.send_blocks, info.recvs), (QpState::Err, 0, 0));
}

#[test]
fn what_is_flushed_says_what_it_was_and_why() {
    let mut harness = Harness::new();
    let sges = [harness.sge(0, 8)];
    let op = SendOp::Read { sges: &sges, remote: super::post::REMOTE };
    harness.verbs.post_send(harness.qp, &SendWr { op, ..send(1, &[]) }).unwrap();
    harness.verbs.post_recv(harness.qp, &recv(2)).unwrap();
    lose(&mut harness);
    let given = harness.poll().unwrap();
    let (qp, qpn, data) = (harness.qp, harness.qpn(), WcData::Lost(DeviceLoss::Reset));
    let of = |wr_id, opcode| Completion { wr_id, qp, qpn, opcode, status: WcStatus::WrFlushErr, data, ..given[0] };
    assert_eq!(given, [of(1, WcOpcode::RdmaRead), of(2, WcOpcode::Recv)]);
    assert_eq!((given[0].vendor_err, given[0].byte_len), (0, 0));
    let error = given[0].result().unwrap_err();
    assert_eq!((error.status, error.loss), (WcStatus::WrFlushErr, Some(DeviceLoss::Reset)));
    assert_eq!(std::format!("{error}"), "flushed: the device is lost, it was reset from outside");
}

/// Bytes of a queue pair in error before, and of states that take receives only.
#[test]
fn each_state_has_its_requests_flushed() {
    for state in [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Err] {
        let mut harness = Harness::new();
        let (qp, cq) = harness.second();
        harness.step(qp, QpState::Reset);
        harness.poll_of(cq).unwrap();
        for to in [QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd] {
            if harness.verbs.qp_info(qp).unwrap().state != state && state != QpState::Err {
                harness.step(qp, to);
            }
        }
        let mut expected = Vec::new();
        if state == QpState::Err {
            harness.connect(qp);
        }
        if matches!(state, QpState::Rts | QpState::Sqd | QpState::Err) {
            harness.verbs.post_send(qp, &unsignaled(1)).unwrap();
            expected.push((1, true));
        }
        if state != QpState::Reset {
            harness.verbs.post_recv(qp, &recv(2)).unwrap();
            expected.push((2, true));
        }
        if state == QpState::Err {
            harness.step(qp, QpState::Err);
        }
        lose(&mut harness);
        assert_eq!(all(&mut harness, cq), expected, "{state:?}");
    }
}

/// The device writes on: what it completes late was flushed, or will be, and neither that nor bytes without meaning are taken.
#[test]
fn what_comes_after_the_first_flushed_request_is_not_taken() {
    let mut harness = Harness::new();
    let (qpn, cqn) = (harness.qpn(), harness.cqn());
    for wr_id in 1..=4 {
        harness.verbs.post_send(harness.qp, &send(wr_id, &[])).unwrap();
    }
    lose(&mut harness);
    let mut one = [Completion::EMPTY];
    assert_eq!(harness.verbs.poll_cq(harness.cq, &mut one), Ok(1));
    assert_eq!((one[0].wr_id, one[0].status), (1, WcStatus::WrFlushErr));
    for at in [0, 2] {
        harness.device().complete(cqn, raw(qpn, RawKind::Send, at));
    }
    harness.device().put_entry(cqn, Entry { raw: Err(9), cookie: None });
    harness.device().put_entry(cqn, Entry { raw: Ok(raw(Qpn::new(0x999), RawKind::Recv, 0)), cookie: None });
    assert_eq!(rest(&mut harness), [(2, true), (3, true), (4, true)]);
}

/// A device that never stops to write keeps nobody from the flushed requests.
#[test]
fn no_more_is_taken_than_the_queue_has_entries() {
    let mut harness = Harness::new();
    let (qpn, cqn) = (harness.qpn(), harness.cqn());
    harness.verbs.post_send(harness.qp, &send(1, &[])).unwrap();
    harness.verbs.post_send(harness.qp, &send(2, &[])).unwrap();
    harness.complete(0, WcStatus::Success);
    lose(&mut harness);
    let (mut errors, mut given) = (0, Vec::new());
    for _ in 0..1000 {
        for index in [77, 78] {
            harness.device().complete(cqn, raw(qpn, RawKind::Send, index));
        }
        match harness.poll() {
            Ok(some) => given.extend(some.iter().map(|done| (done.wr_id, done.status))),
            Err(PollCqError::UnknownRequest { .. }) => errors += 1,
            Err(error) => {
                assert_eq!(error, LOST);
                break;
            }
        }
        // Never full, so that only the bound ends it.
        while harness.device().entries(cqn).len() > 40 {
            harness.device().take_newest(cqn);
        }
    }
    assert_eq!(given, [(1, WcStatus::Success), (2, WcStatus::WrFlushErr)]);
    assert_eq!(errors, 63, "64 entries, one of them good");
}

#[test]
fn binds_are_flushed_and_leave_the_window_as_it_was() {
    let mut harness = Harness::new();
    let mw = harness.window(MwType::Type1);
    let before = harness.verbs.mw_info(mw).unwrap();
    for wr_id in 1..=2 {
        let flags = if wr_id == 1 { SendFlags::empty() } else { SendFlags::SIGNALED };
        let bind = Type1Bind { wr_id, flags, mr: harness.mr, addr: BASE, length: 64, access: Access::REMOTE_READ };
        harness.verbs.bind_type1(harness.qp, mw, &bind).unwrap();
    }
    assert_eq!(harness.binds(), 2);
    lose(&mut harness);
    let given = harness.poll().unwrap();
    assert_eq!(
        given.iter().map(|done| (done.wr_id, done.opcode)).collect::<Vec<_>>(),
        [(1, WcOpcode::BindMw), (2, WcOpcode::BindMw)]
    );
    assert_eq!((harness.verbs.mw_info(mw).unwrap(), harness.binds()), (before, 0));
}

/// The queues are elsewhere, and a batch that was open at the time of the loss ends after all else was flushed.
#[test]
fn queues_that_are_split_off_get_theirs() {
    let mut harness = Harness::new();
    let crate::QueuePair { send: mut sends, recv: mut recvs } = harness.verbs.take_qp(harness.qp);
    let mut queue = harness.verbs.take_cq(harness.cq);
    let mut batch = sends.batch();
    batch.post(&send(1, &[])).unwrap();
    batch.ring();
    batch.post(&send(2, &[])).unwrap();
    recvs.post(&recv(3)).unwrap();
    lose(&mut harness);
    let mut ids = || {
        let taken = queue.completions().take_while(Result::is_ok).map(|done| done.unwrap().wr_id).collect::<Vec<_>>();
        assert_eq!(queue.poll(&mut [Completion::EMPTY; 2]), Err(LOST));
        taken
    };
    assert_eq!(ids(), [1, 3]);
    assert_eq!(batch.post(&send(4, &[])), Err(PostSendError::DeviceLost { loss: DeviceLoss::Reset }));
    drop(batch);
    assert_eq!(ids(), [2]);
    assert_eq!(ids(), []);
    assert_eq!(sends.post(&send(5, &[])), Err(PostSendError::DeviceLost { loss: DeviceLoss::Reset }));
    assert_eq!(recvs.post(&recv(5)), Err(PostRecvError::DeviceLost { loss: DeviceLoss::Reset }));
}

/// What a batch that was forgotten has left is flushed when the queue rings for it.
#[test]
fn requests_without_a_doorbell_are_flushed() {
    for is_polled in [false, true] {
        let mut harness = Harness::new();
        let mw = harness.window(MwType::Type1);
        let (mr, access) = (harness.mr, Access::empty());
        let bind = Type1Bind { wr_id: 2, flags: SendFlags::empty(), mr, addr: BASE, length: 64, access };
        let mut batch = harness.verbs.send_batch(harness.qp);
        batch.post(&send(1, &[])).unwrap();
        batch.bind_type1(mw, &bind).unwrap();
        core::mem::forget(batch);
        lose(&mut harness);
        if is_polled {
            assert_eq!(rest(&mut harness), []);
        }
        harness.verbs.ring_send_queue(harness.qp);
        assert_eq!(rest(&mut harness), [(1, true), (2, true)], "{is_polled}");
        assert_eq!(rest(&mut harness), []);
    }
}

/// The requests of a queue pair that was reset were dropped, also if its completion queue does not know yet.
#[test]
fn a_queue_pair_that_is_draining_has_nothing_to_flush() {
    let mut harness = Harness::new();
    let (qpn, (other, _)) = (harness.qpn(), harness.second());
    for wr_id in 1..=3 {
        harness.verbs.post_send(harness.qp, &send(wr_id, &[])).unwrap();
    }
    assert!(harness.device().execute(qpn));
    let queue = harness.verbs.take_cq(harness.cq);
    harness.step(harness.qp, QpState::Reset);
    harness.verbs.post_send(other, &send(4, &[])).unwrap();
    lose(&mut harness);
    harness.verbs.keep_cq(queue);
    assert_eq!(rest(&mut harness), []);
}

#[test]
fn every_way_to_find_the_loss_flushes() {
    type Find = fn(&mut Harness);
    let fatal = Some(DeviceLoss::Fatal);
    let ways: [(Find, DeviceLoss); 12] = [
        (|harness| assert!(harness.verbs.maintain().is_err()), DeviceLoss::Gone),
        (|harness| assert!(harness.verbs.poll_event().is_err()), DeviceLoss::Gone),
        (|harness| assert!(harness.verbs.alloc_pd().is_err()), DeviceLoss::Gone),
        (|harness| assert!(harness.verbs.create_cq(4).is_err()), DeviceLoss::Gone),
        (|harness| assert!(harness.verbs.create_qp(&harness.init(QpType::Rc)).is_err()), DeviceLoss::Gone),
        (|harness| assert!(harness.verbs.query_port(1).is_err()), DeviceLoss::Gone),
        (|harness| assert!(harness.verbs.query_qp(harness.qp).is_err()), DeviceLoss::Gone),
        (|harness| assert!(harness.verbs.destroy_qp(harness.qp).is_err()), DeviceLoss::Gone),
        (|harness| assert!(harness.verbs.dereg_mr_raw(harness.mr).is_err()), DeviceLoss::Gone),
        (|harness| assert!(harness.verbs.alloc_mw(harness.pd, MwType::Type1).is_err()), DeviceLoss::Gone),
        (
            |harness| {
                let attr = QpAttr { state: QpState::Err, ..QpAttr::default() };
                assert!(harness.verbs.modify_qp(harness.qp, &attr, QpAttrMask::STATE).is_err());
            },
            DeviceLoss::Gone,
        ),
        (|harness| assert!(super::register(&mut harness.verbs, harness.pd, BASE, 64, ALL_RIGHTS).is_err()), DeviceLoss::Gone),
    ];
    for (at, (find, loss)) in ways.into_iter().enumerate() {
        let mut harness = Harness::new();
        harness.verbs.post_send(harness.qp, &unsignaled(1)).unwrap();
        harness.device().loss = Some(loss);
        assert_eq!(harness.poll(), Ok(vec![]), "{at}: nobody has looked");
        find(&mut harness);
        assert_eq!(harness.poll().unwrap()[0].loss(), Some(loss), "{at}");
        // The first reason stays.
        harness.device().loss = fatal;
        assert!(harness.verbs.maintain().is_err());
        assert_eq!(harness.poll(), Err(PollCqError::DeviceLost { loss }), "{at}");
    }
    let mut harness = Harness::new();
    harness.verbs.post_send(harness.qp, &unsignaled(1)).unwrap();
    harness.device().events.push_back(AsyncEvent::DeviceFatal(1, 2));
    assert_eq!(harness.verbs.poll_event(), Ok(Some(Event::DeviceFatal(1, 2))));
    assert_eq!(harness.poll().unwrap()[0].loss(), fatal);
}

/// An error that is none of a lost device changes nothing for the completion queues.
#[test]
fn a_call_that_fails_is_no_loss() {
    let mut harness = Harness::new();
    harness.verbs.post_send(harness.qp, &send(1, &[])).unwrap();
    harness.device().fail_after = Some(0);
    harness.device().error = MockError::NoAnswer;
    assert!(harness.verbs.alloc_pd().is_err());
    assert_eq!(harness.poll(), Ok(vec![]));
    assert_eq!(harness.verbs.qp_info(harness.qp).unwrap().state, QpState::Rts);
}

/// Each call fails with the reason and changes nothing; a buffer comes back, a region stays.
#[test]
fn every_call_fails_and_takes_nothing() {
    let mut harness = Harness::new();
    let (pd, cq, qp, mr) = (harness.pd, harness.cq, harness.qp, harness.mr);
    let mw = harness.window(MwType::Type1);
    let alive = Arc::new(());
    let region = harness.verbs.reg_mr(pd, Buffer::new(&alive), ALL_RIGHTS).unwrap();
    lose(&mut harness);
    let before = harness.device().alive;
    let verbs = &mut harness.verbs;
    let device = MockError::NoAnswer;
    assert_eq!(verbs.alloc_pd(), Err(AllocPdError::Device(device)));
    assert_eq!(verbs.create_cq(4), Err(CreateCqError::Device(device)));
    assert_eq!(verbs.alloc_mw(pd, MwType::Type2), Err(AllocMwError::Device(device)));
    assert_eq!(verbs.dealloc_mw(mw), Err(DeallocMwError::Device(device)));
    assert_eq!(verbs.query_port(1).err(), Some(QueryError::Device(device)));
    assert_eq!(verbs.query_gid(1, 0).err(), Some(QueryError::Device(device)));
    assert_eq!(verbs.query_pkey(1, 0).err(), Some(QueryError::Device(device)));
    assert_eq!(verbs.query_qp(qp).err(), Some(QueryQpError::Device(device)));
    assert_eq!(verbs.destroy_qp(qp), Err(DestroyQpError::Device(device)));
    assert_eq!(verbs.poll_event(), Err(PollEventError::Device(device)));
    for state in [QpState::Err, QpState::Reset] {
        let moved = verbs.modify_qp(qp, &attributes(state), QpAttrMask::STATE);
        assert_eq!(moved, Err(ModifyQpError::Device(device)));
    }
    let loss = DeviceLoss::Reset;
    assert_eq!(verbs.post_send(qp, &send(1, &[])), Err(PostSendError::DeviceLost { loss }));
    assert_eq!(verbs.post_send_list(qp, &[send(1, &[])]).unwrap_err().error, PostSendError::DeviceLost { loss });
    assert_eq!(verbs.send_batch(qp).post(&send(1, &[])), Err(PostSendError::DeviceLost { loss }));
    assert_eq!(verbs.post_recv(qp, &recv(1)), Err(PostRecvError::DeviceLost { loss }));
    assert_eq!(verbs.post_recv_list(qp, &[recv(1)]).unwrap_err().error, PostRecvError::DeviceLost { loss });
    let bind = Type1Bind { wr_id: 1, flags: SendFlags::empty(), mr, addr: BASE, length: 64, access: Access::empty() };
    assert_eq!(verbs.bind_type1(qp, mw, &bind), Err(BindType1Error::DeviceLost { loss }));
    assert_eq!(verbs.req_notify_cq(cq, false), Err(NotifyCqError::DeviceLost { loss }));
    for error in [PostSendError::DeviceLost { loss }.errno(), PostRecvError::DeviceLost { loss }.errno()] {
        assert_eq!(error, Errno::Eio);
    }

    for _ in 0..3 {
        let refused = verbs.reg_mr(pd, Buffer::new(&alive), ALL_RIGHTS).err().unwrap();
        assert_eq!(refused.error, RegMrError::Device(device));
        assert!(refused.returned.is_some(), "the device was never told of it");
        drop(refused);
        assert_eq!(Arc::strong_count(&alive), 2);
    }
    let refused = verbs.dereg_mr(region).err().unwrap();
    assert_eq!(refused.error, DeregMrError::Device(device));
    let region = refused.returned.unwrap();
    assert_eq!(harness.verbs.mr_info(region.handle()).unwrap().lkey, region.lkey());
    assert_eq!(harness.device().alive, before);
    assert_eq!(all(&mut harness, cq), []);
}

/// Payloads of several blocks, and places of the ring that were used before.
#[test]
fn requests_of_several_blocks_are_flushed_once_each_at_the_end_of_the_ring() {
    for start in [0, 9, 15, u32::MAX - 3, (1 << 16) - 2] {
        let mut harness = Harness::new();
        super::start_rings(&mut harness.verbs, harness.qp, start);
        let bytes = [0; 120];
        for (wr_id, length) in [(1, 0), (2, 120), (3, 64), (4, 120), (5, 0)] {
            let op = SendOp::Write { payload: Payload::Inline(&bytes[..length]), remote: super::post::REMOTE };
            harness.verbs.post_send(harness.qp, &SendWr { op, ..unsignaled(wr_id) }).unwrap();
        }
        for wr_id in 11..=18 {
            harness.verbs.post_recv(harness.qp, &recv(wr_id)).unwrap();
        }
        lose(&mut harness);
        let expected: Vec<_> = (1..=5).chain(11..=18).map(|wr_id| (wr_id, true)).collect();
        assert_eq!(rest(&mut harness), expected, "{start}");
    }
}

/// The RESET is answered; the query of the window whose bind was pending finds the loss.
#[test]
fn a_reset_that_finds_the_loss_leaves_its_mark() {
    let mut harness = Harness::new();
    let mw = harness.window(MwType::Type1);
    let (mr, access) = (harness.mr, Access::REMOTE_READ);
    let bind = Type1Bind { wr_id: 1, flags: SendFlags::empty(), mr, addr: BASE, length: 64, access };
    harness.verbs.bind_type1(harness.qp, mw, &bind).unwrap();
    harness.device().lose_after = Some(1);
    harness.verbs.modify_qp(harness.qp, &attributes(QpState::Reset), QpAttrMask::STATE).unwrap();
    let loss = DeviceLoss::Gone;
    assert_eq!(harness.verbs.post_send(harness.qp, &send(1, &[])), Err(PostSendError::DeviceLost { loss }));
    assert_eq!(harness.verbs.post_recv(harness.qp, &recv(1)), Err(PostRecvError::DeviceLost { loss }));
    assert_eq!(harness.verbs.poll_cq(harness.cq, &mut [Completion::EMPTY]), Err(PollCqError::DeviceLost { loss }));
}

/// The device says RTS of a queue pair that is in RESET and whose completions are not polled yet, in an answer or after an event.
#[test]
fn nothing_is_posted_while_a_queue_pair_drains_whatever_the_device_says() {
    for asked in [true, false] {
        let mut harness = Harness::new();
        let mut queue = harness.verbs.take_cq(harness.cq);
        harness.verbs.post_send(harness.qp, &send(1, &[])).unwrap();
        harness.step(harness.qp, QpState::Reset);
        let (qpn, said) = (harness.qpn(), if asked { QpState::Rts } else { QpState::Sqe });
        harness.device().state = Some(said);
        if asked {
            assert_eq!(harness.verbs.query_qp(harness.qp).unwrap().state, QpState::Reset);
        } else {
            harness.device().events.push_back(AsyncEvent::QpFatal(qpn));
            while harness.verbs.poll_event().unwrap().is_some() {}
        }
        assert!(harness.verbs.post_send(harness.qp, &send(7, &[])).is_err(), "{asked}");
        assert!(harness.verbs.post_recv(harness.qp, &recv(8)).is_err(), "{asked}");
        harness.device().state = None;
        assert_eq!(queue.completions().count(), 0);
        harness.connect(harness.qp);
        harness.verbs.post_send(harness.qp, &send(10, &[])).unwrap();
        while harness.device().execute(qpn) {}
        let done: Vec<_> = queue.completions().map(|done| done.unwrap().wr_id).collect();
        assert_eq!(done, [10], "{asked}");
    }
}

#[test]
fn calls_about_other_objects_and_the_port_find_the_loss() {
    type Find = fn(&mut Harness, crate::MwHandle);
    let ways: [Find; 5] = [
        |harness, _| {
            let pd = harness.verbs.alloc_pd().unwrap();
            harness.device().loss = Some(DeviceLoss::Gone);
            assert!(harness.verbs.dealloc_pd(pd).is_err());
        },
        |harness, _| {
            let cq = harness.verbs.create_cq(4).unwrap();
            harness.device().loss = Some(DeviceLoss::Gone);
            assert!(harness.verbs.destroy_cq(cq).is_err());
        },
        |harness, mw| {
            harness.device().loss = Some(DeviceLoss::Gone);
            assert!(harness.verbs.dealloc_mw(mw).is_err());
        },
        |harness, _| {
            harness.device().loss = Some(DeviceLoss::Gone);
            assert!(harness.verbs.query_gid(1, 0).is_err());
        },
        |harness, _| {
            harness.device().loss = Some(DeviceLoss::Gone);
            assert!(harness.verbs.query_pkey(1, 0).is_err());
        },
    ];
    for (at, find) in ways.into_iter().enumerate() {
        let mut harness = Harness::new();
        let mw = harness.window(MwType::Type1);
        harness.verbs.post_send(harness.qp, &unsignaled(1)).unwrap();
        find(&mut harness, mw);
        assert_eq!(harness.poll().unwrap()[0].loss(), Some(DeviceLoss::Gone), "{at}");
    }
}

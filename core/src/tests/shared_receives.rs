//! Shared receive queues on a device that does what the test says.

use crate::backend::AsyncEvent;
use crate::error::{DestroyQpError, DrainError, ModifyQpError};
use std::boxed::Box;
use std::vec;
use std::vec::Vec;

use super::mock::{Mock, MockError, raw};
use super::{ALL_RIGHTS, BASE, CAP, Harness, LENGTH, register};
use crate::backend::RawCompletion;
use crate::error::{
    AnswerFault, ArmSrqError, BadWr, CreateQpError, CreateSrqError, DeallocPdError, DestroySrqError, DeviceLoss, Errno,
    PollCqError, PostRecvError, QuerySrqError, RawKind, SgeFault, StaleHandle,
};
use crate::kept_verbs::KeptVerbs;
use crate::storage::{QpRings, SrqEntries};
use crate::{
    Access, Completion, CompletionQueue, CqHandle, Event, QpHandle, QpInit, QpState, QpType, Qpn, QueuePair, RecvWr, Refused,
    SharedReceiveQueue, SharedReceives, SrqCap, SrqHandle, SrqInit, Verbs, WcData, WcStatus, storage,
};

type SharedQueue = SharedReceiveQueue<'static, Mock>;
type Sharing = QueuePair<'static, Mock, SharedReceives>;

/// Verbs with two shared receive queues' entries, of 4 and 8 slots, and room for four queue pairs.
pub(super) fn harness() -> Harness {
    let rings: &'static [QpRings<16, 8>; 5] = Box::leak(Box::default());
    let (few, many) = (Box::leak(Box::new(SrqEntries::<4>::new())), Box::leak(Box::new(SrqEntries::<8>::new())));
    let tables: &'static mut _ =
        Box::leak(Box::new(<storage![Mock; pds: 2, mrs: 4, mws: 2, cqs: 4, qps: 5, srqs: 2]>::with_srqs(
            QpRings::views(rings),
            [many.view(), few.view()],
        )));
    let mut verbs = KeptVerbs::new(Verbs::new(Mock::new(), tables));
    let pd = verbs.alloc_pd().unwrap();
    let mr = register(&mut verbs, pd, BASE, LENGTH, ALL_RIGHTS).unwrap();
    let cq = verbs.create_cq(64).unwrap();
    let qp =
        verbs.create_qp(&QpInit { pd, qp_type: QpType::Rc, send_cq: cq, recv_cq: cq, cap: CAP, sq_sig_all: false }).unwrap();
    let mut harness = Harness { verbs, pd, mr, cq, qp };
    harness.connect(qp);
    harness
}

pub(super) fn create(harness: &mut Harness, max_wr: u32) -> SharedQueue {
    let pd = harness.pd;
    harness.verbs.create_srq(&SrqInit { pd, cap: SrqCap { max_wr, max_sge: 2 } }).unwrap()
}

/// Creates a queue pair that takes from a shared receive queue, completes into `cq` and is in RTS.
pub(super) fn sharing(harness: &mut Harness, srq: SrqHandle, cq: CqHandle) -> Sharing {
    let init = QpInit { recv_cq: cq, ..harness.init(QpType::Rc) };
    let qp = harness.verbs.create_qp_with_srq(&init, srq).unwrap();
    harness.connect(qp.handle());
    qp
}

fn qpn(harness: &Harness, qp: QpHandle) -> Qpn {
    harness.verbs.qp_info(qp).unwrap().qpn
}

pub(super) const fn recv(wr_id: u64) -> RecvWr<'static> {
    RecvWr { wr_id, sges: &[] }
}

/// A message comes to a queue pair, which takes a receive for it and completes that.
fn deliver(harness: &Harness, qp: QpHandle) -> Option<u16> {
    let qpn = qpn(harness, qp);
    let mut device = harness.device();
    if device.take_shared(qpn) { device.complete_shared(qpn) } else { None }
}

fn given(harness: &mut Harness, cq: CqHandle) -> Vec<(u64, QpHandle)> {
    harness.poll_of(cq).unwrap().iter().map(|done| (done.wr_id, done.qp)).collect()
}

#[test]
fn messages_of_several_queue_pairs_complete_what_each_took() {
    let mut harness = harness();
    let (cq, other_cq) = (harness.cq, harness.verbs.create_cq(64).unwrap());
    let mut srq = create(&mut harness, 7);
    let handle = srq.handle();
    let (a, b) = (sharing(&mut harness, handle, cq), sharing(&mut harness, handle, other_cq));
    let (a, b) = (a.handle(), b.handle());
    let (qpn_a, qpn_b) = (qpn(&harness, a), qpn(&harness, b));
    assert_eq!(srq.post_list(&[recv(1), recv(2), recv(3)]), Ok(()));
    srq.post(&recv(4)).unwrap();
    assert_eq!(harness.verbs.srq_info(handle).unwrap().recvs, 4);
    {
        // `a` takes the first and ends last.
        let mut device = harness.device();
        assert!(device.take_shared(qpn_a) && device.take_shared(qpn_b));
        device.complete_shared(qpn_b).unwrap();
        assert!(device.take_shared(qpn_b));
        device.complete_shared(qpn_b).unwrap();
        device.complete_shared(qpn_a).unwrap();
    }
    assert_eq!(given(&mut harness, other_cq), [(2, b), (3, b)]);
    assert_eq!(given(&mut harness, cq), [(1, a)]);
    let info = harness.verbs.srq_info(handle).unwrap();
    assert_eq!((info.recvs, info.queue_pairs, info.pd), (1, 2, harness.pd));
    assert_eq!((harness.verbs.qp_info(a).unwrap().srq, harness.verbs.qp_info(harness.qp).unwrap().srq), (Some(handle), None));
    deliver(&harness, a).unwrap();
    assert_eq!(given(&mut harness, cq), [(4, a)]);
}

/// Places are used again in whatever order they were given back, over many rounds; the device follows the list alone.
#[test]
fn the_list_stays_whole_over_many_rounds() {
    let mut harness = harness();
    let (cq, other_cq) = (harness.cq, harness.verbs.create_cq(64).unwrap());
    let mut srq = create(&mut harness, 3);
    let (a, b) = (sharing(&mut harness, srq.handle(), cq), sharing(&mut harness, srq.handle(), other_cq));
    let qpns = [qpn(&harness, a.handle()), qpn(&harness, b.handle())];
    let (mut next, mut expected) = (0_u64, Vec::new());
    for round in 0..200 {
        while srq.post(&recv(next)).is_ok() {
            expected.push(next);
            next += 1;
        }
        assert_eq!(expected.len(), 3, "a queue of 4 slots has room for 3");
        {
            let mut device = harness.device();
            assert!(device.take_shared(qpns[0]) && device.take_shared(qpns[1]));
            device.complete_shared(qpns[(round + 1) % 2]).unwrap();
            device.complete_shared(qpns[round % 2]).unwrap();
        }
        let mut done: Vec<u64> = [cq, other_cq].into_iter().flat_map(|cq| given(&mut harness, cq)).map(|(id, _)| id).collect();
        done.sort_unstable();
        assert_eq!(done, expected[..2]);
        expected.drain(..2);
    }
}

#[test]
fn a_full_queue_takes_no_more_until_a_completion_was_taken() {
    let mut harness = harness();
    let cq = harness.cq;
    let mut srq = create(&mut harness, 3);
    let qp = sharing(&mut harness, srq.handle(), cq);
    let list: Vec<RecvWr<'_>> = (0..5).map(recv).collect();
    assert_eq!(srq.post_list(&list), Err(BadWr { index: 3, error: PostRecvError::SharedQueueFull { capacity: 3 } }));
    assert_eq!(PostRecvError::SharedQueueFull { capacity: 3 }.errno(), Errno::Enospc);
    deliver(&harness, qp.handle()).unwrap();
    assert_eq!(srq.post(&recv(9)), Err(PostRecvError::SharedQueueFull { capacity: 3 }), "not taken yet");
    assert_eq!(given(&mut harness, cq), [(0, qp.handle())]);
    srq.post(&recv(9)).unwrap();
}

#[test]
fn what_is_wrong_with_a_receive_is_said_and_nothing_is_posted() {
    let mut harness = harness();
    let mut srq = create(&mut harness, 3);
    let good = harness.sge(0, 8);
    let other_pd = harness.verbs.alloc_pd().unwrap();
    let foreign = register(&mut harness.verbs, other_pd, BASE, LENGTH, ALL_RIGHTS).unwrap();
    let foreign = harness.verbs.mr_info(foreign).unwrap().lkey;
    let readable = harness.region(Access::empty());
    let readable = harness.verbs.mr_info(readable).unwrap().lkey;
    let sge = |lkey, length| crate::Sge { lkey, length, ..good };
    let refused = |index, lkey, fault| Err(PostRecvError::Sge { index, lkey, fault });
    for (sges, error) in [
        (vec![good; 3], Err(PostRecvError::SgeCount { count: 3, max: 2 })),
        (vec![sge(foreign, 8)], refused(0, foreign, SgeFault::Domain)),
        (vec![good, sge(readable, 8)], refused(1, readable, SgeFault::Access)),
        (vec![sge(good.lkey, LENGTH as u32 + 1)], refused(0, good.lkey, super::range(good.addr, LENGTH as u32 + 1))),
    ] {
        assert_eq!(srq.post(&RecvWr { wr_id: 1, sges: &sges }), error);
    }
    let bad = [sge(foreign, 8)];
    let list = [recv(1), RecvWr { wr_id: 2, sges: &bad }, recv(3)];
    assert_eq!(srq.post_list(&list).unwrap_err().index, 1);
    assert_eq!(harness.verbs.srq_info(srq.handle()).unwrap().recvs, 1);
}

/// A device that names what is not posted, or what was given back before, or a place that there is not.
#[test]
fn a_completion_of_nothing_is_an_error_and_gives_no_wr_id() {
    let mut harness = harness();
    let (cq, other_cq) = (harness.cq, harness.verbs.create_cq(64).unwrap());
    let mut srq = create(&mut harness, 3);
    let (a, b) = (sharing(&mut harness, srq.handle(), cq), sharing(&mut harness, srq.handle(), other_cq));
    let (a, b) = (a.handle(), b.handle());
    srq.post_list(&[recv(1), recv(2)]).unwrap();
    let at = deliver(&harness, a).unwrap();
    assert_eq!(given(&mut harness, cq), [(1, a)]);
    let cqn = harness.verbs.cq_info(other_cq).unwrap().cqn;
    let lie = |harness: &Harness, index: u16, status| {
        let raw = RawCompletion { status, ..raw(qpn(harness, b), RawKind::Recv, index.into()) };
        harness.device().complete(cqn, raw);
    };
    // Given back; kept back as the next one; beyond the queue, within and without the entries.
    for index in [at, 2, 3, 4, 8, u16::MAX] {
        for status in [WcStatus::Success, WcStatus::LocLenErr, WcStatus::WrFlushErr] {
            lie(&harness, index, status);
            let unknown = PollCqError::UnknownRequest { qp: b, kind: RawKind::Recv, index };
            assert_eq!(harness.poll_of(other_cq), Err(unknown));
        }
    }
    assert_eq!(harness.verbs.srq_info(srq.handle()).unwrap().recvs, 1);
    // A place that is posted, twice: its `wr_id` comes once.
    lie(&harness, 1, WcStatus::Success);
    lie(&harness, 1, WcStatus::Success);
    assert_eq!(given(&mut harness, other_cq), [(2, b)]);
    assert!(matches!(harness.poll_of(other_cq), Err(PollCqError::UnknownRequest { index: 1, .. })));
    // A queue pair with a receive queue of its own has no use for the index.
    let raw = raw(qpn(&harness, harness.qp), RawKind::Recv, 0);
    harness.push(raw);
    assert!(matches!(harness.poll(), Err(PollCqError::UnknownRequest { .. })));
}

#[test]
fn what_is_wrong_with_a_new_queue_is_said() {
    let mut harness = harness();
    let pd = harness.pd;
    let max = SrqCap { max_wr: 1 << 10, max_sge: 3 };
    let make = |harness: &mut Harness, max_wr, max_sge| {
        harness.verbs.create_srq(&SrqInit { pd, cap: SrqCap { max_wr, max_sge } }).map(drop)
    };
    for (max_wr, max_sge) in [(0, 1), (1025, 1), (1, 4), (u32::MAX, u32::MAX)] {
        let wanted = SrqCap { max_wr, max_sge };
        assert_eq!(make(&mut harness, max_wr, max_sge), Err(CreateSrqError::Capacity { wanted, max }));
    }
    assert_eq!(make(&mut harness, 8, 1), Err(CreateSrqError::Entries { max_wr: 8, slots: 16, most: 8 }));
    for slots in [0, 1, 3, 1 << 16] {
        harness.device().rings = Some((0, slots));
        assert_eq!(make(&mut harness, 2, 1), Err(CreateSrqError::Answer { fault: AnswerFault::SrqSlots { slots } }));
    }
    harness.device().rings = Some((0, 2));
    assert_eq!(
        make(&mut harness, 2, 1),
        Err(CreateSrqError::Answer { fault: AnswerFault::SrqSlots { slots: 2 } }),
        "no room for the next place"
    );
    harness.device().rings = None;
    harness.device().fail_after = Some(0);
    assert_eq!(make(&mut harness, 2, 1), Err(CreateSrqError::Device(MockError::Refused)));
    // The smaller of two that fit, though it is the second.
    let (small, large) = (create(&mut harness, 2), create(&mut harness, 2));
    assert_eq!((small.handle().index(), large.handle().index()), (1, 0));
    assert_eq!(make(&mut harness, 2, 1), Err(CreateSrqError::Full { capacity: 2, fitting: 2 }));
    assert_eq!(harness.verbs.dealloc_pd(pd), Err(DeallocPdError::Busy { users: 4 }), "region, queue pair, both queues");
    let stale = harness.verbs.alloc_pd().unwrap();
    harness.verbs.dealloc_pd(stale).unwrap();
    let cap = SrqCap { max_wr: 1, max_sge: 1 };
    assert_eq!(harness.verbs.create_srq(&SrqInit { pd: stale, cap }).map(drop), Err(CreateSrqError::StalePd));
}

#[test]
fn only_rc_and_ud_take_from_a_shared_queue_that_there_is() {
    let mut harness = harness();
    let srq = create(&mut harness, 3);
    for qp_type in [QpType::Uc, QpType::XrcSend] {
        let init = harness.init(qp_type);
        let refused = harness.verbs.create_qp_with_srq(&init, srq.handle()).map(drop);
        assert_eq!(refused, Err(CreateQpError::SrqTransport { qp_type }));
    }
    for qp_type in [QpType::Rc, QpType::Ud] {
        let init = harness.init(qp_type);
        let qp = harness.verbs.create_qp_with_srq(&init, srq.handle()).unwrap();
        let info = harness.verbs.qp_info(qp.handle()).unwrap();
        assert_eq!((info.cap.max_recv_wr, info.srq, qp.recv.srq()), (0, Some(srq.handle()), srq.handle()));
        harness.verbs.verbs_mut().destroy_qp(qp).unwrap();
    }
    let handle = srq.handle();
    harness.verbs.destroy_srq(srq).unwrap();
    let init = harness.init(QpType::Rc);
    assert_eq!(harness.verbs.create_qp_with_srq(&init, handle).map(drop), Err(CreateQpError::StaleSrq));
    assert_eq!(harness.device().alive[4..], [1, 0]);
}

#[test]
fn a_queue_is_destroyed_when_no_queue_pair_uses_it() {
    let mut harness = harness();
    let cq = harness.cq;
    let srq = create(&mut harness, 3);
    let handle = srq.handle();
    let (a, b) = (sharing(&mut harness, handle, cq), sharing(&mut harness, handle, cq));
    let Refused { error, returned } = harness.verbs.destroy_srq(srq).unwrap_err();
    assert_eq!((error, error.errno()), (DestroySrqError::Busy { users: 2 }, Errno::Ebusy));
    let mut srq = returned.unwrap();
    srq.post(&recv(1)).unwrap();
    assert_eq!(harness.verbs.destroy_dropped_srq(handle), Err(DestroySrqError::Owned));
    harness.verbs.verbs_mut().destroy_qp(a).unwrap();
    drop(srq);
    assert_eq!(harness.verbs.destroy_dropped_srq(handle), Err(DestroySrqError::Busy { users: 1 }));
    let Sharing { send, recv: _ } = b;
    let b = send.qp();
    assert_eq!(harness.verbs.destroy_dropped_qp(b), Err(DestroyQpError::Owned));
    drop(send);
    harness.verbs.destroy_dropped_qp(b).unwrap();
    harness.device().fail_after = Some(0);
    assert_eq!(harness.verbs.destroy_dropped_srq(handle), Err(DestroySrqError::Device(MockError::Refused)));
    harness.verbs.destroy_dropped_srq(handle).unwrap();
    assert_eq!(harness.verbs.destroy_dropped_srq(handle), Err(DestroySrqError::Stale));
    assert_eq!(harness.verbs.srq_info(handle), Err(StaleHandle));
    assert_eq!(harness.verbs.query_srq(handle), Err(QuerySrqError::Stale));
    assert_eq!(harness.verbs.arm_srq(handle, 1), Err(ArmSrqError::Stale));
    assert_eq!(harness.device().alive[5], 0);
    assert_eq!(harness.device().violations, Vec::<&str>::new());
}

/// Values of a queue pair whose queues are of two: neither is destroyed.
#[test]
fn a_queue_pair_of_parts_is_refused() {
    let mut harness = harness();
    let cq = harness.cq;
    let (first, second) = (create(&mut harness, 3), create(&mut harness, 3));
    let (a, b) = (sharing(&mut harness, first.handle(), cq), sharing(&mut harness, second.handle(), cq));
    let mixed = QueuePair { send: a.send, recv: b.recv };
    let Refused { error, returned } = harness.verbs.verbs_mut().destroy_qp(mixed).unwrap_err();
    assert_eq!(error, DestroyQpError::Stale);
    let mut mixed = returned.unwrap();
    assert_eq!(harness.verbs.reset_qp(&mut mixed), Err(ModifyQpError::Stale));
    let whole = QueuePair { send: mixed.send, recv: a.recv };
    harness.verbs.verbs_mut().destroy_qp(whole).unwrap();
}

#[test]
fn the_limit_is_armed_reported_once_and_queried() {
    let mut harness = harness();
    let cq = harness.cq;
    let mut srq = create(&mut harness, 3);
    let handle = srq.handle();
    let qp = sharing(&mut harness, handle, cq);
    srq.post_list(&[recv(1), recv(2), recv(3)]).unwrap();
    assert_eq!(harness.verbs.arm_srq(handle, 4), Err(ArmSrqError::Limit { limit: 4, max: 3 }));
    harness.verbs.arm_srq(handle, 2).unwrap();
    assert_eq!(harness.verbs.query_srq(handle).unwrap().limit, 2);
    deliver(&harness, qp.handle()).unwrap();
    assert_eq!(harness.verbs.poll_event(), Ok(None), "two are left");
    deliver(&harness, qp.handle()).unwrap();
    assert_eq!(harness.verbs.srq_info(handle).unwrap().limit, 2, "the event is not taken");
    assert_eq!(harness.verbs.poll_event(), Ok(Some(Event::SrqLimitReached(handle))));
    assert_eq!((harness.verbs.srq_info(handle).unwrap().limit, harness.verbs.query_srq(handle).unwrap().limit), (0, 0));
    deliver(&harness, qp.handle()).unwrap();
    assert_eq!(harness.verbs.poll_event(), Ok(None), "once");
    harness.device().fail_after = Some(0);
    assert_eq!(harness.verbs.arm_srq(handle, 1), Err(ArmSrqError::Device(MockError::Refused)));
    harness.device().fail_after = Some(0);
    assert_eq!(harness.verbs.query_srq(handle), Err(QuerySrqError::Device(MockError::Refused)));
    // Below at once; and of a queue that is not there.
    harness.verbs.arm_srq(handle, 1).unwrap();
    let stray = AsyncEvent::SrqLimitReached(crate::Srqn::new(0x999));
    let number = harness.verbs.srq_info(handle).unwrap().srqn;
    harness.device().events.extend([stray, AsyncEvent::SrqError(number)]);
    let mut event = || harness.verbs.poll_event().unwrap();
    assert_eq!(event(), Some(Event::SrqLimitReached(handle)));
    assert_eq!((event(), event()), (Some(Event::Stray(stray)), Some(Event::SrqError(handle))));
}

/// What a queue pair took comes flushed in ERR; what nobody took stays for the other one.
#[test]
fn an_error_flushes_what_was_taken_alone() {
    let mut harness = harness();
    let cq = harness.cq;
    let mut srq = create(&mut harness, 3);
    let (a, b) = (sharing(&mut harness, srq.handle(), cq), sharing(&mut harness, srq.handle(), cq));
    let (a, b) = (a.handle(), b.handle());
    srq.post_list(&[recv(1), recv(2)]).unwrap();
    let number = qpn(&harness, a);
    assert!(harness.device().take_shared(number));
    harness.step(a, QpState::Err);
    harness.device().complete_shared(number).unwrap();
    harness.device().events.push_back(AsyncEvent::LastWqeReached(number));
    let done = harness.poll().unwrap();
    assert_eq!((done.len(), done[0].wr_id, done[0].qp, done[0].status), (1, 1, a, WcStatus::WrFlushErr));
    assert_eq!(harness.verbs.poll_event(), Ok(Some(Event::LastWqeReached(a))));
    deliver(&harness, b).unwrap();
    assert_eq!(given(&mut harness, cq), [(2, b)]);
    srq.post(&recv(3)).unwrap();
    deliver(&harness, b).unwrap();
    assert_eq!(given(&mut harness, cq), [(3, b)], "the queue goes on");
}

/// A stale completion of a queue pair that was reset or destroyed is not given, and its place is free.
#[test]
fn a_dropped_completion_frees_its_place() {
    for destroyed in [false, true] {
        let mut harness = harness();
        let cq = harness.cq;
        let mut srq = create(&mut harness, 3);
        let (mut a, b) = (sharing(&mut harness, srq.handle(), cq), sharing(&mut harness, srq.handle(), cq));
        srq.post_list(&[recv(1), recv(2), recv(3)]).unwrap();
        deliver(&harness, a.handle()).unwrap();
        if destroyed {
            harness.verbs.verbs_mut().destroy_qp(a).unwrap();
        } else {
            harness.verbs.reset_qp(&mut a).unwrap();
        }
        assert_eq!(srq.post(&recv(4)), Err(PostRecvError::SharedQueueFull { capacity: 3 }));
        assert_eq!(given(&mut harness, cq), []);
        srq.post(&recv(4)).unwrap();
        assert_eq!(srq.post(&recv(5)), Err(PostRecvError::SharedQueueFull { capacity: 3 }));
        let mut done = Vec::new();
        while deliver(&harness, b.handle()).is_some() {
            done.extend(given(&mut harness, cq));
        }
        assert_eq!(done.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [2, 3, 4]);
    }
}

/// The stale completion comes after the shared queue is gone, and another is in its slot: that one loses nothing.
#[test]
fn a_stale_completion_frees_nothing_of_the_next_queue_in_the_slot() {
    let mut harness = harness();
    let cq = harness.cq;
    let mut old = create(&mut harness, 3);
    let a = sharing(&mut harness, old.handle(), cq);
    old.post(&recv(1)).unwrap();
    let at = deliver(&harness, a.handle()).unwrap();
    harness.verbs.verbs_mut().destroy_qp(a).unwrap();
    let slot = old.handle().index();
    harness.verbs.destroy_srq(old).unwrap();
    let mut new = create(&mut harness, 3);
    assert_eq!(new.handle().index(), slot);
    new.post(&recv(2)).unwrap();
    assert_eq!(at, 0, "the place of the new queue's first request too");
    assert_eq!(given(&mut harness, cq), []);
    assert_eq!(harness.verbs.srq_info(new.handle()).unwrap().recvs, 1);
    let b = sharing(&mut harness, new.handle(), cq);
    deliver(&harness, b.handle()).unwrap();
    assert_eq!(given(&mut harness, cq), [(2, b.handle())]);
}

fn lose(harness: &mut Harness) {
    harness.device().loss = Some(DeviceLoss::Reset);
    assert_eq!(harness.verbs.maintain(), Err(MockError::NoAnswer));
}

/// What every queue gives before it says that the device is lost, each once.
fn all(harness: &mut Harness, cqs: &[CqHandle]) -> Vec<(u64, bool)> {
    let mut given = Vec::new();
    for _ in 0..2 {
        for cq in cqs {
            let error = loop {
                match harness.poll_of(*cq) {
                    Ok(some) => given.extend(some.iter().map(|done| (done.wr_id, done.data != WcData::None))),
                    Err(error) => break error,
                }
            };
            assert_eq!(error, PollCqError::DeviceLost { loss: DeviceLoss::Reset });
        }
    }
    given.sort_unstable();
    given
}

#[test]
fn each_request_of_a_lost_device_is_completed_or_flushed_once() {
    for (after_reset, other_first) in [(false, true), (false, false), (true, true)] {
        let mut harness = harness();
        let (cq, other_cq) = (harness.cq, harness.verbs.create_cq(64).unwrap());
        let (mut first, mut second) = (create(&mut harness, 7), create(&mut harness, 3));
        let (mut a, b) = (sharing(&mut harness, first.handle(), cq), sharing(&mut harness, first.handle(), other_cq));
        let c = sharing(&mut harness, second.handle(), cq);
        for wr_id in 1..=5 {
            first.post(&recv(wr_id)).unwrap();
        }
        second.post(&recv(11)).unwrap();
        harness.verbs.post_recv(harness.qp, &recv(21)).unwrap();
        deliver(&harness, b.handle()).unwrap();
        let number = qpn(&harness, b.handle());
        assert!(harness.device().take_shared(number), "2 is being filled");
        if after_reset {
            harness.verbs.reset_qp(&mut a).unwrap();
        }
        lose(&mut harness);
        assert_eq!(first.post(&recv(6)), Err(PostRecvError::DeviceLost { loss: DeviceLoss::Reset }));
        let flushed = [2, 3, 4, 5, 11, 21].map(|wr_id| (wr_id, true));
        // The completion of 1 waits in `other_cq`; a poll of `cq` before that flushes it, and the completion is dropped.
        let order = if other_first { [other_cq, cq] } else { [cq, other_cq] };
        assert_eq!(all(&mut harness, &order), [&[(1, !other_first)][..], &flushed].concat());
        assert_eq!(harness.verbs.srq_info(first.handle()).unwrap().recvs, 0);
        drop((b, c));
    }
}

#[test]
fn what_is_flushed_says_why_and_of_which_queue_pair() {
    let mut harness = harness();
    let cq = harness.cq;
    let mut srq = create(&mut harness, 3);
    let a = sharing(&mut harness, srq.handle(), cq);
    srq.post(&recv(7)).unwrap();
    lose(&mut harness);
    let done: Vec<Completion> = harness.poll().unwrap();
    let (qp, data) = (a.handle(), WcData::Lost(DeviceLoss::Reset));
    assert_eq!((done[0].wr_id, done[0].qp, done[0].status, done[0].data), (7, qp, WcStatus::WrFlushErr, data));
}

/// What nobody could take, nobody is given: it is dropped with the queue.
#[test]
fn requests_without_a_queue_pair_are_not_flushed() {
    let mut harness = harness();
    let cq = harness.cq;
    let mut srq = create(&mut harness, 3);
    let a = sharing(&mut harness, srq.handle(), cq);
    srq.post(&recv(1)).unwrap();
    harness.verbs.verbs_mut().destroy_qp(a).unwrap();
    lose(&mut harness);
    assert_eq!(all(&mut harness, &[cq]), []);
    assert_eq!(harness.verbs.srq_info(srq.handle()).unwrap().recvs, 1);
    drop(srq);
}

#[test]
fn the_provider_is_not_given_back_while_somebody_posts() {
    let mut harness = harness();
    let srq = create(&mut harness, 3);
    let verbs = harness.verbs.into_provider().err().expect("the shared queue is somebody's");
    drop(srq);
    assert!(verbs.into_provider().is_ok());
}

#[test]
fn a_queue_pair_that_shares_is_reset_and_used_again() {
    let mut harness = harness();
    let cq = harness.cq;
    let mut srq = create(&mut harness, 3);
    let mut a = sharing(&mut harness, srq.handle(), cq);
    for wr_id in 0..3 {
        srq.post(&recv(wr_id)).unwrap();
        deliver(&harness, a.handle()).unwrap();
        assert_eq!(given(&mut harness, cq), [(wr_id, a.handle())]);
        harness.verbs.reset_qp(&mut a).unwrap();
        assert_eq!(given(&mut harness, cq), []);
        harness.connect(a.handle());
    }
}

/// A device that answers with the number of another queue would have its events given to the other. What it made is not destroyed, because
/// its number is that of the other.
#[test]
fn a_number_that_another_shared_receive_queue_has_is_refused_and_destroys_nothing() {
    let mut harness = harness();
    let mut srq = create(&mut harness, 3);
    let srqn = harness.verbs.srq_info(srq.handle()).unwrap().srqn;
    harness.device().next_srqn = Some(srqn);
    let init = SrqInit { pd: harness.pd, cap: SrqCap { max_wr: 7, max_sge: 2 } };
    let error = harness.verbs.create_srq(&init).unwrap_err();
    assert_eq!(
        (error, error.errno()),
        (CreateSrqError::Answer { fault: AnswerFault::NumberInUse { number: srqn.get() } }, Errno::Ebadmsg)
    );
    assert_eq!(harness.device().destroyed, [0; 6]);
    srq.post(&recv(1)).unwrap();
    let other = harness.verbs.create_srq(&init).unwrap();
    assert_ne!(harness.verbs.srq_info(other.handle()).unwrap().srqn, srqn);
    assert!(harness.verbs.destroy_srq(srq).is_ok());
}

/// Nobody drives a device whose verbs were dropped: requests are refused and what is in flight is flushed, so that no poller waits for ever.
#[test]
fn receives_of_dropped_verbs_are_flushed() {
    let mut harness = harness();
    let mut srq = create(&mut harness, 3);
    let cq = harness.cq;
    let qp = sharing(&mut harness, srq.handle(), cq);
    srq.post_list(&[recv(1), recv(2)]).unwrap();
    let mut cq = harness.verbs.take_cq(cq);
    drop(harness);
    let loss = DeviceLoss::Abandoned;
    assert_eq!(srq.post(&recv(3)), Err(PostRecvError::DeviceLost { loss }));
    let flushed: Vec<_> = cq.completions().map_while(Result::ok).map(|done| (done.wr_id, done.data)).collect();
    assert_eq!(flushed, [(1, WcData::Lost(loss)), (2, WcData::Lost(loss))]);
    drop(qp);
}

/// Nobody knows what a queue pair has taken from a shared receive queue, once it may have taken something: RTR.
#[test]
fn a_queue_pair_that_may_have_taken_a_shared_receive_is_not_untouched() {
    let mut harness = harness();
    let srq = create(&mut harness, 3);
    let init = harness.init(QpType::Rc);
    let mut qp = harness.verbs.create_qp_with_srq(&init, srq.handle()).unwrap();
    let right = super::attributes(QpState::Reset);
    // The device refuses the transition from RESET, from INIT and from RTR.
    for (steps, left) in [(0, QpState::Reset), (1, QpState::Init), (2, QpState::Rtr)] {
        harness.device().fail_after = Some(steps);
        let refused = harness.verbs.verbs_mut().modify_qp_to_rts(qp.handle(), &right);
        assert!(matches!(refused, Err(ModifyQpError::Device(_))), "{steps}: {refused:?}");
        harness.device().fail_after = None;
        assert_eq!(harness.verbs.qp_info(qp.handle()).unwrap().state, left);
        harness.verbs.verbs_mut().reset_qp(&mut qp).unwrap();
    }
    let verbs = harness.verbs.verbs_mut();
    assert_eq!(verbs.modify_qp_to_rts(qp.handle(), &right), Err(ModifyQpError::Draining));
    assert_eq!(harness.poll_ids(), []);
    harness.verbs.verbs_mut().modify_qp_to_rts(qp.handle(), &right).unwrap();
}

/// A queue pair with a shared receive queue, the completion queue of both sides, and the event that ends a drain.
fn to_drain() -> (Harness, SharedQueue, Sharing, CompletionQueue<'static, Mock>, AsyncEvent) {
    let mut harness = harness();
    let cq = harness.cq;
    let srq = create(&mut harness, 3);
    let qp = sharing(&mut harness, srq.handle(), cq);
    let last = AsyncEvent::LastWqeReached(qpn(&harness, qp.handle()));
    let queue = harness.verbs.take_cq(cq);
    (harness, srq, qp, queue, last)
}

/// An event from before a RESET that was not polled does not end a drain after it.
#[test]
fn an_event_from_before_a_reset_ends_no_drain() {
    let (mut harness, _srq, a, mut queue, last) = to_drain();
    harness.device().events.push_back(last);
    let mut drain = || {
        let timeout = core::time::Duration::from_millis(50);
        let mut events = Vec::new();
        let event = |event| events.push(event);
        let drained = harness.verbs.verbs_mut().drain_qp_with_srq(&a, &mut queue, timeout, |_| (), event);
        harness.device().events.push_back(last);
        (drained, events)
    };
    assert_eq!(drain(), (Err(DrainError::TimedOut { left: 0 }), vec![Event::Stray(last)]));
    // That of this life does.
    assert_eq!(drain(), (Ok(crate::Drained::default()), vec![Event::LastWqeReached(a.handle())]));
}

/// The device does not say what happened, first of events before the transition to ERR, then of that, then of events after it.
#[test]
fn a_drain_that_the_device_refuses_says_so() {
    let (mut harness, _srq, a, mut queue, last) = to_drain();
    // Once in ERR, no event is polled before the transition, which is done again.
    for (steps, state) in [(0, QpState::Rts), (1, QpState::Rts), (2, QpState::Err), (1, QpState::Err)] {
        harness.device().fail_after = Some(steps);
        let timeout = core::time::Duration::from_millis(50);
        let drained = harness.verbs.verbs_mut().drain_qp_with_srq(&a, &mut queue, timeout, |_| (), |_| ());
        assert_eq!(drained, Err(DrainError::Device(MockError::Refused)), "{steps}");
        assert_eq!(harness.device().fail_after, None, "{steps}");
        assert_eq!(harness.verbs.qp_info(a.handle()).unwrap().state, state, "{steps}");
    }
    // A completion that cannot be ends it too.
    let wrong = RawCompletion { status: WcStatus::Success, ..raw(qpn(&harness, a.handle()), RawKind::Recv, 2) };
    let cqn = harness.cqn();
    harness.device().complete(cqn, wrong);
    let timeout = core::time::Duration::from_millis(50);
    let drained = harness.verbs.verbs_mut().drain_qp_with_srq(&a, &mut queue, timeout, |_| (), |_| ());
    assert!(matches!(drained, Err(DrainError::Poll { .. })), "{drained:?}");
    harness.device().events.push_back(last);
    let drained = harness.verbs.verbs_mut().drain_qp_with_srq(&a, &mut queue, timeout, |_| (), |_| ());
    assert_eq!(drained, Ok(crate::Drained::default()));
}

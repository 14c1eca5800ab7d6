//! Queues are values: who has them may do what, and what is left when they are dropped, forgotten or mixed up.

use super::mock::Mock;
use super::post::send;
use super::{BASE, Harness, set_state};
use crate::error::{
    CreateQpError, DestroyCqError, DestroyQpError, DeviceLoss, Errno, ModifyQpError, NotifyCqError, PollCqError, PostRecvError,
    PostSendError,
};
use crate::storage::QpRings;
use crate::{
    Access, Completion, CompletionQueue, MwType, QpAttr, QpAttrMask, QpInit, QpState, QpType, QueuePair, RecvWr, Refused,
    SendFlags, Type1Bind, Verbs, WcData, WcStatus, storage,
};

const RECV: RecvWr<'static> = RecvWr { wr_id: 9, sges: &[] };

/// Takes the queue pair and the completion queue of a harness.
fn take(harness: &mut Harness) -> (QueuePair<'static, Mock>, CompletionQueue<'static, Mock>) {
    (harness.verbs.take_qp(harness.qp), harness.verbs.take_cq(harness.cq))
}

#[test]
fn queues_post_and_poll_without_the_verbs() {
    let mut harness = Harness::new();
    let (mw, qpn, cqn) = (harness.window(MwType::Type1), harness.qpn(), harness.cqn());
    let (mut qp, mut cq) = take(&mut harness);
    assert_eq!((qp.handle(), qp.send.qp(), qp.recv.qp(), cq.handle()), (harness.qp, harness.qp, harness.qp, harness.cq));
    qp.send.post(&send(1, &[])).unwrap();
    qp.send.post_list(&[send(2, &[]), send(3, &[])]).unwrap();
    let bind =
        Type1Bind { wr_id: 4, flags: SendFlags::SIGNALED, mr: harness.mr, addr: BASE, length: 64, access: Access::REMOTE_READ };
    let key = qp.send.bind_type1(mw, &bind).unwrap();
    let mut batch = qp.send.batch();
    batch.post(&send(5, &[])).unwrap();
    drop(batch);
    qp.recv.post(&RECV).unwrap();
    qp.recv.post_list(&[RECV, RECV]).unwrap();
    assert_eq!(harness.device().doorbells.len(), 6);
    cq.req_notify(true).unwrap();
    assert_eq!(harness.device().armed, [(cqn, 0, true)]);
    while harness.device().execute(qpn) {}
    let mut out = [crate::Completion::EMPTY; 2];
    assert_eq!(cq.poll(&mut out), Ok(2));
    let rest: std::vec::Vec<u64> = cq.completions().map(|done| done.unwrap().wr_id).collect();
    assert_eq!((out[0].wr_id, out[1].wr_id, &rest[..]), (1, 2, &[3, 4, 5][..]));
    assert_eq!((harness.verbs.mw_info(mw).unwrap().rkey, harness.binds()), (key, 0));
    let info = harness.verbs.qp_info(harness.qp).unwrap();
    assert_eq!((info.send_blocks, info.recvs), (0, 3));
    // The state that the verbs gave the queue pair is that of its queues.
    harness.step(harness.qp, QpState::Sqd);
    qp.send.post(&send(6, &[])).unwrap();
    harness.step(harness.qp, QpState::Err);
    let refused = PostSendError::NotReady { state: QpState::Err };
    assert_eq!(qp.send.post(&send(7, &[])), Err(refused));
    assert_eq!(qp.recv.post(&RECV), Err(PostRecvError::NotReady { state: QpState::Err }));
    assert!(harness.device().execute(qpn));
    assert_eq!(cq.completions().next().unwrap().unwrap().status, WcStatus::WrFlushErr);
}

#[test]
fn what_somebody_has_is_neither_reset_nor_destroyed_by_its_handle() {
    let mut harness = Harness::new();
    let (qp, cq) = take(&mut harness);
    let reset = harness.verbs.modify_qp(harness.qp, &QpAttr::default(), QpAttrMask::STATE).unwrap_err();
    assert_eq!((reset, reset.errno()), (ModifyQpError::Owned, Errno::Ebusy));
    let error = harness.verbs.destroy_dropped_qp(harness.qp).unwrap_err();
    assert_eq!((error, error.errno()), (DestroyQpError::Owned, Errno::Ebusy));
    let error = harness.verbs.destroy_dropped_cq(harness.cq).unwrap_err();
    assert_eq!((error, error.errno()), (DestroyCqError::Owned, Errno::Ebusy));
    // One half is not enough.
    let QueuePair { send, recv } = qp;
    drop(send);
    assert_eq!(harness.verbs.destroy_dropped_qp(harness.qp), Err(DestroyQpError::Owned));
    let Err(verbs) = harness.verbs.into_provider() else { panic!("somebody has queues") };
    let mut verbs = crate::kept_verbs::KeptVerbs::new(verbs);
    drop(recv);
    let Err(returned) = verbs.into_provider() else { panic!("somebody has a completion queue") };
    verbs = crate::kept_verbs::KeptVerbs::new(returned);
    verbs.destroy_dropped_qp(harness.qp).unwrap();
    assert_eq!(verbs.destroy_dropped_qp(harness.qp), Err(DestroyQpError::Stale));
    drop(cq);
    verbs.destroy_dropped_cq(harness.cq).unwrap();
    assert_eq!(verbs.destroy_dropped_cq(harness.cq), Err(DestroyCqError::Stale));
    assert!(verbs.into_provider().is_ok());
}

/// A thread that panics drops its queues: what they were of can be destroyed.
#[test]
fn queues_that_are_dropped_by_unwinding_wedge_nothing() {
    let mut harness = Harness::new();
    let (qp, cq) = take(&mut harness);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let (mut qp, _cq) = (qp, cq);
        let _batch = qp.send.batch();
        std::panic::resume_unwind(std::boxed::Box::new(()));
    }));
    assert!(panicked.is_err());
    harness.verbs.destroy_dropped_qp(harness.qp).unwrap();
    harness.verbs.destroy_dropped_cq(harness.cq).unwrap();
    assert!(harness.verbs.into_provider().is_ok());
}

/// Nobody polls a completion queue that was dropped: its queue pairs wait for nobody.
#[test]
fn a_queue_pair_whose_completion_queue_was_dropped_leaves_reset() {
    let mut harness = Harness::new();
    harness.verbs.post_send(harness.qp, &send(1, &[])).unwrap();
    assert!(harness.device().execute(harness.qpn()));
    drop(harness.verbs.take_cq(harness.cq));
    harness.step(harness.qp, QpState::Reset);
    harness.connect(harness.qp);
}

/// Queues that are forgotten are somebody's for ever: neither they nor the device come back.
#[test]
fn queues_that_are_forgotten_are_kept_for_ever() {
    let mut harness = Harness::new();
    let (qp, cq) = take(&mut harness);
    core::mem::forget((qp, cq));
    assert_eq!(harness.verbs.destroy_dropped_qp(harness.qp), Err(DestroyQpError::Owned));
    assert_eq!(harness.verbs.destroy_dropped_cq(harness.cq), Err(DestroyCqError::Owned));
    assert!(harness.verbs.into_provider().is_err());
}

/// The same numbers and slots, of the same device by its GUID.
#[test]
fn queues_of_other_verbs_come_back() {
    let (mut harness, mut other) = (Harness::new(), Harness::new());
    let (qp, cq) = take(&mut harness);
    let (theirs, their_cq) = take(&mut other);
    assert_eq!(qp.handle().index(), theirs.handle().index());
    assert_ne!(qp.handle(), theirs.handle());
    let Refused { error, returned } = other.verbs.verbs_mut().destroy_qp(qp).unwrap_err();
    assert_eq!(error, DestroyQpError::Stale);
    let mut qp = returned.unwrap();
    assert_eq!(other.verbs.verbs_mut().reset_qp(&mut qp), Err(ModifyQpError::Stale));
    let Refused { error, returned } = other.verbs.verbs_mut().destroy_cq(cq).unwrap_err();
    assert_eq!(error, DestroyCqError::Stale);
    let cq = returned.unwrap();
    // Halves of two devices make no queue pair of either.
    let mixed = QueuePair { send: qp.send, recv: theirs.recv };
    let Refused { error, returned } = harness.verbs.verbs_mut().destroy_qp(mixed).unwrap_err();
    assert_eq!(error, DestroyQpError::Stale);
    let QueuePair { send, recv: theirs_recv } = returned.unwrap();
    harness.verbs.verbs_mut().destroy_qp(QueuePair { send, recv: qp.recv }).unwrap();
    harness.verbs.verbs_mut().destroy_cq(cq).unwrap();
    other.verbs.verbs_mut().destroy_qp(QueuePair { send: theirs.send, recv: theirs_recv }).unwrap();
    other.verbs.verbs_mut().destroy_cq(their_cq).unwrap();
    assert_eq!((harness.device().alive[4], other.device().alive[4]), (0, 0));
}

/// Two queue pairs of one device whose halves were exchanged are reset and destroyed by nobody.
#[test]
fn halves_of_two_queue_pairs_are_not_one() {
    let mut harness = Harness::new();
    let (other, _) = harness.second();
    let (mut one, mut two) = (harness.verbs.take_qp(harness.qp), harness.verbs.take_qp(other));
    core::mem::swap(&mut one.send, &mut two.send);
    assert_eq!(harness.verbs.verbs_mut().reset_qp(&mut one), Err(ModifyQpError::Stale));
    let Refused { error, returned } = harness.verbs.verbs_mut().destroy_qp(two).unwrap_err();
    assert_eq!(error, DestroyQpError::Stale);
    let mut two = returned.unwrap();
    core::mem::swap(&mut one.send, &mut two.send);
    harness.verbs.verbs_mut().reset_qp(&mut one).unwrap();
    harness.verbs.verbs_mut().destroy_qp(two).unwrap();
    // A queue pair in the slot of the other has new queues, and the old handle names none.
    assert_eq!(harness.verbs.destroy_dropped_qp(other), Err(DestroyQpError::Stale));
}

/// What is refused comes back and works.
#[test]
fn a_queue_pair_that_the_device_keeps_comes_back() {
    let mut harness = Harness::new();
    let qpn = harness.qpn();
    let (qp, mut cq) = take(&mut harness);
    harness.device().fail_after = Some(0);
    let Refused { error, returned } = harness.verbs.verbs_mut().destroy_qp(qp).unwrap_err();
    assert!(matches!(error, DestroyQpError::Device(_)));
    let mut qp = returned.unwrap();
    qp.send.post(&send(1, &[])).unwrap();
    assert!(harness.device().execute(qpn));
    assert_eq!(cq.completions().next().unwrap().unwrap().wr_id, 1);
    harness.verbs.verbs_mut().destroy_qp(qp).unwrap();
    assert!(!matches!(harness.verbs.create_qp(&harness.init(crate::QpType::Rc)), Err(CreateQpError::Full { .. })));
}

/// A batch that was forgotten: the queue rings for what is left of it, in any state; after a RESET nothing is left.
#[test]
fn a_queue_rings_for_what_is_left() {
    let mut harness = Harness::new();
    let (mw, qpn) = (harness.window(MwType::Type1), harness.qpn());
    let bind =
        Type1Bind { wr_id: 1, flags: SendFlags::SIGNALED, mr: harness.mr, addr: BASE, length: 64, access: Access::REMOTE_READ };
    let (mut qp, _cq) = take(&mut harness);
    for rings in [true, false] {
        let before = harness.device().doorbells.len();
        let mut batch = qp.send.batch();
        batch.bind_type1(mw, &bind).unwrap();
        core::mem::forget(batch);
        set_state(&harness.verbs, harness.qp, QpState::Err);
        assert_eq!(harness.device().doorbells.len(), before);
        if rings {
            qp.send.ring();
            qp.send.ring();
            assert_eq!(harness.device().doorbells, [(qpn, 3, true)]);
            set_state(&harness.verbs, harness.qp, QpState::Rts);
            continue;
        }
        harness.verbs.verbs_mut().reset_qp(&mut qp).unwrap();
        drop(qp.send.batch());
        qp.send.ring();
        assert_eq!(harness.device().doorbells.len(), before);
    }
}

/// Queues on cores of their own.
#[cfg(feature = "multicore")]
#[test]
fn sender_receiver_and_poller_work_at_the_same_time() {
    const COUNT: u64 = if cfg!(miri) { 20 } else { 2000 };
    let mut harness = Harness::new();
    let qpn = harness.qpn();
    let device = harness.verbs.provider().shared();
    let QueuePair { mut send, mut recv } = harness.verbs.take_qp(harness.qp);
    let mut cq = harness.verbs.take_cq(harness.cq);
    let (sent, received) = std::thread::scope(|scope| {
        let sender = scope.spawn(move || {
            for n in 0..COUNT {
                while send.post(&super::post::send(n, &[])).is_err() {
                    std::thread::yield_now();
                }
            }
            send
        });
        let receiver = scope.spawn(move || {
            for wr_id in 0..COUNT {
                while recv.post(&RecvWr { wr_id: COUNT + wr_id, sges: &[] }).is_err() {
                    std::thread::yield_now();
                }
            }
            recv
        });
        let poller = scope.spawn(move || {
            let (mut sends, mut recvs) = (0, 0);
            while sends != COUNT || recvs != COUNT {
                for done in cq.completions() {
                    let done = done.unwrap();
                    let expected = if done.wr_id < COUNT { &mut sends } else { &mut recvs };
                    assert_eq!(done.wr_id % COUNT, *expected);
                    *expected += 1;
                }
                let mut device = device.lock().unwrap();
                while device.execute(qpn) || device.deliver(qpn) {}
            }
            cq
        });
        let queues = (sender.join().unwrap(), receiver.join().unwrap());
        harness.verbs.keep_cq(poller.join().unwrap());
        queues
    });
    harness.verbs.keep_qp(QueuePair { send: sent, recv: received });
    let info = harness.verbs.qp_info(harness.qp).unwrap();
    assert_eq!((info.send_blocks, info.recvs), (0, 0));
}

/// Nobody drives a device whose verbs were dropped. Its queues say so: requests are refused, what is in flight is flushed, and nobody
/// waits for ever.
#[test]
fn queues_of_dropped_verbs_are_lost() {
    let mut harness = Harness::new();
    let (mut qp, mut cq) = take(&mut harness);
    qp.send.post(&send(1, &[])).unwrap();
    qp.recv.post(&RECV).unwrap();
    drop(harness);
    let loss = DeviceLoss::Abandoned;
    assert_eq!(qp.send.post(&send(2, &[])), Err(PostSendError::DeviceLost { loss }));
    assert_eq!(qp.send.batch().post(&send(2, &[])), Err(PostSendError::DeviceLost { loss }));
    assert_eq!(qp.recv.post(&RECV), Err(PostRecvError::DeviceLost { loss }));
    assert_eq!(cq.req_notify(false), Err(NotifyCqError::DeviceLost { loss }));
    let flushed: std::vec::Vec<_> = cq.completions().map_while(Result::ok).map(|done| (done.wr_id, done.data)).collect();
    assert_eq!(flushed, [(1, WcData::Lost(loss)), (9, WcData::Lost(loss))]);
    assert_eq!(cq.poll(&mut [Completion::EMPTY]), Err(PollCqError::DeviceLost { loss }));
}

/// Who gives the backend back has dropped every queue before: the next verbs on the tables start as the first ones did.
#[test]
fn verbs_that_follow_others_are_not_lost() {
    let rings: &'static [QpRings<16, 8>; 2] = std::boxed::Box::leak(std::boxed::Box::new([const { QpRings::new() }; 2]));
    let mut storage = <storage![Mock; pds: 2, mrs: 4, mws: 2, cqs: 2, qps: 2]>::new(QpRings::views(rings));
    let mut mock = Mock::new();
    for _ in 0..2 {
        let mut verbs = Verbs::new(mock, &mut storage);
        let pd = verbs.alloc_pd().unwrap();
        let mut cq = verbs.create_cq(64).unwrap();
        let (send_cq, recv_cq) = (cq.handle(), cq.handle());
        let init = QpInit { pd, qp_type: QpType::Rc, send_cq, recv_cq, cap: super::CAP, sq_sig_all: true };
        let mut qp = verbs.create_qp(&init).unwrap();
        verbs.modify_qp_to_rts(qp.handle(), &super::attributes(QpState::Reset)).unwrap();
        qp.send.post(&send(1, &[])).unwrap();
        cq.req_notify(false).unwrap();
        assert_eq!(cq.poll(&mut [Completion::EMPTY]), Ok(0));
        drop((qp, cq));
        let Ok(back) = verbs.into_provider() else { panic!("every queue was dropped") };
        mock = back;
    }
}

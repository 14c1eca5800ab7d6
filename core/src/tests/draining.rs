//! Queue pairs that are reset or destroyed while their completion queue is out: it drops their completions on its own, and what
//! they had is not used again before it has.

use super::mock::Mock;
use super::post::send;
use super::{BASE, Rig, attributes};
use crate::{
    Access, CompletionQueue, CreateQpError, Errno, ModifyQpError, MwBind, MwType, PollCqError, QpAttrMask, QpInit, QpState,
    QpType, SendFlags, WcStatus,
};

fn ids(queue: &mut CompletionQueue<'static, Mock>) -> std::vec::Vec<u64> {
    queue.completions().map(|done| done.unwrap().wr_id).collect()
}

/// RESET to INIT.
fn initialize(rig: &mut Rig) -> Result<(), ModifyQpError<super::MockError>> {
    let required = QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::ACCESS_FLAGS;
    rig.verbs.modify_qp(rig.qp, &attributes(QpState::Init), QpAttrMask::STATE | required)
}

#[test]
fn after_reset_the_queue_is_polled_empty_before_the_queue_pair_goes_on() {
    let mut rig = Rig::new();
    let qpn = rig.qpn();
    for n in 0..3 {
        rig.verbs.post_send(rig.qp, &send(n, &[])).unwrap();
    }
    while rig.device().execute(qpn) {}
    let mut queue = rig.verbs.take_cq(rig.cq).unwrap();
    rig.step(rig.qp, QpState::Reset);
    let error = initialize(&mut rig).unwrap_err();
    assert_eq!((error, error.errno()), (ModifyQpError::Draining, Errno::Eagain));
    assert_eq!(rig.verbs.qp(rig.qp).unwrap().state, QpState::Reset);
    // Of the old completions none is given.
    assert_eq!(ids(&mut queue), []);
    rig.connect(rig.qp);
    rig.verbs.post_send(rig.qp, &send(10, &[])).unwrap();
    assert!(rig.device().execute(qpn));
    assert_eq!(ids(&mut queue), [10]);
}

/// It need not be polled apart: once it is back, polling it through the verbs does as well.
#[test]
fn a_queue_that_went_back_is_polled_empty_too() {
    let mut rig = Rig::new();
    let qpn = rig.qpn();
    rig.verbs.post_send(rig.qp, &send(1, &[])).unwrap();
    assert!(rig.device().execute(qpn));
    let queue = rig.verbs.take_cq(rig.cq).unwrap();
    rig.step(rig.qp, QpState::Reset);
    assert!(rig.verbs.return_cq(queue).is_ok());
    assert_eq!(initialize(&mut rig), Err(ModifyQpError::Draining));
    assert_eq!(rig.poll_ids(), []);
    rig.connect(rig.qp);
}

/// A RESET with the queue at hand cleans it at once, also after one without.
#[test]
fn a_second_reset_cleans_what_the_first_could_not() {
    let mut rig = Rig::new();
    let qpn = rig.qpn();
    rig.verbs.post_send(rig.qp, &send(1, &[])).unwrap();
    assert!(rig.device().execute(qpn));
    let queue = rig.verbs.take_cq(rig.cq).unwrap();
    rig.step(rig.qp, QpState::Reset);
    assert!(rig.verbs.return_cq(queue).is_ok());
    rig.step(rig.qp, QpState::Reset);
    rig.connect(rig.qp);
    assert_eq!(rig.poll_ids(), []);
}

/// Completions of other queue pairs, and a queue that is only partly polled, say nothing about the old ones.
#[test]
fn a_queue_that_was_not_found_empty_is_not_drained() {
    let mut rig = Rig::new();
    let other = rig.verbs.create_qp(&rig.init(QpType::Rc)).unwrap();
    rig.connect(other);
    let (qpn, other_qpn) = (rig.qpn(), rig.verbs.qp(other).unwrap().qpn);
    for n in 0..2 {
        rig.verbs.post_send(rig.qp, &send(n, &[])).unwrap();
        rig.verbs.post_send(other, &send(10 + n, &[])).unwrap();
        assert!(rig.device().execute(qpn));
        assert!(rig.device().execute(other_qpn));
    }
    let mut queue = rig.verbs.take_cq(rig.cq).unwrap();
    rig.step(rig.qp, QpState::Reset);
    for n in 0..2 {
        let mut out = [crate::Completion::EMPTY];
        assert_eq!(queue.poll(&mut out), Ok(1));
        assert_eq!(out[0].wr_id, 10 + n);
        assert_eq!(initialize(&mut rig), Err(ModifyQpError::Draining), "the queue may hold more");
    }
    assert_eq!(queue.poll(&mut [crate::Completion::EMPTY]), Ok(0));
    initialize(&mut rig).unwrap();
}

/// Completions are being taken while the queue pair is reset: no stale one is returned after, and the send queue has room for
/// as many requests as before.
#[test]
fn completions_that_are_being_taken_end_with_the_reset() {
    let mut rig = Rig::new();
    let qpn = rig.qpn();
    for n in 0..8 {
        rig.verbs.post_send(rig.qp, &send(n, &[])).unwrap();
    }
    while rig.device().execute(qpn) {}
    let mut queue = rig.verbs.take_cq(rig.cq).unwrap();
    let mut completions = queue.completions();
    assert_eq!(completions.next().unwrap().unwrap().wr_id, 0);
    rig.step(rig.qp, QpState::Reset);
    assert_eq!(completions.next(), None);
    drop(completions);
    rig.connect(rig.qp);
    assert_eq!(rig.verbs.send_batch(rig.qp).unwrap().free_blocks(), 16);
}

/// The same completions go on with the next life of the queue pair, in which a request is a bind that was none before.
#[test]
fn completions_that_are_being_taken_go_on_after_the_reset() {
    let mut rig = Rig::new();
    let (mw, qpn) = (rig.window(MwType::Type1), rig.qpn());
    let bind =
        MwBind { wr_id: 10, flags: SendFlags::SIGNALED, mr: rig.mr, addr: BASE, length: 64, access: Access::REMOTE_READ };
    for n in 0..8 {
        rig.verbs.post_send(rig.qp, &send(n, &[])).unwrap();
    }
    assert!(rig.device().execute(qpn));
    let mut queue = rig.verbs.take_cq(rig.cq).unwrap();
    let mut completions = queue.completions();
    assert_eq!(completions.next().unwrap().unwrap().wr_id, 0);
    rig.step(rig.qp, QpState::Reset);
    assert_eq!(completions.next(), None);
    rig.connect(rig.qp);
    rig.verbs.post_send(rig.qp, &crate::SendWr { flags: SendFlags::empty(), ..send(9, &[]) }).unwrap();
    rig.verbs.bind_mw(rig.qp, mw, &bind).unwrap();
    while rig.device().execute(qpn) {}
    assert_eq!(completions.next().unwrap().unwrap().wr_id, 10);
    rig.verbs.dealloc_mw(mw).unwrap();
}

#[test]
fn the_place_of_a_queue_pair_that_is_gone_is_free_when_its_completions_are() {
    let mut rig = Rig::new();
    let other = rig.verbs.create_qp(&rig.init(QpType::Rc)).unwrap();
    let qpn = rig.qpn();
    for n in 0..2 {
        rig.verbs.post_send(rig.qp, &send(n, &[])).unwrap();
    }
    while rig.device().execute(qpn) {}
    let mut queue = rig.verbs.take_cq(rig.cq).unwrap();
    rig.verbs.destroy_qp(rig.qp).unwrap();
    assert!(rig.verbs.qp(rig.qp).is_err());
    let error = rig.verbs.create_qp(&rig.init(QpType::Rc)).unwrap_err();
    assert_eq!((error, error.errno()), (CreateQpError::Draining, Errno::Eagain));
    assert_eq!(ids(&mut queue), []);
    let next = rig.verbs.create_qp(&rig.init(QpType::Rc)).unwrap();
    assert_eq!(rig.verbs.qp(next).unwrap().qpn, qpn, "the number came again");
    rig.connect(next);
    rig.verbs.post_send(next, &send(10, &[])).unwrap();
    assert!(rig.device().execute(qpn));
    let done = queue.completions().next().unwrap().unwrap();
    assert_eq!((done.wr_id, done.qp), (10, next));
    assert_eq!(rig.verbs.create_qp(&rig.init(QpType::Rc)), Err(CreateQpError::Full), "nothing is draining");
    rig.verbs.destroy_qp(other).unwrap();
}

/// The number of a queue pair comes again at another place, while stale completions are still in the queue. They come before
/// all of the new one, which does not leave RESET until they are gone: with cookies and without.
#[test]
fn old_completions_are_not_taken_for_those_of_another_queue_pair_with_the_number() {
    for (is_without_cookies, place) in [(false, 0), (false, 1), (true, 0), (true, 1)] {
        let mut rig = Rig::new();
        if place == 1 {
            // The other place is the one before.
            let other = rig.verbs.create_qp(&rig.init(QpType::Rc)).unwrap();
            rig.verbs.destroy_qp(rig.qp).unwrap();
            rig.qp = other;
            rig.connect(other);
        }
        assert_eq!(rig.qp.index(), place);
        rig.device().is_without_cookies = is_without_cookies;
        let qpn = rig.qpn();
        for n in 0..2 {
            rig.verbs.post_send(rig.qp, &send(n, &[])).unwrap();
        }
        while rig.device().execute(qpn) {}
        let mut queue = rig.verbs.take_cq(rig.cq).unwrap();
        rig.verbs.destroy_qp(rig.qp).unwrap();
        rig.device().next_qpn = Some(qpn);
        rig.qp = rig.verbs.create_qp(&rig.init(QpType::Rc)).unwrap();
        assert_eq!((rig.verbs.qp(rig.qp).unwrap().qpn, rig.qp.index()), (qpn, 1 - place));
        assert_eq!(initialize(&mut rig), Err(ModifyQpError::Draining));
        assert_eq!(ids(&mut queue), []);
        rig.connect(rig.qp);
        for n in 10..12 {
            rig.verbs.post_send(rig.qp, &send(n, &[])).unwrap();
        }
        while rig.device().execute(qpn) {}
        assert_eq!(ids(&mut queue), [10, 11], "{is_without_cookies} {place}");
        assert_eq!(rig.verbs.qp(rig.qp).unwrap().send_blocks, 0);
    }
}

/// One queue at hand drops what it has at once; the number is that of a queue pair in the other one too.
#[test]
fn a_number_that_drains_in_one_queue_is_known_in_another() {
    let mut rig = Rig::new();
    rig.device().is_without_cookies = true;
    let qpn = rig.qpn();
    rig.verbs.post_send(rig.qp, &send(1, &[])).unwrap();
    assert!(rig.device().execute(qpn));
    let mut old = rig.verbs.take_cq(rig.cq).unwrap();
    rig.verbs.destroy_qp(rig.qp).unwrap();
    rig.cq = rig.verbs.create_cq(16).unwrap();
    rig.device().next_qpn = Some(qpn);
    rig.qp = rig.verbs.create_qp(&rig.init(QpType::Rc)).unwrap();
    assert_eq!(rig.qpn(), qpn);
    assert_eq!(initialize(&mut rig), Err(ModifyQpError::Draining));
    assert_eq!(ids(&mut old), []);
    rig.connect(rig.qp);
    rig.verbs.post_send(rig.qp, &send(2, &[])).unwrap();
    assert!(rig.device().execute(qpn));
    assert_eq!(rig.poll_ids(), [2]);
    assert_eq!(ids(&mut old), []);
}

/// Sends and receives complete into two queues, and one of them is at hand: only the other one is to be polled.
#[test]
fn each_queue_that_is_out_is_drained_for_itself() {
    let mut rig = Rig::new();
    rig.verbs.destroy_qp(rig.qp).unwrap();
    let recv_cq = rig.verbs.create_cq(16).unwrap();
    rig.qp = rig.verbs.create_qp(&QpInit { recv_cq, ..rig.init(QpType::Rc) }).unwrap();
    rig.connect(rig.qp);
    let qpn = rig.qpn();
    rig.verbs.post_send(rig.qp, &send(1, &[])).unwrap();
    rig.verbs.post_recv(rig.qp, &crate::RecvWr { wr_id: 2, sges: &[] }).unwrap();
    assert!(rig.device().execute(qpn));
    rig.device().break_qp(qpn);
    assert!(rig.device().flush_receive(qpn));
    let mut queue = rig.verbs.take_cq(recv_cq).unwrap();
    rig.step(rig.qp, QpState::Reset);
    assert_eq!(rig.poll_ids(), [], "cleaned at once");
    assert_eq!(initialize(&mut rig), Err(ModifyQpError::Draining));
    assert_eq!(ids(&mut queue), []);
    initialize(&mut rig).unwrap();
}

/// Receives are dropped as sends are, and nothing stale is counted or returned meanwhile.
#[test]
fn receives_of_before_are_dropped_too() {
    let mut rig = Rig::new();
    for wr_id in 0..3 {
        rig.verbs.post_recv(rig.qp, &crate::RecvWr { wr_id, sges: &[] }).unwrap();
    }
    let raw = rig.raw(crate::RawKind::Recv, 0, WcStatus::Success);
    rig.push(raw);
    let mut queue = rig.verbs.take_cq(rig.cq).unwrap();
    rig.step(rig.qp, QpState::Reset);
    assert_eq!(rig.verbs.qp(rig.qp).unwrap().recvs, 0);
    assert_eq!(ids(&mut queue), []);
    rig.connect(rig.qp);
    rig.verbs.post_recv(rig.qp, &crate::RecvWr { wr_id: 10, sges: &[] }).unwrap();
    assert_eq!(rig.verbs.qp(rig.qp).unwrap().recvs, 1);
}

/// What a completion says of a bind is known before the queue pair is reset, or the device is asked: never both.
#[test]
fn a_dropped_completion_of_a_bind_ends_no_bind_of_the_next_life() {
    let mut rig = Rig::new();
    let (mw, qpn) = (rig.window(MwType::Type1), rig.qpn());
    let bind = MwBind { wr_id: 1, flags: SendFlags::SIGNALED, mr: rig.mr, addr: BASE, length: 64, access: Access::REMOTE_READ };
    let key = rig.verbs.bind_mw(rig.qp, mw, &bind).unwrap();
    assert!(rig.device().execute(qpn));
    let mut queue = rig.verbs.take_cq(rig.cq).unwrap();
    rig.step(rig.qp, QpState::Reset);
    assert_eq!((rig.verbs.mw(mw).unwrap().rkey, rig.binds()), (key, 0));
    assert_eq!(ids(&mut queue), []);
    rig.connect(rig.qp);
    rig.verbs.bind_mw(rig.qp, mw, &bind).unwrap();
    assert_eq!(rig.binds(), 1);
    rig.device().break_qp(qpn);
    assert!(rig.device().execute(qpn));
    let done = queue.completions().next().unwrap().unwrap();
    assert_eq!((done.wr_id, done.status), (1, WcStatus::WrFlushErr));
    assert_eq!((rig.verbs.mw(mw).unwrap().rkey, rig.binds()), (key, 0));
}

/// A queue that is out and broken never gets empty of what it does not get; its error comes at its end.
#[test]
fn a_broken_queue_is_drained_too() {
    let mut rig = Rig::new();
    let (qpn, cqn) = (rig.qpn(), rig.cqn());
    rig.verbs.post_send(rig.qp, &send(1, &[])).unwrap();
    assert!(rig.device().execute(qpn));
    let mut queue = rig.verbs.take_cq(rig.cq).unwrap();
    rig.step(rig.qp, QpState::Reset);
    rig.device().is_broken = true;
    assert!(rig.verbs.maintain().is_err());
    let error = queue.completions().next().unwrap();
    assert_eq!(error, Err(PollCqError::Broken { cqn, syndrome: 0xff }));
    initialize(&mut rig).unwrap();
}

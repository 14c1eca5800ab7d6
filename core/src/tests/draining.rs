//! Queue pairs that are reset or destroyed. Their completion queues drop their completions when they are polled, and their slots
//! and rings are reused only after that.

use super::mock::Mock;
use super::post::send;
use super::{BASE, Harness, attributes};
use crate::backend::AsyncEvent;
use crate::error::{CreateQpError, Errno, ModifyQpError, PollCqError};
use crate::{Access, CompletionQueue, Event, MwType, QpAttrMask, QpInit, QpState, QpType, SendFlags, Type1Bind, WcStatus};

fn ids(queue: &mut CompletionQueue<'static, Mock>) -> std::vec::Vec<u64> {
    queue.completions().map(|done| done.unwrap().wr_id).collect()
}

/// Moves the queue pair from RESET to INIT.
fn initialize(harness: &mut Harness) -> Result<(), ModifyQpError<super::MockError>> {
    let required = QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::ACCESS_FLAGS;
    harness.verbs.verbs_mut().modify_qp(harness.qp, &attributes(QpState::Init), QpAttrMask::STATE | required)
}

#[test]
fn after_reset_the_queue_is_polled_empty_before_the_queue_pair_goes_on() {
    let mut harness = Harness::new();
    let qpn = harness.qpn();
    for n in 0..3 {
        harness.verbs.post_send(harness.qp, &send(n, &[])).unwrap();
    }
    while harness.device().execute(qpn) {}
    let mut queue = harness.verbs.take_cq(harness.cq);
    harness.step(harness.qp, QpState::Reset);
    let error = initialize(&mut harness).unwrap_err();
    assert_eq!((error, error.errno()), (ModifyQpError::Draining, Errno::Eagain));
    assert_eq!(harness.verbs.qp_info(harness.qp).unwrap().state, QpState::Reset);
    // Of the old completions none is given.
    assert_eq!(ids(&mut queue), []);
    harness.connect(harness.qp);
    harness.verbs.post_send(harness.qp, &send(10, &[])).unwrap();
    assert!(harness.device().execute(qpn));
    assert_eq!(ids(&mut queue), [10]);
}

/// Completions of other queue pairs, and a queue that is only partly polled, say nothing about the old ones.
/// A marker takes one block of the mock device.
#[test]
fn a_marker_takes_the_last_block() {
    let mut harness = Harness::new();
    for n in 0..15 {
        harness.verbs.post_send(harness.qp, &super::post::send(n, &[])).unwrap();
    }
    assert!(harness.verbs.send(harness.qp).post_marker());
    assert_eq!(harness.device().sent.len(), 16);
    assert!(!harness.verbs.send(harness.qp).post_marker());
    assert_eq!(harness.device().sent.len(), 16);
}

#[test]
fn a_queue_that_was_not_found_empty_is_not_drained() {
    let mut harness = Harness::new();
    let other = harness.verbs.create_qp(&harness.init(QpType::Rc)).unwrap();
    harness.connect(other);
    let (qpn, other_qpn) = (harness.qpn(), harness.verbs.qp_info(other).unwrap().qpn);
    for n in 0..2 {
        harness.verbs.post_send(harness.qp, &send(n, &[])).unwrap();
        harness.verbs.post_send(other, &send(10 + n, &[])).unwrap();
        assert!(harness.device().execute(qpn));
        assert!(harness.device().execute(other_qpn));
    }
    let mut queue = harness.verbs.take_cq(harness.cq);
    harness.step(harness.qp, QpState::Reset);
    for n in 0..2 {
        let mut out = [crate::Completion::EMPTY];
        assert_eq!(queue.poll(&mut out), Ok(1));
        assert_eq!(out[0].wr_id, 10 + n);
        assert_eq!(initialize(&mut harness), Err(ModifyQpError::Draining), "the queue may hold more");
    }
    assert_eq!(queue.poll(&mut [crate::Completion::EMPTY]), Ok(0));
    initialize(&mut harness).unwrap();
}

/// Completions are being taken while the queue pair is reset: no stale one is returned after, and the send queue has room for
/// as many requests as before.
#[test]
fn completions_that_are_being_taken_end_with_the_reset() {
    let mut harness = Harness::new();
    let qpn = harness.qpn();
    for n in 0..8 {
        harness.verbs.post_send(harness.qp, &send(n, &[])).unwrap();
    }
    while harness.device().execute(qpn) {}
    let mut queue = harness.verbs.take_cq(harness.cq);
    let mut completions = queue.completions();
    assert_eq!(completions.next().unwrap().unwrap().wr_id, 0);
    harness.step(harness.qp, QpState::Reset);
    assert_eq!(completions.next(), None);
    drop(completions);
    harness.connect(harness.qp);
    assert_eq!(harness.verbs.send_batch(harness.qp).free_blocks(), 16);
}

/// The same completions continue after the RESET of the queue pair. A request is then a bind at an index that had none.
#[test]
fn completions_that_are_being_taken_go_on_after_the_reset() {
    let mut harness = Harness::new();
    let (mw, qpn) = (harness.window(MwType::Type1), harness.qpn());
    let bind = Type1Bind {
        wr_id: 10,
        flags: SendFlags::SIGNALED,
        mr: harness.mr,
        addr: BASE,
        length: 64,
        access: Access::REMOTE_READ,
    };
    for n in 0..8 {
        harness.verbs.post_send(harness.qp, &send(n, &[])).unwrap();
    }
    assert!(harness.device().execute(qpn));
    let mut queue = harness.verbs.take_cq(harness.cq);
    let mut completions = queue.completions();
    assert_eq!(completions.next().unwrap().unwrap().wr_id, 0);
    harness.step(harness.qp, QpState::Reset);
    assert_eq!(completions.next(), None);
    harness.connect(harness.qp);
    harness.verbs.post_send(harness.qp, &crate::SendWr { flags: SendFlags::empty(), ..send(9, &[]) }).unwrap();
    harness.verbs.bind_type1(harness.qp, mw, &bind).unwrap();
    while harness.device().execute(qpn) {}
    assert_eq!(completions.next().unwrap().unwrap().wr_id, 10);
    harness.verbs.dealloc_mw(mw).unwrap();
}

#[test]
fn the_place_of_a_queue_pair_that_is_gone_is_free_when_its_completions_are() {
    let mut harness = Harness::new();
    let other = harness.verbs.create_qp(&harness.init(QpType::Rc)).unwrap();
    let qpn = harness.qpn();
    for n in 0..2 {
        harness.verbs.post_send(harness.qp, &send(n, &[])).unwrap();
    }
    while harness.device().execute(qpn) {}
    let mut queue = harness.verbs.take_cq(harness.cq);
    harness.verbs.destroy_qp(harness.qp).unwrap();
    assert!(harness.verbs.qp_info(harness.qp).is_err());
    let error = harness.verbs.create_qp(&harness.init(QpType::Rc)).unwrap_err();
    assert_eq!((error, error.errno()), (CreateQpError::Draining, Errno::Eagain));
    assert_eq!(ids(&mut queue), []);
    let next = harness.verbs.create_qp(&harness.init(QpType::Rc)).unwrap();
    assert_eq!(harness.verbs.qp_info(next).unwrap().qpn, qpn, "the number came again");
    harness.connect(next);
    harness.verbs.post_send(next, &send(10, &[])).unwrap();
    assert!(harness.device().execute(qpn));
    let done = queue.completions().next().unwrap().unwrap();
    assert_eq!((done.wr_id, done.qp), (10, next));
    assert_eq!(
        harness.verbs.create_qp(&harness.init(QpType::Rc)),
        Err(CreateQpError::Full { capacity: 2, fitting: 2 }),
        "nothing is draining"
    );
    harness.verbs.destroy_qp(other).unwrap();
}

/// The number of a queue pair is reused in another slot while stale completions are still in the queue. They come before all of
/// the new one, which does not leave RESET until they are gone: with cookies and without.
#[test]
fn old_completions_are_not_taken_for_those_of_another_queue_pair_with_the_number() {
    for (is_without_cookies, place) in [(false, 0), (false, 1), (true, 0), (true, 1)] {
        let mut harness = Harness::new();
        if place == 1 {
            // The other place is the one before.
            let other = harness.verbs.create_qp(&harness.init(QpType::Rc)).unwrap();
            harness.verbs.destroy_qp(harness.qp).unwrap();
            harness.poll_ids();
            harness.qp = other;
            harness.connect(other);
        }
        assert_eq!(harness.qp.index(), place);
        harness.device().is_without_cookies = is_without_cookies;
        let qpn = harness.qpn();
        for n in 0..2 {
            harness.verbs.post_send(harness.qp, &send(n, &[])).unwrap();
        }
        while harness.device().execute(qpn) {}
        let mut queue = harness.verbs.take_cq(harness.cq);
        harness.verbs.destroy_qp(harness.qp).unwrap();
        harness.device().next_qpn = Some(qpn);
        harness.qp = harness.verbs.create_qp(&harness.init(QpType::Rc)).unwrap();
        assert_eq!((harness.verbs.qp_info(harness.qp).unwrap().qpn, harness.qp.index()), (qpn, 1 - place));
        assert_eq!(initialize(&mut harness), Err(ModifyQpError::Draining));
        assert_eq!(ids(&mut queue), []);
        harness.connect(harness.qp);
        for n in 10..12 {
            harness.verbs.post_send(harness.qp, &send(n, &[])).unwrap();
        }
        while harness.device().execute(qpn) {}
        assert_eq!(ids(&mut queue), [10, 11], "{is_without_cookies} {place}");
        assert_eq!(harness.verbs.qp_info(harness.qp).unwrap().send_blocks, 0);
    }
}

/// The number is that of a queue pair in another queue too.
#[test]
fn a_number_that_drains_in_one_queue_is_known_in_another() {
    let mut harness = Harness::new();
    harness.device().is_without_cookies = true;
    let qpn = harness.qpn();
    harness.verbs.post_send(harness.qp, &send(1, &[])).unwrap();
    assert!(harness.device().execute(qpn));
    let mut old = harness.verbs.take_cq(harness.cq);
    harness.verbs.destroy_qp(harness.qp).unwrap();
    harness.cq = harness.verbs.create_cq(16).unwrap();
    harness.device().next_qpn = Some(qpn);
    harness.qp = harness.verbs.create_qp(&harness.init(QpType::Rc)).unwrap();
    assert_eq!(harness.qpn(), qpn);
    assert_eq!(initialize(&mut harness), Err(ModifyQpError::Draining));
    assert_eq!(ids(&mut old), []);
    harness.connect(harness.qp);
    harness.verbs.post_send(harness.qp, &send(2, &[])).unwrap();
    assert!(harness.device().execute(qpn));
    assert_eq!(harness.poll_ids(), [2]);
    assert_eq!(ids(&mut old), []);
}

/// Sends and receives complete into two queues: both are to be polled.
#[test]
fn each_queue_that_is_out_is_drained_for_itself() {
    let mut harness = Harness::new();
    harness.verbs.destroy_qp(harness.qp).unwrap();
    assert_eq!(harness.poll_ids(), []);
    let recv_cq = harness.verbs.create_cq(16).unwrap();
    harness.qp = harness.verbs.create_qp(&QpInit { recv_cq, ..harness.init(QpType::Rc) }).unwrap();
    harness.connect(harness.qp);
    let qpn = harness.qpn();
    harness.verbs.post_send(harness.qp, &send(1, &[])).unwrap();
    harness.verbs.post_recv(harness.qp, &crate::RecvWr { wr_id: 2, sges: &[] }).unwrap();
    assert!(harness.device().execute(qpn));
    harness.device().break_qp(qpn);
    assert!(harness.device().flush_receive(qpn));
    let mut queue = harness.verbs.take_cq(recv_cq);
    harness.step(harness.qp, QpState::Reset);
    assert_eq!(initialize(&mut harness), Err(ModifyQpError::Draining));
    assert_eq!(harness.poll_ids(), []);
    assert_eq!(initialize(&mut harness), Err(ModifyQpError::Draining));
    assert_eq!(ids(&mut queue), []);
    initialize(&mut harness).unwrap();
}

/// Receives are dropped as sends are, and nothing stale is counted or returned meanwhile.
#[test]
fn stale_receives_are_dropped_too() {
    let mut harness = Harness::new();
    for wr_id in 0..3 {
        harness.verbs.post_recv(harness.qp, &crate::RecvWr { wr_id, sges: &[] }).unwrap();
    }
    let raw = harness.raw(crate::error::RawKind::Recv, 0, WcStatus::Success);
    harness.push(raw);
    let mut queue = harness.verbs.take_cq(harness.cq);
    harness.step(harness.qp, QpState::Reset);
    assert_eq!(harness.verbs.qp_info(harness.qp).unwrap().recvs, 0);
    assert_eq!(ids(&mut queue), []);
    harness.connect(harness.qp);
    harness.verbs.post_recv(harness.qp, &crate::RecvWr { wr_id: 10, sges: &[] }).unwrap();
    assert_eq!(harness.verbs.qp_info(harness.qp).unwrap().recvs, 1);
}

/// A bind ends by its completion before the queue pair is reset, or by a query of the device: never by both.
#[test]
fn a_dropped_completion_of_a_bind_ends_no_later_bind() {
    let mut harness = Harness::new();
    let (mw, qpn) = (harness.window(MwType::Type1), harness.qpn());
    let bind =
        Type1Bind { wr_id: 1, flags: SendFlags::SIGNALED, mr: harness.mr, addr: BASE, length: 64, access: Access::REMOTE_READ };
    let key = harness.verbs.bind_type1(harness.qp, mw, &bind).unwrap();
    assert!(harness.device().execute(qpn));
    let mut queue = harness.verbs.take_cq(harness.cq);
    harness.step(harness.qp, QpState::Reset);
    assert_eq!((harness.verbs.mw_info(mw).unwrap().rkey, harness.binds()), (key, 0));
    assert_eq!(ids(&mut queue), []);
    harness.connect(harness.qp);
    harness.verbs.bind_type1(harness.qp, mw, &bind).unwrap();
    assert_eq!(harness.binds(), 1);
    harness.device().break_qp(qpn);
    assert!(harness.device().execute(qpn));
    let done = queue.completions().next().unwrap().unwrap();
    assert_eq!((done.wr_id, done.status), (1, WcStatus::WrFlushErr));
    assert_eq!((harness.verbs.mw_info(mw).unwrap().rkey, harness.binds()), (key, 0));
}

/// A broken queue that is split off returns its error at its end, and is drained then: no further completion comes.
#[test]
fn a_broken_queue_is_drained_too() {
    let mut harness = Harness::new();
    let (qpn, cqn) = (harness.qpn(), harness.cqn());
    harness.verbs.post_send(harness.qp, &send(1, &[])).unwrap();
    assert!(harness.device().execute(qpn));
    let mut queue = harness.verbs.take_cq(harness.cq);
    harness.step(harness.qp, QpState::Reset);
    harness.device().events.push_back(AsyncEvent::CqError(cqn, 1));
    assert_eq!(harness.verbs.poll_event(), Ok(Some(Event::CqError(harness.cq, 1))));
    let error = queue.completions().next().unwrap();
    assert_eq!(error, Err(PollCqError::Broken { cqn, syndrome: 1, entries: 64 }));
    initialize(&mut harness).unwrap();
}

/// A device that writes stale completions as fast as they are dropped does not keep the poller.
#[test]
fn a_flood_of_stale_completions_ends_the_poll() {
    let mut harness = Harness::new();
    harness.verbs.post_send(harness.qp, &send(1, &[])).unwrap();
    assert!(harness.device().execute(harness.qpn()));
    harness.step(harness.qp, QpState::Reset);
    harness.device().floods = 1000;
    assert_eq!(harness.poll_ids(), []);
    let entries = harness.verbs.cq_info(harness.cq).unwrap().entries;
    let taken = 1000 - harness.device().floods;
    assert!(taken <= entries + 1, "one poll took {taken} completions of a queue of {entries}");
}

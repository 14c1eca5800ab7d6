//! Rings of requests in flight: who posts fills them, who polls empties them.

use loom::thread;
use std::vec::Vec;

use super::device::Device;
use super::{Harness, send};
use crate::error::PollCqError;
use crate::sync::modelled::check;
use crate::{Completion, CompletionQueue, QueuePair, RecvWr};

/// Takes one completion.
fn poll(queue: &mut CompletionQueue<'static, Device>) -> Result<Option<u64>, PollCqError> {
    let mut out = [Completion::EMPTY];
    Ok(if queue.poll(&mut out)? == 0 { None } else { Some(out[0].wr_id) })
}

/// The device has completed it, so the request is found: `head` is published before the doorbell.
#[test]
fn a_completion_finds_its_send() {
    check(|| {
        let mut harness = Harness::new(true);
        let (QueuePair { send: mut sends, .. }, mut queue) =
            (harness.verbs.take_qp(harness.qp), harness.verbs.take_cq(harness.cq));
        let sender = thread::spawn(move || {
            for wr_id in 1..=2 {
                sends.post(&send(wr_id)).unwrap();
            }
        });
        let mut given: Vec<u64> = (0..2).filter_map(|_| poll(&mut queue).unwrap()).collect();
        sender.join().unwrap();
        while let Some(wr_id) = poll(&mut queue).unwrap() {
            given.push(wr_id);
        }
        assert_eq!(given, [1, 2]);
    });
}

#[test]
fn a_completion_finds_its_receive() {
    check(|| {
        let mut harness = Harness::new(true);
        let (QueuePair { recv: mut recvs, .. }, mut queue) =
            (harness.verbs.take_qp(harness.qp), harness.verbs.take_cq(harness.cq));
        let receiver = thread::spawn(move || {
            for wr_id in 1..=2 {
                recvs.post(&RecvWr { wr_id, sges: &[] }).unwrap();
            }
        });
        let mut given: Vec<u64> = (0..2).filter_map(|_| poll(&mut queue).unwrap()).collect();
        receiver.join().unwrap();
        while let Some(wr_id) = poll(&mut queue).unwrap() {
            given.push(wr_id);
        }
        assert_eq!(given, [1, 2]);
    });
}

/// A device that may complete anything: the completion is of no request, or of the right one. A reader that sees `head` sees
/// the request.
#[test]
fn a_request_is_whole_when_the_head_is_past_it() {
    check(|| {
        let mut harness = Harness::new(false);
        let (QueuePair { send: mut sends, .. }, mut queue) =
            (harness.verbs.take_qp(harness.qp), harness.verbs.take_cq(harness.cq));
        // The place was used before.
        sends.post(&send(u64::MAX)).unwrap();
        sends.post(&send(u64::MAX)).unwrap();
        assert_eq!((poll(&mut queue), poll(&mut queue)), (Ok(Some(u64::MAX)), Ok(Some(u64::MAX))));
        let sender = thread::spawn(move || sends.post(&send(7)).unwrap());
        match poll(&mut queue) {
            Ok(None | Some(7)) | Err(PollCqError::UnknownRequest { .. }) => {}
            wrong => panic!("{wrong:?}"),
        }
        sender.join().unwrap();
    });
}

#[test]
fn a_receive_is_whole_when_the_head_is_past_it() {
    check(|| {
        let mut harness = Harness::new(false);
        let (QueuePair { recv: mut recvs, .. }, mut queue) =
            (harness.verbs.take_qp(harness.qp), harness.verbs.take_cq(harness.cq));
        let receiver = thread::spawn(move || recvs.post(&RecvWr { wr_id: 7, sges: &[] }).unwrap());
        match poll(&mut queue) {
            Ok(None | Some(7)) | Err(PollCqError::UnknownRequest { .. }) => {}
            wrong => panic!("{wrong:?}"),
        }
        receiver.join().unwrap();
    });
}

/// A full ring: a place is not written again before its request was taken.
#[test]
fn a_place_is_used_again_when_its_request_was_taken() {
    check(|| {
        let mut harness = Harness::new(true);
        let (QueuePair { send: mut sends, .. }, mut queue) =
            (harness.verbs.take_qp(harness.qp), harness.verbs.take_cq(harness.cq));
        for wr_id in 1..=2 {
            sends.post(&send(wr_id)).unwrap();
        }
        let sender = thread::spawn(move || {
            while sends.post(&send(3)).is_err() {
                thread::yield_now();
            }
        });
        assert_eq!((poll(&mut queue), poll(&mut queue)), (Ok(Some(1)), Ok(Some(2))));
        sender.join().unwrap();
        assert_eq!(poll(&mut queue), Ok(Some(3)));
    });
}

/// Whoever destroys a queue pair that was dropped sees all that its poster did, and nothing of it comes after.
#[test]
fn what_a_poster_did_comes_before_its_queues_are_dropped() {
    check(|| {
        let mut harness = Harness::new(false);
        harness.verbs.provider().be_silent();
        let mut qp = harness.verbs.take_qp(harness.qp);
        let poster = thread::spawn(move || {
            qp.send.post(&send(1)).unwrap();
            qp.recv.post(&RecvWr { wr_id: 2, sges: &[] }).unwrap();
        });
        for _ in 0..2 {
            if harness.verbs.destroy_dropped_qp(harness.qp).is_ok() {
                let slot = &harness.verbs.shared.qps[0];
                let heads = [&slot.send, &slot.recv].map(|ring| ring.head.load(crate::sync::Ordering::Relaxed));
                assert_eq!(heads, [1, 1]);
                break;
            }
            thread::yield_now();
        }
        poster.join().unwrap();
    });
}

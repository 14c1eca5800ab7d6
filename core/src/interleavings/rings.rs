//! Rings of requests in flight: who posts fills them, who polls empties them.

use loom::thread;
use std::vec::Vec;

use super::device::Device;
use super::{Harness, send};
use crate::sync::modelled::check;
use crate::{Completion, CompletionQueue, PollCqError, RecvWr};

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
        let (mut sends, mut queue) =
            (harness.verbs.take_send_queue(harness.qp).unwrap(), harness.verbs.take_cq(harness.cq).unwrap());
        let sender = thread::spawn(move || {
            for wr_id in 1..=2 {
                sends.post_send(&send(wr_id)).unwrap();
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
        let (mut recvs, mut queue) =
            (harness.verbs.take_recv_queue(harness.qp).unwrap(), harness.verbs.take_cq(harness.cq).unwrap());
        let receiver = thread::spawn(move || {
            for wr_id in 1..=2 {
                recvs.post_recv(&RecvWr { wr_id, sges: &[] }).unwrap();
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
        let (mut sends, mut queue) =
            (harness.verbs.take_send_queue(harness.qp).unwrap(), harness.verbs.take_cq(harness.cq).unwrap());
        // The place was used before.
        sends.post_send(&send(u64::MAX)).unwrap();
        sends.post_send(&send(u64::MAX)).unwrap();
        assert_eq!((poll(&mut queue), poll(&mut queue)), (Ok(Some(u64::MAX)), Ok(Some(u64::MAX))));
        let sender = thread::spawn(move || sends.post_send(&send(7)).unwrap());
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
        let (mut recvs, mut queue) =
            (harness.verbs.take_recv_queue(harness.qp).unwrap(), harness.verbs.take_cq(harness.cq).unwrap());
        let receiver = thread::spawn(move || recvs.post_recv(&RecvWr { wr_id: 7, sges: &[] }).unwrap());
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
        let (mut sends, mut queue) =
            (harness.verbs.take_send_queue(harness.qp).unwrap(), harness.verbs.take_cq(harness.cq).unwrap());
        for wr_id in 1..=2 {
            sends.post_send(&send(wr_id)).unwrap();
        }
        let sender = thread::spawn(move || {
            while sends.post_send(&send(3)).is_err() {
                thread::yield_now();
            }
        });
        assert_eq!((poll(&mut queue), poll(&mut queue)), (Ok(Some(1)), Ok(Some(2))));
        sender.join().unwrap();
        assert_eq!(poll(&mut queue), Ok(Some(3)));
    });
}

//! The device is lost while other cores post and poll.

use loom::thread;
use std::vec::Vec;

use super::{Harness, send};
use crate::error::{DeviceLoss, PollCqError, PostRecvError, PostSendError};
use crate::sync::modelled::check;
use crate::{Completion, CompletionQueue, QueuePair, RecvWr, WcStatus};

use super::device::Device;

/// Polls until the queue says that the device is lost, `times` at most; adds the `wr_id`s.
fn take(queue: &mut CompletionQueue<'static, Device>, times: usize, given: &mut Vec<u64>) {
    let mut out = [Completion::EMPTY; 2];
    for _ in 0..times {
        match queue.poll(&mut out) {
            Ok(count) => given.extend(out[..count].iter().map(|done| {
                assert_eq!(done.loss().is_some(), done.status == WcStatus::WrFlushErr);
                done.wr_id
            })),
            Err(error) => {
                assert_eq!(error, PollCqError::DeviceLost { loss: DeviceLoss::Fatal });
                return;
            }
        }
    }
}

/// One core posts, one polls, and the third finds the loss. Each request that was posted is given once, be it posted before or
/// after the loss was found; `silent`: the device has completed none.
fn each_request_is_given_once(silent: bool) {
    check(move || {
        let mut harness = Harness::new(true);
        let QueuePair { send: mut sends, recv: mut recvs } = harness.verbs.take_qp(harness.qp);
        let mut queue = harness.verbs.take_cq(harness.cq);
        if silent {
            harness.verbs.provider().be_silent();
        }
        recvs.post(&RecvWr { wr_id: 1, sges: &[] }).unwrap();
        let poster = thread::spawn(move || match sends.post(&send(2)) {
            Ok(()) => true,
            Err(error) => {
                assert_eq!(error, PostSendError::DeviceLost { loss: DeviceLoss::Fatal });
                false
            }
        });
        let poller = thread::spawn(move || {
            let mut given = Vec::new();
            take(&mut queue, 2, &mut given);
            (queue, given)
        });
        harness.verbs.provider().lose();
        assert!(harness.verbs.maintain().is_err());
        let posted = poster.join().unwrap();
        let (mut queue, mut given) = poller.join().unwrap();
        take(&mut queue, 5, &mut given);
        given.sort_unstable();
        assert_eq!(given, if posted { std::vec![1, 2] } else { std::vec![1] });
        let refused = recvs.post(&RecvWr { wr_id: 3, sges: &[] });
        assert_eq!(refused, Err(PostRecvError::DeviceLost { loss: DeviceLoss::Fatal }));
    });
}

#[test]
fn each_request_is_flushed_once() {
    each_request_is_given_once(true);
}

#[test]
fn each_request_is_completed_or_flushed_once() {
    each_request_is_given_once(false);
}

//! Who waits for a completion is woken.

use loom::future::block_on;
use loom::thread;

use super::{Harness, send};
use crate::sync::modelled::check;
use crate::{Completion, Event, QueuePair};

/// A lost wake-up would be a deadlock of the model. The first completion may come before the queue is armed, while it is, or
/// after; the event of an earlier arm may be taken at any time.
#[test]
fn an_event_wakes_the_poller() {
    check(|| {
        let mut harness = Harness::new(true);
        let (QueuePair { send: mut sends, .. }, mut queue) =
            (harness.verbs.take_qp(harness.qp), harness.verbs.take_cq(harness.cq));
        let mut handler = harness.verbs.take_interrupt_handler().unwrap();
        let device = thread::spawn(move || {
            for wr_id in 1..=2 {
                sends.post(&send(wr_id)).unwrap();
                handler.on_interrupt(1);
            }
        });
        let mut given = 0;
        while given < 2 {
            block_on(queue.ready());
            given += queue.poll(&mut [Completion::EMPTY; 2]).unwrap();
        }
        device.join().unwrap();
        harness.forget_waker();
    });
}

/// The reset of a queue pair wakes its poller, since nothing else would make it poll.
#[test]
fn a_reset_wakes_the_poller() {
    check(|| {
        let mut harness = Harness::new(true);
        harness.verbs.post_send(harness.qp, &send(1)).unwrap();
        let mut queue = harness.verbs.take_cq(harness.cq);
        // More completions may wait, so that the queue has to be polled after the reset.
        assert_eq!(queue.poll(&mut [Completion::EMPTY]), Ok(1));
        let poller = thread::spawn(move || {
            block_on(queue.ready());
            assert_eq!(queue.poll(&mut [Completion::EMPTY]), Ok(0));
        });
        harness.reset();
        poller.join().unwrap();
        harness.forget_waker();
        assert!(harness.leaves_reset());
    });
}

/// The loss of the device wakes the poller.
#[test]
fn a_lost_device_wakes_the_poller() {
    check(|| {
        let mut harness = Harness::new(true);
        let mut queue = harness.verbs.take_cq(harness.cq);
        let poller = thread::spawn(move || {
            block_on(queue.ready());
            assert!(queue.poll(&mut [Completion::EMPTY]).is_err());
        });
        harness.verbs.provider().lose();
        assert!(harness.verbs.maintain().is_err());
        poller.join().unwrap();
        harness.forget_waker();
    });
}

/// A completion that the control path does not report as an event could be polled when it reported the last one.
#[test]
fn an_event_is_reported_after_its_completion() {
    check(|| {
        let mut harness = Harness::new(true);
        let (QueuePair { send: mut sends, .. }, mut queue) =
            (harness.verbs.take_qp(harness.qp), harness.verbs.take_cq(harness.cq));
        let mut handler = harness.verbs.take_interrupt_handler().unwrap();
        // Armed twice, as by a thread that polls from time to time.
        queue.req_notify(false).unwrap();
        sends.post(&send(1)).unwrap();
        handler.on_interrupt(1);
        queue.req_notify(false).unwrap();
        let device = thread::spawn(move || {
            sends.post(&send(2)).unwrap();
            handler.on_interrupt(1);
        });
        assert_eq!(harness.verbs.poll_event(), Ok(Some(Event::Completion(harness.cq))));
        let given = queue.poll(&mut [Completion::EMPTY; 2]).unwrap();
        device.join().unwrap();
        if given == 1 {
            assert_eq!(harness.verbs.poll_event(), Ok(Some(Event::Completion(harness.cq))));
        }
    });
}

//! Asynchronous events, completion events, and the interrupt handler.

use std::vec::Vec;

use super::Harness;
use super::mock::MockError;
use super::post::send;
use crate::backend::{AsyncEvent, CompletionEvent};
use crate::error::{DestroyCqError, DeviceLoss, Errno, PollCqError, PollEventError, TakeError};
use crate::{
    AddressVector, Cqn, Event, Interrupted, Lid, PathMigState, QpAttr, QpAttrMask, QpInit, QpState, QpType, Qpn, WcStatus,
};

#[test]
fn events_name_handles_and_break_queue_pairs() {
    let mut harness = Harness::new();
    let (qpn, qp) = (harness.qpn(), harness.qp);
    let stray = AsyncEvent::QpFatal(Qpn::new(0xabc));
    let reported = [
        (AsyncEvent::CommEstablished(qpn), Event::CommEstablished(qp)),
        // The device says that the queue pair is in RTS: it has left SQD, or this is of a life before the last RESET.
        (AsyncEvent::SqDrained(qpn), Event::Stray(AsyncEvent::SqDrained(qpn))),
        (AsyncEvent::LastWqeReached(qpn), Event::Stray(AsyncEvent::LastWqeReached(qpn))),
        (AsyncEvent::PathMigrationFailed(qpn), Event::PathMigrationFailed(qp)),
        (AsyncEvent::PortActive(1), Event::PortActive(1)),
        (AsyncEvent::PortDown(1), Event::PortDown(1)),
        (AsyncEvent::PortChanged(1), Event::PortChanged(1)),
        (AsyncEvent::Overflow, Event::EventsLost),
        (AsyncEvent::Unknown(0x77, 0), Event::Unknown(0x77, 0)),
        (stray, Event::Stray(stray)),
    ];
    for (raw, event) in reported {
        harness.device().events.push_back(raw);
        assert_eq!(harness.verbs.poll_event(), Ok(Some(event)));
    }
    assert_eq!(harness.verbs.qp_info(qp).unwrap().state, QpState::Rts);
    harness.device().break_qp(qpn);
    assert_eq!(harness.verbs.qp_info(qp).unwrap().state, QpState::Rts, "nothing was reported yet");
    assert_eq!(harness.verbs.poll_event(), Ok(Some(Event::QpAccessError(qp))));
    assert_eq!(harness.verbs.qp_info(qp).unwrap().state, QpState::Err);
    assert_eq!(harness.verbs.poll_event(), Ok(None));
    harness.device().fail_after = Some(0);
    assert_eq!(harness.verbs.poll_event(), Err(PollEventError::Device(MockError::Refused)));
}

#[test]
fn a_send_queue_is_drained_only_if_the_device_says_so_now() {
    let mut harness = Harness::new();
    let (qpn, qp) = (harness.qpn(), harness.qp);
    harness.step(qp, QpState::Sqd);
    for draining in [true, false] {
        harness.device().sq_draining = draining;
        harness.device().events.push_back(AsyncEvent::SqDrained(qpn));
        let event = if draining { Event::Stray(AsyncEvent::SqDrained(qpn)) } else { Event::SqDrained(qp) };
        assert_eq!(harness.verbs.poll_event(), Ok(Some(event)));
        assert_eq!(harness.verbs.query_qp(qp).unwrap().sq_draining, draining);
    }
}

#[test]
fn a_queue_pair_that_migrated_has_its_alternate_path_as_its_path() {
    let mut harness = Harness::new();
    let (qpn, qp) = (harness.qpn(), harness.qp);
    let (av, alt_av) = (
        harness.verbs.qp_info(qp).unwrap().attr.av,
        AddressVector { dlid: Lid::new(77), port_num: 1, ..AddressVector::default() },
    );
    let attr = QpAttr { alt_av, alt_pkey_index: 3, alt_timeout: 9, path_mig_state: PathMigState::Rearm, ..QpAttr::default() };
    harness.verbs.modify_qp(qp, &attr, QpAttrMask::ALT_PATH | QpAttrMask::PATH_MIG_STATE).unwrap();
    assert_eq!(harness.verbs.qp_info(qp).unwrap().attr.av, av);
    harness.device().events.push_back(AsyncEvent::PathMigrated(qpn));
    assert_eq!(harness.verbs.poll_event(), Ok(Some(Event::PathMigrated(qp))));
    let attr = harness.verbs.qp_info(qp).unwrap().attr;
    assert_eq!((attr.av, attr.pkey_index, attr.timeout, attr.path_mig_state), (alt_av, 3, 9, PathMigState::Migrated));
}

#[test]
fn a_loop_over_events_ends_though_the_device_writes_one_after_the_other() {
    let mut harness = Harness::new();
    let cqs = [harness.cq, harness.verbs.create_cq(4).unwrap()];
    let cqns = cqs.map(|cq| harness.verbs.cq_info(cq).unwrap().cqn);
    for flood in [CompletionEvent::Completion(cqns[0]), CompletionEvent::Overflow] {
        // The other one has an event of before.
        harness.device().completion_events.push_back((0, CompletionEvent::Completion(cqns[1])));
        for turn in 0..3 {
            let mut seen = Vec::new();
            loop {
                harness.device().completion_events.push_back((0, flood));
                let Some(event) = harness.verbs.poll_event().unwrap() else { break };
                seen.push(event);
                assert!(seen.len() < 100, "turn {turn}");
            }
            assert!(seen.contains(&Event::Completion(cqs[0])) && seen.len() > 10, "{seen:?}");
            assert!(turn != 0 || seen.contains(&Event::Completion(cqs[1])), "{seen:?}");
        }
        while harness.verbs.poll_event().unwrap().is_some() {}
        while harness.verbs.poll_event().unwrap().is_some() {}
        assert!(harness.device().completion_events.is_empty(), "what came meanwhile is taken by the next loop");
    }
}

/// The event of a break comes when the queue pair was reset and connected again.
#[test]
fn a_stale_event_after_a_reset_breaks_nothing() {
    let mut harness = Harness::new();
    let qpn = harness.qpn();
    harness.device().break_qp(qpn);
    harness.step(harness.qp, QpState::Reset);
    harness.poll_ids();
    harness.connect(harness.qp);
    assert_eq!(harness.verbs.poll_event(), Ok(Some(Event::Stray(AsyncEvent::QpAccessError(qpn)))));
    assert_eq!(harness.verbs.qp_info(harness.qp).unwrap().state, QpState::Rts);
    harness.verbs.post_send(harness.qp, &send(1, &[])).unwrap();
}

/// The event comes when another queue pair has the number.
#[test]
fn an_event_of_a_queue_pair_that_is_gone_does_not_break_the_next_with_its_number() {
    let mut harness = Harness::new();
    let qpn = harness.qpn();
    harness.device().break_qp(qpn);
    harness.verbs.destroy_qp(harness.qp).unwrap();
    harness.poll_ids();
    harness.qp = harness.verbs.create_qp(&harness.init(QpType::Rc)).unwrap();
    harness.connect(harness.qp);
    assert_eq!(harness.qpn(), qpn);
    assert_eq!(harness.verbs.poll_event(), Ok(Some(Event::Stray(AsyncEvent::QpAccessError(qpn)))));
    assert_eq!(harness.verbs.qp_info(harness.qp).unwrap().state, QpState::Rts);
}

#[test]
fn a_device_that_does_not_answer_is_believed_that_a_queue_pair_is_broken() {
    let mut harness = Harness::new();
    let (qpn, qp) = (harness.qpn(), harness.qp);
    harness.device().events.push_back(AsyncEvent::QpFatal(qpn));
    // The first question takes the event, the second asks for the state.
    harness.device().fail_after = Some(1);
    assert_eq!(harness.verbs.poll_event(), Ok(Some(Event::QpFatal(qp))));
    assert_eq!(harness.verbs.qp_info(qp).unwrap().state, QpState::Err);
}

#[test]
fn arming_reaches_the_device_with_the_number_of_events() {
    let mut harness = Harness::new();
    let cqn = harness.cqn();
    harness.verbs.req_notify_cq(harness.cq, true).unwrap();
    harness.verbs.req_notify_cq(harness.cq, false).unwrap();
    for _ in 0..2 {
        harness.device().completion_events.push_back((0, CompletionEvent::Completion(cqn)));
    }
    assert_eq!(harness.verbs.poll_event(), Ok(Some(Event::Completion(harness.cq))));
    assert_eq!(harness.verbs.poll_event(), Ok(None), "two events of one queue are reported once");
    harness.verbs.req_notify_cq(harness.cq, false).unwrap();
    assert_eq!(harness.device().armed, [(cqn, 0, true), (cqn, 0, false), (cqn, 2, false)]);
}

#[test]
fn completion_events_that_are_lost_count_for_every_queue() {
    let mut harness = Harness::new();
    let (_, other) = harness.second();
    harness.device().completion_events.push_back((0, CompletionEvent::Overflow));
    assert_eq!(harness.verbs.poll_event(), Ok(Some(Event::EventsLost)));
    let mut woken = [harness.verbs.poll_event(), harness.verbs.poll_event()].map(|event| event.unwrap().unwrap());
    woken.sort_by_key(|event| *event == Event::Completion(other));
    assert_eq!(woken, [Event::Completion(harness.cq), Event::Completion(other)]);
    assert_eq!(harness.verbs.poll_event(), Ok(None));
    harness.verbs.req_notify_cq(other, false).unwrap();
    let cqn = harness.verbs.cq_info(other).unwrap().cqn;
    assert_eq!(harness.device().armed, [(cqn, 1, false)]);
}

#[test]
fn a_broken_completion_queue_says_so_when_it_is_empty() {
    let mut harness = Harness::new();
    let (other, other_cq) = harness.second();
    let cqn = harness.cqn();
    harness.verbs.post_send(harness.qp, &send(1, &[])).unwrap();
    harness.complete(0, WcStatus::Success);
    harness.device().events.push_back(AsyncEvent::CqError(cqn, 2));
    assert_eq!(harness.verbs.poll_event(), Ok(Some(Event::CqError(harness.cq, 2))));
    assert_eq!(harness.poll_ids(), [1], "what came before is good");
    for _ in 0..2 {
        let error = harness.poll().unwrap_err();
        assert_eq!((error, error.errno()), (PollCqError::Broken { cqn, syndrome: 2, entries: 64 }, Errno::Eio));
    }
    assert_eq!(harness.poll_of(other_cq), Ok(std::vec![]));
    // A queue with the same place is a good one.
    for qp in [harness.qp, other] {
        harness.verbs.destroy_qp(qp).unwrap();
    }
    harness.verbs.destroy_cq(harness.cq).unwrap();
    let again = harness.verbs.create_cq(4).unwrap();
    assert_eq!(harness.poll_of(again), Ok(std::vec![]));
}

/// A queue pair of five requests has a ring for 16: that many completions may wait. Too few entries are an error as soon as the
/// event was taken, whichever way is polled.
#[test]
fn a_queue_that_overran_says_so_when_its_event_was_taken() {
    for (entries, fits) in [(8, false), (16, false), (32, true)] {
        let mut harness = Harness::new();
        let sizes = harness.verbs.ring_sizes(QpType::Rc, &super::CAP).unwrap();
        assert_eq!(fits, sizes.send_blocks + sizes.recv_entries <= entries);
        harness.verbs.destroy_qp(harness.qp).unwrap();
        let _ = harness.poll();
        let cq = harness.verbs.create_cq(entries).unwrap();
        let cqn = harness.verbs.cq_info(cq).unwrap().cqn;
        let init = QpInit { send_cq: cq, recv_cq: cq, ..harness.init(QpType::Rc) };
        harness.qp = harness.verbs.create_qp(&init).unwrap();
        harness.connect(harness.qp);
        let (qp, qpn) = (harness.qp, harness.qpn());
        while harness.verbs.post_send(qp, &send(1, &[])).is_ok() {}
        while harness.verbs.post_recv(qp, &crate::RecvWr { wr_id: 2, sges: &[] }).is_ok() {}
        while harness.device().execute(qpn) {}
        harness.device().break_qp(qpn);
        while harness.device().flush_receive(qpn) {}
        let mut queue = harness.verbs.take_cq(cq);
        let good = queue.completions().map_while(Result::ok).count();
        let broken = Err(PollCqError::Broken { cqn, syndrome: 1, entries });
        let event = core::iter::from_fn(|| harness.verbs.poll_event().unwrap()).find(|event| *event == Event::CqError(cq, 1));
        assert_eq!((event.is_none(), good == 24), (fits, fits), "{entries}");
        let (polled, given) = (queue.poll(&mut [crate::Completion::EMPTY]), queue.completions().next());
        if fits {
            assert_eq!((polled, given), (Ok(0), None));
        } else {
            assert_eq!((good, polled, given), (entries as usize, broken, Some(broken.map(|_| crate::Completion::EMPTY))));
        }
    }
}

#[test]
fn a_broken_device_breaks_every_completion_queue() {
    for by_event in [true, false] {
        let mut harness = Harness::new();
        let (_, other) = harness.second();
        assert!(harness.verbs.maintain().is_ok());
        if by_event {
            harness.device().events.push_back(AsyncEvent::DeviceFatal(1, 2));
            assert_eq!(harness.verbs.poll_event(), Ok(Some(Event::DeviceFatal(1, 2))));
        } else {
            harness.device().loss = Some(DeviceLoss::Fatal);
            assert_eq!(harness.verbs.maintain(), Err(MockError::NoAnswer));
        }
        for cq in [harness.cq, other] {
            assert_eq!(harness.poll_of(cq), Err(PollCqError::DeviceLost { loss: DeviceLoss::Fatal }));
        }
    }
}

#[test]
fn an_interrupt_handler_takes_the_events_of_its_vector() {
    let mut harness = Harness::new();
    let (_, other) = harness.second();
    let mut handler = harness.verbs.take_interrupt_handler().unwrap();
    assert_eq!(harness.verbs.take_interrupt_handler().err(), Some(TakeError::Taken));
    let (cqn, other_cqn) = (harness.cqn(), harness.verbs.cq_info(other).unwrap().cqn);
    for (vector, cqn) in [(0, cqn), (1, other_cqn), (1, Cqn::new(0x999)), (1, other_cqn)] {
        harness.device().completion_events.push_back((vector, CompletionEvent::Completion(cqn)));
    }
    let taken = Interrupted { completions: 2, overflow: false, asynchronous: false };
    assert_eq!(handler.on_interrupt(1), taken, "an event of no queue is of no use");
    assert_eq!(handler.on_interrupt(1), Interrupted::default());
    let taken = Interrupted { completions: 1, overflow: false, asynchronous: true };
    assert_eq!(handler.on_interrupt(0), taken);
    let reported = [harness.verbs.poll_event(), harness.verbs.poll_event()];
    assert_eq!(reported, [Ok(Some(Event::Completion(harness.cq))), Ok(Some(Event::Completion(other)))]);
    // Without the handler no event is taken.
    harness.device().completion_events.push_back((1, CompletionEvent::Completion(other_cqn)));
    assert_eq!(harness.verbs.poll_event(), Ok(None));
    harness.verbs.req_notify_cq(other, false).unwrap();
    assert_eq!(harness.device().armed, [(other_cqn, 2, false)]);
    drop(handler);
    assert_eq!(harness.verbs.poll_event(), Ok(Some(Event::Completion(other))));
}

#[test]
fn an_interrupt_handler_is_back_when_it_is_dropped() {
    let mut harness = Harness::new();
    let handler = harness.verbs.take_interrupt_handler().unwrap();
    harness.verbs.destroy_qp(harness.qp).unwrap();
    let error = harness.verbs.destroy_cq(harness.cq).unwrap_err();
    assert_eq!((error, error.errno()), (DestroyCqError::EventsTaken, Errno::Ebusy));
    let Err(mut verbs) = harness.verbs.into_provider() else { panic!("the handler is taken") };
    // Whoever drops it: a task that panics, for instance.
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _handler = handler;
        panic!("with the handler");
    }));
    assert!(ended.is_err());
    verbs.destroy_dropped_cq(harness.cq).unwrap();
    assert!(verbs.into_provider().is_ok());
}

/// Events of a completion queue that is destroyed are taken before its number can come again.
#[test]
fn an_event_of_a_completion_queue_that_is_gone_does_not_go_to_the_next() {
    let mut harness = Harness::new();
    let cqn = harness.cqn();
    harness.device().completion_events.push_back((0, CompletionEvent::Completion(cqn)));
    harness.verbs.destroy_qp(harness.qp).unwrap();
    harness.verbs.destroy_cq(harness.cq).unwrap();
    harness.cq = harness.verbs.create_cq(4).unwrap();
    assert_eq!(harness.cqn(), cqn, "the number came again");
    assert_eq!(harness.verbs.poll_event(), Ok(None));
    harness.verbs.req_notify_cq(harness.cq, false).unwrap();
    assert_eq!(harness.device().armed, [(cqn, 0, false)]);
}

#[cfg(feature = "multicore")]
mod ready {
    use core::task::{Context, Poll, Waker};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;

    use super::*;
    use crate::CompletionQueue;
    use crate::tests::mock::Mock;

    #[derive(Default)]
    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    struct Waiting {
        harness: Harness,
        queue: CompletionQueue<'static, Mock>,
        count: Arc<Count>,
    }

    impl Waiting {
        fn new() -> Self {
            let mut harness = Harness::new();
            let queue = harness.verbs.take_cq(harness.cq);
            harness.verbs.post_send(harness.qp, &send(1, &[])).unwrap();
            Self { harness, queue, count: Arc::default() }
        }

        fn is_ready(&mut self) -> bool {
            let waker = Waker::from(Arc::clone(&self.count));
            self.queue.poll_ready(&mut Context::from_waker(&waker)) == Poll::Ready(())
        }

        fn woken(&self) -> u32 {
            self.count.0.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn an_empty_queue_arms_and_the_event_wakes() {
        let mut waiting = Waiting::new();
        let cqn = waiting.harness.cqn();
        assert!(!waiting.is_ready());
        assert_eq!(waiting.harness.device().armed, [(cqn, 0, false)]);
        assert_eq!(waiting.woken(), 0);
        waiting.harness.complete(0, WcStatus::Success);
        waiting.harness.device().completion_events.push_back((0, CompletionEvent::Completion(cqn)));
        let mut handler = waiting.harness.verbs.take_interrupt_handler().unwrap();
        assert_eq!(handler.on_interrupt(0).completions, 1);
        assert_eq!(waiting.woken(), 1);
        assert!(waiting.is_ready());
        assert_eq!(waiting.harness.device().armed.len(), 1, "a queue that has something is not armed");
        let done = waiting.queue.completions().next().unwrap().unwrap();
        assert_eq!(done.wr_id, 1);
        assert!(!waiting.is_ready());
        assert_eq!(waiting.harness.device().armed[1..], [(cqn, 1, false)]);
    }

    #[test]
    fn an_overflow_and_a_broken_device_wake_too() {
        let mut waiting = Waiting::new();
        assert!(!waiting.is_ready());
        waiting.harness.device().completion_events.push_back((1, CompletionEvent::Overflow));
        let mut handler = waiting.harness.verbs.take_interrupt_handler().unwrap();
        assert_eq!(handler.on_interrupt(1), Interrupted { completions: 0, overflow: true, asynchronous: false });
        assert_eq!(waiting.woken(), 1);
        assert!(!waiting.is_ready(), "nothing came");
        waiting.harness.device().loss = Some(DeviceLoss::Fatal);
        assert!(waiting.harness.verbs.maintain().is_err());
        assert_eq!(waiting.woken(), 2);
        assert!(waiting.is_ready());
        let flushed = waiting.queue.completions().next().unwrap().unwrap();
        assert_eq!((flushed.wr_id, flushed.loss()), (1, Some(DeviceLoss::Fatal)));
        let error = waiting.queue.completions().next().unwrap().unwrap_err();
        assert_eq!(error, PollCqError::DeviceLost { loss: DeviceLoss::Fatal });
    }

    /// A completion that comes between the poll and the arm raises no event.
    #[test]
    fn what_comes_while_the_queue_is_armed_is_seen() {
        let mut waiting = Waiting::new();
        waiting.harness.device().completes_when_armed = true;
        assert!(waiting.is_ready());
        assert_eq!(waiting.harness.device().armed.len(), 1);
        let mut ready = core::pin::pin!(waiting.queue.ready());
        assert!(ready.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
    }

    /// An error that a poll has kept for the next is something to poll.
    #[test]
    fn an_error_that_waits_is_ready() {
        let mut waiting = Waiting::new();
        waiting.harness.complete(0, WcStatus::Success);
        waiting.harness.complete(9, WcStatus::Success);
        let mut out = [crate::Completion::EMPTY; 4];
        assert_eq!(waiting.queue.poll(&mut out), Ok(1));
        assert!(waiting.is_ready());
        assert!(waiting.queue.poll(&mut out).is_err());
        assert!(!waiting.is_ready());
    }
}

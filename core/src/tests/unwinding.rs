//! Code of the program that unwinds: tasks that are woken, and the logger. What others wait for is not lost.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::Harness;
use crate::error::{DestroyCqError, DestroyQpError, DeviceLoss, PollCqError};

/// The device has ended the queue pair, and its number may be another's: no completion is given to that one.
#[test]
fn a_destruction_that_unwinds_loses_the_device() {
    let mut harness = Harness::new();
    let (_, other) = harness.second();
    harness.device().unwinds = true;
    let qp = harness.qp;
    assert!(catch_unwind(AssertUnwindSafe(|| harness.verbs.destroy_qp(qp).is_ok())).is_err());
    let mut queue = harness.verbs.take_cq(other);
    let lost = PollCqError::DeviceLost { loss: DeviceLoss::Abandoned };
    assert_eq!(queue.poll(&mut [crate::Completion::EMPTY]), Err(lost));
    // As `Verbs` says: the handle is stale, and the completion queue in use for ever.
    let cq = harness.cq;
    assert_eq!(harness.verbs.destroy_dropped_qp(qp), Err(DestroyQpError::Stale));
    assert_eq!(harness.verbs.destroy_cq(cq), Err(DestroyCqError::Busy { users: 2 }));
}

#[cfg(feature = "multicore")]
mod wakers {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::{Context, Wake, Waker};

    use super::*;
    use crate::backend::CompletionEvent;
    use crate::error::DeviceLoss;

    struct Task {
        panics: bool,
        woken: AtomicU32,
    }

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            self.woken.fetch_add(1, Ordering::Relaxed);
            assert!(!self.panics, "the executor's queue is full");
        }
    }

    fn two_tasks(harness: &mut Harness) -> [Arc<Task>; 2] {
        let (_, second) = harness.second();
        let tasks = [true, false].map(|panics| Arc::new(Task { panics, woken: AtomicU32::new(0) }));
        for (cq, task) in [harness.cq, second].into_iter().zip(&tasks) {
            let waker = Waker::from(task.clone());
            assert!(harness.verbs.queue(cq).poll_ready(&mut Context::from_waker(&waker)).is_pending());
        }
        tasks
    }

    /// The task of one queue panics when it is woken; the other task has done nothing wrong.
    #[test]
    fn an_overflow_wakes_every_task_though_one_panics() {
        let mut harness = Harness::new();
        let tasks = two_tasks(&mut harness);
        harness.device().completion_events.push_back((1, CompletionEvent::Overflow));
        assert!(catch_unwind(AssertUnwindSafe(|| harness.verbs.poll_event().map(drop))).is_err());
        while harness.verbs.poll_event().unwrap().is_some() {}
        assert_eq!(tasks[1].woken.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_loss_wakes_every_task_though_one_panics() {
        let mut harness = Harness::new();
        let tasks = two_tasks(&mut harness);
        harness.device().loss = Some(DeviceLoss::Gone);
        assert!(catch_unwind(AssertUnwindSafe(|| harness.verbs.maintain().map(drop))).is_err());
        assert_eq!(tasks[1].woken.load(Ordering::Relaxed), 1);
    }

    /// Events behind the one whose task panics are for others.
    #[test]
    fn an_interrupt_wakes_every_task_though_one_panics() {
        let mut harness = Harness::new();
        let cqn = harness.cqn();
        let tasks = two_tasks(&mut harness);
        let other = harness.verbs.cqs.iter().map(|(_, cq)| cq.info().cqn).find(|other| *other != cqn).unwrap();
        for cqn in [cqn, other] {
            harness.device().completion_events.push_back((1, CompletionEvent::Completion(cqn)));
        }
        let mut handler = harness.verbs.take_interrupt_handler().unwrap();
        assert!(catch_unwind(AssertUnwindSafe(|| handler.on_interrupt(1))).is_err());
        assert_eq!(
            tasks[1].woken.load(Ordering::Relaxed),
            1,
            "and the device does not interrupt again: its queue is not armed"
        );
    }
}

#[cfg(feature = "log")]
mod loggers {
    use core::cell::Cell;

    use std::vec::Vec;

    use super::*;
    use crate::backend::AsyncEvent;
    use crate::error::PollCqError;
    use crate::tests::post::send;
    use crate::{QpState, WcStatus};

    std::thread_local! {
        static PANIC_AT: Cell<Option<&'static str>> = const { Cell::new(None) };
    }

    struct Logger;

    impl log::Log for Logger {
        fn enabled(&self, _: &log::Metadata<'_>) -> bool {
            true
        }

        fn log(&self, record: &log::Record<'_>) {
            let line = std::format!("{}", record.args());
            if let Some(part) = PANIC_AT.get()
                && line.contains(part)
            {
                PANIC_AT.set(None);
                panic!("the disk of the log is full: {line}");
            }
        }

        fn flush(&self) {}
    }

    /// Unwinds at the first line that contains `part`.
    fn unwinding<R>(part: &'static str, work: impl FnOnce() -> R) {
        let _ = log::set_logger(&Logger);
        log::set_max_level(log::LevelFilter::Trace);
        PANIC_AT.set(Some(part));
        assert!(catch_unwind(AssertUnwindSafe(|| drop(work()))).is_err(), "no line has {part}");
    }

    #[test]
    fn a_failed_send_is_given_though_the_logger_panics() {
        let mut harness = Harness::new();
        harness.verbs.post_send(harness.qp, &send(7, &[])).unwrap();
        harness.complete(0, WcStatus::RemAccessErr);
        unwinding("a send of queue pair", || harness.poll());
        let done = harness.poll().map(|done| done.iter().map(|done| (done.wr_id, done.status)).collect::<Vec<_>>());
        assert_eq!(done, Ok(Vec::from([(7, WcStatus::RemAccessErr)])));
    }

    #[test]
    fn a_broken_queue_says_so_though_the_logger_panics() {
        let mut harness = Harness::new();
        let cqn = harness.cqn();
        harness.device().events.push_back(AsyncEvent::CqError(cqn, 1));
        unwinding("is broken, syndrome", || harness.verbs.poll_event());
        while harness.verbs.poll_event().unwrap().is_some() {}
        assert_eq!(harness.poll(), Err(PollCqError::Broken { cqn, syndrome: 1, entries: 64 }));
    }

    #[test]
    fn a_broken_queue_pair_is_in_err_though_the_logger_panics() {
        let mut harness = Harness::new();
        let qpn = harness.qpn();
        harness.device().qps.get_mut(&qpn).unwrap().state = QpState::Err;
        harness.device().events.push_back(AsyncEvent::QpFatal(qpn));
        unwinding("event: ", || harness.verbs.poll_event());
        while harness.verbs.poll_event().unwrap().is_some() {}
        assert_eq!(harness.verbs.qp_info(harness.qp).unwrap().state, QpState::Err);
    }

    #[test]
    fn a_lost_device_flushes_though_the_logger_panics() {
        let mut harness = Harness::new();
        harness.verbs.post_send(harness.qp, &send(7, &[])).unwrap();
        harness.device().loss = Some(crate::error::DeviceLoss::Gone);
        unwinding("lost with their device", || harness.verbs.maintain());
        assert_eq!(harness.poll().map(|done| done.len()), Ok(1));
    }
}

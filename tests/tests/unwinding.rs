//! Code of the program that runs in the middle of the control path and panics: tasks that are woken, the clock. Nothing of before
//! a RESET runs again, and no number or memory gets a second owner.
#![forbid(unsafe_code)]

use core::time::Duration;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};

use bareverbs::error::{DestroyCqError, DestroyQpError};
use bareverbs::{Completion, CqHandle, Payload, QpInit, QpState, QpType, RecvWr, SendOp, WcStatus};
use bareverbs_sim::in_process::{World, WorldConfig};
use bareverbs_sim::{DeviceConfig, Limits};
use bareverbs_tests::{ALL_ACCESS, CAP, Connection, End, Node, Pair, refused, signaled};

/// A task whose executor panics when it is woken for the first time.
struct Panicking(AtomicBool);

impl Wake for Panicking {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        assert!(self.0.swap(true, Ordering::Relaxed), "the executor's queue is full");
    }
}

/// Lets such a task wait for a completion.
fn sleep(node: &mut Node, cq: CqHandle) {
    let waker = Waker::from(Arc::new(Panicking(AtomicBool::new(false))));
    assert!(node.verbs.queue(cq).poll_ready(&mut Context::from_waker(&waker)).is_pending());
}

/// Resets a queue pair; a task that waits for its completions panics.
fn reset_unwinding(node: &mut Node, end: &End) {
    sleep(node, end.cq);
    let mut qp = node.verbs.take_qp(end.qp);
    assert!(catch_unwind(AssertUnwindSafe(|| node.verbs.reset_qp(&mut qp))).is_err());
    node.verbs.keep_qp(qp);
}

fn reset(node: &mut Node, end: &End) {
    let mut qp = node.verbs.take_qp(end.qp);
    node.verbs.reset_qp(&mut qp).unwrap();
    node.verbs.keep_qp(qp);
}

/// Destroys a queue pair; a task that waits for its completions panics.
fn destroy_unwinding(node: &mut Node, end: &End) {
    sleep(node, end.cq);
    let qp = node.verbs.take_qp(end.qp);
    let verbs = node.verbs.verbs_mut();
    assert!(catch_unwind(AssertUnwindSafe(|| verbs.destroy_qp(qp).map_err(|refused| refused.error))).is_err());
}

/// Two hosts; the second device has few numbers, which come again soon.
fn pair() -> Pair {
    let limits = Limits { log_max_qp: 3, log_max_cq: 3, ..Limits::default() };
    let world = World::new(WorldConfig::default());
    let a = Node::new(world.add(DeviceConfig::with_lid(1)).unwrap());
    let b = Node::new(world.add(DeviceConfig { limits, ..DeviceConfig::with_lid(2) }).unwrap());
    Pair { world, a, b }
}

/// Creates queue pairs on another completion queue until one has the number of `old`.
fn successor(node: &mut Node, old: &End) -> End {
    let cq = node.verbs.create_cq(512).unwrap();
    let init = QpInit { pd: old.pd, qp_type: QpType::Rc, send_cq: cq, recv_cq: cq, cap: CAP, sq_sig_all: true };
    for _ in 0..16 {
        let qp = node.verbs.create_qp(&init).unwrap();
        if node.verbs.qp_info(qp).unwrap().qpn == old.qpn {
            return End { pd: old.pd, cq, qp, qpn: old.qpn };
        }
        node.verbs.destroy_qp(qp).unwrap();
        node.poll(cq);
    }
    panic!("the number did not come again");
}

#[test]
fn after_a_reset_that_unwinds_no_send_of_before_runs() {
    let mut pair = Pair::new();
    let (a, b) = pair.connected();
    let mut there = pair.b.region(b.pd, 4096, ALL_ACCESS);
    for wr_id in 0..4 {
        let op = SendOp::Write { payload: Payload::Inline(b"old"), remote: there.remote(0) };
        pair.a.verbs.post_send(a.qp, &signaled(wr_id, op)).unwrap();
        assert_eq!(pair.a.completions(a.cq, 1)[0].status, WcStatus::Success);
    }
    there.buffer.write(0, b"new");
    reset_unwinding(&mut pair.a, &a);
    reset(&mut pair.b, &b);
    pair.connect(&a, &b, &Connection::default());
    let op = SendOp::Write { payload: Payload::Inline(b"next"), remote: there.remote(100) };
    pair.a.verbs.post_send(a.qp, &signaled(9, op)).unwrap();
    let done = pair.a.completions(a.cq, 1)[0];
    assert_eq!((done.wr_id, done.status), (9, WcStatus::Success));
    assert_eq!((there.buffer.read(0, 3), there.buffer.read(100, 4)), (b"new".to_vec(), b"next".to_vec()));
}

#[test]
fn after_a_reset_that_unwinds_no_receive_of_before_is_used() {
    let mut pair = Pair::new();
    let (a, b) = pair.connected();
    let there = pair.b.region(b.pd, 4096, ALL_ACCESS);
    for n in 0..4 {
        pair.b.verbs.post_recv(b.qp, &RecvWr { wr_id: n as u64, sges: &[there.sge(n * 64, 64)] }).unwrap();
    }
    reset_unwinding(&mut pair.b, &b);
    reset(&mut pair.a, &a);
    pair.connect(&a, &b, &Connection::default());
    pair.b.verbs.post_recv(b.qp, &RecvWr { wr_id: 77, sges: &[there.sge(2048, 64)] }).unwrap();
    pair.a.verbs.post_send(a.qp, &signaled(9, SendOp::Send { payload: Payload::Inline(b"message") })).unwrap();
    let done = pair.b.completions(b.cq, 1)[0];
    assert_eq!((done.wr_id, done.status), (77, WcStatus::Success));
    assert_eq!((there.buffer.read(0, 7), there.buffer.read(2048, 7)), (vec![0; 7], b"message".to_vec()));
}

/// The completions of both queues wait for the poll, though the first queue's task has panicked.
#[test]
fn a_reset_that_unwinds_drains_both_completion_queues() {
    let mut pair = Pair::new();
    let (a, mut b) = pair.connected();
    pair.b.verbs.destroy_qp(b.qp).unwrap();
    pair.b.poll(b.cq);
    let recv_cq = pair.b.verbs.create_cq(512).unwrap();
    let init = QpInit { pd: b.pd, qp_type: QpType::Rc, send_cq: b.cq, recv_cq, cap: CAP, sq_sig_all: true };
    b.qp = pair.b.verbs.create_qp(&init).unwrap();
    b.qpn = pair.b.verbs.qp_info(b.qp).unwrap().qpn;
    reset(&mut pair.a, &a);
    pair.connect(&a, &b, &Connection::default());
    let there = pair.b.region(b.pd, 64, ALL_ACCESS);
    pair.b.verbs.post_recv(b.qp, &RecvWr { wr_id: 1, sges: &[there.sge(0, 64)] }).unwrap();
    pair.a.verbs.post_send(a.qp, &signaled(1, SendOp::Send { payload: Payload::Inline(b"message") })).unwrap();
    assert_eq!(pair.a.completions(a.cq, 1)[0].status, WcStatus::Success);
    reset_unwinding(&mut pair.b, &b);
    assert_eq!(pair.b.verbs.poll_cq(recv_cq, &mut [Completion::EMPTY; 4]), Ok(0), "what was received before is not given");
}

#[test]
fn the_handle_of_a_queue_pair_whose_destruction_unwound_names_no_other() {
    let mut pair = pair();
    let (a, old) = pair.connected();
    destroy_unwinding(&mut pair.b, &old);
    let new = successor(&mut pair.b, &old);
    reset(&mut pair.a, &a);
    pair.a.poll(a.cq);
    pair.b.poll(old.cq);
    pair.connect(&a, &new, &Connection::default());
    let pages = pair.b.verbs.provider().statistics().pages_used;
    refused!(pair.b.verbs.destroy_dropped_qp(old.qp), Einval, DestroyQpError::Stale);
    assert_eq!(pair.b.verbs.query_qp(new.qp).unwrap().state, QpState::Rts);
    assert_eq!(pair.b.verbs.provider().statistics().pages_used, pages);
    // What is posted on the successor shows in no other queue.
    let other = pair.b.verbs.create_cq(128).unwrap();
    let here = pair.b.region(new.pd, 4096, ALL_ACCESS);
    let sges = [here.sge(0, 8), here.sge(8, 8), here.sge(16, 8), here.sge(32, 8)];
    pair.b.verbs.post_recv(new.qp, &RecvWr { wr_id: 1, sges: &sges }).unwrap();
    assert_eq!(pair.b.verbs.queue(other).completions().next(), None);
    pair.assert_no_findings();
}

/// An event of another queue wakes a task that panics, after the device has destroyed the queue.
#[test]
fn the_handle_of_a_completion_queue_whose_destruction_unwound_names_no_other() {
    let mut pair = pair();
    let (a, b) = pair.connected();
    sleep(&mut pair.b, b.cq);
    let there = pair.a.region(a.pd, 64, ALL_ACCESS);
    let op = SendOp::Write { payload: Payload::Inline(b"x"), remote: there.remote(0) };
    pair.b.verbs.post_send(b.qp, &signaled(1, op)).unwrap();
    pair.world.advance(Duration::from_millis(5));
    let old = pair.b.verbs.create_cq(16).unwrap();
    let cqn = pair.b.verbs.cq_info(old).unwrap().cqn;
    let cq = pair.b.verbs.take_cq(old);
    let verbs = pair.b.verbs.verbs_mut();
    assert!(catch_unwind(AssertUnwindSafe(|| verbs.destroy_cq(cq).map_err(|refused| refused.error))).is_err());
    // Events are taken again, and completion queues destroyed.
    let new = (0..32).find_map(|_| {
        let new = pair.b.verbs.create_cq(16).unwrap();
        if pair.b.verbs.cq_info(new).unwrap().cqn == cqn {
            return Some(new);
        }
        pair.b.verbs.destroy_cq(new).unwrap();
        None
    });
    let new = new.expect("the number came again");
    refused!(pair.b.verbs.destroy_dropped_cq(old), Einval, DestroyCqError::Stale);
    assert_eq!(pair.b.verbs.poll_cq(new, &mut [Completion::EMPTY]), Ok(0));
    pair.b.verbs.destroy_cq(new).unwrap();
    pair.assert_no_findings();
}

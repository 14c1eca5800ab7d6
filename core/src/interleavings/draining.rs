//! A queue pair is reset or destroyed while its completion queue is polled elsewhere.

use loom::sync::Arc;
use loom::sync::atomic::AtomicBool;
use loom::thread;
use std::vec::Vec;

use super::device::Device;
use super::{Between, Harness, send};
use crate::sync::Ordering;
use crate::sync::modelled::check;
use crate::{Completion, CompletionQueue, QpState, RecvWr};

/// What the poller gets: requests from before the RESET count from here on, those after it from 100.
const OLD: u64 = 1;
const NEW: u64 = 100;

/// How completions are taken.
type Take = fn(&mut CompletionQueue<'static, Device>, &mut dyn FnMut(u64));

/// Polls several completions at a time.
fn poll(queue: &mut CompletionQueue<'static, Device>, give: &mut dyn FnMut(u64)) {
    let mut out = [Completion::EMPTY; 3];
    let count = queue.poll(&mut out).unwrap();
    out[..count].iter().for_each(|done| give(done.wr_id));
}

/// Polls one completion after the other.
fn iterate(queue: &mut CompletionQueue<'static, Device>, give: &mut dyn FnMut(u64)) {
    queue.completions().for_each(|done| give(done.unwrap().wr_id));
}

/// `prepare` posts requests, `end` resets or destroys the queue pair, and `begin` starts the next one as soon as it can. After
/// that, none of the stale requests completes, and each later one does. The poller sees no invalid completion.
fn no_stale_completion_comes_after(
    take: Take,
    prepare: fn(&mut Harness),
    end: fn(&mut Harness),
    begin: fn(&mut Harness) -> bool,
) {
    check(move || {
        let mut harness = Harness::new(true);
        let mut queue = harness.verbs.take_cq(harness.cq);
        let is_over = Arc::new(AtomicBool::new(false));
        let between = Arc::new(Between::default());
        let poller = {
            let (is_over, between) = (Arc::clone(&is_over), Arc::clone(&between));
            thread::spawn(move || {
                let mut given = Vec::new();
                for _ in 0..2 {
                    between.others_run();
                    take(&mut queue, &mut |wr_id| {
                        let is_late = wr_id < NEW && is_over.load(Ordering::Relaxed);
                        assert!(!is_late, "{wr_id} is given when it cannot be");
                        given.push(wr_id);
                    });
                }
                between.others_run();
                (queue, given)
            })
        };
        prepare(&mut harness);
        between.others_run();
        end(&mut harness);
        between.others_run();
        let begun = begin(&mut harness);
        if begun {
            is_over.store(true, Ordering::Relaxed);
            between.others_run();
            post_new(&mut harness);
        }
        let (mut queue, mut given) = poller.join().unwrap();
        if !begun {
            while !begin(&mut harness) {
                take(&mut queue, &mut |wr_id| panic!("{wr_id} is given when it cannot be"));
            }
            post_new(&mut harness);
        }
        take(&mut queue, &mut |wr_id| given.push(wr_id));
        given.retain(|wr_id| *wr_id >= NEW);
        assert_eq!(given, [NEW, NEW + 1]);
        let info = harness.verbs.qp_info(harness.qp).unwrap();
        assert_eq!((info.state, info.send_blocks, info.recvs), (QpState::Rts, 0, 0));
    });
}

fn post_new(harness: &mut Harness) {
    harness.connect();
    harness.verbs.post_send(harness.qp, &send(NEW)).unwrap();
    harness.verbs.post_recv(harness.qp, &RecvWr { wr_id: NEW + 1, sges: &[] }).unwrap();
}

fn post_a_send(harness: &mut Harness) {
    harness.verbs.post_send(harness.qp, &send(OLD)).unwrap();
}

fn post_a_receive(harness: &mut Harness) {
    harness.verbs.post_recv(harness.qp, &RecvWr { wr_id: OLD, sges: &[] }).unwrap();
}

#[test]
fn reset_while_completions_are_polled() {
    no_stale_completion_comes_after(poll, post_a_send, Harness::reset, Harness::leaves_reset);
}

#[test]
fn reset_while_completions_are_taken() {
    no_stale_completion_comes_after(iterate, post_a_send, Harness::reset, Harness::leaves_reset);
}

#[test]
fn reset_while_receives_complete() {
    no_stale_completion_comes_after(iterate, post_a_receive, Harness::reset, Harness::leaves_reset);
}

/// A failed receive moves the queue pair to ERR, while the control path moves it to RESET.
#[test]
fn reset_while_a_receive_fails() {
    no_stale_completion_comes_after(
        iterate,
        |harness| {
            harness.verbs.provider().fail(true);
            post_a_receive(harness);
        },
        |harness| {
            harness.verbs.provider().fail(false);
            harness.reset();
        },
        Harness::leaves_reset,
    );
}

#[test]
fn destroyed_while_completions_are_polled() {
    no_stale_completion_comes_after(poll, post_a_send, Harness::destroy, Harness::create);
}

#[test]
fn destroyed_while_completions_are_taken() {
    no_stale_completion_comes_after(iterate, post_a_send, Harness::destroy, Harness::create);
}

//! What the calls that drain a queue wait for, return and count.

use core::time::Duration;
use std::vec::Vec;

use super::mock::Mock;
use super::post::send;
use super::{Harness, mock};
use crate::backend::RawCompletion;
use crate::error::{DrainError, RawKind};
use crate::platform::Instant;
use crate::{Completion, CompletionQueue, Drained, QpState, RecvQueue, RecvWr, SendFlags, SendQueue, SendWr, WcStatus};

/// Longer than the few pauses in which the device completes what the test says.
const TIMEOUT: Duration = Duration::from_millis(200);

type SendDrained = (Result<Drained, DrainError<super::MockError>>, Vec<(u64, WcStatus)>);

/// Drains the send queue; returns what was returned of it too.
fn drain_sends(
    harness: &mut Harness,
    sends: &mut SendQueue<'static, Mock>,
    cq: &mut CompletionQueue<'static, Mock>,
) -> SendDrained {
    let mut given = Vec::new();
    let give = |done: Completion| given.push((done.wr_id, done.status));
    let drained = harness.verbs.verbs_mut().drain_sq(sends, cq, TIMEOUT, give);
    (drained, given)
}

/// Posts an unsignaled send and two others, in blocks 0 to 2.
fn three_sends(harness: &mut Harness) -> (SendQueue<'static, Mock>, CompletionQueue<'static, Mock>) {
    for wr_id in 0..3 {
        let flags = if wr_id == 0 { SendFlags::empty() } else { SendFlags::SIGNALED };
        harness.verbs.post_send(harness.qp, &SendWr { flags, ..send(wr_id, &[]) }).unwrap();
    }
    (harness.verbs.take_send(harness.qp), harness.verbs.take_cq(harness.cq))
}

/// Returns how many sends the device saw, and its time.
fn seen(harness: &Harness) -> (usize, Instant) {
    let device = harness.device();
    (device.sent.len(), device.now)
}

/// Lets a request complete in the next pause that has none yet.
fn late(harness: &Harness, index: u32, status: WcStatus) {
    let raw = RawCompletion { status, ..mock::raw(harness.qpn(), RawKind::Send, index) };
    let cqn = harness.cqn();
    harness.device().late.push_back((cqn, raw));
}

/// Each completion comes in a round of its own: the call waits for all, and returns none of the marker.
#[test]
fn a_drain_waits_for_each_send_and_counts_it_once() {
    let mut harness = Harness::new();
    let (mut sends, mut cq) = three_sends(&mut harness);
    late(&harness, 1, WcStatus::Success);
    for index in [2, 3] {
        late(&harness, index, WcStatus::WrFlushErr);
    }
    let (drained, given) = drain_sends(&mut harness, &mut sends, &mut cq);
    assert_eq!(drained, Ok(Drained { completed: 1, flushed: 1, silent: 1 }));
    assert_eq!(given, [(1, WcStatus::Success), (2, WcStatus::WrFlushErr)]);
    assert_eq!(harness.verbs.qp_info(harness.qp).unwrap().state, QpState::Err);
    // The marker is the fourth request that the device saw.
    assert_eq!(harness.device().sent.len(), 4);
    // Nothing is in flight: the next call posts nothing and waits for nothing.
    let before = seen(&harness).1;
    assert_eq!(drain_sends(&mut harness, &mut sends, &mut cq), (Ok(Drained::default()), Vec::new()));
    assert_eq!(seen(&harness), (4, before));
}

/// After its time the call says how many are left, and the next one goes on behind the marker that is in flight already.
#[test]
fn a_drain_whose_time_has_ended_goes_on_with_the_same_marker() {
    let mut harness = Harness::new();
    let (mut sends, mut cq) = three_sends(&mut harness);
    late(&harness, 1, WcStatus::Success);
    let start = seen(&harness).1;
    let (drained, given) = drain_sends(&mut harness, &mut sends, &mut cq);
    assert_eq!((drained, given), (Err(DrainError::TimedOut { left: 1 }), Vec::from([(1, WcStatus::Success)])));
    assert_eq!(seen(&harness), (4, start.after(TIMEOUT)));
    for index in [2, 3] {
        late(&harness, index, WcStatus::WrFlushErr);
    }
    let (drained, given) = drain_sends(&mut harness, &mut sends, &mut cq);
    assert_eq!((drained, given), (Ok(Drained { flushed: 1, ..Drained::default() }), Vec::from([(2, WcStatus::WrFlushErr)])));
    assert_eq!(harness.device().sent.len(), 4);
}

/// Sends and receives that complete into one queue: those of the other side are returned and not counted, nor waited for.
#[test]
fn a_drain_of_one_side_returns_what_completes_of_the_other() {
    let mut harness = Harness::new();
    harness.verbs.post_send(harness.qp, &send(1, &[])).unwrap();
    for wr_id in [8, 9] {
        harness.verbs.post_recv(harness.qp, &RecvWr { wr_id, sges: &[] }).unwrap();
    }
    let mut recvs: RecvQueue<'static, Mock> = harness.verbs.take_recv(harness.qp);
    let mut cq = harness.verbs.take_cq(harness.cq);
    harness.complete(0, WcStatus::Success);
    for (index, status) in [(0, WcStatus::Success), (1, WcStatus::WrFlushErr)] {
        let raw = harness.raw(RawKind::Recv, index, status);
        harness.push(raw);
    }
    let mut given = Vec::new();
    let give = |done: Completion| given.push(done.wr_id);
    let drained = harness.verbs.verbs_mut().drain_rq(&mut recvs, &mut cq, TIMEOUT, give);
    assert_eq!(drained, Ok(Drained { completed: 1, flushed: 1, silent: 0 }));
    assert_eq!(given, [1, 8, 9]);
    // A send that is left does not keep it.
    harness.verbs.post_send(harness.qp, &send(2, &[])).unwrap_err();
}

/// A queue pair in RESET has nothing in flight, whatever its counters were, and stays there.
#[test]
fn a_queue_pair_in_reset_is_drained_at_once() {
    let mut harness = Harness::new();
    harness.verbs.post_send(harness.qp, &send(1, &[])).unwrap();
    harness.step(harness.qp, QpState::Reset);
    let (mut sends, mut cq) = (harness.verbs.take_send(harness.qp), harness.verbs.take_cq(harness.cq));
    let before = seen(&harness).1;
    assert_eq!(drain_sends(&mut harness, &mut sends, &mut cq), (Ok(Drained::default()), Vec::new()));
    assert_eq!(seen(&harness), (1, before));
    assert_eq!(harness.verbs.qp_info(harness.qp).unwrap().state, QpState::Reset);
}

/// The device refuses the transition to ERR: nothing was posted, nothing is in the error state, and the next call drains.
#[test]
fn a_drain_whose_transition_is_refused_changes_nothing() {
    let mut harness = Harness::new();
    let (mut sends, mut cq) = three_sends(&mut harness);
    harness.device().fail_after = Some(0);
    let refused = Err(DrainError::Device(super::MockError::Refused));
    assert_eq!(drain_sends(&mut harness, &mut sends, &mut cq), (refused, Vec::new()));
    assert_eq!(harness.verbs.qp_info(harness.qp).unwrap().state, QpState::Rts);
    assert_eq!(seen(&harness).0, 3);
    for index in 1..=3 {
        late(&harness, index, WcStatus::WrFlushErr);
    }
    let (drained, given) = drain_sends(&mut harness, &mut sends, &mut cq);
    assert_eq!(drained, Ok(Drained { flushed: 2, silent: 1, ..Drained::default() }));
    assert_eq!(given, [(1, WcStatus::WrFlushErr), (2, WcStatus::WrFlushErr)]);
}

/// The device completes a block that nobody posted: the call ends with it, and has returned what came before.
#[test]
fn a_drain_ends_with_a_completion_that_cannot_be() {
    let mut harness = Harness::new();
    let (mut sends, mut cq) = three_sends(&mut harness);
    harness.complete(1, WcStatus::Success);
    harness.complete(9, WcStatus::Success);
    let (drained, given) = drain_sends(&mut harness, &mut sends, &mut cq);
    assert!(matches!(drained, Err(DrainError::Poll { .. })), "{drained:?}");
    assert_eq!(given, [(1, WcStatus::Success)]);
}

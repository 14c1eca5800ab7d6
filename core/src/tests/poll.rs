//! Completions: what they retire, what makes no sense, and the wraps of the rings.

use super::mock::Entry;
use super::post::{REMOTE, send};
use super::{Harness, start_rings};
use crate::error::{Errno, PollCqError, RawKind};
use crate::{Payload, QpState, QpType, Qpn, RecvWr, SendFlags, SendOp, SendWr, WcData, WcOpcode, WcStatus};

// contract: poll-once, poll-unsignaled
#[test]
fn a_completion_retires_itself_and_everything_before_it() {
    let mut harness = Harness::new();
    for n in 0..16 {
        harness.verbs.post_send(harness.qp, &SendWr { flags: SendFlags::empty(), ..send(n, &[]) }).unwrap();
    }
    harness.complete(9, WcStatus::Success);
    assert_eq!(harness.poll_ids(), [9]);
    assert_eq!(harness.verbs.qp_info(harness.qp).unwrap().send_blocks, 6);
    harness.complete(15, WcStatus::Success);
    assert_eq!(harness.poll_ids(), [15]);
    assert_eq!(harness.verbs.qp_info(harness.qp).unwrap().send_blocks, 0);
}

#[test]
fn a_completion_says_what_was_asked() {
    let mut harness = Harness::new();
    let sges = [harness.sge(0, 100), harness.sge(0, 28)];
    let flags = SendFlags::SIGNALED;
    harness.verbs.post_send(harness.qp, &SendWr { wr_id: 1, flags, op: SendOp::Read { sges: &sges, remote: REMOTE } }).unwrap();
    let sge = harness.sge(0, 8);
    harness
        .verbs
        .post_send(harness.qp, &SendWr { wr_id: 2, flags, op: SendOp::FetchAdd { sge, remote: REMOTE, add: 1 } })
        .unwrap();
    let mut raw = harness.raw(RawKind::Send, 0, WcStatus::Success);
    raw.byte_len = 3;
    harness.push(raw);
    harness.complete(1, WcStatus::Success);
    let done = harness.poll().unwrap();
    assert_eq!(
        (done[0].opcode, done[0].byte_len, done[0].qp, done[0].qpn),
        (WcOpcode::RdmaRead, 128, harness.qp, harness.qpn())
    );
    assert_eq!((done[1].opcode, done[1].byte_len), (WcOpcode::FetchAdd, 8));
}

#[test]
fn receives_carry_what_the_peer_sent() {
    let mut harness = Harness::new();
    for wr_id in 0..3 {
        harness.verbs.post_recv(harness.qp, &RecvWr { wr_id, sges: &[] }).unwrap();
    }
    for (index, kind) in [(0, RawKind::Recv), (1, RawKind::RecvRdmaWithImm)] {
        let mut raw = harness.raw(kind, index, WcStatus::Success);
        (raw.byte_len, raw.data) = (33, WcData::Imm([1, 2, 3, 4]));
        harness.push(raw);
    }
    let done = harness.poll().unwrap();
    assert_eq!((done[0].wr_id, done[0].opcode, done[0].byte_len), (0, WcOpcode::Recv, 33));
    assert_eq!((done[1].wr_id, done[1].opcode, done[1].data), (1, WcOpcode::RecvRdmaWithImm, WcData::Imm([1, 2, 3, 4])));
    assert_eq!(harness.verbs.qp_info(harness.qp).unwrap().recvs, 1);
}

/// Each invalid completion of a device is one error, with the completions around it intact.
#[test]
fn an_invalid_completion_is_an_error_at_its_place() {
    type Spoil = fn(&mut crate::backend::RawCompletion);
    let spoil: [(&str, Spoil); 6] = [
        ("another queue pair", |raw| raw.qpn = Qpn::new(0xff_fff0)),
        ("a queue pair beyond 24 bits", |raw| raw.qpn = Qpn::new(u32::MAX)),
        ("a request not posted yet", |raw| raw.index = 3),
        ("a request retired", |raw| raw.index = 0xffff),
        ("the middle of a request", |raw| raw.index = 2),
        ("a receive never posted", |raw| raw.kind = RawKind::Recv),
    ];
    for (what, spoil) in spoil {
        let mut harness = Harness::new();
        harness.verbs.post_send(harness.qp, &send(1, &[])).unwrap();
        let long = SendOp::Write { payload: Payload::Inline(&[0; 64]), remote: REMOTE };
        harness.verbs.post_send(harness.qp, &SendWr { wr_id: 2, flags: SendFlags::SIGNALED, op: long }).unwrap();
        harness.complete(0, WcStatus::Success);
        let mut raw = harness.raw(RawKind::Send, 1, WcStatus::Success);
        spoil(&mut raw);
        harness.push(raw);
        harness.complete(1, WcStatus::Success);
        assert_eq!(harness.poll_ids(), [1], "{what}");
        let error = harness.poll().unwrap_err();
        assert_eq!(error.errno(), Errno::Ebadmsg, "{what}");
        let named = match error {
            PollCqError::UnknownQp { qpn, .. } => qpn == raw.qpn,
            PollCqError::UnknownRequest { qp, kind, index } => (qp, kind, index) == (harness.qp, raw.kind, raw.index),
            _ => false,
        };
        assert!(named, "{what}: {error}");
        assert_eq!(harness.poll_ids(), [2], "{what}");
        assert!(harness.poll_ids().is_empty());
    }
}

#[test]
fn a_request_of_the_last_lap_is_not_found_in_the_middle_of_one() {
    let mut harness = Harness::new();
    for n in 0..16 {
        harness.verbs.post_send(harness.qp, &SendWr { flags: SendFlags::empty(), ..send(n, &[]) }).unwrap();
    }
    harness.complete(15, WcStatus::Success);
    assert_eq!(harness.poll_ids(), [15]);
    let op = SendOp::Write { payload: Payload::Inline(&[0; 128]), remote: REMOTE };
    harness.verbs.post_send(harness.qp, &SendWr { wr_id: 16, flags: SendFlags::SIGNALED, op }).unwrap();
    harness.complete(17, WcStatus::Success);
    harness.complete(18, WcStatus::Success);
    assert!(matches!(harness.poll(), Err(PollCqError::UnknownRequest { index: 17, .. })));
    assert!(matches!(harness.poll(), Err(PollCqError::UnknownRequest { index: 18, .. })));
    harness.complete(16, WcStatus::Success);
    assert_eq!(harness.poll_ids(), [16]);
}

#[test]
fn a_cookie_is_believed_no_more_than_the_number() {
    for (n, cookie) in (0..4_u16).zip([None, Some(1), Some(u32::MAX), Some(0xab_0000)]) {
        let mut harness = Harness::new();
        harness.verbs.post_send(harness.qp, &send(u64::from(n), &[])).unwrap();
        let (cqn, raw) = (harness.cqn(), harness.raw(RawKind::Send, 0, WcStatus::Success));
        harness.device().put_entry(cqn, Entry { raw: Ok(raw), cookie });
        assert_eq!(harness.poll_ids(), [u64::from(n)]);
    }
}

/// The cookie names a queue pair that has such a request, the number another one: no request of the first is taken for it.
#[test]
fn a_completion_of_no_queue_pair_is_not_that_of_its_cookie() {
    for kind in [RawKind::Send, RawKind::Recv] {
        let mut harness = Harness::new();
        harness.verbs.post_send(harness.qp, &send(1, &[])).unwrap();
        harness.verbs.post_recv(harness.qp, &RecvWr { wr_id: 2, sges: &[] }).unwrap();
        let (cqn, qpn) = (harness.cqn(), Qpn::new(0xff_fff0));
        let raw = crate::backend::RawCompletion { qpn, ..harness.raw(kind, 0, WcStatus::Success) };
        let cookie = Some(u32::from(harness.qp.index()));
        harness.device().put_entry(cqn, Entry { raw: Ok(raw), cookie });
        assert!(matches!(harness.poll(), Err(PollCqError::UnknownQp { qpn: named, .. }) if named == qpn));
        let info = harness.verbs.qp_info(harness.qp).unwrap();
        assert_eq!((info.send_blocks, info.recvs), (1, 1), "{kind:?}");
    }
}

/// A cookie that is not compared is not given to the device either.
#[test]
fn a_cookie_is_the_slot_after_each_reuse() {
    let mut harness = Harness::new();
    for _ in 0..3 {
        let cookie = harness.device().qps[&harness.qpn()].cookie;
        assert_eq!(cookie, u32::from(harness.qp.index()));
        harness.verbs.destroy_qp(harness.qp).unwrap();
        assert_eq!(harness.poll_ids(), []);
        harness.qp = harness.verbs.create_qp(&harness.init(QpType::Rc)).unwrap();
    }
}

#[test]
fn a_completion_in_the_wrong_queue_is_refused() {
    let mut harness = Harness::new();
    let other = harness.verbs.create_cq(4).unwrap();
    harness.verbs.post_send(harness.qp, &send(1, &[])).unwrap();
    let raw = harness.raw(RawKind::Send, 0, WcStatus::Success);
    let cqn = harness.verbs.cq_info(other).unwrap().cqn;
    harness.device().complete(cqn, raw);
    let error = harness.verbs.poll_cq(other, &mut [crate::Completion::EMPTY]).unwrap_err();
    assert_eq!(error, PollCqError::UnknownQp { qpn: harness.qpn(), cqn });
}

#[test]
fn a_receive_in_the_wrong_queue_is_refused() {
    let mut harness = Harness::new();
    let other = harness.verbs.create_cq(4).unwrap();
    harness.verbs.post_recv(harness.qp, &RecvWr { wr_id: 1, sges: &[] }).unwrap();
    let raw = harness.raw(RawKind::Recv, 0, WcStatus::Success);
    let cqn = harness.verbs.cq_info(other).unwrap().cqn;
    // By a poll of one and by a loop.
    for mut out in [std::vec![crate::Completion::EMPTY], std::vec![crate::Completion::EMPTY; 2]] {
        harness.device().complete(cqn, raw);
        assert_eq!(harness.verbs.poll_cq(other, &mut out), Err(PollCqError::UnknownQp { qpn: harness.qpn(), cqn }));
        assert_eq!(harness.verbs.qp_info(harness.qp).unwrap().recvs, 1);
    }
}

/// The device is notified of every free entry, however the completion was taken.
#[test]
fn each_way_of_polling_publishes_the_consumer_index() {
    let mut harness = Harness::new();
    for n in 0..4 {
        harness.verbs.post_send(harness.qp, &send(n, &[])).unwrap();
    }
    let mut one = [crate::Completion::EMPTY];
    harness.complete(0, WcStatus::Success);
    assert_eq!((harness.verbs.poll_cq(harness.cq, &mut one), harness.device().consumed), (Ok(1), 1), "one, on the fast path");
    harness.complete(9, WcStatus::Success);
    assert!(harness.verbs.poll_cq(harness.cq, &mut one).is_err());
    assert_eq!(harness.device().consumed, 2, "an error");
    harness.complete(1, WcStatus::Success);
    assert_eq!(harness.verbs.completions(harness.cq).count(), 1);
    assert_eq!(harness.device().consumed, 3, "the iterator");
    harness.complete(2, WcStatus::RemAccessErr);
    assert_eq!(harness.verbs.completions(harness.cq).count(), 1);
    assert_eq!(harness.device().consumed, 4, "the iterator, not on the fast path");
}

#[test]
fn what_is_no_completion_waits_behind_those_before_it() {
    let mut harness = Harness::new();
    let cqn = harness.cqn();
    for n in 0..2 {
        harness.verbs.post_send(harness.qp, &send(n, &[])).unwrap();
    }
    harness.complete(0, WcStatus::Success);
    harness.device().put_entry(cqn, Entry { raw: Err(7), cookie: None });
    harness.complete(1, WcStatus::Success);
    assert_eq!(harness.poll_ids(), [0]);
    assert_eq!(harness.poll(), Err(PollCqError::BadCompletion { cqn, opcode: 7 }));
    assert_eq!(harness.poll_ids(), [1]);
    assert_eq!(harness.poll(), Ok(std::vec![]));
}

/// An error that a poll has left behind is returned by the next call of any kind, at its place in the order.
#[test]
fn an_error_that_waits_comes_by_each_way_of_polling() {
    let mut harness = Harness::new();
    let cqn = harness.cqn();
    let bad = PollCqError::BadCompletion { cqn, opcode: 7 };
    for n in 0..8 {
        harness.verbs.post_send(harness.qp, &send(n, &[])).unwrap();
    }
    for n in [0, 2, 4] {
        harness.complete(n, WcStatus::Success);
        harness.device().put_entry(cqn, Entry { raw: Err(7), cookie: None });
        harness.complete(n + 1, WcStatus::Success);
    }
    let given = |item: Result<crate::Completion, PollCqError>| item.map(|done| done.wr_id);
    assert_eq!(harness.poll_ids(), [0]);
    let items: std::vec::Vec<_> = harness.verbs.completions(harness.cq).take(3).map(given).collect();
    assert_eq!(items, [Err(bad), Ok(1), Ok(2)]);
    assert_eq!(harness.poll(), Err(bad));
    assert_eq!(harness.poll_ids(), [3, 4]);
    let items: std::vec::Vec<_> = harness.verbs.completions(harness.cq).map(given).collect();
    assert_eq!(items, [Err(bad), Ok(5)]);
}

/// An invalid completion that waits is dropped when its queue pair is reset.
#[test]
fn an_error_that_waits_ends_with_its_queue_pair() {
    let mut harness = Harness::new();
    harness.verbs.post_send(harness.qp, &send(1, &[])).unwrap();
    harness.complete(0, WcStatus::Success);
    harness.complete(9, WcStatus::Success);
    assert_eq!(harness.poll_ids(), [1]);
    harness.step(harness.qp, QpState::Reset);
    assert_eq!(harness.poll(), Ok(std::vec![]));
}

#[test]
fn polling_takes_no_more_than_fits_and_tells_the_device_once() {
    let mut harness = Harness::new();
    for n in 0..16 {
        harness.verbs.post_send(harness.qp, &send(n, &[])).unwrap();
        harness.complete(u16::try_from(n).unwrap(), WcStatus::Success);
    }
    assert_eq!(harness.poll_ids(), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(harness.device().consumed, 1);
    assert_eq!(harness.verbs.poll_cq(harness.cq, &mut []), Ok(0));
    assert_eq!(harness.poll_ids(), [8, 9, 10, 11, 12, 13, 14, 15]);
    assert!(harness.poll_ids().is_empty());
    assert_eq!(harness.device().consumed, 2, "an empty poll publishes nothing");
    let cqn = harness.verbs.cq_info(harness.cq).unwrap().cqn;
    assert_eq!(harness.device().entries(cqn).len(), 0);
}

#[test]
fn an_error_moves_the_queue_pair_and_the_rest_is_flushed_in_order() {
    for (qp_type, after) in [(QpType::Rc, QpState::Err), (QpType::Uc, QpState::Sqe)] {
        let mut harness = Harness::with(qp_type, false);
        for n in 0..4 {
            harness.verbs.post_send(harness.qp, &SendWr { flags: SendFlags::empty(), ..send(n, &[]) }).unwrap();
        }
        harness.verbs.post_recv(harness.qp, &RecvWr { wr_id: 9, sges: &[] }).unwrap();
        let mut raw = harness.raw(RawKind::Send, 1, WcStatus::RemAccessErr);
        raw.vendor_err = 0x88;
        harness.push(raw);
        harness.complete(2, WcStatus::WrFlushErr);
        harness.complete(3, WcStatus::WrFlushErr);
        let done = harness.poll().unwrap();
        let ends: std::vec::Vec<_> = done.iter().map(|done| (done.wr_id, done.status, done.vendor_err)).collect();
        let flushed = WcStatus::WrFlushErr;
        assert_eq!(ends, [(1, WcStatus::RemAccessErr, 0x88), (2, flushed, 0), (3, flushed, 0)]);
        assert_eq!(harness.verbs.qp_info(harness.qp).unwrap().state, after, "{qp_type:?}");
        assert_eq!(harness.verbs.post_send(harness.qp, &send(5, &[])).unwrap_err().errno(), Errno::Enotconn);
        let raw = harness.raw(RawKind::Recv, 0, WcStatus::WrFlushErr);
        harness.push(raw);
        assert_eq!(harness.poll_ids(), [9]);
        assert_eq!(harness.verbs.qp_info(harness.qp).unwrap().state, QpState::Err);
    }
}

/// Rings walk over a wrap of their counters with requests of one to three blocks, completions now and then.
#[test]
fn rings_cross_each_wrap() {
    for wrap in [1_u64 << 16, 1 << 24, 1 << 32] {
        // Miri takes minutes over all.
        for before in (0..20).step_by(if cfg!(miri) { 19 } else { 1 }) {
            let start = u32::try_from(wrap - 1 - before).unwrap();
            let mut harness = Harness::new();
            start_rings(&mut harness.verbs, harness.qp, start);
            let mut at = start;
            for n in 0..40_u64 {
                let bytes = [0; 128];
                let length = [0, 64, 128][usize::try_from(n % 3).unwrap()];
                let op = SendOp::Write { payload: Payload::Inline(&bytes[..length]), remote: REMOTE };
                let blocks = [1, 2, 3][usize::try_from(n % 3).unwrap()];
                harness.verbs.post_send(harness.qp, &SendWr { wr_id: n, flags: SendFlags::SIGNALED, op }).unwrap();
                assert_eq!(harness.device().sent.last().unwrap().at, at);
                harness.verbs.post_recv(harness.qp, &RecvWr { wr_id: 1000 + n, sges: &[] }).unwrap();
                let entry = start.wrapping_add(u32::try_from(n).unwrap());
                assert_eq!(harness.device().received.last().unwrap().1, entry);
                // Every second request completes, and with it the one before.
                if n % 2 == 1 {
                    harness.complete(at as u16, WcStatus::Success);
                    assert_eq!(harness.poll_ids(), [n]);
                    assert_eq!(harness.verbs.qp_info(harness.qp).unwrap().send_blocks, 0);
                }
                let raw = harness.raw(RawKind::Recv, entry as u16, WcStatus::Success);
                harness.push(raw);
                assert_eq!(harness.poll_ids(), [1000 + n]);
                at = at.wrapping_add(blocks);
            }
        }
    }
}

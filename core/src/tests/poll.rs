//! Completions: what they retire, what makes no sense, and the wraps of the rings.

use super::mock::Entry;
use super::post::{REMOTE, send};
use super::{Rig, start_rings};
use crate::{
    Errno, Payload, PollCqError, QpState, QpType, Qpn, RawKind, RecvWr, SendFlags, SendOp, SendWr, WcData, WcOpcode, WcStatus,
};

#[test]
fn a_completion_retires_itself_and_everything_before_it() {
    let mut rig = Rig::new();
    for n in 0..16 {
        rig.verbs.post_send(rig.qp, &SendWr { flags: SendFlags::empty(), ..send(n, &[]) }).unwrap();
    }
    rig.complete(9, WcStatus::Success);
    assert_eq!(rig.poll_ids(), [9]);
    assert_eq!(rig.verbs.qp(rig.qp).unwrap().send_blocks, 6);
    rig.complete(15, WcStatus::Success);
    assert_eq!(rig.poll_ids(), [15]);
    assert_eq!(rig.verbs.qp(rig.qp).unwrap().send_blocks, 0);
}

#[test]
fn a_completion_says_what_was_asked() {
    let mut rig = Rig::new();
    let sges = [rig.sge(0, 100), rig.sge(0, 28)];
    let flags = SendFlags::SIGNALED;
    rig.verbs.post_send(rig.qp, &SendWr { wr_id: 1, flags, op: SendOp::Read { sges: &sges, remote: REMOTE } }).unwrap();
    let sge = rig.sge(0, 8);
    rig.verbs.post_send(rig.qp, &SendWr { wr_id: 2, flags, op: SendOp::FetchAdd { sge, remote: REMOTE, add: 1 } }).unwrap();
    let mut raw = rig.raw(RawKind::Send, 0, WcStatus::Success);
    raw.byte_len = 3;
    rig.push(raw);
    rig.complete(1, WcStatus::Success);
    let done = rig.poll().unwrap();
    assert_eq!((done[0].opcode, done[0].byte_len, done[0].qp, done[0].qpn), (WcOpcode::RdmaRead, 128, rig.qp, rig.qpn()));
    assert_eq!((done[1].opcode, done[1].byte_len), (WcOpcode::FetchAdd, 8));
}

#[test]
fn receives_carry_what_the_peer_sent() {
    let mut rig = Rig::new();
    for wr_id in 0..3 {
        rig.verbs.post_recv(rig.qp, &RecvWr { wr_id, sges: &[] }).unwrap();
    }
    for (index, kind) in [(0, RawKind::Recv), (1, RawKind::RecvRdmaWithImm)] {
        let mut raw = rig.raw(kind, index, WcStatus::Success);
        (raw.byte_len, raw.data) = (33, WcData::Imm([1, 2, 3, 4]));
        rig.push(raw);
    }
    let done = rig.poll().unwrap();
    assert_eq!((done[0].wr_id, done[0].opcode, done[0].byte_len), (0, WcOpcode::Recv, 33));
    assert_eq!((done[1].wr_id, done[1].opcode, done[1].data), (1, WcOpcode::RecvRdmaWithImm, WcData::Imm([1, 2, 3, 4])));
    assert_eq!(rig.verbs.qp(rig.qp).unwrap().recvs, 1);
}

/// What a device may say that makes no sense, each as one error, with the completions round it intact.
#[test]
fn nonsense_is_an_error_of_its_own() {
    type Spoil = fn(&mut crate::RawCompletion);
    let spoil: [(&str, Spoil); 6] = [
        ("another queue pair", |raw| raw.qpn = Qpn::new(0xff_fff0)),
        ("a queue pair beyond 24 bits", |raw| raw.qpn = Qpn::new(u32::MAX)),
        ("a request not posted yet", |raw| raw.index = 3),
        ("a request retired", |raw| raw.index = 0xffff),
        ("the middle of a request", |raw| raw.index = 2),
        ("a receive never posted", |raw| raw.kind = RawKind::Recv),
    ];
    for (what, spoil) in spoil {
        let mut rig = Rig::new();
        rig.verbs.post_send(rig.qp, &send(1, &[])).unwrap();
        let long = SendOp::Write { payload: Payload::Inline(&[0; 64]), remote: REMOTE };
        rig.verbs.post_send(rig.qp, &SendWr { wr_id: 2, flags: SendFlags::SIGNALED, op: long }).unwrap();
        rig.complete(0, WcStatus::Success);
        let mut raw = rig.raw(RawKind::Send, 1, WcStatus::Success);
        spoil(&mut raw);
        rig.push(raw);
        rig.complete(1, WcStatus::Success);
        assert_eq!(rig.poll_ids(), [1], "{what}");
        let error = rig.poll().unwrap_err();
        assert_eq!(error.errno(), Errno::Ebadmsg, "{what}");
        let named = match error {
            PollCqError::UnknownQp { qpn, .. } => qpn == raw.qpn,
            PollCqError::UnknownRequest { qp, kind, index } => (qp, kind, index) == (rig.qp, raw.kind, raw.index),
            _ => false,
        };
        assert!(named, "{what}: {error}");
        assert_eq!(rig.poll_ids(), [2], "{what}");
        assert!(rig.poll_ids().is_empty());
    }
}

#[test]
fn a_request_of_the_lap_before_is_not_found_in_the_middle_of_one() {
    let mut rig = Rig::new();
    for n in 0..16 {
        rig.verbs.post_send(rig.qp, &SendWr { flags: SendFlags::empty(), ..send(n, &[]) }).unwrap();
    }
    rig.complete(15, WcStatus::Success);
    assert_eq!(rig.poll_ids(), [15]);
    let op = SendOp::Write { payload: Payload::Inline(&[0; 128]), remote: REMOTE };
    rig.verbs.post_send(rig.qp, &SendWr { wr_id: 16, flags: SendFlags::SIGNALED, op }).unwrap();
    rig.complete(17, WcStatus::Success);
    rig.complete(18, WcStatus::Success);
    assert!(matches!(rig.poll(), Err(PollCqError::UnknownRequest { index: 17, .. })));
    assert!(matches!(rig.poll(), Err(PollCqError::UnknownRequest { index: 18, .. })));
    rig.complete(16, WcStatus::Success);
    assert_eq!(rig.poll_ids(), [16]);
}

#[test]
fn a_cookie_is_believed_no_more_than_the_number() {
    for (n, cookie) in (0..4_u16).zip([None, Some(1), Some(u32::MAX), Some(0xab_0000)]) {
        let mut rig = Rig::new();
        rig.verbs.post_send(rig.qp, &send(u64::from(n), &[])).unwrap();
        let (cqn, raw) = (rig.cqn(), rig.raw(RawKind::Send, 0, WcStatus::Success));
        rig.device().put_entry(cqn, Entry { raw: Ok(raw), cookie });
        assert_eq!(rig.poll_ids(), [u64::from(n)]);
    }
}

/// What is not compared is not given to the device either.
#[test]
fn a_cookie_is_the_slot_in_each_life() {
    let mut rig = Rig::new();
    for _ in 0..3 {
        let cookie = rig.device().qps[&rig.qpn()].cookie;
        assert_eq!(cookie, u32::from(rig.qp.index()));
        rig.verbs.destroy_qp(rig.qp).unwrap();
        rig.qp = rig.verbs.create_qp(&rig.init(QpType::Rc)).unwrap();
    }
}

#[test]
fn a_completion_in_the_wrong_queue_is_refused() {
    let mut rig = Rig::new();
    let other = rig.verbs.create_cq(4).unwrap();
    rig.verbs.post_send(rig.qp, &send(1, &[])).unwrap();
    let raw = rig.raw(RawKind::Send, 0, WcStatus::Success);
    let cqn = rig.verbs.cq(other).unwrap().cqn;
    rig.device().complete(cqn, raw);
    let error = rig.verbs.poll_cq(other, &mut [crate::Completion::EMPTY]).unwrap_err();
    assert_eq!(error, PollCqError::UnknownQp { qpn: rig.qpn(), cqn });
}

#[test]
fn a_receive_in_the_wrong_queue_is_refused() {
    let mut rig = Rig::new();
    let other = rig.verbs.create_cq(4).unwrap();
    rig.verbs.post_recv(rig.qp, &RecvWr { wr_id: 1, sges: &[] }).unwrap();
    let raw = rig.raw(RawKind::Recv, 0, WcStatus::Success);
    let cqn = rig.verbs.cq(other).unwrap().cqn;
    // By a poll of one and by a loop.
    for mut out in [std::vec![crate::Completion::EMPTY], std::vec![crate::Completion::EMPTY; 2]] {
        rig.device().complete(cqn, raw);
        assert_eq!(rig.verbs.poll_cq(other, &mut out), Err(PollCqError::UnknownQp { qpn: rig.qpn(), cqn }));
        assert_eq!(rig.verbs.qp(rig.qp).unwrap().recvs, 1);
    }
}

/// The device learns of every place that is free, by whichever way the completion was taken.
#[test]
fn each_way_of_polling_tells_the_device_what_it_took() {
    let mut rig = Rig::new();
    for n in 0..4 {
        rig.verbs.post_send(rig.qp, &send(n, &[])).unwrap();
    }
    let mut one = [crate::Completion::EMPTY];
    rig.complete(0, WcStatus::Success);
    assert_eq!((rig.verbs.poll_cq(rig.cq, &mut one), rig.device().consumed), (Ok(1), 1), "one, on the fast path");
    rig.complete(9, WcStatus::Success);
    assert!(rig.verbs.poll_cq(rig.cq, &mut one).is_err());
    assert_eq!(rig.device().consumed, 2, "an error");
    rig.complete(1, WcStatus::Success);
    assert_eq!(rig.verbs.completions(rig.cq).unwrap().count(), 1);
    assert_eq!(rig.device().consumed, 3, "the iterator");
    rig.complete(2, WcStatus::RemAccessErr);
    assert_eq!(rig.verbs.completions(rig.cq).unwrap().count(), 1);
    assert_eq!(rig.device().consumed, 4, "the iterator, not on the fast path");
}

#[test]
fn what_is_no_completion_waits_behind_those_before_it() {
    let mut rig = Rig::new();
    let cqn = rig.cqn();
    for n in 0..2 {
        rig.verbs.post_send(rig.qp, &send(n, &[])).unwrap();
    }
    rig.complete(0, WcStatus::Success);
    rig.device().put_entry(cqn, Entry { raw: Err(7), cookie: None });
    rig.complete(1, WcStatus::Success);
    assert_eq!(rig.poll_ids(), [0]);
    assert_eq!(rig.poll(), Err(PollCqError::BadCompletion { cqn, opcode: 7 }));
    assert_eq!(rig.poll_ids(), [1]);
    assert_eq!(rig.poll(), Ok(std::vec![]));
}

/// An error that a poll has left behind is returned by the next call of any kind, at its place in the order.
#[test]
fn an_error_that_waits_comes_by_each_way_of_polling() {
    let mut rig = Rig::new();
    let cqn = rig.cqn();
    let bad = PollCqError::BadCompletion { cqn, opcode: 7 };
    for n in 0..8 {
        rig.verbs.post_send(rig.qp, &send(n, &[])).unwrap();
    }
    for n in [0, 2, 4] {
        rig.complete(n, WcStatus::Success);
        rig.device().put_entry(cqn, Entry { raw: Err(7), cookie: None });
        rig.complete(n + 1, WcStatus::Success);
    }
    let given = |item: Result<crate::Completion, PollCqError>| item.map(|done| done.wr_id);
    assert_eq!(rig.poll_ids(), [0]);
    let items: std::vec::Vec<_> = rig.verbs.completions(rig.cq).unwrap().take(3).map(given).collect();
    assert_eq!(items, [Err(bad), Ok(1), Ok(2)]);
    assert_eq!(rig.poll(), Err(bad));
    assert_eq!(rig.poll_ids(), [3, 4]);
    let items: std::vec::Vec<_> = rig.verbs.completions(rig.cq).unwrap().map(given).collect();
    assert_eq!(items, [Err(bad), Ok(5)]);
}

/// What makes no sense and waits is not given any more when its queue pair is reset.
#[test]
fn an_error_that_waits_ends_with_its_queue_pair() {
    let mut rig = Rig::new();
    rig.verbs.post_send(rig.qp, &send(1, &[])).unwrap();
    rig.complete(0, WcStatus::Success);
    rig.complete(9, WcStatus::Success);
    assert_eq!(rig.poll_ids(), [1]);
    rig.step(rig.qp, QpState::Reset);
    assert_eq!(rig.poll(), Ok(std::vec![]));
}

#[test]
fn polling_takes_no_more_than_fits_and_tells_the_device_once() {
    let mut rig = Rig::new();
    for n in 0..16 {
        rig.verbs.post_send(rig.qp, &send(n, &[])).unwrap();
        rig.complete(u16::try_from(n).unwrap(), WcStatus::Success);
    }
    assert_eq!(rig.poll_ids(), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(rig.device().consumed, 1);
    assert_eq!(rig.verbs.poll_cq(rig.cq, &mut []), Ok(0));
    assert_eq!(rig.poll_ids(), [8, 9, 10, 11, 12, 13, 14, 15]);
    assert!(rig.poll_ids().is_empty());
    assert_eq!(rig.device().consumed, 2, "an empty poll publishes nothing");
    let cqn = rig.verbs.cq(rig.cq).unwrap().cqn;
    assert_eq!(rig.device().entries(cqn).len(), 0);
}

#[test]
fn an_error_moves_the_queue_pair_and_the_rest_is_flushed_in_order() {
    for (qp_type, after) in [(QpType::Rc, QpState::Err), (QpType::XrcSend, QpState::Err), (QpType::Uc, QpState::Sqe)] {
        let mut rig = Rig::with(qp_type, false);
        for n in 0..4 {
            rig.verbs.post_send(rig.qp, &SendWr { flags: SendFlags::empty(), ..send(n, &[]) }).unwrap();
        }
        rig.verbs.post_recv(rig.qp, &RecvWr { wr_id: 9, sges: &[] }).unwrap();
        let mut raw = rig.raw(RawKind::Send, 1, WcStatus::RemAccessErr);
        raw.vendor_err = 0x88;
        rig.push(raw);
        rig.complete(2, WcStatus::WrFlushErr);
        rig.complete(3, WcStatus::WrFlushErr);
        let done = rig.poll().unwrap();
        let ends: std::vec::Vec<_> = done.iter().map(|done| (done.wr_id, done.status, done.vendor_err)).collect();
        let flushed = WcStatus::WrFlushErr;
        assert_eq!(ends, [(1, WcStatus::RemAccessErr, 0x88), (2, flushed, 0), (3, flushed, 0)]);
        assert_eq!(rig.verbs.qp(rig.qp).unwrap().state, after, "{qp_type:?}");
        assert_eq!(rig.verbs.post_send(rig.qp, &send(5, &[])).unwrap_err().errno(), Errno::Enotconn);
        let raw = rig.raw(RawKind::Recv, 0, WcStatus::WrFlushErr);
        rig.push(raw);
        assert_eq!(rig.poll_ids(), [9]);
        assert_eq!(rig.verbs.qp(rig.qp).unwrap().state, QpState::Err);
    }
}

/// Rings walk over a wrap of their counters with requests of one to three blocks, completions now and then.
#[test]
fn rings_cross_each_wrap() {
    for wrap in [1_u64 << 16, 1 << 24, 1 << 32] {
        // Miri takes minutes over all.
        for before in (0..20).step_by(if cfg!(miri) { 19 } else { 1 }) {
            let start = u32::try_from(wrap - 1 - before).unwrap();
            let mut rig = Rig::new();
            start_rings(&mut rig.verbs, rig.qp, start);
            let mut at = start;
            for n in 0..40_u64 {
                let bytes = [0; 128];
                let length = [0, 64, 128][usize::try_from(n % 3).unwrap()];
                let op = SendOp::Write { payload: Payload::Inline(&bytes[..length]), remote: REMOTE };
                let blocks = [1, 2, 3][usize::try_from(n % 3).unwrap()];
                rig.verbs.post_send(rig.qp, &SendWr { wr_id: n, flags: SendFlags::SIGNALED, op }).unwrap();
                assert_eq!(rig.device().sent.last().unwrap().at, at);
                rig.verbs.post_recv(rig.qp, &RecvWr { wr_id: 1000 + n, sges: &[] }).unwrap();
                let entry = start.wrapping_add(u32::try_from(n).unwrap());
                assert_eq!(rig.device().received.last().unwrap().1, entry);
                // Every second request completes, and with it the one before.
                if n % 2 == 1 {
                    rig.complete(at as u16, WcStatus::Success);
                    assert_eq!(rig.poll_ids(), [n]);
                    assert_eq!(rig.verbs.qp(rig.qp).unwrap().send_blocks, 0);
                }
                let raw = rig.raw(RawKind::Recv, entry as u16, WcStatus::Success);
                rig.push(raw);
                assert_eq!(rig.poll_ids(), [1000 + n]);
                at = at.wrapping_add(blocks);
            }
        }
    }
}

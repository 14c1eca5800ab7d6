//! What fails: the syndrome on each side, what follows it in the queues, events, and hosts that mean harm.

use std::collections::VecDeque;

use super::super::EngineEvent;
use super::harness::*;
use crate::audit::Finding;
use crate::fault::Fault;
use crate::wire::PerfectWire;
use bareverbs_mlx5_spec::{CmdOpcode, CmdStatus, EventType, QpcState};

const ERR: u32 = 6;

fn syndromes(host: &mut Host, cq: &mut TestCq) -> Vec<(u8, u8, u16)> {
    std::iter::from_fn(|| host.poll(cq)).map(|cqe| (cqe.opcode(), cqe.syndrome(), cqe.counter())).collect()
}

/// Opcode and syndrome of completions.
type Reported = Vec<(u8, u8)>;

struct Failure {
    pair: Pair<PerfectWire>,
    at_a: u64,
    key_a: u32,
    at_b: u64,
    key_b: u32,
}

impl Failure {
    fn new() -> Self {
        let mut pair = Pair::new();
        let ((at_a, key_a), (at_b, key_b)) = pair.buffers(4096);
        Self { pair, at_a, key_a, at_b, key_b }
    }

    /// Posts the request, another after it, and two receives at the peer; returns what was reported on both sides.
    fn run(&mut self, opcode: u8, body: &[u8]) -> (Reported, Reported, Vec<EngineEvent>) {
        let pair = &mut self.pair;
        for _ in 0..2 {
            pair.b.post_receive(&mut pair.qb, &[(self.at_b, 64, self.key_b)]);
        }
        pair.a.post_send(&mut pair.qa, opcode, 0, 0x99, body);
        pair.a.post_send(&mut pair.qa, 0x0a, SIGNALED, 0, &data(self.at_a, 4, self.key_a));
        pair.run();
        let at_a = syndromes(&mut pair.a, &mut pair.qa.send).into_iter().map(|(opcode, code, _)| (opcode, code)).collect();
        let at_b = syndromes(&mut pair.b, &mut pair.qb.receive);
        let indices: Vec<u16> = at_b.iter().map(|(_, _, counter)| *counter).collect();
        assert_eq!(indices, (0..at_b.len() as u16).collect::<Vec<_>>(), "in order");
        let events = pair.b.events();
        (at_a, at_b.into_iter().map(|(opcode, code, _)| (opcode, code)).collect(), events)
    }

    fn write_body(&self, addr: u64, rkey: u32, len: u32) -> Vec<u8> {
        let mut body = raddr(addr, rkey);
        body.extend(data(self.at_a, len, self.key_a));
        body
    }
}

const FLUSHED: (u8, u8) = (0xd, 5);
const FLUSHED_RECEIVES: [(u8, u8); 2] = [(0xe, 5), (0xe, 5)];

fn qp_event(event: EventType, qpn: u32) -> EngineEvent {
    EngineEvent::Qp { event, qpn }
}

#[test]
fn bad_remote_keys() {
    for (case, addr_off, variant) in [("variant", 0, 1u32), ("range", 4000, 0), ("unknown", 0, 0x7700)] {
        let mut failure = Failure::new();
        let body = failure.write_body(failure.at_b + addr_off, failure.key_b ^ variant, 200);
        let (at_a, at_b, events) = failure.run(0x08, &body);
        assert_eq!(at_a, [(0xd, 0x13), FLUSHED], "{case}");
        assert_eq!(at_b, FLUSHED_RECEIVES, "{case}");
        let qpn = failure.pair.qb.qpn;
        assert_eq!(events, [qp_event(EventType::WqAccessError, qpn)], "{case}");
        assert_eq!((failure.pair.a.state(failure.pair.qa.qpn), failure.pair.b.state(qpn)), (ERR, ERR));
        assert_eq!(failure.pair.b.read(failure.at_b, 8), [0; 8], "nothing was written");
    }
}

#[test]
fn rights_are_checked_for_each_operation() {
    // Everything but the right that the operation needs (a, rw, rr, lw, lr from bit 4 down).
    for (opcode, rights) in [(0x08u8, 0x17), (0x10, 0x1b), (0x12, 0x0f)] {
        let mut failure = Failure::new();
        let (at_b, len) = (failure.at_b, 4096);
        let key = failure.pair.b.mkey(at_b, len, rights);
        let mut body = raddr(at_b, key);
        if opcode == 0x12 {
            body.extend(words(&[0, 1, 0, 0]));
        }
        body.extend(data(failure.at_a, 8, failure.key_a));
        let (at_a, _, _) = failure.run(opcode, &body);
        assert_eq!(at_a, [(0xd, 0x13), FLUSHED], "opcode {opcode:#x}");
    }
}

#[test]
fn requests_that_the_queue_pair_does_not_allow() {
    let mut failure = Failure::new();
    let mut body = raddr(failure.at_b + 4, failure.key_b);
    body.extend(words(&[0, 1, 0, 0]));
    body.extend(data(failure.at_a, 8, failure.key_a));
    let (at_a, _, events) = failure.run(0x12, &body);
    assert_eq!(at_a, [(0xd, 0x12), FLUSHED], "not aligned");
    assert_eq!(events, [qp_event(EventType::WqInvalReqError, failure.pair.qb.qpn)]);
}

#[test]
fn message_longer_than_the_receive() {
    let mut failure = Failure::new();
    let body = data(failure.at_a, 65, failure.key_a);
    let (at_a, at_b, events) = failure.run(0x0a, &body);
    assert_eq!(at_a, [(0xd, 0x12), FLUSHED]);
    assert_eq!(at_b, [(0xe, 0x01), (0xe, 0x05)]);
    assert_eq!(events, [], "the completion reports it");
}

#[test]
fn receive_with_a_bad_key() {
    let mut failure = Failure::new();
    let (at_b, key_b) = (failure.at_b, failure.key_b);
    failure.pair.b.post_receive(&mut failure.pair.qb, &[(at_b, 64, key_b ^ 1)]);
    let body = data(failure.at_a, 4, failure.key_a);
    let (at_a, at_b, _) = failure.run(0x0a, &body);
    assert_eq!(at_a, [(0xd, 0x14), FLUSHED]);
    assert_eq!(at_b, [(0xe, 0x04), (0xe, 0x05), (0xe, 0x05)]);
}

#[test]
fn bad_local_key_fails_after_what_was_before_it() {
    let mut failure = Failure::new();
    let (at_a, key_a) = (failure.at_a, failure.key_a);
    let pair = &mut failure.pair;
    pair.a.post_send(&mut pair.qa, 0x08, SIGNALED, 0, &[raddr(failure.at_b, failure.key_b), data(at_a, 1000, key_a)].concat());
    let body = data(at_a, 4, key_a ^ 1);
    let (at_a, at_b, _) = failure.run(0x0a, &body);
    assert_eq!(at_a, [(0, at_a[0].1), (0xd, 0x04), FLUSHED]);
    assert_eq!(at_b, [], "the peer never heard of it");
}

#[test]
fn destroyed_key_is_reported() {
    let mut failure = Failure::new();
    let key = failure.key_a;
    failure.pair.a.engine.destroy_mkey(key >> 8).unwrap();
    let body = data(failure.at_a, 4, key);
    let (at_a, _, _) = failure.run(0x0a, &body);
    assert_eq!(at_a, [(0xd, 0x04), FLUSHED]);
    assert_eq!(failure.pair.a.audit.findings(), [Finding::KeyAfterDestroy { key }]);
}

#[test]
fn malformed_wqes() {
    let mut failure = Failure::new();
    let (at_a, _, _) = failure.run(0x77, &[]);
    assert_eq!(at_a, [(0xd, 0x02), FLUSHED]);
}

#[test]
fn error_state_flushes_what_is_posted_later() {
    let mut failure = Failure::new();
    let pair = &mut failure.pair;
    let qpn = pair.qa.qpn;
    pair.a.post_receive(&mut pair.qa, &[(failure.at_a, 4, failure.key_a)]);
    pair.a.modify(qpn, CmdOpcode::Qp2Err, 0, |_| {}).unwrap();
    assert_eq!(syndromes(&mut pair.a, &mut pair.qa.receive), [(0xe, 5, 0)]);
    pair.a.post_receive(&mut pair.qa, &[(failure.at_a, 4, failure.key_a)]);
    let body = [raddr(0, 0), inline(&[1; 100])].concat();
    pair.a.post_send(&mut pair.qa, 0x08, 0, 0, &body);
    pair.a.post_send(&mut pair.qa, 0x0a, 0, 0, &[]);
    pair.run();
    assert_eq!(syndromes(&mut pair.a, &mut pair.qa.receive), [(0xe, 5, 1)]);
    assert_eq!(syndromes(&mut pair.a, &mut pair.qa.send), [(0xd, 5, 0), (0xd, 5, 3)]);
    // Destroying leaves nothing.
    pair.a.engine.destroy_qp(qpn).unwrap();
    pair.run();
    assert_eq!(pair.a.engine.counts().qps, 0);
}

#[test]
fn transitions_from_the_wrong_state() {
    let mut host = Host::new(1);
    let qp = host.qp(4, 4, 4);
    assert_eq!(host.modify(qp.qpn, CmdOpcode::Rtr2RtsQp, 0, |_| {}), Err(CmdStatus::BadQpState));
    assert_eq!(host.modify(qp.qpn, CmdOpcode::CreateQp, 0, |_| {}), Err(CmdStatus::BadOp));
    assert_eq!(host.modify(99, CmdOpcode::Rst2InitQp, 0, |_| {}), Err(CmdStatus::BadRes));
    host.modify(qp.qpn, CmdOpcode::Rst2InitQp, 0, |_| {}).unwrap();
    assert_eq!(host.modify(qp.qpn, CmdOpcode::Init2RtrQp, 0, |_| {}), Err(CmdStatus::BadParam), "no MTU");
    assert_eq!(host.state(qp.qpn), QpcState::Init.code());
    assert_eq!(host.engine.destroy_cq(qp.send.cqn), Err(CmdStatus::BadResState));
}

#[test]
fn completion_queue_overrun() {
    let mut failure = Failure::new();
    let pair = &mut failure.pair;
    let mut qp = pair.a.qp(4, 4, 1);
    pair.a.connect(qp.qpn, 2, pair.qb.qpn, Link::default());
    for _ in 0..3 {
        pair.a.post_send(&mut qp, 0x00, SIGNALED, 0, &[]);
    }
    pair.run();
    let (cqn, qpn) = (qp.send.cqn, qp.qpn);
    let expected = [EngineEvent::CqError { cqn, syndrome: 1 }, qp_event(EventType::WqCatasError, qpn)];
    assert_eq!(pair.a.events(), expected);
    assert_eq!(pair.a.state(qpn), ERR);
    let reported: Vec<_> = std::iter::from_fn(|| pair.a.poll(&mut qp.send)).map(|cqe| cqe.counter()).collect();
    assert_eq!(reported, [0, 1], "what was there stays");
}

#[test]
fn injected_completion_faults() {
    let mut failure = Failure::new();
    let pair = &mut failure.pair;
    let cqn = pair.qa.send.cqn;
    let nops = |pair: &mut Pair<_>, count: u32| -> Vec<TestCqe> {
        for _ in 0..count {
            pair.a.post_send(&mut pair.qa, 0x00, SIGNALED, 0, &[]);
        }
        pair.run();
        std::iter::from_fn(|| pair.a.poll(&mut pair.qa.send)).collect()
    };
    pair.a.faults.arm(Fault::DropCqe { cqn });
    assert_eq!(nops(pair, 2).iter().map(TestCqe::counter).collect::<Vec<_>>(), [1]);
    pair.a.faults.arm(Fault::RepeatCqe { cqn });
    assert_eq!(nops(pair, 1).iter().map(TestCqe::counter).collect::<Vec<_>>(), [2, 2]);
    pair.a.faults.arm(Fault::ForeignQpn { cqn, qpn: 0x123 });
    pair.a.faults.arm(Fault::WrongWqeCounter { cqn, counter: 0x4444 });
    pair.a.faults.arm(Fault::CqeOpcode { cqn, opcode: 3 });
    let odd = nops(pair, 1)[0];
    assert_eq!((odd.qpn(), odd.user_index(), odd.counter(), odd.opcode()), (0x123, 0x123, 0x4444, 3));
    pair.a.faults.arm(Fault::WrongOwner { cqn });
    assert_eq!(nops(pair, 1), []);
}

#[test]
fn doorbells_are_audited() {
    let mut failure = Failure::new();
    let pair = &mut failure.pair;
    let qpn = pair.qa.qpn;
    let doorbell = pair.a.write_send(&mut pair.qa, 0x00, SIGNALED, 0, &[]);
    let record = pair.qa.dbr + 4;
    pair.a.write(record, &0u32.to_be_bytes());
    pair.a.with(|engine, ctx| engine.ring_send(ctx, qpn, doorbell));
    assert_eq!(pair.a.audit.findings(), [Finding::DoorbellPastRecord { qpn, doorbell: 0, record: 0 }]);
    pair.run();
    assert_eq!(pair.a.poll(&mut pair.qa.send), None, "the record decides");
    pair.a.audit = Default::default();
    pair.a.write(record, &1u32.to_be_bytes());
    // The index in the wrong byte order: the queue has not been there.
    let mut other = doorbell;
    other[1] = 1;
    pair.a.with(|engine, ctx| engine.ring_send(ctx, qpn, other));
    let past = Finding::DoorbellPastRecord { qpn, doorbell: 0x100, record: 1 };
    assert_eq!(pair.a.audit.findings(), [past, Finding::DoorbellNotWqe { qpn, index: 0x100 }]);
    pair.a.audit = Default::default();
    let mut other = doorbell;
    other[3] = 0x0a;
    pair.a.with(|engine, ctx| engine.ring_send(ctx, qpn, other));
    assert_eq!(pair.a.audit.findings(), [Finding::DoorbellNotWqe { qpn, index: 0 }]);
    pair.a.audit = Default::default();
    pair.a.write(record, &500u32.to_be_bytes());
    pair.a.with(|engine, ctx| engine.ring_send(ctx, qpn, doorbell));
    assert_eq!(pair.a.audit.findings(), [Finding::RingOverrun { qpn, posted: 500, completed: 0 }]);
}

#[test]
fn a_doorbell_that_comes_late_is_no_mistake() {
    let mut failure = Failure::new();
    let pair = &mut failure.pair;
    let qpn = pair.qa.qpn;
    // The second doorbell is in progress while the record that the first one has the device read covers both requests.
    let first = pair.a.write_send(&mut pair.qa, 0x00, SIGNALED, 0, &[]);
    let second = pair.a.write_send(&mut pair.qa, 0x00, SIGNALED, 0, &[]);
    pair.a.with(|engine, ctx| engine.ring_send(ctx, qpn, first));
    pair.run();
    assert!(pair.a.poll(&mut pair.qa.send).is_some() && pair.a.poll(&mut pair.qa.send).is_some());
    // Once round the ring of 64 blocks: another WQE lies where the second one was.
    for _ in 0..64 {
        pair.a.write_send(&mut pair.qa, 0x00, 0, 0, &[]);
    }
    pair.a.with(|engine, ctx| engine.ring_send(ctx, qpn, second));
    assert_eq!(pair.a.audit.findings(), []);
}

/// The device takes all that is posted when the first doorbell comes, so a host need not wait for the others on their way.
#[test]
fn doorbells_may_be_very_many_blocks_behind() {
    let mut failure = Failure::new();
    let pair = &mut failure.pair;
    let qpn = pair.qa.qpn;
    let mut on_their_way = VecDeque::new();
    for number in 0..200_000_u32 {
        on_their_way.push_back(pair.a.write_send(&mut pair.qa, 0x00, SIGNALED, 0, &[]));
        if number % 32 == 31 {
            let doorbell = on_their_way.pop_front().unwrap();
            pair.a.with(|engine, ctx| engine.ring_send(ctx, qpn, doorbell));
            pair.run();
            while pair.a.poll(&mut pair.qa.send).is_some() {}
        }
    }
    for doorbell in on_their_way {
        pair.a.with(|engine, ctx| engine.ring_send(ctx, qpn, doorbell));
    }
    assert_eq!(pair.a.audit.findings().first(), None);
}

#[test]
fn a_wqe_of_another_index_is_refused() {
    let mut failure = Failure::new();
    let pair = &mut failure.pair;
    let qpn = pair.qa.qpn;
    pair.qa.posted = 1;
    pair.a.write_send(&mut pair.qa, 0x00, SIGNALED, 0, &[]);
    let doorbell = [0, 0, 1, 0, 0, 0, qpn as u8, 1];
    pair.a.with(|engine, ctx| engine.ring_send(ctx, qpn, doorbell));
    // Block 0 was never written: no WQE.
    pair.run();
    assert_eq!(syndromes(&mut pair.a, &mut pair.qa.send), [(0xd, 2, 0), (0xd, 5, 1)]);
    assert_eq!(pair.a.audit.findings(), []);
    let mut other = Pair::new();
    let qpn = other.qa.qpn;
    // The ring has 64 blocks: this lands in block 0 and says that it is 64.
    other.qa.posted = 64;
    let doorbell = other.a.write_send(&mut other.qa, 0x00, SIGNALED, 0, &[]);
    let record = other.qa.dbr + 4;
    other.a.write(record, &1u32.to_be_bytes());
    other.a.with(|engine, ctx| engine.ring_send(ctx, qpn, doorbell));
    other.run();
    assert_eq!(syndromes(&mut other.a, &mut other.qa.send), [(0xd, 2, 0)]);
    let mismatch = Finding::WqeMismatch { qpn, index: 0, wqe_index: 64, wqe_qpn: qpn };
    assert_eq!(other.a.audit.findings().last(), Some(&mismatch));
}

#[test]
fn a_receive_tells_of_a_refused_write_with_immediate_data() {
    for (posted, len) in [(true, 8), (false, 8), (true, 1000)] {
        let mut pair = Pair::new();
        let ((at_a, key_a), (at_b, key_b)) = pair.buffers(4096);
        pair.b.events();
        if posted {
            pair.b.post_receive(&mut pair.qb, &[]);
        }
        let body = [raddr(at_b, key_b ^ 1), data(at_a, len, key_a)].concat();
        pair.a.post_send(&mut pair.qa, 0x09, SIGNALED, 0, &body);
        pair.run();
        assert_eq!(pair.a.poll(&mut pair.qa.send).map(|cqe| cqe.syndrome()), Some(0x13));
        let got = pair.b.poll(&mut pair.qb.receive).map(|cqe| (cqe.opcode(), cqe.syndrome()));
        // Of a longer message nothing says yet that immediate data will come.
        let expected = if len == 8 { (0xe, 0x11) } else { (0xe, 0x05) };
        assert_eq!(got, posted.then_some(expected), "{len} bytes");
        let reported = [EngineEvent::Qp { event: EventType::WqAccessError, qpn: pair.qb.qpn }];
        assert_eq!(pair.b.events(), if expected.1 == 0x11 && posted { &[][..] } else { &reported[..] });
    }
}

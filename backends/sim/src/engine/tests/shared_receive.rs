//! Receives taken from a shared receive queue.

use super::super::EngineEvent;
use super::harness::*;
use crate::wire::PerfectWire;
use bareverbs_mlx5_spec::{CmdOpcode, EventType, Qpc, QpcSt};

/// Domain of the shared receive queue, another than that of the queue pairs.
const SHARED_PD: u32 = PD + 1;

/// Returns a pair whose side `b` takes from a shared receive queue.
fn sharing(limit: u16) -> (Pair<PerfectWire>, TestSrq) {
    let mut pair = Pair::new();
    let srq = pair.b.srq(SHARED_PD, 4, limit);
    pair.qb = pair.b.qp_on(QpcSt::Rc, Some(srq.srqn), 0, 4, 6);
    pair.a.modify(pair.qa.qpn, CmdOpcode::Qp2Rst, 0, |_| {}).unwrap();
    pair.a.connect(pair.qa.qpn, 2, pair.qb.qpn, Link::default());
    pair.b.connect(pair.qb.qpn, 1, pair.qa.qpn, Link::default());
    pair.b.events();
    (pair, srq)
}

#[test]
fn keys_of_receives_belong_to_the_domain_of_the_shared_queue() {
    let (mut pair, mut srq) = sharing(0);
    let ((at_a, key_a), (at_b, own)) = pair.buffers(4096);
    let shared = pair.b.mkey_of(SHARED_PD, at_b, 4096, 0x1f);
    pair.a.write(at_a, b"shared");
    pair.b.post_shared(&mut srq, &[(at_b, 64, shared)]);
    pair.b.post_shared(&mut srq, &[(at_b + 64, 64, own)]);
    for _ in 0..2 {
        pair.a.post_send(&mut pair.qa, 0x0a, SIGNALED, 0, &data(at_a, 6, key_a));
    }
    pair.run();
    let got: Vec<_> = std::iter::from_fn(|| pair.b.poll(&mut pair.qb.receive)).map(|cqe| cqe.0[55..].to_vec()).collect();
    // A good receive of queue WQE 0, and a local protection error of WQE 1.
    assert_eq!((got[0][8] >> 4, got[1][8] >> 4, got[1][0]), (2, 0xe, 0x04));
    assert_eq!((pair.b.read(at_b, 6), pair.b.read(at_b + 64, 6)), (b"shared".to_vec(), vec![0; 6]));
}

/// Queue pairs for datagrams, that of `b` with a shared receive queue.
fn datagrams(pair: &mut Pair<PerfectWire>) -> (TestQp, TestQp, TestSrq) {
    let srq = pair.b.srq(SHARED_PD, 4, 0);
    let qb = pair.b.qp_on(QpcSt::Ud, Some(srq.srqn), 0, 4, 6);
    let qa = pair.a.qp_of(QpcSt::Ud, 4, 4, 6);
    for (host, qpn) in [(&mut pair.a, qa.qpn), (&mut pair.b, qb.qpn)] {
        for opcode in [CmdOpcode::Rst2InitQp, CmdOpcode::Init2RtrQp, CmdOpcode::Rtr2RtsQp] {
            host.modify(qpn, opcode, 0, |qpc| {
                qpc.set(Qpc::Q_KEY, 7).set(Qpc::MTU, 5);
            })
            .unwrap();
        }
    }
    (qa, qb, srq)
}

fn address(qpn: u32) -> Vec<u8> {
    words(&[7, 0, 1 << 31 | qpn, 2, 0, 0, 0, 0, 0, 0, 0, 0])
}

#[test]
fn keys_of_datagrams_too() {
    let mut pair = Pair::new();
    let (mut qa, mut qb, mut srq) = datagrams(&mut pair);
    let ((at_a, key_a), (at_b, _)) = pair.buffers(4096);
    let shared = pair.b.mkey_of(SHARED_PD, at_b, 4096, 0x1f);
    pair.b.post_shared(&mut srq, &[(at_b, 128, shared)]);
    pair.a.write(at_a, b"shared");
    pair.a.post_send(&mut qa, 0x0a, SIGNALED, 0, &[address(qb.qpn), data(at_a, 6, key_a)].concat());
    pair.run();
    assert_eq!(pair.b.poll(&mut qb.receive).map(|cqe| (cqe.opcode(), cqe.byte_cnt())), Some((2, 46)));
    assert_eq!(pair.b.read(at_b + 40, 6), b"shared");
}

#[test]
fn a_datagram_longer_than_a_shared_receive_completes_it() {
    let mut pair = Pair::new();
    let (mut qa, mut qb, mut srq) = datagrams(&mut pair);
    let ((at_a, key_a), (at_b, _)) = pair.buffers(4096);
    let shared = pair.b.mkey_of(SHARED_PD, at_b, 4096, 0x1f);
    for _ in 0..2 {
        pair.b.post_shared(&mut srq, &[(at_b, 64, shared)]);
    }
    for (len, opcode, syndrome) in [(25, 0xe, 0x01), (24, 2, 0)] {
        pair.a.post_send(&mut qa, 0x0a, SIGNALED, 0, &[address(qb.qpn), data(at_a, len, key_a)].concat());
        pair.run();
        let got = pair.b.poll(&mut qb.receive).unwrap();
        assert_eq!((got.opcode(), if opcode == 0xe { got.syndrome() } else { 0 }), (opcode, syndrome));
        assert_eq!(pair.b.state(qb.qpn), 3, "it continues");
    }
}

#[test]
fn a_shared_queue_that_leads_nowhere_fails_once_and_its_queue_pairs_each() {
    // The first WQE links beyond the ring; or the doorbell record lies where no memory is.
    for unreadable in [false, true] {
        let (mut pair, mut srq) = sharing(0);
        let ((at_a, key_a), (at_b, _)) = pair.buffers(4096);
        let shared = pair.b.mkey_of(SHARED_PD, at_b, 4096, 0x1f);
        pair.b.write(srq.ring, &words(&[0x4000]));
        for _ in 0..3 {
            pair.b.post_shared(&mut srq, &[(at_b, 64, shared)]);
        }
        let good = if unreadable { 0 } else { 1 };
        if unreadable {
            pair.b.memory.memory.end_at(srq.dbr);
        }
        let body = data(at_a, 6, key_a);
        for turn in 0..=good {
            pair.a.post_send(&mut pair.qa, 0x0a, SIGNALED, 0, &body);
            pair.run();
            let expected = if turn < good { 0 } else { 0xd };
            let cqe = pair.a.poll(&mut pair.qa.send).unwrap();
            assert_eq!(cqe.opcode(), expected);
            if expected == 0xd {
                assert_eq!(cqe.syndrome(), 0x14, "a remote operation error, not a receiver that is never ready");
            }
        }
        let (qpn, srqn) = (pair.qb.qpn, srq.srqn);
        let of_qp = |qpn| [EventType::WqCatasError, EventType::SrqLastWqe].map(|event| EngineEvent::Qp { event, qpn });
        let of_srq = EngineEvent::Srq { event: EventType::SrqCatasError, srqn };
        let reported = pair.b.events();
        assert_eq!(reported, [vec![of_srq], of_qp(qpn).to_vec()].concat(), "unreadable: {unreadable}");
        assert_eq!(pair.b.state(qpn), 6);
        if unreadable {
            continue;
        }
        // Another queue pair finds it when it takes a receive; the queue's event is not repeated.
        let next = pair.b.qp_on(QpcSt::Rc, Some(srqn), 0, 4, 6);
        let mut from = pair.a.qp(4, 4, 6);
        pair.a.connect(from.qpn, 2, next.qpn, Link::default());
        pair.b.connect(next.qpn, 1, from.qpn, Link::default());
        pair.b.events();
        pair.a.post_send(&mut from, 0x0a, SIGNALED, 0, &body);
        pair.run();
        assert_eq!(pair.a.poll(&mut from.send).map(|cqe| cqe.syndrome()), Some(0x14));
        let reported: Vec<_> = pair.b.events().into_iter().filter(|event| !is_established(event)).collect();
        assert_eq!(reported, of_qp(next.qpn));
    }
}

/// No peer is notified, and no receive is left to complete: the events alone say it.
#[test]
fn a_shared_queue_that_leads_nowhere_fails_who_takes_datagrams_from_it() {
    let mut pair = Pair::new();
    let (mut qa, mut qb, mut srq) = datagrams(&mut pair);
    let ((at_a, key_a), (at_b, _)) = pair.buffers(4096);
    let shared = pair.b.mkey_of(SHARED_PD, at_b, 4096, 0x1f);
    // The first WQE links beyond the ring.
    pair.b.write(srq.ring, &words(&[0x4000]));
    for _ in 0..3 {
        pair.b.post_shared(&mut srq, &[(at_b, 64, shared)]);
    }
    pair.b.events();
    for _ in 0..2 {
        pair.a.post_send(&mut qa, 0x0a, SIGNALED, 0, &[address(qb.qpn), data(at_a, 6, key_a)].concat());
        pair.run();
        assert_eq!(pair.a.poll(&mut qa.send).unwrap().opcode(), 0);
    }
    assert_eq!(pair.b.poll(&mut qb.receive).map(|cqe| (cqe.opcode(), cqe.byte_cnt())), Some((2, 46)));
    assert_eq!(pair.b.poll(&mut qb.receive), None);
    assert_eq!(pair.b.state(qb.qpn), 6);
    let reported = pair.b.events();
    let of_srq = EngineEvent::Srq { event: EventType::SrqCatasError, srqn: srq.srqn };
    let of_qp = EngineEvent::Qp { event: EventType::WqCatasError, qpn: qb.qpn };
    assert!(reported.contains(&of_srq) && reported.contains(&of_qp), "{reported:?}");
}

fn is_established(event: &EngineEvent) -> bool {
    matches!(event, EngineEvent::Qp { event: EventType::CommEstablished, .. })
}

#[test]
fn the_limit_is_reported_once_when_wqes_run_out() {
    let (mut pair, mut srq) = sharing(2);
    let ((at_a, key_a), (at_b, _)) = pair.buffers(4096);
    let shared = pair.b.mkey_of(SHARED_PD, at_b, 4096, 0x1f);
    for _ in 0..4 {
        pair.b.post_shared(&mut srq, &[(at_b, 64, shared)]);
    }
    let limit = EngineEvent::Srq { event: EventType::SrqRqLimit, srqn: srq.srqn };
    let reported: Vec<_> = (0..4)
        .map(|_| {
            pair.a.post_send(&mut pair.qa, 0x0a, SIGNALED, 0, &data(at_a, 6, key_a));
            pair.run();
            pair.b.events().into_iter().filter(|event| *event == limit).count()
        })
        .collect();
    // Three left, two left, one left, none.
    assert_eq!(reported, [0, 0, 1, 0]);
}

#[test]
fn acknowledgements_count_no_shared_receives() {
    let (mut pair, _) = sharing(0);
    let ((at_a, key_a), (at_b, key_b)) = pair.buffers(4096);
    pair.a.post_send(&mut pair.qa, 0x08, SIGNALED, 0, &[raddr(at_b, key_b), data(at_a, 8, key_a)].concat());
    pair.a.with(|engine, ctx| engine.advance(ctx));
    let request = pair.a.engine.transmit().unwrap();
    pair.b.with(|engine, ctx| engine.receive(ctx, &request));
    pair.b.with(|engine, ctx| engine.advance(ctx));
    assert_eq!(pair.b.engine.transmit().unwrap()[20], 0x1f);
}

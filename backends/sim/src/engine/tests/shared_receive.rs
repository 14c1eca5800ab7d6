//! Receives taken from a shared receive queue.

use super::super::testing::*;
use crate::wire::PerfectWire;
use bareverbs_mlx5_spec::{CmdOpcode, Qpc, QpcSt};

/// Domain of the shared receive queue, another than that of the queue pairs.
const SHARED_PD: u32 = PD + 1;

/// A pair whose side `b` takes from a shared receive queue.
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
    // A good receive of queue element 0, and a local protection error of element 1.
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
        assert_eq!(pair.b.state(qb.qpn), 3, "it goes on");
    }
}

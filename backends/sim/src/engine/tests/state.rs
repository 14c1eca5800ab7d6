//! The context of a queue pair through its transitions, and what wraps.

use super::super::testing::*;
use bareverbs_mlx5_spec::{Ads, CmdOpcode, Layout, Qpc, View, ViewMut, opt_param};

#[test]
fn transitions_take_only_their_fields() {
    let mut host = Host::new(1);
    let qp = host.qp(4, 4, 4);
    host.modify(qp.qpn, CmdOpcode::Rst2InitQp, 0, |qpc| {
        qpc.set(Qpc::RWE, 1).set(Qpc::MTU, 5);
        qpc.sub(Qpc::PRIMARY_ADDRESS_PATH).set(Ads::PKEY_INDEX, 3);
    })
    .unwrap();
    assert_eq!((host.query(qp.qpn, Qpc::RWE), host.query(qp.qpn, Qpc::MTU)), (1, 0));
    assert_eq!(host.query(qp.qpn, Qpc::CQN_SND), qp.send.cqn, "zero leaves what was created");
    // RRE is optional here: named by the mask, the others not.
    host.modify(qp.qpn, CmdOpcode::Init2RtrQp, opt_param::RRE, |qpc| {
        qpc.set(Qpc::MTU, 3).set(Qpc::RRE, 1).set(Qpc::RAE, 1).set(Qpc::NEXT_RCV_PSN, 0x12_3456).set(Qpc::RETRY_COUNT, 7);
        qpc.sub(Qpc::PRIMARY_ADDRESS_PATH).set(Ads::RLID, 9).set(Ads::ACK_TIMEOUT, 31);
    })
    .unwrap();
    let rights = [Qpc::RRE, Qpc::RWE, Qpc::RAE, Qpc::RETRY_COUNT].map(|field| host.query(qp.qpn, field));
    assert_eq!(rights, [1, 1, 0, 0]);
    assert_eq!((host.query(qp.qpn, Qpc::NEXT_RCV_PSN), host.query(qp.qpn, Qpc::MTU)), (0x12_3456, 3));
    host.modify(qp.qpn, CmdOpcode::Rtr2RtsQp, 0, |qpc| {
        qpc.set(Qpc::NEXT_SEND_PSN, 0x65_4321).set(Qpc::RETRY_COUNT, 5).set(Qpc::MIN_RNR_NAK, 9);
        qpc.sub(Qpc::PRIMARY_ADDRESS_PATH).set(Ads::ACK_TIMEOUT, 14);
    })
    .unwrap();
    let mut qpc = [0; Qpc::SIZE];
    host.engine.query_qp(qp.qpn, &mut ViewMut::new(&mut qpc).unwrap()).unwrap();
    let qpc = View::<Qpc>::of(&qpc);
    let path = qpc.sub(Qpc::PRIMARY_ADDRESS_PATH);
    assert_eq!((path.get(Ads::RLID), path.get(Ads::PKEY_INDEX), path.get(Ads::ACK_TIMEOUT)), (9, 3, 14));
    assert_eq!((qpc.get(Qpc::STATE), qpc.get(Qpc::NEXT_SEND_PSN), qpc.get(Qpc::RETRY_COUNT)), (3, 0x65_4321, 5));
    assert_eq!(qpc.get(Qpc::MIN_RNR_NAK), 0, "not asked for");
}

#[test]
fn error_reset_and_use_again() {
    let mut pair = Pair::new();
    let ((at_a, key_a), (at_b, key_b)) = pair.buffers(4096);
    pair.a.post_send(&mut pair.qa, 0x0a, SIGNALED, 0, &data(at_a, 4, key_a ^ 1));
    pair.run();
    assert!(pair.a.poll(&mut pair.qa.send).is_some());
    for (host, qp) in [(&mut pair.a, &mut pair.qa), (&mut pair.b, &mut pair.qb)] {
        host.modify(qp.qpn, CmdOpcode::Qp2Rst, 0, |_| {}).unwrap();
        host.write(qp.dbr, &[0; 8]);
        (qp.posted, qp.received) = (0, 0);
    }
    pair.a.connect(pair.qa.qpn, 2, pair.qb.qpn, Link::default());
    pair.b.connect(pair.qb.qpn, 1, pair.qa.qpn, Link::default());
    pair.b.post_receive(&mut pair.qb, &[(at_b, 64, key_b)]);
    pair.a.write(at_a, b"again");
    pair.a.post_send(&mut pair.qa, 0x0a, SIGNALED, 0, &data(at_a, 5, key_a));
    pair.run();
    assert_eq!(pair.a.poll(&mut pair.qa.send).map(|cqe| (cqe.opcode(), cqe.counter())), Some((0, 0)));
    assert_eq!(pair.b.poll(&mut pair.qb.receive).map(|cqe| (cqe.opcode(), cqe.counter())), Some((2, 0)));
    assert_eq!(pair.b.read(at_b, 5), b"again");
}

#[test]
fn a_doorbell_of_a_reset_queue_pair_does_nothing() {
    let mut pair = Pair::new();
    let ((at_a, key_a), _) = pair.buffers(4096);
    for _ in 0..65 {
        pair.a.post_send(&mut pair.qa, 0x00, 0, 0, &[]);
        pair.run();
    }
    pair.a.modify(pair.qa.qpn, CmdOpcode::Qp2Rst, 0, |_| {}).unwrap();
    // The posting thread does not know of the reset; the record is from before it.
    pair.a.post_send(&mut pair.qa, 0x0a, SIGNALED, 0, &data(at_a, 4, key_a));
    pair.a.write(pair.qa.dbr, &[0; 8]);
    pair.a.connect(pair.qa.qpn, 2, pair.qb.qpn, Link::default());
    pair.run();
    assert_eq!(pair.a.poll(&mut pair.qa.send), None);
    assert_eq!(pair.a.audit.findings(), []);
}

#[test]
fn atomics_in_the_other_byte_order() {
    let mut pair = Pair::new();
    let mut config = pair.b.engine.config().clone();
    config.atomic_host_endian = false;
    pair.b.engine.configure(config);
    let ((at_a, key_a), (at_b, key_b)) = pair.buffers(4096);
    pair.b.write(at_b, &255u64.to_be_bytes());
    let body = [raddr(at_b, key_b), words(&[0, 1, 0, 0]), data(at_a, 8, key_a)].concat();
    pair.a.post_send(&mut pair.qa, 0x12, SIGNALED, 0, &body);
    pair.run();
    assert_eq!(pair.b.read(at_b, 8), 256u64.to_be_bytes());
    assert_eq!(pair.a.read(at_a, 8), 255u64.to_le_bytes(), "each side has its own");
}

#[test]
fn completion_counters_pass_24_bits() {
    let mut pair = Pair::new();
    let start = 0xff_fffe;
    pair.a.engine.shared.cqs.start_at(pair.qa.send.cqn, start);
    pair.a.write(pair.qa.send.dbr, &start.to_be_bytes());
    pair.qa.send.consumer = start;
    for number in 0..600u16 {
        pair.a.post_send(&mut pair.qa, 0x00, SIGNALED, 0, &[]);
        pair.run();
        assert_eq!(pair.a.poll(&mut pair.qa.send).map(|cqe| cqe.counter()), Some(number));
        assert_eq!(pair.a.poll(&mut pair.qa.send), None);
    }
    assert!(pair.a.audit.findings().is_empty());
    pair.a.arm(&pair.qa.send, false);
    assert_eq!(pair.a.events(), [], "nothing unseen");
}

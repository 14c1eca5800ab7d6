//! What is counted: for the port, and for each set of counters.

use super::harness::*;
use crate::stats::QueueCounts;
use bareverbs_mlx5_spec::{Ads, CmdOpcode, Qpc, QpcSt};

/// Returns a second pair of queue pairs, connected; both ends count to `set`.
fn second(pair: &mut Pair<crate::wire::PerfectWire>, set: u32) -> (TestQp, TestQp) {
    let (qa, qb) = (pair.a.qp(4, 4, 6), pair.b.qp(4, 4, 6));
    for (host, own, lid, peer) in [(&mut pair.a, qa.qpn, 2, qb.qpn), (&mut pair.b, qb.qpn, 1, qa.qpn)] {
        host.connect_counting(own, lid, peer, Link::default(), set);
    }
    (qa, qb)
}

#[test]
fn a_set_counts_its_own_queue_pairs() {
    let mut pair = Pair::new();
    let ((at_a, key_a), (at_b, key_b)) = pair.buffers(4096);
    let (mut qa, mut qb) = second(&mut pair, 3);
    let remote = [raddr(at_b, key_b), data(at_a, 8, key_a)].concat();
    pair.b.post_receive(&mut pair.qb, &[(at_b, 64, key_b)]);
    // A write, a read and an addition of the second; of the first a write, and a send for which it has a receive.
    let add = [raddr(at_b, key_b), words(&[0, 1, 0, 0]), data(at_a, 8, key_a)].concat();
    for (opcode, body) in [(0x08, &remote), (0x10, &remote), (0x12, &add)] {
        pair.a.post_send(&mut qa, opcode, SIGNALED, 0, body);
    }
    pair.a.post_send(&mut pair.qa, 0x08, SIGNALED, 0, &remote);
    pair.a.post_send(&mut pair.qa, 0x0a, SIGNALED, 0, &data(at_a, 8, key_a));
    pair.run();
    // Then a send without a receive; it waits until one comes.
    pair.a.post_send(&mut qa, 0x0a, SIGNALED, 0, &data(at_a, 8, key_a));
    pair.step();
    pair.now = pair.now.after(std::time::Duration::from_nanos(500));
    pair.step();
    pair.b.post_receive(&mut qb, &[(at_b, 64, key_b)]);
    pair.run();
    let of_b = QueueCounts { writes: 1, reads: 1, atomics: 1, out_of_buffer: 1, ..QueueCounts::default() };
    assert_eq!(pair.b.engine.queue_counts(3), of_b);
    assert_eq!(pair.b.engine.queue_counts(0), QueueCounts { writes: 1, ..QueueCounts::default() });
    let of_a = QueueCounts { receiver_not_ready: 1, ..QueueCounts::default() };
    assert_eq!((pair.a.engine.queue_counts(3), pair.a.engine.queue_counts(0)), (of_a, QueueCounts::default()));
    pair.b.engine.clear_queue_counts(3);
    assert_eq!((pair.b.engine.queue_counts(3), pair.b.engine.queue_counts(0).writes), (QueueCounts::default(), 1));
}

#[test]
fn a_write_that_waits_for_a_receive_counts_once() {
    let mut pair = Pair::new();
    let ((at_a, key_a), (at_b, key_b)) = pair.buffers(4096);
    // A write with immediate data without a receive; it comes again until there is one.
    pair.a.post_send(&mut pair.qa, 0x09, SIGNALED, 7, &[raddr(at_b, key_b), data(at_a, 8, key_a)].concat());
    for _ in 0..4 {
        pair.step();
        pair.now = pair.now.after(std::time::Duration::from_millis(1));
    }
    assert!(pair.b.engine.queue_counts(0).out_of_buffer >= 2, "refused more than once");
    assert_eq!(pair.b.engine.queue_counts(0).writes, 0);
    pair.b.post_receive(&mut pair.qb, &[(at_b, 64, key_b)]);
    pair.run();
    assert_eq!(pair.b.poll(&mut pair.qb.receive).map(|cqe| cqe.immediate()), Some(7));
    assert_eq!(pair.b.engine.queue_counts(0).writes, 1);
}

#[test]
fn timers_that_run_out_are_counted() {
    let mut pair = Pair::new();
    let ((at_a, key_a), (at_b, key_b)) = pair.buffers(4096);
    let (mut qa, qb) = second(&mut pair, 9);
    pair.b.engine.destroy_qp(qb.qpn).unwrap();
    pair.a.post_send(&mut qa, 0x08, SIGNALED, 0, &[raddr(at_b, key_b), data(at_a, 8, key_a)].concat());
    pair.run();
    // Seven retries, and the one after which it gives up.
    assert_eq!(pair.a.engine.queue_counts(9), QueueCounts { timeouts: 8, ..QueueCounts::default() });
}

#[test]
fn packets_of_another_partition_and_with_another_queue_key_are_violations() {
    let mut pair = Pair::new();
    let ((at_a, key_a), _) = pair.buffers(4096);
    for host in [&mut pair.a, &mut pair.b] {
        host.engine.identity().set_pkeys(1, &[0x8123]);
    }
    let mut qps = Vec::new();
    for (host, qkey) in [(&mut pair.a, 1), (&mut pair.b, 7)] {
        let qp = host.qp_of(QpcSt::Ud, 4, 4, 6);
        for opcode in [CmdOpcode::Rst2InitQp, CmdOpcode::Init2RtrQp, CmdOpcode::Rtr2RtsQp] {
            host.modify(qp.qpn, opcode, 0, |qpc| {
                qpc.set(Qpc::Q_KEY, qkey).set(Qpc::MTU, 5);
                qpc.sub(Qpc::PRIMARY_ADDRESS_PATH).set(Ads::PKEY_INDEX, 1);
            })
            .unwrap();
        }
        qps.push(qp);
    }
    let (qb, mut qa) = (qps.pop().unwrap(), qps.pop().unwrap());
    let violations = |pair: &Pair<_>| {
        let stats = pair.b.engine.stats();
        (stats.pkey_violations, stats.qkey_violations, stats.dropped)
    };
    // Partition 0x123 to a queue pair of it, with another queue key; and to one of the default partition.
    for (to, expected) in [(qb.qpn, (0, 1, 0)), (pair.b.qp_of(QpcSt::Ud, 4, 4, 6).qpn, (1, 1, 1)), (0x999, (1, 1, 2))] {
        let address = words(&[8, 0, 1 << 31 | to, 2, 0, 0, 0, 0, 0, 0, 0, 0]);
        pair.a.post_send(&mut qa, 0x0a, SIGNALED, 0, &[address, data(at_a, 6, key_a)].concat());
        pair.run();
        assert_eq!(violations(&pair), expected, "to QP {to:#x}");
    }
}

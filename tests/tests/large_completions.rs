//! Completion queues with entries of 128 bytes: the same completions, from a device that writes each into the second half of its entry.

use bareverbs::error::PollCqError;
use bareverbs::{Access, CqHandle, Event, Payload, RecvWr, SendOp, WcData, WcOpcode, WcStatus};
use bareverbs_mlx5::{Config, CqeSize};
use bareverbs_sim::in_process::{World, WorldConfig};
use bareverbs_tests::{Node, Pair, driver_config, end, pattern, refused, signaled};

const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ);

/// Two hosts, with entries of these sizes.
fn pair(sizes: [CqeSize; 2]) -> Pair {
    let (world, a, b) = World::pair(WorldConfig::default());
    let [a, b] = [(a, sizes[0]), (b, sizes[1])].map(|(host, cqe_size)| {
        let config = Config { cqe_size, ..driver_config(&host) };
        Node::with_config(host, &config)
    });
    Pair { world, a, b }
}

fn resize(node: &mut Node, cq: CqHandle, entries: u32) {
    let mut queue = node.verbs.take_cq(cq);
    node.verbs.verbs_mut().resize_cq(&mut queue, entries).unwrap();
    node.verbs.keep_cq(queue);
}

/// Sends with and without immediate data, reads, failed requests: many rounds of the ring, polled one by one and several at a time, by events
/// and without, and another size in between.
// contract: cq-entry-size
#[test]
fn completions_are_the_same_with_entries_of_either_size() {
    use CqeSize::{Bytes64, Bytes128};
    for sizes in [[Bytes128, Bytes128], [Bytes64, Bytes128], [Bytes128, Bytes64]] {
        let mut pair = pair(sizes);
        let (a, b) = pair.connected();
        let mut here = pair.a.region(a.pd, 4096, ALL);
        let there = pair.b.region(b.pd, 4096, ALL);
        for round in 0..500_usize {
            let bytes = pattern(round as u64, 64);
            here.buffer.write(0, &bytes);
            let at = round % 4032;
            let op = SendOp::Write { payload: Payload::Sges(&[here.sge(0, 64)]), remote: there.remote(at) };
            let imm = (round as u32).to_be_bytes();
            let sends = [
                op,
                SendOp::SendWithImm { payload: Payload::Sges(&[here.sge(0, 8)]), imm },
                SendOp::Send { payload: Payload::Sges(&[here.sge(8, 8)]) },
            ];
            for wr_id in 0..2 {
                pair.b.verbs.post_recv(b.qp, &RecvWr { wr_id, sges: &[there.sge(4032 + 8 * wr_id as usize, 8)] }).unwrap();
            }
            for (wr_id, op) in (0..).zip(sends) {
                pair.a.verbs.post_send(a.qp, &signaled(wr_id, op)).unwrap();
            }
            let done: Vec<_> = pair.a.completions(a.cq, 3).iter().map(|done| (done.wr_id, done.opcode, done.status)).collect();
            let success = WcStatus::Success;
            let expected = [(0, WcOpcode::RdmaWrite, success), (1, WcOpcode::Send, success), (2, WcOpcode::Send, success)];
            assert_eq!(done, expected, "round {round}");
            let got: Vec<_> = pair.b.completions(b.cq, 2).iter().map(|done| (done.wr_id, done.data, done.byte_len)).collect();
            assert_eq!(got, [(0, WcData::Imm(imm), 8), (1, WcData::None, 8)], "round {round}");
            assert_eq!(there.buffer.read(4032, 16), bytes[..16]);
            if round % 100 == 50 {
                for (node, cq) in [(&mut pair.a, a.cq), (&mut pair.b, b.cq)] {
                    resize(node, cq, 64 + round as u32);
                }
            }
            if round % 100 == 70 {
                pair.a.verbs.req_notify_cq(a.cq, false).unwrap();
                let op = SendOp::Read { sges: &[here.sge(64, 64)], remote: there.remote(at) };
                pair.a.verbs.post_send(a.qp, &signaled(9, op)).unwrap();
                assert_eq!(pair.a.completions(a.cq, 1)[0].opcode, WcOpcode::RdmaRead);
                assert_eq!(here.buffer.read(64, 64), there.buffer.read(at, 64));
                let events: Vec<_> = core::iter::from_fn(|| pair.a.verbs.poll_event().unwrap()).collect();
                assert!(events.contains(&Event::Completion(a.cq)), "{events:?}");
            }
        }
        let op = SendOp::Write { payload: Payload::Sges(&[here.sge(0, 8)]), remote: there.remote(4089) };
        pair.a.verbs.post_send(a.qp, &signaled(1, op)).unwrap();
        assert_eq!(pair.a.completions(a.cq, 1)[0].status, WcStatus::RemAccessErr);
        pair.assert_no_findings();
    }
}

/// A ring has as many entries as were asked for, whatever the bytes of each, and an overrun is found.
// contract: cq-entry-size
#[test]
fn a_ring_of_large_entries_has_as_many() {
    let mut pair = pair([CqeSize::Bytes128; 2]);
    let (a, b) = (end(&mut pair.a, true), end(&mut pair.b, true));
    let entries = pair.a.verbs.cq_info(a.cq).unwrap().entries;
    pair.connect(&a, &b, &bareverbs_tests::Connection::default());
    resize(&mut pair.a, a.cq, 4);
    assert!(entries > 4);
    let there = pair.b.region(b.pd, 64, ALL);
    let write = SendOp::Write { payload: Payload::Inline(b"x"), remote: there.remote(0) };
    for wr_id in 0..4 {
        pair.a.verbs.post_send(a.qp, &signaled(wr_id, write)).unwrap();
    }
    pair.world.advance(core::time::Duration::from_millis(20));
    let ids: Vec<_> = pair.a.completions(a.cq, 4).iter().map(|done| done.wr_id).collect();
    assert_eq!(ids, [0, 1, 2, 3]);
    for wr_id in 0..5 {
        pair.a.verbs.post_send(a.qp, &signaled(wr_id, write)).unwrap();
    }
    pair.world.advance(core::time::Duration::from_millis(20));
    let events: Vec<_> = core::iter::from_fn(|| pair.a.verbs.poll_event().unwrap()).collect();
    assert!(events.iter().any(|event| matches!(event, Event::CqError(cq, _) if *cq == a.cq)), "{events:?}");
    let mut out = [bareverbs::Completion::EMPTY; 8];
    let before = pair.a.verbs.poll_cq(a.cq, &mut out).unwrap();
    assert_eq!(before, 4);
    refused!(pair.a.verbs.poll_cq(a.cq, &mut out), Eio, PollCqError::Broken { .. });
}

//! Unreliable connections and datagrams.

use super::super::EngineConfig;
use super::harness::*;
use crate::rejection::Rejection;
use crate::wire::{FaultyWire, Probability, WireFaults};
use bareverbs_mlx5_spec::{CmdOpcode, CmdStatus, Qpc, QpcSt};

#[test]
fn uc_completes_without_answers() {
    let mut pair = Pair::of(QpcSt::Uc, perfect(), Link::default(), 6);
    let ((at_a, key_a), (at_b, key_b)) = pair.buffers(8192);
    pair.a.write(at_a, &[6; 3000]);
    pair.b.post_receive(&mut pair.qb, &[(at_b, 4096, key_b)]);
    pair.a.post_send(&mut pair.qa, 0x0a, SIGNALED, 0, &data(at_a, 3000, key_a));
    let body = [raddr(at_b + 4096, key_b), data(at_a, 700, key_a)].concat();
    pair.a.post_send(&mut pair.qa, 0x08, SIGNALED, 0, &body);
    pair.run();
    let sent: Vec<_> = std::iter::from_fn(|| pair.a.poll(&mut pair.qa.send)).map(|cqe| cqe.opcode()).collect();
    assert_eq!(sent, [0, 0]);
    assert_eq!(pair.b.poll(&mut pair.qb.receive).unwrap().byte_cnt(), 3000);
    assert_eq!(pair.b.read(at_b, 3000), [6; 3000]);
    assert_eq!(pair.b.read(at_b + 4096, 700), [6; 700]);
    assert_eq!(pair.b.engine.stats().sent.packets, 0, "nothing went back");
}

#[test]
fn uc_has_no_reads() {
    let mut pair = Pair::of(QpcSt::Uc, perfect(), Link::default(), 6);
    let ((at_a, key_a), (at_b, key_b)) = pair.buffers(4096);
    let body = [raddr(at_b, key_b), data(at_a, 8, key_a)].concat();
    pair.a.post_send(&mut pair.qa, 0x10, SIGNALED, 0, &body);
    pair.run();
    let cqe = pair.a.poll(&mut pair.qa.send).unwrap();
    assert_eq!((cqe.opcode(), cqe.syndrome()), (0xd, 0x02));
}

/// It has an invalidation in no packet (IBTA table 38): the request fails here, and nothing leaves.
#[test]
fn uc_has_no_sends_that_invalidate() {
    let mut pair = Pair::of(QpcSt::Uc, perfect(), Link::default(), 6);
    let ((at_a, key_a), (at_b, key_b)) = pair.buffers(4096);
    pair.b.post_receive(&mut pair.qb, &[(at_b, 4096, key_b)]);
    pair.a.post_send(&mut pair.qa, 0x01, SIGNALED, key_b, &data(at_a, 8, key_a));
    pair.run();
    let cqe = pair.a.poll(&mut pair.qa.send).unwrap();
    assert_eq!((cqe.opcode(), cqe.syndrome()), (0xd, 0x02));
    assert_eq!((pair.a.engine.stats().sent.packets, pair.b.poll(&mut pair.qb.receive).is_none()), (0, true));
    let refused = Rejection::Operation { qpn: pair.qa.qpn, operation: "SEND_INVAL", transport: "UC" };
    assert_eq!(pair.a.rejections.iter().collect::<Vec<_>>(), [(refused, 1)]);
    assert!(refused.to_string().contains("SEND_INVAL refused: UC has no such operation"), "{refused}");
}

#[test]
fn a_send_error_stops_the_send_queue_alone() {
    for st in [QpcSt::Uc, QpcSt::Ud] {
        let mut pair = Pair::of(st, perfect(), Link::default(), 6);
        let ((at_a, key_a), (at_b, key_b)) = pair.buffers(8192);
        let to = |qpn: u32, lid: u32| {
            let av = words(&[0, 0, 1 << 31 | qpn, lid, 0, 0, 0, 0, 0, 0, 0, 0]);
            if st == QpcSt::Ud { av } else { Vec::new() }
        };
        let (qa, qb) = (pair.qa.qpn, pair.qb.qpn);
        // A key that opens nothing, then a good request: failed and flushed.
        pair.a.post_send(&mut pair.qa, 0x0a, SIGNALED, 0, &[to(qb, 2), data(at_a, 100, key_a ^ 1)].concat());
        pair.a.post_send(&mut pair.qa, 0x0a, SIGNALED, 0, &[to(qb, 2), data(at_a, 100, key_a)].concat());
        pair.run();
        let ended: Vec<_> = std::iter::from_fn(|| pair.a.poll(&mut pair.qa.send)).map(|cqe| cqe.syndrome()).collect();
        assert_eq!((ended, pair.a.state(qa)), (vec![0x04, 0x05], 4), "{st:?}: send queue error");
        // What is posted later is flushed too; receives continue.
        pair.a.post_send(&mut pair.qa, 0x0a, SIGNALED, 0, &[to(qb, 2), data(at_a, 100, key_a)].concat());
        pair.a.post_receive(&mut pair.qa, &[(at_a, 4096, key_a)]);
        pair.b.post_send(&mut pair.qb, 0x0a, SIGNALED, 0, &[to(qa, 1), data(at_b, 50, key_b)].concat());
        pair.run();
        assert_eq!(pair.a.poll(&mut pair.qa.send).unwrap().syndrome(), 0x05);
        assert_eq!(pair.a.poll(&mut pair.qa.receive).unwrap().opcode(), 2);
        assert_eq!((pair.a.state(qa), pair.b.poll(&mut pair.qb.send).unwrap().opcode()), (4, 0));
        // SQERR2RTS, and it sends again.
        pair.a.modify(qa, CmdOpcode::SqErr2RtsQp, 0, |_| {}).unwrap();
        assert_eq!(pair.a.state(qa), 3);
        pair.b.post_receive(&mut pair.qb, &[(at_b, 4096, key_b)]);
        pair.a.post_send(&mut pair.qa, 0x0a, SIGNALED, 0, &[to(qb, 2), data(at_a, 600, key_a)].concat());
        pair.run();
        assert_eq!(pair.a.poll(&mut pair.qa.send).map(|cqe| cqe.opcode()), Some(0), "{st:?}");
        assert_eq!(pair.b.poll(&mut pair.qb.receive).map(|cqe| cqe.opcode()), Some(2), "{st:?}");
        assert_eq!(pair.a.poll(&mut pair.qa.send).map(|cqe| cqe.opcode()), None);
    }
}

#[test]
fn uc_loses_whole_messages_and_keeps_their_receives() {
    let wire = FaultyWire::new(perfect(), WireFaults { loss: Probability::per_mille(100), ..WireFaults::default() }, 8);
    let mut pair = Pair::of(QpcSt::Uc, wire, Link::default(), 6);
    let ((at_a, key_a), (at_b, key_b)) = pair.buffers(4096);
    let (mut got, mut used) = (0, 0u16);
    for number in 0..200u8 {
        pair.a.write(at_a, &[number; 1000]);
        if pair.qb.received.wrapping_sub(used) == 0 {
            pair.b.post_receive(&mut pair.qb, &[(at_b, 4096, key_b)]);
        }
        pair.a.post_send(&mut pair.qa, 0x0a, SIGNALED, 0, &data(at_a, 1000, key_a));
        pair.run();
        assert_eq!(pair.a.poll(&mut pair.qa.send).unwrap().opcode(), 0);
        if let Some(cqe) = pair.b.poll(&mut pair.qb.receive) {
            assert_eq!((cqe.opcode(), cqe.byte_cnt(), cqe.counter()), (2, 1000, used));
            assert_eq!(pair.b.read(at_b, 1000), [number; 1000]);
            used += 1;
            got += 1;
        }
    }
    // Four packets each, one in ten lost: two messages of three arrive.
    assert!((100..170).contains(&got), "{got}");
}

const QKEY: u32 = 0x1111_2222;

fn datagram_qp(host: &mut Host) -> TestQp {
    let qp = host.qp_of(QpcSt::Ud, 4, 4, 6);
    host.modify(qp.qpn, CmdOpcode::Rst2InitQp, 0, |qpc| {
        // The source that it would like to have, and does not get.
        qpc.set(Qpc::Q_KEY, QKEY).set(Qpc::DETH_SQPN, 1);
    })
    .unwrap();
    host.modify(qp.qpn, CmdOpcode::Init2RtrQp, 0, |qpc| {
        qpc.set(Qpc::MTU, 5).set(Qpc::LOG_MSG_MAX, 12);
    })
    .unwrap();
    host.modify(qp.qpn, CmdOpcode::Rtr2RtsQp, 0, |_| {}).unwrap();
    qp
}

/// Address vector: queue key, queue pair, service level 2 and LID, with or without a global route.
fn address(qkey: u32, dqpn: u32, lid: u32, global: bool) -> Vec<u8> {
    let mut av = words(&[qkey, 0, 1 << 31 | dqpn, 2 << 24 | lid, 0, 0, 64, u32::from(global) << 30]);
    av.extend([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
    av
}

#[test]
fn datagrams() {
    let mut pair = Pair::new();
    let ((at_a, key_a), (at_b, key_b)) = pair.buffers(8192);
    let (mut qa, mut qb) = (datagram_qp(&mut pair.a), datagram_qp(&mut pair.b));
    pair.a.write(at_a, b"to whom it may concern");
    pair.b.write(at_b, &[0x5a; 40]);
    for global in [false, true] {
        pair.b.post_receive(&mut qb, &[(at_b, 4096, key_b)]);
        let body = [address(QKEY, qb.qpn, 2, global), data(at_a, 22, key_a)].concat();
        pair.a.post_send(&mut qa, 0x0b, SIGNALED, 0xabcd, &body);
        pair.run();
        assert_eq!(pair.a.poll(&mut qa.send).unwrap().opcode(), 0);
        let got = pair.b.poll(&mut qb.receive).unwrap();
        assert_eq!((got.opcode(), got.byte_cnt(), got.immediate()), (3, 62, 0xabcd));
        // Sender's LID; global route, service level and queue pair in one word.
        assert_eq!(got.0[22..24], [0, 1]);
        assert_eq!(got.0[24..28], (u32::from(global) << 28 | 2 << 24 | qa.qpn).to_be_bytes());
        assert_eq!(pair.b.read(at_b + 40, 22), b"to whom it may concern");
        let route = pair.b.read(at_b, 40);
        if global {
            assert_eq!((route[0] >> 4, route[39]), (6, 2));
        } else {
            assert_eq!(route, [0x5a; 40], "nothing is written without a route");
        }
    }
    // Wrong key, no receive, no queue pair: it completes here and arrives nowhere.
    pair.b.post_receive(&mut qb, &[(at_b, 4096, key_b)]);
    for (qkey, qpn, lid) in [(QKEY + 1, qb.qpn, 2), (QKEY, 0x999, 2), (QKEY, qb.qpn, 77)] {
        let body = [address(qkey, qpn, lid, false), data(at_a, 22, key_a)].concat();
        pair.a.post_send(&mut qa, 0x0a, SIGNALED, 0, &body);
        pair.run();
        assert_eq!(pair.a.poll(&mut qa.send).unwrap().opcode(), 0);
        assert_eq!(pair.b.poll(&mut qb.receive), None);
    }
}

#[test]
fn a_route_from_a_gid_that_is_not_there_fails() {
    let mut pair = Pair::new();
    let ((at_a, key_a), _) = pair.buffers(4096);
    let mut qa = datagram_qp(&mut pair.a);
    let mut to = address(QKEY, 0x99, 2, true);
    // Source GID index, beside the flag for the route.
    to[29] = 0x10;
    pair.a.post_send(&mut qa, 0x0a, SIGNALED, 0, &[to, data(at_a, 22, key_a)].concat());
    pair.run();
    let cqe = pair.a.poll(&mut qa.send).unwrap();
    assert_eq!((cqe.opcode(), cqe.syndrome()), (0xd, 0x02));
}

#[test]
fn a_datagram_longer_than_the_receive_is_dropped() {
    let mut pair = Pair::new();
    let ((at_a, key_a), (at_b, key_b)) = pair.buffers(8192);
    let (mut qa, mut qb) = (datagram_qp(&mut pair.a), datagram_qp(&mut pair.b));
    pair.b.post_receive(&mut qb, &[(at_b, 139, key_b)]);
    for (len, fits) in [(100, false), (0, true), (99, true), (100, false)] {
        if qb.received == 1 && len == 99 {
            pair.b.post_receive(&mut qb, &[(at_b, 139, key_b)]);
        }
        // A pointer to no bytes would stand for 2 GiB.
        let pointer = if len == 0 { Vec::new() } else { data(at_a, len, key_a) };
        pair.a.post_send(&mut qa, 0x0a, SIGNALED, 0, &[address(QKEY, qb.qpn, 2, false), pointer].concat());
        pair.run();
        assert_eq!(pair.a.poll(&mut qa.send).unwrap().opcode(), 0);
        let got = pair.b.poll(&mut qb.receive).map(|cqe| (cqe.opcode(), cqe.byte_cnt()));
        assert_eq!(got, fits.then_some((2, 40 + len)), "{len} bytes");
    }
    assert_eq!(pair.b.state(qb.qpn), 3);
    // A receive without room for a route takes no datagram at all.
    pair.b.post_receive(&mut qb, &[(at_b, 39, key_b)]);
    pair.a.post_send(&mut qa, 0x0a, SIGNALED, 0, &address(QKEY, qb.qpn, 2, false));
    pair.run();
    assert_eq!(pair.b.poll(&mut qb.receive), None);
}

/// A malformed receive names no buffer: it completes with an error, and its queue pair fails. Nothing is written.
#[test]
fn a_datagram_into_a_malformed_receive_fails_its_queue_pair() {
    let mut pair = Pair::new();
    let ((at_a, key_a), (at_b, key_b)) = pair.buffers(4096);
    let (mut qa, mut qb) = (datagram_qp(&mut pair.a), datagram_qp(&mut pair.b));
    pair.a.write(at_a, &[7; 22]);
    // Inline data, which only requests have.
    pair.b.post_receive(&mut qb, &[(at_b, 1 << 31 | 12, key_b)]);
    pair.b.post_receive(&mut qb, &[(at_b, 4096, key_b)]);
    for _ in 0..2 {
        pair.a.post_send(&mut qa, 0x0a, SIGNALED, 0, &[address(QKEY, qb.qpn, 2, false), data(at_a, 22, key_a)].concat());
        pair.run();
        assert_eq!(pair.a.poll(&mut qa.send).unwrap().opcode(), 0);
    }
    let ended: Vec<_> = std::iter::from_fn(|| pair.b.poll(&mut qb.receive)).collect();
    let ended: Vec<_> = ended.iter().map(|cqe| (cqe.opcode(), cqe.syndrome(), cqe.counter())).collect();
    // A local operation error, and what is behind it is flushed.
    assert_eq!(ended, [(0xe, 0x02, 0), (0xe, 0x05, 1)]);
    assert_eq!((pair.b.state(qb.qpn), pair.b.read(at_b, 62)), (6, vec![0; 62]));
}

#[test]
fn an_unconfirmed_message_longer_than_the_receive_is_dropped() {
    let mut pair = Pair::of(QpcSt::Uc, perfect(), Link::default(), 6);
    let ((at_a, key_a), (at_b, key_b)) = pair.buffers(8192);
    pair.b.post_receive(&mut pair.qb, &[(at_b, 1000, key_b)]);
    for (len, fits) in [(1001, false), (3000, false), (1000, true)] {
        pair.a.post_send(&mut pair.qa, 0x0a, SIGNALED, 0, &data(at_a, len, key_a));
        pair.run();
        assert_eq!(pair.a.poll(&mut pair.qa.send).unwrap().opcode(), 0);
        let got = pair.b.poll(&mut pair.qb.receive).map(|cqe| (cqe.opcode(), cqe.byte_cnt()));
        assert_eq!(got, fits.then_some((2, len)), "{len} bytes");
    }
}

#[test]
fn management_queue_pairs_have_fixed_numbers_on_the_wire() {
    let mut pair = Pair::new();
    let ((at_a, key_a), (at_b, key_b)) = pair.buffers(4096);
    let mut qps = Vec::new();
    for host in [&mut pair.a, &mut pair.b] {
        let qp = host.qp_of(QpcSt::Qp1, 4, 4, 6);
        host.modify(qp.qpn, CmdOpcode::Rst2InitQp, 0, |qpc| {
            qpc.set(Qpc::Q_KEY, 0x8001_0000);
        })
        .unwrap();
        host.modify(qp.qpn, CmdOpcode::Init2RtrQp, 0, |_| {}).unwrap();
        host.modify(qp.qpn, CmdOpcode::Rtr2RtsQp, 0, |_| {}).unwrap();
        qps.push(qp);
    }
    let (mut qb, mut qa) = (qps.pop().unwrap(), qps.pop().unwrap());
    pair.b.post_receive(&mut qb, &[(at_b, 4096, key_b)]);
    // The highest bit of a queue key asks for the queue pair's own.
    let body = [address(0x8001_0000, 1, 2, false), data(at_a, 256, key_a)].concat();
    pair.a.post_send(&mut qa, 0x0a, SIGNALED, 0, &body);
    pair.run();
    let got = pair.b.poll(&mut qb.receive).unwrap();
    assert_eq!((got.qpn(), got.byte_cnt()), (qb.qpn, 296));
    assert_eq!(got.0[25..28], [0, 0, 1], "from queue pair 1");
}

/// Address vector to the group ff12::7 at LID 0xc001.
fn to_group() -> Vec<u8> {
    let mut av = words(&[QKEY, 0, 1 << 31 | 0xff_ffff, 0xc001, 0, 0, 64, 1 << 30]);
    av.extend([0xff, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7]);
    av
}

#[test]
fn a_group_gets_copies() {
    let mut pair = Pair::new();
    let ((at_a, key_a), (at_b, key_b)) = pair.buffers(8192);
    let (mut qa, mut first, mut second) = (datagram_qp(&mut pair.a), datagram_qp(&mut pair.b), datagram_qp(&mut pair.b));
    let group: [u8; 16] = to_group()[32..].try_into().unwrap();
    pair.a.engine.attach_multicast(qa.qpn, group).unwrap();
    for qp in [&first, &second] {
        pair.b.engine.attach_multicast(qp.qpn, group).unwrap();
    }
    assert_eq!(pair.b.engine.attach_multicast(pair.qb.qpn, group), Err(CmdStatus::BadParam), "not a datagram queue pair");
    assert_eq!(pair.b.engine.attach_multicast(first.qpn, [0xfe; 16]), Err(CmdStatus::BadParam), "not a group");
    pair.a.write(at_a, b"to all");
    pair.a.post_receive(&mut qa, &[(at_a + 4096, 4096, key_a)]);
    pair.b.post_receive(&mut first, &[(at_b, 2048, key_b)]);
    pair.b.post_receive(&mut second, &[(at_b + 2048, 2048, key_b)]);
    let body = [to_group(), data(at_a, 6, key_a)].concat();
    pair.a.post_send(&mut qa, 0x0a, SIGNALED, 0, &body);
    pair.run();
    assert_eq!(pair.a.poll(&mut qa.send).unwrap().opcode(), 0);
    assert_eq!(pair.a.poll(&mut qa.receive).unwrap().byte_cnt(), 46, "the sender is a member too");
    for (qp, at) in [(&mut first, at_b), (&mut second, at_b + 2048)] {
        let got = pair.b.poll(&mut qp.receive).unwrap();
        // The partition stands where immediate data would.
        assert_eq!((got.byte_cnt(), got.immediate()), (46, 0xffff));
        assert_eq!(pair.b.read(at + 40, 6), b"to all");
        assert_eq!(pair.b.read(at + 24, 16), group);
    }
    pair.b.engine.detach_multicast(first.qpn, group).unwrap();
    assert_eq!(pair.b.engine.detach_multicast(first.qpn, group), Err(CmdStatus::BadRes));
    pair.b.engine.destroy_qp(second.qpn).unwrap();
    assert_eq!(pair.b.engine.counts().memberships, 0);
}

/// As many groups, and members of one, as the capabilities say; who is in a group already stays there.
#[test]
fn a_device_has_room_for_so_many_groups_and_members() {
    let mut host = Host::new(1);
    let gid = |number: u16| {
        let mut gid = [0xff; 16];
        gid[14..].copy_from_slice(&number.to_be_bytes());
        gid
    };
    let members: Vec<u32> = (0..17).map(|_| datagram_qp(&mut host).qpn).collect();
    for qpn in &members[..16] {
        host.engine.attach_multicast(*qpn, gid(0)).unwrap();
    }
    assert_eq!(host.engine.attach_multicast(members[16], gid(0)), Err(CmdStatus::NoResources));
    assert_eq!(host.engine.attach_multicast(members[15], gid(0)), Ok(()));
    for number in 1..256 {
        host.engine.attach_multicast(members[16], gid(number)).unwrap();
    }
    assert_eq!(host.engine.attach_multicast(members[0], gid(256)), Err(CmdStatus::NoResources));
    assert_eq!(host.engine.attach_multicast(members[0], gid(255)), Ok(()));
    assert_eq!(host.engine.counts().memberships, 16 + 255 + 1);
    // One that is destroyed makes room for a member, and for the groups that it was alone in.
    host.engine.destroy_qp(members[16]).unwrap();
    assert_eq!(host.engine.counts().memberships, 16 + 1);
    assert_eq!(host.engine.attach_multicast(members[1], gid(256)), Ok(()));
}

#[test]
fn members_that_take_nothing_count_towards_a_turn() {
    let mut pair = Pair::new();
    let ((at_a, key_a), _) = pair.buffers(4096);
    let mut qa = datagram_qp(&mut pair.a);
    let group: [u8; 16] = to_group()[32..].try_into().unwrap();
    for _ in 0..16 {
        let qp = datagram_qp(&mut pair.b);
        pair.b.modify(qp.qpn, CmdOpcode::Qp2Rst, 0, |_| {}).unwrap();
        pair.b.engine.attach_multicast(qp.qpn, group).unwrap();
    }
    pair.a.post_send(&mut qa, 0x0a, SIGNALED, 0, &[to_group(), data(at_a, 6, key_a)].concat());
    pair.a.with(|engine, ctx| engine.advance(ctx));
    let frame = pair.a.engine.transmit().unwrap();
    // Half of a turn is 2048 steps.
    pair.b.with(|engine, ctx| {
        let looked_at = (1..4096).find(|_| {
            engine.receive(ctx, &frame);
            ctx.meter.is_half_spent()
        });
        assert_eq!(looked_at, Some(2048 / 16));
    });
}

#[test]
fn no_datagram_is_longer_than_the_mtu_of_the_port() {
    let mut pair = Pair::new();
    let ((at_a, key_a), (at_b, key_b)) = pair.buffers(16384);
    let (mut qa, mut qb) = (datagram_qp(&mut pair.a), datagram_qp(&mut pair.b));
    let limit = |host: &mut Host, max_mtu| {
        let config = EngineConfig { max_mtu, ..host.engine.config().clone() };
        host.engine.configure(config);
    };
    let to = words(&[QKEY, 0, 1 << 31 | qb.qpn, 2, 0, 0, 0, 0, 0, 0, 0, 0]);
    // MTUs of the ports; whether 4096 bytes are sent, and whether they are taken.
    for (of_a, of_b, sent, taken) in [(2048, 2048, false, false), (4096, 2048, true, false), (4096, 4096, true, true)] {
        limit(&mut pair.a, of_a);
        limit(&mut pair.b, of_b);
        pair.b.post_receive(&mut qb, &[(at_b, 8192, key_b)]);
        pair.a.post_send(&mut qa, 0x0a, SIGNALED, 0, &[to.clone(), data(at_a, 4096, key_a)].concat());
        pair.run();
        let cqe = pair.a.poll(&mut qa.send).unwrap();
        // Local Length Error.
        assert_eq!((cqe.opcode() == 0, cqe.opcode() == 0xd && cqe.syndrome() == 0x01), (sent, !sent), "{of_a}");
        assert_eq!(pair.b.poll(&mut qb.receive).is_some(), taken, "{of_a} to {of_b}");
        if !sent {
            pair.a.modify(qa.qpn, CmdOpcode::SqErr2RtsQp, 0, |_| {}).unwrap();
        }
    }
}

/// The receive completes with the error, and its queue pair fails; the sender hears nothing.
#[test]
fn a_receive_into_memory_that_no_key_opens_fails_its_queue_pair() {
    for st in [QpcSt::Uc, QpcSt::Ud] {
        // The first SGE is good: of a message of several packets the second one ends in the other.
        let mut pair = Pair::of(QpcSt::Uc, perfect(), Link::default(), 6);
        let ((at_a, key_a), (at_b, key_b)) = pair.buffers(8192);
        if st == QpcSt::Ud {
            (pair.qa, pair.qb) = (datagram_qp(&mut pair.a), datagram_qp(&mut pair.b));
        }
        let (qb, len) = (pair.qb.qpn, if st == QpcSt::Ud { 200 } else { 700 });
        let to = if st == QpcSt::Ud { address(QKEY, qb, 2, false) } else { Vec::new() };
        pair.b.post_receive(&mut pair.qb, &[(at_b, 100, key_b), (at_b + 4096, 4096, key_b ^ 1)]);
        pair.b.post_receive(&mut pair.qb, &[(at_b, 4096, key_b)]);
        for _ in 0..2 {
            pair.a.post_send(&mut pair.qa, 0x0a, SIGNALED, 0, &[to.clone(), data(at_a, len, key_a)].concat());
        }
        pair.run();
        let sent: Vec<_> = std::iter::from_fn(|| pair.a.poll(&mut pair.qa.send)).map(|cqe| cqe.opcode()).collect();
        assert_eq!(sent, [0, 0], "{st:?}");
        let got: Vec<_> = std::iter::from_fn(|| pair.b.poll(&mut pair.qb.receive)).collect();
        let facts: Vec<_> = got.iter().map(|cqe| (cqe.opcode(), cqe.syndrome(), cqe.counter())).collect();
        // Local protection error; the next one is flushed.
        assert_eq!(facts, [(0xe, 0x04, 0), (0xe, 0x05, 1)], "{st:?}");
        assert_eq!(pair.b.state(qb), 6, "{st:?}");
        assert_eq!(pair.b.read(at_b + 4096, 100), [0; 100], "{st:?}");
    }
}

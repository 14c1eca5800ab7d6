//! Hosts and peers that mean harm: every answer is a value, every wait ends.

use super::super::{EngineEvent, PageSource};
use super::harness::*;
use crate::packet::{Aeth, AtomicEth, Bth, Lrh, Opcode, Operation, Packet, Reth, Syndrome, Transport};
use crate::wire::Random;
use bareverbs_mlx5_spec::{CmdOpcode, CmdStatus, Cqc, EventType, Mkc, Qpc, View, ViewMut};

#[test]
fn a_host_that_writes_garbage() {
    for seed in 0..100 {
        let mut random = Random::new(seed);
        let mut pair = Pair::new();
        let ((at_a, key_a), (at_b, key_b)) = pair.buffers(4096);
        for _ in 0..20 {
            let opcode = [0, 1, 8, 9, 10, 11, 16, 17, 18, 37][random.below(10) as usize];
            let mut body: Vec<u8> = (0..random.below(20) * 16).map(|_| random.next() as u8).collect();
            // Now and then a key that exists, so that garbage gets further.
            for (place, key) in [(8, key_b), (20, key_a), (36, key_a)] {
                if random.chance(700) && body.len() >= place + 12 {
                    body[place..place + 4].copy_from_slice(&key.to_be_bytes());
                    let addr = if key == key_b { at_b } else { at_a };
                    let at = if place == 8 { 0 } else { place + 4 };
                    body[at..at + 8].copy_from_slice(&addr.to_be_bytes());
                }
            }
            pair.b.post_receive(&mut pair.qb, &[(at_b, random.next() as u32, key_b ^ u32::from(random.chance(100)))]);
            pair.a.post_send(&mut pair.qa, opcode, random.next() as u8, random.next() as u32, &body);
        }
        if seed % 2 == 0 {
            let record = pair.qa.dbr;
            pair.a.write(record, &random.next().to_be_bytes());
        }
        for _ in 0..2000 {
            pair.step();
            pair.now = pair.now.after(std::time::Duration::from_micros(5));
        }
        let noise: Vec<u8> = (0..random.below(200)).map(|_| random.next() as u8).collect();
        pair.a.with(|engine, ctx| engine.receive(ctx, &noise));
    }
}

#[test]
fn contexts_of_random_bits() {
    let mut random = Random::new(77);
    let mut host = Host::new(1);
    let cq = host.cq(4);
    let (mut keys, mut queues) = (0, 0);
    for _ in 0..20_000 {
        let raw: Vec<u8> = (0..random.below(40)).flat_map(|_| random.next().to_be_bytes()).collect();
        let mut qpc: [u8; 232] = std::array::from_fn(|_| random.next() as u8);
        let mut view = ViewMut::<Qpc>::new(&mut qpc).unwrap();
        view.set(Qpc::CQN_SND, cq.cqn).set(Qpc::CQN_RCV, cq.cqn).set(Qpc::PD, PD).set(Qpc::UAR_PAGE, 0);
        if random.chance(500) {
            view.set(Qpc::ST, 0).set(Qpc::RQ_TYPE, 0).set(Qpc::LOG_PAGE_SIZE, 0).set(Qpc::LOG_RQ_SIZE, 3);
            view.set64(Qpc::DBR_ADDR, random.next() & !7);
        }
        if let Ok(qpn) = host.engine.create_qp(View::of(&qpc), PageSource::Listed(&raw), None) {
            queues += 1;
            for opcode in [CmdOpcode::Rst2InitQp, CmdOpcode::Init2RtrQp, CmdOpcode::Rtr2RtsQp] {
                let mask = random.next() as u32;
                let _ = host.with(|engine, ctx| engine.modify_qp(ctx, qpn, opcode, mask, View::of(&qpc)));
            }
            let doorbell = random.next().to_be_bytes();
            host.with(|engine, ctx| engine.ring_send(ctx, qpn, doorbell));
            host.with(|engine, ctx| engine.advance(ctx));
            host.engine.destroy_qp(qpn).unwrap();
        }
        let mut cqc: [u8; 64] = std::array::from_fn(|_| random.next() as u8);
        ViewMut::<Cqc>::of(&mut cqc).set(Cqc::UAR_PAGE, 0).set(Cqc::C_EQN_OR_APU_ELEMENT, 9);
        if let Ok(cqn) = host.engine.create_cq(View::<Cqc>::of(&cqc), PageSource::Listed(&raw), None) {
            host.engine.destroy_cq(cqn).unwrap();
        }
        let mut mkc: [u8; 64] = std::array::from_fn(|_| random.next() as u8);
        ViewMut::<Mkc>::of(&mut mkc).set(Mkc::PD, PD);
        if host.with(|engine, ctx| engine.create_mkey(ctx, View::<Mkc>::of(&mkc), PageSource::Listed(&raw))).is_ok() {
            keys += 1;
        }
    }
    assert!(keys > 100 && queues > 100, "{keys} {queues}");
}

#[test]
fn rings_where_no_memory_is() {
    let mut host = Host::new(1);
    let cq = host.cq(4);
    let dbr = host.alloc(8);
    let mut qpc = [0; 232];
    ViewMut::<Qpc>::new(&mut qpc)
        .unwrap()
        .set(Qpc::PD, PD)
        .set(Qpc::LOG_SQ_SIZE, 2)
        .set(Qpc::RQ_TYPE, 3)
        .set(Qpc::CQN_SND, cq.cqn)
        .set64(Qpc::DBR_ADDR, dbr);
    assert_eq!(host.engine.create_qp(View::of(&qpc), PageSource::Listed(&[]), None), Err(CmdStatus::BadParam), "no page");
    let qpn = host.engine.create_qp(View::of(&qpc), PageSource::Listed(&(1_u64 << 60).to_be_bytes()), None).unwrap();
    host.connect(qpn, 2, 3, Link::default());
    host.write(dbr + 4, &4u32.to_be_bytes());
    host.with(|engine, ctx| engine.ring_send(ctx, qpn, [0; 8]));
    host.with(|engine, ctx| engine.advance(ctx));
    assert_eq!(host.events(), [EngineEvent::Qp { event: EventType::WqCatasError, qpn }]);
    assert_eq!(host.state(qpn), 6);
}

#[test]
fn a_peer_that_sends_anything() {
    let mut random = Random::new(5);
    let mut host = Host::new(1);
    let mut qp = host.qp(4, 4, 8);
    let at = host.alloc(8192);
    let key = host.mkey(at, 8192, 0x1f);
    let (mut lives, mut psn) = (0, 0);
    for step in 0..50_000 {
        if step == 0 || host.state(qp.qpn) == 6 {
            lives += 1;
            host.modify(qp.qpn, CmdOpcode::Qp2Rst, 0, |_| {}).unwrap();
            host.write(qp.dbr, &[0; 8]);
            (qp.posted, qp.received) = (0, 0);
            host.connect(qp.qpn, 2, 7, Link::default());
            psn = 0xff_fffe;
        }
        if random.chance(300) && qp.received.wrapping_sub(host.query(qp.qpn, Qpc::HW_RQ_COUNTER) as u16) < 16 {
            host.post_receive(&mut qp, &[(at, random.below(8192) as u32, key)]);
        }
        if random.chance(300)
            && host.query(qp.qpn, Qpc::SW_SQ_WQEBB_COUNTER) - host.query(qp.qpn, Qpc::HW_SQ_WQEBB_COUNTER) < 16
        {
            let body = [raddr(at, key), data(at, random.below(2000) as u32, key)].concat();
            host.post_send(&mut qp, if random.chance(500) { 0x10 } else { 0x08 }, SIGNALED, 0, &body);
        }
        let operation = Operation::ALL[random.below(Operation::ALL.len() as u64) as usize];
        let opcode = Opcode { transport: Transport::Rc, operation };
        let near = |random: &mut Random, psn: u32| psn.wrapping_add(random.below(6) as u32).wrapping_sub(2) & 0xff_ffff;
        let lrh = Lrh { dlid: 1, slid: 2, ..Lrh::default() };
        let number = if random.chance(600) { psn } else { near(&mut random, psn) };
        let ack_req = random.chance(500);
        let bth = Bth { opcode, solicited: false, migreq: true, pkey: 0xffff, dest_qpn: qp.qpn, ack_req, psn: number };
        let mut packet = Packet::new(lrh, bth);
        let len = [0, 1, 4, 255, 256, 256, 256, 257, 1000][random.below(9) as usize];
        packet.transport.payload = vec![step as u8; len].into();
        let rkey = if random.chance(980) { key } else { random.next() as u32 };
        packet.transport.reth = Some(Reth { addr: at + random.below(16) * 8, rkey, len: random.below(1100) as u32 });
        packet.transport.atomic = Some(AtomicEth { addr: at + random.below(3) * 8, rkey, swap_add: 1, compare: 0 });
        packet.transport.aeth = Some(Aeth { syndrome: Syndrome::from_bits(random.next() as u8), msn: 0 });
        packet.transport.atomic_ack = Some(random.next());
        packet.transport.invalidate = Some(rkey ^ 0x100);
        let frame = packet.encode();
        host.with(|engine, ctx| engine.receive(ctx, &frame));
        psn = host.query(qp.qpn, Qpc::NEXT_RCV_PSN);
        host.now = host.now.after(std::time::Duration::from_micros(1));
        host.with(|engine, ctx| engine.advance(ctx));
        while host.engine.transmit().is_some() {}
        for which in [true, false] {
            let cq = if which { &mut qp.send } else { &mut qp.receive };
            while let Some(cqe) = host.poll(cq) {
                assert_eq!(cqe.qpn(), qp.qpn);
            }
        }
    }
    assert!((100..40_000).contains(&lives), "{lives}");
    assert!(host.audit.findings().is_empty(), "{:?}", host.audit.findings());
}

#[test]
fn frames_that_no_queue_pair_accepts_are_not_verified() {
    let mut pair = Pair::new();
    let ((at_a, key_a), (at_b, key_b)) = pair.buffers(4096);
    pair.a.post_send(&mut pair.qa, 0x08, SIGNALED, 0, &[raddr(at_b, key_b), data(at_a, 4096, key_a)].concat());
    pair.a.with(|engine, env| engine.advance(env));
    let frame = pair.a.engine.transmit().unwrap();
    // A bit of the payload is wrong. The low byte of the destination queue pair is at 15, that of the local identifier at 3,
    // that of its source at 7, and the service in the highest bits of byte 8.
    for (at, flip, malformed) in [(100, 1, 1), (15, 0x80, 0), (3, 4, 0), (7, 4, 0), (8, 0x20, 0)] {
        let before = pair.b.engine.stats();
        let mut frame = frame.clone();
        frame[100] ^= 1;
        frame[at] ^= if at == 100 { 0 } else { flip };
        pair.b.with(|engine, env| engine.receive(env, &frame));
        let after = pair.b.engine.stats();
        assert_eq!((after.dropped - before.dropped, after.malformed - before.malformed), (1, malformed), "byte {at}");
    }
}

//! Hosts and peers that mean harm: every answer is a value, every wait ends.

use super::super::EngineEvent;
use super::super::testing::*;
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
        pair.a.with(|engine, env| engine.receive(env, &noise));
    }
}

#[test]
fn contexts_of_random_bits() {
    let mut random = Random::new(77);
    let mut host = Host::new(1);
    let cq = host.cq(4);
    let (mut keys, mut queues) = (0, 0);
    for _ in 0..20_000 {
        let pas: Vec<u64> = (0..random.below(40)).map(|_| random.next()).collect();
        let mut qpc: [u8; 232] = std::array::from_fn(|_| random.next() as u8);
        let mut view = ViewMut::<Qpc>::new(&mut qpc).unwrap();
        view.set(Qpc::CQN_SND, cq.cqn).set(Qpc::CQN_RCV, cq.cqn);
        if random.chance(500) {
            view.set(Qpc::ST, 0).set(Qpc::RQ_TYPE, 0).set(Qpc::LOG_PAGE_SIZE, 0).set(Qpc::LOG_RQ_SIZE, 3);
            view.set64(Qpc::DBR_ADDR, random.next() & !7);
        }
        if let Ok(qpn) = host.engine.create_qp(View::of(&qpc), &pas) {
            queues += 1;
            for opcode in [CmdOpcode::Rst2InitQp, CmdOpcode::Init2RtrQp, CmdOpcode::Rtr2RtsQp] {
                let mask = random.next() as u32;
                let _ = host.with(|engine, env| engine.modify_qp(env, qpn, opcode, mask, View::of(&qpc)));
            }
            let doorbell = random.next().to_be_bytes();
            host.with(|engine, env| engine.ring_send(env, qpn, doorbell));
            host.with(|engine, env| engine.advance(env));
            host.engine.destroy_qp(qpn).unwrap();
        }
        let cqc: [u8; 64] = std::array::from_fn(|_| random.next() as u8);
        if let Ok(cqn) = host.engine.create_cq(View::<Cqc>::of(&cqc), &pas) {
            host.engine.destroy_cq(cqn).unwrap();
        }
        let mkc: [u8; 64] = std::array::from_fn(|_| random.next() as u8);
        let raw: Vec<u8> = pas.iter().flat_map(|entry| entry.to_be_bytes()).collect();
        if host.with(|engine, env| engine.create_mkey(env, View::<Mkc>::of(&mkc), &raw)).is_ok() {
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
    assert_eq!(host.engine.create_qp(View::of(&qpc), &[]), Err(CmdStatus::BadParam), "no page");
    let qpn = host.engine.create_qp(View::of(&qpc), &[1 << 60]).unwrap();
    host.connect(qpn, 2, 3, Link::default());
    host.write(dbr + 4, &4u32.to_be_bytes());
    host.with(|engine, env| engine.ring_send(env, qpn, [0; 8]));
    host.with(|engine, env| engine.advance(env));
    assert_eq!(host.events(), [EngineEvent::Qp { event: EventType::WqCatasError, qpn }]);
    assert_eq!(host.state(qpn), 6);
}

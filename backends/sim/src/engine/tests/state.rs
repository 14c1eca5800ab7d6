//! The context of a queue pair through its transitions, and what wraps.

use super::super::EngineConfig;
use super::harness::*;
use bareverbs_mlx5_spec::{Ads, CmdOpcode, CmdStatus, Field, Layout, Qpc, QpcSt, View, ViewMut, opt_param};

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

/// Returns a field of the path that a queue pair has.
fn of_path(host: &mut Host, qpn: u32, field: Field<Ads>) -> u32 {
    let mut qpc = [0; Qpc::SIZE];
    host.engine.query_qp(qpn, &mut ViewMut::new(&mut qpc).unwrap()).unwrap();
    View::<Qpc>::of(&qpc).sub(Qpc::PRIMARY_ADDRESS_PATH).get(field)
}

/// While it is drained, a queue pair may get another path, if the mask names it; partition and timeout have bits of their own.
#[test]
fn a_drained_queue_pair_takes_a_path_that_the_mask_names() {
    let mut host = Host::new(1);
    let qpn = before(&mut host, QpcSt::Rc, CmdOpcode::SqdRtsQp);
    let mut modify = |mask| {
        let fill = |qpc: &mut ViewMut<'_, Qpc>| {
            qpc.set(Qpc::RETRY_COUNT, 3);
            qpc.sub(Qpc::PRIMARY_ADDRESS_PATH).set(Ads::RLID, 5).set(Ads::ACK_TIMEOUT, 9).set(Ads::PKEY_INDEX, 1);
        };
        host.modify(qpn, CmdOpcode::Sqd2SqdQp, mask, fill).unwrap();
        let path = [Ads::RLID, Ads::ACK_TIMEOUT, Ads::PKEY_INDEX].map(|field| of_path(&mut host, qpn, field));
        (host.query(qpn, Qpc::RETRY_COUNT), path)
    };
    assert_eq!(modify(0), (0, [2, 0, 0]));
    assert_eq!(modify(opt_param::RETRY_COUNT), (3, [2, 0, 0]));
    assert_eq!(modify(opt_param::PRIMARY_ADDR_PATH), (3, [5, 0, 0]));
    assert_eq!(modify(opt_param::ACK_TIMEOUT), (3, [5, 9, 0]));
    assert_eq!(modify(opt_param::PKEY_INDEX), (3, [5, 9, 1]));
}

/// Datagrams have no path, but a largest message.
#[test]
fn a_queue_pair_for_datagrams_takes_its_mtu_on_the_way_to_rtr() {
    let mut host = Host::new(1);
    let qpn = before(&mut host, QpcSt::Ud, CmdOpcode::Init2RtrQp);
    host.modify(qpn, CmdOpcode::Init2RtrQp, 0, |qpc| {
        qpc.set(Qpc::MTU, 4).set(Qpc::LOG_MSG_MAX, 11).set(Qpc::RETRY_COUNT, 7);
    })
    .unwrap();
    let taken = [Qpc::MTU, Qpc::LOG_MSG_MAX, Qpc::RETRY_COUNT].map(|field| host.query(qpn, field));
    assert_eq!(taken, [4, 11, 0]);
}

/// Returns a queue pair in the state before `opcode`, of those on the way to RTS.
fn before(host: &mut Host, st: QpcSt, opcode: CmdOpcode) -> u32 {
    let qpn = host.qp_of(st, 4, 4, 4).qpn;
    for step in [CmdOpcode::Rst2InitQp, CmdOpcode::Init2RtrQp, CmdOpcode::Rtr2RtsQp] {
        if step == opcode || (step, opcode) == (CmdOpcode::Init2RtrQp, CmdOpcode::Init2InitQp) {
            break;
        }
        let filled = host.modify(qpn, step, 0, |qpc| {
            qpc.set(Qpc::MTU, 1).sub(Qpc::PRIMARY_ADDRESS_PATH).set(Ads::RLID, 2);
        });
        filled.unwrap();
    }
    if opcode == CmdOpcode::SqdRtsQp {
        host.modify(qpn, CmdOpcode::Rts2SqdQp, 0, |_| {}).unwrap();
    }
    qpn
}

/// Bits of the mask that a transition takes, each alone.
fn taken(st: QpcSt, opcode: CmdOpcode) -> u32 {
    let mut host = Host::new(1);
    let takes = |bit: &u32| {
        let qpn = before(&mut host, st, opcode);
        let modified = host.modify(qpn, opcode, 1 << bit, |qpc| {
            qpc.set(Qpc::MTU, 1).set(Qpc::PM_STATE, 3).sub(Qpc::PRIMARY_ADDRESS_PATH).set(Ads::RLID, 2);
        });
        assert!(matches!(modified, Ok(()) | Err(CmdStatus::BadParam)));
        modified.is_ok()
    };
    (0..32).filter(takes).fold(0, |mask, bit| mask | 1 << bit)
}

#[test]
fn a_transition_refuses_optional_fields_that_it_does_not_have() {
    let (rights, pkey, qkey, rnr, migration, port) = (0b1110, 1 << 4, 1 << 5, 1 << 6, 1 << 10, 1 << 16);
    let write = 1 << 3;
    // What Linux's mlx5 sends for each (`opt_mask`), without the alternate path, which is bit 0; and the partition, which it
    // does not send for a running queue pair.
    let cases = [
        (QpcSt::Rc, CmdOpcode::Rst2InitQp, 0),
        (QpcSt::Rc, CmdOpcode::Init2InitQp, rights | pkey | port),
        (QpcSt::Uc, CmdOpcode::Init2InitQp, write | pkey | port),
        (QpcSt::Ud, CmdOpcode::Init2InitQp, pkey | qkey | port),
        (QpcSt::Rc, CmdOpcode::Init2RtrQp, rights | pkey),
        (QpcSt::Uc, CmdOpcode::Init2RtrQp, write | pkey),
        (QpcSt::Ud, CmdOpcode::Init2RtrQp, pkey | qkey),
        (QpcSt::Rc, CmdOpcode::Rtr2RtsQp, rights | migration | rnr),
        (QpcSt::Uc, CmdOpcode::Rtr2RtsQp, write | migration),
        (QpcSt::Ud, CmdOpcode::Rtr2RtsQp, qkey),
        (QpcSt::Rc, CmdOpcode::Rts2RtsQp, rights | migration | rnr | pkey),
        (QpcSt::Ud, CmdOpcode::Rts2RtsQp, qkey | pkey),
        (QpcSt::Rc, CmdOpcode::SqdRtsQp, rights | migration | rnr | pkey),
    ];
    for (st, opcode, expected) in cases {
        assert_eq!(taken(st, opcode), expected, "{st:?} {opcode:?}");
    }
}

#[test]
fn a_transition_refuses_what_the_device_does_not_have() {
    let mut host = Host::new(1);
    let config = EngineConfig { max_mtu: 2048, log_max_reads: 3, ..host.engine.config().clone() };
    host.engine.configure(config);
    let mut to_rtr = |fill: fn(&mut ViewMut<'_, Qpc>)| {
        let qpn = before(&mut host, QpcSt::Rc, CmdOpcode::Init2RtrQp);
        let modified = host.modify(qpn, CmdOpcode::Init2RtrQp, 0, |qpc| {
            qpc.set(Qpc::MTU, 4).set(Qpc::LOG_RRA_MAX, 3);
            qpc.sub(Qpc::PRIMARY_ADDRESS_PATH).set(Ads::RLID, 2).set(Ads::GRH, 1);
            fill(qpc);
        });
        (modified, host.query(qpn, Qpc::STATE))
    };
    assert_eq!(to_rtr(|_| {}), (Ok(()), 2));
    let bad: [fn(&mut ViewMut<'_, Qpc>); 3] = [
        |qpc| _ = qpc.set(Qpc::MTU, 5),
        |qpc| _ = qpc.set(Qpc::LOG_RRA_MAX, 4),
        |qpc| _ = qpc.sub(Qpc::PRIMARY_ADDRESS_PATH).set(Ads::SRC_ADDR_INDEX, 1),
    ];
    for fill in bad {
        assert_eq!(to_rtr(fill), (Err(CmdStatus::BadParam), 1));
    }
    // The source of a path without a route is not checked.
    let local = to_rtr(|qpc| _ = qpc.sub(Qpc::PRIMARY_ADDRESS_PATH).set(Ads::GRH, 0).set(Ads::SRC_ADDR_INDEX, 1));
    assert_eq!(local, (Ok(()), 2));
    let qpn = before(&mut host, QpcSt::Rc, CmdOpcode::Rtr2RtsQp);
    for (log, expected) in [(4, Err(CmdStatus::BadParam)), (3, Ok(()))] {
        let modified = host.modify(qpn, CmdOpcode::Rtr2RtsQp, 0, |qpc| {
            qpc.set(Qpc::LOG_SRA_MAX, log);
        });
        assert_eq!(modified, expected);
    }
    // Armed or rearmed, where there is nothing to migrate to.
    for state in [0, 1] {
        let modified = host.modify(qpn, CmdOpcode::Rts2RtsQp, opt_param::PM_STATE, |qpc| {
            qpc.set(Qpc::PM_STATE, state);
        });
        assert_eq!(modified, Err(CmdStatus::BadParam));
    }
}

#[test]
fn a_route_begins_at_the_gid_that_the_path_names() {
    let mut pair = Pair::new();
    let ((at_a, key_a), (at_b, key_b)) = pair.buffers(4096);
    let peer_gid = pair.b.engine.identity().port_gid();
    let second = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x99];
    // Entry 2 is unused, and there are 8.
    pair.a.engine.identity().set_guid(1, 0x99);
    pair.a.modify(pair.qa.qpn, CmdOpcode::Rts2SqdQp, 0, |_| {}).unwrap();
    let move_to = |pair: &mut Pair<_>, index| {
        pair.a.modify(pair.qa.qpn, CmdOpcode::Sqd2SqdQp, opt_param::PRIMARY_ADDR_PATH, |qpc| {
            qpc.sub(Qpc::PRIMARY_ADDRESS_PATH).set(Ads::RLID, 2).set(Ads::GRH, 1).set(Ads::SRC_ADDR_INDEX, index);
            qpc.sub(Qpc::PRIMARY_ADDRESS_PATH).set_bytes(Ads::RGID_RIP, &peer_gid);
        })
    };
    assert_eq!(move_to(&mut pair, 2), Err(CmdStatus::BadParam));
    assert_eq!(move_to(&mut pair, 8), Err(CmdStatus::BadParam));
    assert_eq!(move_to(&mut pair, 1), Ok(()));
    pair.a.modify(pair.qa.qpn, CmdOpcode::SqdRtsQp, 0, |_| {}).unwrap();
    pair.b.post_receive(&mut pair.qb, &[(at_b, 64, key_b)]);
    pair.a.post_send(&mut pair.qa, 0x0a, SIGNALED, 0, &data(at_a, 4, key_a));
    pair.a.with(|engine, ctx| engine.advance(ctx));
    let frame = pair.a.engine.transmit().unwrap();
    // After the local route header: the global one, whose source is at byte 8.
    assert_eq!(frame[16..32], second);
    pair.b.with(|engine, ctx| engine.receive(ctx, &frame));
    let got = pair.b.poll(&mut pair.qb.receive).unwrap();
    // The flag of a completion that its packet had a route is for datagrams alone (`ibv_poll_cq(3)`).
    assert_eq!((got.opcode(), got.0[24] >> 4), (2, 0));
}

#[test]
fn a_p_key_index_beyond_the_table_is_refused() {
    let mut host = Host::new(1);
    let entries = 128;
    let fill = |index| {
        move |qpc: &mut ViewMut<'_, Qpc>| {
            qpc.sub(Qpc::PRIMARY_ADDRESS_PATH).set(Ads::PKEY_INDEX, index).set(Ads::RLID, 2);
            qpc.set(Qpc::MTU, 1).set(Qpc::PM_STATE, 3);
        }
    };
    for index in [entries, 0x3ff] {
        let qpn = host.qp(4, 4, 6).qpn;
        let mut refuse =
            |opcode, mask| assert_eq!(host.modify(qpn, opcode, mask, fill(index)), Err(CmdStatus::BadParam), "{opcode:?}");
        refuse(CmdOpcode::Rst2InitQp, 0);
        host.modify(qpn, CmdOpcode::Rst2InitQp, 0, fill(entries - 1)).unwrap();
        let mut step = |opcode| {
            let refused = host.modify(qpn, opcode, opt_param::PKEY_INDEX, fill(index));
            assert_eq!(refused, Err(CmdStatus::BadParam), "{opcode:?}");
            // Where the transition does not take it, it is not checked.
            host.modify(qpn, opcode, 0, fill(index)).unwrap();
        };
        step(CmdOpcode::Init2InitQp);
        step(CmdOpcode::Init2RtrQp);
        host.modify(qpn, CmdOpcode::Rtr2RtsQp, 0, fill(index)).unwrap();
        let refused = host.modify(qpn, CmdOpcode::Rts2RtsQp, opt_param::PKEY_INDEX, fill(index));
        assert_eq!(refused, Err(CmdStatus::BadParam));
    }
}

#[test]
fn the_path_of_a_connection_leads_to_one_port() {
    for (lid, result) in [
        (0, Err(CmdStatus::BadParam)),
        (0xc000, Err(CmdStatus::BadParam)),
        (0xffff, Err(CmdStatus::BadParam)),
        (0xbfff, Ok(())),
    ] {
        for st in [QpcSt::Rc, QpcSt::Uc] {
            let mut host = Host::new(1);
            let qpn = host.qp_of(st, 4, 4, 6).qpn;
            host.modify(qpn, CmdOpcode::Rst2InitQp, 0, |_| {}).unwrap();
            let modified = host.modify(qpn, CmdOpcode::Init2RtrQp, 0, |qpc| {
                qpc.set(Qpc::MTU, 1).sub(Qpc::PRIMARY_ADDRESS_PATH).set(Ads::RLID, lid);
            });
            assert_eq!(modified, result, "{st:?} to LID {lid:#x}");
        }
    }
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

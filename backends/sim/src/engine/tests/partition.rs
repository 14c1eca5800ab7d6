//! Partitions: who may speak to whom.

use super::harness::*;
use crate::packet::{Bth, Deth, Lrh, Opcode, Operation, Packet, Place, Transport, same_partition};
use bareverbs_mlx5_spec::{Ads, CmdOpcode, Qpc, QpcSt, opt_param};

fn set_pkeys(host: &mut Host, pkeys: &[u16]) {
    host.engine.identity().set_pkeys(0, &[0; 128]);
    host.engine.identity().set_pkeys(0, pkeys);
}

#[test]
fn members_of_a_partition_speak_if_one_of_them_is_a_full_one() {
    for (own, theirs, same) in [
        (0xffff, 0xffff, true),
        (0xffff, 0x7fff, true),
        (0x7fff, 0xffff, true),
        (0x7fff, 0x7fff, false),
        (0x8001, 0x8002, false),
        // Entries that are in no partition (IBTA 10.9.1.2).
        (0x8000, 0x8000, false),
        (0x0000, 0x8000, false),
    ] {
        assert_eq!(same_partition(own, theirs), same, "{own:#06x} and {theirs:#06x}");
    }
}

#[test]
fn a_connection_does_not_leave_its_partition() {
    let mut pair = Pair::new();
    let ((at_a, key_a), (at_b, key_b)) = pair.buffers(4096);
    let (qa, qb) = (pair.qa.qpn, pair.qb.qpn);
    set_pkeys(&mut pair.a, &[0x8001]);
    set_pkeys(&mut pair.b, &[0x8002]);
    // The index that is used, and one without a partition.
    for index in [0, 127] {
        for (host, qpn) in [(&mut pair.a, qa), (&mut pair.b, qb)] {
            host.modify(qpn, CmdOpcode::Rts2RtsQp, opt_param::PKEY_INDEX, |qpc| {
                qpc.sub(Qpc::PRIMARY_ADDRESS_PATH).set(Ads::PKEY_INDEX, index);
            })
            .unwrap();
        }
        pair.a.write(at_a, b"smuggled");
        pair.a.post_send(&mut pair.qa, 0x08, SIGNALED, 0, &[raddr(at_b, key_b), data(at_a, 8, key_a)].concat());
        for _ in 0..100 {
            pair.step();
            pair.now = pair.now.after(std::time::Duration::from_micros(1));
        }
        assert_eq!(pair.b.read(at_b, 8), [0; 8], "index {index}");
    }
}

/// Communication management in a partition that is not the first of the table needs it.
#[test]
fn queue_pair_1_is_in_every_partition_of_its_port() {
    let mut host = Host::new(1);
    set_pkeys(&mut host, &[0xffff, 0x8001]);
    let mut qp = host.qp_of(QpcSt::Qp1, 4, 4, 6);
    for opcode in [CmdOpcode::Rst2InitQp, CmdOpcode::Init2RtrQp, CmdOpcode::Rtr2RtsQp] {
        host.modify(qp.qpn, opcode, 0, |qpc| {
            qpc.set(Qpc::Q_KEY, 0x8001_0000).set(Qpc::MTU, 5);
        })
        .unwrap();
    }
    let at = host.alloc(4096);
    let key = host.mkey(at, 4096, 0x1f);
    for (pkey, taken) in [(0xffff, true), (0x8001, true), (0x0001, true), (0x8002, false)] {
        host.post_receive(&mut qp, &[(at, 4096, key)]);
        let lrh = Lrh { dlid: 1, slid: 2, ..Lrh::default() };
        let opcode = Opcode { transport: Transport::Ud, operation: Operation::Send(Place::Only) };
        let bth = Bth { opcode, solicited: false, migreq: true, pkey, dest_qpn: 1, ack_req: false, psn: 0 };
        let mut packet = Packet::new(lrh, bth);
        packet.transport.deth = Some(Deth { qkey: 0x8001_0000, source_qpn: 1 });
        packet.transport.payload = vec![0; 256].into();
        let frame = packet.encode();
        host.with(|engine, ctx| engine.receive(ctx, &frame));
        let got = host.poll(&mut qp.receive).map(|cqe| cqe.immediate());
        assert_eq!(got, taken.then_some(u32::from(pkey)), "P_Key {pkey:#06x}");
    }
    assert_eq!(host.engine.stats().pkey_violations, 1);
}

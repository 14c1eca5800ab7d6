//! Packets with a global route: it ends at this port, and on a connection begins at the peer.

use super::harness::*;
use crate::packet::{Bth, Deth, Grh, Lrh, Opcode, Operation, Packet, Place, Reth, Transport};
use bareverbs_mlx5_spec::{Ads, CmdOpcode, Qpc, QpcSt};

/// The GID of the port under test, the same by its link-local prefix, and the peer's.
const OWN: [u8; 16] = [0xfe, 0xc0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 1];
const LINK_LOCAL: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
const PEER: [u8; 16] = [0xfe, 0xc0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 2];
const STRANGER: [u8; 16] = [0x55; 16];

fn host() -> Host {
    let host = Host::new(1);
    host.engine.identity().set_gid_prefix(0xfec0 << 48 | 7);
    host
}

/// A packet from LID 2, of four bytes.
fn packet(transport: Transport, operation: Operation, dest_qpn: u32, route: Option<([u8; 16], [u8; 16])>) -> Packet<'static> {
    let opcode = Opcode { transport, operation };
    let bth = Bth { opcode, solicited: false, migreq: true, pkey: 0xffff, dest_qpn, ack_req: true, psn: 0xff_fffe };
    let mut packet = Packet::new(Lrh { dlid: 1, slid: 2, ..Lrh::default() }, bth);
    packet.link.infiniband_mut().unwrap().grh = route.map(|(sgid, dgid)| Grh { hop_limit: 64, sgid, dgid, ..Grh::default() });
    packet.transport.payload = vec![1, 2, 3, 4].into();
    packet
}

#[test]
fn a_datagram_for_another_gid_is_dropped() {
    for (route, taken) in
        [(None, true), (Some((STRANGER, OWN)), true), (Some((PEER, LINK_LOCAL)), true), (Some((PEER, STRANGER)), false)]
    {
        let mut host = host();
        let mut qp = host.qp_of(QpcSt::Ud, 4, 4, 6);
        for opcode in [CmdOpcode::Rst2InitQp, CmdOpcode::Init2RtrQp] {
            host.modify(qp.qpn, opcode, 0, |qpc| {
                qpc.set(Qpc::Q_KEY, 7).set(Qpc::MTU, 5);
            })
            .unwrap();
        }
        let at = host.alloc(4096);
        let key = host.mkey(at, 4096, 0x1f);
        host.post_receive(&mut qp, &[(at, 4096, key)]);
        let mut packet = packet(Transport::Ud, Operation::Send(Place::Only), qp.qpn, route);
        packet.transport.deth = Some(Deth { qkey: 7, source_qpn: 9 });
        host.with(|engine, ctx| engine.receive(ctx, &packet.encode()));
        let got = host.poll(&mut qp.receive);
        assert_eq!(got.is_some(), taken, "{route:?}");
        // The flag of a route.
        assert_eq!(got.map(|cqe| cqe.0[24] >> 4 & 3 != 0), taken.then_some(route.is_some()));
    }
}

#[test]
fn a_connection_takes_no_packet_of_another_route() {
    // Whether the connection has a route, the packet's, and whether it is executed.
    for (has_route, route, taken) in [
        (false, None, true),
        (false, Some((PEER, OWN)), true),
        (false, Some((PEER, STRANGER)), false),
        (true, None, true),
        (true, Some((PEER, OWN)), true),
        (true, Some((STRANGER, OWN)), false),
        (true, Some((PEER, STRANGER)), false),
    ] {
        let mut host = host();
        let qpn = host.qp(4, 4, 6).qpn;
        host.modify(qpn, CmdOpcode::Rst2InitQp, 0, |qpc| {
            qpc.set(Qpc::RWE, 1);
        })
        .unwrap();
        host.modify(qpn, CmdOpcode::Init2RtrQp, 0, |qpc| {
            qpc.set(Qpc::MTU, 1).set(Qpc::REMOTE_QPN, 0x1234).set(Qpc::NEXT_RCV_PSN, 0xff_fffe);
            let mut path = qpc.sub(Qpc::PRIMARY_ADDRESS_PATH);
            path.set(Ads::RLID, 2).set(Ads::GRH, u32::from(has_route)).set_bytes(Ads::RGID_RIP, &PEER);
        })
        .unwrap();
        let at = host.alloc(4096);
        let key = host.mkey(at, 4096, 0x1f);
        let mut packet = packet(Transport::Rc, Operation::Write(Place::Only), qpn, route);
        packet.transport.reth = Some(Reth { addr: at, rkey: key, len: 4 });
        host.with(|engine, ctx| engine.receive(ctx, &packet.encode()));
        assert_eq!(host.read(at, 4) == [1, 2, 3, 4], taken, "has a route: {has_route}, packet: {route:?}");
    }
}

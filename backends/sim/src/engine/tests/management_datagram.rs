//! Datagrams for the agents of the port.

use super::harness::*;
use crate::identity::PortIdentity;
use crate::packet::{Bth, Deth, Grh, InfiniBandLink, Lrh, MULTICAST_QPN, Opcode, Operation, Packet, Place, Transport};
use bareverbs_mlx5_spec::{CmdOpcode, Qpc, QpcSt};

/// Returns the link part of a packet, to be changed.
fn infiniband<'a>(packet: &'a mut Packet<'_>) -> &'a mut InfiniBandLink {
    packet.link.infiniband_mut().unwrap()
}

/// Returns a request for the agents of LID 2: a class, the queue pair and the key that it is sent to.
fn request(class: u8, dest_qpn: u32, qkey: u32) -> Packet<'static> {
    let opcode = Opcode { transport: Transport::Ud, operation: Operation::Send(Place::Only) };
    let bth = Bth { opcode, solicited: true, migreq: true, pkey: 0xffff, dest_qpn, ack_req: false, psn: 5 };
    // Subnet management has a virtual lane and a queue pair of its own, at both ends (IBTA 7.6, 14.2.1).
    let (vl, source_qpn) = if dest_qpn == 0 { (15, 0) } else { (0, 0x77) };
    let mut packet = Packet::new(Lrh { vl, sl: 3, dlid: 2, slid: 9 }, bth);
    packet.transport.deth = Some(Deth { qkey, source_qpn });
    packet.transport.payload = vec![0; 256].into();
    // Version, class, class version, Get.
    packet.transport.payload.to_mut()[..4].copy_from_slice(&[1, class, 1, 1]);
    packet
}

#[test]
fn requests_to_an_agent_reach_no_queue_pair() {
    let mut host = Host::new(2);
    // General management has queue key 0x80010000 (IBTA 10.2.5), subnet management queue pair 0.
    for (class, qpn, qkey, taken) in [
        (4, 1, 0x8001_0000, true),
        (4, 1, 0x1234, false),
        (4, 0, 0, false),
        (4, 7, 0x8001_0000, false),
        (3, 1, 0x8001_0000, false),
        (1, 0, 0, true),
        (0x81, 0, 0, true),
        (1, 1, 0x8001_0000, false),
    ] {
        let packet = request(class, qpn, qkey);
        host.with(|engine, ctx| engine.receive(ctx, &packet.encode()));
        assert_eq!(host.engine.next_due().is_some(), taken, "it is work");
        assert_eq!(host.engine.next_management_request().is_some(), taken, "class {class} to {qpn} with {qkey:#x}");
    }
    for wrong in [3, 0xc001] {
        let mut packet = request(4, 1, 0x8001_0000);
        infiniband(&mut packet).lrh.dlid = wrong;
        host.with(|engine, ctx| engine.receive(ctx, &packet.encode()));
        assert_eq!(host.engine.next_management_request(), None, "for LID {wrong:#x}");
    }
    let mut short = request(4, 1, 0x8001_0000);
    short.transport.payload.to_mut().pop();
    host.with(|engine, ctx| engine.receive(ctx, &short.encode()));
    assert_eq!(host.engine.next_management_request(), None);
}

/// Returns a management queue pair that has receives for two datagrams.
fn management_qp(host: &mut Host, st: QpcSt, qkey: u32) -> TestQp {
    let mut qp = host.qp_of(st, 4, 4, 6);
    for opcode in [CmdOpcode::Rst2InitQp, CmdOpcode::Init2RtrQp, CmdOpcode::Rtr2RtsQp] {
        host.modify(qp.qpn, opcode, 0, |qpc| {
            qpc.set(Qpc::Q_KEY, qkey).set(Qpc::MTU, 5);
        })
        .unwrap();
    }
    let at = host.alloc(4096);
    let key = host.mkey(at, 4096, 0x1f);
    (0..2).for_each(|_| host.post_receive(&mut qp, &[(at, 4096, key)]));
    qp
}

#[test]
fn subnet_management_is_taken_from_queue_pair_0_on_lane_15_alone() {
    let mut host = Host::new(2);
    let mut manager = management_qp(&mut host, QpcSt::Qp0, 0);
    let mut ordinary = management_qp(&mut host, QpcSt::Ud, 7);
    // Class 1 with Get is for the agent, class 7 for the host's own queue pair 0.
    for (class, vl, source_qpn, taken) in [
        (1, 15, 0, true),
        (1, 0, 0, false),
        (1, 15, 0x77, false),
        (1, 0, 0x77, false),
        (7, 15, 0, true),
        (7, 0, 0, false),
        (7, 15, 0x77, false),
    ] {
        let mut packet = request(class, 0, 0);
        infiniband(&mut packet).lrh.vl = vl;
        packet.transport.deth = Some(Deth { qkey: 0, source_qpn });
        host.with(|engine, ctx| engine.receive(ctx, &packet.encode()));
        let by_agent = host.engine.next_management_request().is_some();
        let by_host = host.poll(&mut manager.receive).is_some();
        let case = format!("class {class} on lane {vl} from QP {source_qpn:#x}");
        assert_eq!((by_agent, by_host), (taken && class == 1, taken && class == 7), "{case}");
    }
    // Nothing else comes on that lane, by which it would pass a port that is not active.
    for (vl, taken) in [(15, false), (0, true)] {
        let mut packet = request(7, ordinary.qpn, 7);
        infiniband(&mut packet).lrh.vl = vl;
        host.with(|engine, ctx| engine.receive(ctx, &packet.encode()));
        assert_eq!(host.poll(&mut ordinary.receive).is_some(), taken, "lane {vl}");
    }
}

/// Its number on the wire is not the one that it has here, so the first fields of a frame have not been compared with its own.
#[test]
fn a_packet_of_another_service_does_not_reach_a_management_queue_pair() {
    let mut host = Host::new(2);
    let mut qp = management_qp(&mut host, QpcSt::Qp1, 0x8001_0000);
    for (transport, taken) in [(Transport::Rc, false), (Transport::Uc, false), (Transport::Ud, true)] {
        let mut packet = request(7, 1, 0x8001_0000);
        packet.transport.bth.opcode.transport = transport;
        let before = host.engine.stats().dropped;
        host.with(|engine, ctx| engine.receive(ctx, &packet.encode()));
        let dropped = host.engine.stats().dropped - before;
        assert_eq!((host.poll(&mut qp.receive).is_some(), dropped), (taken, u64::from(!taken)), "{transport:?}");
    }
}

#[test]
fn queue_pair_0_is_addressed_by_queue_pair_0_alone() {
    let mut host = Host::new(1);
    let at = host.alloc(4096);
    let key = host.mkey(at, 4096, 0x1f);
    for (st, dest_qpn, sent) in [(QpcSt::Ud, 0, false), (QpcSt::Qp0, 0, true), (QpcSt::Qp0, 0x77, false)] {
        let mut qp = management_qp(&mut host, st, 0);
        let address = words(&[0, 0, 1 << 31 | dest_qpn, 2, 0, 0, 0, 0, 0, 0, 0, 0]);
        host.post_send(&mut qp, 0x0a, SIGNALED, 0, &[address, data(at, 256, key)].concat());
        host.with(|engine, ctx| engine.advance(ctx));
        let cqe = host.poll(&mut qp.send).unwrap();
        // Local QP Operation Error.
        assert_eq!(
            (cqe.opcode() == 0, cqe.opcode() == 0xd && cqe.syndrome() == 0x02),
            (sent, !sent),
            "{st:?} to {dest_qpn:#x}"
        );
        assert_eq!(host.engine.transmit().is_some(), sent);
        host.engine.destroy_qp(qp.qpn).unwrap();
    }
}

#[test]
fn a_port_without_an_identifier_is_answered_too() {
    let mut host = Host::new(0);
    let mut request = request(0x81, 0, 0);
    (infiniband(&mut request).lrh.slid, infiniband(&mut request).lrh.dlid) = (0, 0xffff);
    host.with(|engine, ctx| engine.receive(ctx, &request.encode()));
    assert!(host.engine.next_management_request().is_some());
    host.with(|engine, ctx| engine.answer(ctx, &request, &[7; 256]));
    let answer = host.engine.transmit().expect("for the wire, not for itself");
    let answer = Packet::decode(&answer).unwrap();
    let lrh = answer.link.infiniband().unwrap().lrh;
    assert_eq!((lrh.dlid, lrh.slid), (0xffff, 0));
}

#[test]
fn answers_go_to_the_sender() {
    let mut host = Host::new(2);
    for (qpn, qkey, vl) in [(1, 0x8001_0000, 0), (0, 0, 15)] {
        let request = request(1, qpn, qkey);
        host.with(|engine, ctx| engine.answer(ctx, &request, &[7; 256]));
        let answer = host.engine.transmit().unwrap();
        let answer = Packet::decode(&answer).unwrap();
        assert_eq!(answer.link, Lrh { vl, sl: 3, dlid: 9, slid: 2 }.into());
        let asked_by = if qpn == 0 { 0 } else { 0x77 };
        assert_eq!(
            (answer.transport.bth.dest_qpn, answer.transport.bth.pkey, answer.transport.bth.solicited),
            (asked_by, 0xffff, false)
        );
        assert_eq!(answer.transport.deth, Some(Deth { qkey, source_qpn: qpn }));
        assert_eq!(*answer.transport.payload, [7; 256]);
    }
}

#[test]
fn a_full_member_answers_a_limited_one() {
    let mut host = Host::new(2);
    let limited = PortIdentity::with_lid(9);
    limited.set_pkeys(0, &[0x7fff]);
    let mut request = request(4, 1, 0x8001_0000);
    request.transport.bth.pkey = 0x7fff;
    host.with(|engine, ctx| engine.answer(ctx, &request, &[7; 256]));
    let frame = host.engine.transmit().unwrap();
    assert_eq!(Packet::decode(&frame).unwrap().transport.bth.pkey, 0xffff);
    assert!(limited.matches(&frame), "the switch delivers it");
}

#[test]
fn frames_come_from_a_unicast_lid() {
    let mut host = Host::new(2);
    // Before it has a LID, a port may send subnet management.
    for (qpn, qkey, slid, taken) in [
        (1, 0x8001_0000, 9, true),
        (1, 0x8001_0000, 0xbfff, true),
        (1, 0x8001_0000, 0, false),
        (1, 0x8001_0000, 0xc000, false),
        (1, 0x8001_0000, 0xffff, false),
        (0, 0, 0, true),
        (0, 0, 0xc001, false),
    ] {
        let mut packet = request(if qpn == 0 { 1 } else { 4 }, qpn, qkey);
        infiniband(&mut packet).lrh.slid = slid;
        host.with(|engine, ctx| engine.receive(ctx, &packet.encode()));
        assert_eq!(host.engine.next_management_request().is_some(), taken, "from {slid:#x} to QP {qpn}");
    }
}

#[test]
fn the_permissive_lid_is_for_subnet_management_alone() {
    let mut host = Host::new(2);
    for (class, qpn, qkey, taken) in [(1, 0, 0, true), (4, 1, 0x8001_0000, false)] {
        let mut packet = request(class, qpn, qkey);
        infiniband(&mut packet).lrh.dlid = 0xffff;
        host.with(|engine, ctx| engine.receive(ctx, &packet.encode()));
        assert_eq!(host.engine.next_management_request().is_some(), taken, "to QP {qpn}");
    }
    let mut ordinary = management_qp(&mut host, QpcSt::Ud, 7);
    for (dlid, taken) in [(0xffff, false), (2, true)] {
        let mut packet = request(7, ordinary.qpn, 7);
        infiniband(&mut packet).lrh.dlid = dlid;
        host.with(|engine, ctx| engine.receive(ctx, &packet.encode()));
        assert_eq!(host.poll(&mut ordinary.receive).is_some(), taken, "to LID {dlid:#x}");
    }
}

#[test]
fn frames_for_a_group_do_not_come_on_lane_15() {
    let mut host = Host::new(2);
    let mut member = management_qp(&mut host, QpcSt::Ud, 7);
    let mut gid = [0; 16];
    gid[0] = 0xff;
    host.engine.attach_multicast(member.qpn, gid).unwrap();
    for (vl, taken) in [(15, false), (0, true)] {
        let mut packet = request(7, MULTICAST_QPN, 7);
        (infiniband(&mut packet).lrh.vl, infiniband(&mut packet).lrh.dlid) = (vl, 0xc001);
        infiniband(&mut packet).grh = Some(Grh { hop_limit: 1, dgid: gid, ..Grh::default() });
        host.with(|engine, ctx| engine.receive(ctx, &packet.encode()));
        assert_eq!(host.poll(&mut member.receive).is_some(), taken, "lane {vl}");
    }
}

/// The ICRC of a frame that nothing takes is not computed, or a group frame would cost every port of the subnet that much.
#[test]
fn a_frame_that_nothing_takes_is_dropped_before_its_icrc() {
    let mut host = Host::new(2);
    for (dlid, qpn) in [(2, 0xab_cdef), (0xc001, 0xab_cdef), (0xc001, 1)] {
        let mut packet = request(7, qpn, 7);
        infiniband(&mut packet).lrh.dlid = dlid;
        let mut frame = packet.encode();
        *frame.last_mut().unwrap() ^= 1;
        host.with(|engine, ctx| engine.receive(ctx, &frame));
        let stats = host.engine.stats();
        assert_eq!(stats.malformed, 0, "LID {dlid:#x}, QP {qpn:#x}");
    }
    assert_eq!(host.engine.stats().dropped, 3);
}

#[test]
fn a_host_does_not_learn_the_key_that_a_manager_sends_to_another() {
    const KEY: u64 = 0x1234_5678_9abc_def0;
    let mut host = Host::new(2);
    let mut qp = host.qp_of(QpcSt::Qp0, 4, 4, 6);
    for opcode in [CmdOpcode::Rst2InitQp, CmdOpcode::Init2RtrQp, CmdOpcode::Rtr2RtsQp] {
        let modified = host.modify(qp.qpn, opcode, 0, |qpc| {
            qpc.set(Qpc::MTU, 5);
        });
        modified.unwrap();
    }
    let at = host.alloc(4096);
    let lkey = host.mkey(at, 4096, 0x1f);
    // Get(SMInfo), which opensm sends to each port that announces a manager, and its answer.
    for (class, method, expected) in [(0x81, 1, 0), (1, 1, 0), (1, 2, 0), (1, 0x81, KEY)] {
        host.post_receive(&mut qp, &[(at, 4096, lkey)]);
        let mut request = request(class, 0, 0);
        infiniband(&mut request).lrh.vl = 15;
        let mad = request.transport.payload.to_mut();
        mad[3] = method;
        mad[16..18].copy_from_slice(&0x20_u16.to_be_bytes());
        mad[24..32].copy_from_slice(&KEY.to_be_bytes());
        let mut expected_mad = mad.clone();
        expected_mad[24..32].copy_from_slice(&expected.to_be_bytes());
        host.with(|engine, ctx| engine.receive(ctx, &request.encode()));
        assert!(host.poll(&mut qp.receive).is_some(), "{class:#x} {method:#x}");
        assert_eq!(host.read(at + 40, 256), expected_mad, "{class:#x} {method:#x}");
    }
}

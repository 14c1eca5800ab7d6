//! Datagrams for the agents of the port.

use super::super::testing::*;
use crate::packet::{Bth, Deth, Lrh, Opcode, Operation, Packet, Place, Transport};

/// A request for the agents of LID 2: a class, the queue pair and the key that it is sent to.
fn request(class: u8, dest_qpn: u32, qkey: u32) -> Packet<'static> {
    let opcode = Opcode { transport: Transport::Ud, operation: Operation::Send(Place::Only) };
    let bth = Bth { opcode, solicited: true, migreq: true, pkey: 0xffff, dest_qpn, ack_req: false, psn: 5 };
    let mut packet = Packet::new(Lrh { vl: 0, sl: 3, dlid: 2, slid: 9 }, bth);
    packet.deth = Some(Deth { qkey, source_qpn: 0x77 });
    packet.payload = vec![0; 256].into();
    // Version, class, class version, Get.
    packet.payload.to_mut()[..4].copy_from_slice(&[1, class, 1, 1]);
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
        host.with(|engine, env| engine.receive(env, &packet.encode()));
        assert_eq!(host.engine.next_due().is_some(), taken, "it is work");
        assert_eq!(host.engine.next_management_request().is_some(), taken, "class {class} to {qpn} with {qkey:#x}");
    }
    for wrong in [3, 0xc001] {
        let mut packet = request(4, 1, 0x8001_0000);
        packet.lrh.dlid = wrong;
        host.with(|engine, env| engine.receive(env, &packet.encode()));
        assert_eq!(host.engine.next_management_request(), None, "for LID {wrong:#x}");
    }
    let mut short = request(4, 1, 0x8001_0000);
    short.payload.to_mut().pop();
    host.with(|engine, env| engine.receive(env, &short.encode()));
    assert_eq!(host.engine.next_management_request(), None);
}

#[test]
fn a_port_without_an_identifier_is_answered_too() {
    let mut host = Host::new(0);
    let mut request = request(0x81, 0, 0);
    (request.lrh.slid, request.lrh.dlid) = (0, 0xffff);
    host.with(|engine, env| engine.receive(env, &request.encode()));
    assert!(host.engine.next_management_request().is_some());
    host.with(|engine, env| engine.answer(env, &request, &[7; 256]));
    let answer = host.engine.transmit().expect("for the wire, not for itself");
    let answer = Packet::decode(&answer).unwrap();
    assert_eq!((answer.lrh.dlid, answer.lrh.slid), (0xffff, 0));
}

#[test]
fn answers_go_to_the_sender() {
    let mut host = Host::new(2);
    for (qpn, qkey, vl) in [(1, 0x8001_0000, 0), (0, 0, 15)] {
        let request = request(1, qpn, qkey);
        host.with(|engine, env| engine.answer(env, &request, &[7; 256]));
        let answer = host.engine.transmit().unwrap();
        let answer = Packet::decode(&answer).unwrap();
        assert_eq!(answer.lrh, Lrh { vl, sl: 3, dlid: 9, slid: 2 });
        assert_eq!((answer.bth.dest_qpn, answer.bth.pkey, answer.bth.solicited), (0x77, 0xffff, false));
        assert_eq!(answer.deth, Some(Deth { qkey, source_qpn: qpn }));
        assert_eq!(*answer.payload, [7; 256]);
    }
}

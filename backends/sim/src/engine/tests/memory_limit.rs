//! What queue pairs take of the process beyond what each is counted with, and give back.

use super::harness::*;
use crate::engine::EngineConfig;
use crate::engine::resources::MAX_FRAMES;
use crate::limits::Limits;
use crate::packet::{Aeth, Bth, Lrh, Opcode, Operation, Packet, Place, Reth, Syndrome, Transport};

const WRITE: u8 = 0x08;
const NOP: u8 = 0x00;

/// A packet of the peer of a queue pair.
fn packet(qpn: u32, operation: Operation, psn: u32, ack_req: bool) -> Packet<'static> {
    let opcode = Opcode { transport: Transport::Rc, operation };
    let psn = psn & 0xff_ffff;
    let bth = Bth { opcode, solicited: false, migreq: true, pkey: 0xffff, dest_qpn: qpn, ack_req, psn };
    Packet::new(Lrh { dlid: 1, slid: 9, ..Lrh::default() }, bth)
}

fn give(host: &mut Host, packet: &Packet<'_>) {
    host.with(|engine, ctx| engine.receive(ctx, &packet.encode()));
}

/// Queue pairs whose peers make them queue as many responses as they can, while the port sends nothing: what they take then.
fn queue_responses(host: &mut Host, qpns: &[u32]) -> u64 {
    host.engine.shared.frames.extend((0..MAX_FRAMES).map(|_| Vec::new()));
    for &qpn in qpns {
        // The first packet that is expected is 0xff_fffe.
        for number in 0..1000_u32 {
            let psn = 0xff_fffe + number;
            // A write of no bytes in order, then one with a gap before it: an acknowledgement, a negative one.
            for (psn, ack_req) in [(psn, true), (psn + 5, false)] {
                let mut write = packet(qpn, Operation::Write(Place::Only), psn, ack_req);
                write.transport.reth = Some(Reth { addr: 0, rkey: 0, len: 0 });
                give(host, &write);
            }
        }
    }
    host.with(|engine, ctx| engine.advance(ctx));
    host.engine.registry().memory_used()
}

fn connected(host: &mut Host, log_sq: u32) -> TestQp {
    let qp = host.qp(2, log_sq, 8);
    host.connect(qp.qpn, 9, 0x99, Link { mtu: 5, timeout: 0, ..Link::default() });
    qp
}

/// A queue of 4096 entries has 64 pages, each listed with eight bytes.
#[test]
fn the_list_of_pages_of_a_queue_pair_is_counted() {
    let taken = |log_sq| {
        let mut host = Host::new(1);
        let before = host.engine.registry().memory_used();
        let qpn = host.qp(2, log_sq, 8).qpn;
        let with = host.engine.registry().memory_used();
        host.engine.destroy_qp(qpn).unwrap();
        (with - before, with - host.engine.registry().memory_used())
    };
    let (short, long) = (taken(2), taken(12));
    assert!((64 * 8 - 16..1024).contains(&(long.0 - short.0)), "{short:?} {long:?}");
    assert_eq!(long.1 - short.1, long.0 - short.0, "and given back");
}

#[test]
fn waiting_responses_stay_within_the_limit() {
    let mut host = Host::new(1);
    let qpns: Vec<u32> = (0..8).map(|_| connected(&mut host, 4).qpn).collect();
    let before = host.engine.registry().memory_used();
    let room = 64 << 10;
    host.engine.registry_mut().set_memory_limit(before + room);
    let used = queue_responses(&mut host, &qpns);
    assert!(used > before && used <= before + room, "{} of {room}", used - before);
    // All are sent, and give back what they took.
    while host.engine.transmit().is_some() {
        host.with(|engine, ctx| engine.advance(ctx));
    }
    assert_eq!(host.engine.registry().memory_used(), before);
}

#[test]
fn responses_that_every_queue_pair_may_have_need_no_room() {
    let mut host = Host::new(1);
    let qpn = connected(&mut host, 4).qpn;
    let before = host.engine.registry().memory_used();
    host.engine.registry_mut().set_memory_limit(before);
    assert_eq!(queue_responses(&mut host, &[qpn]), before);
    host.engine.shared.frames.clear();
    host.with(|engine, ctx| engine.advance(ctx));
    assert!(host.engine.transmit().is_some());
}

#[test]
fn requests_in_progress_stay_within_the_limit() {
    for room in [0, 16 << 10, u64::MAX >> 1] {
        let mut host = Host::new(1);
        let at = host.alloc(4096);
        let key = host.mkey(at, 4096, 0x1f);
        let mut qp = connected(&mut host, 10);
        let before = host.engine.registry().memory_used();
        host.engine.registry_mut().set_memory_limit(before + room);
        host.post_send(&mut qp, WRITE, 0, 0, &[raddr(0, 1), data(at, 8, key)].concat());
        // As large as requests can be, then small.
        for index in 0..100 {
            let segments = if index < 20 { data(at, 0, key).repeat(60) } else { Vec::new() };
            host.post_send(&mut qp, NOP, 0, 0, &segments);
        }
        host.post_send(&mut qp, NOP, SIGNALED, 0, &[]);
        for _ in 0..20 {
            host.with(|engine, ctx| engine.advance(ctx));
        }
        // The write waits for its acknowledgement, the others for the write.
        let used = host.engine.registry().memory_used();
        assert!(used <= before + room, "{} of {room}", used - before);
        assert!(used > before || room == 0);
        let mut acknowledge = packet(qp.qpn, Operation::Acknowledge, host.engine.qps[&qp.qpn].requester.window_start, false);
        acknowledge.transport.aeth = Some(Aeth { syndrome: Syndrome::Ack(31), msn: 1 });
        give(&mut host, &acknowledge);
        for _ in 0..200 {
            host.with(|engine, ctx| engine.advance(ctx));
        }
        assert_eq!(host.poll(&mut qp.send).map(|done| done.counter()), Some(1 + 20 * 16 + 80));
        assert_eq!(host.engine.registry().memory_used(), before);
    }
}

#[test]
fn responses_to_as_many_reads_as_a_device_may_take_need_no_room() {
    let limits = Limits { log_max_reads: 7, ..Limits::default() };
    let mut host = Host::with_config(1, EngineConfig { limits, log_max_reads: 7, ..EngineConfig::default() });
    let at = host.alloc(4096);
    let key = host.mkey(at, 4096, 0x1f);
    let qp = host.qp(2, 4, 8);
    host.connect(qp.qpn, 9, 0x99, Link { mtu: 5, timeout: 0, log_depth: 7, ..Link::default() });
    let before = host.engine.registry().memory_used();
    host.engine.registry_mut().set_memory_limit(before);
    host.engine.shared.frames.extend((0..MAX_FRAMES).map(|_| Vec::new()));
    for _ in 0..2 {
        for number in 0..128 {
            let mut read = packet(qp.qpn, Operation::ReadRequest, 0xff_fffe + number, false);
            read.transport.reth = Some(Reth { addr: at, rkey: key, len: 8 });
            give(&mut host, &read);
        }
    }
    assert_eq!(host.engine.qps[&qp.qpn].responder.pending_responses(true), 128);
    assert_eq!(host.engine.registry().memory_used(), before);
}

//! End-to-end flow control: requests that take a receive of the peer, and the credits that it reports.

use std::time::Duration;

use super::harness::*;
use crate::packet::{Aeth, Bth, Lrh, Opcode, Operation, Packet, Place, Syndrome, Transport};
use crate::wire::{FaultyWire, Probability, WireFaults};

const SEND: u8 = 0x0a;
const WRITE: u8 = 0x08;
const WRITE_IMMEDIATE: u8 = 0x09;
const READ: u8 = 0x10;
const NOP: u8 = 0x00;
const FIRST: u32 = 0xff_fffe;
const MTU: u32 = 256;

/// A requester whose first acknowledgement reported no receives; the test is its peer.
struct Lone {
    host: Host,
    qp: TestQp,
    at: u64,
    key: u32,
    /// Packets acknowledged, and messages.
    packets: u32,
    messages: u32,
}

impl Lone {
    fn new() -> Self {
        let mut lone = Self::fresh();
        lone.post(SEND, 8);
        assert_eq!(lone.sent().len(), 1);
        lone.acknowledge(1, 1, 0);
        lone
    }

    /// Creates a requester without any acknowledgement yet.
    fn fresh() -> Self {
        let mut host = Host::new(1);
        let qp = host.qp(4, 7, 8);
        host.connect(qp.qpn, 2, 0x1234, Link::default());
        let at = host.alloc(1 << 16);
        let key = host.mkey(at, 1 << 16, 0x1f);
        Self { host, qp, at, key, packets: 0, messages: 0 }
    }

    fn post(&mut self, opcode: u8, len: u32) {
        let mut body = if opcode == SEND { Vec::new() } else { raddr(0, 0) };
        body.extend(data(self.at, len, self.key));
        self.host.post_send(&mut self.qp, opcode, SIGNALED, 0, &body);
    }

    /// Returns the operation of each packet, and whether it asks for an acknowledgement.
    fn sent(&mut self) -> Vec<(Operation, bool)> {
        self.host.with(|engine, ctx| engine.advance(ctx));
        let frames = std::iter::from_fn(|| self.host.engine.transmit());
        frames
            .map(|frame| {
                let bth = Packet::decode(&frame).unwrap().transport.bth;
                (bth.opcode.operation, bth.ack_req)
            })
            .collect()
    }

    /// Acknowledges more packets and messages, with a credit count as it stands in the header.
    fn acknowledge(&mut self, packets: u32, messages: u32, count: u8) {
        self.packets += packets;
        self.messages += messages;
        self.answer(self.packets - 1, Syndrome::Ack(count));
    }

    /// An answer about a packet.
    fn answer(&mut self, packet: u32, syndrome: Syndrome) {
        let lrh = Lrh { dlid: 1, slid: 2, ..Lrh::default() };
        let opcode = Opcode { transport: Transport::Rc, operation: Operation::Acknowledge };
        let psn = (FIRST + packet) & 0xff_ffff;
        let bth = Bth { opcode, solicited: false, migreq: true, pkey: 0xffff, dest_qpn: self.qp.qpn, ack_req: false, psn };
        let mut packet = Packet::new(lrh, bth);
        packet.transport.aeth = Some(Aeth { syndrome, msn: self.messages });
        let frame = packet.encode();
        self.host.with(|engine, ctx| engine.receive(ctx, &frame));
    }
}

const ONLY: (Operation, bool) = (Operation::Send(Place::Only), true);

#[test]
fn no_more_sends_than_receives_and_one() {
    let mut lone = Lone::new();
    for _ in 0..12 {
        lone.post(SEND, 8);
    }
    assert_eq!(lone.sent(), [ONLY], "no receive is known: one to try");
    lone.acknowledge(1, 1, 2);
    assert_eq!(lone.sent(), [ONLY; 3], "two receives, and one to try");
    lone.acknowledge(1, 1, 1);
    assert_eq!(lone.sent(), [], "the same receives");
    // Code 5 is 6 receives; two sends are beyond the one that was acknowledged.
    lone.acknowledge(1, 1, 5);
    assert_eq!(lone.sent(), [ONLY; 6]);
    lone.acknowledge(7, 7, 31);
    assert_eq!(lone.sent(), [ONLY; 2], "a peer that does not count has no limit");
}

#[test]
fn a_long_message_continues_when_its_first_packet_had_a_receive() {
    let mut lone = Lone::new();
    lone.post(SEND, 3 * MTU);
    lone.post(SEND, 8);
    assert_eq!(lone.sent(), [(Operation::Send(Place::First), true)]);
    // The message is not done; its receive is the last.
    lone.acknowledge(1, 0, 1);
    let rest = [(Operation::Send(Place::Middle), false), (Operation::Send(Place::Last), true), ONLY];
    assert_eq!(lone.sent(), rest);
}

#[test]
fn a_write_with_immediate_data_takes_a_receive_at_its_end() {
    let mut lone = Lone::new();
    lone.post(SEND, 8);
    lone.post(WRITE_IMMEDIATE, 2 * MTU);
    assert_eq!(lone.sent(), [ONLY, (Operation::Write(Place::First), false)]);
    lone.acknowledge(1, 1, 0);
    assert_eq!(lone.sent(), [(Operation::WriteImmediate(Place::Last), true)]);
}

#[test]
fn what_a_nak_acknowledges_had_its_receive() {
    let mut lone = Lone::new();
    lone.post(SEND, 8);
    lone.post(WRITE_IMMEDIATE, 2 * MTU);
    let first = (Operation::Write(Place::First), false);
    assert_eq!(lone.sent(), [ONLY, first]);
    // The write was lost; the send came, and no credits are reported.
    lone.messages += 1;
    lone.answer(lone.packets + 1, Syndrome::SequenceError);
    assert_eq!(lone.sent(), [first, (Operation::WriteImmediate(Place::Last), true)]);
}

#[test]
fn writes_and_reads_take_none() {
    let mut lone = Lone::new();
    for opcode in [WRITE, READ, SEND, WRITE, READ, SEND, WRITE] {
        lone.post(opcode, 8);
    }
    let (write, read) = ((Operation::Write(Place::Only), true), (Operation::ReadRequest, false));
    assert_eq!(lone.sent(), [write, read, ONLY, write, read], "up to the second send");
}

#[test]
fn what_a_peer_without_receives_is_sent_is_not_sent_in_vain() {
    let mut pair = Pair::new();
    let ((at_a, key_a), (at_b, key_b)) = pair.buffers(4096);
    pair.b.post_receive(&mut pair.qb, &[(at_b, 64, key_b)]);
    for _ in 0..20 {
        pair.a.post_send(&mut pair.qa, SEND, SIGNALED, 0, &data(at_a, 8, key_a));
        if pair.qa.posted == 1 {
            pair.run();
        }
    }
    for _ in 0..100 {
        pair.step();
        pair.now = pair.now.after(Duration::from_micros(1));
    }
    for _ in 0..19 {
        pair.b.post_receive(&mut pair.qb, &[(at_b, 64, key_b)]);
    }
    pair.run();
    let done: Vec<_> = std::iter::from_fn(|| pair.a.poll(&mut pair.qa.send)).map(|cqe| cqe.opcode()).collect();
    assert_eq!(done, [0; 20]);
    assert!(pair.a.engine.queue_counts(0).receiver_not_ready > 1, "it tried");
    assert_eq!(pair.b.engine.queue_counts(0).out_of_sequence, 0, "with one packet each time");
}

#[test]
fn a_requester_without_credits_makes_progress_over_a_bad_wire() {
    let per_mille = Probability::per_mille;
    let faults =
        WireFaults { loss: per_mille(80), duplication: per_mille(50), reordering: per_mille(50), ..WireFaults::default() };
    for seed in 0..20 {
        let wire = FaultyWire::new(perfect(), faults, seed);
        let mut pair = Pair::on(wire, Link::default(), 6);
        let ((at_a, key_a), (at_b, key_b)) = pair.buffers(8192);
        let body = |opcode: u8, len: u32| {
            let remote = if opcode == SEND { Vec::new() } else { raddr(at_b + 4096, key_b) };
            [remote, data(at_a, len, key_a)].concat()
        };
        let requests = [(SEND, 700), (WRITE_IMMEDIATE, 600), (WRITE, 300), (SEND, 8), (READ, 600), (WRITE_IMMEDIATE, 8)];
        for number in 0..30 {
            let (opcode, len) = requests[number % requests.len()];
            pair.a.post_send(&mut pair.qa, opcode, SIGNALED, 0, &body(opcode, len));
        }
        let (mut done, mut taken) = (0, 0);
        while done < 30 {
            // Receives come one or two at a time, and late.
            for _ in 0..=taken % 2 {
                pair.b.post_receive(&mut pair.qb, &[(at_b, 4096, key_b)]);
            }
            for _ in 0..200 {
                pair.step();
                pair.now = pair.now.after(Duration::from_micros(2));
            }
            while let Some(cqe) = pair.a.poll(&mut pair.qa.send) {
                assert_eq!((cqe.opcode(), cqe.counter()), (0, done), "seed {seed}");
                done += 1;
            }
            while pair.b.poll(&mut pair.qb.receive).is_some() {
                taken += 1;
            }
            assert!(
                pair.now < bareverbs::platform::Instant::from_nanos(5_000_000_000),
                "seed {seed}: {done} done, {taken} taken"
            );
        }
        assert_eq!(taken, 20, "seed {seed}");
    }
}

#[test]
fn the_receive_of_a_message_counts_until_it_is_done() {
    let mut pair = Pair::new();
    let ((at_a, key_a), (at_b, key_b)) = pair.buffers(16384);
    for _ in 0..3 {
        pair.b.post_receive(&mut pair.qb, &[(at_b, 16384, key_b)]);
    }
    // An acknowledgement is asked for at the 32nd of 40 packets, and at the end.
    pair.a.post_send(&mut pair.qa, SEND, SIGNALED, 0, &data(at_a, 40 * MTU, key_a));
    pair.a.with(|engine, ctx| engine.advance(ctx));
    let mut reported = Vec::new();
    while let Some(frame) = pair.a.engine.transmit() {
        pair.b.with(|engine, ctx| engine.receive(ctx, &frame));
        pair.b.with(|engine, ctx| engine.advance(ctx));
        reported.extend(
            std::iter::from_fn(|| pair.b.engine.transmit())
                .map(|frame| Packet::decode(&frame).unwrap().transport.aeth.unwrap()),
        );
    }
    let expected = [(3, 0), (2, 1)].map(|(count, msn)| Aeth { syndrome: Syndrome::Ack(count), msn });
    assert_eq!(reported, expected);
}

/// The turn of the queue pair ends amid a message, before a packet that asks for an acknowledgement: nothing in progress would bring more
/// credits.
#[test]
fn a_message_that_began_without_a_limit_continues() {
    let mut lone = Lone::fresh();
    lone.post(SEND, 8);
    (0..40).for_each(|_| lone.post(NOP, 8));
    lone.post(SEND, 30 * MTU);
    lone.host.with(|engine, ctx| engine.advance(ctx));
    let begun = std::iter::from_fn(|| lone.host.engine.transmit()).count();
    assert!((3..30).contains(&begun), "{begun}");
    lone.acknowledge(1, 1, 0);
    assert_eq!(begun + lone.sent().len(), 31);
}

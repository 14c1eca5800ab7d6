//! Loss, duplication, reordering and delay: everything arrives once, in order, intact.

use std::time::Duration;

use super::harness::*;
use crate::packet::{Operation, Packet};
use crate::wire::{FaultyWire, PerfectWire, Probability, Random, Wire, WireFaults};
use bareverbs::platform::Instant;

fn faulty(faults: WireFaults, seed: u64) -> Pair<FaultyWire<PerfectWire>> {
    // 4.096 us << 3 = 33 us, a few times the maximum delay.
    let link = Link { timeout: 3, retries: 7, ..Link::default() };
    Pair::on(FaultyWire::new(perfect(), faults, seed), link, 7)
}

/// `count` SENDs of random lengths; each message says its number and is filled from it.
fn sends(pair: &mut Pair<FaultyWire<PerfectWire>>, count: u32, seed: u64) {
    const SLOT: u64 = 1024;
    const SLOTS: u32 = 64;
    let ((at_a, key_a), (at_b, key_b)) = pair.buffers(u64::from(SLOTS) * SLOT);
    let mut random = Random::new(seed);
    let lengths: Vec<u32> = (0..count).map(|_| 4 + random.below(1000) as u32).collect();
    let fill = |number: u32| -> Vec<u8> {
        let mut bytes = number.to_be_bytes().to_vec();
        bytes.resize(lengths[number as usize] as usize, number as u8);
        bytes
    };
    let (mut posted, mut sent, mut received, mut ready) = (0, 0, 0, 0);
    while received < count || sent < count {
        while ready < count && ready - received < SLOTS {
            pair.b.post_receive(&mut pair.qb, &[(at_b + u64::from(ready % SLOTS) * SLOT, SLOT as u32, key_b)]);
            ready += 1;
        }
        while posted < count && posted - sent < SLOTS && posted < ready + 8 {
            let at = at_a + u64::from(posted % SLOTS) * SLOT;
            pair.a.write(at, &fill(posted));
            let body = data(at, lengths[posted as usize], key_a);
            pair.a.post_send(&mut pair.qa, 0x0a, SIGNALED, 0, &body);
            posted += 1;
        }
        pair.run_until_idle(Duration::from_secs(10));
        while let Some(cqe) = pair.a.poll(&mut pair.qa.send) {
            assert_eq!((cqe.opcode(), cqe.counter()), (0, sent as u16));
            sent += 1;
        }
        while let Some(cqe) = pair.b.poll(&mut pair.qb.receive) {
            assert_eq!((cqe.opcode(), cqe.counter()), (2, received as u16));
            assert_eq!(cqe.byte_cnt(), lengths[received as usize]);
            let at = at_b + u64::from(received % SLOTS) * SLOT;
            assert_eq!(pair.b.read(at, cqe.byte_cnt() as usize), fill(received), "message {received}");
            received += 1;
        }
    }
    assert!(pair.a.audit.findings().is_empty() && pair.b.audit.findings().is_empty());
}

#[test]
fn ten_thousand_messages_over_a_bad_wire() {
    let mut pair = faulty(WireFaults::all(10), 42);
    sends(&mut pair, 10_000, 1);
    let stats = pair.wire.stats();
    for count in [stats.lost, stats.duplicated, stats.reordered, stats.delayed] {
        assert!(count > 100, "{stats:?}");
    }
    assert!(pair.a.engine.stats().retries > 100);
}

#[test]
fn a_very_bad_wire() {
    for seed in 0..8 {
        let mut pair = faulty(WireFaults::all(50), seed);
        sends(&mut pair, 300, seed);
    }
}

#[test]
fn atomics_are_executed_once() {
    let mut pair = faulty(WireFaults { duplication: Probability::per_mille(500), ..WireFaults::all(50) }, 3);
    let ((at_a, key_a), (at_b, key_b)) = pair.buffers(4096);
    for number in 0..1000u64 {
        let mut body = raddr(at_b, key_b);
        body.extend(words(&[0, 1, 0, 0]));
        body.extend(data(at_a + number % 32 * 8, 8, key_a));
        pair.a.post_send(&mut pair.qa, 0x12, SIGNALED, 0, &body);
        if number % 32 == 31 {
            pair.run_until_idle(Duration::from_secs(10));
            for expected in number - 31..=number {
                assert_eq!(pair.a.poll(&mut pair.qa.send).unwrap().opcode(), 0);
                assert_eq!(pair.a.read(at_a + expected % 32 * 8, 8), expected.to_le_bytes());
            }
        }
    }
    pair.run_until_idle(Duration::from_secs(10));
    assert_eq!(pair.b.read(at_b, 8), 1000u64.to_le_bytes());
    assert!(pair.b.engine.stats().duplicates > 300);
}

#[test]
fn reads_and_writes_over_a_bad_wire() {
    let mut pair = faulty(WireFaults::all(20), 5);
    let ((at_a, key_a), (at_b, key_b)) = pair.buffers(1 << 20);
    let mut random = Random::new(9);
    for round in 0..60u64 {
        let len = 1 + random.below(30_000) as u32;
        let bytes: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
        pair.a.write(at_a, &bytes);
        let mut body = raddr(at_b + round, key_b);
        body.extend(data(at_a, len, key_a));
        pair.a.post_send(&mut pair.qa, 0x08, 0, 0, &body);
        let mut body = raddr(at_b + round, key_b);
        body.extend(data(at_a + 40_000, len, key_a));
        pair.a.post_send(&mut pair.qa, 0x10, SIGNALED, 0, &body);
        pair.run_until_idle(Duration::from_secs(10));
        assert_eq!(pair.a.poll(&mut pair.qa.send).unwrap().opcode(), 0);
        assert_eq!(pair.a.read(at_a + 40_000, len as usize), bytes, "round {round}");
    }
}

/// A perfect wire that loses the frames that a test picks.
struct Picky<F> {
    inner: PerfectWire,
    lose: F,
    seen: Vec<(Operation, u32)>,
}

impl<F: FnMut(&Packet<'_>, usize) -> bool> Wire for Picky<F> {
    fn send(&mut self, now: Instant, from: crate::wire::PortId, frame: Vec<u8>) {
        let packet = Packet::decode(&frame).unwrap();
        self.seen.push((packet.transport.bth.opcode.operation, packet.transport.bth.psn));
        if !(self.lose)(&packet, self.seen.len() - 1) {
            self.inner.send(now, from, frame);
        }
    }
    fn deliver(&mut self, now: Instant) -> Option<crate::wire::Delivery> {
        self.inner.deliver(now)
    }
    fn next_due(&self) -> Option<Instant> {
        self.inner.next_due()
    }
    fn identity(&self, port: crate::wire::PortId) -> Option<&crate::identity::PortIdentity> {
        self.inner.identity(port)
    }
    fn destination(&self, from: crate::wire::PortId, frame: &[u8]) -> crate::wire::Destination {
        self.inner.destination(from, frame)
    }
    fn in_flight(&self, from: crate::wire::PortId) -> usize {
        self.inner.in_flight(from)
    }
    fn fix_station(&mut self, port: crate::wire::PortId, mac: [u8; 6]) {
        self.inner.fix_station(port, mac);
    }
}

#[test]
fn one_sequence_nak_for_a_gap_and_back_to_it() {
    let lose = |packet: &Packet<'_>, count: usize| packet.transport.bth.psn == 0 && count < 4;
    let wire = Picky { inner: perfect(), lose, seen: Vec::new() };
    let mut pair = Pair::on(wire, Link::default(), 6);
    let ((at_a, key_a), (at_b, key_b)) = pair.buffers(4096);
    let mut body = raddr(at_b, key_b);
    body.extend(data(at_a, 256 * 8, key_a));
    pair.a.write(at_a, &[5; 2048]);
    pair.a.post_send(&mut pair.qa, 0x08, SIGNALED, 0, &body);
    pair.run();
    assert_eq!(pair.a.poll(&mut pair.qa.send).unwrap().opcode(), 0);
    assert_eq!(pair.b.read(at_b, 2048), [5; 2048]);
    assert_eq!(pair.a.engine.stats().sequence_errors, 1);
    assert!(pair.now < Instant::from_nanos(100_000), "no timer was needed");
    // 0xfffffe, 0xffffff, (0), 1..5, NAK at 0, then 0..5 and one acknowledgement.
    let numbers: Vec<u32> = pair.wire.seen.iter().map(|(_, psn)| *psn).collect();
    assert_eq!(numbers, [0xff_fffe, 0xff_ffff, 0, 1, 2, 3, 4, 5, 0, 0, 1, 2, 3, 4, 5, 5]);
}

#[test]
fn a_lost_read_answer_is_asked_for_from_where_it_stopped() {
    let lose = |packet: &Packet<'_>, count: usize| {
        matches!(packet.transport.bth.opcode.operation, Operation::ReadResponse(_))
            && packet.transport.bth.psn == 1
            && count < 7
    };
    let wire = Picky { inner: perfect(), lose, seen: Vec::new() };
    let mut pair = Pair::on(wire, Link::default(), 6);
    let ((at_a, key_a), (at_b, key_b)) = pair.buffers(4096);
    pair.b.write(at_b, &[7; 1500]);
    let mut body = raddr(at_b, key_b);
    body.extend(data(at_a, 1500, key_a));
    pair.a.post_send(&mut pair.qa, 0x10, SIGNALED, 0, &body);
    pair.run();
    assert_eq!(pair.a.poll(&mut pair.qa.send).unwrap().opcode(), 0);
    assert_eq!(pair.a.read(at_a, 1500), [7; 1500]);
    let asked: Vec<u32> = pair.wire.seen.iter().filter(|(op, _)| *op == Operation::ReadRequest).map(|(_, psn)| *psn).collect();
    assert_eq!(asked, [0xff_fffe, 1]);
}

#[test]
fn a_dead_peer_ends_in_retry_exceeded_after_the_promised_time() {
    let wire = Picky { inner: perfect(), lose: |_: &Packet<'_>, _| true, seen: Vec::new() };
    let mut pair = Pair::on(wire, Link { retries: 3, ..Link::default() }, 6);
    let ((at_a, key_a), _) = pair.buffers(4096);
    pair.a.post_send(&mut pair.qa, 0x0a, 0, 0, &data(at_a, 4, key_a));
    pair.a.post_send(&mut pair.qa, 0x0a, 0, 0, &data(at_a, 4, key_a));
    pair.run();
    let first = pair.a.poll(&mut pair.qa.send).unwrap();
    assert_eq!((first.opcode(), first.syndrome(), first.counter()), (0xd, 0x15, 0));
    let second = pair.a.poll(&mut pair.qa.send).unwrap();
    assert_eq!((second.opcode(), second.syndrome(), second.counter()), (0xd, 0x05, 1));
    assert_eq!(pair.wire.seen.len(), 2 * 4, "sent once and three times again");
    assert_eq!(pair.now, Instant::from_nanos(4 * (4096 << 6)));
}

#[test]
fn no_receive_for_too_long() {
    let mut pair = Pair::on(perfect(), Link { rnr_retries: 2, ..Link::default() }, 6);
    let ((at_a, key_a), _) = pair.buffers(4096);
    pair.a.post_send(&mut pair.qa, 0x0a, SIGNALED, 0, &data(at_a, 4, key_a));
    pair.run();
    let cqe = pair.a.poll(&mut pair.qa.send).unwrap();
    assert_eq!((cqe.opcode(), cqe.syndrome()), (0xd, 0x16));
    // Timer code 1 is 10 us, twice, and three times there and back.
    assert_eq!(pair.now, Instant::from_nanos(2 * 10_000 + 3 * 1000));
}

#[test]
fn requests_that_come_many_times_before_a_receive_get_one_nak() {
    let mut pair = Pair::new();
    let ((at_a, key_a), (at_b, key_b)) = pair.buffers(4096);
    // A write that is acknowledged, and sends that find no receive.
    let write = [raddr(at_b, key_b), data(at_a, 4, key_a)].concat();
    pair.a.post_send(&mut pair.qa, 0x08, 0, 0, &write);
    pair.a.post_send(&mut pair.qa, 0x0a, 0, 0, &data(at_a, 4, key_a));
    pair.a.post_send(&mut pair.qa, 0x0a, SIGNALED, 0, &data(at_a, 4, key_a));
    pair.a.with(|engine, ctx| engine.advance(ctx));
    let frames: Vec<_> = std::iter::from_fn(|| pair.a.engine.transmit()).collect();
    let deliver = |pair: &mut Pair<_>, frames: &[Vec<u8>]| {
        frames.iter().for_each(|frame| pair.b.with(|engine, ctx| engine.receive(ctx, frame)));
    };
    let answers = |pair: &mut Pair<_>| -> Vec<u8> {
        pair.b.with(|engine, ctx| engine.advance(ctx));
        std::iter::from_fn(|| pair.b.engine.transmit()).map(|frame| frame[20]).collect()
    };
    for _ in 0..50 {
        deliver(&mut pair, &frames);
    }
    // An acknowledgement of the write, and a receiver not ready NAK of the code that was set.
    assert_eq!(answers(&mut pair), [0, 0x21]);
    // Out of order until the packet comes again: silence. Then it is answered again.
    deliver(&mut pair, &frames[2..]);
    assert_eq!(answers(&mut pair), []);
    deliver(&mut pair, &frames[1..]);
    assert_eq!(answers(&mut pair), [0x21]);
    for at in [at_b, at_b] {
        pair.b.post_receive(&mut pair.qb, &[(at, 64, key_b)]);
    }
    pair.run();
    assert_eq!(pair.a.poll(&mut pair.qa.send).map(|cqe| cqe.opcode()), Some(0));
}

#[test]
fn time_in_which_the_device_stood_still_is_no_retry() {
    let link = Link { retries: 0, ..Link::default() };
    let timeout = 4096 << 6;
    for (lates, fails) in [(&[timeout * 100][..], false), (&[timeout / 8], true), (&[timeout * 100; 2], true)] {
        let mut pair = Pair::on(perfect(), link, 6);
        let ((at_a, key_a), (at_b, key_b)) = pair.buffers(4096);
        let body = [raddr(at_b, key_b), data(at_a, 4, key_a)].concat();
        pair.a.post_send(&mut pair.qa, 0x08, SIGNALED, 0, &body);
        // Sent, and then no work is done until long after the timer is due.
        for late in lates {
            pair.a.now = pair.now;
            pair.a.with(|engine, ctx| engine.advance(ctx));
            let due = pair.a.engine.next_due().unwrap();
            pair.now = due.after(Duration::from_nanos(*late));
        }
        pair.a.now = pair.now;
        pair.a.with(|engine, ctx| engine.advance(ctx));
        let failed = pair.a.poll(&mut pair.qa.send).map(|cqe| (cqe.opcode(), cqe.syndrome()));
        assert_eq!(failed, fails.then_some((0xd, 0x15)), "{lates:?}");
        pair.run();
        let done = pair.a.poll(&mut pair.qa.send).map(|cqe| cqe.opcode());
        assert_eq!(done, (!fails).then_some(0), "{lates:?}");
    }
}

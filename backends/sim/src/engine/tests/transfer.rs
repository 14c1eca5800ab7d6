//! What succeeds: data, completions, order, events.

use super::super::EngineEvent;
use super::harness::*;
use crate::fabric::frame_pool::CAPACITY;
use bareverbs_mlx5_spec::{CmdOpcode, EventType, Qpc, QpcState};

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at as u8).wrapping_mul(31) ^ (at >> 8) as u8 ^ seed).collect()
}

#[test]
fn send_of_every_shape() {
    let mut pair = Pair::new();
    let ((at_a, key_a), (at_b, key_b)) = pair.buffers(8192);
    for (len, with_immediate) in [(0, false), (1, true), (255, false), (256, true), (257, false), (4000, true)] {
        let immediate = 0x1234_5678 + len as u32;
        pair.a.write(at_a, &pattern(len, len as u8));
        pair.b.post_receive(&mut pair.qb, &[(at_b, 100, key_b), (at_b + 200, 4000, key_b)]);
        let body = if len == 0 { Vec::new() } else { data(at_a, len as u32, key_a) };
        let opcode = if with_immediate { 0x0b } else { 0x0a };
        pair.a.post_send(&mut pair.qa, opcode, SIGNALED | SOLICITED, immediate, &body);
        pair.run();
        let sent = pair.a.poll(&mut pair.qa.send).expect("completed");
        assert_eq!((sent.opcode(), sent.send_opcode(), sent.qpn()), (0, opcode, pair.qa.qpn));
        let got = pair.b.poll(&mut pair.qb.receive).expect("received");
        assert_eq!(got.byte_cnt() as usize, len);
        assert_eq!((got.opcode(), got.user_index()), (if with_immediate { 3 } else { 2 }, 0x77));
        assert_eq!(got.immediate(), if with_immediate { immediate } else { 0 });
        let mut bytes = pair.b.read(at_b, len.min(100));
        bytes.extend(pair.b.read(at_b + 200, len.saturating_sub(100)));
        assert_eq!(bytes, pattern(len, len as u8));
    }
    assert_eq!(pair.a.poll(&mut pair.qa.send), None);
    assert!(pair.a.audit.findings().is_empty() && pair.b.audit.findings().is_empty());
}

#[test]
fn write_read_and_atomics() {
    let mut pair = Pair::new();
    let ((at_a, key_a), (at_b, key_b)) = pair.buffers(16384);
    let message = pattern(5000, 9);
    pair.a.write(at_a + 3, &message);
    let mut body = raddr(at_b + 5, key_b);
    body.extend(data(at_a + 3, 5000, key_a));
    pair.a.post_send(&mut pair.qa, 0x08, SIGNALED, 0, &body);
    // Back to another place, fenced by nothing: the read follows the write on the same queue.
    let mut body = raddr(at_b + 5, key_b);
    body.extend(data(at_a + 8192, 1000, key_a));
    body.extend(data(at_a + 9300, 4000, key_a));
    pair.a.post_send(&mut pair.qa, 0x10, SIGNALED, 0, &body);
    pair.b.write(at_b + 8192, &41u64.to_le_bytes());
    let mut body = raddr(at_b + 8192, key_b);
    body.extend(words(&[0, 1, 0xdead, 0xbeef]));
    body.extend(data(at_a + 16, 8, key_a));
    pair.a.post_send(&mut pair.qa, 0x12, SIGNALED, 0, &body);
    let mut body = raddr(at_b + 8192, key_b);
    body.extend(words(&[0, 7, 0, 42]));
    body.extend(data(at_a + 24, 8, key_a));
    pair.a.post_send(&mut pair.qa, 0x11, SIGNALED, 0, &body);
    pair.run();
    assert_eq!(pair.b.read(at_b + 5, 5000), message);
    let mut back = pair.a.read(at_a + 8192, 1000);
    back.extend(pair.a.read(at_a + 9300, 4000));
    assert_eq!(back, message);
    assert_eq!(pair.b.read(at_b + 8192, 8), 7u64.to_le_bytes());
    assert_eq!(pair.a.read(at_a + 16, 16), [41u64.to_le_bytes(), 42u64.to_le_bytes()].concat());
    let done: Vec<_> = std::iter::from_fn(|| pair.a.poll(&mut pair.qa.send)).collect();
    let reported: Vec<_> = done.iter().map(|cqe| (cqe.opcode(), cqe.send_opcode(), cqe.counter(), cqe.byte_cnt())).collect();
    assert_eq!(reported, [(0, 0x08, 0, 5000), (0, 0x10, 1, 5000), (0, 0x12, 2, 8), (0, 0x11, 3, 8)]);
    assert_eq!(pair.b.poll(&mut pair.qb.receive), None, "the peer gets no completion");
}

#[test]
fn write_with_immediate_takes_a_receive() {
    let mut pair = Pair::new();
    let ((at_a, key_a), (at_b, key_b)) = pair.buffers(4096);
    pair.a.write(at_a, &pattern(600, 1));
    let mut body = raddr(at_b, key_b);
    body.extend(data(at_a, 600, key_a));
    pair.a.post_send(&mut pair.qa, 0x09, SIGNALED, 0xcafe, &body);
    // Nothing is posted for a while: the requester keeps trying.
    for _ in 0..200 {
        pair.step();
        pair.now = pair.now.after(std::time::Duration::from_micros(1));
    }
    assert_eq!(pair.a.poll(&mut pair.qa.send), None);
    assert!(pair.a.engine.stats().receiver_not_ready > 2);
    pair.b.post_receive(&mut pair.qb, &[]);
    pair.run();
    assert_eq!(pair.a.poll(&mut pair.qa.send).unwrap().opcode(), 0);
    let got = pair.b.poll(&mut pair.qb.receive).unwrap();
    assert_eq!((got.opcode(), got.byte_cnt(), got.immediate(), got.counter()), (1, 600, 0xcafe, 0));
    assert_eq!(pair.b.read(at_b, 600), pattern(600, 1));
}

#[test]
fn inline_and_rings_that_wrap() {
    let mut pair = Pair::on(perfect(), Link::default(), 2);
    let (_, (at_b, key_b)) = pair.buffers(4096);
    for round in 0..70_000u32 {
        // Two blocks each in a ring of four; the counters pass 2^16.
        let mut body = raddr(at_b, key_b);
        let bytes = [round as u8; 40];
        body.extend(inline(&bytes));
        let flags = if round % 2 == 1 { SIGNALED } else { 0 };
        pair.a.post_send(&mut pair.qa, 0x08, flags, 0, &body);
        if round % 2 == 1 {
            pair.run();
            let done = pair.a.poll(&mut pair.qa.send).expect("signaled");
            assert_eq!(done.counter(), (round * 2) as u16);
            assert_eq!(pair.b.read(at_b, 40), bytes);
        }
        assert_eq!(pair.a.poll(&mut pair.qa.send), None, "unsignaled");
    }
    assert!(pair.a.audit.findings().is_empty(), "{:?}", pair.a.audit.findings());
}

#[test]
fn no_more_reads_at_a_time_than_allowed_and_fences_wait() {
    let mut pair = Pair::new();
    let ((at_a, key_a), (at_b, key_b)) = pair.buffers(65536);
    pair.b.write(at_b, &pattern(20_000, 3));
    for slot in 0..8u64 {
        let mut body = raddr(at_b + slot * 1000, key_b);
        body.extend(data(at_a + slot * 1000, 1000, key_a));
        pair.a.post_send(&mut pair.qa, 0x10, 0, 0, &body);
    }
    // Overwrites its own source's copy at the peer: right only after the reads are back.
    let mut body = raddr(at_b, key_b);
    body.extend(data(at_a, 8000, key_a));
    pair.a.post_send(&mut pair.qa, 0x08, SIGNALED | FENCE, 0, &body);
    pair.a.with(|engine, ctx| engine.advance(ctx));
    let asked = std::iter::from_fn(|| pair.a.engine.transmit()).count();
    assert_eq!(asked, 4, "log_sra_max is 2");
    pair.run();
    assert_eq!(pair.a.poll(&mut pair.qa.send).unwrap().send_opcode(), 0x08);
    assert_eq!(pair.b.read(at_b, 8000), pattern(20_000, 3)[..8000]);
    assert_eq!(pair.a.read(at_a, 8000), pattern(20_000, 3)[..8000]);
}

#[test]
fn events_when_armed() {
    let mut pair = Pair::new();
    let ((at_a, key_a), (at_b, key_b)) = pair.buffers(4096);
    pair.b.events();
    let cqn = pair.qb.receive.cqn;
    let event = EngineEvent::Completion { eqn: 9, cqn };
    let exchange = |pair: &mut Pair<_>, flags: u8| {
        pair.b.post_receive(&mut pair.qb, &[(at_b, 4096, key_b)]);
        pair.a.post_send(&mut pair.qa, 0x0a, flags, 0, &data(at_a, 4, key_a));
        pair.run();
        pair.b.events()
    };
    assert_eq!(exchange(&mut pair, SOLICITED), [], "not armed");
    pair.b.arm(&pair.qb.receive, true);
    assert_eq!(pair.b.events(), [event], "armed late: an unseen solicited entry is there");
    while pair.b.poll(&mut pair.qb.receive).is_some() {}
    pair.b.arm(&pair.qb.receive, true);
    assert_eq!(exchange(&mut pair, 0), [], "not solicited");
    assert_eq!(exchange(&mut pair, SOLICITED), [event]);
    assert_eq!(exchange(&mut pair, SOLICITED), [], "once");
    while pair.b.poll(&mut pair.qb.receive).is_some() {}
    pair.b.arm(&pair.qb.receive, false);
    assert_eq!(exchange(&mut pair, 0), [event]);
    // Armed for any entry, then for a solicited one: any entry is still reported.
    while pair.b.poll(&mut pair.qb.receive).is_some() {}
    pair.b.arm(&pair.qb.receive, false);
    pair.b.arm(&pair.qb.receive, true);
    assert_eq!(exchange(&mut pair, 0), [event]);
    // The event ended that.
    while pair.b.poll(&mut pair.qb.receive).is_some() {}
    pair.b.arm(&pair.qb.receive, true);
    assert_eq!(exchange(&mut pair, 0), []);
}

#[test]
fn drained_then_on_again_then_reset() {
    let mut pair = Pair::new();
    let ((at_a, key_a), (at_b, key_b)) = pair.buffers(65536);
    let mut body = raddr(at_b, key_b);
    body.extend(data(at_a, 60_000, key_a));
    pair.a.post_send(&mut pair.qa, 0x08, SIGNALED, 0, &body);
    pair.step();
    let qpn = pair.qa.qpn;
    pair.a.modify(qpn, CmdOpcode::Rts2SqdQp, 0, |_| {}).unwrap();
    pair.a.post_send(&mut pair.qa, 0x08, SIGNALED, 0, &body);
    assert_eq!(pair.a.events(), []);
    pair.run();
    assert_eq!(pair.a.events(), [EngineEvent::Qp { event: EventType::SqDrained, qpn }]);
    assert_eq!(pair.a.poll(&mut pair.qa.send).map(|cqe| cqe.counter()), Some(0));
    assert_eq!(pair.a.poll(&mut pair.qa.send), None, "the next one waits");
    pair.a.modify(qpn, CmdOpcode::SqdRtsQp, 0, |_| {}).unwrap();
    pair.run();
    assert_eq!(pair.a.poll(&mut pair.qa.send).map(|cqe| cqe.counter()), Some(1));
    pair.a.modify(qpn, CmdOpcode::Qp2Rst, 0, |_| {}).unwrap();
    assert_eq!(pair.a.query(qpn, Qpc::STATE), QpcState::Rst.code());
    assert_eq!(pair.a.query(qpn, Qpc::HW_SQ_WQEBB_COUNTER), 0);
}

#[test]
fn loopback_needs_no_wire() {
    let mut host = Host::new(1);
    let (mut qa, qb) = (host.qp(4, 4, 6), host.qp(4, 4, 6));
    let link = Link::default();
    host.connect(qa.qpn, 1, qb.qpn, link);
    host.connect(qb.qpn, 1, qa.qpn, link);
    let at = host.alloc(8192);
    let key = host.mkey(at, 8192, 0x1f);
    host.write(at, &pattern(2000, 4));
    let mut body = raddr(at + 4096, key);
    body.extend(data(at, 2000, key));
    host.post_send(&mut qa, 0x08, SIGNALED, 0, &body);
    // The timer of what is acknowledged already is no work.
    while host.engine.next_due() == Some(bareverbs::platform::Instant::default()) {
        host.with(|engine, ctx| engine.advance(ctx));
    }
    assert_eq!(host.engine.transmit(), None);
    assert_eq!(host.read(at + 4096, 2000), pattern(2000, 4));
    assert_eq!(host.poll(&mut qa.send).unwrap().opcode(), 0);
}

#[test]
fn acknowledgements_count_the_posted_receives() {
    let mut pair = Pair::new();
    let ((at_a, key_a), (at_b, key_b)) = pair.buffers(4096);
    let write = [raddr(at_b, key_b), data(at_a, 8, key_a)].concat();
    let read = [raddr(at_b, key_b), data(at_a, 8, key_a)].concat();
    // Posted before, opcode, credits reported.
    let steps = [(0, 0x08, 0), (5, 0x08, 4), (1, 0x10, 5), (0, 0x0a, 4), (20, 0x08, 9)];
    for (posted, opcode, expected) in steps {
        for _ in 0..posted {
            pair.b.post_receive(&mut pair.qb, &[(at_b, 64, key_b)]);
        }
        let body = if opcode == 0x0a {
            data(at_a, 8, key_a)
        } else if opcode == 0x10 {
            read.clone()
        } else {
            write.clone()
        };
        pair.a.post_send(&mut pair.qa, opcode, SIGNALED, 0, &body);
        pair.a.with(|engine, ctx| engine.advance(ctx));
        let request = pair.a.engine.transmit().unwrap();
        pair.b.with(|engine, ctx| engine.receive(ctx, &request));
        pair.b.with(|engine, ctx| engine.advance(ctx));
        let answer = pair.b.engine.transmit().unwrap();
        // LRH, BTH, AETH: the syndrome is the first byte of that.
        assert_eq!(answer[20], expected, "{posted} posted, opcode {opcode:#x}");
        pair.a.with(|engine, ctx| engine.receive(ctx, &answer));
        assert_eq!(pair.a.poll(&mut pair.qa.send).map(|cqe| cqe.opcode()), Some(0));
    }
}

/// What a frame is made in has held others; its bytes are its own.
#[test]
fn long_frames_are_made_in_the_buffers_of_earlier_ones() {
    let mut pair = Pair::on(perfect(), Link { mtu: 5, ..Link::default() }, 6);
    let ((at_a, key_a), (at_b, key_b)) = pair.buffers(1 << 16);
    let earlier: Vec<Vec<u8>> = (0..30).map(|_| vec![0xee; CAPACITY]).collect();
    let places: Vec<*const u8> = earlier.iter().map(|frame| frame.as_ptr()).collect();
    earlier.into_iter().for_each(|frame| pair.a.engine.frame_pool().keep(frame));
    for (round, (len, long)) in [(40_000_u32, 10), (4097, 1), (1500, 1), (100, 0), (40_000, 10)].into_iter().enumerate() {
        let message = pattern(len as usize, round as u8);
        pair.a.write(at_a, &message);
        let body = [raddr(at_b, key_b), data(at_a, len, key_a)].concat();
        pair.a.post_send(&mut pair.qa, 0x08, SIGNALED, 0, &body);
        let mut reused = 0;
        while pair.a.poll(&mut pair.qa.send).is_none() {
            pair.a.with(|engine, ctx| engine.advance(ctx));
            while let Some(frame) = pair.a.engine.transmit() {
                reused += u32::from(frame.capacity() == CAPACITY && places.contains(&frame.as_ptr()));
                pair.b.with(|engine, ctx| engine.receive(ctx, &frame));
            }
            pair.step();
            pair.now = pair.now.after(std::time::Duration::from_micros(1));
        }
        assert_eq!((pair.b.read(at_b, len as usize) == message, reused), (true, long), "{len} bytes");
    }
}

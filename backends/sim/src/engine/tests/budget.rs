//! Every turn ends, whatever the host has created. What is left is done in the next turns, and every queue pair gets turns.

use std::collections::BTreeMap;
use std::time::Duration;

use super::super::PageSource;
use super::harness::*;
use crate::registers::bar0::{DEVICE_MEMORY_SIZE, DEVICE_MEMORY_START};
use crate::step::Budget;
use bareverbs::platform::Instant;
use bareverbs_mlx5_spec::{CmdOpcode, Mkc, Qpc, QpcState, View, ViewMut};

const WRITE: u8 = 0x08;
const NOP: u8 = 0x00;
/// Requests of one acknowledgement: as many packets as may be unacknowledged, and others behind each.
const WRITES: u16 = 128;
const NOPS: u16 = 7;

/// Maximum cost of a turn: the budget and one step more, estimated from above.
pub(super) const ACCESSES: u64 = Budget::TURN.steps + 300;
pub(super) const BYTES: u64 = Budget::TURN.bytes + 32 * 1024;

/// One turn, whose cost the memory counts.
fn turn(host: &mut Host) -> (u64, u64) {
    let cost = host.cost(|engine, ctx| engine.advance(ctx));
    assert!(cost.0 <= ACCESSES && cost.1 <= BYTES, "{cost:?}");
    cost
}

/// Returns a key over a gigabyte whose pages are all one.
fn endless(host: &mut Host) -> u32 {
    const PAGES: usize = 1 << 18;
    let page = host.alloc(4096);
    let mut mkc = [0; 64];
    let mut view = ViewMut::<Mkc>::new(&mut mkc).unwrap();
    set_rights(&mut view, 0x1f);
    view.set(Mkc::ACCESS_MODE_1_0, 1)
        .set(Mkc::QPN, 0xff_ffff)
        .set(Mkc::PD, PD)
        .set64(Mkc::LEN, 1 << 30)
        .set(Mkc::LOG_PAGE_SIZE, 12)
        .set(Mkc::TRANSLATIONS_OCTWORD_SIZE, PAGES as u32 / 2);
    let raw = page.to_be_bytes().repeat(PAGES);
    host.with(|engine, ctx| engine.create_mkey(ctx, View::new(&mkc).unwrap(), PageSource::Listed(&raw))).unwrap() << 8
}

/// Returns a queue pair connected to itself.
fn to_itself(host: &mut Host, log_sq: u32) -> TestQp {
    let qp = host.qp(2, log_sq, 8);
    host.connect(qp.qpn, 1, qp.qpn, Link { mtu: 5, ..Link::default() });
    qp
}

#[test]
fn messages_of_a_gigabyte_from_32_queue_pairs_to_themselves() {
    let mut host = Host::new(1);
    let key = endless(&mut host);
    let write = |len| [raddr(0, key), data(0, len, key)].concat();
    for _ in 0..32 {
        let mut qp = to_itself(&mut host, 4);
        (0..4).for_each(|_| host.post_send(&mut qp, WRITE, SIGNALED, 0, &write(1 << 30)));
    }
    // The newest has the greatest number.
    let mut short = to_itself(&mut host, 4);
    host.post_send(&mut short, WRITE, SIGNALED, 0, &write(8));
    let mut turns = 0;
    let done = loop {
        turn(&mut host);
        turns += 1;
        assert!(turns < 200, "the others keep it from its turn");
        host.now = host.now.after(Duration::from_micros(1));
        if let Some(done) = host.poll(&mut short.send) {
            break done;
        }
    };
    assert_eq!(done.opcode(), 0, "{done:?}");
    assert!(host.engine.next_due().is_some_and(|due| due <= host.now), "the rest is still due");
}

/// Bytes of the device's own memory count as those of the host do, though no host memory is touched.
#[test]
fn device_memory_is_read_and_written_within_the_budget() {
    let mut host = Host::new(1);
    let at = host.engine.alloc_memory((DEVICE_MEMORY_START, DEVICE_MEMORY_SIZE), 4096, 0).unwrap();
    let mut mkc = [0; 64];
    let mut view = ViewMut::<Mkc>::new(&mut mkc).unwrap();
    set_rights(&mut view, 0x1f);
    view.set(Mkc::ACCESS_MODE_1_0, 1)
        .set(Mkc::ACCESS_MODE_4_2, 1)
        .set(Mkc::QPN, 0xff_ffff)
        .set(Mkc::PD, PD)
        .set64(Mkc::START_ADDR, at)
        .set64(Mkc::LEN, 4096);
    let key = host.with(|engine, ctx| engine.create_mkey(ctx, View::new(&mkc).unwrap(), PageSource::Listed(&[]))).unwrap() << 8;
    for _ in 0..32 {
        let mut qp = to_itself(&mut host, 4);
        let write = [raddr(0, key), data(0, 4096, key)].concat();
        (0..16).for_each(|_| host.post_send(&mut qp, WRITE, 0, 0, &write));
    }
    let mut moved = 0;
    for _ in 0..100 {
        turn(&mut host);
        let sent = host.engine.stats().sent.octets;
        assert!(sent - moved <= BYTES, "{}", sent - moved);
        moved = sent;
        host.now = host.now.after(Duration::from_micros(1));
    }
    assert!(moved >= 32 * 16 * 4096, "{moved}");
}

#[test]
fn requests_without_end_that_do_nothing() {
    let mut host = Host::new(1);
    let mut qp = to_itself(&mut host, 6);
    for _ in 0..64 {
        host.write_send(&mut qp, NOP, 0, 0, &[]);
    }
    for round in 0..100_u32 {
        // As many as a counter of 16 bits can say, from a ring of 64.
        host.write(qp.dbr + 4, &((round * 0xffff + 0xffff) & 0xffff).to_be_bytes());
        let qpn = qp.qpn;
        let cost = host.cost(|engine, ctx| {
            engine.ring_send(ctx, qpn, [0; 8]);
            engine.advance(ctx);
        });
        assert!(cost.0 <= ACCESSES && cost.1 <= BYTES, "{cost:?}");
    }
}

/// Requests that wait for an acknowledgement before them all complete when it comes: thousands, by one frame.
#[test]
fn an_acknowledgement_that_completes_very_many_requests() {
    let mut pair = Pair::on(perfect(), Link { timeout: 0, ..Link::default() }, 12);
    let ((at_a, key_a), (at_b, key_b)) = pair.buffers(4096);
    pair.a.post_send(&mut pair.qa, WRITE, SIGNALED, 0, &[raddr(at_b, key_b), data(at_a, 8, key_a)].concat());
    for _ in 0..4000 {
        pair.a.post_send(&mut pair.qa, NOP, SIGNALED, 0, &[]);
    }
    // The write goes out; the rest is fetched while its acknowledgement is on the way.
    for _ in 0..100 {
        turn(&mut pair.a);
    }
    let frame = pair.a.engine.transmit().unwrap();
    pair.b.with(|engine, ctx| engine.receive(ctx, &frame));
    turn(&mut pair.b);
    let acknowledgement = pair.b.engine.transmit().unwrap();
    let cost = pair.a.cost(|engine, ctx| engine.receive(ctx, &acknowledgement));
    assert!(cost.0 > 1000 && cost.0 <= ACCESSES, "{cost:?}");
    pair.run();
    let mut done = 0;
    while let Some(completion) = pair.a.poll(&mut pair.qa.send) {
        assert_eq!((completion.counter(), completion.opcode()), (done, 0));
        done += 1;
    }
    assert_eq!(done, 4001, "each once, in order");
}

/// Acknowledgements of more requests than a turn completes: the rest completes in the turns after it, though no packet comes.
#[test]
fn what_acknowledgements_leave_completes_without_others() {
    let mut pair = Pair::new();
    let ((at_a, key_a), (at_b, key_b)) = pair.buffers(4096);
    let write = [raddr(at_b, key_b), data(at_a, 8, key_a)].concat();
    let link = Link { timeout: 0, ..Link::default() };
    let mut senders: Vec<TestQp> = (0..8)
        .map(|_| {
            let (mut qa, qb) = (pair.a.qp(2, 10, 11), pair.b.qp(2, 2, 2));
            pair.a.connect(qa.qpn, 2, qb.qpn, link);
            pair.b.connect(qb.qpn, 1, qa.qpn, link);
            for _ in 0..WRITES {
                pair.a.post_send(&mut qa, WRITE, SIGNALED, 0, &write);
                (0..NOPS).for_each(|_| pair.a.post_send(&mut qa, NOP, SIGNALED, 0, &[]));
            }
            qa
        })
        .collect();
    // All acknowledgements are lost but the last one of each queue pair, whose number is in the second word of the BTH.
    let (mut frames, mut last) = (0, BTreeMap::new());
    for _ in 0..500 {
        turn(&mut pair.a);
        while let Some(frame) = pair.a.engine.transmit() {
            frames += 1;
            pair.b.with(|engine, ctx| engine.receive(ctx, &frame));
        }
        turn(&mut pair.b);
        last.extend(std::iter::from_fn(|| pair.b.engine.transmit()).map(|frame| (frame[13..16].to_vec(), frame)));
    }
    assert_eq!((frames, last.len()), (8 * usize::from(WRITES), 8));
    let mut done = vec![0; senders.len()];
    let mut poll = |host: &mut Host| {
        for (qp, done) in senders.iter_mut().zip(&mut done) {
            while let Some(completion) = host.poll(&mut qp.send) {
                assert_eq!((completion.counter(), completion.opcode()), (*done, 0), "each once, in order");
                *done += 1;
            }
        }
        done.clone()
    };
    let all = WRITES * (NOPS + 1);
    assert_eq!(poll(&mut pair.a), [0; 8]);
    let cost = pair.a.cost(|engine, ctx| last.values().for_each(|frame| engine.receive(ctx, frame)));
    assert!(cost.0 <= ACCESSES, "{cost:?}");
    let at_once = poll(&mut pair.a);
    assert!(at_once.contains(&all) && at_once.contains(&0), "{at_once:?}");
    for _ in 0..20 {
        turn(&mut pair.a);
    }
    assert_eq!(poll(&mut pair.a), [all; 8]);
    assert_eq!(pair.a.engine.transmit(), None, "nothing is sent again");
}

#[test]
fn a_flush_of_a_full_ring() {
    let mut host = Host::new(1);
    let mut qp = host.qp(14, 4, 15);
    host.connect(qp.qpn, 2, 2, Link::default());
    for _ in 0..1 << 14 {
        host.post_receive(&mut qp, &[(0, 0, 0)]);
    }
    let qpn = qp.qpn;
    let mut qpc = [0; 232];
    ViewMut::<Qpc>::new(&mut qpc).unwrap();
    let command = host.cost(|engine, ctx| engine.modify_qp(ctx, qpn, CmdOpcode::Qp2Err, 0, View::new(&qpc).unwrap()).unwrap());
    assert!(command.0 <= ACCESSES, "{command:?}");
    let mut turns = 0;
    while host.engine.next_due() == Some(Instant::default()) {
        turn(&mut host);
        turns += 1;
    }
    assert!(turns > 4, "{turns}");
    let flushed = std::iter::from_fn(|| host.poll(&mut qp.receive)).map(|cqe| cqe.counter());
    assert!(flushed.eq(0..1 << 14), "each once, in order");
}

#[test]
fn a_receive_posted_in_error_completes_without_other_work() {
    let mut host = Host::new(1);
    let mut qp = to_itself(&mut host, 4);
    host.modify(qp.qpn, CmdOpcode::Qp2Err, 0, |_| {}).unwrap();
    // Long after, when the looks have become rare.
    let mut looks = 0;
    while host.now < Instant::from_nanos(1_000_000_000) {
        host.now = host.now.max(host.engine.next_due().unwrap());
        turn(&mut host);
        looks += 1;
    }
    assert!(looks < 100, "{looks} in a second: an idle device sleeps");
    for _ in 0..2 {
        host.post_receive(&mut qp, &[(0, 0, 0)]);
        let posted = host.now;
        let flushed = loop {
            host.now = host.now.max(host.engine.next_due().unwrap());
            turn(&mut host);
            if let Some(flushed) = host.poll(&mut qp.receive) {
                break flushed;
            }
        };
        assert_eq!(flushed.syndrome(), 5, "flushed");
        assert!(host.now.since(posted) <= Duration::from_millis(16));
    }
    host.engine.destroy_qp(qp.qpn).unwrap();
    turn(&mut host);
    assert_eq!(host.engine.next_due(), None);
}

#[test]
fn sixty_thousand_queue_pairs_in_error_cost_nothing() {
    let mut host = Host::new(1);
    let mut first = host.qp(2, 2, 4);
    let ring = host.alloc(4096);
    host.modify(first.qpn, CmdOpcode::Qp2Err, 0, |_| {}).unwrap();
    for _ in 0..60_000 {
        let dbr = first.dbr;
        let mut qpc = [0; 232];
        ViewMut::<Qpc>::new(&mut qpc)
            .unwrap()
            .set(Qpc::PD, PD)
            .set(Qpc::LOG_RQ_STRIDE, 2)
            .set(Qpc::NO_SQ, 1)
            .set(Qpc::CQN_RCV, first.receive.cqn)
            .set64(Qpc::DBR_ADDR, dbr + 4096);
        let qpn = host.engine.create_qp(View::new(&qpc).unwrap(), PageSource::Listed(&Host::list(ring, 4096)), None).unwrap();
        host.modify(qpn, CmdOpcode::Qp2Err, 0, |_| {}).unwrap();
        assert_eq!(host.state(qpn), QpcState::Err.code());
    }
    while host.engine.next_due() == Some(Instant::default()) {
        turn(&mut host);
    }
    assert_eq!((0..100).map(|_| turn(&mut host).0).sum::<u64>(), 0, "no register access polls any");
    let posted = host.now;
    host.post_receive(&mut first, &[(0, 0, 0)]);
    while host.poll(&mut first.receive).is_none() {
        host.now = host.now.max(host.engine.next_due().unwrap());
        assert!(turn(&mut host).0 < 200, "a few at a time");
    }
    assert!(host.now.since(posted) < Duration::from_secs(10));
}

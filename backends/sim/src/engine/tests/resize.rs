//! Completion queues that move to another buffer while in use.

use super::super::PageSource;
use super::harness::*;
use bareverbs_mlx5_spec::{CmdStatus, Cqc, View, ViewMut};

const ALL: u32 = 7;

fn resize(host: &mut Host, cqn: u32, log_size: u32, ring: u64) -> Result<(), CmdStatus> {
    for entry in 0..1u64 << log_size.min(6) {
        host.write(ring + entry * 64 + 63, &[0xf1]);
    }
    let mut cqc = [0; 64];
    ViewMut::<Cqc>::new(&mut cqc).unwrap().set(Cqc::LOG_CQ_SIZE, log_size);
    let pages = Host::list(ring, 64 << log_size);
    host.with(|engine, ctx| engine.resize_cq(ctx, cqn, ALL, View::new(&cqc).unwrap(), PageSource::Listed(&pages)))
}

/// Returns what Linux and libmlx5 do after the command: everything up to the mark goes one place further in the new buffer.
fn copy_over(host: &Host, old: &TestCq, log_size: u32, ring: u64) -> u32 {
    let mut index = old.consumer;
    loop {
        let mut entry = host.entry(old, index);
        assert_eq!(u32::from(entry[63] & 1), index >> old.log_size() & 1, "the device gave it back");
        if entry[63] >> 4 == 5 {
            return old.consumer + 1;
        }
        index += 1;
        entry[63] = entry[63] & 0xfe | (index >> log_size & 1) as u8;
        host.write(ring + u64::from(index & ((1 << log_size) - 1)) * 64, &entry);
    }
}

/// A size must be chosen, and nothing that a queue does not have.
#[test]
fn a_choice_of_other_fields_is_refused() {
    let mut host = Host::new(1);
    let cq = host.cq(2);
    let ring = host.alloc(4096);
    let mut cqc = [0; 64];
    ViewMut::<Cqc>::new(&mut cqc).unwrap().set(Cqc::LOG_CQ_SIZE, 3);
    let pages = Host::list(ring, 64 << 3);
    for (select, wanted) in
        [(0, Err(CmdStatus::BadParam)), (6, Err(CmdStatus::BadParam)), (8 | ALL, Err(CmdStatus::BadParam)), (1, Ok(()))]
    {
        let view = View::new(&cqc).unwrap();
        let done = host.with(|engine, ctx| engine.resize_cq(ctx, cq.cqn, select, view, PageSource::Listed(&pages)));
        assert_eq!(done, wanted, "{select}");
    }
}

#[test]
fn entries_go_on_in_the_new_buffer() {
    for log_size in [2, 5] {
        let mut pair = Pair::on(perfect(), Link::default(), 2);
        let send = |pair: &mut Pair<_>, count| {
            for _ in 0..count {
                pair.a.post_send(&mut pair.qa, 0, SIGNALED, 0, &[]);
            }
            pair.run();
        };
        // The old queue has 16 entries: it has gone round more than once when it is left.
        for _ in 0..9 {
            send(&mut pair, 2);
            for _ in 0..2 {
                pair.a.poll(&mut pair.qa.send).unwrap();
            }
        }
        send(&mut pair, 3);
        let ring = pair.a.alloc(64 << log_size);
        resize(&mut pair.a, pair.qa.send.cqn, log_size, ring).unwrap();
        let consumer = copy_over(&pair.a, &pair.qa.send, log_size, ring);
        pair.qa.send.move_to(ring, log_size, consumer);
        for counter in 18..21 {
            assert_eq!(pair.a.poll(&mut pair.qa.send).unwrap().counter(), counter);
        }
        assert_eq!(pair.a.poll(&mut pair.qa.send), None);
        for round in 0..7 {
            send(&mut pair, 2);
            for counter in 0..2 {
                assert_eq!(pair.a.poll(&mut pair.qa.send).unwrap().counter(), 21 + 2 * round + counter);
            }
        }
    }
}

#[test]
fn a_buffer_that_is_too_small_is_refused() {
    let mut pair = Pair::on(perfect(), Link::default(), 3);
    for _ in 0..4 {
        pair.a.post_send(&mut pair.qa, 0, SIGNALED, 0, &[]);
    }
    pair.run();
    let (cqn, ring) = (pair.qa.send.cqn, pair.a.alloc(4096));
    assert_eq!(resize(&mut pair.a, cqn, 2, ring), Err(CmdStatus::BadSize));
    assert_eq!(resize(&mut pair.a, 0x999, 2, ring), Err(CmdStatus::BadRes));
    assert_eq!(resize(&mut pair.a, cqn, 23, ring), Err(CmdStatus::BadParam));
    for _ in 0..4 {
        pair.a.poll(&mut pair.qa.send).unwrap();
    }
    assert_eq!(pair.a.poll(&mut pair.qa.send), None, "no mark was left");
}

#[test]
fn moderation_is_kept() {
    let mut host = Host::new(1);
    let cq = host.cq(4);
    let mut cqc = [0; 64];
    ViewMut::<Cqc>::new(&mut cqc).unwrap().set(Cqc::CQ_PERIOD, 100).set(Cqc::CQ_MAX_COUNT, 8).set(Cqc::OI, 1);
    host.engine.moderate_cq(cq.cqn, 3, View::new(&cqc).unwrap()).unwrap();
    assert_eq!(host.engine.moderate_cq(cq.cqn, 1 << 9, View::new(&cqc).unwrap()), Err(CmdStatus::BadParam));
    let mut out = [0; 64];
    let cqn = cq.cqn;
    host.with(|engine, ctx| engine.query_cq(cqn, ctx, &mut ViewMut::new(&mut out).unwrap())).unwrap();
    // Period in bits 27 to 16 and count in the rest of the dword at 16; the overrun bit was not selected.
    assert_eq!(out[16..20], [0, 100, 0, 8]);
    assert_eq!(out[1] & 2, 0);
}

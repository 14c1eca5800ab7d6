//! Rings of every small size, from every start about the wraps of their counters, beside a queue of what is in flight.

use std::boxed::Box;
use std::collections::VecDeque;
use std::vec::Vec;

use super::mock::Mock;
use super::post::REMOTE;
use super::{ALL_RIGHTS, BASE, Harness, LENGTH, register, start_rings};
use crate::error::{PostRecvError, PostSendError, RawKind};
use crate::kept_verbs::KeptVerbs;
use crate::storage::QpRings;
use crate::{Payload, QpCap, QpInit, QpState, QpType, RecvWr, SendFlags, SendOp, SendWr, Sge, Verbs, WcStatus, storage};

/// The most SGEs of a request here.
const SGES: u32 = 12;

/// Returns verbs with a queue pair whose rings have `blocks` blocks and as many receives.
fn made(blocks: u32, max_send_sge: u32) -> Harness {
    let rings: &'static [QpRings<256, 256>; 1] = Box::leak(Box::new([const { QpRings::new() }; 1]));
    let tables = <storage![Mock; pds: 1, mrs: 1, mws: 1, cqs: 1, qps: 1]>::new(QpRings::views(rings));
    let mut mock = Mock::new();
    mock.device.max_sge = SGES;
    mock.lock().rings = Some((blocks, blocks));
    let mut verbs = KeptVerbs::new(Verbs::new(mock, Box::leak(Box::new(tables))));
    let pd = verbs.alloc_pd().unwrap();
    let mr = register(&mut verbs, pd, BASE, LENGTH, ALL_RIGHTS).unwrap();
    let cq = verbs.create_cq(1024).unwrap();
    let cap = QpCap { max_send_wr: 1, max_recv_wr: 1, max_send_sge, max_recv_sge: 1, max_inline_data: 200 };
    let init = QpInit { pd, qp_type: QpType::Rc, send_cq: cq, recv_cq: cq, cap, sq_sig_all: false };
    let qp = verbs.create_qp(&init).unwrap();
    let mut harness = Harness { verbs, pd, mr, cq, qp };
    harness.connect(qp);
    harness
}

/// Returns where a ring of so many places begins, about each wrap; few of a large one.
fn starts(places: u32) -> impl Iterator<Item = u32> {
    let step = 1 + places as usize / 16;
    [1_u64 << 16, 1 << 32]
        .into_iter()
        .flat_map(move |wrap| (wrap - u64::from(places) - 2..=wrap + 1).step_by(step))
        .map(|at| at as u32)
}

/// A request of one to four blocks: those of a write, with a head of 36 bytes.
fn write(wr_id: u64, blocks: u32) -> SendWr<'static> {
    static BYTES: [u8; 200] = [0; 200];
    let payload = Payload::Inline(&BYTES[..[1, 64, 128, 192][blocks as usize - 1]]);
    SendWr { wr_id, flags: SendFlags::SIGNALED, op: SendOp::Write { payload, remote: REMOTE } }
}

/// Requests are posted as long as the blocks of those in flight leave room, one by one and in a batch, and a refusal says how much there
/// is; each completion, also of one that takes others with it, gives its own number and its blocks back.
#[test]
#[cfg_attr(miri, ignore = "a whole domain of numbers takes minutes")]
fn a_send_ring_of_every_size_has_room_for_its_blocks() {
    for log in 0..=8 {
        let ring = 1_u32 << log;
        let mut harness = made(ring, 1);
        for start in starts(ring) {
            start_rings(&mut harness.verbs, harness.qp, start);
            let mut waiting: VecDeque<(u64, u32, u32)> = VecDeque::new();
            let (mut at, mut used, mut state) = (u64::from(start), 0, start ^ ring);
            for wr_id in 0..u64::from(2 * ring + 8) {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let blocks = 1 + (state >> 30);
                let wr = write(wr_id, blocks);
                let posted = if state >> 29 & 1 == 0 {
                    harness.verbs.post_send(harness.qp, &wr)
                } else {
                    let mut batch = harness.verbs.send_batch(harness.qp);
                    assert_eq!(batch.free_blocks(), ring - used);
                    batch.post(&wr)
                };
                if used + blocks <= ring {
                    assert_eq!(posted, Ok(()), "{used} of {ring} from {start:#x}");
                    assert_eq!(harness.device().sent.pop().map(|sent| sent.at), Some((at % (1 << 32)) as u32));
                    waiting.push_back((wr_id, at as u32, blocks));
                    at += u64::from(blocks);
                    used += blocks;
                } else {
                    let full = PostSendError::QueueFull { needed: blocks, free: ring - used, blocks: ring };
                    assert_eq!(posted, Err(full), "from {start:#x}");
                }
                assert_eq!(harness.verbs.qp_info(harness.qp).unwrap().send_blocks, used);
                // Now and then, and when there is no room: the first, or one behind it, which ends those before it.
                if posted.is_err() || state >> 27 & 3 == 0 {
                    let last = (state >> 8) as usize % 3 % waiting.len().max(1);
                    let gone: Vec<_> = waiting.drain(..(last + 1).min(waiting.len())).collect();
                    let Some((id, index, _)) = gone.last().copied() else { continue };
                    harness.complete(index as u16, WcStatus::Success);
                    assert_eq!(harness.poll_ids(), [id], "from {start:#x}");
                    used -= gone.iter().map(|(_, _, blocks)| blocks).sum::<u32>();
                }
            }
            for (id, index, _) in waiting.drain(..) {
                harness.complete(index as u16, WcStatus::Success);
                assert_eq!(harness.poll_ids(), [id]);
            }
        }
    }
}

/// The same of receives, one by one and in lists.
#[test]
#[cfg_attr(miri, ignore = "a whole domain of numbers takes minutes")]
fn a_receive_ring_of_every_size_has_room_for_its_entries() {
    for log in 0..=8 {
        let ring = 1_u32 << log;
        let mut harness = made(ring, 1);
        let sges = [harness.sge(0, 8)];
        for start in starts(ring) {
            start_rings(&mut harness.verbs, harness.qp, start);
            let mut waiting: VecDeque<(u64, u32)> = VecDeque::new();
            let (mut at, mut state, mut wr_id) = (u64::from(start), start ^ ring, 0);
            for _ in 0..2 * ring + 8 {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let wanted = 1 + (state >> 30);
                let list: Vec<RecvWr<'_>> =
                    // With an SGE, as most have, and without.
                    (0..wanted).map(|n| RecvWr { wr_id: wr_id + u64::from(n), sges: &sges[..(state >> n & 1) as usize] }).collect();
                let room = ring - waiting.len() as u32;
                let posted = match list[..] {
                    [ref one] => harness.verbs.post_recv(harness.qp, one).map_err(|error| (0, error)),
                    ref list => harness.verbs.post_recv_list(harness.qp, list).map_err(|bad| (bad.index, bad.error)),
                };
                let full = Err((room as usize, PostRecvError::QueueFull { capacity: ring }));
                assert_eq!(posted, if wanted <= room { Ok(()) } else { full }, "from {start:#x}");
                for wr in list.iter().take(room as usize) {
                    waiting.push_back((wr.wr_id, at as u32));
                    at += 1;
                }
                let written: Vec<u32> =
                    core::mem::take(&mut harness.device().received).into_iter().map(|(_, at, _)| at).collect();
                let expected: Vec<u32> = waiting.iter().skip(waiting.len() - written.len()).map(|(_, at)| *at).collect();
                assert_eq!((written.len() as u32, written), (wanted.min(room), expected));
                wr_id += u64::from(wanted);
                for _ in 0..if posted.is_err() { 1 + state as usize % 5 } else { (state >> 20) as usize % 3 } {
                    let Some((id, index)) = waiting.pop_front() else { break };
                    let raw = harness.raw(RawKind::Recv, index as u16, WcStatus::Success);
                    harness.push(raw);
                    assert_eq!(harness.poll_ids(), [id], "from {start:#x}");
                }
            }
            for (id, index) in waiting.drain(..) {
                let raw = harness.raw(RawKind::Recv, index as u16, WcStatus::Success);
                harness.push(raw);
                assert_eq!(harness.poll_ids(), [id]);
            }
        }
    }
}

/// Each capacity of SGEs takes as many as it says, by each operation that has them, and not one more.
#[test]
#[cfg_attr(miri, ignore = "a whole domain of numbers takes minutes")]
fn a_request_has_as_many_sges_as_the_queue_pair_takes() {
    for max in 0..=SGES {
        let mut harness = made(256, max);
        let sges: Vec<Sge> = (0..u64::from(SGES) + 3).map(|n| harness.sge(16 * n, 1 + n as u32)).collect();
        for count in 0..sges.len() {
            let list = &sges[..count];
            let payload = Payload::Sges(list);
            let ops = [
                SendOp::Send { payload },
                SendOp::Write { payload, remote: REMOTE },
                SendOp::SendWithImm { payload, imm: [0; 4] },
                SendOp::WriteWithImm { payload, remote: REMOTE, imm: [0; 4] },
                SendOp::SendWithInv { payload, rkey: REMOTE.rkey },
                SendOp::Read { sges: list, remote: REMOTE },
            ];
            for op in ops {
                let wr = SendWr { wr_id: 1, flags: SendFlags::SIGNALED, op };
                let wanted = if count <= max as usize { Ok(()) } else { Err(PostSendError::SgeCount { count, max }) };
                assert_eq!(harness.verbs.post_send(harness.qp, &wr), wanted, "{count} of {max}: {op:?}");
                assert_eq!(harness.verbs.send_batch(harness.qp).post(&wr), wanted, "{count} of {max}: {op:?}");
                let qpn = harness.qpn();
                while harness.device().execute(qpn) {}
                harness.poll().unwrap();
            }
        }
        let sge = Sge { length: 8, ..sges[0] };
        let wr = SendWr { wr_id: 1, flags: SendFlags::SIGNALED, op: SendOp::FetchAdd { sge, remote: REMOTE, add: 1 } };
        let wanted = if max == 0 { Err(PostSendError::SgeCount { count: 1, max }) } else { Ok(()) };
        assert_eq!(harness.verbs.post_send(harness.qp, &wr), wanted);
    }
}

/// What completed before a queue pair left SQE does not break it again: by the block at which each failed request lay, for each distance
/// that a ring has, about each wrap.
#[test]
#[cfg_attr(miri, ignore = "a whole domain of numbers takes minutes")]
fn a_request_from_before_the_recovery_breaks_nothing_after_it() {
    let harness = Harness::with(QpType::Uc, false);
    let slot = &harness.verbs.shared.qps[usize::from(harness.qp.index())];
    let shared = harness.verbs.shared;
    for wrap in [3_u64 << 16, 1 << 32] {
        for recovered in [wrap - 40_000, wrap - 1, wrap, wrap + 1] {
            slot.send.start_at(recovered as u32);
            slot.note_recovery();
            // A ring has 32,768 blocks, so no request is further from the head.
            for at in recovered - 32_768..recovered + 32_768 {
                slot.set_state(QpState::Rts);
                shared.fail(slot, Some(at as u32), false);
                let wanted = if at < recovered { QpState::Rts } else { QpState::Sqe };
                assert_eq!(slot.state(), wanted, "at {at:#x}, recovered at {recovered:#x}");
            }
            // As little after a second one.
            slot.note_recovery();
            slot.set_state(QpState::Rts);
            shared.fail(slot, Some((recovered - 1) as u32), false);
            assert_eq!(slot.state(), QpState::Rts, "after a second recovery");
            slot.forget_recovery();
            slot.set_state(QpState::Rts);
            shared.fail(slot, Some((recovered - 1) as u32), false);
            assert_eq!(slot.state(), QpState::Sqe, "after a RESET");
        }
    }
}

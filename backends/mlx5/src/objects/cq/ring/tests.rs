//! Completions by known bytes (`mlx5_cqe64` and `mlx5_err_cqe` of rdma-core's `mlx5dv.h`), and the owner bit at the wraps.

use std::vec::Vec;

use bareverbs::backend::{CqReader as _, CqRing as _};

use super::*;
use crate::ring::open_ring;
use crate::tests::mock::{Done, MockPlatform, Part, Shared, machine};

type Mock = Mlx5CqRing<MockPlatform>;

const RING: usize = 0x3000;
const RECORD: usize = 0x2000;
/// The register that arms, of UAR page 4.
const ARM: usize = 4 * 4096 + 0x20;

/// Returns a queue of 16 entries whose consumer stands at `consumer`, all entries as the device left them a round ago.
fn made(consumer: u32) -> (Mock, Shared) {
    made_with(consumer, true)
}

fn made_with(consumer: u32, user_index: bool) -> (Mock, Shared) {
    made_of(consumer, user_index, CqeSize::Bytes64)
}

fn made_of(consumer: u32, user_index: bool, cqe_size: CqeSize) -> (Mock, Shared) {
    let (machine, shared) = machine();
    for back in 1..=16 {
        put(&shared, consumer.wrapping_sub(back), 0, 0xdead, 0xbeef);
    }
    let part = Part(shared.clone());
    let ring = open_ring(&part, RING, 1024 << cqe_size.log_blocks(), RECORD).unwrap();
    let doorbell = part.doorbell(ARM, 1).unwrap();
    let shape = Shape { cqn: 0x77, size: RingSize::new(4, cqe_size), user_index, combining: false, ethernet: false };
    let mut cq = Mlx5CqRing::new(ring, doorbell, machine.fence, shape);
    cq.start_at(consumer);
    (cq, shared)
}

/// Writes entry `index` as the device does.
fn put(shared: &Shared, index: u32, opcode: u8, qpn: u32, counter: u16) {
    let mut entry = [0u8; 64];
    entry[32..36].copy_from_slice(&(0xff00_0000 | (qpn + 1)).to_be_bytes());
    entry[36..40].copy_from_slice(&[0xde, 0xad, 0xbe, 0xef]);
    entry[44..48].copy_from_slice(&1234u32.to_be_bytes());
    entry[54] = 0x99;
    entry[55] = 0x13;
    entry[56..60].copy_from_slice(&(0x0800_0000 | qpn).to_be_bytes());
    entry[60..62].copy_from_slice(&counter.to_be_bytes());
    entry[63] = opcode << 4 | ((index >> 4) & 1) as u8;
    let at = RING + (index & 15) as usize * 64;
    shared.borrow_mut().memory[at..at + 64].copy_from_slice(&entry);
}

/// Takes the next completion, if there is one.
fn take(cq: &mut Mock) -> Option<Result<RawCompletion, u8>> {
    let mut reader = cq.reader();
    if reader.peek() == Peek::Empty {
        return None;
    }
    let parsed = reader.parse();
    reader.advance();
    Some(parsed)
}

#[test]
fn every_kind_of_entry() {
    let (mut cq, shared) = made(0);
    let qpn = Qpn::new(0x12_3456);
    let expected =
        |kind, data| RawCompletion { qpn, kind, index: 0xfedc, status: WcStatus::Success, vendor_err: 0, byte_len: 1234, data };
    let usual = |recv| Peek::Success { qpn, recv, index: 0xfedc };
    let imm = WcData::Imm([0xde, 0xad, 0xbe, 0xef]);
    let kinds = [
        (0, usual(false), RawKind::Send, WcData::None),
        (1, Peek::Other, RawKind::RecvRdmaWithImm, imm),
        (2, usual(true), RawKind::Recv, WcData::None),
        (3, Peek::Other, RawKind::Recv, imm),
        (4, Peek::Other, RawKind::Recv, WcData::Invalidated(Rkey::new(0xdead_beef))),
    ];
    for (index, (opcode, peek, kind, data)) in kinds.into_iter().enumerate() {
        assert_eq!(take(&mut cq), None);
        put(&shared, index as u32, opcode, 0x12_3456, 0xfedc);
        let mut reader = cq.reader();
        assert_eq!(reader.peek(), peek, "{opcode}");
        assert_eq!((reader.cookie(), reader.byte_len()), (Some(0x12_3457), 1234));
        assert_eq!(take(&mut cq), Some(Ok(expected(kind, data))));
    }
    for (index, (opcode, kind)) in [(13, RawKind::Send), (14, RawKind::Recv)].into_iter().enumerate() {
        put(&shared, 5 + index as u32, opcode, 0x12_3456, 0xfedc);
        assert_eq!(cq.reader().peek(), Peek::Other);
        let error =
            RawCompletion { status: WcStatus::RemAccessErr, vendor_err: 0x99, byte_len: 0, ..expected(kind, WcData::None) };
        assert_eq!(take(&mut cq), Some(Ok(error)));
    }
    for (index, opcode) in [5u8, 6, 7, 12].into_iter().enumerate() {
        put(&shared, 7 + index as u32, opcode, 0x12_3456, 0);
        assert_eq!(cq.reader().peek(), Peek::Other);
        assert_eq!(take(&mut cq), Some(Err(opcode)));
    }
    put(&shared, 11, 15, 0x12_3456, 0);
    assert_eq!(take(&mut cq), None, "opcode 15 is no entry");
    let (cq, shared) = made_with(0, false);
    put(&shared, 0, 0, 0x12_3456, 0);
    let mut reader = cq.reader();
    assert_eq!((reader.peek() == Peek::Empty, reader.cookie()), (false, None));
}

#[test]
fn owner_and_record_are_right_at_every_wrap() {
    for start in [0u32, 15, 16, 31, 0xff_fff8, 0xffff_fff8] {
        let (mut cq, shared) = made(start);
        for step in 0..40u32 {
            let index = start.wrapping_add(step);
            assert_eq!(take(&mut cq), None, "{index:#x}");
            put(&shared, index, 0, 5, step as u16);
            let completion = take(&mut cq).unwrap().unwrap();
            assert_eq!(u32::from(completion.index), step);
            cq.reader().publish_consumer_index();
            let record = shared.borrow().memory[RECORD..RECORD + 4].to_vec();
            assert_eq!(record, (index.wrapping_add(1) & 0xff_ffff).to_be_bytes());
        }
    }
}

/// A ring of each small size from each start about each wrap, beside the counters of the device: what it has written is taken in its order,
/// what is left of the round before is not, and the record has the low 24 bits of the counter.
#[test]
fn a_ring_of_every_size_is_taken_in_the_order_of_its_counters() {
    for log in 0..=8 {
        let size = 1_u64 << log;
        let step = if cfg!(miri) { 301 } else { 1 + size as usize / 16 };
        for wrap in [1_u64 << 24, 1 << 31, 1 << 32] {
            for start in (wrap - size - 2..=wrap + 1).step_by(step) {
                let (machine, shared) = machine();
                let part = Part(shared.clone());
                let ring = open_ring(&part, RING, 64 << log, RECORD).unwrap();
                let doorbell = part.doorbell(ARM, 1).unwrap();
                let entries = RingSize::new(log, CqeSize::Bytes64);
                let shape = Shape { cqn: 0x77, size: entries, user_index: true, combining: false, ethernet: false };
                let mut cq: Mock = Mlx5CqRing::new(ring, doorbell, machine.fence, shape);
                cq.start_at(start as u32);
                let write = |counter: u64, number: u16| {
                    let at = RING + (counter % size) as usize * 64;
                    let memory = &mut shared.borrow_mut().memory;
                    memory[at + 60..at + 62].copy_from_slice(&number.to_be_bytes());
                    memory[at + 63] = 2 << 4 | (counter / size % 2) as u8;
                };
                for back in 1..=size {
                    write(start - back, 0xdead);
                }
                let (mut written, mut taken, mut state) = (start, start, start as u32 ^ size as u32);
                while written < start + 2 * size + 3 {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    let more = u64::from(state >> 16) % (size - (written - taken) + 1);
                    for _ in 0..more {
                        write(written, written as u16);
                        written += 1;
                    }
                    let wanted = u64::from(state >> 8 & 0xff) % (written - taken + 1);
                    for _ in 0..wanted {
                        let mut reader = cq.reader();
                        let index = taken as u16;
                        assert_eq!(
                            reader.peek(),
                            Peek::Success { qpn: Qpn::new(0), recv: true, index },
                            "{taken:#x} of {size}"
                        );
                        reader.advance();
                        taken += 1;
                    }
                    if taken == written {
                        assert_eq!(cq.reader().peek(), Peek::Empty, "{taken:#x} of {size} from {start:#x}");
                    }
                    let (size, next) = cq.position();
                    assert_eq!((size.log_size(), next), (log, (taken % (1 << 32)) as u32));
                    cq.reader().publish_consumer_index();
                    let record = shared.borrow().memory[RECORD..RECORD + 4].to_vec();
                    assert_eq!(record, ((taken % (1 << 24)) as u32).to_be_bytes());
                    shared.borrow_mut().log.clear();
                }
            }
        }
    }
}

/// An entry of 128 bytes is `mlx5_cqe64` in its second half (rdma-core `get_cqe`: 64 bytes further if `cqe_sz` is 128). Indices count
/// entries; the owner bit changes with each round of them.
#[cfg(feature = "large-completions")]
#[test]
fn the_completion_of_a_large_entry_is_in_its_second_half() {
    for start in [0, 13, (1 << 24) - 3, (1 << 31) - 3, u32::MAX >> 1] {
        let (mut cq, shared) = made_of(start, true, CqeSize::Bytes128);
        let at = |index: u32| RING + (index & 15) as usize * 128 + 64;
        // As the device left them a round ago; what is in the first halves looks like a new completion.
        let write = |index: u32, half: usize, owner_of: u32, qpn: u32| {
            let mut entry = [0u8; 64];
            entry[32..36].copy_from_slice(&(qpn + 1).to_be_bytes());
            entry[44..48].copy_from_slice(&1234u32.to_be_bytes());
            entry[56..60].copy_from_slice(&qpn.to_be_bytes());
            entry[60..62].copy_from_slice(&(index as u16).to_be_bytes());
            entry[63] = 2 << 4 | (owner_of >> 4 & 1) as u8;
            shared.borrow_mut().memory[at(index) - half..][..64].copy_from_slice(&entry);
        };
        for back in 1..=16 {
            let index = start.wrapping_sub(back);
            write(index, 0, index, 0xdead);
            write(index, 64, index.wrapping_add(16), 0xbad);
        }
        assert_eq!(take(&mut cq), None, "{start:#x}");
        for step in 0..40 {
            let index = start.wrapping_add(step);
            write(index, 0, index, 0x1234);
            let mut reader = cq.reader();
            assert_eq!(reader.peek(), Peek::Success { qpn: Qpn::new(0x1234), recv: true, index: index as u16 }, "{index:#x}");
            assert_eq!((reader.cookie(), reader.byte_len()), (Some(0x1235), 1234));
            reader.advance();
            assert_eq!(reader.source().src_qp, Qpn::new(0));
            reader.publish_consumer_index();
            let record = shared.borrow().memory[RECORD..RECORD + 4].to_vec();
            assert_eq!(record, (index.wrapping_add(1) & 0xff_ffff).to_be_bytes());
            assert_eq!(take(&mut cq), None);
            assert_eq!(cq.position().0.log_size(), 4);
        }
        shared.borrow_mut().log.clear();
        cq.arm(1, false);
        let next = start.wrapping_add(40) & 0xff_ffff;
        let dword = 1 << 28 | next;
        assert!(
            shared.borrow().log.contains(&Done::Store(RECORD + 4, u32::to_be_bytes(dword).to_vec())),
            "{:?}",
            shared.borrow().log
        );
    }
}

#[test]
fn the_rest_is_read_after_the_owner_and_the_index_is_told_after_the_rest() {
    // A send, a receive, a receive with immediate data, a failed send.
    for opcode in [0, 2, 3, 13] {
        let (cq, shared) = made(0);
        put(&shared, 0, opcode, 5, 0);
        shared.borrow_mut().log.clear();
        let mut reader = cq.reader();
        assert_ne!(reader.peek(), Peek::Empty);
        reader.advance();
        reader.publish_consumer_index();
        let reported = Done::Store(RECORD, std::vec![0, 0, 0, 1]);
        assert_eq!(shared.borrow().log, [Done::Acquire, Done::ReadBeforeWrite, reported], "{opcode}");
    }
}

/// What was taken stays taken, also if it was not reported to the device.
#[test]
fn a_reader_that_is_not_closed_has_taken_what_it_took() {
    let (mut cq, shared) = made(0);
    put(&shared, 0, 0, 5, 0);
    put(&shared, 1, 0, 5, 1);
    cq.reader().advance();
    assert_eq!(take(&mut cq).unwrap().unwrap().index, 1);
}

#[test]
fn an_arm_carries_index_kind_and_the_number_of_events() {
    let (mut cq, shared) = made(0x0123_4567);
    let armed = |cq: &mut Mock, events, solicited| -> Vec<Done> {
        shared.borrow_mut().log.clear();
        cq.arm(events, solicited);
        shared.borrow().log.clone()
    };
    let arm = |high: u32| {
        let low = 0x77u32;
        std::vec![
            Done::Store(RECORD + 4, high.to_be_bytes().to_vec()),
            Done::Release,
            Done::Register(ARM, [high.to_be_bytes(), low.to_be_bytes()].concat()),
        ]
    };
    assert_eq!(armed(&mut cq, 0, false), arm(0x0023_4567));
    assert_eq!(armed(&mut cq, 0, true), arm(0x0123_4567), "armed twice without an event in between: the same number");
    for count in 1..6u32 {
        assert_eq!(armed(&mut cq, count, false), arm((count & 3) << 28 | 0x23_4567));
    }
    cq.shape.combining = true;
    let mut flushed = arm(0x0023_4567);
    flushed.push(Done::Flush);
    assert_eq!(armed(&mut cq, 4, false), flushed);
}

/// By `mlx5_cqe64`: ml_path at 17, slid at 22, flags_rqpn at 24 (grh 29:28, sl 27:24, source queue pair), P_Key or immediate data
/// at 36.
#[test]
fn the_source_of_a_datagram_is_in_the_entry_that_was_taken_last() {
    for consumer in [0, 15, 0xff_fff7, u32::MAX - 7] {
        let (mut cq, shared) = made(consumer);
        for (step, (opcode, grh, pkey)) in [(2, 0, Some(0xbeef)), (2, 1, Some(0xbeef)), (3, 3, None)].into_iter().enumerate() {
            let index = consumer.wrapping_add(step as u32);
            put(&shared, index, opcode, 0x12_3456, step as u16);
            let at = RING + (index & 15) as usize * 64;
            let number = step as u8;
            shared.borrow_mut().memory[at + 17] = 0xaa | number;
            shared.borrow_mut().memory[at + 22..at + 28].copy_from_slice(&[0x12, number, 0xc5 | grh << 4, 0x65, 0x43, number]);
            assert!(matches!(take(&mut cq), Some(Ok(_))));
            let mut expected = Source::default();
            expected.src_qp = Qpn::new(0x65_4300 | u32::from(number));
            expected.slid = Lid::new(0x1200 | u16::from(number));
            (expected.sl, expected.dlid_path_bits, expected.grh, expected.pkey) = (5, 0x2a | number, grh != 0, pkey);
            assert_eq!(cq.reader().source(), expected);
        }
    }
}

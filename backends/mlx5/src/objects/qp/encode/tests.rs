//! Golden bytes of requests, by rdma-core's `mlx5dv.h` and `qp.c`, and the order of doorbells.

use std::vec::Vec;

use bareverbs::{Lkey, Rkey};

use super::*;
use crate::dma::arena::PageUse;
use crate::mock::{Done, MockPlatform, PAGES, Shared, driver};

type Mock = Driver<MockPlatform, [PageUse; PAGES]>;

/// Byte offset of the send ring.
const RING: usize = 0x2000;
/// Byte offset of the doorbell record.
const RECORD: usize = 0x1000;

/// A queue pair 0x123456 with `blocks` send blocks and four receive entries of two units.
fn made(blocks: usize) -> (Mock, Qp, Shared) {
    let (mut driver, shared) = driver();
    shared.borrow_mut().memory.fill(0xee);
    driver.uar = Uar::at(4, 0, false);
    let qp = Qp {
        sq_ring: RING,
        sq_mask: blocks * 64 - 1,
        qpn_ds: 0x123456 << 8,
        fence: 0,
        record: RECORD,
        committed: 0,
        last_control: 0,
        rq_ring: 0x1800,
        rq_mask: 3,
        rq_units: 2,
        qpn: 0x123456,
        service: bareverbs_mlx5_spec::QpcSt::Rc,
        pd: 0,
        send_cqn: 0,
        recv_cqn: 0,
        pkey_index: 0,
        port: 1,
        run: None,
        destroy: Default::default(),
    };
    (driver, qp, shared)
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(16)).collect();
    digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
}

fn ring(shared: &Shared, block: usize, len: usize) -> Vec<u8> {
    shared.borrow().memory[RING + block * 64..][..len].to_vec()
}

fn sge(addr: u64, length: u32) -> Sge {
    Sge { addr, length, lkey: Lkey::new(0xa1b2_c3d4) }
}

const REMOTE: Remote = Remote { addr: 0x1122_3344_5566_7788, rkey: Rkey::new(0x99aa_bbcc) };

#[test]
fn a_write_is_three_segments() {
    let (mut driver, mut qp, shared) = made(8);
    let op = CheckedOp::Write(Payload::Sges(&[sge(0x7000_0000_1000, 64)]), REMOTE);
    driver.encode_send(&mut qp, 0x1_0005, &op, SendFlags::SOLICITED, true).unwrap();
    let expected = hex("00 0005 08  123456 03  00 0000 0a  00000000
         1122334455667788 99aabbcc 00000000
         00000040 a1b2c3d4 0000700000001000");
    assert_eq!(ring(&shared, 5, 48), expected, "index 5 of the second round");
    assert_eq!(<Mock as Blocks>::of(&op), 1);
}

/// Blocks by the public function.
trait Blocks {
    fn of(op: &CheckedOp<'_>) -> u32;
}

impl Blocks for Mock {
    fn of(op: &CheckedOp<'_>) -> u32 {
        send_blocks(op)
    }
}

#[test]
fn lists_skip_what_is_empty_and_wrap_with_the_ring() {
    let (mut driver, mut qp, shared) = made(4);
    let sges = [sge(1, 0), sge(0x10, 1), sge(0x20, 2), sge(0x30, 0), sge(0x40, 1 << 31)];
    let op = CheckedOp::WriteWithImm(Payload::Sges(&sges), REMOTE, [1, 2, 3, 4]);
    assert_eq!(send_blocks(&op), 2);
    driver.encode_send(&mut qp, 7, &op, SendFlags::FENCE, false).unwrap();
    let expected = hex("00 0007 09  123456 05  00 0000 80  01020304
         1122334455667788 99aabbcc 00000000
         00000001 a1b2c3d4 0000000000000010
         00000002 a1b2c3d4 0000000000000020");
    assert_eq!(ring(&shared, 3, 64), expected);
    assert_eq!(
        ring(&shared, 0, 16),
        hex("00000000 a1b2c3d4 0000000000000040"),
        "2 GiB are written as 0, at the start of the ring"
    );
    let long = [sge(0, (1 << 31) + 1)];
    let op = CheckedOp::Send(Payload::Sges(&long));
    assert!(matches!(driver.encode_send(&mut qp, 0, &op, SendFlags::empty(), true), Err(Error::LimitExceeded { .. })));
}

#[test]
fn inline_payloads_follow_their_head_and_wrap() {
    for len in 0..150usize {
        let bytes: Vec<u8> = (1..=len as u8).collect();
        for (op, start, code) in
            [(CheckedOp::Write(Payload::Inline(&bytes), REMOTE), 32, 8), (CheckedOp::Send(Payload::Inline(&bytes)), 16, 0xa)]
        {
            let (mut driver, mut qp, shared) = made(4);
            driver.encode_send(&mut qp, 2, &op, SendFlags::empty(), true).unwrap();
            let mut linear = ring(&shared, 2, 128);
            linear.extend(ring(&shared, 0, 128));
            let units = if len == 0 { start / 16 } else { start / 16 + (len + 4).div_ceil(16) };
            assert_eq!(linear[3], code);
            assert_eq!(usize::from(linear[7]), units, "{len}");
            assert_eq!(send_blocks(&op) as usize, units.div_ceil(4));
            if len != 0 {
                assert_eq!(linear[start..start + 4], (0x8000_0000 | len as u32).to_be_bytes());
                assert_eq!(linear[start + 4..start + 4 + len], bytes[..]);
                assert!(linear[start + 4 + len..units * 16].iter().all(|byte| *byte == 0), "padding");
            }
        }
    }
}

#[test]
fn atomics_and_reads() {
    let (mut driver, mut qp, shared) = made(4);
    let op = CheckedOp::CompareSwap(sge(0x50, 8), REMOTE, 0x0102_0304_0506_0708, 0x1112_1314_1516_1718);
    driver.encode_send(&mut qp, 0, &op, SendFlags::empty(), true).unwrap();
    let expected = hex("00 0000 11  123456 04  00 0000 08  00000000
         1122334455667788 99aabbcc 00000000
         1112131415161718 0102030405060708
         00000008 a1b2c3d4 0000000000000050");
    assert_eq!(ring(&shared, 0, 64), expected, "swap first, then compare");
    let op = CheckedOp::FetchAdd(sge(0x50, 8), REMOTE, 5);
    driver.encode_send(&mut qp, 1, &op, SendFlags::empty(), true).unwrap();
    assert_eq!(ring(&shared, 1, 8), hex("00 0001 12 123456 04"));
    assert_eq!(ring(&shared, 1, 64)[32..48], hex("0000000000000005 0000000000000000"));
    let op = CheckedOp::Read(&[sge(0x60, 9)], REMOTE);
    driver.encode_send(&mut qp, 2, &op, SendFlags::empty(), false).unwrap();
    assert_eq!(ring(&shared, 2, 16), hex("00 0002 10 123456 03 00 0000 00 00000000"));
}

fn bind(kind: MwType, length: u64, access: Access) -> Bind {
    let (old, new, lkey) = (Rkey::new(0x0000_4201), Rkey::new(0x0000_4202), Lkey::new(0x0000_5107));
    Bind { kind, old, new, lkey, addr: 0x7000_0000_2000, length, access }
}

#[test]
fn a_bind_is_a_umr_of_three_blocks_and_fences_the_next_request() {
    let (mut driver, mut qp, shared) = made(4);
    let access = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let op = CheckedOp::BindMw(bind(MwType::Type1, 0x3000, access));
    assert_eq!(send_blocks(&op), 3);
    driver.encode_send(&mut qp, 2, &op, SendFlags::empty(), true).unwrap();
    let head = hex("00 0002 25  123456 0c  00 0000 08  00004201
         90000000 0004 0000 00000000203c2041
         00000000000000000000000000000000 00000000000000000000000000000000");
    assert_eq!(ring(&shared, 2, 64), head, "inline, translation offset; LEN START MKEY LW RR RW A FREE");
    let context = hex("00007000 ffffff02 00000000 00000000 0000700000002000 0000000000003000
         0000000000000000 0000000000000000 0000000000000000 0000000000000000");
    assert_eq!(ring(&shared, 3, 64), context, "A RW RR, any queue pair, the new tag, start and length");
    let mut translation = hex("00003000 00005107 0000700000002000");
    translation.resize(64, 0);
    assert_eq!(ring(&shared, 0, 64), translation, "at the start of the ring");

    let op = CheckedOp::Send(Payload::Inline(&[]));
    driver.encode_send(&mut qp, 5, &op, SendFlags::empty(), true).unwrap();
    assert_eq!(ring(&shared, 1, 16)[11], 0x28, "small fence, completion");
    driver.encode_send(&mut qp, 6, &op, SendFlags::empty(), true).unwrap();
    assert_eq!(ring(&shared, 2, 16)[11], 0x08, "once");
}

#[test]
fn unbinds_type_2_and_invalidations() {
    let (mut driver, mut qp, shared) = made(4);
    let op = CheckedOp::BindMw(bind(MwType::Type1, 0, Access::empty()));
    assert_eq!(send_blocks(&op), 2);
    driver.encode_send(&mut qp, 0, &op, SendFlags::empty(), true).unwrap();
    assert_eq!(ring(&shared, 0, 32), hex("00 0000 25 123456 08 00 0000 08 00004201 90000000 0000 0000 0000000020002000"));
    assert_eq!(ring(&shared, 1, 16), hex("40000000 ffffff02 00000000 00000000"));

    let op = CheckedOp::BindMw(bind(MwType::Type2, 0x10, Access::REMOTE_READ | Access::ZERO_BASED));
    driver.encode_send(&mut qp, 0, &op, SendFlags::empty(), true).unwrap();
    assert_eq!(ring(&shared, 0, 32)[16..], hex("b0000000 0004 0000 00000000203c6041"), "check free; QPN too");
    assert_eq!(ring(&shared, 1, 32), hex("00001000 12345602 00000000 00000000 0000000000000000 0000000000000010"));

    let op = CheckedOp::LocalInv(Rkey::new(0x0000_4202));
    driver.encode_send(&mut qp, 0, &op, SendFlags::empty(), false).unwrap();
    assert_eq!(ring(&shared, 0, 32), hex("00 0000 25 123456 08 00 0000 20 00004202 98000000 0000 0000 0000000020006000"));
    assert_eq!(ring(&shared, 1, 16), hex("40000000 ffffff00 00000000 00000000"), "the tag goes back to 0");

    let op = CheckedOp::BindMw(bind(MwType::Type1, (1 << 31) + 1, Access::REMOTE_READ));
    assert!(matches!(driver.encode_send(&mut qp, 0, &op, SendFlags::empty(), true), Err(Error::LimitExceeded { .. })));
}

#[test]
fn a_doorbell_comes_after_the_record_and_the_record_after_the_request() {
    let (mut driver, mut qp, shared) = made(8);
    let op = CheckedOp::Write(Payload::Sges(&[sge(0x1000, 64)]), REMOTE);
    for at in 0xfffe..0x10001 {
        driver.encode_send(&mut qp, at, &op, SendFlags::empty(), true).unwrap();
    }
    shared.borrow_mut().log.clear();
    driver.commit_send(&mut qp, 0x10001).unwrap();
    let expected = [
        Done::Release,
        Done::Store(RECORD + 4, hex("00000001")),
        Done::Release,
        Done::Register(4 * 4096 + 0x800, hex("00 0000 08 123456 03")),
    ];
    assert_eq!(shared.borrow().log, expected);
}

#[test]
fn a_short_request_alone_goes_through_blue_flame_and_the_halves_take_turns() {
    let (mut driver, mut qp, shared) = made(4);
    driver.uar = Uar::at(4, 256, true);
    let op = CheckedOp::Write(Payload::Inline(&[7; 40]), REMOTE);
    driver.encode_send(&mut qp, 0, &op, SendFlags::empty(), true).unwrap();
    driver.commit_send(&mut qp, 2).unwrap();
    let copied = |half: usize, block: usize| -> Vec<Done> {
        let bytes = [ring(&shared, block, 64), ring(&shared, (block + 1) % 4, 64)].concat();
        bytes.chunks(8).enumerate().map(|(i, word)| Done::Register(4 * 4096 + 0x800 + half + 8 * i, word.to_vec())).collect()
    };
    let take = || core::mem::take(&mut shared.borrow_mut().log);
    let log = take();
    let copy = copied(0, 0);
    assert!(log.ends_with(&[&copy[..], &[Done::Flush]].concat()), "{log:?}");
    driver.encode_send(&mut qp, 3, &op, SendFlags::empty(), true).unwrap();
    driver.commit_send(&mut qp, 5).unwrap();
    // Blocks 2 was skipped: not alone for the device, so only the doorbell.
    let log = take();
    assert_eq!(log[log.len() - 2..], [Done::Register(4 * 4096 + 0x900, hex("00 0003 08 123456 05")), Done::Flush]);
    driver.encode_send(&mut qp, 5, &op, SendFlags::empty(), true).unwrap();
    driver.commit_send(&mut qp, 7).unwrap();
    let log = take();
    assert!(log.ends_with(&[&copied(0, 1)[..], &[Done::Flush]].concat()));
}

#[test]
fn receives_end_with_the_invalid_key_and_have_no_register() {
    let (mut driver, qp, shared) = made(4);
    driver.encode_recv(&qp, 5, &[sge(9, 0), sge(0x70, 3)]).unwrap();
    driver.encode_recv(&qp, 6, &[sge(0x70, 3), sge(0x80, 4)]).unwrap();
    driver.encode_recv(&qp, 7, &[]).unwrap();
    let entry = |index: usize| shared.borrow().memory[0x1800 + index * 32..][..32].to_vec();
    assert_eq!(entry(1), hex("00000003 a1b2c3d4 0000000000000070 00000000 00000100 0000000000000000"));
    assert_eq!(entry(2), hex("00000003 a1b2c3d4 0000000000000070 00000004 a1b2c3d4 0000000000000080"));
    assert_eq!(entry(3)[..16], hex("00000000 00000100 0000000000000000"));
    assert!(matches!(driver.encode_recv(&qp, 0, &[sge(1, 1); 3]), Err(Error::LimitExceeded { .. })));
    shared.borrow_mut().log.clear();
    driver.commit_recv(&qp, 0x1_0008).unwrap();
    assert_eq!(shared.borrow().log, [Done::Release, Done::Store(RECORD, hex("00000008"))]);
}

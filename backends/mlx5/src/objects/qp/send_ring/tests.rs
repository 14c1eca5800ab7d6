//! Golden bytes of requests, by rdma-core's `mlx5dv.h` and `qp.c`, and the order of doorbells.

use std::vec::Vec;

use bareverbs::backend::{EncodedAddress, RecvRing as _, RegOp, SendRing as _, SendWriter as _};
use bareverbs::{Access, Lkey, MaskedOp, MwType, Qkey, Qpn, Remote, Srqn};

use super::*;
use crate::objects::qp::recv_ring::Mlx5RecvRing;
use crate::ring::open_ring;
use crate::tests::mock::{Done, MockPlatform, Part, Shared, machine};

type Mock = Mlx5SendRing<MockPlatform>;
type Writer = Mlx5SendWriter<'static, MockPlatform>;

/// Byte offset of the send ring.
const RING: usize = 0x2000;
/// Byte offset of the doorbell record.
const RECORD: usize = 0x1000;
/// Byte offset of the receive ring.
const RECEIVES: usize = 0x1800;

/// Returns the send ring of queue pair 0x123456 with `blocks` blocks.
fn made(blocks: usize) -> (Mock, Shared) {
    made_with(blocks, 0, false)
}

fn made_with(blocks: usize, half: usize, combining: bool) -> (Mock, Shared) {
    let (machine, shared) = machine();
    shared.borrow_mut().memory.fill(0xee);
    let part = Part(shared.clone());
    let ring = open_ring(&part, RING, blocks * 64, RECORD).unwrap();
    let doorbell = SendDoorbell::open(&part, 4, half, combining).unwrap();
    (Mlx5SendRing::new(ring, doorbell, machine.fence, 0x12_3456), shared)
}

/// Writes a request with SGEs, without those that have no byte: so the core does.
fn sges(sq: &mut Mock, at: u32, op: &DataOp, sges: &[Sge], flags: SendFlags) {
    sq.writer().put_sges(at, op, sges, flags);
}

/// Rings for what `write` writes up to block `end`.
fn ring_to(sq: &mut Mock, end: u32, write: impl FnOnce(&mut Mlx5SendWriter<'_, MockPlatform>)) {
    let mut writer = sq.writer();
    write(&mut writer);
    writer.ring(end);
}

const SIGNALED: SendFlags = SendFlags::SIGNALED;

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
const SEND: DataOp = DataOp { opcode: DataOpcode::Send, remote: Remote::NONE, immediate: 0 };
const WRITE: DataOp = DataOp { opcode: DataOpcode::Write, remote: REMOTE, immediate: 0 };

#[test]
fn a_write_is_three_segments() {
    let (mut sq, shared) = made(8);
    let op = WRITE;
    sges(&mut sq, 0x1_0005, &op, &[sge(0x7000_0000_1000, 64)], SendFlags::SOLICITED | SIGNALED);
    let expected = hex("00 0005 08  123456 03  00 0000 0a  00000000
         1122334455667788 99aabbcc 00000000
         00000040 a1b2c3d4 0000700000001000");
    assert_eq!(ring(&shared, 5, 48), expected, "index 5 of the second round");
    assert_eq!(Writer::sge_blocks(op.opcode, 1), 1);
}

#[test]
fn lists_wrap_with_the_ring() {
    let (mut sq, shared) = made(4);
    let list = [sge(0x10, 1), sge(0x20, 2), sge(0x40, 1 << 31)];
    let op = DataOp { opcode: DataOpcode::WriteWithImm, remote: REMOTE, immediate: 0x0102_0304 };
    assert_eq!(Writer::sge_blocks(op.opcode, 3), 2);
    sges(&mut sq, 7, &op, &list, SendFlags::FENCE);
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
}

/// Each number of SGEs, with and without a remote address, has the segments of the request with one, and so on.
#[test]
fn every_number_of_segments_is_written_alike() {
    let list: Vec<Sge> = (1..=6).map(|n| sge(0x1000 * n, n as u32)).collect();
    for count in 0..=6 {
        for (op, code, head) in [(SEND, "0a", 1), (WRITE, "08", 2)] {
            let (mut sq, shared) = made(4);
            sges(&mut sq, 0, &op, &list[..count], SIGNALED);
            let mut expected = hex(&std::format!("00 0000 {code} 123456 {:02x} 00 0000 08 00000000", head + count));
            if head == 2 {
                expected.extend(hex("1122334455667788 99aabbcc 00000000"));
            }
            for n in 1..=count {
                expected.extend(hex(&std::format!("{n:08x} a1b2c3d4 {:016x}", 0x1000 * n)));
            }
            assert_eq!(ring(&shared, 0, expected.len()), expected, "{op:?} with {count}");
            assert_eq!(Writer::sge_blocks(op.opcode, count) as usize, expected.len().div_ceil(64));
        }
    }
}

#[test]
fn inline_payloads_follow_their_head_and_wrap() {
    for len in 0..150usize {
        let bytes: Vec<u8> = (1..=len as u8).collect();
        for (op, start, code) in [(WRITE, 32, 8), (SEND, 16, 0xa)] {
            let (sq, shared) = made(4);
            sq.writer().put_inline(2, &op, &bytes, SIGNALED);
            let mut linear = ring(&shared, 2, 128);
            linear.extend(ring(&shared, 0, 128));
            let units = if len == 0 { start / 16 } else { start / 16 + (len + 4).div_ceil(16) };
            assert_eq!(linear[3], code);
            assert_eq!(usize::from(linear[7]), units, "{len}");
            assert_eq!(Writer::inline_blocks(op.opcode, len) as usize, units.div_ceil(4));
            if len != 0 {
                assert_eq!(linear[start..start + 4], (0x8000_0000 | len as u32).to_be_bytes());
                assert_eq!(linear[start + 4..start + 4 + len], bytes[..]);
            }
            assert!(linear[units.div_ceil(4) * 64..].iter().all(|byte| *byte == 0xee), "{len}: the blocks after it");
        }
    }
}

#[test]
fn atomics_and_reads() {
    let (mut sq, shared) = made(4);
    let (compare, swap_add) = (0x0102_0304_0506_0708, 0x1112_1314_1516_1718);
    let op = AtomicOp { opcode: AtomicOpcode::CompareSwap, remote: REMOTE, swap_add, compare };
    sq.writer().put_atomic(0, &op, &sge(0x50, 8), SIGNALED);
    let expected = hex("00 0000 11  123456 04  00 0000 08  00000000
         1122334455667788 99aabbcc 00000000
         1112131415161718 0102030405060708
         00000008 a1b2c3d4 0000000000000050");
    assert_eq!(ring(&shared, 0, 64), expected, "swap first, then compare");
    let op = AtomicOp { opcode: AtomicOpcode::FetchAdd, remote: REMOTE, swap_add: 5, compare: 0 };
    sq.writer().put_atomic(1, &op, &sge(0x50, 8), SIGNALED);
    assert_eq!(ring(&shared, 1, 8), hex("00 0001 12 123456 04"));
    assert_eq!(ring(&shared, 1, 64)[32..48], hex("0000000000000005 0000000000000000"));
    let op = DataOp { opcode: DataOpcode::Read, ..WRITE };
    sges(&mut sq, 2, &op, &[sge(0x60, 9)], SendFlags::empty());
    assert_eq!(ring(&shared, 2, 16), hex("00 0002 10 123456 03 00 0000 00 00000000"));
    let op = DataOp { opcode: DataOpcode::SendWithInv, immediate: 0x4202, ..SEND };
    sges(&mut sq, 3, &op, &[], SIGNALED);
    assert_eq!(ring(&shared, 3, 16), hex("00 0003 01 123456 01 00 0000 08 00004202"));
}

fn bind(kind: MwType, length: u64, access: Access) -> BindOp {
    let (old, new, lkey) = (Rkey::new(0x0000_4201), Rkey::new(0x0000_4202), Lkey::new(0x0000_5107));
    BindOp { kind, old, new, lkey, addr: 0x7000_0000_2000, length, access }
}

#[test]
fn a_bind_is_a_umr_of_three_blocks_and_fences_the_next_request() {
    let (sq, shared) = made(4);
    let access = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let op = bind(MwType::Type1, 0x3000, access);
    assert_eq!(Writer::bind_blocks(&op), 3);
    sq.writer().put_bind(2, &op, SIGNALED);
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

    // The request of which the core says that it is the next waits for the bind.
    let mut writer = sq.writer();
    writer.put_inline(5, &SEND, &[], SIGNALED | SendFlags::AFTER_BIND);
    writer.put_inline(6, &SEND, &[], SIGNALED);
    assert_eq!(ring(&shared, 1, 16)[11], 0x28, "small fence, completion");
    assert_eq!(ring(&shared, 2, 16)[11], 0x08, "no other");
    // The fence of the verbs waits for more.
    writer.put_inline(7, &SEND, &[], SIGNALED | SendFlags::FENCE | SendFlags::AFTER_BIND);
    assert_eq!(ring(&shared, 3, 16)[11], 0x88);
}

#[test]
fn unbinds_type_2_and_invalidations() {
    let (sq, shared) = made(4);
    let op = bind(MwType::Type1, 0, Access::empty());
    assert_eq!((Writer::bind_blocks(&op), Writer::LOCAL_INV_BLOCKS), (2, 2));
    sq.writer().put_bind(0, &op, SIGNALED);
    assert_eq!(ring(&shared, 0, 32), hex("00 0000 25 123456 08 00 0000 08 00004201 90000000 0000 0000 0000000020002000"));
    assert_eq!(ring(&shared, 1, 16), hex("40000000 ffffff02 00000000 00000000"));

    let (sq, shared) = made(4);
    let op = bind(MwType::Type2, 0x10, Access::REMOTE_READ | Access::ZERO_BASED);
    sq.writer().put_bind(0, &op, SIGNALED);
    assert_eq!(ring(&shared, 0, 32)[16..], hex("b0000000 0004 0000 00000000203c6041"), "check free; QPN too");
    assert_eq!(ring(&shared, 1, 32), hex("00001000 12345602 00000000 00000000 0000000000000000 0000000000000010"));

    // The request after the bind, and at the end of the ring.
    sq.writer().put_local_inv(3, Rkey::new(0x0000_4202), SendFlags::AFTER_BIND);
    assert_eq!(ring(&shared, 3, 32), hex("00 0003 25 123456 08 00 0000 20 00004202 98000000 0000 0000 0000000020006000"));
    assert_eq!(ring(&shared, 0, 16), hex("40000000 ffffff00 00000000 00000000"), "the tag goes back to 0");
}

/// By UCX's `uct_rc_mlx5_ep_inline_rdma_post` (`ib_mlx5.h`): modifier 8 | log2(bytes) - 2; swap, compare, swap mask, compare mask; add,
/// boundary.
#[test]
fn masked_atomics() {
    let (sq, shared) = made(4);
    let (compare, compare_mask, swap, swap_mask) = (0x0102_0304, 0xf0f0_f0f0, 0x1112_1314, 0x00ff_00ff);
    let put = |at: u32, op: MaskedOp, len: u32| {
        sq.writer().put_masked(at, &op, None, &REMOTE, &sge(0x50, len), SIGNALED);
        Writer::masked_blocks(&op, false)
    };
    assert_eq!(put(0, MaskedOp::CompareSwap4 { compare, compare_mask, swap, swap_mask }, 4), 1);
    let remote = "1122334455667788 99aabbcc 00000000";
    let expected = hex(&std::format!(
        "08 0000 14  123456 04  00 0000 08  00000000 {remote} 11121314 01020304 00ff00ff f0f0f0f0 00000004 a1b2c3d4 0000000000000050"
    ));
    assert_eq!(ring(&shared, 0, 64), expected);
    let wide = MaskedOp::CompareSwap8 { compare: 1, compare_mask: 2, swap: 3, swap_mask: 4 };
    assert_eq!(put(1, wide, 8), 2);
    let expected = hex(&std::format!(
        "09 0001 14  123456 05  00 0000 08  00000000 {remote} 0000000000000003 0000000000000001 0000000000000004 0000000000000002
         00000008 a1b2c3d4 0000000000000050"
    ));
    assert_eq!(ring(&shared, 1, 80), expected);
    assert_eq!(put(3, MaskedOp::FetchAdd4 { add: 5, boundary: 0x80 }, 4), 1);
    assert_eq!(ring(&shared, 3, 48)[32..], hex("00000005 00000080 0000000000000000"));
    assert_eq!(ring(&shared, 3, 8), hex("08 0003 15  123456 04"));
    assert_eq!(put(0, MaskedOp::FetchAdd8 { add: 5, boundary: 1 << 63 }, 8), 1);
    assert_eq!(ring(&shared, 0, 48)[32..], hex("0000000000000005 8000000000000000"));
    // XRC: the shared receive queue stands before the remote address (rdma-core `mlx5_send_wr_set_xrc_srqn`).
    sq.writer().put_masked(
        2,
        &MaskedOp::FetchAdd4 { add: 5, boundary: 0x80 },
        Some(Srqn::new(0x45_6789)),
        &REMOTE,
        &sge(0x50, 4),
        SIGNALED,
    );
    assert_eq!(
        (Writer::masked_blocks(&MaskedOp::FetchAdd4 { add: 0, boundary: 0 }, true), Writer::masked_blocks(&wide, true)),
        (2, 2)
    );
    let expected = hex(&std::format!(
        "08 0002 15  123456 05  00 0000 08  00000000 00456789 000000000000000000000000 {remote} 00000005 00000080 0000000000000000
         00000004 a1b2c3d4 0000000000000050"
    ));
    assert_eq!(ring(&shared, 2, 80), expected);
    // The doorbell has the control segment as it is in the ring.
    let mut writer = sq.writer();
    writer.put_masked(1, &wide, None, &REMOTE, &sge(0x50, 8), SIGNALED);
    shared.borrow_mut().log.clear();
    writer.ring(3);
    assert_eq!(shared.borrow().log.last(), Some(&Done::Register(4 * 4096 + 0x800, hex("09 0001 14 123456 05"))));
}

/// By rdma-core's `mlx5_send_wr_mkey_configure`, `_set_mkey_access_flags` and `_set_mkey_layout` (`umr_sg_list_create`): the control
/// segment names the key that there is; INLINE; octowords of the list in whole blocks; FREE, MKEY, LEN and the four rights in the mask;
/// queue pair 0xffffff and the tag. Beyond it the key must be free and the start address is set, as in Linux's `set_reg_wr`.
#[test]
fn a_registration_is_a_umr_with_a_list() {
    let list: Vec<Sge> = (0..5).map(|n| sge(0x1000 * n + 1, 0x10 + n as u32)).collect();
    assert_eq!([1, 4, 5, 8, 9, 52].map(Writer::reg_blocks), [3, 3, 4, 4, 5, 15]);
    let op = |count: usize, access| RegOp {
        old: Rkey::new(0x0000_4201),
        new: Rkey::new(0x0000_4207),
        base: 0x7000_0000_2000,
        length: 0x1_2345,
        access,
        sges: &list[..count],
    };
    let (sq, shared) = made(4);
    sq.writer().put_reg(2, &op(1, Access::REMOTE_READ), SIGNALED | SendFlags::AFTER_BIND);
    let head = hex("00 0002 25  123456 0c  00 0000 28  00004201
         a0000000 0004 0000 00000000203c2041
         00000000000000000000000000000000 00000000000000000000000000000000");
    assert_eq!(ring(&shared, 2, 64), head);
    let context = hex("00001000 ffffff07 00000000 00000000 0000700000002000 0000000000012345
         0000000000000000 0000000000000000 0000000000000000 0000000000000000");
    assert_eq!(ring(&shared, 3, 64), context);
    let mut entries = hex("00000010 a1b2c3d4 0000000000000001");
    entries.resize(64, 0);
    assert_eq!(ring(&shared, 0, 64), entries, "at the start of the ring, filled up");

    let (sq, shared) = made(4);
    let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    sq.writer().put_reg(0, &op(5, all), SendFlags::empty());
    assert_eq!(ring(&shared, 0, 24)[6..], hex("56 10 00 0000 00 00004201 a0000000 0008 0000"), "16 units, 8 octowords");
    assert_eq!(ring(&shared, 1, 8), hex("00007800 ffffff07"));
    assert_eq!(ring(&shared, 2, 64)[48..], hex("00000013 a1b2c3d4 0000000000003001"));
    let mut last = hex("00000014 a1b2c3d4 0000000000004001");
    last.resize(64, 0);
    assert_eq!(ring(&shared, 3, 64), last);
}

#[test]
fn a_doorbell_comes_after_the_record_and_the_record_after_the_request() {
    let (mut sq, shared) = made(8);
    ring_to(&mut sq, 0x1_0001, |writer| {
        for at in 0xfffe..0x1_0001 {
            writer.put_sges(at, &WRITE, &[sge(0x1000, 64)], SIGNALED);
        }
        shared.borrow_mut().log.clear();
    });
    let expected = [
        Done::Publish,
        Done::Store(RECORD + 4, hex("00000001")),
        Done::Release,
        Done::Register(4 * 4096 + 0x800, hex("00 0000 08 123456 03")),
    ];
    assert_eq!(shared.borrow().log, expected);
}

/// Requests that a writer closed without a doorbell are announced by the next one, with the last of them in the register.
#[test]
fn what_was_closed_is_announced_by_the_next_writer() {
    let (sq, shared) = made(8);
    let mut writer = sq.writer();
    writer.put_inline(3, &SEND, &[], SIGNALED);
    writer.close();
    shared.borrow_mut().log.clear();
    sq.writer().ring(4);
    assert_eq!(shared.borrow().log.last(), Some(&Done::Register(4 * 4096 + 0x800, hex("00 0003 0a 123456 01"))));
}

#[test]
fn a_short_request_alone_goes_through_blue_flame_and_the_halves_take_turns() {
    let (mut sq, shared) = made_with(4, 256, true);
    let write =
        |at: u32| move |writer: &mut Mlx5SendWriter<'_, MockPlatform>| writer.put_inline(at, &WRITE, &[7; 40], SIGNALED);
    ring_to(&mut sq, 2, write(0));
    let copied = |half: usize, block: usize| -> Vec<Done> {
        let bytes = [ring(&shared, block, 64), ring(&shared, (block + 1) % 4, 64)].concat();
        bytes.chunks(8).enumerate().map(|(i, word)| Done::Register(4 * 4096 + 0x800 + half + 8 * i, word.to_vec())).collect()
    };
    let take = || core::mem::take(&mut shared.borrow_mut().log);
    let log = take();
    let copy = copied(0, 0);
    assert!(log.ends_with(&[&copy[..], &[Done::Flush]].concat()), "{log:?}");
    ring_to(&mut sq, 5, write(3));
    // Block 2 was skipped: not alone for the device, so only the doorbell.
    let log = take();
    assert_eq!(log[log.len() - 2..], [Done::Register(4 * 4096 + 0x900, hex("00 0003 08 123456 05")), Done::Flush]);
    ring_to(&mut sq, 7, write(5));
    let log = take();
    assert!(log.ends_with(&[&copied(0, 1)[..], &[Done::Flush]].concat()));
}

#[test]
fn receives_end_with_the_invalid_key_and_have_no_register() {
    let (machine, shared) = machine();
    shared.borrow_mut().memory.fill(0xee);
    let ring = open_ring(&Part(shared.clone()), RECEIVES, 4 * 32, RECORD).unwrap();
    let mut rq = Mlx5RecvRing::<MockPlatform> { ring, fence: machine.fence, units: 2 };
    rq.put(5, &[sge(9, 0), sge(0x70, 3)]);
    rq.put(6, &[sge(0x70, 3), sge(0x80, 4)]);
    rq.put(7, &[]);
    let entry = |index: usize| shared.borrow().memory[RECEIVES + index * 32..][..32].to_vec();
    assert_eq!(entry(0), [0xee; 32], "not written");
    assert_eq!(entry(1), hex("00000003 a1b2c3d4 0000000000000070 00000000 00000100 0000000000000000"));
    assert_eq!(entry(2), hex("00000003 a1b2c3d4 0000000000000070 00000004 a1b2c3d4 0000000000000080"));
    assert_eq!(entry(3)[..16], hex("00000000 00000100 0000000000000000"));
    // More than an entry takes does not reach the next one.
    rq.put(5, &[sge(1, 1); 3]);
    assert_eq!(entry(2)[..16], hex("00000003 a1b2c3d4 0000000000000070"));
    shared.borrow_mut().log.clear();
    rq.ring(0x1_0008);
    assert_eq!(shared.borrow().log, [Done::Publish, Done::Store(RECORD, hex("00000008"))]);
}

/// By `struct mlx5_wqe_datagram_seg` of rdma-core's `mlx5dv.h`: 48 bytes after the control segment, so a block.
#[test]
fn a_datagram_is_a_block_and_its_payload() {
    let address = EncodedAddress([0, 0x8000_0000_0300_0002, 3, 4, 5, 6].map(u64::to_be));
    let (remote_qpn, remote_qkey) = (Qpn::new(0x65_4321), Qkey::new(0x8001_0000));
    let op = DatagramOp { address: &address, remote_qpn, remote_qkey, imm: None };
    let head = |control: &str| {
        hex(&std::format!(
            "{control} 80010000 00000000 80654321 03000002 0000000000000003 0000000000000004 0000000000000005 0000000000000006"
        ))
    };
    // SGEs without bytes are left out; the ring wraps after the address.
    let (sq, shared) = made(4);
    let list = [sge(0x10, 1), sge(0x20, 0), sge(0x40, 0x30)];
    sq.writer().put_datagram(7, &op, Payload::Sges(&list), SIGNALED);
    assert_eq!(ring(&shared, 3, 64), head("00 0007 0a 123456 06 00 0000 08 00000000"));
    assert_eq!(ring(&shared, 0, 32), hex("00000001 a1b2c3d4 0000000000000010 00000030 a1b2c3d4 0000000000000040"));
    assert_eq!([0, 1, 4, 5].map(Writer::datagram_sge_blocks), [1, 2, 2, 3]);
    // Inline, with immediate data and solicited.
    let with_imm = DatagramOp { imm: Some([1, 2, 3, 4]), ..op };
    for length in [0, 1, 4, 11, 12, 13, 60, 61, 100] {
        let (sq, shared) = made(8);
        let bytes: Vec<u8> = (1..=length).collect();
        sq.writer().put_datagram(0, &with_imm, Payload::Inline(&bytes), SendFlags::SOLICITED);
        let units = if length == 0 { 0 } else { (u32::from(length) + 4).div_ceil(16) };
        assert_eq!(ring(&shared, 0, 64), head(&std::format!("00 0000 0b 123456 {:02x} 00 0000 02 01020304", 4 + units)));
        if length != 0 {
            assert_eq!(ring(&shared, 1, 4), [0x80, 0, 0, length]);
            assert_eq!(ring(&shared, 1, 4 + bytes.len())[4..], bytes);
        }
        assert_eq!(Writer::datagram_inline_blocks(bytes.len()), (4 + units).div_ceil(4));
    }
}

/// By rdma-core's `_mlx5_post_send` and `set_xrc_seg`: the segment follows the control segment.
#[test]
fn a_request_to_a_shared_receive_queue_names_it_before_all_else() {
    const SRQN: Srqn = Srqn::new(0xab_cdef);
    let named = "00abcdef 00000000 0000000000000000";
    let (sq, shared) = made(4);
    let list = [sge(0x10, 1), sge(0x20, 0), sge(0x40, 0x30)];
    sq.writer().put_xrc(0x1_0003, SRQN, &WRITE, Payload::Sges(&list), SIGNALED);
    let head = std::format!("00 0003 08 123456 05 00 0000 08 00000000 {named} 1122334455667788 99aabbcc 00000000");
    assert_eq!(ring(&shared, 3, 64), hex(&std::format!("{head} 00000001 a1b2c3d4 0000000000000010")));
    assert_eq!(ring(&shared, 0, 16), hex("00000030 a1b2c3d4 0000000000000040"));
    assert_eq!([0, 1, 2, 5, 6].map(|count| Writer::xrc_sge_blocks(DataOpcode::Write, count)), [1, 1, 2, 2, 3]);
    assert_eq!([0, 1, 2, 3].map(|count| Writer::xrc_sge_blocks(DataOpcode::Send, count)), [1, 1, 1, 2]);
    for length in [0, 1, 4, 11, 12, 13, 28, 29, 100] {
        let (sq, shared) = made(8);
        let bytes: Vec<u8> = (1..=length).collect();
        let op = DataOp { opcode: DataOpcode::SendWithInv, remote: Remote::NONE, immediate: 0x0102_0304 };
        sq.writer().put_xrc(0, SRQN, &op, Payload::Inline(&bytes), SendFlags::SOLICITED);
        let units = if length == 0 { 0 } else { (u32::from(length) + 4).div_ceil(16) };
        let head = hex(&std::format!("00 0000 01 123456 {:02x} 00 0000 02 01020304 {named}", 2 + units));
        assert_eq!(ring(&shared, 0, 32), head);
        if length != 0 {
            let payload = &ring(&shared, 0, 36 + bytes.len())[32..];
            assert_eq!((&payload[..4], &payload[4..]), (&[0x80, 0, 0, length][..], &bytes[..]));
        }
        assert_eq!(Writer::xrc_inline_blocks(op.opcode, bytes.len()), (2 + units).div_ceil(4));
    }
    let (sq, shared) = made(4);
    let op = AtomicOp { opcode: AtomicOpcode::CompareSwap, remote: REMOTE, swap_add: 2, compare: 1 };
    sq.writer().put_xrc_atomic(0, SRQN, &op, &sge(0x80, 8), SIGNALED);
    let expected = hex(&std::format!(
        "00 0000 11 123456 05 00 0000 08 00000000 {named} 1122334455667788 99aabbcc 00000000 0000000000000002 0000000000000001
         00000008 a1b2c3d4 0000000000000080"
    ));
    assert_eq!((ring(&shared, 0, 80), Writer::XRC_ATOMIC_BLOCKS), (expected, 2));
}

/// A request that is written at a block.
type Put = std::boxed::Box<dyn Fn(&mut Mlx5SendWriter<'_, MockPlatform>, u32)>;

/// Requests of each kind with each number of SGEs and many lengths, of one block to 15.
fn each_request() -> Vec<(std::string::String, Put)> {
    fn boxed(
        name: std::string::String,
        put: impl Fn(&mut Mlx5SendWriter<'_, MockPlatform>, u32) + 'static,
    ) -> (std::string::String, Put) {
        (name, std::boxed::Box::new(put))
    }
    let list = |count: usize| -> Vec<Sge> { (1..=count as u64).map(|n| sge(0x1000 * n, n as u32)).collect() };
    let bytes = |len: usize| -> Vec<u8> { (0..len).map(|n| (n % 251) as u8 + 1).collect() };
    let mut all = Vec::new();
    for op in [SEND, WRITE, DataOp { opcode: DataOpcode::Read, ..WRITE }] {
        for count in (0..=10).chain([30, 58]) {
            let list = list(count);
            all.push(boxed(std::format!("{:?} of {count} SGEs", op.opcode), move |writer, at| {
                writer.put_sges(at, &op, &list, SIGNALED);
            }));
        }
    }
    for len in [0, 1, 3, 4, 5, 11, 12, 13, 19, 20, 27, 28, 29, 43, 44, 45, 60, 61, 76, 100, 124, 200, 500, 972] {
        for op in [SEND, WRITE] {
            let bytes = bytes(len);
            all.push(boxed(std::format!("{:?} of {len} bytes inline", op.opcode), move |writer, at| {
                writer.put_inline(at, &op, &bytes, SIGNALED);
            }));
        }
        let address = EncodedAddress([1, 2, 3, 4, 5, 6]);
        let inline = bytes(len.min(900));
        all.push(boxed(std::format!("a datagram of {len} bytes inline"), move |writer, at| {
            let (remote_qpn, remote_qkey) = (Qpn::new(1), Qkey::new(2));
            let op = DatagramOp { address: &address, remote_qpn, remote_qkey, imm: None };
            writer.put_datagram(at, &op, Payload::Inline(&inline), SIGNALED);
        }));
        let inline = bytes(len.min(900));
        all.push(boxed(std::format!("XRC with {len} bytes inline"), move |writer, at| {
            writer.put_xrc(at, Srqn::new(5), &WRITE, Payload::Inline(&inline), SIGNALED);
        }));
    }
    for count in 0..=9 {
        let sges = list(count);
        all.push(boxed(std::format!("a datagram of {count} SGEs"), move |writer, at| {
            let address = EncodedAddress([1, 2, 3, 4, 5, 6]);
            let op = DatagramOp { address: &address, remote_qpn: Qpn::new(1), remote_qkey: Qkey::new(2), imm: Some([7; 4]) };
            writer.put_datagram(at, &op, Payload::Sges(&sges), SIGNALED);
        }));
        let sges = list(count);
        all.push(boxed(std::format!("XRC with {count} SGEs"), move |writer, at| {
            writer.put_xrc(at, Srqn::new(5), &WRITE, Payload::Sges(&sges), SIGNALED);
        }));
    }
    let atomic = AtomicOp { opcode: AtomicOpcode::CompareSwap, remote: REMOTE, swap_add: 2, compare: 1 };
    all.push(boxed("an atomic".into(), move |writer, at| writer.put_atomic(at, &atomic, &sge(0x80, 8), SIGNALED)));
    all.push(boxed("an atomic of XRC".into(), move |writer, at| {
        writer.put_xrc_atomic(at, Srqn::new(5), &atomic, &sge(0x80, 8), SIGNALED);
    }));
    let (four, eight) = (
        MaskedOp::FetchAdd4 { add: 5, boundary: 1 },
        MaskedOp::CompareSwap8 { compare: 1, compare_mask: 2, swap: 3, swap_mask: 4 },
    );
    for (op, len) in [(four, 4), (eight, 8)] {
        for srqn in [None, Some(Srqn::new(5))] {
            all.push(boxed(std::format!("a masked atomic of {len}"), move |writer, at| {
                writer.put_masked(at, &op, srqn, &REMOTE, &sge(0x80, len), SIGNALED);
            }));
        }
    }
    for length in [0, 0x10] {
        let op = bind(MwType::Type2, length, Access::REMOTE_READ);
        all.push(boxed(std::format!("a bind of {length} bytes"), move |writer, at| writer.put_bind(at, &op, SIGNALED)));
    }
    all.push(boxed("an invalidation".into(), |writer, at| writer.put_local_inv(at, Rkey::new(7), SIGNALED)));
    for count in [1, 3, 4, 5, 8, 9, 51, 52] {
        let sges = list(count);
        all.push(boxed(std::format!("a registration of {count} pieces"), move |writer, at| {
            let (old, new) = (Rkey::new(1), Rkey::new(2));
            let op = RegOp { old, new, base: 0x1000, length: 0x2000, access: Access::REMOTE_READ, sges: &sges };
            writer.put_reg(at, &op, SIGNALED);
        }));
    }
    all
}

/// Each request at each block of rings of each size that it fits, about each wrap of the counter: its blocks are those that it has at the
/// start of a long ring, but for the index in the control segment; the other blocks of the ring are as they were. The doorbell has the
/// control segment and the record the low 16 bits of the end.
#[test]
fn every_request_lies_in_its_blocks_wherever_the_ring_ends() {
    for (name, put) in each_request() {
        let (sq, shared) = made(64);
        put(&mut sq.writer(), 0);
        let units = usize::from(ring(&shared, 0, 8)[7]);
        let mut blocks = 0;
        while blocks * 64 < units * 16 {
            blocks += 1;
        }
        let alone = ring(&shared, 0, 64 * 64);
        assert!(alone[blocks * 64..].iter().all(|byte| *byte == 0xee), "{name}: behind its {blocks} blocks");
        for size in [1, 2, 4, 8, 16_usize].into_iter().filter(|size| *size >= blocks) {
            let (sq, shared) = made(size);
            for wrap in [1_u64 << 16, 1 << 32] {
                for at in (wrap - size as u64 - 1..=wrap + 1).step_by(if cfg!(miri) { 7 } else { 1 }) {
                    shared.borrow_mut().memory[RING..].fill(0xee);
                    shared.borrow_mut().log.clear();
                    let mut writer = sq.writer();
                    put(&mut writer, at as u32);
                    let end = at + blocks as u64;
                    writer.ring(end as u32);
                    let mut expected = std::vec![0xee; size * 64];
                    for block in 0..blocks {
                        let to = (at as usize + block) % size * 64;
                        expected[to..to + 64].copy_from_slice(&alone[block * 64..][..64]);
                    }
                    let first = at as usize % size * 64;
                    expected[first + 1..first + 3].copy_from_slice(&(at as u16).to_be_bytes());
                    assert!(ring(&shared, 0, size * 64) == expected, "{name} at {at:#x} of {size}");
                    assert!(ring(&shared, size, 64) == [0xee; 64], "{name} at {at:#x}: behind the ring of {size}");
                    let record = shared.borrow().memory[RECORD + 4..RECORD + 8].to_vec();
                    assert_eq!(record, ((end % (1 << 16)) as u32).to_be_bytes(), "{name}");
                    let word = Done::Register(4 * 4096 + 0x800, expected[first..first + 8].to_vec());
                    assert_eq!(shared.borrow().log.last(), Some(&word), "{name} at {at:#x}");
                }
            }
        }
    }
}

/// Requests of each length alone and behind others that the device was not notified of, about each wrap, with registers of each size: one
/// that is alone and fits is copied whole, of any other the first word is written.
#[test]
fn what_is_alone_and_fits_goes_through_blue_flame() {
    for half in [0, 64, 128, 256_usize] {
        for len in (0..=300_usize).step_by(if cfg!(miri) { 60 } else { 1 }) {
            let bytes = std::vec![7; len];
            let mut blocks = 0;
            while blocks * 64 < 32 + if len == 0 { 0 } else { 4 + len } {
                blocks += 1;
            }
            for from in [0, 3, 0xffff, 0x1_0000, u64::from(u32::MAX) - 1, u64::from(u32::MAX), 1 << 32] {
                for others in 0..=2 {
                    let (sq, shared) = made_with(16, half, true);
                    sq.notified.set(from as u32);
                    let at = from + others;
                    let mut writer = sq.writer();
                    writer.put_inline(at as u32, &WRITE, &bytes, SIGNALED);
                    shared.borrow_mut().log.clear();
                    writer.ring((at + blocks as u64) as u32);
                    let log = shared.borrow().log.clone();
                    let written: Vec<&Done> = log.iter().filter(|done| matches!(done, Done::Register(..))).collect();
                    let copied = if others == 0 && blocks * 64 <= half { blocks * 8 } else { 1 };
                    let words = (0..copied).map(|n| {
                        let word = (at as usize % 16 * 8 + n) % 128;
                        Done::Register(4 * 4096 + 0x800 + 8 * n, shared.borrow().memory[RING + 8 * word..][..8].to_vec())
                    });
                    assert!(
                        written.into_iter().eq(&words.collect::<Vec<_>>()),
                        "{len} bytes at {at:#x}, {others} before, {half}"
                    );
                    assert_eq!(log.last(), Some(&Done::Flush));
                    assert_eq!(sq.notified.get(), (at + blocks as u64) as u32);
                }
            }
        }
    }
}

/// Each number of units of 16 bytes that a request can have.
#[test]
fn blocks_are_the_least_that_hold_the_units() {
    let mut blocks = 0;
    for units in 0..=1 << 16 {
        while blocks * 4 < units {
            blocks += 1;
        }
        assert_eq!(blocks_of(units), blocks, "{units}");
    }
}

/// Receives of each shape of entry at each place of rings of each small size, about each wrap of the counter and of the words that it stands
/// for, with each number of SGEs, some without bytes: segments of those that have some, and key 0x100 behind them unless they fill it.
#[test]
fn every_receive_lies_in_its_entry() {
    for log_units in 0..=5 {
        let units = 1_u64 << log_units;
        for entries in [1, 2, 4, 8, 16_u64].into_iter().filter(|entries| entries * units >= 4) {
            let (machine, shared) = machine();
            let ring_bytes = (entries * units * 16) as usize;
            let place = open_ring(&Part(shared.clone()), RING, ring_bytes, RECORD).unwrap();
            let mut rq: Mlx5RecvRing<MockPlatform> = Mlx5RecvRing { ring: place, fence: machine.fence, units: units as u32 };
            for wrap in [1_u64 << 16, (1 << 32) / (2 * units), 1 << 32] {
                for at in (wrap - entries - 1..=wrap + 1).step_by(if cfg!(miri) { 7 } else { 1 }) {
                    for count in 0..=units + 1 {
                        for empty in [None, Some(0), Some(count / 2)] {
                            shared.borrow_mut().memory[RING..].fill(0xee);
                            let list: Vec<Sge> =
                                (0..count).map(|n| sge(n, if Some(n) == empty { 0 } else { n as u32 + 1 })).collect();
                            rq.put(at as u32, &list);
                            let mut entry = Vec::new();
                            for sge in list.iter().filter(|sge| sge.length != 0).take(units as usize) {
                                entry.extend(sge.length.to_be_bytes());
                                entry.extend([0xa1, 0xb2, 0xc3, 0xd4]);
                                entry.extend(sge.addr.to_be_bytes());
                            }
                            if entry.len() < units as usize * 16 {
                                entry.extend(hex("00000000 00000100 0000000000000000"));
                            }
                            let mut expected = std::vec![0xee; ring_bytes + 64];
                            expected[(at % entries * units) as usize * 16..][..entry.len()].copy_from_slice(&entry);
                            let text = || std::format!("{count} SGEs at {at:#x} of {entries} with {units}");
                            assert!(shared.borrow().memory[RING..][..ring_bytes + 64] == expected, "{}", text());
                        }
                    }
                    shared.borrow_mut().log.clear();
                    rq.ring(at as u32);
                    let record = shared.borrow().memory[RECORD..RECORD + 4].to_vec();
                    assert_eq!(record, ((at % (1 << 16)) as u32).to_be_bytes());
                }
            }
        }
    }
}

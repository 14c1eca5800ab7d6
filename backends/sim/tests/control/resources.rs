//! Objects that refer to one another, and commands that cost no more than they say.

use std::time::{Duration, Instant};

use bareverbs::platform::DmaMemory;
use bareverbs_sim::audit::Finding;

use crate::host::{BASE, Host, be32, input, plain};

const BAD_PARAM: u8 = 3;
const BAD_RES: u8 = 5;
const BUSY: u8 = 9;
const LIM_ERR: u8 = 8;
const NO_RESOURCES: u8 = 0xf;

fn number(output: &[u8]) -> u32 {
    be32(output, 8)
}

/// CREATE_CQ of 64 entries in a page.
fn cq(uar: u32, eqn: u32) -> Vec<u8> {
    let mut bytes = input(0x400, 272, &[(16 + 12, 6 << 24 | uar), (16 + 20, eqn)]);
    bytes[16 + 56..16 + 64].copy_from_slice(&(BASE + 0x13_0000).to_be_bytes());
    bytes.extend((BASE + 0x12_0000).to_be_bytes());
    bytes
}

/// CREATE_QP: service (0 RC, 3 XRC), page list of one page; 16 blocks of send queue and no receive queue. The context is at
/// byte 24.
fn qp(service: u32, pd: u32, uar: u32, cqn: u32, xrcd: u32) -> Vec<u8> {
    let dwords = [
        (24, service << 16),
        (24 + 4, pd),
        (24 + 8, 4 << 11),
        (24 + 12, uar),
        (24 + 124, cqn),
        (24 + 156, cqn),
        (24 + 152, xrcd),
        (24 + 172, 3 << 24),
    ];
    let mut bytes = input(0x500, 272, &dwords);
    bytes[24 + 160..24 + 168].copy_from_slice(&(BASE + 0x13_0040).to_be_bytes());
    bytes.extend((BASE + 0x14_0000).to_be_bytes());
    bytes
}

#[test]
fn what_is_in_use_is_not_deallocated() {
    let mut host = Host::running(plain());
    let uar = host.uar();
    let eqn = host.eq(uar, 0x10_0000, 4, 0, 0);
    let [pd, xrcd] = [0x800, 0x80e].map(|alloc| number(&host.ok(&input(alloc, 16, &[]), 16)));
    let cqn = number(&host.ok(&cq(uar, eqn), 16));
    let qpn = number(&host.ok(&qp(3, pd, uar, cqn, xrcd), 16));
    // DEALLOC_PD, DEALLOC_XRCD, DESTROY_CQ, DESTROY_EQ.
    let ends = [(0x801, pd), (0x80f, xrcd), (0x401, cqn), (0x302, eqn)];
    for (opcode, number) in ends {
        assert_eq!(host.command(&input(opcode, 16, &[(8, number)]), 16).0, BUSY, "{opcode:#x}");
    }
    host.ok(&input(0x501, 16, &[(8, qpn)]), 16);
    // Linux 6.1 gives a page back before the queues that ring there: it ends with the last of them, and takes no others.
    host.ok(&input(0x803, 16, &[(8, uar)]), 16);
    assert_ne!(host.command(&cq(uar, eqn), 16).0, 0);
    assert_ne!(host.command(&input(0x803, 16, &[(8, uar)]), 16).0, 0, "twice");
    assert_eq!(host.device.counts().uars, 1);
    for (opcode, number) in ends {
        host.ok(&input(opcode, 16, &[(8, number)]), 16);
    }
    assert_eq!(host.device.counts(), Default::default());
}

#[test]
fn a_queue_pair_is_initialized_with_what_there_is() {
    let mut host = Host::running(plain());
    let uar = host.uar();
    let eqn = host.eq(uar, 0x10_0000, 4, 0, 0);
    let [first, second] = [(); 2].map(|()| number(&host.ok(&input(0x800, 16, &[]), 16)));
    let cqn = number(&host.ok(&cq(uar, eqn), 16));
    assert_eq!(host.command(&qp(0, second + 1, uar, cqn, 0), 16).0, BAD_RES);
    assert_eq!(host.command(&qp(0, first, uar + 1, cqn, 0), 16).0, BAD_RES);
    assert_eq!(host.command(&qp(3, first, uar, cqn, 7), 16).0, BAD_RES, "an XRC domain");
    let qpn = number(&host.ok(&qp(0, first, uar, cqn, 0), 16));
    let init = |pd: u32, cqn: u32| input(0x502, 272, &[(8, qpn), (24 + 4, pd), (24 + 124, cqn)]);
    assert_eq!(host.command(&init(second + 1, 0), 16).0, BAD_RES);
    assert_eq!(host.command(&init(second, cqn + 1), 16).0, BAD_RES);
    host.ok(&init(second, cqn), 16);
    // It belongs to the second domain now.
    host.ok(&input(0x801, 16, &[(8, first)]), 16);
    assert_eq!(host.command(&input(0x801, 16, &[(8, second)]), 16).0, BUSY);
    host.ok(&input(0x501, 16, &[(8, qpn)]), 16);
    host.ok(&input(0x801, 16, &[(8, second)]), 16);
}

/// Linux gives a set of counters back before the queue pair that counts in it (`rdma_counter_unbind_qp`). No other queue pair
/// gets the set before that one is gone.
#[test]
fn counters_end_with_the_last_queue_pair_that_counts_in_them() {
    let mut host = Host::running(plain());
    let uar = host.uar();
    let eqn = host.eq(uar, 0x10_0000, 4, 0, 0);
    let pd = number(&host.ok(&input(0x800, 16, &[]), 16));
    let cqn = number(&host.ok(&cq(uar, eqn), 16));
    let [set, other] = [(); 2].map(|()| number(&host.ok(&input(0x771, 16, &[]), 16)));
    let qpn = number(&host.ok(&qp(0, pd, uar, cqn, 0), 16));
    // RST2INIT, with the set in the highest byte of the dword at 12 of the context.
    host.ok(&input(0x502, 272, &[(8, qpn), (24 + 12, set << 24)]), 16);
    for set in [set, other] {
        host.ok(&input(0x772, 16, &[(8, set)]), 16);
        assert_eq!(host.command(&input(0x773, 32, &[(28, set)]), 256).0, BAD_RES, "it is given back");
    }
    let allocate_all = |host: &mut Host| {
        let alloc = |_| host.command(&input(0x771, 16, &[]), 16);
        (0..300).map(alloc).take_while(|answer| answer.0 == 0).map(|answer| number(&answer.1)).collect::<Vec<_>>()
    };
    let sets = allocate_all(&mut host);
    assert!(sets.contains(&other) && !sets.contains(&set), "{set} of {sets:?}");
    host.ok(&input(0x501, 16, &[(8, qpn)]), 16);
    assert_eq!(allocate_all(&mut host), [set]);
}

#[test]
fn domains_are_in_use_by_queue_pairs_and_keys_that_get_them_later() {
    let mut host = Host::running(plain());
    let uar = host.uar();
    let eqn = host.eq(uar, 0x10_0000, 4, 0, 0);
    let pd = number(&host.ok(&input(0x800, 16, &[]), 16));
    let cqn = number(&host.ok(&cq(uar, eqn), 16));
    // The queue pair that changes keys (service 12) may be created before its domain is known; RST2INIT names it.
    let qpn = number(&host.ok(&qp(12, pd, uar, cqn, 0), 16));
    host.ok(&input(0x502, 272, &[(8, qpn), (24 + 4, pd)]), 16);
    assert_eq!(host.command(&input(0x801, 16, &[(8, pd)]), 16).0, BUSY);
    host.ok(&input(0x501, 16, &[(8, qpn)]), 16);
    // A free key, to be changed by requests, with a list of pages: of no domain, of one that exists, of none such.
    let key = |pd: u32| input(0x200, 272, &[(16, 1 << 30 | 1 << 8), (16 + 4, 0xffff_ff00), (16 + 12, pd)]);
    assert_eq!(host.command(&key(pd + 1), 16).0, BAD_RES);
    host.ok(&key(0), 16);
    let index = number(&host.ok(&key(pd), 16));
    assert_eq!(host.command(&input(0x801, 16, &[(8, pd)]), 16).0, BUSY);
    host.ok(&input(0x202, 16, &[(8, index)]), 16);
    host.ok(&input(0x801, 16, &[(8, pd)]), 16);
}

#[test]
fn queues_are_rung_in_their_own_page() {
    let mut host = Host::running(plain());
    let (uar, other) = (host.uar(), host.uar());
    // Completion events of the device itself are events too: mask bit 0.
    let eqn = host.eq(uar, 0x10_0000, 4, 1, 0);
    let pd = number(&host.ok(&input(0x800, 16, &[]), 16));
    let cqn = number(&host.ok(&cq(uar, eqn), 16));
    let qpn = number(&host.ok(&qp(0, pd, uar, cqn, 0), 16));
    let page = |page: u32| u64::from(page) * 4096;
    let ring = |host: &mut Host, uar: u32| {
        host.write_be32(page(uar) + 0x40, eqn << 24);
        host.device.bar_write(page(uar) + 0x20, &u64::from(cqn).to_be_bytes());
        host.device.bar_write(page(uar) + 0x800, &(u64::from(qpn) << 8 | 1).to_be_bytes());
    };
    ring(&mut host, other);
    let foreign = |offset, number| Finding::ForeignDoorbell { uar: other, offset, number };
    assert_eq!(host.device.audit().findings(), [foreign(0x40, eqn), foreign(0x20, cqn), foreign(0x800, qpn)]);
    // QUERY_EQ and QUERY_CQ: neither is armed (st: 0xa, fired).
    assert_eq!(be32(&host.ok(&input(0x303, 16, &[(8, eqn)]), 272), 16) >> 8 & 0xf, 0xa);
    assert_eq!(be32(&host.ok(&input(0x402, 16, &[(8, cqn)]), 272), 16) >> 8 & 0xf, 0xa);
    ring(&mut host, uar);
    assert_eq!(be32(&host.ok(&input(0x303, 16, &[(8, eqn)]), 272), 16) >> 8 & 0xf, 9);
    assert_ne!(be32(&host.ok(&input(0x402, 16, &[(8, cqn)]), 272), 16) >> 8 & 0xf, 0xa);
}

/// Returns a user memory object of one page of `4096 << log_page` bytes.
fn umem(host: &mut Host, log_page: u32) -> u32 {
    // log_page_size is in the dword at 16 of the object, the number of pages at 24 of it.
    let mut bytes = input(0xa08, 48, &[(16 + 16, log_page), (16 + 28, 1)]);
    bytes.extend((1_u64 << 40 | 3).to_be_bytes());
    number(&host.ok(&bytes, 16))
}

#[test]
fn a_key_over_user_memory_costs_the_same_whatever_its_length() {
    let mut host = Host::running(plain());
    let pd = number(&host.ok(&input(0x800, 16, &[]), 16));
    let memory = umem(&mut host, 28);
    // 2^28 pages of 4096 bytes: a list of them would be 2 GB.
    let len = 1_u64 << 40;
    let mut bytes = input(
        0x200,
        272,
        &[
            (12, 1 << 30),
            (16, 1 << 10 | 1 << 8),
            (16 + 4, 0xffff_ff00),
            (16 + 12, pd),
            (16 + 52, 1 << 27),
            (16 + 56, 12),
            (100, memory),
        ],
    );
    bytes[16 + 24..16 + 32].copy_from_slice(&len.to_be_bytes());
    let before = (host.device.memory_used(), Instant::now());
    let key = number(&host.ok(&bytes, 16));
    assert!(host.device.memory_used() - before.0 < 4096);
    assert!(before.1.elapsed() < Duration::from_millis(500), "{:?}", before.1.elapsed());
    // More than there is: no list is begun.
    bytes[16 + 24..16 + 32].copy_from_slice(&(u64::MAX >> 8).to_be_bytes());
    assert_eq!(host.command(&bytes, 16).0, BAD_PARAM);
    assert_eq!(host.command(&input(0xa0a, 16, &[(8, memory)]), 16).0, BUSY);
    host.ok(&input(0x202, 16, &[(8, key)]), 16);
    host.ok(&input(0xa0a, 16, &[(8, memory)]), 16);
}

#[test]
fn pages_come_in_commands_of_a_bounded_length() {
    let mut host = Host::new(plain());
    host.ok(&input(0x104, 16, &[]), 16);
    let mut bytes = input(0x108, 16, &[(4, 1), (12, 5000)]);
    bytes.extend((0..5000).flat_map(|page| (BASE + 0x20_0000 + page * 4096).to_be_bytes()));
    assert_eq!(host.command(&bytes, 16).0, LIM_ERR);
    assert_eq!(host.device.counts().pages_held, 0);
}

#[test]
fn commands_are_executed_one_a_turn() {
    let mut host = Host::running(plain());
    for slot in 0..3 {
        host.stage(slot, &input(0x80d, 16, &[]), 16);
    }
    host.write_be32(0x18, 0b111);
    let done = |host: &Host| [0, 1, 2].map(|slot| host.status_own(slot) & 1 == 0);
    for expected in [[true, false, false], [true, true, false], [true, true, true]] {
        assert!(host.device.next_due().is_some());
        host.run(0);
        assert_eq!(done(&host), expected);
    }
}

#[test]
fn a_device_at_its_limits_says_which() {
    let mut config = plain();
    config.limits.set(bareverbs_sim::Limit::MemoryKeys, 16).unwrap();
    config.limits.set(bareverbs_sim::Limit::ProtectionDomains, 4).unwrap();
    let mut host = Host::running(config);
    let pd = number(&host.ok(&input(0x800, 16, &[]), 16));
    let key = input(0x200, 272, &[(16, 1 << 10), (16 + 4, 0xffff_ff42), (16 + 12, 1 << 31 | pd)]);
    let keys: Vec<u32> = (0..14).map(|_| number(&host.ok(&key, 16))).collect();
    assert_eq!(host.command(&key, 16).0, NO_RESOURCES);
    host.ok(&input(0x202, 16, &[(8, keys[5])]), 16);
    host.ok(&key, 16);
    for _ in 0..2 {
        host.ok(&input(0x800, 16, &[]), 16);
    }
    assert_eq!(host.command(&input(0x800, 16, &[]), 16).0, LIM_ERR);
}

/// Bytes of `mlx5_ifc_create_srq_in_bits`, for a driver that does not set the interface version. The context is at byte 16, the pages at 272.
#[test]
fn a_basic_shared_receive_queue_is_what_its_context_says() {
    let mut host = Host::running(plain());
    let uar = host.uar();
    let eqn = host.eq(uar, 0x10_0000, 4, 0, 0);
    let pd = number(&host.ok(&input(0x800, 16, &[]), 16));
    let cqn = number(&host.ok(&cq(uar, eqn), 16));
    // 2^6 entries of 2^(2 + 4) bytes, pages of 2^(0 + 12) bytes, the limit at byte 28.
    let create = |log_size: u32| {
        let dwords = [(16, log_size << 24), (20, 2 << 24), (24, cqn), (40, pd), (44, 9 << 16)];
        let mut bytes = input(0x700, 272, &dwords);
        bytes[56..64].copy_from_slice(&(BASE + 0x20_0040).to_be_bytes());
        bytes.extend((BASE + 0x21_0000).to_be_bytes());
        bytes
    };
    assert_eq!(host.command(&create(7), 16).0, BAD_PARAM, "128 entries of 64 bytes are two pages");
    let srqn = number(&host.ok(&create(6), 16));
    // Eight receives are posted.
    host.memory.write(0x20_0040, &8_u32.to_be_bytes()).unwrap();
    let context = |host: &mut Host| host.ok(&input(0x702, 16, &[(8, srqn)]), 272)[16..80].to_vec();
    let queried = context(&mut host);
    let [size, stride, queue, domain, limit] = [0, 4, 8, 24, 28].map(|at| be32(&queried, at));
    assert_eq!((size >> 24 & 0xf, stride >> 24 & 7, queue & 0xff_ffff, domain & 0xff_ffff), (6, 2, cqn, pd));
    assert_eq!((limit, be32(&queried, 44)), (9 << 16 | 8, (BASE + 0x20_0040) as u32));
    // ARM_RQ with op_mod 1: the limit alone. One that is not kept is over at once.
    for (armed, left) in [(5, 5), (9, 0)] {
        host.ok(&input(0x703, 16, &[(4, 1), (8, srqn), (12, armed)]), 16);
        host.run(1000);
        assert_eq!(be32(&context(&mut host), 28), left << 16 | 8);
    }
    assert_eq!(host.command(&input(0x703, 16, &[(4, 2), (8, srqn), (12, 5)]), 16).0, BAD_PARAM, "no such queue");
    // It holds its domain, and is named by no other command.
    assert_eq!(host.command(&input(0x801, 16, &[(8, pd)]), 16).0, BUSY);
    for destroy in [0x706, 0x90e] {
        assert_ne!(host.command(&input(destroy, 16, &[(8, srqn)]), 16).0, 0, "{destroy:#x}");
    }
    host.ok(&input(0x701, 16, &[(8, srqn)]), 16);
    assert_ne!(host.command(&input(0x702, 16, &[(8, srqn)]), 272).0, 0, "it is gone");
    host.ok(&input(0x801, 16, &[(8, pd)]), 16);
}

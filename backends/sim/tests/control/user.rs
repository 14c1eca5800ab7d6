//! User contexts and user memory objects, by the bytes that Linux's `devx.c` sends.

use bareverbs_sim::DeviceConfig;

use crate::host::{BASE, Host, be16, be32, input, plain};

const BAD_OP: u8 = 2;
const BAD_PARAM: u8 = 3;
const BAD_RES: u8 = 5;
const BUSY: u8 = 9;
const PAGE: usize = 0x20_0000;

/// Returns a command of a user context.
fn of(uid: u16, mut bytes: Vec<u8>) -> Vec<u8> {
    bytes[2..4].copy_from_slice(&uid.to_be_bytes());
    bytes
}

fn context(host: &mut Host) -> u16 {
    context_with(host, 0)
}

/// CREATE_UCTX with rights (`MLX5_UCTX_CAP_*`).
fn context_with(host: &mut Host, rights: u32) -> u16 {
    be16(&host.ok(&input(0xa04, 64, &[(16, rights)]), 16), 10)
}

/// CREATE_UMEM of `count` pages of 4096 bytes that begins at byte `offset` of the first.
fn umem(uid: u16, offset: u32, count: u64) -> Vec<u8> {
    let mut bytes = of(uid, input(0xa08, 48, &[(16 + 20, offset)]));
    bytes[16 + 24..16 + 32].copy_from_slice(&count.to_be_bytes());
    for page in 0..count {
        // Readable and writable.
        bytes.extend(((BASE + PAGE as u64 + page * 4096) | 3).to_be_bytes());
    }
    bytes
}

/// Returns a doorbell page of the context, and an event queue that the kernel shares as Linux does.
fn doorbells(host: &mut Host, uid: u16) -> (u32, u32) {
    let kernel = host.uar();
    let mut eq = of(0xffff, input(0x301, 272, &[(16 + 12, 4 << 24 | kernel)]));
    eq.extend((BASE + 0x10_0000).to_be_bytes());
    let eqn = number(&host.ok(&eq, 16));
    (number(&host.ok(&of(uid, input(0x802, 16, &[])), 16)), eqn)
}

fn number(output: &[u8]) -> u32 {
    be32(output, 8)
}

/// CREATE_CQ of 16 entries at byte `at` of a user memory object, its doorbell record at byte `record` of another.
fn cq(uid: u16, uar: u32, eqn: u32, buffer: (u32, u64), record: (u32, u64)) -> Vec<u8> {
    let valid = 1 << 25;
    let dwords = [(16, valid), (16 + 4, record.0), (16 + 12, 4 << 24 | uar), (16 + 20, eqn), (88, buffer.0), (92, 1 << 31)];
    let mut bytes = of(uid, input(0x400, 272, &dwords));
    bytes[16 + 56..16 + 64].copy_from_slice(&record.1.to_be_bytes());
    bytes[80..88].copy_from_slice(&buffer.1.to_be_bytes());
    bytes
}

#[test]
fn objects_belong_to_their_context() {
    let mut host = Host::running(plain());
    let (one, two) = (context(&mut host), context(&mut host));
    assert!(one != 0 && two != 0 && one != two);
    let pd = number(&host.ok(&of(one, input(0x800, 16, &[])), 16));
    let dealloc = |uid| of(uid, input(0x801, 16, &[(8, pd)]));
    assert_eq!(host.command(&dealloc(two), 16).0, BAD_RES, "another's");
    assert_eq!(host.command(&dealloc(9), 16).0, BAD_RES, "no such context");
    // A key in another's domain.
    let key = |uid| of(uid, input(0x200, 272, &[(16, 1 << 10 | 2 << 8), (16 + 4, 0xffff_ff00), (16 + 12, pd)]));
    assert_eq!(host.command(&key(two), 16).0, BAD_RES);
    let index = number(&host.ok(&key(one), 16));
    assert_eq!(host.command(&input(0xa06, 16, &[(8, one.into())]), 16).0, BUSY, "objects are left");
    assert_eq!(host.command(&of(two, input(0x202, 16, &[(8, index)])), 16).0, BAD_RES);
    host.ok(&of(one, input(0x202, 16, &[(8, index)])), 16);
    // The kernel may.
    host.ok(&dealloc(0), 16);
    for uid in [one, two] {
        host.ok(&input(0xa06, 16, &[(8, uid.into())]), 16);
    }
    assert_eq!(host.command(&input(0xa06, 16, &[(8, one.into())]), 16).0, BAD_RES);
    assert_eq!(host.device.counts(), bareverbs_sim::DeviceCounts::default());
}

#[test]
fn what_the_kernel_made_is_not_for_programs() {
    let mut host = Host::running(plain());
    let uid = context(&mut host);
    // ALLOC_ and DEALLOC_ of PD, UAR, XRCD, TRANSPORT_DOMAIN and Q_COUNTER.
    for (alloc, dealloc) in [(0x800, 0x801), (0x802, 0x803), (0x80e, 0x80f), (0x816, 0x817), (0x771, 0x772)] {
        let dealloc = input(dealloc, 16, &[(8, number(&host.ok(&input(alloc, 16, &[]), 16)))]);
        assert_eq!(host.command(&of(uid, dealloc.clone()), 16).0, BAD_RES, "{alloc:#x}");
        host.ok(&dealloc, 16);
    }
}

#[test]
fn counters_are_read_and_cleared_by_their_owner_alone() {
    let mut host = Host::running(plain());
    let (one, two) = (context(&mut host), context(&mut host));
    let set = number(&host.ok(&of(one, input(0x771, 16, &[])), 16));
    // QUERY_Q_COUNTER, with and without clearing.
    for clear in [0, 1 << 31] {
        let query = |uid| of(uid, input(0x773, 32, &[(24, clear), (28, set)]));
        assert_eq!(host.command(&query(two), 256).0, BAD_RES);
        for uid in [one, 0] {
            host.ok(&query(uid), 256);
        }
    }
}

#[test]
fn a_queue_in_user_memory() {
    let mut host = Host::running(plain());
    let uid = context(&mut host);
    let (uar, eqn) = doorbells(&mut host, uid);
    let ring = number(&host.ok(&umem(uid, 0x40, 2), 16));
    let records = number(&host.ok(&umem(uid, 0x800, 1), 16));
    for refused in [
        // Past its end; a record across a page; no such object; not at a multiple of an entry.
        cq(uid, uar, eqn, (ring, 0x1f00), (records, 0)),
        cq(uid, uar, eqn, (ring, 0), (records, 0x7fc)),
        cq(uid, uar, eqn, (ring + 9, 0), (records, 0)),
        cq(uid, uar, eqn, (ring, 8), (records, 0)),
    ] {
        assert!([BAD_PARAM, BAD_RES].contains(&host.command(&refused, 16).0));
    }
    let cqn = number(&host.ok(&cq(uid, uar, eqn, (ring, 0x100), (records, 0x10)), 16));
    for memory in [ring, records] {
        assert_eq!(host.command(&of(uid, input(0xa0a, 16, &[(8, memory)])), 16).0, BUSY);
    }
    // The context that the queue got: begins 0x140 bytes into a page, five 64ths; its record at 0x810.
    let queried = host.ok(&input(0x402, 16, &[(8, cqn)]), 272);
    assert_eq!(be32(&queried, 16 + 8) >> 6 & 0x3f, 5);
    assert_eq!(be32(&queried, 16 + 60), (BASE + PAGE as u64 + 0x810) as u32);
    host.ok(&of(uid, input(0x401, 16, &[(8, cqn)])), 16);
    for memory in [ring, records] {
        host.ok(&of(uid, input(0xa0a, 16, &[(8, memory)])), 16);
    }
}

#[test]
fn a_queue_moves_into_user_memory() {
    let mut host = Host::running(plain());
    let uid = context(&mut host);
    let (uar, eqn) = doorbells(&mut host, uid);
    let [first, second, records] = [2, 2, 1].map(|pages| number(&host.ok(&umem(uid, 0, pages), 16)));
    let cqn = number(&host.ok(&cq(uid, uar, eqn, (first, 0), (records, 0)), 16));
    // MODIFY_CQ, resize to 32 entries at byte 0x440 of the second object; the field select names the size alone.
    let resize = |memory: u32| {
        let mut bytes =
            of(uid, input(0x403, 272, &[(4, 1), (8, cqn), (12, 1), (16 + 12, 5 << 24), (88, memory), (92, 1 << 31)]));
        bytes[80..88].copy_from_slice(&0x440_u64.to_be_bytes());
        bytes
    };
    assert_eq!(host.command(&resize(second + 9), 16).0, BAD_RES, "no such object");
    host.ok(&resize(second), 16);
    let queried = host.ok(&input(0x402, 16, &[(8, cqn)]), 272);
    assert_eq!((be32(&queried, 16 + 12) >> 24 & 0x1f, be32(&queried, 16 + 8) >> 6 & 0x3f), (5, 17));
    // The object of the first buffer is free now; that of the record is not.
    host.ok(&of(uid, input(0xa0a, 16, &[(8, first)])), 16);
    for memory in [second, records] {
        assert_eq!(host.command(&of(uid, input(0xa0a, 16, &[(8, memory)])), 16).0, BUSY);
    }
    host.ok(&of(uid, input(0x401, 16, &[(8, cqn)])), 16);
    for memory in [second, records] {
        host.ok(&of(uid, input(0xa0a, 16, &[(8, memory)])), 16);
    }
}

#[test]
fn a_receive_memory_pool_in_user_memory() {
    let mut host = Host::running(plain());
    let uid = context(&mut host);
    let pd = number(&host.ok(&of(uid, input(0x800, 16, &[])), 16));
    let ring = number(&host.ok(&umem(uid, 0x80, 1), 16));
    let records = number(&host.ok(&umem(uid, 0x20, 1), 16));
    // WQEs of 64 bytes; the context is at byte 32 and its work queue at 48 of that.
    let pool = |log_size: u32| {
        let queue = 32 + 48;
        let sizes = 6 << 16 | log_size;
        let dwords = [(queue + 8, pd), (queue + 32, sizes), (queue + 36, 3 << 30), (queue + 40, records), (queue + 44, ring)];
        let mut bytes = of(uid, input(0x90c, 272, &dwords));
        bytes[queue + 16..queue + 24].copy_from_slice(&0x40_u64.to_be_bytes());
        bytes[queue + 48..queue + 56].copy_from_slice(&0x100_u64.to_be_bytes());
        bytes
    };
    assert_eq!(host.command(&pool(6), 16).0, BAD_PARAM, "64 WQEs do not fit behind byte 0x180 of a page");
    let rmpn = number(&host.ok(&pool(5), 16));
    let queried = host.ok(&input(0x90f, 16, &[(8, rmpn)]), 272);
    assert_eq!(be32(&queried, 80 + 20), (BASE + PAGE as u64 + 0x60) as u32, "its record");
    assert_eq!(be32(&queried, 80 + 4) >> 16 & 0x1f, 6, "0x180 bytes into the page");
    for memory in [ring, records] {
        assert_eq!(host.command(&of(uid, input(0xa0a, 16, &[(8, memory)])), 16).0, BUSY);
    }
    host.ok(&of(uid, input(0x90e, 16, &[(8, rmpn)])), 16);
    for memory in [ring, records] {
        host.ok(&of(uid, input(0xa0a, 16, &[(8, memory)])), 16);
    }
}

#[test]
fn general_objects_are_refused_by_their_type() {
    let mut host = Host::running(plain());
    for opcode in 0xa00..=0xa03 {
        assert_eq!(host.command(&input(opcode, 64, &[(4, 0xc)]), 16).0, BAD_PARAM);
    }
    assert_eq!(host.device.take_unsupported(), ["general object of type 0x000c is not supported"]);
}

#[test]
fn a_key_over_user_memory() {
    let mut host = Host::running(plain());
    let uid = context(&mut host);
    let pd = number(&host.ok(&of(uid, input(0x800, 16, &[])), 16));
    let memory = number(&host.ok(&umem(uid, 0x100, 3), 16));
    let key = |start: u32, len: u32| {
        // Page list mode, local read; two octowords of translations; pages of 4096 bytes.
        let dwords = [
            (12, 1 << 30),
            (16, 1 << 10 | 1 << 8),
            (16 + 4, 0xffff_ff00),
            (16 + 12, pd),
            (16 + 20, start),
            (16 + 28, len),
            (16 + 52, 2),
            (16 + 56, 12),
            (100, memory),
        ];
        of(uid, input(0x200, 272, &dwords))
    };
    assert_eq!(host.command(&key(0x5000, 0x1000), 16).0, BAD_PARAM, "begins elsewhere in the page");
    assert_eq!(host.command(&key(0x5100, 0x3000), 16).0, BAD_PARAM, "longer than the memory");
    let index = number(&host.ok(&key(0x5100, 0x2f00), 16));
    host.ok(&of(uid, input(0x202, 16, &[(8, index)])), 16);
    host.ok(&of(uid, input(0xa0a, 16, &[(8, memory)])), 16);
}

#[test]
fn what_is_shared_is_for_all() {
    let mut host = Host::running(plain());
    let (uid, uar) = (context(&mut host), host.uar());
    // Linux makes its event queues and such under the shared context.
    let shared = |bytes| of(0xffff, bytes);
    let pd = number(&host.ok(&shared(input(0x800, 16, &[])), 16));
    let mut eq = shared(input(0x301, 272, &[(16 + 12, 4 << 24 | uar)]));
    eq.extend((BASE + 0x10_0000).to_be_bytes());
    host.ok(&eq, 16);
    let index = number(&host.ok(&of(uid, input(0x200, 272, &[(16, 2 << 8), (16 + 4, 0xffff_ff00), (16 + 12, pd)])), 16));
    host.ok(&of(uid, input(0x202, 16, &[(8, index)])), 16);
    // To use, not to end.
    assert_eq!(host.command(&of(uid, input(0x801, 16, &[(8, pd)])), 16).0, BAD_RES);
    host.ok(&shared(input(0x801, 16, &[(8, pd)])), 16);
}

#[test]
fn contexts_and_device_memory_of_others_are_not_for_programs() {
    let mut host = Host::running(plain());
    let (one, two) = (context(&mut host), context(&mut host));
    let end = |uid: u16, of_whom: u16| of(uid, input(0xa06, 16, &[(8, of_whom.into())]));
    assert_eq!(host.command(&end(one, two), 16).0, BAD_OP);
    // ALLOC_MEMIC of 64 bytes where QUERY_HCA_CAP says that device memory begins.
    let page = host.ok(&input(0x100, 16, &[(4, 0xf << 1 | 1)]), 4112);
    let (high, low) = (be32(&page, 16 + 8), be32(&page, 16 + 12));
    let alloc = |uid| of(uid, input(0x205, 32, &[(16, high), (20, low), (24, 4096), (28, 64)]));
    let free = |uid, output: &[u8]| of(uid, input(0x206, 32, &[(16, be32(output, 8)), (20, be32(output, 12)), (24, 64)]));
    let [kernel, own] = [0, one].map(|uid| host.ok(&alloc(uid), 16));
    assert_eq!(host.command(&free(one, &kernel), 16).0, BAD_RES);
    assert_eq!(host.command(&free(two, &own), 16).0, BAD_RES);
    assert_eq!(host.command(&end(0, one), 16).0, BUSY, "its memory is left");
    host.ok(&free(one, &own), 16);
    host.ok(&free(0, &kernel), 16);
    for uid in [one, two] {
        host.ok(&end(0, uid), 16);
    }
    assert_eq!(host.device.counts(), bareverbs_sim::DeviceCounts::default());
}

#[test]
fn a_umem_with_fewer_pages_than_its_length_is_refused() {
    let mut host = Host::running(plain());
    let uid = context(&mut host);
    for count in [4, u64::MAX] {
        let mut bytes = umem(uid, 0, 3);
        bytes[16 + 24..16 + 32].copy_from_slice(&count.to_be_bytes());
        assert_ne!(host.command(&bytes, 16).0, 0);
    }
    assert_ne!(host.command(&umem(uid, 4096, 1), 16).0, 0, "begins after its first page");
    assert_ne!(host.command(&umem(uid, 0, 0), 16).0, 0, "nothing");
}

#[test]
fn switched_off() {
    let mut host = Host::running(DeviceConfig { devx: false, ..plain() });
    assert_eq!(host.command(&input(0xa04, 64, &[]), 16).0, BAD_OP);
    let most = host.ok(&input(0x100, 16, &[]), 4112);
    assert_eq!(be32(&most, 16 + 140) >> 24 & 0x1f, 0);
}

#[test]
fn keys_of_programs_open_their_own_memory() {
    let mut host = Host::running(plain());
    let uid = context(&mut host);
    let pd = number(&host.ok(&of(uid, input(0x800, 16, &[])), 16));
    let memory = number(&host.ok(&umem(uid, 0, 3), 16));
    // All rights; access modes: physical addresses (with the length that means everything), a page list, device memory.
    for mode in [0, 1 << 8, 1 << 26 | 1 << 8] {
        let key = |valid: u32, length: u32| {
            let dwords = [
                (12, valid << 30),
                (16, 0x1f << 10 | mode),
                (16 + 4, 0xffff_ff00),
                (16 + 12, length << 31 | pd),
                (16 + 56, 12),
                (100, valid * memory),
            ];
            input(0x200, 272, &dwords)
        };
        for valid in [0, 1] {
            let own_list = mode == 1 << 8 && valid == 1;
            let length = u32::from(mode == 0);
            let status = host.command(&of(uid, key(valid, length)), 16).0;
            assert_eq!(status, if own_list { 0 } else { BAD_PARAM }, "{mode:#x} {valid}");
        }
    }
    // The kernel may have one for all memory.
    host.ok(&input(0x200, 272, &[(16, 3 << 10), (16 + 4, 0xffff_ff00), (16 + 12, 1 << 31 | pd)]), 16);
}

/// CREATE_QP without a receive queue; the context is at byte 24.
fn qp(uid: u16, service: u32, pd: u32, uar: u32, cqn: u32) -> Vec<u8> {
    let dwords = [(24, service << 16), (24 + 4, pd), (24 + 8, 4 << 11), (24 + 12, uar), (24 + 124, cqn), (24 + 172, 3 << 24)];
    let mut bytes = of(uid, input(0x500, 272, &dwords));
    bytes[24 + 160..24 + 168].copy_from_slice(&(BASE + 0x13_0040).to_be_bytes());
    bytes.extend((BASE + 0x14_0000).to_be_bytes());
    bytes
}

#[test]
fn queues_of_programs_name_what_is_their_own() {
    let mut host = Host::running(plain());
    let (uid, other) = (context(&mut host), context(&mut host));
    let (uar, eqn) = doorbells(&mut host, uid);
    let kernel_uar = host.uar();
    let kernel_eqn = host.eq(kernel_uar, 0x11_0000, 4, 0, 0);
    let [ring, records] = [2, 1].map(|pages| number(&host.ok(&umem(uid, 0, pages), 16)));
    let place = ((ring, 0), (records, 0));
    assert_eq!(host.command(&cq(uid, kernel_uar, eqn, place.0, place.1), 16).0, BAD_RES, "the kernel's page");
    assert_eq!(host.command(&cq(uid, uar, kernel_eqn, place.0, place.1), 16).0, BAD_RES, "not shared");
    let cqn = number(&host.ok(&cq(uid, uar, eqn, place.0, place.1), 16));
    let [own, foreign, kernel] = [uid, other, 0].map(|uid| number(&host.ok(&of(uid, input(0x800, 16, &[])), 16)));
    for pd in [foreign, kernel, kernel + 9] {
        assert_eq!(host.command(&qp(uid, 0, pd, uar, cqn), 16).0, BAD_RES);
    }
    assert_eq!(host.command(&qp(uid, 0, own, kernel_uar, cqn), 16).0, BAD_RES);
    // Queue pairs 0 and 1 and the one for memory registration (services 7, 8 and 12).
    for service in [7, 8, 12] {
        assert_eq!(host.command(&qp(uid, service, own, uar, cqn), 16).0, BAD_PARAM);
    }
    let qpn = number(&host.ok(&qp(uid, 0, own, uar, cqn), 16));
    // Not later either: RST2INIT.
    let init = |pd: u32, cqn: u32| of(uid, input(0x502, 272, &[(8, qpn), (24 + 4, pd), (24 + 124, cqn)]));
    for pd in [foreign, kernel, kernel + 9] {
        assert_eq!(host.command(&init(pd, cqn), 16).0, BAD_RES);
    }
    let kernel_cq = {
        let mut bytes = input(0x400, 272, &[(16 + 12, 6 << 24 | kernel_uar), (16 + 20, kernel_eqn)]);
        bytes.extend((BASE + 0x12_0000).to_be_bytes());
        number(&host.ok(&bytes, 16))
    };
    assert_eq!(host.command(&init(own, kernel_cq), 16).0, BAD_RES);
    // As Linux does for it: its own, and where its doorbell record is, which stays where it was.
    let mut good = init(own, cqn);
    good[24 + 160..24 + 168].copy_from_slice(&0xdead_0000_u64.to_be_bytes());
    host.ok(&good, 16);
    let queried = host.ok(&input(0x50b, 16, &[(8, qpn)]), 272);
    assert_eq!(queried[24 + 160..24 + 168], (BASE + 0x13_0040).to_be_bytes());
}

/// CREATE_QP of a datagram queue pair of a program, on a protection domain, doorbell page and completion queue of its own.
fn create_datagram_qp(host: &mut Host, uid: u16) -> Vec<u8> {
    let (uar, eqn) = doorbells(host, uid);
    let [ring, records] = [2, 1].map(|pages| number(&host.ok(&umem(uid, 0, pages), 16)));
    let cqn = number(&host.ok(&cq(uid, uar, eqn, (ring, 0), (records, 0)), 16));
    let pd = number(&host.ok(&of(uid, input(0x800, 16, &[])), 16));
    qp(uid, 2, pd, uar, cqn)
}

fn datagram_qp(host: &mut Host, uid: u16) -> u32 {
    let create = create_datagram_qp(host, uid);
    number(&host.ok(&create, 16))
}

/// IBTA 10.2.4; Linux asks a program for `CAP_NET_RAW`, by which it gives its context the right too.
#[test]
fn controlled_queue_keys_are_for_who_may_send_raw() {
    const RAW_TX: u32 = 1;
    const CONTROLLED: u32 = 0x8001_0000;
    let mut host = Host::running(plain());
    assert_eq!(host.command(&input(0xa04, 64, &[(16, RAW_TX | 2)]), 16).0, BAD_PARAM, "more than there is");
    for (rights, status) in [(0, BAD_PARAM), (RAW_TX, 0)] {
        let uid = context_with(&mut host, rights);
        let qpn = datagram_qp(&mut host, uid);
        // RST2INIT, and INIT2INIT with the bit of the queue key and without; the mask is at 16, the key at 0xa8 of the context.
        let modify = |opcode, mask, qkey| of(uid, input(opcode, 272, &[(8, qpn), (16, mask), (24 + 0xa8, qkey)]));
        assert_eq!(host.command(&modify(0x502, 0, CONTROLLED), 16).0, status);
        if status != 0 {
            host.ok(&modify(0x502, 0, CONTROLLED >> 1), 16);
        }
        assert_eq!(host.command(&modify(0x50e, 1 << 5, CONTROLLED), 16).0, status);
        host.ok(&modify(0x50e, 0, CONTROLLED), 16);
        // The kernel may set it for anybody.
        host.ok(&of(0, modify(0x50e, 1 << 5, CONTROLLED)), 16);
    }
}

#[test]
fn a_right_ends_with_its_context() {
    let mut host = Host::running(plain());
    let uid = context_with(&mut host, 1);
    host.ok(&input(0xa06, 16, &[(8, uid.into())]), 16);
    // Until the number is given again.
    while context(&mut host) != uid {}
    let qpn = datagram_qp(&mut host, uid);
    assert_eq!(host.command(&of(uid, input(0x502, 272, &[(8, qpn), (24 + 0xa8, 1 << 31)])), 16).0, BAD_PARAM);
}

/// Linux: "user-space is not allowed to create UD QPs spoofing as QP1". Here nobody is (`set_deth_sqpn` is 0).
#[test]
fn nobody_chooses_the_source_of_datagrams() {
    let mut host = Host::running(plain());
    let uid = context(&mut host);
    let create = create_datagram_qp(&mut host, uid);
    let qpn = number(&host.ok(&create, 16));
    for owner in [uid, 0] {
        // CREATE_QP and RST2INIT; `deth_sqpn` is at 128 of the context.
        let mut create = of(owner, create.clone());
        create[24 + 128..24 + 132].copy_from_slice(&1_u32.to_be_bytes());
        assert_eq!(host.command(&create, 16).0, BAD_PARAM);
        let init = |source| of(owner, input(0x502, 272, &[(8, qpn), (24 + 128, source)]));
        assert_eq!(host.command(&init(1), 16).0, BAD_PARAM);
    }
    host.ok(&of(uid, input(0x502, 272, &[(8, qpn)])), 16);
}

#[test]
fn a_program_creates_no_shared_receive_queue_at_device_addresses() {
    let mut host = Host::running(plain());
    // As Linux does; with version 0 its kernel creates all with this command.
    host.ok(&input(0x10b, 16, &[(8, 1)]), 16);
    let uid = context(&mut host);
    let pd = number(&host.ok(&of(uid, input(0x800, 16, &[])), 16));
    // At an address of the kernel's memory: QUERY_SRQ would return half of the dword there as a count.
    let create = |uid, pd| {
        let mut create = of(uid, input(0x700, 272, &[(16 + 4, 2 << 24), (16 + 24, pd)]));
        create[16 + 40..16 + 48].copy_from_slice(&(BASE + 0x50_0000).to_be_bytes());
        create.extend((BASE + 0x50_0000).to_be_bytes());
        create
    };
    assert_eq!(host.command(&create(uid, pd), 16).0, BAD_OP);
    let kernel_pd = number(&host.ok(&input(0x800, 16, &[]), 16));
    host.ok(&create(0, kernel_pd), 16);
}

/// Linux passes none of these on for a program.
#[test]
fn what_all_of_a_function_share_only_the_kernel_changes() {
    let mut host = Host::running(plain().with_ethernet());
    let uid = context(&mut host);
    let mut address =
        input(0x761, 48, &[(8, 3 << 16), (16 + 8, 0xffff), (16 + 12, 0x0a00_0009), (16 + 20, 0x0200), (16 + 24, 9)]);
    address[16 + 16..16 + 20].fill(0);
    let register = |id: u32, len: usize, dwords: &[(usize, u32)]| {
        let mut bytes = input(0x805, 32, &[&[(8, id)], dwords].concat());
        bytes.resize(len, 0);
        bytes
    };
    for (name, bytes, room) in [
        ("SET_ROCE_ADDRESS", address, 16),
        ("MODIFY_NIC_VPORT_CONTEXT: all frames", input(0x755, 512, &[(12, 1 << 4), (256 + 240, 7 << 29)]), 16),
        ("MTU", register(0x5003, 80, &[(16, 1 << 16), (24, 1000 << 16)]), 80),
        ("link down", register(0x5006, 32, &[(16, 1 << 16 | 2 << 8), (20, 1 << 31)]), 32),
        ("QUERY_VPORT_COUNTER that clears", input(0x770, 32, &[(24, 1 << 31)]), 528),
        ("MANAGE_PAGES", input(0x108, 16, &[(4, 0)]), 16),
        ("CREATE_UCTX", input(0xa04, 64, &[]), 16),
        ("CREATE_EQ", [input(0x301, 272, &[]), BASE.to_be_bytes().to_vec()].concat(), 16),
        ("TEARDOWN_HCA", input(0x103, 16, &[]), 16),
        ("DISABLE_HCA", input(0x105, 16, &[]), 16),
        ("SET_ISSI", input(0x10b, 16, &[]), 16),
    ] {
        assert_eq!(host.command(&of(uid, bytes), room).0, BAD_OP, "{name}");
    }
    // Nothing of it was done, and what Linux passes on works: QUERY_VPORT_COUNTER, QUERY_NIC_VPORT_CONTEXT, QUERY_HCA_CAP.
    for (bytes, room) in [(input(0x770, 32, &[]), 528), (input(0x754, 16, &[]), 272), (input(0x100, 16, &[]), 4112)] {
        host.ok(&of(uid, bytes), room);
    }
    host.ok(&of(uid, input(0x800, 16, &[])), 16);
}

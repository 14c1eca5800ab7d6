//! Queues and flow tables of an Ethernet port: what is created, changed, refused and ended. The offsets are those of
//! `mlx5_ifc.h`.

use bareverbs::platform::DmaMemory;
use bareverbs_sim::DeviceConfig;

use crate::host::*;

const BAD_OP: u8 = 2;
const BAD_PARAM: u8 = 3;
const BAD_RES: u8 = 5;
/// Of what has users too: cards answer so to DEALLOC_PD (0x801) and DESTROY_FLOW_GROUP (0x934), in logs on Linux's lists.
const BAD_RES_STATE: u8 = 9;
const LIM_ERR: u8 = 8;
const BAD_INPUT_LEN: u8 = 0x50;
const BAD_OUTPUT_LEN: u8 = 0x51;

/// Where the tests put their queues, and how far apart.
const MEMORY: usize = 0x20_0000;
const QUEUE: usize = 0x1_0000;

/// What all queues of a test share.
pub(crate) struct Nic {
    pub(crate) host: Host,
    pub(crate) uar: u32,
    eq: u32,
    pub(crate) pd: u32,
    pub(crate) domain: u32,
    /// Queues so far.
    queues: usize,
}

/// A queue: its number, its ring, its doorbell record, its completion queue's ring and number.
#[derive(Clone, Copy)]
pub(crate) struct Queue {
    pub(crate) number: u32,
    pub(crate) ring: usize,
    pub(crate) record: usize,
    pub(crate) entries: usize,
    pub(crate) cqn: u32,
}

pub(crate) fn number(output: &[u8]) -> u32 {
    be32(output, 8) & 0xff_ffff
}

impl Nic {
    pub(crate) fn new() -> Self {
        Self::of(plain().with_ethernet())
    }

    pub(crate) fn of(config: DeviceConfig) -> Self {
        let mut host = Host::running(config);
        let uar = host.uar();
        let eq = host.eq(uar, 0x10_0000, 6, 1, 0);
        host.arm_eq(uar, eq, 0);
        let pd = number(&host.ok(&input(0x800, 16, &[]), 16));
        let domain = number(&host.ok(&input(0x816, 16, &[]), 16));
        Self { host, uar, eq, pd, domain, queues: 0 }
    }

    pub(crate) fn place(&mut self) -> usize {
        self.queues += 1;
        MEMORY + (self.queues - 1) * QUEUE
    }

    /// CREATE_CQ with 16 entries at byte `at`, its record behind them.
    pub(crate) fn cq(&mut self, at: usize) -> u32 {
        let bytes = self.cq_input(at);
        number(&self.host.ok(&bytes, 16))
    }

    pub(crate) fn cq_input(&mut self, at: usize) -> Vec<u8> {
        for entry in 0..16 {
            self.host.memory.write(at + entry * 64 + 63, &[0xf1]).unwrap();
        }
        let record = BASE + (at + 4096) as u64;
        let mut bytes = input(
            0x400,
            272,
            &[(16 + 12, 4 << 24 | self.uar), (16 + 20, self.eq), (16 + 56, (record >> 32) as u32), (16 + 60, record as u32)],
        );
        bytes.extend((BASE + at as u64).to_be_bytes());
        bytes
    }

    /// The input of CREATE_RQ or CREATE_SQ: context at 32 with its work queue at 48, page list at 272.
    pub(crate) fn queue_input(&self, opcode: u16, at: usize, cqn: u32, log_stride: u32, log_size: u32) -> Vec<u8> {
        let record = BASE + (at + 0x3000) as u64;
        let wq = 32 + 48;
        let mut bytes = input(
            opcode,
            272,
            &[
                (32 + 4, 0x77),
                (32 + 8, cqn),
                (wq, 1 << 28),
                (wq + 8, self.pd),
                (wq + 12, self.uar),
                (wq + 16, (record >> 32) as u32),
                (wq + 20, record as u32),
                (wq + 32, log_stride << 16 | log_size),
            ],
        );
        bytes.extend((BASE + (at + 0x2000) as u64).to_be_bytes());
        bytes
    }

    pub(crate) fn queue(&mut self, opcode: u16, log_stride: u32) -> Queue {
        let at = self.place();
        let cqn = self.cq(at);
        let bytes = self.queue_input(opcode, at, cqn, log_stride, 4);
        let number = number(&self.host.ok(&bytes, 16));
        Queue { number, ring: at + 0x2000, record: at + 0x3000, entries: at, cqn }
    }

    pub(crate) fn rq(&mut self) -> Queue {
        self.queue(0x908, 4)
    }

    pub(crate) fn sq(&mut self) -> Queue {
        self.queue(0x904, 6)
    }

    /// MODIFY_RQ or MODIFY_SQ from one state to another; status.
    pub(crate) fn modify(&mut self, opcode: u16, number: u32, from: u32, to: u32) -> u8 {
        self.host.command(&input(opcode, 272, &[(8, from << 28 | number), (32, to << 20)]), 16).0
    }

    /// A command with one number; status.
    pub(crate) fn end(&mut self, opcode: u16, number: u32) -> u8 {
        self.host.command(&input(opcode, 16, &[(8, number)]), 16).0
    }

    pub(crate) fn rqt(&mut self, opcode: u16, rqtn: u32, list: &[u32]) -> (u8, u32) {
        let mut bytes = input(opcode, 272, &[(8, rqtn), (20, 1), (32 + 20, 256), (32 + 24, list.len() as u32)]);
        bytes.extend(list.iter().flat_map(|rqn| rqn.to_be_bytes()));
        let (status, output) = self.host.command(&bytes, 16);
        (status, number(&output))
    }

    /// CREATE_TIR; status and number.
    pub(crate) fn tir(&mut self, direct: bool, target: u32, domain: u32) -> (u8, u32) {
        let dwords = if direct { [(32 + 4, 0), (32 + 28, target)] } else { [(32 + 4, 1 << 28), (32 + 32, target)] };
        let mut bytes = input(0x900, 272, &dwords);
        bytes[32 + 36..32 + 40].copy_from_slice(&domain.to_be_bytes());
        let (status, output) = self.host.command(&bytes, 16);
        (status, number(&output))
    }

    /// CREATE_FLOW_TABLE; status and number.
    pub(crate) fn table(&mut self, level: u32, log_size: u32, miss: Option<u32>) -> (u8, u32) {
        let action = u32::from(miss.is_some());
        let dwords = [(24, action << 24 | level << 16 | log_size), (28, miss.unwrap_or(0))];
        let (status, output) = self.host.command(&input(0x930, 64, &dwords), 16);
        (status, number(&output))
    }

    /// CREATE_FLOW_GROUP for rules from `first` to `last`; status and number.
    pub(crate) fn group(&mut self, table: u32, first: u32, last: u32) -> (u8, u32) {
        let bytes = input(0x933, 1024, &[(20, table), (28, first), (36, last), (60, 1), (64 + 8, u32::MAX)]);
        let (status, output) = self.host.command(&bytes, 16);
        (status, number(&output))
    }

    /// SET_FLOW_TABLE_ENTRY that forwards; destinations by type (1 table, 2 TIR) and number.
    pub(crate) fn entry(&mut self, op_mod: u32, table: u32, group: u32, index: u32, to: &[(u32, u32)]) -> u8 {
        let mut bytes = input(
            0x936,
            832,
            &[(4, op_mod), (20, table), (24, 1 << 2), (32, index), (64 + 4, group), (64 + 12, 4), (64 + 16, to.len() as u32)],
        );
        for (kind, number) in to {
            bytes.extend((kind << 24 | number).to_be_bytes());
            bytes.extend([0; 4]);
        }
        self.host.command(&bytes, 16).0
    }

    /// ALLOC_FLOW_COUNTER; status and number.
    pub(crate) fn counter(&mut self) -> (u8, u32) {
        let (status, output) = self.host.command(&input(0x939, 16, &[]), 16);
        (status, be32(&output, 8))
    }

    /// QUERY_FLOW_COUNTER from a number on: status, and packets and octets of each.
    pub(crate) fn counted(&mut self, first: u32, len: u32, clear: bool) -> (u8, Vec<(u64, u64)>) {
        let query = input(0x93b, 32, &[(24, u32::from(clear) << 31 | len), (28, first)]);
        let (status, output) = self.host.command(&query, 16 + 16 * len.max(1) as usize);
        let number = |at: &[u8]| u64::from(be32(at, 0)) << 32 | u64::from(be32(at, 4));
        (status, output[16..].chunks_exact(16).map(|entry| (number(entry), number(&entry[8..]))).collect())
    }

    pub(crate) fn delete(&mut self, table: u32, index: u32) -> u8 {
        self.host.command(&input(0x938, 64, &[(20, table), (32, index)]), 16).0
    }

    /// DESTROY_FLOW_TABLE, or DESTROY_FLOW_GROUP with a group.
    pub(crate) fn end_of_table(&mut self, opcode: u16, table: u32, group: u32) -> u8 {
        self.host.command(&input(opcode, 64, &[(20, table), (24, group)]), 16).0
    }
}

#[test]
fn an_infiniband_port_has_none_of_them() {
    let mut host = Host::running(plain());
    for (opcode, len) in [
        (0x912, 192),
        (0x900, 272),
        (0x916, 276),
        (0x908, 280),
        (0x904, 280),
        (0x930, 64),
        (0x933, 1024),
        (0x936, 832),
        (0x939, 16),
    ] {
        assert_eq!(host.command(&input(opcode, len, &[]), 16).0, BAD_OP, "{opcode:#x}");
    }
    let general = host.ok(&input(0x100, 16, &[]), 4112)[16..].to_vec();
    assert_eq!((be32(&general, 64) >> 3 & 1, be32(&general, 52) >> 25 & 1), (0, 0));
}

/// What Linux tests before it makes a network interface (`mlx5_eth_supported`, `init_root_tree_recursive`,
/// `mlx5_ft_pool_get_avail_sz`).
#[test]
fn the_capabilities_are_enough_for_a_network_interface() {
    let mut host = Host::running(plain().with_ethernet());
    let page = |host: &mut Host, page: u32| host.ok(&input(0x100, 16, &[(4, page << 1)]), 4112)[16..].to_vec();
    let general = page(&mut host, 0);
    assert_eq!((be32(&general, 64) >> 3 & 1, be32(&general, 52) >> 25 & 1), (1, 1), "eth_net_offloads, nic_flow_table");
    let offloads = be32(&page(&mut host, 1), 0);
    // csum_cap, vlan_cap, self_lb_en_modifiable; max_lso_cap, wqe_inline_mode, rss_ind_tbl_cap; no LRO, no UMR on send queues.
    assert_eq!((offloads >> 31, offloads >> 30 & 1, offloads >> 23 & 1), (1, 1, 1));
    assert_eq!((offloads >> 16 & 0x1f, offloads >> 12 & 3, offloads >> 8 & 0xf), (16, 2, 8));
    assert_eq!((offloads >> 29 & 1, offloads >> 7 & 1), (0, 0));
    let tables = page(&mut host, 7);
    assert_eq!(
        be32(&tables, 64) >> 25 & 0x7f,
        0b101_1111,
        "ft_support, flow_counter, and the four by which the driver names the root"
    );
    assert_eq!((be32(&tables, 68) >> 24 & 0x3f, be32(&tables, 68) & 0xff), (16, 96), "log_max_ft_size, max_ft_level");
    assert!(tables[128..].iter().all(|byte| *byte == 0), "of what is sent, and of RDMA, there are none");
}

#[test]
fn queues_go_through_their_states() {
    let mut nic = Nic::new();
    let (rq, sq) = (nic.rq(), nic.sq());
    assert_ne!(nic.rq().number, rq.number);
    assert_ne!(nic.sq().number, sq.number);
    for (modify, query, queue) in [(0x909, 0x90b, rq), (0x905, 0x907, sq)] {
        let state = |nic: &mut Nic| be32(&nic.host.ok(&input(query, 16, &[(8, queue.number)]), 272), 32) >> 20 & 0xf;
        assert_eq!(state(&mut nic), 0);
        assert_eq!(nic.modify(modify, queue.number, 1, 1), BAD_RES_STATE, "it is in reset");
        assert_eq!(nic.modify(modify, queue.number, 0, 2), BAD_PARAM, "no such state");
        assert_eq!(nic.modify(modify, queue.number, 0, 1), 0);
        assert_eq!(nic.modify(modify, queue.number, 1, 3), 0);
        assert_eq!(state(&mut nic), 3);
        assert_eq!(nic.modify(modify, queue.number, 3, 1), BAD_PARAM, "only through reset");
        assert_eq!((nic.modify(modify, queue.number, 3, 0), nic.modify(modify, queue.number, 0, 1)), (0, 0));
        assert_eq!(state(&mut nic), 1);
        // The context as it was made.
        let context = nic.host.ok(&input(query, 16, &[(8, queue.number)]), 272)[32..].to_vec();
        assert_eq!((be32(&context, 4), be32(&context, 8), be32(&context, 48 + 32) & 0x1f), (0x77, queue.cqn, 4));
        assert_eq!(nic.modify(modify, 0x12_3456, 0, 1), BAD_RES);
    }
    // Stripping of VLAN tags and the set of counters may change; check sequences are not there.
    let counters = number(&nic.host.ok(&input(0x771, 16, &[]), 16)) & 0xff;
    let change = |nic: &mut Nic, select: u32, set: u32| {
        let bytes = input(0x909, 272, &[(8, 1 << 28 | rq.number), (20, select), (32, 1 << 28 | 1 << 20), (32 + 12, set << 24)]);
        nic.host.command(&bytes, 16).0
    };
    assert_eq!(change(&mut nic, 1 << 1 | 1 << 3, counters), 0);
    let context = nic.host.ok(&input(0x90b, 16, &[(8, rq.number)]), 272)[32..].to_vec();
    assert_eq!((be32(&context, 0) >> 28 & 1, be32(&context, 12) >> 24), (1, counters));
    assert_eq!((change(&mut nic, 1 << 3, 200), change(&mut nic, 1 << 2, 0)), (BAD_RES, BAD_PARAM));
}

#[test]
fn what_is_no_queue_is_refused() {
    let mut nic = Nic::new();
    let at = nic.place();
    let cqn = nic.cq(at);
    for (opcode, log_stride) in [(0x908, 4), (0x904, 6)] {
        let good = nic.queue_input(opcode, at, cqn, log_stride, 4);
        let with = |at: usize, value: u32| {
            let mut bytes = good.clone();
            bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
            bytes
        };
        for (what, bytes, status) in [
            ("no such completion queue", with(32 + 8, 0x1234), BAD_RES),
            ("no such domain", with(80 + 8, 0x1234), BAD_RES),
            ("a striding ring", with(80, 3 << 28), BAD_PARAM),
            ("a linked list", with(80, 0), BAD_PARAM),
            ("WQEs of 4096 bytes", with(80 + 32, 12 << 16 | 4), BAD_PARAM),
            ("too many of them", with(80 + 32, log_stride << 16 | 16), BAD_PARAM),
            ("fewer pages than that", with(80 + 32, log_stride << 16 | 15), BAD_PARAM),
            ("a hairpin", with(32, 1 << 17), BAD_PARAM),
        ] {
            assert_eq!(nic.host.command(&bytes, 16).0, status, "{opcode:#x}: {what}");
        }
        nic.host.ok(&good, 16);
    }
    // Linux's queue that drops everything has no domain.
    let mut bytes = nic.queue_input(0x908, at, cqn, 4, 0);
    bytes[80 + 8..80 + 12].fill(0);
    nic.host.ok(&bytes, 16);
}

#[test]
fn objects_are_busy_while_something_leads_to_them() {
    let mut nic = Nic::new();
    let (a, b, c) = (nic.rq().number, nic.rq().number, nic.rq().number);
    let (status, rqt) = nic.rqt(0x916, 0, &[a, a, b]);
    assert_eq!(status, 0);
    assert_eq!((nic.rqt(0x916, 0, &[]).0, nic.rqt(0x916, 0, &[a, 0x999]).0), (BAD_PARAM, BAD_RES));
    let (status, direct) = nic.tir(true, c, nic.domain);
    let (other, spread) = nic.tir(false, rqt, nic.domain);
    assert_eq!((status, other), (0, 0));
    assert_eq!(
        (nic.tir(true, 0x999, nic.domain).0, nic.tir(false, rqt + 1, nic.domain).0, nic.tir(true, c, 99).0),
        (BAD_RES, BAD_RES, BAD_RES)
    );
    for rqn in [a, b, c] {
        assert_eq!(nic.end(0x90a, rqn), BAD_RES_STATE);
    }
    assert_eq!((nic.end(0x918, rqt), nic.end(0x817, nic.domain)), (BAD_RES_STATE, BAD_RES_STATE));
    // Another list: a is free, b stays busy. One with a queue that is not there changes nothing.
    assert_eq!(nic.rqt(0x917, rqt, &[b, c]).0, 0);
    assert_eq!(nic.rqt(0x917, rqt, &[a, 0x999]).0, BAD_RES);
    assert_eq!(
        (nic.end(0x90a, a), nic.end(0x90a, b), nic.end(0x902, direct), nic.end(0x90a, c)),
        (0, BAD_RES_STATE, 0, BAD_RES_STATE)
    );
    assert_eq!((nic.end(0x902, spread), nic.end(0x918, rqt), nic.end(0x90a, b), nic.end(0x90a, c)), (0, 0, 0, 0));
    assert_eq!((nic.end(0x90a, c), nic.end(0x918, rqt), nic.end(0x902, spread)), (BAD_RES, BAD_RES, BAD_RES));
    // A TIS, and a send queue that uses it.
    let tis = input(0x912, 192, &[(32, 5 << 16), (32 + 36, nic.domain)]);
    let tisn = number(&nic.host.ok(&tis, 16));
    let query = input(0x915, 16, &[(8, tisn)]);
    let output = nic.host.ok(&query, 176);
    assert_eq!((be32(&output, 16), be32(&output, 16 + 36)), (5 << 16, nic.domain));
    let at = nic.place();
    let cqn = nic.cq(at);
    let mut bytes = nic.queue_input(0x904, at, cqn, 6, 4);
    bytes[32 + 32..32 + 36].copy_from_slice(&(1_u32 << 16).to_be_bytes());
    bytes[32 + 44..32 + 48].copy_from_slice(&tisn.to_be_bytes());
    let sqn = number(&nic.host.ok(&bytes, 16));
    assert_eq!((nic.end(0x914, tisn), nic.end(0x401, cqn)), (BAD_RES_STATE, BAD_RES_STATE));
    assert_eq!((nic.end(0x906, sqn), nic.end(0x914, tisn), nic.end(0x401, cqn), nic.end(0x817, nic.domain)), (0, 0, 0, 0));
    assert_eq!(nic.host.command(&query, 176).0, BAD_RES);
}

/// Whether the ring has an entry of this kind at this place: opcode, number of the WQE, queue, user index.
fn entry(nic: &Nic, queue: Queue, index: usize) -> (u8, u16, u32, u32) {
    let bytes = nic.host.bytes(queue.entries + index * 64, 64);
    (bytes[63] >> 4, be16(&bytes, 60), be32(&bytes, 56) & 0xff_ffff, be32(&bytes, 32) & 0xff_ffff)
}

/// Writes a NOP at this block; `ce` 2: it completes.
fn write_nop(nic: &mut Nic, queue: Queue, index: u16, ce: u32) -> [u8; 8] {
    let mut wqe = [0; 64];
    wqe[..4].copy_from_slice(&(u32::from(index) << 8).to_be_bytes());
    wqe[4..8].copy_from_slice(&(queue.number << 8 | 1).to_be_bytes());
    wqe[11] = (ce << 2) as u8;
    nic.host.memory.write(queue.ring + usize::from(index % 16) * 64, &wqe).unwrap();
    nic.host.memory.write(queue.record + 4, &u32::from(index + 1).to_be_bytes()).unwrap();
    wqe[..8].try_into().unwrap()
}

fn ring(nic: &mut Nic, doorbell: [u8; 8]) {
    nic.host.device.bar_write(u64::from(nic.uar) * 4096 + 0x800, &doorbell);
    nic.host.run(1000);
}

/// `mlx5e_activate_channels` waits for the interrupt that a NOP causes.
#[test]
fn a_nop_completes_on_each_of_several_queues() {
    let mut nic = Nic::new();
    let queues = [nic.sq(), nic.sq(), nic.sq()];
    for queue in queues {
        let doorbell = write_nop(&mut nic, queue, 0, 2);
        ring(&mut nic, doorbell);
        assert_eq!(entry(&nic, queue, 0).0, 0xf, "in reset nothing is taken");
        assert_eq!(nic.modify(0x905, queue.number, 0, 1), 0);
    }
    for (round, queue) in (0..40_u16).flat_map(|round| queues.map(|queue| (round, queue))) {
        // Only every second one completes.
        let doorbell = write_nop(&mut nic, queue, round, if round % 2 == 1 { 2 } else { 0 });
        ring(&mut nic, doorbell);
        if round % 2 == 1 {
            let index = usize::from(round / 2) % 16;
            assert_eq!(entry(&nic, queue, index), (0, round, queue.number, 0x77));
            // The host has seen it.
            let seen = u32::from(round / 2 + 1);
            nic.host.memory.write(queue.entries + 4096, &seen.to_be_bytes()).unwrap();
        }
    }
    // One that is no frame: an error, and what follows is flushed until the queue was in reset.
    let queue = queues[1];
    let mut doorbell = write_nop(&mut nic, queue, 40, 2);
    doorbell[3] = 0x77;
    nic.host.memory.write(queue.ring + 8 * 64, &doorbell).unwrap();
    ring(&mut nic, doorbell);
    let doorbell = write_nop(&mut nic, queue, 41, 2);
    ring(&mut nic, doorbell);
    let errors: Vec<_> = [20, 21]
        .map(|at| nic.host.bytes(queue.entries + (at % 16) * 64, 64))
        .into_iter()
        .map(|entry| (entry[63] >> 4, entry[55]))
        .collect();
    assert_eq!(errors, [(0xd, 2), (0xd, 5)]);
    let state = be32(&nic.host.ok(&input(0x907, 16, &[(8, queue.number)]), 272), 32) >> 20 & 0xf;
    assert_eq!(state, 3);
    assert_eq!((nic.modify(0x905, queue.number, 3, 0), nic.modify(0x905, queue.number, 0, 1)), (0, 0));
    nic.host.memory.write(queue.entries + 4096, &22_u32.to_be_bytes()).unwrap();
    let doorbell = write_nop(&mut nic, queue, 0, 2);
    ring(&mut nic, doorbell);
    assert_eq!(entry(&nic, queue, 22 % 16), (0, 0, queue.number, 0x77), "from 0 on");
    assert!(nic.host.device.audit().findings().is_empty());
}

#[test]
fn tables_have_groups_and_groups_have_rules() {
    let mut nic = Nic::new();
    let rqn = nic.rq().number;
    let tirn = nic.tir(true, rqn, nic.domain).1;
    let last = nic.table(60, 2, None);
    let (status, first) = nic.table(3, 4, Some(last.1));
    assert_eq!((last.0, status), (0, 0));
    assert_eq!(
        (nic.table(97, 4, None).0, nic.table(3, 17, None).0, nic.table(3, 4, Some(0x999)).0),
        (BAD_PARAM, BAD_PARAM, BAD_RES)
    );
    let groups = [nic.group(first, 0, 7), nic.group(first, 8, 8), nic.group(first, 9, 15)];
    assert!(groups.iter().all(|(status, _)| *status == 0));
    assert_eq!(
        (nic.group(first, 15, 16).0, nic.group(first, 4, 4).0, nic.group(first, 9, 8).0, nic.group(0x999, 0, 0).0),
        (BAD_PARAM, BAD_PARAM, BAD_PARAM, BAD_RES)
    );
    let [(_, low), (_, middle), (_, high)] = groups;
    assert_eq!(nic.entry(0, first, low, 0, &[(2, tirn)]), 0);
    assert_eq!(nic.entry(0, first, middle, 8, &[(2, tirn), (1, last.1)]), 0, "to both");
    assert_eq!(nic.entry(0, first, low, 0, &[(2, tirn)]), BAD_PARAM, "there is one");
    assert_eq!(nic.entry(0, first, low, 8, &[(2, tirn)]), BAD_PARAM, "of another group");
    assert_eq!(nic.entry(1, first, high, 9, &[(2, tirn)]), BAD_PARAM, "there is none");
    assert_eq!((nic.entry(0, first, high, 9, &[(2, 0x999)]), nic.entry(0, first, high, 9, &[(0, 1)])), (BAD_RES, BAD_PARAM));
    // What is in use stays.
    assert_eq!(
        (nic.end(0x902, tirn), nic.end_of_table(0x931, last.1, 0), nic.end_of_table(0x931, first, 0)),
        (BAD_RES_STATE, BAD_RES_STATE, BAD_RES_STATE)
    );
    assert_eq!((nic.end_of_table(0x934, first, low), nic.end_of_table(0x934, first, 0x99)), (BAD_RES_STATE, BAD_RES));
    // MODIFY of the destinations; the miss table goes away; the root comes and goes with its table.
    assert_eq!(nic.entry(1, first, middle, 8, &[(2, tirn)]), 0);
    assert_eq!(nic.host.command(&input(0x93c, 64, &[(12, 1), (20, first)]), 16).0, 0);
    assert_eq!(nic.host.command(&input(0x92f, 64, &[(20, first)]), 16).0, 0);
    assert_eq!(nic.host.command(&input(0x92f, 64, &[(20, 0x999)]), 16).0, BAD_RES);
    assert_eq!(nic.end_of_table(0x931, last.1, 0), 0);
    assert_eq!((nic.delete(first, 8), nic.delete(first, 8), nic.delete(first, 0)), (0, BAD_PARAM, 0));
    assert_eq!(nic.end(0x902, tirn), 0);
    assert_eq!([low, middle, high].map(|group| nic.end_of_table(0x934, first, group)), [0; 3]);
    assert_eq!(nic.end_of_table(0x931, first, 0), 0);
}

#[test]
fn what_cannot_be_matched_or_done_is_refused() {
    let mut nic = Nic::new();
    let (_, table) = nic.table(1, 4, None);
    // Tables of other kinds: sent frames, RDMA; of another function.
    for kind in [1, 4, 7, 8] {
        assert_eq!(nic.host.command(&input(0x930, 64, &[(16, kind << 24)]), 16).0, BAD_PARAM, "type {kind}");
    }
    assert_eq!(nic.host.command(&input(0x930, 64, &[(8, 1 << 31)]), 16).0, BAD_PARAM);
    // Tables that software owns; inner headers, and a mask behind what can be matched.
    assert_eq!(nic.host.command(&input(0x930, 64, &[(24, 1 << 29)]), 16).0, BAD_PARAM);
    assert_eq!(nic.host.command(&input(0x933, 1024, &[(20, table), (60, 4)]), 16).0, BAD_PARAM);
    assert_eq!(nic.host.command(&input(0x933, 1024, &[(20, table), (60, 1), (64 + 128, 1)]), 16).0, BAD_PARAM);
    let (_, group) = nic.group(table, 0, 3);
    // An action that is not offered; more counters and destinations than the command has, and more than a rule may have.
    let set = |nic: &mut Nic, dwords: &[(usize, u32)]| {
        let mut bytes = input(0x936, 832, &[(20, table), (32, 1), (64 + 4, group)]);
        for (at, value) in dwords {
            bytes[*at..at + 4].copy_from_slice(&value.to_be_bytes());
        }
        nic.host.command(&bytes, 16).0
    };
    assert_eq!(set(&mut nic, &[(76, 1 << 6)]), BAD_PARAM);
    assert_eq!((set(&mut nic, &[(76, 8), (84, 1)]), set(&mut nic, &[(76, 8), (84, 5)])), (BAD_INPUT_LEN, BAD_PARAM));
    assert_eq!((set(&mut nic, &[(76, 4), (80, 1)]), set(&mut nic, &[(76, 4), (80, 257)])), (BAD_INPUT_LEN, BAD_PARAM));
    assert_eq!(set(&mut nic, &[(76, 2)]), 0, "a rule that drops");
}

#[test]
fn a_counter_is_busy_while_a_rule_has_it() {
    let mut nic = Nic::new();
    let (_, table) = nic.table(1, 4, None);
    let (_, group) = nic.group(table, 0, 3);
    let [(status, a), (_, b), (_, c)] = [(); 3].map(|()| nic.counter());
    assert_eq!((status, b, c), (0, a + 1, a + 2), "one after the other, as Linux asks for four at a time");
    // Op_mod 0 with the action to count, 1 with other counters alone.
    let set = |nic: &mut Nic, op_mod: u32, counters: &[u32]| {
        let enable = if op_mod == 1 { 1 << 3 } else { 0 };
        let dwords =
            [(4, op_mod), (20, table), (24, enable), (64 + 4, group), (64 + 12, 8 | 2), (64 + 20, counters.len() as u32)];
        let mut bytes = input(0x936, 832, &dwords);
        for number in counters {
            bytes.extend(number.to_be_bytes());
            bytes.extend([0; 4]);
        }
        nic.host.command(&bytes, 16).0
    };
    assert_eq!(set(&mut nic, 0, &[a, 0x999]), BAD_RES);
    assert_eq!(set(&mut nic, 0, &[a, b]), 0);
    assert_eq!([a, b, c].map(|counter| nic.end(0x93a, counter)), [BAD_RES_STATE, BAD_RES_STATE, 0]);
    assert_eq!(set(&mut nic, 1, &[b]), 0);
    assert_eq!([a, b].map(|counter| nic.end(0x93a, counter)), [0, BAD_RES_STATE]);
    assert_eq!((nic.delete(table, 0), nic.end(0x93a, b), nic.end(0x93a, b)), (0, 0, BAD_RES));
    assert_eq!(nic.counted(b, 0, false).0, BAD_RES);
    // Several at once come by number, those that are not there as nothing; more than 256 do not.
    let (_, d) = nic.counter();
    assert_eq!((nic.counted(d, 0, false), nic.counted(d, 2, false)), ((0, vec![(0, 0)]), (0, vec![(0, 0); 2])));
    assert_eq!(nic.counted(d, 257, false).0, BAD_PARAM);
    let no_room = nic.host.command(&input(0x93b, 32, &[(24, 2), (28, d)]), 16 + 16).0;
    assert_eq!(no_room, BAD_OUTPUT_LEN);
    // Several by one number, as newer devices offer them.
    assert_eq!(nic.host.command(&input(0x939, 16, &[(12, 1)]), 16).0, BAD_PARAM);
}

/// A program of DEVX may not lead frames to the queues of another, nor change the kernel's tables.
#[test]
fn a_user_context_leads_to_its_own_alone() {
    let mut nic = Nic::new();
    let kernel = nic.rq().number;
    let tirn = nic.tir(true, kernel, nic.domain).1;
    let (_, table) = nic.table(1, 4, None);
    let uid = nic.host.ok(&input(0xa04, 64, &[]), 16);
    let uid = u32::from(be16(&uid, 10));
    let mut rqt = input(0x916, 272, &[(32 + 20, 1), (32 + 24, 1)]);
    rqt.extend(kernel.to_be_bytes());
    let of_user = |bytes: &[u8]| {
        let mut bytes = bytes.to_vec();
        bytes[2..4].copy_from_slice(&(uid as u16).to_be_bytes());
        bytes
    };
    assert_eq!(nic.host.command(&of_user(&rqt), 16).0, BAD_RES);
    let own = input(0x930, 64, &[(24, 2 << 16 | 2)]);
    let own = number(&nic.host.ok(&of_user(&own), 16));
    let miss = input(0x930, 64, &[(24, 1 << 24 | 2 << 16 | 2), (28, table)]);
    assert_eq!(nic.host.command(&of_user(&miss), 16).0, BAD_RES);
    let group = number(&nic.host.ok(&of_user(&input(0x933, 1024, &[(20, own)])), 16));
    let mut rule = input(0x936, 832, &[(20, own), (64 + 4, group), (64 + 12, 4), (64 + 16, 1)]);
    rule.extend((2 << 24 | tirn).to_be_bytes());
    rule.extend([0; 4]);
    assert_eq!(nic.host.command(&of_user(&rule), 16).0, BAD_RES);
    assert_eq!(nic.host.command(&of_user(&input(0x933, 1024, &[(20, table)])), 16).0, BAD_RES);
    assert_eq!(nic.host.command(&of_user(&input(0x92f, 64, &[(20, own)])), 16).0, BAD_OP);
    // Nor may it count, read or clear what the kernel counts.
    let (_, counter) = nic.counter();
    let mut rule = input(0x936, 832, &[(20, own), (64 + 4, group), (64 + 12, 8 | 2), (64 + 20, 1)]);
    rule.extend(counter.to_be_bytes());
    rule.extend([0; 4]);
    assert_eq!(nic.host.command(&of_user(&rule), 16).0, BAD_RES);
    assert_eq!(nic.host.command(&of_user(&input(0x93b, 32, &[(24, 1 << 31), (28, counter)])), 32).0, BAD_RES);
    assert_eq!(nic.host.command(&of_user(&input(0x93a, 16, &[(8, counter)])), 16).0, BAD_RES);
}

/// Makes a user context with these rights, with what its queues need: what makes a command the context's, the place of a queue, and the
/// number of a completion queue there. `nic` has the context's event queue, UAR and protection domain from here on.
fn program(nic: &mut Nic, rights: u32) -> (impl Fn(Vec<u8>) -> Vec<u8> + use<>, usize, u32) {
    let uid = be16(&nic.host.ok(&input(0xa04, 64, &[(16, rights)]), 16), 10);
    let of_user = move |mut bytes: Vec<u8>| {
        bytes[2..4].copy_from_slice(&uid.to_be_bytes());
        bytes
    };
    // An event queue that the kernel shares with all contexts.
    let mut eq = input(0x301, 272, &[(16 + 12, 6 << 24 | nic.uar), (16 + 20, 0)]);
    eq[2..4].fill(0xff);
    eq.extend((BASE + 0x11_0000).to_be_bytes());
    nic.eq = u32::from(nic.host.ok(&eq, 16)[11]);
    nic.uar = number(&nic.host.ok(&of_user(input(0x802, 16, &[])), 16));
    nic.pd = number(&nic.host.ok(&of_user(input(0x800, 16, &[])), 16));
    let at = nic.place();
    let cq = of_user(nic.cq_input(at));
    let cqn = number(&nic.host.ok(&cq, 16));
    (of_user, at, cqn)
}

#[test]
fn a_program_sends_frames_only_with_the_right_to() {
    for (rights, status) in [(0, BAD_OP), (1, 0)] {
        let mut nic = Nic::new();
        let (of_user, at, cqn) = program(&mut nic, rights);
        let sq = of_user(nic.queue_input(0x904, at, cqn, 6, 4));
        assert_eq!(nic.host.command(&sq, 16).0, status, "rights {rights}");
        // To receive, no more is needed than a queue: rules lead nothing to it.
        let rq = of_user(nic.queue_input(0x908, at, cqn, 4, 4));
        nic.host.ok(&rq, 16);
    }
}

/// Who leads to whom ends one day: Linux gives the tables of a program that has ended back one by one, and then its user context.
#[test]
fn what_no_rule_matches_goes_to_greater_levels_alone() {
    let mut nic = Nic::new();
    let uid = be16(&nic.host.ok(&input(0xa04, 64, &[]), 16), 10);
    let of_user = |mut bytes: Vec<u8>| {
        bytes[2..4].copy_from_slice(&uid.to_be_bytes());
        bytes
    };
    let create =
        |level: u32, miss: u32| of_user(input(0x930, 64, &[(24, u32::from(miss != 0) << 24 | level << 16 | 2), (28, miss)]));
    let [low, middle, high] = [2, 3, 4].map(|level| number(&nic.host.ok(&create(level, 0), 16)));
    let miss = |from: u32, to: u32| of_user(input(0x93c, 64, &[(12, 1), (20, from), (24, 1 << 24), (28, to)]));
    for (from, to, status) in [
        (low, middle, 0),
        (middle, high, 0),
        (low, high, 0),
        (middle, low, BAD_PARAM),
        (high, low, BAD_PARAM),
        (middle, middle, BAD_PARAM),
        (middle, 0x999, BAD_RES),
    ] {
        assert_eq!(nic.host.command(&miss(from, to), 16).0, status, "{from} to {to}");
    }
    for level in [3, 4] {
        assert_eq!(nic.host.command(&create(level, middle), 16).0, BAD_PARAM, "at level {level}");
    }
    let first = number(&nic.host.ok(&create(0, low), 16));
    for table in [first, low, middle, high] {
        nic.host.ok(&of_user(input(0x931, 64, &[(20, table)])), 16);
    }
    nic.host.ok(&input(0xa06, 16, &[(8, uid.into())]), 16);
}

#[test]
fn a_table_has_as_many_groups_as_frames_have_time_for() {
    let mut nic = Nic::new();
    let (_, table) = nic.table(1, 16, None);
    let groups: Vec<u32> = (0..256)
        .map(|index| nic.group(table, index, index))
        .map(|(status, group)| {
            assert_eq!(status, 0);
            group
        })
        .collect();
    assert_eq!(nic.group(table, 1000, 1000).0, LIM_ERR);
    assert_eq!(nic.end_of_table(0x934, table, groups[7]), 0);
    assert_eq!(nic.group(table, 1000, 1000).0, 0);
}

/// As MODIFY_RQ does.
#[test]
fn a_queue_of_a_program_counts_in_no_set_of_the_kernel() {
    let mut nic = Nic::new();
    let kernels = number(&nic.host.ok(&input(0x771, 16, &[]), 16)) & 0xff;
    let (of_user, at, cqn) = program(&mut nic, 0);
    let own = number(&nic.host.ok(&of_user(input(0x771, 16, &[])), 16)) & 0xff;
    for (set, status) in [(kernels, BAD_RES), (own, 0), (0, 0)] {
        let mut rq = of_user(nic.queue_input(0x908, at, cqn, 4, 4));
        rq[32 + 12] = set as u8;
        assert_eq!(nic.host.command(&rq, 16).0, status, "{set}");
    }
}

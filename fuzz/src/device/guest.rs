//! A machine with a simulated device, as a driver drives it that knows registers, memory and commands only.

use bareverbs::platform::{DmaMemory as _, Instant};
use bareverbs_mlx5_spec::{CMD_ENTRY, CmdQueueEntry, PCI_CMD_XPORT, ViewMut};
use bareverbs_sim::in_process::SimMemory;
use bareverbs_sim::{Device, DeviceConfig, PageDemand};

use super::guest_objects::{Change, Key, kind};
use super::memory::GuestMemory;

pub const BASE: u64 = 0x10_0000;
pub const LEN: usize = 1 << 20;
const MAILBOXES: usize = 0x1000;
const OUT_MAILBOXES: usize = 0x2_0000;
pub const RECORDS: usize = 0x4_0000;
pub const QUEUES: usize = 0x5_0000;
/// Bytes between one queue and the next.
pub const QUEUE: usize = 0x4000;
/// Queue pairs that have room for their queues.
const MAX_QPS: usize = 8;
/// Services of the queue pairs that are there from the start: RC, UC, UD, key changes.
pub const SERVICES: [u32; 4] = [0, 1, 2, 0xc];
/// Q_Key of all datagram queue pairs.
pub const QKEY: u32 = 1;
/// First PSN of every connection, in both directions.
pub const FIRST_PSN: u32 = 0;
/// Acknowledge timeout code of a queue pair that is connected to itself: 262 µs.
const OWN_TIMEOUT: u8 = 6;

/// A port on the same wire, as an attacker knows it: fresh devices give the same numbers.
#[derive(Clone, Copy, Debug)]
pub struct Neighbor {
    pub lid: u16,
    /// Its connected queue pair and those that take datagrams.
    pub qpns: [u32; 3],
    /// A key for all its memory.
    pub key: u32,
}

/// Where a queue pair leads.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    pub dlid: u16,
    pub dest_qpn: u32,
    pub pkey_index: u16,
    /// Acknowledge timeout code.
    pub timeout: u8,
    /// Retries without answer, and without receive.
    pub retries: u8,
    /// First PSN that it expects and sends.
    pub psn: u32,
}

/// A guest and its device.
pub struct Guest {
    pub device: Device,
    pub memory: SimMemory,
    /// The memory as the device reaches it.
    pub reachable: GuestMemory,
    pub lid: u16,
    now: u64,
    /// Number of each queue pair, and how many blocks and receives were posted.
    pub qps: Vec<(u32, u16, u16)>,
    pub uar: u32,
    /// A key for all memory.
    pub key: u32,
    /// What there is beside the queue pairs: numbers as commands gave them.
    pub pd: u32,
    pub eqn: u32,
    pub cqs: Vec<u32>,
    /// Keys, the one for all memory first.
    pub keys: Vec<u32>,
    /// Shared receive queues and what was posted to each.
    pub srqs: Vec<(u32, u16)>,
    /// Anything else: PDs, XRC domains, user contexts, user memory, counters, places of device memory.
    pub others: Vec<u32>,
    /// Other ports on the wire.
    pub neighbors: Vec<Neighbor>,
    /// Its queue pairs 0 and 1 as they are made: service and number.
    pub managers: Vec<(u32, u32)>,
    /// Any kernel may manage the ports of its subnet.
    pub open_key: bool,
}

/// Returns a command of `len` bytes with these dwords.
pub fn input(opcode: u16, len: usize, dwords: &[(usize, u32)]) -> Vec<u8> {
    let mut bytes = vec![0; len];
    bytes[..2].copy_from_slice(&opcode.to_be_bytes());
    for (at, value) in dwords {
        bytes[*at..*at + 4].copy_from_slice(&value.to_be_bytes());
    }
    bytes
}

impl Guest {
    /// Creates the device of a guest that serves pages first, or has its queue pairs ready.
    pub fn new(config: DeviceConfig, pages: bool) -> Self {
        let memory = SimMemory::new(BASE, LEN);
        let reachable = GuestMemory::new(&memory);
        let demand = if pages { PageDemand::FEW } else { PageDemand::NONE };
        let lid = config.lid;
        let config = DeviceConfig { pages: demand, ..config };
        let mut device = Device::new(config, Box::new(reachable.clone())).expect("a device as the setups have it");
        device.enable_function();
        let mut guest = Self {
            device,
            memory,
            reachable,
            lid,
            now: 0,
            qps: Vec::new(),
            uar: 8,
            key: 0,
            pd: 0,
            eqn: 0,
            cqs: Vec::new(),
            keys: Vec::new(),
            srqs: Vec::new(),
            others: Vec::new(),
            neighbors: Vec::new(),
            managers: Vec::new(),
            open_key: false,
        };
        guest.run(1_000_000);
        guest.device.bar_write(0x10, &((BASE >> 32) as u32).to_be_bytes());
        guest.device.bar_write(0x14, &(BASE as u32).to_be_bytes());
        guest.command(input(0x104, 16, &[]), 16);
        if !pages {
            guest.objects();
        }
        guest
    }

    /// Lets the device work `nanos` later; what it sends stays in it.
    pub fn run(&mut self, nanos: u64) {
        let now = self.pass(nanos);
        self.device.advance(now);
        self.device.take_interrupts();
    }

    /// Returns the moment `nanos` later.
    pub fn pass(&mut self, nanos: u64) -> Instant {
        self.now += nanos;
        Instant::from_nanos(self.now)
    }

    pub fn number(&self) -> u32 {
        let mut bytes = [0; 4];
        self.memory.read(40, &mut bytes).unwrap_or_default();
        u32::from_be_bytes(bytes) & 0xff_ffff
    }

    /// Status of the last command: 0 if it was done.
    pub fn status(&self) -> u8 {
        let mut entry = [0; 64];
        self.memory.read(0, &mut entry).unwrap_or_default();
        if entry[63] & 1 == 0 { entry[32] } else { 0xff }
    }

    /// Creates one queue pair of each service, connected to itself where that means something, over a key for all memory.
    fn objects(&mut self) {
        self.command(input(0x102, 32, &[]), 16);
        self.command(input(0x802, 16, &[]), 16);
        self.uar = self.number();
        self.command(input(0x800, 16, &[]), 16);
        self.pd = self.number();
        let mut eq = input(0x301, 272, &[(28, 5 << 24 | self.uar)]);
        eq[0x58..0x60].fill(0xff);
        eq.extend((BASE + QUEUES as u64).to_be_bytes());
        self.command(eq, 16);
        self.eqn = self.number();
        let record = BASE as u32 + RECORDS as u32;
        let mut cq = input(0x400, 272, &[(28, 6 << 24 | self.uar), (36, self.eqn), (16 + 60, record)]);
        cq.extend((BASE + (QUEUES + QUEUE) as u64).to_be_bytes());
        self.command(cq, 16);
        self.cqs.push(self.number());
        // Every right, no bounds, every queue pair.
        self.command(input(0x200, 272, &[(16, 0x7c00), (20, 0xffff_ff00), (28, 1 << 31 | self.pd)]), 16);
        self.key = self.number() << 8;
        self.keys.push(self.key);
        for service in SERVICES {
            self.queue_pair(service, &[]);
        }
    }

    /// Creates one of each object that takes more than one command, so that the acts have something to work on.
    pub fn more_objects(&mut self) {
        // Free keys that requests change: of pages; of KLMs, to be invalidated by peers.
        for (mode, flags) in [(0, 3), (1, 7)] {
            self.create_key(&Key { mode, flags, rights: 1, log_page: 0, entries: Vec::new() });
        }
        // Device memory and a key for it.
        self.create(kind::DEVICE_MEMORY, 0);
        self.create_key(&Key { mode: 3, flags: 0, rights: 1, log_page: 0, entries: Vec::new() });
        // A shared receive queue and a queue pair that takes from it; the same for XRC.
        self.create(kind::SRQ, 0);
        self.create(kind::QP_WITH_SRQ, 0);
        self.others.clear();
        self.create(kind::XRCD, 0);
        self.create(kind::XRC_SRQ, 0);
        self.create(kind::XRC_QP, 0);
        self.create(kind::USER_CONTEXT, 0);
        self.create(kind::USER_MEMORY, 0);
        self.change(&Change::Group(2, true));
        assert_eq!(self.status(), 0, "a member of a group");
        let made = [self.keys.len(), self.srqs.len(), self.qps.len(), self.others.len()];
        assert_eq!(made, [4, 2, SERVICES.len() + 2, 3], "keys, shared receive queues, queue pairs, others");
    }

    /// Creates a queue pair, connected to itself where that means something; `more` are dwords of its context, by byte.
    pub fn queue_pair(&mut self, service: u32, more: &[(usize, u32)]) {
        if let Some(qpn) = self.create_queue_pair(service, more) {
            self.connect(qpn);
        }
    }

    /// Creates a queue pair in RESET; returns its number, if there is room for it.
    pub fn create_queue_pair(&mut self, service: u32, more: &[(usize, u32)]) -> Option<u32> {
        let i = self.qps.len();
        let &cqn = self.cqs.first().filter(|_| i < MAX_QPS)?;
        let at = QUEUES + (2 + i) * QUEUE;
        let record = BASE as u32 + (RECORDS + 64 + i * 64) as u32;
        let dwords = [
            (24, service << 16),
            (24 + 4, self.pd),
            // 16 receives of 32 bytes, 64 send blocks.
            (24 + 8, 4 << 19 | 1 << 16 | 6 << 11),
            (24 + 12, self.uar),
            // It may open memory by addresses.
            (24 + 112, 1 << 11),
            (24 + 124, cqn),
            (24 + 156, cqn),
            (24 + 0xa4, record),
        ];
        let mut qp = input(0x500, 272, &dwords);
        for (byte, dword) in more {
            qp[24 + byte..28 + byte].copy_from_slice(&dword.to_be_bytes());
        }
        for page in 0..2 {
            qp.extend((BASE + (at + page * 4096) as u64).to_be_bytes());
        }
        self.command(qp, 16);
        if self.status() != 0 {
            return None;
        }
        let qpn = self.number();
        self.qps.push((qpn, 0, 0));
        Some(qpn)
    }

    /// Connects a queue pair to itself.
    pub fn connect(&mut self, qpn: u32) {
        let path = Path { dlid: self.lid, dest_qpn: qpn, pkey_index: 0, timeout: OWN_TIMEOUT, retries: 3, psn: FIRST_PSN };
        self.connect_to(qpn, &path);
    }

    /// Takes a queue pair from RESET to RTS: peers may do everything, 1024 bytes a packet.
    pub fn connect_to(&mut self, qpn: u32, path: &Path) {
        self.command(
            input(0x502, 272, &[(8, qpn), (24 + 24, path.pkey_index.into()), (24 + 144, 0xe000), (24 + 0xa8, QKEY)]),
            16,
        );
        let ready = [
            (8, qpn),
            (24 + 8, 3 << 29 | 30 << 24),
            (24 + 20, path.dest_qpn),
            (24 + 24, path.pkey_index.into()),
            (24 + 28, path.dlid.into()),
            (24 + 144, 2 << 21),
            (24 + 148, path.psn),
        ];
        self.command(input(0x503, 272, &ready), 16);
        let sends = [
            (8, qpn),
            (24 + 112, 2 << 21 | u32::from(path.retries) << 16 | u32::from(path.retries) << 13),
            (24 + 32, u32::from(path.timeout) << 27),
            (24 + 120, path.psn),
        ];
        self.command(input(0x504, 272, &sends), 16);
    }

    /// Takes a queue pair to RESET, and forgets what was posted to it.
    pub fn reset_queue_pair(&mut self, qpn: u32) {
        self.command(input(0x50a, 272, &[(8, qpn)]), 16);
        if let Some(qp) = self.qps.iter_mut().find(|qp| qp.0 == qpn) {
            (qp.1, qp.2) = (0, 0);
        }
    }

    fn chain(&mut self, at: usize, data: &[u8], blocks: usize) -> u64 {
        for number in 0..blocks {
            let mut block = [0; 576];
            let chunk = data.chunks(512).nth(number).unwrap_or_default();
            block[..chunk.len()].copy_from_slice(chunk);
            if number + 1 < blocks {
                block[560..568].copy_from_slice(&(BASE + (at + (number + 1) * 1024) as u64).to_be_bytes());
            }
            block[568..572].copy_from_slice(&(number as u32).to_be_bytes());
            let _ = self.memory.write(at + number * 1024, &block);
        }
        if blocks == 0 { 0 } else { BASE + at as u64 }
    }

    pub fn command(&mut self, input: Vec<u8>, out_len: usize) {
        let in_ptr = self.chain(MAILBOXES, input.get(16..).unwrap_or_default(), input.len().saturating_sub(16).div_ceil(512));
        let out_ptr = self.chain(OUT_MAILBOXES, &[], out_len.saturating_sub(16).div_ceil(512));
        let mut entry = [0; CMD_ENTRY];
        ViewMut::<CmdQueueEntry>::of(&mut entry)
            .set(CmdQueueEntry::TYPE, PCI_CMD_XPORT)
            .set(CmdQueueEntry::INPUT_LENGTH, input.len() as u32)
            .set(CmdQueueEntry::INPUT_MAILBOX_POINTER_63_32, (in_ptr >> 32) as u32)
            .set(CmdQueueEntry::INPUT_MAILBOX_POINTER_31_9, in_ptr as u32 >> 9)
            .set_bytes(CmdQueueEntry::COMMAND_INPUT_INLINE_DATA, &input)
            .set(CmdQueueEntry::OUTPUT_MAILBOX_POINTER_63_32, (out_ptr >> 32) as u32)
            .set(CmdQueueEntry::OUTPUT_MAILBOX_POINTER_31_9, out_ptr as u32 >> 9)
            .set(CmdQueueEntry::OUTPUT_LENGTH, out_len as u32)
            .set(CmdQueueEntry::OWNERSHIP, 1);
        let _ = self.memory.write(0, &entry);
        self.device.bar_write(0x18, &1_u32.to_be_bytes());
        self.run(100);
    }

    /// Returns the output of the last command, `len` bytes at most 528.
    pub fn output(&self, len: usize) -> Vec<u8> {
        let mut output = vec![0; len];
        let (inline, boxed) = output.split_at_mut(len.min(16));
        let _ = self.memory.read(32, inline);
        let _ = self.memory.read(OUT_MAILBOXES, boxed);
        output
    }

    pub fn send(&mut self, which: u8, opcode: u8, flags: u8, immediate: u32, body: &[u8]) {
        let i = usize::from(which) % self.qps.len().max(1);
        let Some(&mut (qpn, ref mut posted, _)) = self.qps.get_mut(i) else { return };
        let body = &body[..body.len().min(1008 - 16)];
        let ds = 1 + body.len().div_ceil(16) as u32;
        let mut wqe = Vec::new();
        for word in [u32::from(*posted) << 8 | u32::from(opcode), qpn << 8 | ds, flags.into(), immediate] {
            wqe.extend(word.to_be_bytes());
        }
        let doorbell: [u8; 8] = std::array::from_fn(|at| wqe[at]);
        wqe.extend(body);
        let start = QUEUES + (2 + i) * QUEUE + 16 * 32;
        for block in wqe.chunks(64) {
            let _ = self.memory.write(start + usize::from(*posted % 64) * 64, block);
            *posted = posted.wrapping_add(1);
        }
        let _ = self.memory.write(RECORDS + 64 + i * 64 + 4, &u32::from(*posted).to_be_bytes());
        self.device.bar_write(u64::from(self.uar) * 4096 + 0x800, &doorbell);
    }

    pub fn receive(&mut self, which: u8, wqe: [u8; 32]) {
        let i = usize::from(which) % self.qps.len().max(1);
        let Some((_, _, posted)) = self.qps.get_mut(i) else { return };
        let _ = self.memory.write(QUEUES + (2 + i) * QUEUE + usize::from(*posted % 16) * 32, &wqe);
        *posted = posted.wrapping_add(1);
        let _ = self.memory.write(RECORDS + 64 + i * 64, &u32::from(*posted).to_be_bytes());
    }
}

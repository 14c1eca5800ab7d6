//! A host that does anything to a simulated device: registers, configuration space, memory, commands, requests, frames,
//! resets. The device may refuse whatever it likes; it must not panic, hang or grow.

use arbitrary::Arbitrary;
use bareverbs::{DmaMemory, Instant};
use bareverbs_mlx5_spec::CmdOpcode;
use bareverbs_sim::in_process::{MemoryMap, SimMemory};
use bareverbs_sim::packet::{Bth, Deth, Grh, Lrh, Opcode, Operation, Packet, Place, Reth, Transport};
use bareverbs_sim::{Device, DeviceConfig, PageDemand};

const BASE: u64 = 0x10_0000;
const LEN: usize = 1 << 20;
const MAILBOXES: usize = 0x1000;
const OUT_MAILBOXES: usize = 0x2_0000;
const RECORDS: usize = 0x4_0000;
const QUEUES: usize = 0x5_0000;
/// Bytes between one queue and the next.
const QUEUE: usize = 0x4000;
const LID: u16 = 1;
/// Queue pair of an [`Act::Packet`] that is a datagram for the agents of the port instead.
const MANAGEMENT: u8 = 0xfe;
/// Services of the queue pairs that are there from the start: RC, UC, UD, key changes.
const SERVICES: [u32; 4] = [0, 1, 2, 0xc];

/// One thing that happens.
#[derive(Arbitrary, Debug)]
pub enum Act {
    /// Configuration space is written.
    Config(u16, u32),
    /// BAR0 is written: page, byte of it, and four or eight bytes.
    Bar(u16, u16, u64, bool),
    /// BAR0 and configuration space are read.
    Read(u32),
    /// Host memory changes.
    Memory(u32, Vec<u8>),
    /// Time passes, in units of a microsecond.
    Advance(u16),
    /// A command: which, for whom, dwords at places in its first kilobyte, bytes of input and of output, pages listed.
    Command(u8, u8, Vec<(u8, u32)>, u16, u16, u8),
    /// A request on one of the queue pairs: opcode, flags, what follows the control segment.
    Send(u8, u8, u8, u32, Vec<u8>),
    /// A receive on one of the queue pairs.
    Receive(u8, [u8; 32]),
    /// The doorbell record of a queue pair says anything.
    Record(u8, u64),
    /// A frame that is a packet: opcode, queue pair, sequence number, keys and addresses, payload.
    Packet(u8, u8, u8, u64, u32, u16, bool),
    /// A frame that is anything.
    Frame(Vec<u8>),
    /// The cable, the slot, and the reset that a host asks for.
    Event(u8),
}

struct Bench {
    device: Device,
    memory: SimMemory,
    now: u64,
    /// Number of each queue pair, and how many blocks and receives were posted.
    qps: Vec<(u32, u16, u16)>,
    uar: u32,
    key: u32,
}

fn input(opcode: u16, len: usize, dwords: &[(usize, u32)]) -> Vec<u8> {
    let mut bytes = vec![0; len];
    bytes[..2].copy_from_slice(&opcode.to_be_bytes());
    for (at, value) in dwords {
        bytes[*at..*at + 4].copy_from_slice(&value.to_be_bytes());
    }
    bytes
}

impl Bench {
    fn new(pages: bool) -> Self {
        let memory = SimMemory::new(BASE, LEN);
        let map = MemoryMap::default();
        assert!(map.map(&memory));
        let demand = if pages { PageDemand::USUAL } else { PageDemand::NONE };
        let mut device = Device::new(DeviceConfig { pages: demand, ..DeviceConfig::with_lid(LID) }, Box::new(map));
        device.enable_function();
        let mut bench = Self { device, memory, now: 0, qps: Vec::new(), uar: 8, key: 0 };
        bench.run(1_000_000);
        bench.device.bar_write(0x10, &((BASE >> 32) as u32).to_be_bytes());
        bench.device.bar_write(0x14, &(BASE as u32).to_be_bytes());
        bench.command(input(0x104, 16, &[]), 16);
        if !pages {
            bench.objects();
        }
        bench
    }

    fn run(&mut self, nanos: u64) {
        self.now += nanos;
        self.device.advance(Instant::from_nanos(self.now));
        while self.device.transmit().is_some() {}
        self.device.take_interrupts();
    }

    fn number(&self) -> u32 {
        let mut bytes = [0; 4];
        self.memory.read(40, &mut bytes).unwrap_or_default();
        u32::from_be_bytes(bytes) & 0xff_ffff
    }

    /// One queue pair of each service, connected to itself where that means something, over a key for all memory.
    fn objects(&mut self) {
        self.command(input(0x102, 32, &[]), 16);
        self.command(input(0x802, 16, &[]), 16);
        self.uar = self.number();
        self.command(input(0x800, 16, &[]), 16);
        let pd = self.number();
        let mut eq = input(0x301, 272, &[(28, 5 << 24 | self.uar)]);
        eq[0x58..0x60].fill(0xff);
        eq.extend((BASE + QUEUES as u64).to_be_bytes());
        self.command(eq, 16);
        let eqn = self.number();
        let mut cq = input(0x400, 272, &[(28, 6 << 24 | self.uar), (36, eqn), (16 + 60, BASE as u32 + RECORDS as u32)]);
        cq.extend((BASE + (QUEUES + QUEUE) as u64).to_be_bytes());
        self.command(cq, 16);
        let cqn = self.number();
        // Every right, no bounds, every queue pair.
        self.command(input(0x200, 272, &[(16, 0x7c00), (20, 0xffff_ff00), (28, 1 << 31 | pd)]), 16);
        self.key = self.number() << 8;
        for (i, service) in SERVICES.into_iter().enumerate() {
            let at = QUEUES + (2 + i) * QUEUE;
            let record = BASE as u32 + (RECORDS + 64 + i * 64) as u32;
            let dwords = [
                (24, service << 16),
                (24 + 4, pd),
                // 16 receives of 32 bytes, 64 send blocks.
                (24 + 8, 4 << 19 | 1 << 16 | 6 << 11),
                (24 + 12, self.uar),
                (24 + 124, cqn),
                (24 + 156, cqn),
                (24 + 0xa4, record),
            ];
            let mut qp = input(0x500, 272, &dwords);
            for page in 0..2 {
                qp.extend((BASE + (at + page * 4096) as u64).to_be_bytes());
            }
            self.command(qp, 16);
            let qpn = self.number();
            // Peers may do everything; queue key 1; then the path to itself, 1024 bytes a packet.
            self.command(input(0x502, 272, &[(8, qpn), (24 + 144, 0xe000), (24 + 0xa8, 1)]), 16);
            let ready = [(8, qpn), (24 + 8, 3 << 29 | 30 << 24), (24 + 20, qpn), (24 + 28, LID.into()), (24 + 144, 2 << 21)];
            self.command(input(0x503, 272, &ready), 16);
            let sends = [(8, qpn), (24 + 112, 2 << 21 | 3 << 16 | 3 << 13), (24 + 32, 6 << 27)];
            self.command(input(0x504, 272, &sends), 16);
            self.qps.push((qpn, 0, 0));
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

    fn command(&mut self, input: Vec<u8>, out_len: usize) {
        let in_ptr = self.chain(MAILBOXES, input.get(16..).unwrap_or_default(), input.len().saturating_sub(16).div_ceil(512));
        let out_ptr = self.chain(OUT_MAILBOXES, &[], out_len.saturating_sub(16).div_ceil(512));
        let mut entry = [0; 64];
        entry[0] = 7;
        entry[4..8].copy_from_slice(&(input.len() as u32).to_be_bytes());
        entry[8..16].copy_from_slice(&in_ptr.to_be_bytes());
        let inline = input.len().min(16);
        entry[16..16 + inline].copy_from_slice(&input[..inline]);
        entry[48..56].copy_from_slice(&out_ptr.to_be_bytes());
        entry[56..60].copy_from_slice(&(out_len as u32).to_be_bytes());
        entry[63] = 1;
        let _ = self.memory.write(0, &entry);
        self.device.bar_write(0x18, &1_u32.to_be_bytes());
        self.run(100);
    }

    fn send(&mut self, which: u8, opcode: u8, flags: u8, immediate: u32, body: &[u8]) {
        let i = usize::from(which) % SERVICES.len();
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

    fn receive(&mut self, which: u8, element: [u8; 32]) {
        let i = usize::from(which) % SERVICES.len();
        let Some((_, _, posted)) = self.qps.get_mut(i) else { return };
        let _ = self.memory.write(QUEUES + (2 + i) * QUEUE + usize::from(*posted % 16) * 32, &element);
        *posted = posted.wrapping_add(1);
        let _ = self.memory.write(RECORDS + 64 + i * 64, &u32::from(*posted).to_be_bytes());
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of a packet")]
    fn packet(&mut self, opcode: u8, which: u8, psn: u8, addr: u64, rkey: u32, len: u16, global: bool) {
        let qpn = self.qps.get(usize::from(which) % SERVICES.len()).map_or(u32::from(which), |qp| qp.0);
        let silence = Opcode { transport: Transport::Rc, operation: Operation::Acknowledge };
        let bth = Bth {
            opcode: Opcode::from_bits(opcode).unwrap_or(silence),
            solicited: false,
            migreq: true,
            pkey: 0xffff,
            dest_qpn: if which == 0xff { 0xff_ffff } else { qpn },
            ack_req: psn & 1 != 0,
            psn: psn.into(),
        };
        let dlid = if which == 0xff { 0xc001 } else { LID };
        let mut packet = Packet::new(Lrh { dlid, slid: LID, ..Lrh::default() }, bth);
        packet.grh = global.then(|| Grh { dgid: [0xff; 16], ..Grh::default() });
        packet.deth = Some(Deth { qkey: 1, source_qpn: qpn });
        packet.reth = Some(Reth {
            addr: addr % (2 * LEN as u64) + BASE,
            rkey: if rkey & 1 == 0 { self.key } else { rkey },
            len: rkey >> 8,
        });
        packet.invalidate = Some(rkey);
        packet.xrc_srqn = Some(rkey & 0xff);
        packet.payload = vec![psn; usize::from(len) % 4097];
        self.device.receive(&packet.encode());
    }

    /// A question for the agents of the port: class, method and attribute that they know, or any; hops and data that are anything.
    fn datagram(&mut self, psn: u8, addr: u64, rkey: u32, len: u16) {
        let [class, attribute, ..] = rkey.to_be_bytes();
        let mut mad = vec![0; 256];
        mad[..4].copy_from_slice(&[1, [1, 0x81, 4, class][usize::from(class % 4)], 1, 1 + (psn >> 1 & 1)]);
        mad[6..8].copy_from_slice(&addr.to_be_bytes()[..2]);
        mad[17] = [0x15, 0x16, 0x12, 0x1d, attribute][usize::from(attribute % 5)];
        mad[20..24].copy_from_slice(&u32::from(len >> 12).to_be_bytes());
        for (at, byte) in mad.iter_mut().enumerate().skip(64) {
            *byte = addr.rotate_left(at as u32 * 11 + u32::from(len)) as u8;
        }
        let opcode = Opcode { transport: Transport::Ud, operation: Operation::Send(Place::Only) };
        let dest_qpn = u32::from(psn & 1);
        let bth = Bth { opcode, solicited: false, migreq: true, pkey: 0xffff, dest_qpn, ack_req: false, psn: 0 };
        let lid = self.device.lid();
        let mut packet = Packet::new(Lrh { dlid: if psn & 4 == 0 { lid } else { 0xffff }, slid: lid, ..Lrh::default() }, bth);
        packet.deth = Some(Deth { qkey: 0x8001_0000, source_qpn: dest_qpn });
        packet.payload = mad;
        self.device.receive(&packet.encode());
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Config(at, value) => self.device.config_write(usize::from(at) % 4096, &value.to_le_bytes()),
            Act::Bar(page, at, value, wide) => {
                let offset = u64::from(page % 16) * 4096 + u64::from(at % 4096);
                let bytes = value.to_be_bytes();
                self.device.bar_write(offset, if wide { &bytes } else { &bytes[..4] });
            }
            Act::Read(at) => {
                let mut bytes = [0; 8];
                self.device.bar_read(at.into(), &mut bytes);
                self.device.config_read(at as usize % 4096, &mut bytes[..4]);
            }
            Act::Memory(at, bytes) => {
                let at = at as usize % LEN;
                let _ = self.memory.write(at, &bytes[..bytes.len().min(LEN - at)]);
            }
            Act::Advance(micros) => self.run(u64::from(micros) * 1000),
            Act::Command(which, uid, dwords, len, out_len, pages) => {
                let opcode = CmdOpcode::ALL[usize::from(which) % CmdOpcode::ALL.len()].code() as u16;
                let len = 16 + usize::from(len) % 600;
                let mut bytes = input(opcode, len, &[]);
                bytes[3] = uid % 4;
                for (at, value) in dwords {
                    let at = 4 + usize::from(at) * 4;
                    if let Some(place) = bytes.get_mut(at..at + 4) {
                        place.copy_from_slice(&value.to_be_bytes());
                    }
                }
                for page in 0..u64::from(pages) {
                    bytes.extend((BASE + QUEUES as u64 + page * 4096).to_be_bytes());
                }
                self.command(bytes, 8 + usize::from(out_len) % 5000);
            }
            Act::Send(which, opcode, flags, immediate, body) => self.send(which, opcode, flags, immediate, &body),
            Act::Receive(which, element) => self.receive(which, element),
            Act::Record(which, value) => {
                let at = RECORDS + usize::from(which) % 6 * 64;
                let _ = self.memory.write(at, &value.to_be_bytes());
            }
            Act::Packet(_, MANAGEMENT, psn, addr, rkey, len, _) => self.datagram(psn, addr, rkey, len),
            Act::Packet(opcode, which, psn, addr, rkey, len, global) => {
                self.packet(opcode, which, psn, addr, u32::from(rkey), len, global);
            }
            Act::Frame(bytes) => self.device.receive(&bytes),
            Act::Event(what) => match what % 8 {
                0 => self.device.reset(),
                1 => self.device.set_link(false),
                2 => self.device.set_link(true),
                3 => self.device.set_removed(true),
                4 => self.device.set_removed(false),
                _ => self.device.enable_function(),
            },
        }
    }
}

/// Plays `acts` to a device, which asks for firmware pages or has queue pairs ready.
pub fn play(pages: bool, acts: Vec<Act>) {
    let mut bench = Bench::new(pages);
    for act in acts {
        bench.act(act);
        bench.run(1000);
    }
    // Whatever is under way ends or waits for the host.
    for _ in 0..64 {
        bench.run(1_000_000);
    }
    let _ = format!("{:?} {:?}", bench.device.counts(), bench.device.stats());
}

//! The host: memory, a command queue of 32 slots, event queues.

use std::time::Duration;

use bareverbs::platform::{DmaMemory, Instant};
use bareverbs_sim::in_process::{MemoryMap, SimMemory};
use bareverbs_sim::{Device, DeviceConfig, PageDemand, Profile};

pub(crate) const BASE: u64 = 0x4_0000_0000;
const MAILBOXES: usize = 0x1_0000;
const OUT_MAILBOXES: usize = 0x4_0000;
const TOKEN: u8 = 0xa5;

pub(crate) struct Host {
    pub(crate) device: Device,
    pub(crate) memory: SimMemory,
    pub(crate) now: u64,
}

/// Returns a device that asks for no pages and whose port is active from the start.
pub(crate) fn plain() -> DeviceConfig {
    DeviceConfig { pages: PageDemand::NONE, ..DeviceConfig::profile(Profile::Instant, 7) }
}

impl Host {
    /// Powered on, enabled, started, its command queue written.
    pub(crate) fn new(config: DeviceConfig) -> Self {
        let memory = SimMemory::new(BASE, 16 << 20);
        let map = MemoryMap::default();
        assert!(map.map(&memory));
        let mut device = Device::new(config, Box::new(map)).unwrap();
        device.enable_function();
        let mut host = Self { device, memory, now: 0 };
        host.run(1_000_000);
        host.attach_queue();
        host
    }

    /// Same as [`Host::new`], after INIT_HCA, by plain commands.
    pub(crate) fn running(config: DeviceConfig) -> Self {
        let mut host = Self::new(config);
        host.ok(&input(0x104, 16, &[]), 16);
        host.ok(&input(0x102, 32, &[]), 16);
        host
    }

    pub(crate) fn attach_queue(&mut self) {
        self.write_be32(0x10, (BASE >> 32) as u32);
        self.write_be32(0x14, BASE as u32);
    }

    pub(crate) fn run(&mut self, nanos: u64) {
        self.now += nanos;
        self.device.advance(Instant::from_nanos(self.now));
    }

    pub(crate) fn read_be32(&self, offset: u64) -> u32 {
        let mut bytes = [0; 4];
        self.device.bar_read(offset, &mut bytes);
        u32::from_be_bytes(bytes)
    }

    pub(crate) fn write_be32(&mut self, offset: u64, value: u32) {
        self.device.bar_write(offset, &value.to_be_bytes());
    }

    pub(crate) fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read(at, &mut bytes).unwrap();
        bytes
    }

    /// Lays a mailbox chain for `data` at `at`; its first block's address, 0 for no data.
    pub(crate) fn chain(&mut self, at: usize, data: &[u8], blocks: usize, token: u8) -> u64 {
        for number in 0..blocks {
            let mut block = [0; 576];
            let chunk = data.chunks(512).nth(number).unwrap_or_default();
            block[..chunk.len()].copy_from_slice(chunk);
            if number + 1 < blocks {
                let next = BASE + (at + (number + 1) * 1024) as u64;
                block[560..568].copy_from_slice(&next.to_be_bytes());
            }
            block[568..572].copy_from_slice(&(number as u32).to_be_bytes());
            block[573] = token;
            self.memory.write(at + number * 1024, &block).unwrap();
        }
        if blocks == 0 { 0 } else { BASE + at as u64 }
    }

    /// Writes the entry of a command into a slot, without ringing.
    pub(crate) fn stage(&mut self, slot: usize, input: &[u8], out_len: usize) -> [u8; 64] {
        let in_blocks = input.len().saturating_sub(16).div_ceil(512);
        let out_blocks = out_len.saturating_sub(16).div_ceil(512);
        let in_ptr = self.chain(MAILBOXES, input.get(16..).unwrap_or_default(), in_blocks, TOKEN);
        let out_ptr = self.chain(OUT_MAILBOXES, &[], out_blocks, TOKEN);
        let mut entry = [0; 64];
        entry[0] = 7;
        entry[4..8].copy_from_slice(&(input.len() as u32).to_be_bytes());
        entry[8..16].copy_from_slice(&in_ptr.to_be_bytes());
        let inline = input.len().min(16);
        entry[16..16 + inline].copy_from_slice(&input[..inline]);
        entry[48..56].copy_from_slice(&out_ptr.to_be_bytes());
        entry[56..60].copy_from_slice(&(out_len as u32).to_be_bytes());
        entry[60] = TOKEN;
        entry[63] = 1;
        self.memory.write(slot * 64, &entry).unwrap();
        entry
    }

    pub(crate) fn ring(&mut self, slots: u32) {
        self.write_be32(0x18, slots);
        assert_eq!(self.device.next_due(), Some(Instant::from_nanos(self.now)));
        self.run(1000);
        // One a turn.
        (1..slots.count_ones()).for_each(|_| self.run(0));
    }

    /// Byte 63 of a slot: delivery status above the ownership bit.
    pub(crate) fn status_own(&self, slot: usize) -> u8 {
        self.memory.read_u8(slot * 64 + 63).unwrap()
    }

    pub(crate) fn output(&self, slot: usize, out_len: usize) -> Vec<u8> {
        let mut output = self.bytes(slot * 64 + 32, 16);
        for number in 0..out_len.saturating_sub(16).div_ceil(512) {
            output.extend(self.bytes(OUT_MAILBOXES + number * 1024, 512));
        }
        output.truncate(out_len);
        output
    }

    /// Runs a command to its end in slot 0; status and output.
    pub(crate) fn command(&mut self, input: &[u8], out_len: usize) -> (u8, Vec<u8>) {
        self.stage(0, input, out_len);
        self.ring(1);
        assert_eq!(self.status_own(0), 0, "delivered and handed back");
        let output = self.output(0, out_len);
        (output[0], output)
    }

    /// Runs a command that must succeed.
    pub(crate) fn ok(&mut self, input: &[u8], out_len: usize) -> Vec<u8> {
        let (status, output) = self.command(input, out_len);
        assert_eq!(status, 0, "command {:02x}{:02x}", input[0], input[1]);
        output
    }

    /// ALLOC_UAR.
    pub(crate) fn uar(&mut self) -> u32 {
        let output = self.ok(&input(0x802, 16, &[]), 16);
        u32::from_be_bytes([0, output[9], output[10], output[11]])
    }

    /// CREATE_EQ with `1 << log_size` entries at byte `at`, subscribed to `mask`, on a vector.
    pub(crate) fn eq(&mut self, uar: u32, at: usize, log_size: u32, mask: u64, vector: u32) -> u32 {
        for i in 0..1 << log_size {
            self.memory.write(at + i * 64 + 63, &[1]).unwrap();
        }
        let pages = (64_usize << log_size).div_ceil(4096);
        let mut bytes = input(0x301, 272, &[(16 + 12, log_size << 24 | uar), (16 + 20, vector)]);
        bytes[0x58..0x60].copy_from_slice(&mask.to_be_bytes());
        for page in 0..pages {
            bytes.extend((BASE + (at + page * 4096) as u64).to_be_bytes());
        }
        u32::from(self.ok(&bytes, 16)[11])
    }

    pub(crate) fn arm_eq(&mut self, uar: u32, eqn: u32, consumer: u32) {
        self.write_be32(u64::from(uar) * 4096 + 0x40, eqn << 24 | consumer);
    }

    pub(crate) fn wait(&mut self, duration: Duration) {
        self.run(duration.as_nanos() as u64);
    }
}

/// Returns an input of `len` bytes: opcode at 0, then `(offset, value)` dwords.
pub(crate) fn input(opcode: u16, len: usize, dwords: &[(usize, u32)]) -> Vec<u8> {
    let mut bytes = vec![0; len];
    bytes[..2].copy_from_slice(&opcode.to_be_bytes());
    for (at, value) in dwords {
        bytes[*at..*at + 4].copy_from_slice(&value.to_be_bytes());
    }
    bytes
}

pub(crate) fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(bytes[at..at + 2].try_into().unwrap())
}

pub(crate) fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
}

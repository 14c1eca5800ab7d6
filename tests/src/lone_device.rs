//! A device alone: commands by their bytes, and no driver.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use bareverbs::platform::Instant;
use bareverbs_sim::host_memory::{DmaFault, HostMemory};
use bareverbs_sim::{Device, DeviceConfig, DeviceCounts};

const PAGE: u64 = 4096;
/// Where the command queue and its mailboxes lie: beyond what any guest has.
const QUEUE: u64 = 1 << 60;
const INPUT: u64 = QUEUE + 0x10_0000;
const OUTPUT: u64 = QUEUE + 0x20_0000;
/// Bytes of inline data in a queue entry, and of data in a mailbox.
const INLINE: usize = 16;
const MAILBOX: usize = 512;

/// Memory at every address.
#[derive(Clone, Default)]
struct Everywhere(Arc<Mutex<HashMap<u64, [u8; PAGE as usize]>>>);

impl HostMemory for Everywhere {
    fn read(&self, addr: u64, into: &mut [u8]) -> Result<(), DmaFault> {
        let pages = self.0.lock().unwrap();
        for (addr, byte) in (addr..).zip(into) {
            *byte = pages.get(&(addr / PAGE)).map_or(0, |page| page[(addr % PAGE) as usize]);
        }
        Ok(())
    }

    fn write(&self, addr: u64, from: &[u8]) -> Result<(), DmaFault> {
        let mut pages = self.0.lock().unwrap();
        for (addr, byte) in (addr..).zip(from) {
            pages.entry(addr / PAGE).or_insert([0; PAGE as usize])[(addr % PAGE) as usize] = *byte;
        }
        Ok(())
    }
}

/// A device to which commands are given by their bytes, without a driver. It has memory at every address, zero until it is
/// written.
pub struct LoneDevice {
    device: Device,
    memory: Everywhere,
    now: u64,
}

impl LoneDevice {
    /// Creates a device whose function is on.
    pub fn new(config: DeviceConfig) -> Self {
        let memory = Everywhere::default();
        let mut device = Device::new(config, Box::new(memory.clone())).unwrap();
        device.enable_function();
        let mut host = Self { device, memory, now: 0 };
        host.pass(1_000_000);
        host.device.bar_write(0x10, &((QUEUE >> 32) as u32).to_be_bytes());
        host.device.bar_write(0x14, &(QUEUE as u32).to_be_bytes());
        host
    }

    fn pass(&mut self, nanos: u64) {
        self.now += nanos;
        self.device.advance(Instant::from_nanos(self.now));
        self.device.take_interrupts();
        while self.device.transmit().is_some() {}
    }

    fn chain(&self, at: u64, data: &[u8]) -> u64 {
        let count = data.len().div_ceil(MAILBOX);
        for (number, chunk) in data.chunks(MAILBOX).enumerate() {
            let mut block = [0; 576];
            block[..chunk.len()].copy_from_slice(chunk);
            if number + 1 < count {
                block[560..568].copy_from_slice(&(at + (number as u64 + 1) * 1024).to_be_bytes());
            }
            block[568..572].copy_from_slice(&(number as u32).to_be_bytes());
            self.memory.write(at + number as u64 * 1024, &block).unwrap();
        }
        if count == 0 { 0 } else { at }
    }

    /// Returns what exists on the device.
    pub fn counts(&self) -> DeviceCounts {
        self.device.counts()
    }

    /// Executes a command in a slot of the command queue, and returns `output_len` bytes of output.
    pub fn run(&mut self, slot: u8, input: &[u8], output_len: usize) -> Vec<u8> {
        let at = QUEUE + u64::from(slot) * 64;
        let behind = |len: usize| len.saturating_sub(INLINE);
        let mut entry = [0; 64];
        entry[0] = 7;
        entry[4..8].copy_from_slice(&(input.len() as u32).to_be_bytes());
        entry[8..16].copy_from_slice(&self.chain(INPUT, input.get(INLINE..).unwrap_or_default()).to_be_bytes());
        let inline = input.len().min(INLINE);
        entry[16..16 + inline].copy_from_slice(&input[..inline]);
        entry[48..56].copy_from_slice(&self.chain(OUTPUT, &vec![0; behind(output_len)]).to_be_bytes());
        entry[56..60].copy_from_slice(&(output_len as u32).to_be_bytes());
        entry[63] = 1;
        self.memory.write(at, &entry).unwrap();
        self.device.bar_write(0x18, &(1_u32 << slot).to_be_bytes());
        self.pass(1000);

        self.memory.read(at, &mut entry).unwrap();
        assert_eq!(entry[63], 0, "delivered");
        let mut output = entry[32..48].to_vec();
        for number in 0..behind(output_len).div_ceil(MAILBOX) as u64 {
            let mut data = [0; MAILBOX];
            self.memory.read(OUTPUT + number * 1024, &mut data).unwrap();
            output.extend(data);
        }
        output.truncate(output_len);
        output
    }
}

//! Every recorded command once more, on a fresh device of the same configuration.
//!
//! The commands name pages of a guest that is gone. They stay as they are: the device has memory at every address here, zero
//! until it is written.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use bareverbs::Instant;
use bareverbs_mlx5_spec::{CmdIn, CmdOpcode, CmdOut, CmdStatus, View};
use bareverbs_serve::record::{Entry, Line};
use bareverbs_sim::host_memory::{DmaFault, HostMemory};
use bareverbs_sim::{Device, DeviceConfig};

use crate::{NEW, OLD, USER_SPACE, lines};

const PAGE: u64 = 4096;
/// Where the command queue and its mailboxes lie: beyond what any guest has.
const QUEUE: u64 = 1 << 60;
const INPUT: u64 = QUEUE + 0x10_0000;
const OUTPUT: u64 = QUEUE + 0x20_0000;
/// Bytes of inline data in a queue entry, and of data in a mailbox.
const INLINE: usize = 16;
const MAILBOX: usize = 512;

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

struct Host {
    device: Device,
    memory: Everywhere,
    now: u64,
}

impl Host {
    fn new(config: DeviceConfig) -> Self {
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

    /// Executes a command, and returns its output.
    fn run(&mut self, slot: u8, input: &[u8], output_len: usize) -> Vec<u8> {
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

/// What must be the same again: status and syndrome, and in an output of 16 bytes what it names (the number of an object,
/// a count of pages).
fn answer(output: &[u8]) -> Vec<u8> {
    let mut answer = output[..8].to_vec();
    answer[1..4].fill(0);
    if output.len() == 16 {
        answer.extend(&output[8..12]);
    }
    answer
}

/// `kept`: pages that the driver leaves with the firmware.
fn replay(recording: &[Line], least: usize, kept: usize) {
    let mut hosts: HashMap<&str, Host> = HashMap::new();
    let mut commands = 0;
    for line in recording {
        match &line.entry {
            Entry::Device(config) => {
                hosts.insert(&line.device, Host::new(config.clone()));
            }
            Entry::Command { slot, input, output } => {
                let opcode = View::<CmdIn>::new(input).unwrap().get(CmdIn::OPCODE);
                let name = CmdOpcode::from_code(opcode).map_or("unknown", CmdOpcode::name);
                let status = View::<CmdOut>::new(output).unwrap().get(CmdOut::STATUS);
                assert_eq!(CmdStatus::from_code(status), Some(CmdStatus::Ok), "line {}: {name} succeeded", line.number);
                let got = hosts.get_mut(line.device.as_str()).unwrap().run(*slot, input, output.len());
                assert_eq!(answer(&got), answer(output), "line {}: {name} on {}", line.number, line.device);
                commands += 1;
            }
            Entry::Mark(_) | Entry::Item { .. } => {}
        }
    }
    assert!(commands >= least, "{commands} commands");
    for (name, host) in hosts {
        let counts = host.device.counts();
        assert_eq!((counts.engine.qps, counts.engine.cqs, counts.engine.mkeys, counts.pds), (0, 0, 0, 0), "left on {name}");
        assert_eq!((counts.eqs, counts.uars, counts.pages_held, counts.pages_lost), (0, 0, kept, 0), "left on {name}");
    }
}

#[test]
fn a_fresh_device_answers_the_commands_of_linux_6_12_the_same() {
    replay(&lines(NEW), 500, 0);
}

#[test]
fn a_fresh_device_answers_the_commands_of_linux_6_1_the_same() {
    replay(&lines(OLD), 500, 0);
}

#[test]
fn a_fresh_device_answers_the_commands_of_libmlx5_the_same() {
    // It does not ask for its pages: they go with the process.
    replay(&lines(USER_SPACE), 60, 58);
}

//! A driver against a device that returns wrong data: the input changes what the device writes to memory, and says how and when commands
//! end, if at all. The driver must end in bounded time, without a panic, and trust no impossible value.

pub mod driver;

use std::time::Duration;

use bareverbs::platform::Instant;
use bareverbs_sim::fault::Fault;
use bareverbs_sim::in_process::{LyingMemory, MemoryMap, SimMemory};
use bareverbs_sim::{Device, DeviceConfig, Profile};

use driver::{Error, Machine, PAGES, start};

const PAGE: u64 = 0x1_0000;

/// A lie: which write of the device it is about, at which byte, and the bits that it turns there.
type Lie = [u8; 3];
/// Writes that lies may be about: the driver starts with two commands, whose answers are three writes each.
const WRITES: u8 = 6;

struct Host {
    device: Device,
    memory: SimMemory,
    microseconds: u64,
}

impl Machine for Host {
    fn read(&mut self, offset: u64) -> u32 {
        let mut bytes = [0; 4];
        self.device.bar_read(offset, &mut bytes);
        u32::from_be_bytes(bytes)
    }

    fn write(&mut self, offset: u64, value: u32) {
        self.device.bar_write(offset, &value.to_be_bytes());
    }

    fn page_address(&self) -> u64 {
        PAGE
    }

    fn load(&mut self) -> [u8; 64] {
        let mut entry = [0; 64];
        bareverbs::platform::DmaMemory::read(&self.memory, 0, &mut entry).expect("a page");
        entry
    }

    fn store(&mut self, entry: [u8; 64]) {
        bareverbs::platform::DmaMemory::write(&mut self.memory, 0, &entry).expect("a page");
    }

    fn pause(&mut self) {
        self.microseconds += 1;
        self.device.advance(Instant::from_nanos(self.microseconds * 1000));
    }
}

/// Starts the driver on a device that lies as `input` says: four bytes for each lie.
pub fn play(input: &[u8]) {
    let _ = outcome(input);
}

/// The same, and returns what the driver made of it.
fn outcome(input: &[u8]) -> Result<u32, Error> {
    let (mut faults, mut lies) = (Vec::new(), Vec::new());
    for &[kind, a, b, c] in input.as_chunks::<4>().0 {
        let opcode = if a & 1 == 0 { 0x104 } else { 0x107 };
        match kind % 6 {
            0 => faults.push(Fault::StuckCommand { opcode }),
            1 => faults.push(Fault::LateCommand { opcode, delay: Duration::from_micros(u64::from(b) * 16) }),
            2 => faults.push(Fault::CommandStatus { opcode, status: b, syndrome: c.into() }),
            3 => faults.push(Fault::DeliveryStatus { opcode, status: b }),
            4 => lies.push([a, b, c]),
            _ => faults.push(Fault::CorruptOutput { opcode: Some(opcode), offset: (b % 16).into(), mask: u32::from(c) << 24 }),
        }
    }
    let (truth, memory) = (MemoryMap::default(), SimMemory::new(PAGE, 4096));
    assert!(truth.map(&memory));
    let mut writes = 0;
    let lying = LyingMemory::new(truth, move |_, bytes: &mut [u8]| {
        let length = bytes.len();
        for [_, place, bits] in lies.iter().filter(|lie: &&Lie| lie[0] % WRITES == writes) {
            if let Some(byte) = usize::from(*place).checked_rem(length).and_then(|at| bytes.get_mut(at)) {
                *byte ^= bits;
            }
        }
        writes = writes.saturating_add(1);
    });
    let mut device = Device::new(DeviceConfig::profile(Profile::Instant, 1), Box::new(lying)).expect("a device");
    device.enable_function();
    faults.into_iter().for_each(|fault| device.faults_mut().arm(fault));
    let mut host = Host { device, memory, microseconds: 0 };
    let started = start(&mut host);
    if let Ok(pages) = started {
        assert!(pages <= PAGES, "{pages} pages");
    }
    assert!(host.microseconds <= 3000, "three waits of a millisecond");
    started
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_and_each_lie_is_seen() {
        assert_eq!(outcome(&[]), Ok(17));
        assert_eq!(outcome(&[0, 1, 0, 0]), Err(Error::NoAnswer));
        assert_eq!(outcome(&[1, 0, 10, 0]), Ok(17), "late, but not too late");
        assert_eq!(outcome(&[1, 0, 255, 0]), Err(Error::NoAnswer));
        assert_eq!(outcome(&[2, 0, 3, 0]), Err(Error::Refused(0, 3)));
        assert_eq!(outcome(&[3, 1, 2, 0]), Err(Error::Refused(2, 0)));
        // The fourth write is the answer to QUERY_PAGES: 17 pages, and a lie of 16 million more.
        assert_eq!(outcome(&[4, 3, 12, 1]), Err(Error::Absurd(1 << 24 | 17)));
        // The same by its place in the output of the command.
        assert_eq!(outcome(&[5, 1, 12, 1]), Err(Error::Absurd(1 << 24 | 17)));
        assert_eq!(outcome(&[5, 1, 0, 4]), Err(Error::Refused(0, 4)));
    }

    /// The seeds have a fault of each kind, and a lie about each field of both answers.
    #[test]
    fn the_seeds_start_the_driver_in_each_way() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/seeds/start");
        let files = std::fs::read_dir(folder).expect("seeds").map(|file| file.expect("a seed").path());
        let outcomes: Vec<_> = files.map(|path| (outcome(&std::fs::read(&path).expect("a seed")), path)).collect();
        let of = |name: &str| {
            let found = outcomes.iter().find(|(_, path)| path.ends_with(name));
            found.expect("a seed of this name").0
        };
        assert_eq!(of("boot"), Ok(17));
        assert_eq!(of("query_pages_last_word_all_bits"), Err(Error::Absurd(!17)));
        for command in ["enable_hca", "query_pages"] {
            assert_eq!(of(&format!("{command}_late")), Ok(17));
            assert_eq!(of(&format!("{command}_stuck")), Err(Error::NoAnswer));
            assert_eq!(of(&format!("{command}_owner")), Err(Error::NoAnswer));
            assert_eq!(of(&format!("{command}_status_all_bits")), Err(Error::Refused(0, 0xff)));
            assert_eq!(of(&format!("{command}_delivery_status")), Err(Error::Refused(1, 0)));
        }
    }

    /// Inputs of a generator, the same ones each time: what the target does, without libFuzzer.
    #[test]
    fn a_thousand_inputs_of_each_length() {
        let (mut state, mut absurd) = (1_u64, 0);
        for length in 0..8 {
            for _ in 0..1000 {
                let input: Vec<u8> = std::iter::repeat_with(|| {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    state as u8
                })
                .take(4 * length)
                .collect();
                absurd += usize::from(matches!(outcome(&input), Err(Error::Absurd(_))));
            }
        }
        assert!(absurd > 0, "the device lied about its pages {absurd} times");
    }
}

//! What the device writes instead of the truth.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use bareverbs_sim::host_memory::HostMemory;
use bareverbs_sim::in_process::{LyingMemory, MemoryMap};

/// What happens to one write.
#[derive(Clone, Copy, Debug)]
pub(super) enum Lie {
    /// Bits from this byte on are inverted; the place counts from the end of the write, where owner bits are.
    Invert { from_end: u8, bits: u32 },
    /// It is not written.
    Lost,
    /// The last write of the same length is written again in its place.
    Stale,
    /// Each byte is this one.
    Filled { byte: u8 },
}

/// The lies that are left, and the writes so far.
#[derive(Default)]
pub(super) struct Lies {
    /// How many writes pass before it, and the lie.
    next: VecDeque<(u8, Lie)>,
    /// What was meant to be written last, by its length.
    last: Vec<Vec<u8>>,
    /// Writes of the device.
    pub(super) writes: u64,
    /// Writes that were changed.
    pub(super) changed: u64,
}

/// Lies at most that wait: an input of many thousand is no better than one of these.
const WAITING: usize = 64;

/// Lengths of writes at most that are kept.
const LENGTHS: usize = 16;

impl Lies {
    /// Tells `lie` after `pass` truths that follow the lies before it.
    pub(super) fn push(&mut self, pass: u8, lie: Lie) {
        if self.next.len() < WAITING {
            self.next.push_back((pass, lie));
        }
    }

    pub(super) fn clear(&mut self) {
        self.next.clear();
    }

    /// Changes one write.
    fn change(&mut self, map: &MemoryMap, addr: u64, bytes: &mut [u8]) {
        self.writes += 1;
        let truth = bytes.to_vec();
        match self.next.front_mut() {
            None => {}
            Some((0, lie)) => {
                let lie = *lie;
                self.next.pop_front();
                self.changed += 1;
                match lie {
                    Lie::Invert { from_end, bits } => {
                        let at = bytes.len() - 1 - usize::from(from_end) % bytes.len();
                        bytes[at..].iter_mut().zip(bits.to_le_bytes()).for_each(|(byte, bits)| *byte ^= bits);
                    }
                    Lie::Lost => {
                        let _ = map.read(addr, bytes);
                    }
                    Lie::Stale => {
                        if let Some(old) = self.last.iter().find(|old| old.len() == bytes.len()) {
                            bytes.copy_from_slice(old);
                        }
                    }
                    Lie::Filled { byte } => bytes.fill(byte),
                }
            }
            Some((pass, _)) => *pass -= 1,
        }
        if let Some(old) = self.last.iter_mut().find(|old| old.len() == truth.len()) {
            *old = truth;
        } else if self.last.len() < LENGTHS {
            self.last.push(truth);
        }
    }
}

/// Returns memory that tells the lies, and the lies.
pub(super) fn lying(map: &MemoryMap) -> (Box<dyn HostMemory + Send>, Arc<Mutex<Lies>>) {
    let lies = Arc::new(Mutex::new(Lies::default()));
    let (teller, below) = (Arc::clone(&lies), map.clone());
    let lie = move |addr: u64, bytes: &mut [u8]| teller.lock().unwrap().change(&below, addr, bytes);
    (Box::new(LyingMemory::new(map.clone(), lie)), lies)
}

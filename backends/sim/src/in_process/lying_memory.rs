//! Memory that changes what the device writes to it.

use std::fmt;

use parking_lot::Mutex;

use super::memory::MemoryMap;
use crate::host_memory::{DmaFault, HostMemory};

/// Host memory through which a device writes other bytes than it means to: completions, events, outputs of commands,
/// data of messages. A driver that distrusts its device is tried on it.
///
/// A closure decides about each write. It is given the device address and the bytes, in the order in which the device writes, and
/// changes the bytes as it likes. Address and length stay, so that nothing is written where the device did not mean to write. What the
/// device reads is what is there. To lie on demand, let the closure look at a switch that the test has; to lie by chance, give it a
/// generator with a seed.
///
/// The closure runs with the world locked: it must not use the world, its hosts, or a memory that waits for them.
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicBool, Ordering};
///
/// use bareverbs_sim::DeviceConfig;
/// use bareverbs_sim::in_process::{LyingMemory, World, WorldConfig};
///
/// let lies = Arc::new(AtomicBool::new(false));
/// let switch = Arc::clone(&lies);
/// // A generator with a seed (xorshift): one bit of a write in eight is inverted.
/// let mut state = 7_u64;
/// let mut dice = move || {
///     state ^= state << 13;
///     state ^= state >> 7;
///     state ^= state << 17;
///     state as usize
/// };
/// let lie = move |_address: u64, bytes: &mut [u8]| {
///     let (hit, at, bit) = (dice() % 8 == 0, dice() % bytes.len(), dice() % 8);
///     if switch.load(Ordering::Relaxed) && hit {
///         bytes[at] ^= 1 << bit;
///     }
/// };
/// let world = World::new(WorldConfig::default());
/// let host = world.add_with_memory(DeviceConfig::default(), |map| Box::new(LyingMemory::new(map, lie)))?;
/// // Bring a driver up on `host`, and then let its device lie.
/// lies.store(true, Ordering::Relaxed);
/// # drop(host);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct LyingMemory<F, M = MemoryMap> {
    truth: M,
    lie: Mutex<F>,
}

impl<F: FnMut(u64, &mut [u8]), M: HostMemory> LyingMemory<F, M> {
    /// Returns memory that lets `lie` change each write to `truth` first. `lie` is not called for a write of no bytes.
    pub fn new(truth: M, lie: F) -> Self {
        Self { truth, lie: Mutex::new(lie) }
    }
}

impl<F, M: fmt::Debug> fmt::Debug for LyingMemory<F, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LyingMemory").field("truth", &self.truth).finish_non_exhaustive()
    }
}

impl<F: FnMut(u64, &mut [u8]), M: HostMemory> HostMemory for LyingMemory<F, M> {
    fn read(&self, addr: u64, into: &mut [u8]) -> Result<(), DmaFault> {
        self.truth.read(addr, into)
    }

    fn write(&self, addr: u64, from: &[u8]) -> Result<(), DmaFault> {
        let mut bytes = from.to_vec();
        if !bytes.is_empty() {
            (self.lie.lock())(addr, &mut bytes);
        }
        self.truth.write(addr, &bytes)
    }
}

#[cfg(test)]
mod tests {
    use bareverbs::platform::DmaMemory;

    use super::*;
    use crate::in_process::SimMemory;

    #[test]
    fn a_lie_is_what_is_written_and_where_it_was_meant_to() {
        let memory = SimMemory::new(0x1000, 64);
        let map = MemoryMap::default();
        assert!(map.map(&memory));
        let mut count = 0;
        let lying = LyingMemory::new(map, |addr, bytes: &mut [u8]| {
            count += 1;
            if count == 2 {
                assert_eq!((addr, &*bytes), (0x1008, &[1, 2, 3][..]));
                bytes[1] ^= 0x80;
            }
        });
        lying.write(0x1008, &[]).unwrap();
        lying.write(0x1000, &[9]).unwrap();
        lying.write(0x1008, &[1, 2, 3]).unwrap();
        lying.write(0x1010, &[1, 2, 3]).unwrap();
        assert_eq!(lying.write(0x1040, &[1]), Err(DmaFault { addr: 0x1040, len: 1 }));
        let mut all = [0; 24];
        memory.read(0, &mut all).unwrap();
        assert_eq!(all, [9, 0, 0, 0, 0, 0, 0, 0, 1, 0x82, 3, 0, 0, 0, 0, 0, 1, 2, 3, 0, 0, 0, 0, 0]);
        let mut back = [0; 3];
        lying.read(0x1008, &mut back).unwrap();
        assert_eq!(back, [1, 0x82, 3], "what is there is read");
    }
}

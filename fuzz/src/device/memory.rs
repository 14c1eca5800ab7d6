//! Memory of a guest that can be taken away at any access.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bareverbs_sim::host_memory::{DmaFault, HostMemory};
use bareverbs_sim::in_process::{MemoryMap, SimMemory};

/// What the device reaches, and how long it still does.
#[derive(Clone)]
pub struct GuestMemory {
    map: MemoryMap,
    /// Accesses that still succeed.
    accesses: Arc<AtomicU64>,
    /// The first address that is gone, as after the file of the memory was truncated.
    end: Arc<AtomicU64>,
}

impl GuestMemory {
    /// Creates a view of all of `memory`.
    pub fn new(memory: &SimMemory) -> Self {
        let map = MemoryMap::default();
        assert!(map.map(memory));
        Self { map, accesses: Arc::new(AtomicU64::new(u64::MAX)), end: Arc::new(AtomicU64::new(u64::MAX)) }
    }

    /// Takes the memory away after `accesses` more accesses: in the middle of what the device does then.
    pub fn unmap_after(&self, accesses: u64) {
        self.accesses.store(accesses, Ordering::Relaxed);
    }

    /// Takes everything from address `end` on away.
    pub fn truncate(&self, end: u64) {
        self.end.store(end, Ordering::Relaxed);
    }

    /// Gives everything back.
    pub fn restore(&self) {
        self.unmap_after(u64::MAX);
        self.truncate(u64::MAX);
    }

    fn check(&self, addr: u64, len: usize) -> Result<(), DmaFault> {
        let left = self.accesses.load(Ordering::Relaxed);
        self.accesses.store(left.saturating_sub(1), Ordering::Relaxed);
        let within = addr.saturating_add(len as u64) <= self.end.load(Ordering::Relaxed);
        if left > 0 && within { Ok(()) } else { Err(DmaFault { addr, len }) }
    }
}

impl HostMemory for GuestMemory {
    fn read(&self, addr: u64, into: &mut [u8]) -> Result<(), DmaFault> {
        self.check(addr, into.len())?;
        self.map.read(addr, into)
    }

    fn write(&self, addr: u64, from: &[u8]) -> Result<(), DmaFault> {
        self.check(addr, from.len())?;
        self.map.write(addr, from)
    }
}

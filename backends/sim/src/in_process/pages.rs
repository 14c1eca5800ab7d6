//! Pages of a host for the firmware of its device.

use std::collections::BTreeSet;

use bareverbs::platform::{DmaMemory, PageSource, TooFewPages};

use super::memory::MemoryMap;

/// Bytes of a page.
const PAGE: usize = 4096;

/// Single pages of simulated memory, as of a [`Host`](super::Host), for the firmware of its device. The memory grows with what the firmware wants.
#[derive(Debug)]
pub struct SimPages {
    map: MemoryMap,
    /// Address from which on memory is added.
    from: u64,
    limit: u32,
    free: Vec<u64>,
    allocated: BTreeSet<u64>,
}

impl SimPages {
    /// Creates a source of up to `limit` pages. Their memory is added to `map` behind all memory of it, or from address `from` on.
    pub const fn new(map: MemoryMap, from: u64, limit: u32) -> Self {
        Self { map, from, limit, free: Vec::new(), allocated: BTreeSet::new() }
    }

    /// Returns the number of pages that are allocated.
    pub fn allocated(&self) -> usize {
        self.allocated.len()
    }
}

// SAFETY: the memory has no other user, and stays in the map, of which each value has a clone.
#[expect(unsafe_code, reason = "the trait is unsafe to implement")]
unsafe impl PageSource for SimPages {
    fn reserve(&mut self, wanted: u32) -> Result<(), TooFewPages> {
        let available = self.limit.saturating_sub(self.allocated.len() as u32);
        if wanted > available {
            return Err(TooFewPages { wanted, available });
        }
        let missing = (wanted as usize).saturating_sub(self.free.len());
        if missing != 0 {
            let start = self.map.append(self.from, missing * PAGE).device_addr();
            self.free.extend((0..missing as u64).rev().map(|page| start + page * PAGE as u64));
        }
        Ok(())
    }

    fn allocate(&mut self) -> Option<u64> {
        let addr = self.free.pop()?;
        self.allocated.insert(addr);
        Some(addr)
    }

    fn free(&mut self, device_addr: u64) -> bool {
        let was = self.allocated.remove(&device_addr);
        if was {
            self.free.push(device_addr);
        }
        was
    }

    fn free_all(&mut self) {
        self.free.extend(std::mem::take(&mut self.allocated));
    }
}

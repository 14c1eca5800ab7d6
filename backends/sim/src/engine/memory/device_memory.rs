//! Memory in the device itself (MEMIC), allocated in ranges; hosts reach it through BAR0, queue pairs through keys.

use std::cell::RefCell;
use std::collections::BTreeMap;

use bareverbs_mlx5_spec::CmdStatus;

use crate::limits::LOG_MIN_ALLOCATION;
use crate::registers::bar0::{DEVICE_MEMORY_SIZE, DEVICE_MEMORY_START};

/// Binary logarithm of the maximum alignment of an allocation.
pub(crate) const LOG_MAX_ALIGNMENT: u32 = 12;

/// The memory, there from the first allocation on, and its allocations: first byte and length of each.
#[derive(Debug, Default)]
pub(in crate::engine) struct DeviceMemory {
    bytes: RefCell<Vec<u8>>,
    allocations: BTreeMap<u64, u64>,
}

impl DeviceMemory {
    pub(in crate::engine) fn len(&self) -> usize {
        self.allocations.len()
    }

    /// Allocates `len` bytes within a range, at an address that ends with `log_alignment` zero bits.
    pub(in crate::engine) fn alloc(
        &mut self,
        (start, size): (u64, u64),
        len: u64,
        log_alignment: u32,
    ) -> Result<u64, CmdStatus> {
        let end = DEVICE_MEMORY_START + DEVICE_MEMORY_SIZE;
        let inside = start >= DEVICE_MEMORY_START && start.checked_add(size).is_some_and(|range_end| range_end <= end);
        if !inside || len == 0 || !len.is_multiple_of(1 << LOG_MIN_ALLOCATION) || log_alignment > LOG_MAX_ALIGNMENT {
            return Err(CmdStatus::BadParam);
        }
        let align = |at: u64| at.next_multiple_of(1 << log_alignment.max(LOG_MIN_ALLOCATION));
        let mut at = align(start);
        for (&used, &used_len) in self.allocations.range(..start + size) {
            if used < at + len && used + used_len > at {
                at = align(used + used_len);
            }
        }
        if at + len > start + size {
            return Err(CmdStatus::NoResources);
        }
        // No host sees the content of an earlier allocation.
        let mut bytes = self.bytes.borrow_mut();
        bytes.resize(DEVICE_MEMORY_SIZE as usize, 0);
        if let Some(allocated) = place(at, len as usize).and_then(|place| bytes.get_mut(place)) {
            allocated.fill(0);
        }
        self.allocations.insert(at, len);
        Ok(at)
    }

    /// Returns whether there is such an allocation.
    pub(in crate::engine) fn is_allocation(&self, at: u64, len: u64) -> bool {
        self.allocations.get(&at) == Some(&len)
    }

    /// Takes an allocation back.
    pub(in crate::engine) fn free(&mut self, at: u64) {
        self.allocations.remove(&at);
    }

    /// Returns the first byte of the allocation that contains all these bytes.
    pub(in crate::engine) fn allocation_with(&self, at: u64, len: u64) -> Option<u64> {
        let (&start, &size) = self.allocations.range(..=at).next_back()?;
        at.checked_add(len).is_some_and(|end| end <= start + size).then_some(start)
    }

    /// Copies bytes out; zero where nothing is.
    pub(in crate::engine) fn read(&self, at: u64, into: &mut [u8]) {
        let bytes = self.bytes.borrow();
        match place(at, into.len()).and_then(|place| bytes.get(place)) {
            Some(from) => into.copy_from_slice(from),
            None => into.fill(0),
        }
    }

    /// Copies bytes in; nothing happens where nothing is.
    pub(in crate::engine) fn write(&self, at: u64, from: &[u8]) {
        let mut bytes = self.bytes.borrow_mut();
        if let Some(into) = place(at, from.len()).and_then(|place| bytes.get_mut(place)) {
            into.copy_from_slice(from);
        }
    }
}

/// Returns where bytes of BAR0 lie in the memory.
fn place(at: u64, len: usize) -> Option<std::ops::Range<usize>> {
    let start = usize::try_from(at.checked_sub(DEVICE_MEMORY_START)?).ok()?;
    Some(start..start.checked_add(len)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: (u64, u64) = (DEVICE_MEMORY_START, DEVICE_MEMORY_SIZE);

    #[test]
    fn allocations_do_not_overlap_and_are_reused() {
        let mut memory = DeviceMemory::default();
        let first = memory.alloc(ALL, 128, 0).unwrap();
        let second = memory.alloc(ALL, 64, 12).unwrap();
        let third = memory.alloc(ALL, 64, 0).unwrap();
        assert_eq!((first, second, third), (ALL.0, ALL.0 + 4096, ALL.0 + 128));
        // Linux asks for a page of its own each time, and for the next if that has no room.
        assert_eq!(memory.alloc((first, 4096), 4096, 0), Err(CmdStatus::NoResources));
        assert_eq!((memory.allocation_with(first + 1, 127), memory.allocation_with(third, 64)), (Some(first), Some(third)));
        assert_eq!((memory.allocation_with(first, 129), memory.allocation_with(ALL.0 + 1000, 1)), (None, None));
        assert!(memory.is_allocation(first, 128) && !memory.is_allocation(first, 64) && !memory.is_allocation(first + 64, 64));
        memory.write(first, b"left");
        memory.free(first);
        assert_eq!(memory.alloc(ALL, 128, 0), Ok(first));
        let mut bytes = [1; 4];
        memory.read(first, &mut bytes);
        assert_eq!(bytes, [0; 4], "cleared");
        for (range, len, alignment) in [((0, 4096), 64, 0), (ALL, 0, 0), (ALL, 65, 0), (ALL, 64, 13), ((u64::MAX, 1), 64, 0)] {
            assert_eq!(memory.alloc(range, len, alignment), Err(CmdStatus::BadParam));
        }
    }

    #[test]
    fn bytes_outside_are_nothing() {
        let mut memory = DeviceMemory::default();
        let mut bytes = [7; 8];
        memory.read(ALL.0, &mut bytes);
        assert_eq!(bytes, [0; 8], "before the first allocation");
        memory.alloc(ALL, 64, 0).unwrap();
        let end = ALL.0 + ALL.1;
        memory.write(end - 4, &[9; 8]);
        memory.read(end - 4, &mut bytes);
        assert_eq!(bytes, [0; 8]);
        memory.write(end - 8, &[9; 8]);
        memory.read(end - 8, &mut bytes);
        assert_eq!(bytes, [9; 8]);
    }
}

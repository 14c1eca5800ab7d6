//! Host memory for tests.

use std::cell::RefCell;

use crate::memory::{DmaFault, HostMemory};

/// A run of bytes at a device address.
pub(super) struct TestMemory {
    base: u64,
    bytes: RefCell<Vec<u8>>,
}

impl TestMemory {
    pub(super) fn new(base: u64, len: usize) -> Self {
        Self { base, bytes: RefCell::new(vec![0; len]) }
    }

    fn range(&self, addr: u64, len: usize) -> Result<std::ops::Range<usize>, DmaFault> {
        let fault = DmaFault { addr, len };
        let start = usize::try_from(addr.checked_sub(self.base).ok_or(fault)?).map_err(|_| fault)?;
        let end = start.checked_add(len).filter(|&end| end <= self.bytes.borrow().len()).ok_or(fault)?;
        Ok(start..end)
    }
}

impl HostMemory for TestMemory {
    fn read(&self, addr: u64, into: &mut [u8]) -> Result<(), DmaFault> {
        let range = self.range(addr, into.len())?;
        into.copy_from_slice(&self.bytes.borrow()[range]);
        Ok(())
    }

    fn write(&self, addr: u64, from: &[u8]) -> Result<(), DmaFault> {
        let range = self.range(addr, from.len())?;
        self.bytes.borrow_mut()[range].copy_from_slice(from);
        Ok(())
    }
}

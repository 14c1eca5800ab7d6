//! The host's memory as the device reaches it: DMA.

use std::fmt;

/// An access to an address that is not mapped for the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DmaFault {
    /// Address of the access.
    pub addr: u64,
    /// Its length in bytes.
    pub len: usize,
}

impl fmt::Display for DmaFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no host memory at {:#x}, {} bytes", self.addr, self.len)
    }
}

impl std::error::Error for DmaFault {}

/// Memory that the device reads and writes by device address. Shared with the host, hence `&self` for writes too.
pub trait HostMemory {
    /// Copies bytes out; all or nothing.
    fn read(&self, addr: u64, into: &mut [u8]) -> Result<(), DmaFault>;
    /// Copies bytes in; all or nothing. Whoever sees a byte of the write sees all that are before the aligned 8 bytes that it is
    /// in: hosts poll the last byte of a message or of a completion.
    fn write(&self, addr: u64, from: &[u8]) -> Result<(), DmaFault>;
}

impl<M: HostMemory + ?Sized> HostMemory for Box<M> {
    fn read(&self, addr: u64, into: &mut [u8]) -> Result<(), DmaFault> {
        (**self).read(addr, into)
    }

    fn write(&self, addr: u64, from: &[u8]) -> Result<(), DmaFault> {
        (**self).write(addr, from)
    }
}

/// The `N` bytes at `addr`.
pub fn read_array<const N: usize>(memory: &dyn HostMemory, addr: u64) -> Result<[u8; N], DmaFault> {
    let mut bytes = [0; N];
    memory.read(addr, &mut bytes)?;
    Ok(bytes)
}

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

/// Memory that the device reads and writes by device address (DMA). The host shares it, so writes take `&self`.
///
/// # Errors
/// Both functions return [`DmaFault`] if a byte of the range is not mapped for the device.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not memory that a simulated device reaches",
    note = "it is reached through `&self`, since host and device share it: `in_process::MemoryMap` is the memory of a host \
            in this process"
)]
pub trait HostMemory {
    /// Fills `into` from device address `addr` on, or copies nothing.
    fn read(&self, addr: u64, into: &mut [u8]) -> Result<(), DmaFault>;
    /// Copies `from` to device address `addr`, or copies nothing.
    ///
    /// Bytes become visible in the order of their addresses, in units of 8 aligned bytes: hosts poll the last byte of a message
    /// or of a completion.
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

/// Returns the `N` bytes at device address `addr`.
///
/// # Errors
/// A byte of them is not mapped for the device.
pub fn read_array<const N: usize>(memory: &dyn HostMemory, addr: u64) -> Result<[u8; N], DmaFault> {
    let mut bytes = [0; N];
    memory.read(addr, &mut bytes)?;
    Ok(bytes)
}

//! BAR0 of a card, mapped into this process.
#![expect(unsafe_code, reason = "registers are raw memory that the kernel maps")]

use std::ptr::NonNull;
use std::sync::Arc;

use bareverbs::{OutOfRange, Registers};
use bareverbs_mlx5::mmio::MappedBar;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::device::OpenFunction;
use crate::error::Error;

/// The registers of a card, for as long as the value lives. VFIO maps them uncached.
#[derive(Debug)]
pub struct Bar {
    registers: MappedBar,
    base: NonNull<u8>,
    len: usize,
    /// Whose registers they are: nobody opens the function again while they are here.
    _function: Arc<OpenFunction>,
}

// SAFETY: the mapping belongs to the value, and every access to it goes through `registers`, which is `Send`.
unsafe impl Send for Bar {}

impl Bar {
    /// Maps the `len` bytes at `offset` of the function's descriptor.
    ///
    /// # Safety
    /// They are BAR0 of the function, and are mapped once.
    pub(crate) unsafe fn map(function: Arc<OpenFunction>, offset: u64, len: usize) -> Result<Self, Error> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses touches no memory that exists.
        let base = unsafe { mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, function.descriptor(), offset) };
        let base = base.map_err(|error| Error::io("BAR0 cannot be mapped", error.into()))?;
        let base = NonNull::new(base.cast::<u8>()).ok_or(Error::BarNotMappable)?;
        // SAFETY: aligned to a page, mapped uncached by vfio-pci until `drop`, and mapped once, as the caller promises.
        let registers = unsafe { MappedBar::new(base, len) };
        Ok(Self { registers, base, len, _function: function })
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to the value, and no reference into it outlives a borrow of the value. Should the kernel
        // refuse, the registers stay mapped and are not used.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

impl Registers for Bar {
    fn len(&self) -> usize {
        self.registers.len()
    }

    #[inline]
    fn read32(&self, offset: usize) -> Result<u32, OutOfRange> {
        self.registers.read32(offset)
    }

    #[inline]
    fn write32(&mut self, offset: usize, value: u32) -> Result<(), OutOfRange> {
        self.registers.write32(offset, value)
    }

    #[inline]
    fn write64(&mut self, offset: usize, value: u64) -> Result<(), OutOfRange> {
        self.registers.write64(offset, value)
    }
}

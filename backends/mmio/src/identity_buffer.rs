//! An application buffer where device addresses are the caller's.

use bareverbs::platform::{AddressMap, DmaMemory, Extent, OutOfRange};
use bareverbs::{DmaBuffer, format_as};

use crate::MappedMemory;

/// [`MappedMemory`] as the buffer of a memory region. Requests name its bytes by their device addresses.
///
/// This is the usual buffer of firmware. The region owns the memory until `dereg_mr` returns it.
///
/// ```
/// # use core::ptr::NonNull;
/// use bareverbs::platform::{AddressMap, Extent};
/// use bareverbs::DmaBuffer;
/// use bareverbs_mmio::{IdentityBuffer, MappedMemory};
///
/// # #[repr(align(4096))]
/// # struct Page([u8; 4096]);
/// # let page = NonNull::from(Box::leak(Box::new(Page([0; 4096])))).cast::<u8>();
/// // SAFETY: a leaked page that nothing else accesses.
/// let memory = unsafe { MappedMemory::new(page, 4096, 0x8000_0000) };
/// let mut buffer = IdentityBuffer::new(memory);
/// buffer.write(8, b"payload")?;
/// assert_eq!(buffer.addr(), 0x8000_0000);
/// assert_eq!(buffer.extent(0x8000_0008), Some(Extent { device_addr: 0x8000_0008, len: 4088 }));
/// # Ok::<(), bareverbs::platform::OutOfRange>(())
/// ```
pub struct IdentityBuffer(MappedMemory);

format_as!([] IdentityBuffer, "IdentityBuffer({:#x}, {} bytes)", |this| this.0.device_addr(), DmaMemory::len(&this.0));

impl IdentityBuffer {
    /// Creates a buffer of all bytes of `memory`.
    pub const fn new(memory: MappedMemory) -> Self {
        Self(memory)
    }

    /// Returns the memory.
    pub fn into_memory(self) -> MappedMemory {
        self.0
    }
}

impl AddressMap for IdentityBuffer {
    fn extent(&self, addr: u64) -> Option<Extent> {
        let left = self.len().checked_sub(addr.checked_sub(self.addr())?)?;
        (left != 0).then_some(Extent { device_addr: addr, len: left })
    }
}

// SAFETY: the bytes stay allocated, belong to the value alone and are contiguous for the device at `device_addr`, all promised
// to `MappedMemory::new`; `extent` returns exactly these addresses.
unsafe impl DmaBuffer for IdentityBuffer {
    fn addr(&self) -> u64 {
        self.0.device_addr()
    }

    fn len(&self) -> u64 {
        DmaMemory::len(&self.0) as u64
    }

    fn read(&self, at: usize, into: &mut [u8]) -> Result<(), OutOfRange> {
        self.0.read(at, into)
    }

    fn write(&mut self, at: usize, from: &[u8]) -> Result<(), OutOfRange> {
        self.0.write(at, from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_memory::{aligned, bytes};

    #[test]
    fn addresses_are_the_devices_and_end_with_the_memory() {
        let base = aligned::<4096>(0);
        // SAFETY: leaked memory of that length and alignment, of this test alone.
        let mut buffer = IdentityBuffer::new(unsafe { MappedMemory::new(base, 4096, 0x7000) });
        assert_eq!((buffer.addr(), buffer.len()), (0x7000, 4096));
        for (addr, len) in [(0x7000, Some(4096)), (0x7001, Some(4095)), (0x7fff, Some(1)), (0x8000, None), (0x6fff, None)] {
            assert_eq!(buffer.extent(addr), len.map(|len| Extent { device_addr: addr, len }), "{addr:#x}");
        }
        assert_eq!(buffer.extent(u64::MAX), None);
        buffer.write(4092, &[1, 2, 3, 4]).unwrap();
        assert_eq!(bytes(base, 4096)[4092..], [1, 2, 3, 4]);
        let mut back = [0; 4];
        buffer.read(4092, &mut back).unwrap();
        assert_eq!(back, [1, 2, 3, 4]);
        assert_eq!(buffer.write(4093, &[0; 4]), Err(OutOfRange { offset: 4093, len: 4, size: 4096 }));
        assert_eq!(buffer.read(4096, &mut [0]), Err(OutOfRange { offset: 4096, len: 1, size: 4096 }));
        assert_eq!(buffer.into_memory().device_addr(), 0x7000);
    }
}

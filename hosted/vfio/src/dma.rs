//! Memory that the device reaches: locked, and mapped into its I/O address space for as long as it lives.
#![expect(unsafe_code, reason = "memory of a device is raw memory that the kernel maps")]

use std::ptr::NonNull;
use std::sync::Arc;

use bareverbs::{AddressMap, DmaMemory, OutOfRange};
use bareverbs_mlx5::mmio::MappedMemory;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::device::OpenFunction;
use crate::error::Error;

/// What the driver calls a page.
const PAGE: usize = 4096;
/// A huge page.
const HUGE: usize = 2 << 20;

/// The least that the IOMMU maps: a page of the kernel, which has 16 or 64 KiB on some machines.
fn kernel_page() -> usize {
    rustix::param::page_size().max(PAGE)
}

/// Whole pages of anonymous memory of this process.
struct Pages {
    base: NonNull<u8>,
    len: usize,
    /// Bytes of the pages of which they surely consist.
    page: usize,
}

impl Pages {
    /// At least `len` zeroed bytes in huge pages, if the machine has reserved some; not shared with a forked child.
    fn huge(len: usize) -> Option<Self> {
        let len = len.checked_next_multiple_of(HUGE)?;
        Self::map(len, MapFlags::PRIVATE | MapFlags::HUGETLB | MapFlags::HUGE_2MB, HUGE).ok()
    }

    /// At least `len` zeroed bytes, not shared with a forked child; many of them in a place where the kernel can make huge pages.
    fn new(len: usize) -> Result<Self, Error> {
        let refuse = |error: rustix::io::Errno| Error::io("memory", error.into());
        let unit = if len < HUGE { kernel_page() } else { HUGE };
        let len = len.max(1).checked_next_multiple_of(unit).ok_or(Error::NoAddresses { len: len as u64 })?;
        if len < HUGE {
            return Self::map(len, MapFlags::PRIVATE, PAGE).map_err(refuse);
        }
        // One huge page more than needed has an aligned start somewhere; the rest is given back.
        let wide = Self::map(len.saturating_add(HUGE), MapFlags::PRIVATE, PAGE).map_err(refuse)?;
        let (start, end) = (wide.base.addr().get(), wide.base.addr().get() + wide.len);
        let skip = start.next_multiple_of(HUGE) - start;
        let rest = end - (start + skip + len);
        // From here on nobody gives the whole back.
        let wide = std::mem::ManuallyDrop::new(wide);
        // SAFETY: `skip` is less than a huge page, so that `skip + len` bytes and the rest lie in the mapping. What is given back
        // was never used; should the kernel refuse, it stays mapped and unused.
        let base = unsafe {
            let base = wide.base.add(skip);
            if skip != 0 {
                let _ = munmap(wide.base.as_ptr().cast(), skip);
            }
            if rest != 0 {
                let _ = munmap(base.add(len).as_ptr().cast(), rest);
            }
            base
        };
        let pages = Self { base, len, page: PAGE };
        // Without huge pages everything works too, only with more entries in the IOMMU.
        // SAFETY: the advice changes no content.
        let _ = unsafe { madvise(base.as_ptr().cast(), len, Advice::LinuxHugepage) };
        Ok(pages)
    }

    fn map(len: usize, flags: MapFlags, page: usize) -> Result<Self, rustix::io::Errno> {
        // SAFETY: a new mapping at an address that the kernel chooses touches no memory that exists.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags) }?;
        let pages = Self { base: NonNull::new(base.cast()).ok_or(rustix::io::Errno::NOMEM)?, len, page };
        // A child would get copies of pages, and the device might write to the child's.
        // SAFETY: the advice changes no content.
        unsafe { madvise(base, len, Advice::LinuxDontFork) }?;
        Ok(pages)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to the value, and nobody has a pointer into it any more. Should the kernel refuse, the
        // memory stays mapped, which hurts nobody.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// A piece of this process's memory in the I/O address space of a device, for as long as the value lives.
///
/// It is the [`AddressMap`] with which `reg_mr` is called: addresses outside of the piece have no translation, so that only what
/// the IOMMU holds can be registered. When the value is dropped, the IOMMU takes the memory from the device, whatever regions
/// there still are; what the device tries to reach then is refused by the IOMMU. Its addresses are given to other memory only after
/// all others (60 GiB of them) were.
#[derive(Debug)]
pub struct Mapping {
    function: Arc<OpenFunction>,
    base: NonNull<u8>,
    len: usize,
    iova: u64,
    /// Whether the IOMMU was told to forget it.
    unmapped: bool,
}

// SAFETY: the value is a range of addresses; it gives no access to what lies there.
unsafe impl Send for Mapping {}
// SAFETY: as above, and nothing changes through a shared reference.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// # Safety
    /// As for `AddressSpace::map`, until the value is dropped or [`Mapping::end`] has succeeded.
    pub(crate) unsafe fn new(function: Arc<OpenFunction>, base: NonNull<u8>, len: usize) -> Result<Self, Error> {
        let addr = base.addr().get();
        if len == 0 || !addr.is_multiple_of(kernel_page()) || !len.is_multiple_of(kernel_page()) {
            return Err(Error::Unaligned { addr, len });
        }
        let align = if len < HUGE { PAGE } else { HUGE };
        // SAFETY: as promised by the caller.
        let iova = unsafe { function.space().map(base, len, align as u64) }?;
        Ok(Self { function, base, len, iova, unmapped: false })
    }

    /// Address of the first byte in this process.
    pub fn addr(&self) -> u64 {
        self.base.addr().get() as u64
    }

    /// Length in bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no byte; never.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// I/O virtual address of the first byte.
    pub const fn iova(&self) -> u64 {
        self.iova
    }

    /// Takes the memory from the device. What is left of the value does nothing.
    ///
    /// # Errors
    /// The kernel refused: the device may still reach the memory, which must stay as it is.
    pub fn end(&mut self) -> Result<(), Error> {
        if !self.unmapped {
            self.function.space().unmap(self.iova, self.len)?;
            self.unmapped = true;
        }
        Ok(())
    }
}

impl AddressMap for Mapping {
    fn device_addr(&self, addr: u64) -> Option<u64> {
        let offset = addr.wrapping_sub(self.addr());
        (!self.unmapped && offset < self.len as u64).then(|| self.iova.wrapping_add(offset))
    }

    fn page_size(&self) -> u64 {
        // Address and I/O virtual address of long pieces are congruent modulo a huge page; a piece that ends within one would
        // be taken for longer than it is.
        let whole = self.addr().is_multiple_of(HUGE as u64) && self.len.is_multiple_of(HUGE);
        (if whole { HUGE } else { PAGE }) as u64
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // Who needs to know calls `end`.
        let _ = self.end();
    }
}

/// Zeroed memory that the device reaches and that belongs to this value.
///
/// Bytes move by copy ([`DmaMemory`]), since the device may write at any time. It is also the [`AddressMap`] with which
/// `reg_mr` is called for it: SGEs and peers name its bytes by their address in this process ([`DmaBuffer::addr`]).
pub struct DmaBuffer {
    memory: MappedMemory,
    mapping: Mapping,
    /// `None` once the memory was left to the device for good.
    pages: Option<Pages>,
}

// SAFETY: the pages belong to the value, and every access to them goes through `memory`, which is `Send`.
unsafe impl Send for DmaBuffer {}

impl DmaBuffer {
    pub(crate) fn new(function: Arc<OpenFunction>, len: usize) -> Result<Self, Error> {
        // Reserved huge pages may be others' (a limit of the control group): it shows when they are touched.
        if len >= HUGE
            && let Some(pages) = Pages::huge(len)
            && let Ok(buffer) = Self::of(function.clone(), pages, len)
        {
            return Ok(buffer);
        }
        Self::of(function, Pages::new(len)?, len)
    }

    fn of(function: Arc<OpenFunction>, pages: Pages, len: usize) -> Result<Self, Error> {
        // SAFETY: whole pages of a mapping that lives until `drop` below has taken them from the device.
        let mapping = unsafe { Mapping::new(function, pages.base, pages.len) }?;
        // SAFETY: aligned to a page on both sides, readable and writable for as long as the value lives, contiguous for the
        // device by the one mapping, coherent (VFIO maps nothing else), and never handed out as a reference.
        let memory = unsafe { MappedMemory::new(pages.base, len, mapping.iova()) };
        Ok(Self { memory, mapping, pages: Some(pages) })
    }

    /// Address of the first byte in this process: what SGEs and peers call it.
    pub fn addr(&self) -> u64 {
        self.mapping.addr()
    }

    /// Bytes of the pages of which the kernel made it: 2 MiB if huge pages were reserved, otherwise 4096 (of which the kernel
    /// may make huge ones by itself).
    pub fn page_bytes(&self) -> usize {
        self.pages.as_ref().map_or(PAGE, |pages| pages.page)
    }
}

impl std::fmt::Debug for DmaBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DmaBuffer").field("len", &self.len()).field("mapping", &self.mapping).finish_non_exhaustive()
    }
}

impl Drop for DmaBuffer {
    fn drop(&mut self) {
        if self.mapping.end().is_err() {
            // The device may still write to it: the memory stays.
            std::mem::forget(self.pages.take());
        }
    }
}

impl DmaMemory for DmaBuffer {
    fn len(&self) -> usize {
        self.memory.len()
    }

    fn device_addr(&self) -> u64 {
        self.memory.device_addr()
    }

    fn read(&self, at: usize, into: &mut [u8]) -> Result<(), OutOfRange> {
        self.memory.read(at, into)
    }

    fn write(&mut self, at: usize, from: &[u8]) -> Result<(), OutOfRange> {
        self.memory.write(at, from)
    }

    #[inline]
    fn read_u8(&self, at: usize) -> Result<u8, OutOfRange> {
        self.memory.read_u8(at)
    }

    #[inline]
    fn store_u32(&mut self, at: usize, value: u32) -> Result<(), OutOfRange> {
        self.memory.store_u32(at, value)
    }

    #[inline]
    fn load<const N: usize>(&self, at: usize) -> Result<[u64; N], OutOfRange> {
        self.memory.load(at)
    }

    #[inline]
    fn store<const N: usize>(&mut self, at: usize, words: &[u64; N]) -> Result<(), OutOfRange> {
        self.memory.store(at, words)
    }
}

impl AddressMap for DmaBuffer {
    fn device_addr(&self, addr: u64) -> Option<u64> {
        self.mapping.device_addr(addr)
    }

    fn page_size(&self) -> u64 {
        self.mapping.page_size()
    }
}

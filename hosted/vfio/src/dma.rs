//! Memory that the device can access: locked, and mapped into its I/O address space until it is dropped.
#![expect(unsafe_code, reason = "memory of a device is raw memory that the kernel maps")]

use std::ptr::NonNull;
use std::sync::Arc;

use bareverbs::platform::{AddressMap, DmaMemory, DmaRing, Extent, OutOfRange, RingLayout, RingToken};
use bareverbs::{DmaBuffer, Refused};
use bareverbs_mmio::{MappedMemory, MappedRing, MappedRingView};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::address_space::{PAGE, kernel_page};
use crate::error::Error;
use crate::open_function::OpenFunction;
use crate::opener::Opener;

/// Size of a huge page in bytes.
pub(crate) const HUGE: usize = 2 << 20;

/// Whole pages of anonymous memory of this process.
struct Pages {
    base: NonNull<u8>,
    len: usize,
    opener: Opener,
}

impl Pages {
    /// Maps at least `len` zeroed bytes in reserved huge pages, not inherited by a forked child. Returns `None` if there are too few.
    fn huge(len: usize) -> Option<Self> {
        let len = len.checked_next_multiple_of(HUGE)?;
        Self::map(len, MapFlags::PRIVATE | MapFlags::HUGETLB | MapFlags::HUGE_2MB).ok()
    }

    /// Maps at least `len` zeroed bytes, not inherited by a forked child. Two megabytes and more are aligned, so that the kernel can use
    /// transparent huge pages.
    fn new(len: usize) -> Result<Self, Error> {
        let refuse = |error: rustix::io::Errno| Error::io("memory", error.into());
        let unit = if len < HUGE { kernel_page() } else { HUGE };
        let len = len.max(1).checked_next_multiple_of(unit).ok_or(Error::NoAddresses { len: len as u64 })?;
        if len < HUGE {
            return Self::map(len, MapFlags::PRIVATE).map_err(refuse);
        }
        // Maps one huge page more than needed, to find an aligned start, and unmaps the rest.
        let wide = Self::map(len.saturating_add(HUGE), MapFlags::PRIVATE).map_err(refuse)?;
        let (start, end) = (wide.base.addr().get(), wide.base.addr().get() + wide.len);
        let skip = start.next_multiple_of(HUGE) - start;
        let rest = end - (start + skip + len);
        // The whole mapping is not unmapped by a drop any more.
        let wide = std::mem::ManuallyDrop::new(wide);
        // SAFETY: `skip` is less than a huge page, so that `skip + len` bytes and the rest are within the mapping. The unmapped
        // parts were never used; if the kernel refuses, they stay mapped and unused.
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
        let pages = Self { base, len, opener: Opener::this() };
        // Huge pages only reduce the number of entries in the IOMMU, so that a refusal is no error.
        // SAFETY: the advice changes no content.
        let _ = unsafe { madvise(base.as_ptr().cast(), len, Advice::LinuxHugepage) };
        Ok(pages)
    }

    fn map(len: usize, flags: MapFlags) -> Result<Self, rustix::io::Errno> {
        // SAFETY: a new mapping at an address that the kernel chooses touches no memory that exists.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags) }?;
        let base_or_none = NonNull::new(base.cast());
        let pages = Self { base: base_or_none.ok_or(rustix::io::Errno::NOMEM)?, len, opener: Opener::this() };
        // Otherwise the first write after a fork would move a page of this process elsewhere, while the device uses the old one.
        // SAFETY: the advice changes no content.
        unsafe { madvise(base, len, Advice::LinuxDontFork) }?;
        Ok(pages)
    }
}

// SAFETY: a range of addresses that belongs to the value, which gives no access to the memory.
unsafe impl Send for Pages {}
// SAFETY: as above, and nothing changes through a shared reference.
unsafe impl Sync for Pages {}

impl Drop for Pages {
    fn drop(&mut self) {
        // A forked child has no such mapping, and may have another one there.
        if !self.opener.is_this() {
            return;
        }
        // SAFETY: the mapping belongs to the value, and no pointer into it is left. If the kernel refuses, the memory stays mapped
        // and unused.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Removes a range from the IOMMU.
type Unmap = dyn Fn() -> Result<(), Error> + Send + Sync;

/// A range of this process's memory that is mapped for a device, until the value is dropped or [`IovaRange::unmap`] has succeeded.
struct IovaRange {
    base: NonNull<u8>,
    len: usize,
    iova: u64,
    /// `None` after it has succeeded. Keeps the function open, so that it cannot be opened again while the range is mapped.
    unmap: Option<Box<Unmap>>,
}

// SAFETY: the value is a range of addresses, and gives no access to the memory.
unsafe impl Send for IovaRange {}
// SAFETY: as above, and nothing changes through a shared reference.
unsafe impl Sync for IovaRange {}

impl IovaRange {
    /// # Safety
    /// As for `AddressSpace::map`, until [`IovaRange::unmap`] has succeeded.
    unsafe fn new(function: Arc<OpenFunction>, base: NonNull<u8>, len: usize) -> Result<Self, Error> {
        let addr = base.addr().get();
        if len == 0 || !addr.is_multiple_of(kernel_page()) || !len.is_multiple_of(kernel_page()) {
            return Err(Error::Unaligned { addr, len });
        }
        // Both addresses are congruent modulo the size of a huge page, so that memory regions can be lists of huge pages.
        let align = if len < HUGE { PAGE } else { HUGE };
        // SAFETY: as promised by the caller.
        let iova = unsafe { function.space().map(base, len, align as u64) }?;
        Ok(Self { base, len, iova, unmap: Some(Box::new(move || function.space().unmap(iova, len))) })
    }

    /// Unmaps the range for the device. Later calls do nothing.
    fn unmap(&mut self) -> Result<(), Error> {
        if let Some(unmap) = &self.unmap {
            unmap()?;
            self.unmap = None;
        }
        Ok(())
    }

    fn addr(&self) -> u64 {
        self.base.addr().get() as u64
    }

    /// Returns the extent from `addr` to the end of the range, which is contiguous for the device.
    fn extent(&self, addr: u64) -> Option<Extent> {
        let offset = addr.checked_sub(self.addr())?;
        let len = (self.len as u64).checked_sub(offset).filter(|len| *len != 0)?;
        Some(Extent { device_addr: self.iova.wrapping_add(offset), len })
    }
}

impl std::fmt::Debug for IovaRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IovaRange")
            .field("base", &self.base)
            .field("len", &self.len)
            .field("iova", &self.iova)
            .finish_non_exhaustive()
    }
}

impl Drop for IovaRange {
    fn drop(&mut self) {
        // A caller that needs the result calls `unmap`.
        let _ = self.unmap();
    }
}

/// Memory of the caller in the I/O address space of a device, created by [`crate::Device::map`].
///
/// It is a buffer for `reg_mr`, and an [`AddressMap`] for `reg_mr_raw`. Addresses outside of it have no translation, so that only
/// mapped memory can be registered. Its I/O virtual addresses are reused only after all others (60 GiB) were used.
#[derive(Debug)]
pub struct Mapping {
    memory: MappedMemory,
    range: IovaRange,
}

impl Mapping {
    /// # Safety
    /// As for `AddressSpace::map`, until [`Mapping::end`] has succeeded.
    pub(crate) unsafe fn new(function: Arc<OpenFunction>, base: NonNull<u8>, len: usize) -> Result<Self, Error> {
        // SAFETY: as promised by the caller.
        let range = unsafe { IovaRange::new(function, base, len) }?;
        // SAFETY: as promised by the caller.
        Ok(unsafe { Self::of(range) })
    }

    /// # Safety
    /// As for `AddressSpace::map`, of the memory of the range, until [`Mapping::end`] has succeeded.
    unsafe fn of(range: IovaRange) -> Self {
        // SAFETY: the range is of whole pages on both sides. Until `end` has succeeded, which consumes the value, the caller promises
        // that they are readable and writable, and that no reference to them is used. The single mapping is coherent and contiguous
        // for the device.
        let memory = unsafe { MappedMemory::new(range.base, range.len, range.iova) };
        Self { memory, range }
    }

    /// Returns the I/O virtual address of the first byte.
    pub const fn iova(&self) -> u64 {
        self.range.iova
    }

    /// Unmaps the memory for the device, so that only the caller has access again.
    ///
    /// # Errors
    /// The kernel refused. The device may still access the memory, which must stay mapped.
    pub fn end(mut self) -> Result<(), Refused<Self, Error>> {
        self.range.unmap().map_err(|error| Refused { error, returned: Some(self) })
    }
}

impl AddressMap for Mapping {
    fn extent(&self, addr: u64) -> Option<Extent> {
        self.range.extent(addr)
    }
}

// SAFETY: the caller of `Device::map` promised that the bytes stay mapped, without a reference to them, until `Mapping::end` has
// succeeded, which consumes the value; every access is a checked copy.
unsafe impl DmaBuffer for Mapping {
    fn addr(&self) -> u64 {
        self.range.addr()
    }

    fn len(&self) -> u64 {
        self.range.len as u64
    }

    fn read(&self, at: usize, into: &mut [u8]) -> Result<(), OutOfRange> {
        self.memory.read(at, into)
    }

    fn write(&mut self, at: usize, from: &[u8]) -> Result<(), OutOfRange> {
        self.memory.write(at, from)
    }
}

/// Pages that a device can access, shared by a buffer and its rings. The drop of the last of them unmaps the pages for the device and
/// frees them.
struct Allocation {
    range: IovaRange,
    /// `None` after the memory was leaked because it could not be unmapped.
    pages: Option<Pages>,
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if self.range.unmap().is_err() {
            // The device may still write to the memory: leaks it.
            std::mem::forget(self.pages.take());
        }
    }
}

/// Zeroed memory that belongs to this value and that the device can access.
///
/// It is memory for the driver ([`DmaMemory`]) and a buffer for `reg_mr` ([`bareverbs::DmaBuffer`]); SGEs and peers use its addresses
/// in this process. All accesses are copies, since the device may write at any time. When the value and its rings are dropped, the
/// memory is unmapped for the device, even if it is still registered, and then freed.
pub struct DmaAllocation {
    memory: MappedMemory,
    allocation: Arc<Allocation>,
}

impl DmaAllocation {
    pub(crate) fn new(function: Arc<OpenFunction>, len: usize) -> Result<Self, Error> {
        // The control group may limit reserved huge pages, in which case mapping them for the device fails.
        if len >= HUGE
            && let Some(pages) = Pages::huge(len)
            && let Ok(buffer) = Self::of(function.clone(), pages, len)
        {
            return Ok(buffer);
        }
        Self::of(function, Pages::new(len)?, len)
    }

    fn of(function: Arc<OpenFunction>, pages: Pages, len: usize) -> Result<Self, Error> {
        // SAFETY: whole pages that live until the drop of `Allocation` has unmapped them for the device.
        let range = unsafe { IovaRange::new(function, pages.base, pages.len) }?;
        // SAFETY: the range maps these pages.
        Ok(unsafe { Self::mapped(pages, range, len) })
    }

    /// # Safety
    /// The range maps the pages for the device.
    unsafe fn mapped(pages: Pages, range: IovaRange, len: usize) -> Self {
        // SAFETY: aligned to a page on both sides, and readable and writable until the drop of the allocation, which the value and
        // each of its rings share. The single mapping is contiguous for the device and coherent (VFIO has no other), and no reference
        // to the bytes is created. The drop either unmaps them for the device or leaks them.
        let memory = unsafe { MappedMemory::new(pages.base, len, range.iova) };
        Self { memory, allocation: Arc::new(Allocation { range, pages: Some(pages) }) }
    }
}

impl std::fmt::Debug for DmaAllocation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DmaAllocation").field("memory", &self.memory).finish_non_exhaustive()
    }
}

impl AddressMap for DmaAllocation {
    fn extent(&self, addr: u64) -> Option<Extent> {
        self.allocation.range.extent(addr)
    }
}

// SAFETY: the allocation keeps its address until the value is dropped, and is mapped for the device as a whole. No reference to
// its bytes exists, and every access is a checked copy.
unsafe impl DmaBuffer for DmaAllocation {
    fn addr(&self) -> u64 {
        self.allocation.range.addr()
    }

    fn len(&self) -> u64 {
        self.memory.len() as u64
    }

    fn read(&self, at: usize, into: &mut [u8]) -> Result<(), OutOfRange> {
        self.memory.read(at, into)
    }

    fn write(&mut self, at: usize, from: &[u8]) -> Result<(), OutOfRange> {
        self.memory.write(at, from)
    }
}

// SAFETY: `MappedMemory` satisfies the contract, and all calls go to it. The bytes stay mapped, in this process and for the device,
// until the value and all rings are dropped, since each shares the allocation. Its drop unmaps them for the device first.
unsafe impl DmaMemory for DmaAllocation {
    type Ring = DmaAllocationRing;

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

    fn ring(&self, token: RingToken, layout: &RingLayout) -> Result<DmaAllocationRing, OutOfRange> {
        Ok(DmaAllocationRing { ring: self.memory.ring(token, layout)?, _allocation: self.allocation.clone() })
    }
}

/// A ring in a [`DmaAllocation`], whose memory is not freed before the ring is dropped.
pub struct DmaAllocationRing {
    ring: MappedRing,
    _allocation: Arc<Allocation>,
}

impl std::fmt::Debug for DmaAllocationRing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DmaAllocationRing").field("ring", &self.ring).finish_non_exhaustive()
    }
}

impl DmaRing for DmaAllocationRing {
    type View<'a> = MappedRingView<'a>;

    #[inline(always)]
    fn view(&self) -> MappedRingView<'_> {
        self.ring.view()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    use bareverbs::platform::{OpensRings, RingView as _};

    use super::*;

    const IOVA: u64 = 0x1_0000_0000;

    /// An IOMMU that counts the unmapped ranges, and can be made to refuse.
    #[derive(Clone, Default)]
    pub(crate) struct Iommu {
        unmapped: Arc<AtomicU32>,
        refuses: Arc<AtomicBool>,
    }

    impl Iommu {
        fn range(&self, base: NonNull<u8>, len: usize, iova: u64) -> IovaRange {
            let iommu = self.clone();
            let unmap = move || {
                if iommu.refuses.load(Ordering::Relaxed) {
                    return Err(Error::TooManyMappings { limit: None });
                }
                iommu.unmapped.fetch_add(1, Ordering::Relaxed);
                Ok(())
            };
            IovaRange { base, len, iova, unmap: Some(Box::new(unmap)) }
        }

        fn buffer(&self, len: usize) -> DmaAllocation {
            self.buffer_at(len, IOVA)
        }

        pub(crate) fn buffer_at(&self, len: usize, iova: u64) -> DmaAllocation {
            let pages = Pages::new(len).unwrap();
            let range = self.range(pages.base, pages.len, iova);
            // SAFETY: no device accesses them.
            unsafe { DmaAllocation::mapped(pages, range, len) }
        }

        pub(crate) fn unmapped(&self) -> u32 {
            self.unmapped.load(Ordering::Relaxed)
        }
    }

    /// Returns whether this process has a mapping at an address (proc_pid_maps(5)).
    fn is_mapped(addr: u64) -> bool {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().any(|line| {
            let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
            (u64::from_str_radix(start, 16).unwrap()..u64::from_str_radix(end, 16).unwrap()).contains(&addr)
        })
    }

    struct Test;

    // SAFETY: the test uses its only ring and the memory in one thread.
    unsafe impl OpensRings for Test {}

    #[test]
    fn a_ring_keeps_the_memory_of_its_buffer() {
        let iommu = Iommu::default();
        let buffer = iommu.buffer(8192);
        let pages = Arc::downgrade(&buffer.allocation);
        let ring = buffer.ring(RingToken::of(&Test), &RingLayout::new(4096, 4096, 64).unwrap()).unwrap();
        ring.view().put_word(1, 7);
        assert_eq!(buffer.load::<1>(4096 + 8), Ok([7]));
        let (shown, place) = (format!("{buffer:?} {ring:?}"), format!("{:?}", buffer.allocation.range));
        assert!(shown.contains("DmaAllocation {") && shown.contains("DmaAllocationRing {"), "{shown}");
        assert!(place.ends_with(&format!("len: 8192, iova: {IOVA}, .. }}")), "{place}");
        drop(buffer);
        assert_eq!(iommu.unmapped(), 0);
        assert_eq!(ring.view().word(1), 7);
        drop(ring);
        assert_eq!(iommu.unmapped(), 1);
        assert!(pages.upgrade().is_none());
    }

    #[test]
    fn memory_that_cannot_be_unmapped_is_never_freed() {
        let iommu = Iommu::default();
        iommu.refuses.store(true, Ordering::Relaxed);
        let buffer = iommu.buffer(8192);
        let addr = buffer.addr();
        drop(buffer);
        assert!(is_mapped(addr));
    }

    #[test]
    fn the_copies_of_a_forked_child_unmap_nothing() {
        let mut pages = Pages::new(8192).unwrap();
        let addr = pages.base.addr().get() as u64;
        pages.opener = crate::opener::tests::PARENT;
        drop(pages);
        assert!(is_mapped(addr), "the child may have something else there");
        // The kernel's flags of the mapping: dc, not copied on fork (proc_pid_smaps(5)).
        let pages = Pages::new(3 << 20).unwrap();
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let start = format!("{:x}-", pages.base.addr().get());
        let flags =
            smaps.split_once(&format!("\n{start}")).unwrap().1.lines().find(|line| line.starts_with("VmFlags:")).unwrap();
        assert!(flags.contains(" dc"), "{flags}");
    }

    #[test]
    fn a_mapping_that_cannot_be_unmapped_is_returned() {
        let (iommu, pages) = (Iommu::default(), Pages::new(8192).unwrap());
        // SAFETY: no device accesses the pages, which outlive the mapping.
        let mut mapping = unsafe { Mapping::of(iommu.range(pages.base, pages.len, IOVA)) };
        iommu.refuses.store(true, Ordering::Relaxed);
        mapping = mapping.end().unwrap_err().returned.unwrap();
        mapping.write(8190, &[1, 2]).unwrap();
        let mut bytes = [0; 3];
        mapping.read(8189, &mut bytes).unwrap();
        assert_eq!((bytes, mapping.iova(), mapping.len()), ([0, 1, 2], IOVA, 8192));
        assert_eq!(mapping.extent(mapping.addr() + 8190), Some(Extent { device_addr: IOVA + 8190, len: 2 }));
        assert!(mapping.write(8190, &[1, 2, 3]).is_err() && mapping.read(8190, &mut bytes).is_err());
        iommu.refuses.store(false, Ordering::Relaxed);
        mapping.end().unwrap();
        assert_eq!(iommu.unmapped(), 1, "unmapped once, and not again by the drop");
    }

    /// As the driver uses it, and as an application does.
    #[test]
    fn memory_for_the_device_keeps_the_contracts_of_memory_and_of_buffers() {
        for len in [4096, 3 * 4096, (2 << 20) + 4096] {
            let mut buffer = Iommu::default().buffer(len);
            assert_eq!(bareverbs_conformance::check_memory(&mut buffer), Ok(()), "{len}");
            assert_eq!(bareverbs_conformance::check_buffer(&mut buffer), Ok(()), "{len}");
        }
        let (iommu, pages) = (Iommu::default(), Pages::new(8192).unwrap());
        // SAFETY: no device accesses the pages, which outlive the mapping.
        let mut mapping = unsafe { Mapping::of(iommu.range(pages.base, pages.len, IOVA)) };
        assert_eq!(bareverbs_conformance::check_buffer(&mut mapping), Ok(()));
        assert_eq!(mapping.addr(), pages.base.addr().get() as u64);
        mapping.end().unwrap();
    }

    /// Memory of a huge page and more begins at one, so that the kernel can use one (Documentation/admin-guide/mm/transhuge.rst).
    #[test]
    fn large_memory_is_aligned_to_huge_pages_and_nothing_else_is_kept() {
        for (len, whole) in [(0, 4096), (1, 4096), (4097, 8192), (HUGE - 1, HUGE), (HUGE, HUGE), (HUGE + 1, 2 * HUGE)] {
            let pages = Pages::new(len).unwrap();
            let start = pages.base.addr().get();
            assert_eq!(pages.len, whole.next_multiple_of(kernel_page()), "{len}");
            assert!(len < HUGE || start.is_multiple_of(HUGE), "{len}: {start:#x}");
            assert!(is_mapped(start as u64) && is_mapped((start + pages.len - 1) as u64), "{len}");
        }
        assert!(matches!(Pages::new(usize::MAX), Err(Error::NoAddresses { .. })));
    }

    #[test]
    fn a_buffer_is_one_extent_and_nothing_beyond() {
        let buffer = Iommu::default().buffer(8192);
        let extent = |at: u64| buffer.extent(buffer.addr().wrapping_add(at));
        assert_eq!(extent(0), Some(Extent { device_addr: IOVA, len: 8192 }));
        assert_eq!(extent(8191), Some(Extent { device_addr: IOVA + 8191, len: 1 }));
        assert_eq!((extent(8192), extent(u64::MAX)), (None, None));
    }
}

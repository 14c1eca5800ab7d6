//! Single pages from ranges of memory, for the firmware of a device.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};

use bareverbs::format_as;
use bareverbs::platform::{PageSource, TooFewPages};

/// Bytes of a page.
const PAGE: usize = 4096;
/// Pages in a word of the bitmap.
const WORD_PAGES: u32 = u32::BITS;
/// Pages in a page of the bitmap.
const BITMAP_PAGES: u32 = PAGE as u32 * 8;
/// Maximum number of ranges.
const RANGES: usize = 4;

/// A range, whose first pages are the bitmap of the others; bit n is set if page n of the others is allocated.
#[derive(Clone, Copy)]
struct Range {
    bitmap: NonNull<AtomicU32>,
    /// Address of the first page behind the bitmap for the device.
    device_addr: u64,
    /// Pages behind the bitmap.
    pages: u32,
    /// Pages that are not allocated.
    free: u32,
    /// Word of the bitmap at which the next search begins.
    next: u32,
}

impl Range {
    const fn words(&self) -> u32 {
        self.pages.div_ceil(WORD_PAGES)
    }

    /// Returns a word of the bitmap. It is counted round the words that there are.
    fn word(&self, index: u32) -> &AtomicU32 {
        let index = index.checked_rem(self.words()).unwrap_or(0) as usize;
        // SAFETY: the bitmap has a bit for each page, thus `words` words, and a range without pages is never made. They stay
        // readable and writable as long as the value lives (promised to `PageRanges::add`), and are accessed as atomics only.
        unsafe { self.bitmap.add(index).as_ref() }
    }

    /// Returns the pages of the word at `index` that the range does not have, as bits.
    const fn beyond(&self, index: u32) -> u32 {
        match self.pages.saturating_sub(index.saturating_mul(WORD_PAGES)) {
            have if have >= WORD_PAGES => 0,
            have => u32::MAX << have,
        }
    }

    fn clear(&mut self) {
        for index in 0..self.words() {
            self.word(index).store(0, Ordering::Relaxed);
        }
        (self.free, self.next) = (self.pages, 0);
    }

    fn allocate(&mut self) -> Option<u64> {
        if self.free == 0 {
            return None;
        }
        let words = self.words();
        for turn in 0..words {
            let index = (self.next + turn).checked_rem(words)?;
            let used = self.word(index).load(Ordering::Relaxed);
            let bit = (used | self.beyond(index)).trailing_ones();
            if bit < WORD_PAGES {
                self.word(index).store(used | 1 << bit, Ordering::Relaxed);
                self.free -= 1;
                self.next = index;
                let page = u64::from(index * WORD_PAGES + bit);
                return Some(self.device_addr.wrapping_add(page * PAGE as u64));
            }
        }
        None
    }

    fn free(&mut self, device_addr: u64) -> bool {
        let Some(offset) = device_addr.checked_sub(self.device_addr) else { return false };
        let page = offset / PAGE as u64;
        if !offset.is_multiple_of(PAGE as u64) || page >= u64::from(self.pages) || self.free >= self.pages {
            return false;
        }
        let (index, bit) = (page as u32 / WORD_PAGES, page as u32 % WORD_PAGES);
        let used = self.word(index).load(Ordering::Relaxed);
        if used & 1 << bit == 0 {
            return false;
        }
        self.word(index).store(used & !(1 << bit), Ordering::Relaxed);
        self.free += 1;
        true
    }
}

/// Single pages from up to four ranges of memory, for the firmware of a device: [`PageSource`] where no operating system
/// allocates memory.
///
/// The value has the same small size for any number of pages. Which pages are allocated is written at the start of each range,
/// a bit for each: one page for 128 MiB. A device that overwrites these bits, where no IOMMU keeps it from that, may get a page
/// twice, or none; it never gets memory outside the ranges.
#[derive(Default)]
pub struct PageRanges {
    ranges: [Option<Range>; RANGES],
}

format_as!(
    [] PageRanges,
    "PageRanges({} of {} pages free)",
    |this| this.free_pages(), this.pages(),
);

// SAFETY: the ranges belong to the value (promised to `add`), which accesses them only through `&mut self`.
unsafe impl Send for PageRanges {}

impl PageRanges {
    /// Creates a source without pages.
    pub const fn new() -> Self {
        Self { ranges: [None; RANGES] }
    }

    /// Adds a range of `len` bytes at `base`, which the device reaches at `device_addr`. Returns `false` if it is less than two
    /// pages, or if there are four ranges already; more than 1 TiB of a range are not used.
    ///
    /// # Safety
    /// - `base` and `device_addr` are aligned to 4096.
    /// - Until the value is dropped, the `len` bytes stay readable and writable, are contiguous for the device, and nothing but
    ///   the value and the device uses any of them. A value that is forgotten is never dropped.
    /// - Afterwards the device cannot reach them, or they are never used for anything else.
    #[must_use = "a range that was not added has no pages"]
    pub unsafe fn add(&mut self, base: NonNull<u8>, len: usize, device_addr: u64) -> bool {
        let total = u32::try_from(len / PAGE).unwrap_or(u32::MAX).min(1 << 28);
        let bitmap = total.div_ceil(BITMAP_PAGES);
        let Some(pages) = total.checked_sub(bitmap).filter(|pages| *pages != 0) else { return false };
        let Some(place) = self.ranges.iter_mut().find(|range| range.is_none()) else { return false };
        let device_addr = device_addr.wrapping_add(u64::from(bitmap) * PAGE as u64);
        place.insert(Range { bitmap: base.cast(), device_addr, pages, free: pages, next: 0 }).clear();
        true
    }

    /// Returns the number of pages.
    pub fn pages(&self) -> u32 {
        self.ranges.iter().flatten().fold(0, |sum, range| sum.saturating_add(range.pages))
    }

    /// Returns the number of pages that are not allocated.
    pub fn free_pages(&self) -> u32 {
        self.ranges.iter().flatten().fold(0, |sum, range| sum.saturating_add(range.free))
    }
}

// SAFETY: each address is of a page of a range, behind its bitmap, whose bit was not set; `add` was promised the rest. If the
// device overwrites the bits, it gets pages of the ranges twice, which nothing else uses.
unsafe impl PageSource for PageRanges {
    fn reserve(&mut self, wanted: u32) -> Result<(), TooFewPages> {
        let available = self.free_pages();
        if wanted <= available { Ok(()) } else { Err(TooFewPages { wanted, available }) }
    }

    fn allocate(&mut self) -> Option<u64> {
        self.ranges.iter_mut().flatten().find_map(Range::allocate)
    }

    fn free(&mut self, device_addr: u64) -> bool {
        self.ranges.iter_mut().flatten().any(|range| range.free(device_addr))
    }

    fn free_all(&mut self) {
        self.ranges.iter_mut().flatten().for_each(Range::clear);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::vec::Vec;

    use super::*;
    use crate::test_memory::aligned;

    #[test]
    fn every_page_behind_the_bitmaps_is_allocated_once_and_can_be_freed_in_any_order() {
        const FIRST: usize = 40 * PAGE;
        const SECOND: usize = 3 * PAGE + 100;
        let mut pages = PageRanges::new();
        // SAFETY: leaked memory of that length and alignment, of this test alone.
        unsafe {
            assert!(!pages.add(aligned::<PAGE>(0), PAGE, 0x9000), "no page is left behind the bitmap");
            assert!(pages.add(aligned::<FIRST>(0xff), FIRST, 0x10_0000));
            assert!(pages.add(aligned::<SECOND>(0xff), SECOND, 0xffff_ffff_0000_0000));
        }
        assert_eq!((pages.pages(), pages.free_pages()), (39 + 2, 41));
        let expected: BTreeSet<u64> =
            (1..40).map(|page| 0x10_0000 + page * 4096).chain([0xffff_ffff_0000_1000, 0xffff_ffff_0000_2000]).collect();
        assert_eq!(pages.reserve(42), Err(TooFewPages { wanted: 42, available: 41 }));
        for stride in [1, 7, 40] {
            assert_eq!(pages.reserve(41), Ok(()));
            let got: Vec<u64> = core::iter::from_fn(|| pages.allocate()).collect();
            assert_eq!((got.len(), got.iter().copied().collect::<BTreeSet<_>>()), (41, expected.clone()));
            for index in 0..41 {
                let addr = got[index * stride % 41];
                assert!(pages.free(addr) && !pages.free(addr), "{addr:#x}");
            }
            assert_eq!(pages.free_pages(), 41);
        }
        for foreign in [0, 0x10_0000, 0x10_1001, 0x12_8000, 0xffff_ffff_0000_3000, u64::MAX] {
            assert!(!pages.free(foreign), "{foreign:#x}");
        }
        pages.allocate().unwrap();
        pages.free_all();
        assert_eq!(pages.free_pages(), 41);
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes minutes; the other tests make the same accesses")]
    fn thousands_of_pages_are_allocated_without_a_search_of_all() {
        const LEN: usize = 40_000 * PAGE;
        let memory = std::alloc::Layout::from_size_align(LEN, PAGE).unwrap();
        // SAFETY: the layout has a size.
        let base = NonNull::new(unsafe { std::alloc::alloc(memory) }).unwrap();
        let mut pages = PageRanges::new();
        // SAFETY: memory of that length and alignment, of this test alone and never freed.
        assert!(unsafe { pages.add(base, LEN, 0x4000_0000) });
        assert_eq!(pages.pages(), 40_000 - 2, "one page of bits for 32,768");
        let all: BTreeSet<u64> = core::iter::from_fn(|| pages.allocate()).collect();
        assert_eq!((all.len(), all.first(), all.last()), (39_998, Some(&0x4000_2000), Some(&(0x4000_0000 + 39_999 * 4096))));
        assert!(size_of::<PageRanges>() <= 40 * RANGES);
    }

    #[test]
    fn a_bitmap_that_the_device_overwrites_gives_pages_of_the_range_or_none() {
        const LEN: usize = 40 * PAGE;
        for byte in [0, 0x5a, 0xff] {
            let base = aligned::<LEN>(0);
            let mut pages = PageRanges::new();
            // SAFETY: leaked memory of that length and alignment, of this test alone.
            assert!(unsafe { pages.add(base, LEN, 0x10_0000) });
            let mut got = Vec::new();
            for _ in 0..200 {
                got.extend(pages.allocate());
                // SAFETY: the bitmap of this test's memory, as a device would write it.
                unsafe { base.write_bytes(byte, 64) };
            }
            assert!(got.iter().all(|addr| (0x10_1000..0x12_8000).contains(addr) && addr.is_multiple_of(4096)), "{got:x?}");
            assert!(got.len() <= 39);
            for addr in got.iter().chain(&got) {
                pages.free(*addr);
            }
            assert!(pages.free_pages() <= 39);
        }
    }
}

//! The arena from which all memory of the device is allocated: pages, contiguous ranges of pages, doorbell records.
//!
//! Ranges for the driver are allocated from the low end and single pages for the firmware from the high end. So the thousands
//! of pages that a firmware requests leave room for long rings.

use core::num::NonZeroU32;

use heapless::Vec;

use crate::error::{Error, PackedError};

/// Bytes of a page.
pub(crate) const PAGE: usize = 4096;
/// Bytes from doorbell record to doorbell record: a cache line each, so that queues on different cores do not share one.
pub(crate) const RECORD: usize = 64;
/// Pages of doorbell records.
const RECORD_PAGES: usize = 32;
/// Maximum number of doorbell records.
pub(crate) const MAX_RECORDS: usize = RECORD_PAGES * (PAGE / RECORD);

/// Maximum number of functions for which the firmware may request pages.
const FUNCTIONS: usize = 8;

/// The use of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageUse {
    /// None.
    Free,
    /// By an object, or for doorbell records.
    Driver,
    /// Mailboxes of regular commands.
    Mailboxes,
    /// Mailboxes of commands about pages of the firmware.
    PageMailboxes,
    /// By the firmware.
    Firmware,
}

/// Contiguous pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageRange {
    first: u32,
    pages: NonZeroU32,
}

impl PageRange {
    /// Returns the byte offset in the arena.
    pub(crate) const fn at(self) -> usize {
        self.first as usize * PAGE
    }

    /// Returns the number of pages.
    pub(crate) const fn pages(self) -> u32 {
        self.pages.get()
    }

    /// Returns the number of bytes.
    pub(crate) const fn bytes(self) -> usize {
        self.pages.get() as usize * PAGE
    }
}

/// A page of doorbell records; bit n: record n is in use.
#[derive(Clone, Copy, Debug)]
struct Records {
    range: PageRange,
    used: u64,
}

/// Pages that the firmware has for one function of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FunctionPages {
    /// As the firmware numbers functions.
    pub(crate) function: u16,
    /// Pages.
    pub(crate) pages: u32,
}

/// The use of each page. `U` is an array in the driver's own value and a slice everywhere else.
pub(crate) struct Arena<U: ?Sized = [PageUse]> {
    device_addr: u64,
    firmware: u32,
    firmware_limit: u32,
    functions: Vec<FunctionPages, FUNCTIONS>,
    free: u32,
    /// No page before this one is free.
    low: usize,
    /// Neither this page nor one after it is free.
    high: usize,
    records: Vec<Records, RECORD_PAGES>,
    uses: U,
}

impl<const PAGES: usize> Arena<[PageUse; PAGES]> {
    /// Creates an arena of free pages at `device_addr`. The firmware may have `firmware_limit` of them.
    pub(crate) const fn new(device_addr: u64, firmware_limit: u32) -> Self {
        Self {
            device_addr,
            firmware: 0,
            firmware_limit,
            functions: Vec::new(),
            free: PAGES as u32,
            low: 0,
            high: PAGES,
            records: Vec::new(),
            uses: [PageUse::Free; PAGES],
        }
    }
}

impl Arena {
    /// Returns the device address of a byte.
    pub(crate) const fn addr(&self, at: usize) -> u64 {
        self.device_addr.wrapping_add(at as u64)
    }

    /// Changes the use of a page and the counters.
    fn set(&mut self, page: usize, to: PageUse) {
        let Some(place) = self.uses.get_mut(page) else { return };
        let from = core::mem::replace(place, to);
        if from == PageUse::Free {
            self.free = self.free.saturating_sub(1);
        }
        if from == PageUse::Firmware {
            self.firmware = self.firmware.saturating_sub(1);
        }
        if to == PageUse::Free {
            self.free += 1;
            self.low = self.low.min(page);
            self.high = self.high.max(page + 1);
        }
        if to == PageUse::Firmware {
            self.firmware += 1;
        }
    }

    /// Allocates the lowest contiguous range of `pages` free pages. Its content is undefined.
    pub(crate) fn allocate(&mut self, pages: u32) -> Result<PageRange, PackedError> {
        let pages_or_one = NonZeroU32::new(pages).unwrap_or(NonZeroU32::MIN);
        let want = pages_or_one.get() as usize;
        let (mut run, mut lowest) = (0, None);
        let mut end = None;
        for (page, used) in (self.low..).zip(self.uses.get(self.low..self.high).unwrap_or_default()) {
            run = if *used == PageUse::Free { run + 1 } else { 0 };
            if run == 1 {
                lowest.get_or_insert(page);
            }
            if run == want {
                end = Some(page + 1);
                break;
            }
        }
        self.low = lowest.unwrap_or(self.high);
        let end = end.ok_or(Error::ArenaFull { pages }.pack())?;
        let range = PageRange { first: (end - want) as u32, pages: pages_or_one };
        self.mark(range, PageUse::Driver);
        if self.low == end - want {
            self.low = end;
        }
        Ok(range)
    }

    /// Frees a range.
    pub(crate) fn free(&mut self, range: PageRange) {
        self.mark(range, PageUse::Free);
    }

    /// Sets the use of all pages of a range.
    pub(crate) fn mark(&mut self, range: PageRange, to: PageUse) {
        for page in range.first as usize..(range.first as usize).saturating_add(range.pages.get() as usize) {
            self.set(page, to);
        }
    }

    /// Returns the pages with this use, from the lowest to the highest.
    pub(crate) fn pages(&self, with: PageUse) -> impl Iterator<Item = usize> {
        self.uses.iter().enumerate().filter(move |(_, used)| **used == with).map(|(page, _)| page)
    }

    /// Allocates pages anywhere, so that at least `count` have this use.
    pub(crate) fn extend(&mut self, with: PageUse, count: u32) -> Result<(), PackedError> {
        let missing = count.saturating_sub(self.count(with));
        if missing > self.free {
            return Err(Error::ArenaFull { pages: missing }.pack());
        }
        for _ in 0..missing {
            let range = self.allocate(1)?;
            self.mark(range, with);
        }
        Ok(())
    }

    /// Frees all pages with this use but the `count` lowest.
    pub(crate) fn keep(&mut self, with: PageUse, count: u32) {
        for _ in count..self.count(with) {
            let highest = self.pages(with).last().unwrap_or(usize::MAX);
            self.set(highest, PageUse::Free);
        }
    }

    /// Allocates a doorbell record of 8 bytes and returns its byte offset.
    pub(crate) fn allocate_record(&mut self) -> Result<usize, PackedError> {
        if !self.records.iter().any(|page| page.used != u64::MAX) {
            if self.records.is_full() {
                return Err(Error::RecordsFull.pack());
            }
            let range = self.allocate(1)?;
            self.records.push(Records { range, used: 0 }).map_err(|_| Error::RecordsFull.pack())?;
        }
        let page = self.records.iter_mut().find(|page| page.used != u64::MAX).ok_or(Error::RecordsFull.pack())?;
        let slot = page.used.trailing_ones();
        page.used |= 1 << (slot & 63);
        Ok(page.range.at() + slot as usize * RECORD)
    }

    /// Frees a doorbell record.
    pub(crate) fn free_record(&mut self, at: usize) {
        let page = at / PAGE;
        if let Some(records) = self.records.iter_mut().find(|records| records.range.first as usize == page) {
            records.used &= !(1 << ((at % PAGE / RECORD) & 63));
        }
        while let Some(last) = self.records.last().filter(|last| last.used == 0) {
            let range = last.range;
            self.records.pop();
            self.free(range);
        }
    }

    /// Allocates the highest free page for the firmware and returns its device address. Returns `None` if no page is free, or
    /// if the firmware has the maximum number of pages or of functions.
    pub(crate) fn allocate_firmware_page(&mut self, function: u16) -> Option<u64> {
        if self.firmware >= self.firmware_limit {
            return None;
        }
        let page = self.uses.get(..self.high)?.iter().rposition(|page| *page == PageUse::Free)?;
        self.high = page + 1;
        self.function(function)?.pages += 1;
        self.set(page, PageUse::Firmware);
        self.high = page;
        Some(self.addr(page * PAGE))
    }

    /// Returns the counter of a function, which is created if there is room.
    fn function(&mut self, function: u16) -> Option<&mut FunctionPages> {
        if !self.functions.iter().any(|pages| pages.function == function) {
            self.functions.retain(|pages| pages.pages != 0);
            self.functions.push(FunctionPages { function, pages: 0 }).ok()?;
        }
        self.functions.iter_mut().find(|pages| pages.function == function)
    }

    fn page_at(&self, addr: u64) -> Option<(usize, PageUse)> {
        let at = addr.checked_sub(self.device_addr)?;
        let page = usize::try_from(at / PAGE as u64).ok().filter(|_| at.is_multiple_of(PAGE as u64))?;
        Some((page, *self.uses.get(page)?))
    }

    /// Reclaims a page from the firmware. Returns `false` if the firmware does not have it.
    pub(crate) fn free_firmware_page(&mut self, addr: u64, function: u16) -> bool {
        let Some((page, PageUse::Firmware)) = self.page_at(addr) else { return false };
        self.set(page, PageUse::Free);
        if let Some(pages) = self.functions.iter_mut().find(|pages| pages.function == function) {
            pages.pages = pages.pages.saturating_sub(1);
        }
        true
    }

    /// Returns the number of pages that the firmware has.
    pub(crate) const fn firmware_pages(&self) -> u32 {
        self.firmware
    }

    /// Returns the `index`-th function for which the firmware has, or had, pages.
    pub(crate) fn firmware_function(&self, index: usize) -> Option<FunctionPages> {
        self.functions.get(index).copied()
    }

    /// Returns the number of pages that the firmware may still get.
    pub(crate) fn room_for_firmware(&self) -> u32 {
        self.free.min(self.firmware_limit.saturating_sub(self.firmware))
    }

    /// Returns the number of free pages.
    pub(crate) const fn free_pages(&self) -> u32 {
        self.free
    }

    /// Returns the number of pages that the driver uses.
    pub(crate) fn used_pages(&self) -> u32 {
        (self.uses.len() as u32).saturating_sub(self.free).saturating_sub(self.firmware)
    }

    /// Returns the number of pages with that use.
    pub(crate) fn count(&self, what: PageUse) -> u32 {
        self.uses.iter().filter(|page| **page == what).count() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arena<const N: usize>() -> Arena<[PageUse; N]> {
        Arena::new(0x10_0000, u32::MAX)
    }

    #[test]
    fn ranges_are_first_fit_and_reusable() {
        let mut arena = arena::<8>();
        let arena: &mut Arena = &mut arena;
        let a = arena.allocate(2).unwrap();
        let b = arena.allocate(3).unwrap();
        assert_eq!((a.at(), b.at()), (0, 2 * PAGE));
        assert_eq!(arena.allocate(4), Err(Error::ArenaFull { pages: 4 }.pack()));
        arena.free(a);
        assert_eq!(arena.allocate(3).unwrap().at(), 5 * PAGE);
        assert_eq!(arena.allocate(2).unwrap().at(), 0);
        assert_eq!(arena.allocate(1), Err(Error::ArenaFull { pages: 1 }.pack()));
    }

    #[test]
    fn the_firmware_gets_pages_from_the_top_and_only_its_own_come_back() {
        let mut arena = arena::<3>();
        let arena: &mut Arena = &mut arena;
        let range = arena.allocate(1).unwrap();
        assert_eq!(arena.allocate_firmware_page(0), Some(0x10_2000));
        assert_eq!(arena.allocate_firmware_page(0), Some(0x10_1000));
        assert_eq!(arena.allocate_firmware_page(0), None);
        assert!(!arena.free_firmware_page(arena.addr(range.at()), 0));
        assert!(!arena.free_firmware_page(0x10_2001, 0));
        assert!(!arena.free_firmware_page(0, 0));
        assert!(!arena.free_firmware_page(u64::MAX, 0));
        assert!(arena.free_firmware_page(0x10_2000, 0));
        assert!(!arena.free_firmware_page(0x10_2000, 0));
        assert_eq!(arena.firmware_pages(), 1);
    }

    #[test]
    fn records_fill_pages_and_pages_go_when_empty() {
        let mut arena = arena::<80>();
        let arena: &mut Arena = &mut arena;
        let all: std::vec::Vec<usize> = (0..2048).map(|_| arena.allocate_record().unwrap()).collect();
        assert_eq!(arena.allocate_record(), Err(Error::RecordsFull.pack()));
        assert_eq!(arena.count(PageUse::Driver), 32);
        for at in all {
            assert_eq!(at % RECORD, 0);
            arena.free_record(at);
        }
        assert_eq!(arena.count(PageUse::Free), 80);
    }

    #[test]
    fn what_is_counted_is_what_is_there() {
        let mut arena = arena::<64>();
        let arena: &mut Arena = &mut arena;
        let (mut ranges, mut given) = (std::vec::Vec::new(), std::vec::Vec::new());
        let mut state = 1u32;
        for step in 0..10_000 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let pick = (state >> 16) as usize;
            match state >> 29 {
                0 | 1 => ranges.extend(arena.allocate(1 + pick as u32 % 7)),
                2 | 3 => given.extend(arena.allocate_firmware_page(pick as u16 % 3).map(|addr| (addr, pick as u16 % 3))),
                4 if !given.is_empty() => {
                    let (addr, function) = given.swap_remove(pick % given.len());
                    assert!(arena.free_firmware_page(addr, function));
                }
                5 | 6 if !ranges.is_empty() => arena.free(ranges.swap_remove(pick % ranges.len())),
                _ => {}
            }
            assert_eq!(arena.free_pages(), arena.count(PageUse::Free), "step {step}");
            assert_eq!(arena.firmware_pages(), arena.count(PageUse::Firmware));
            let by_function: u32 = (0..).map_while(|index| arena.firmware_function(index)).map(|pages| pages.pages).sum();
            assert_eq!((given.len(), by_function), (arena.firmware_pages() as usize, arena.firmware_pages()));
            // The lowest and the highest free page are found.
            let page = |used: &PageUse| *used == PageUse::Free;
            if let (Some(low), Some(high)) = (arena.uses.iter().position(page), arena.uses.iter().rposition(page)) {
                let range = arena.allocate(1).unwrap();
                assert_eq!(range.first as usize, low);
                arena.free(range);
                let addr = arena.allocate_firmware_page(0).unwrap();
                assert_eq!(addr, 0x10_0000 + high as u64 * 4096);
                assert!(arena.free_firmware_page(addr, 0));
            }
        }
    }

    #[test]
    fn pages_anywhere_are_found_in_order_and_the_highest_go() {
        let mut arena = arena::<8>();
        let arena: &mut Arena = &mut arena;
        let ranges: std::vec::Vec<PageRange> = (0..8).map(|_| arena.allocate(1).unwrap()).collect();
        for page in [1, 3, 4, 6] {
            arena.free(ranges[page]);
        }
        let with = PageUse::Mailboxes;
        assert_eq!(arena.extend(with, 5), Err(Error::ArenaFull { pages: 5 }.pack()));
        assert_eq!(arena.free_pages(), 4, "nothing is taken of what does not suffice");
        arena.extend(with, 3).unwrap();
        arena.extend(with, 2).unwrap();
        assert_eq!(arena.pages(with).collect::<std::vec::Vec<_>>(), [1, 3, 4]);
        assert_eq!((arena.pages(PageUse::PageMailboxes).count(), arena.free_pages()), (0, 1));
        arena.keep(with, 2);
        assert_eq!((arena.pages(with).collect::<std::vec::Vec<_>>(), arena.free_pages()), (std::vec![1, 3], 2));
        arena.keep(with, 2);
        assert_eq!(arena.free_pages(), 2);
    }
}

//! The arena from which the memory of the driver is allocated: pages, contiguous ranges of pages, doorbell records. Pages of the
//! firmware come from the machine's [`PageSource`](bareverbs::PageSource).

use core::num::NonZeroU32;

use heapless::Vec;

use crate::error::Error;

pub(crate) const PAGE: usize = 4096;
/// Bytes from doorbell record to doorbell record: a cache line each, so that queues on different cores do not share one.
pub(crate) const RECORD: usize = 64;
const RECORD_PAGES: usize = 32;
pub(crate) const MAX_RECORDS: usize = RECORD_PAGES * (PAGE / RECORD);

/// The use of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageUse {
    Free,
    /// By an object, or for doorbell records.
    Driver,
    /// Mailboxes of regular commands.
    Mailboxes,
    /// Mailboxes of commands about pages of the firmware.
    PageMailboxes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageRange {
    first: u32,
    pages: NonZeroU32,
}

impl PageRange {
    pub(crate) const fn at(self) -> usize {
        self.first as usize * PAGE
    }

    pub(crate) const fn pages(self) -> u32 {
        self.pages.get()
    }

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

/// The use of each page. `U` is an array in the driver's own value and a slice everywhere else.
pub(crate) struct Arena<U: ?Sized = [PageUse]> {
    device_addr: u64,
    free: u32,
    /// No page before this one is free.
    low: usize,
    records: Vec<Records, RECORD_PAGES>,
    uses: U,
}

impl<const PAGES: usize> Arena<[PageUse; PAGES]> {
    pub(crate) const fn new(device_addr: u64) -> Self {
        Self { device_addr, free: PAGES as u32, low: 0, records: Vec::new(), uses: [PageUse::Free; PAGES] }
    }
}

impl Arena {
    pub(crate) const fn addr(&self, at: usize) -> u64 {
        self.device_addr.wrapping_add(at as u64)
    }

    /// Allocates the lowest contiguous range of `pages` free pages. Its content is undefined.
    pub(crate) fn allocate(&mut self, pages: u32) -> Result<PageRange, Error> {
        let pages_or_one = NonZeroU32::new(pages).unwrap_or(NonZeroU32::MIN);
        let want = pages_or_one.get() as usize;
        let (mut run, mut lowest) = (0, None);
        let mut end = None;
        for (page, used) in (self.low..).zip(self.uses.get(self.low..).unwrap_or_default()) {
            run = if *used == PageUse::Free { run + 1 } else { 0 };
            if run == 1 {
                lowest.get_or_insert(page);
            }
            if run == want {
                end = Some(page + 1);
                break;
            }
        }
        self.low = lowest.unwrap_or(self.uses.len());
        let end = end.ok_or(Error::ArenaFull { pages, free: self.free.into() })?;
        let range = PageRange { first: (end - want) as u32, pages: pages_or_one };
        self.mark(range, PageUse::Driver);
        if self.low == end - want {
            self.low = end;
        }
        Ok(range)
    }

    pub(crate) fn free(&mut self, range: PageRange) {
        self.mark(range, PageUse::Free);
    }

    pub(crate) fn mark(&mut self, range: PageRange, to: PageUse) {
        let Self { uses, free, low, .. } = self;
        let pages = uses.iter_mut().enumerate().skip(range.first as usize).take(range.pages.get() as usize);
        for (page, used) in pages {
            if core::mem::replace(used, to) == PageUse::Free {
                *free = free.saturating_sub(1);
            }
            if to == PageUse::Free {
                *free += 1;
                *low = page.min(*low);
            }
        }
    }

    /// Returns the pages with this use, from the lowest to the highest.
    pub(crate) fn pages(&self, with: PageUse) -> impl Iterator<Item = usize> {
        self.uses.iter().enumerate().filter(move |(_, used)| **used == with).map(|(page, _)| page)
    }

    /// Allocates pages anywhere, so that at least `count` have this use.
    pub(crate) fn extend(&mut self, with: PageUse, count: u32) -> Result<(), Error> {
        let missing = count.saturating_sub(self.count(with));
        if missing > self.free {
            return Err(Error::ArenaFull { pages: missing, free: self.free.into() });
        }
        for _ in 0..missing {
            let range = self.allocate(1)?;
            self.mark(range, with);
        }
        Ok(())
    }

    /// Frees all pages with this use but the `count` lowest.
    pub(crate) fn keep(&mut self, with: PageUse, count: u32) {
        let Self { uses, free, low, .. } = self;
        for (page, used) in uses.iter_mut().enumerate().filter(|(_, used)| **used == with).skip(count as usize) {
            *used = PageUse::Free;
            *free += 1;
            *low = page.min(*low);
        }
    }

    /// Allocates a doorbell record of 8 bytes and returns its byte offset.
    pub(crate) fn allocate_record(&mut self) -> Result<usize, Error> {
        if !self.records.iter().any(|page| page.used != u64::MAX) {
            if self.records.is_full() {
                return Err(Error::RecordsFull);
            }
            let range = self.allocate(1)?;
            self.records.push(Records { range, used: 0 }).map_err(|_| Error::RecordsFull)?;
        }
        let page = self.records.iter_mut().find(|page| page.used != u64::MAX).ok_or(Error::RecordsFull)?;
        let slot = page.used.trailing_ones();
        page.used |= 1 << (slot & 63);
        Ok(page.range.at() + slot as usize * RECORD)
    }

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

    pub(crate) const fn free_pages(&self) -> u32 {
        self.free
    }

    pub(crate) fn used_pages(&self) -> u32 {
        (self.uses.len() as u32).saturating_sub(self.free)
    }

    pub(crate) fn count(&self, what: PageUse) -> u32 {
        self.uses.iter().filter(|page| **page == what).count() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arena<const N: usize>() -> Arena<[PageUse; N]> {
        Arena::new(0x10_0000)
    }

    #[test]
    fn ranges_are_first_fit_and_reusable() {
        let mut arena = arena::<8>();
        let arena: &mut Arena = &mut arena;
        let a = arena.allocate(2).unwrap();
        let b = arena.allocate(3).unwrap();
        assert_eq!((a.at(), b.at()), (0, 2 * PAGE));
        assert_eq!(arena.allocate(4), Err(Error::ArenaFull { pages: 4, free: 3.into() }));
        arena.free(a);
        assert_eq!(arena.allocate(3).unwrap().at(), 5 * PAGE);
        assert_eq!(arena.allocate(2).unwrap().at(), 0);
        assert_eq!(arena.allocate(1), Err(Error::ArenaFull { pages: 1, free: 0.into() }));
    }

    #[test]
    fn a_free_page_below_those_that_are_given_up_is_still_the_first() {
        let mut arena = arena::<8>();
        let arena: &mut Arena = &mut arena;
        let lowest = arena.allocate(1).unwrap();
        arena.extend(PageUse::Mailboxes, 3).unwrap();
        arena.free(lowest);
        arena.keep(PageUse::Mailboxes, 1);
        let pages = [0; 3].map(|_: usize| arena.allocate(1).unwrap().at() / PAGE);
        assert_eq!(pages, [0, 2, 3]);
    }

    #[test]
    fn records_fill_pages_and_pages_go_when_empty() {
        let mut arena = arena::<80>();
        let arena: &mut Arena = &mut arena;
        let all: std::vec::Vec<usize> = (0..2048).map(|_| arena.allocate_record().unwrap()).collect();
        assert_eq!(arena.allocate_record(), Err(Error::RecordsFull));
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
        let mut ranges = std::vec::Vec::new();
        let mut state = 1u32;
        for step in 0..10_000 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let pick = (state >> 16) as usize;
            match state >> 30 {
                0 | 1 => ranges.extend(arena.allocate(1 + pick as u32 % 7)),
                2 if !ranges.is_empty() => arena.free(ranges.swap_remove(pick % ranges.len())),
                _ => {}
            }
            assert_eq!(arena.free_pages(), arena.count(PageUse::Free), "step {step}");
            assert_eq!(arena.used_pages(), arena.count(PageUse::Driver));
            // The lowest free page is found.
            if let Some(low) = arena.uses.iter().position(|used| *used == PageUse::Free) {
                let range = arena.allocate(1).unwrap();
                assert_eq!(range.first as usize, low);
                arena.free(range);
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
        assert_eq!(arena.extend(with, 5), Err(Error::ArenaFull { pages: 5, free: 4.into() }));
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

//! The arena from which the memory of the driver is allocated: pages, contiguous ranges of pages, doorbell records. Pages of the
//! firmware come from the machine's [`PageSource`](bareverbs::platform::PageSource).

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

/// Contiguous pages; none if an object needs none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PageRange {
    first: u32,
    pub(crate) pages: u32,
}

impl PageRange {
    pub(crate) const fn at(self) -> usize {
        self.first as usize * PAGE
    }

    pub(crate) const fn bytes(self) -> usize {
        self.pages as usize * PAGE
    }
}

/// Memory that an object of the device lies in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ObjectMemory {
    /// Its ring.
    pub(crate) ring: PageRange,
    /// Byte of its doorbell record; 0, where none lies, if it has none.
    pub(crate) record: usize,
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
    records: Vec<Records, RECORD_PAGES>,
    uses: U,
}

impl<const PAGES: usize> Arena<[PageUse; PAGES]> {
    pub(crate) const fn new(device_addr: u64) -> Self {
        Self { device_addr, records: Vec::new(), uses: [PageUse::Free; PAGES] }
    }
}

impl Arena {
    pub(crate) const fn addr(&self, at: usize) -> u64 {
        self.device_addr.wrapping_add(at as u64)
    }

    /// Allocates the lowest contiguous range of `pages` free pages. Its content is undefined.
    pub(crate) fn allocate(&mut self, pages: u32) -> Result<PageRange, Error> {
        let mut run = 0;
        let last = self.uses.iter().position(|used| {
            run = if *used == PageUse::Free { run + 1 } else { 0 };
            run >= pages
        });
        let last = last.ok_or_else(|| Error::ArenaFull { pages, free: self.free_pages().into() })?;
        let range = PageRange { first: last as u32 + 1 - pages, pages };
        self.mark(range, PageUse::Driver);
        Ok(range)
    }

    pub(crate) fn free(&mut self, range: PageRange) {
        self.mark(range, PageUse::Free);
    }

    fn mark(&mut self, range: PageRange, to: PageUse) {
        for used in self.uses.iter_mut().skip(range.first as usize).take(range.pages as usize) {
            *used = to;
        }
    }

    /// Returns the pages with this use, from the lowest to the highest.
    pub(crate) fn pages(&self, with: PageUse) -> impl Iterator<Item = usize> {
        self.uses.iter().enumerate().filter(move |(_, used)| **used == with).map(|(page, _)| page)
    }

    /// Allocates pages anywhere, so that at least `count` have this use.
    pub(crate) fn extend(&mut self, with: PageUse, count: u32) -> Result<(), Error> {
        let missing = count.saturating_sub(self.count(with));
        if missing != 0 && missing > self.free_pages() {
            return Err(Error::ArenaFull { pages: missing, free: self.free_pages().into() });
        }
        for used in self.uses.iter_mut().filter(|used| **used == PageUse::Free).take(missing as usize) {
            *used = with;
        }
        Ok(())
    }

    /// Frees all pages with this use but the `count` lowest.
    pub(crate) fn keep(&mut self, with: PageUse, count: u32) {
        for used in self.uses.iter_mut().filter(|used| **used == with).skip(count as usize) {
            *used = PageUse::Free;
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

    pub(crate) fn free_pages(&self) -> u32 {
        self.count(PageUse::Free)
    }

    pub(crate) fn used_pages(&self) -> u32 {
        self.uses.len() as u32 - self.free_pages()
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
    fn a_range_is_the_lowest_that_is_free_and_of_nobody_else() {
        let mut arena = arena::<64>();
        let arena: &mut Arena = &mut arena;
        let (mut ranges, mut taken) = (std::vec::Vec::<PageRange>::new(), [false; 64]);
        let mut state = 1u32;
        for step in 0..10_000 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let pick = (state >> 16) as usize;
            match state >> 30 {
                0 | 1 => {
                    let pages = pick % 7;
                    let lowest = (0..=64 - pages).find(|first| taken[*first..][..pages].iter().all(|taken| !taken));
                    let range = arena.allocate(pages as u32).ok();
                    if pages != 0 {
                        assert_eq!(range.map(|range| range.at() / PAGE), lowest, "step {step}");
                    }
                    if let Some(range) = range {
                        taken[range.at() / PAGE..][..pages].fill(true);
                        ranges.push(range);
                    }
                }
                2 if !ranges.is_empty() => {
                    let range = ranges.swap_remove(pick % ranges.len());
                    taken[range.at() / PAGE..][..range.bytes() / PAGE].fill(false);
                    arena.free(range);
                }
                _ => {}
            }
            let used = taken.iter().filter(|taken| **taken).count() as u32;
            assert_eq!((arena.used_pages(), arena.free_pages()), (used, 64 - used), "step {step}");
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

//! The one arena that all memory of the device comes from: pages, runs of pages, doorbell records.
//!
//! Runs for the driver come from the low end and single pages for the firmware from the high end, so that the thousands of
//! pages that a firmware asks for leave room for long rings.

use heapless::Vec;

use crate::error::Error;

/// Bytes of a page.
pub(crate) const PAGE: usize = 4096;
/// Bytes from doorbell record to doorbell record: a cache line each, so that queues on different cores do not share one.
const RECORD: usize = 64;
/// Pages of doorbell records.
const RECORD_PAGES: usize = 64;
/// The most doorbell records at a time.
pub(crate) const MAX_RECORDS: usize = RECORD_PAGES * (PAGE / RECORD);

/// Who has a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageUse {
    /// Nobody.
    Free,
    /// This driver.
    Driver,
    /// The firmware.
    Firmware,
    /// A command that never ended: the device may still write there.
    Lost,
}

/// Pages in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    first: u32,
    pages: u32,
}

impl Run {
    /// Byte offset in the arena.
    pub(crate) const fn at(self) -> usize {
        self.first as usize * PAGE
    }

    /// Number of pages.
    pub(crate) const fn pages(self) -> u32 {
        self.pages
    }

    /// Number of bytes.
    pub(crate) const fn bytes(self) -> usize {
        self.pages as usize * PAGE
    }
}

/// A page of doorbell records; bit n: record n is in use.
#[derive(Clone, Copy, Debug)]
struct Records {
    run: Run,
    used: u64,
}

/// Who has which page. `U` is an array in the driver's own value and a slice everywhere else.
pub(crate) struct Arena<U: ?Sized = [PageUse]> {
    device_addr: u64,
    firmware: u32,
    firmware_limit: u32,
    records: Vec<Records, RECORD_PAGES>,
    uses: U,
}

impl<const PAGES: usize> Arena<[PageUse; PAGES]> {
    /// An arena of free pages that starts at `device_addr`, of which the firmware may have `firmware_limit`.
    pub(crate) const fn new(device_addr: u64, firmware_limit: u32) -> Self {
        Self { device_addr, firmware: 0, firmware_limit, records: Vec::new(), uses: [PageUse::Free; PAGES] }
    }
}

impl Arena {
    /// Device address of a byte.
    pub(crate) const fn addr(&self, at: usize) -> u64 {
        self.device_addr.wrapping_add(at as u64)
    }

    /// Device addresses of the pages of a run.
    pub(crate) fn page_addrs(&self, run: Run) -> impl Iterator<Item = u64> + use<> {
        let start = self.addr(run.at());
        (0..u64::from(run.pages)).map(move |page| start.wrapping_add(page * PAGE as u64))
    }

    /// Takes the lowest run of `pages` free pages. What lies in it is left over from before.
    pub(crate) fn allocate(&mut self, pages: u32) -> Result<Run, Error> {
        let want = (pages as usize).max(1);
        let mut free = 0;
        let end = self.uses.iter().position(|page| {
            free = if *page == PageUse::Free { free + 1 } else { 0 };
            free == want
        });
        let first = end.map(|end| end + 1 - want).ok_or(Error::ArenaFull { pages })?;
        let run = Run { first: first as u32, pages: want as u32 };
        self.mark(run, PageUse::Driver);
        Ok(run)
    }

    /// Gives a run back.
    pub(crate) fn free(&mut self, run: Run) {
        self.mark(run, PageUse::Free);
    }

    /// Gives a run up: the device may still write to it.
    pub(crate) fn lose(&mut self, run: Run) {
        self.mark(run, PageUse::Lost);
    }

    fn mark(&mut self, run: Run, to: PageUse) {
        for page in self.uses.iter_mut().skip(run.first as usize).take(run.pages as usize) {
            *page = to;
        }
    }

    /// Takes a doorbell record: the byte offset of 8 bytes.
    pub(crate) fn allocate_record(&mut self) -> Result<usize, Error> {
        if !self.records.iter().any(|page| page.used != u64::MAX) {
            if self.records.is_full() {
                return Err(Error::RecordsFull);
            }
            let run = self.allocate(1)?;
            self.records.push(Records { run, used: 0 }).map_err(|_| Error::RecordsFull)?;
        }
        let page = self.records.iter_mut().find(|page| page.used != u64::MAX).ok_or(Error::RecordsFull)?;
        let slot = page.used.trailing_ones();
        page.used |= 1 << (slot & 63);
        Ok(page.run.at() + slot as usize * RECORD)
    }

    /// Gives a doorbell record back.
    pub(crate) fn free_record(&mut self, at: usize) {
        let page = at / PAGE;
        if let Some(records) = self.records.iter_mut().find(|records| records.run.first as usize == page) {
            records.used &= !(1 << ((at % PAGE / RECORD) & 63));
        }
        while let Some(last) = self.records.last().filter(|last| last.used == 0) {
            let run = last.run;
            self.records.pop();
            self.free(run);
        }
    }

    /// Takes the highest free page for the firmware; its device address.
    pub(crate) fn allocate_firmware_page(&mut self) -> Option<u64> {
        if self.firmware >= self.firmware_limit {
            return None;
        }
        let page = self.uses.iter().rposition(|page| *page == PageUse::Free)?;
        *self.uses.get_mut(page)? = PageUse::Firmware;
        self.firmware += 1;
        Some(self.addr(page * PAGE))
    }

    /// Takes a page back from the firmware; `false` if the firmware does not have it.
    pub(crate) fn free_firmware_page(&mut self, addr: u64, to: PageUse) -> bool {
        let at = addr.wrapping_sub(self.device_addr);
        let page = usize::try_from(at / PAGE as u64).ok().and_then(|page| self.uses.get_mut(page));
        match page {
            Some(page) if at.is_multiple_of(PAGE as u64) && *page == PageUse::Firmware => {
                *page = to;
                self.firmware = self.firmware.saturating_sub(1);
                true
            }
            _ => false,
        }
    }

    /// Pages that the firmware has.
    pub(crate) const fn firmware_pages(&self) -> u32 {
        self.firmware
    }

    /// Pages that the firmware could still be given.
    pub(crate) fn room_for_firmware(&self) -> u32 {
        let free = self.uses.iter().filter(|page| **page == PageUse::Free).count();
        u32::try_from(free).unwrap_or(u32::MAX).min(self.firmware_limit.saturating_sub(self.firmware))
    }

    /// Pages in some use.
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
    fn runs_are_first_fit_and_come_back() {
        let mut arena = arena::<8>();
        let arena: &mut Arena = &mut arena;
        let a = arena.allocate(2).unwrap();
        let b = arena.allocate(3).unwrap();
        assert_eq!((a.at(), b.at()), (0, 2 * PAGE));
        assert_eq!(arena.allocate(4), Err(Error::ArenaFull { pages: 4 }));
        arena.free(a);
        assert_eq!(arena.allocate(3).unwrap().at(), 5 * PAGE);
        assert_eq!(arena.allocate(2).unwrap().at(), 0);
        assert_eq!(arena.allocate(1), Err(Error::ArenaFull { pages: 1 }));
    }

    #[test]
    fn the_firmware_gets_pages_from_the_top_and_only_its_own_come_back() {
        let mut arena = arena::<3>();
        let arena: &mut Arena = &mut arena;
        let run = arena.allocate(1).unwrap();
        assert_eq!(arena.allocate_firmware_page(), Some(0x10_2000));
        assert_eq!(arena.allocate_firmware_page(), Some(0x10_1000));
        assert_eq!(arena.allocate_firmware_page(), None);
        assert!(!arena.free_firmware_page(arena.addr(run.at()), PageUse::Free));
        assert!(!arena.free_firmware_page(0x10_2001, PageUse::Free));
        assert!(!arena.free_firmware_page(0, PageUse::Free));
        assert!(!arena.free_firmware_page(u64::MAX, PageUse::Free));
        assert!(arena.free_firmware_page(0x10_2000, PageUse::Free));
        assert!(!arena.free_firmware_page(0x10_2000, PageUse::Free));
        assert_eq!(arena.firmware_pages(), 1);
    }

    #[test]
    fn records_fill_pages_and_pages_go_when_empty() {
        let mut arena = arena::<80>();
        let arena: &mut Arena = &mut arena;
        let all: std::vec::Vec<usize> = (0..4096).map(|_| arena.allocate_record().unwrap()).collect();
        assert_eq!(arena.allocate_record(), Err(Error::RecordsFull));
        assert_eq!(arena.count(PageUse::Driver), 64);
        for at in all {
            assert_eq!(at % RECORD, 0);
            arena.free_record(at);
        }
        assert_eq!(arena.count(PageUse::Free), 80);
    }
}

//! A queue's buffer in host memory: a list of pages, and a place in it.

use std::sync::Arc;

use bareverbs_mlx5_spec::CmdStatus;

use crate::engine::memory::page_source::PageSource;
use crate::engine::memory::umem::UmemRange;
use crate::host_memory::{DmaFault, HostMemory};
use crate::registry::Resource;

/// The pages of a buffer.
#[derive(Clone, Debug)]
enum List {
    /// Addresses of pages of `1 << log_page` bytes, and the byte of the first where the buffer begins.
    Own {
        pages: Arc<[u64]>,
        log_page: u32,
        offset: u64,
    },
    Umem(UmemRange),
}

/// Pages that the host named, seen as one run of bytes.
#[derive(Clone, Debug)]
pub(super) struct Pages(List);

/// A buffer that a command describes, before anything is kept of it.
#[derive(Debug)]
pub(super) struct PagesPlan<'a> {
    source: PageSource<'a>,
    needed: usize,
    log_page: u32,
    offset: u64,
}

impl PagesPlan<'_> {
    /// Returns the bytes of this process that its list will take.
    pub(super) fn memory(&self) -> u64 {
        match self.source {
            PageSource::Listed(_) => self.needed as u64 * 8,
            PageSource::Umem(_) => 0,
        }
    }

    /// Returns the user memory object that it lies in.
    pub(super) fn umem(&self) -> Option<Resource> {
        self.source.umem().map(Resource::umem)
    }

    /// Returns the buffer.
    pub(super) fn pages(self) -> Pages {
        Pages(match self.source {
            PageSource::Umem(range) => List::Umem(range),
            PageSource::Listed(raw) => {
                // The low bits of an entry are not address bits.
                let pages = raw.as_chunks::<8>().0.iter().take(self.needed).map(|page| u64::from_be_bytes(*page) & !0xfff);
                List::Own { pages: pages.collect(), log_page: self.log_page, offset: self.offset }
            }
        })
    }
}

impl Pages {
    /// `log_page_size` counts from 4096 bytes, `page_offset` in 64ths of a page, and both have no meaning in user memory; the
    /// buffer has `len` bytes.
    pub(super) fn plan(
        source: PageSource<'_>,
        log_page_size: u32,
        page_offset: u32,
        len: u64,
    ) -> Result<PagesPlan<'_>, CmdStatus> {
        let log_page = log_page_size + 12;
        if log_page > 40 {
            return Err(CmdStatus::BadParam);
        }
        let page = 1u64 << log_page;
        let offset = u64::from(page_offset) * (page / 64);
        let needed = usize::try_from((offset + len).div_ceil(page)).map_err(|_| CmdStatus::BadParam)?;
        let reaches = match &source {
            PageSource::Listed(raw) => raw.len() / 8 >= needed,
            PageSource::Umem(range) => range.len() >= len,
        };
        if reaches { Ok(PagesPlan { source, needed, log_page, offset }) } else { Err(CmdStatus::BadParam) }
    }

    /// Returns the user memory object that it lies in.
    pub(super) fn umem(&self) -> Option<Resource> {
        match &self.0 {
            List::Own { .. } => None,
            List::Umem(range) => Some(Resource::umem(range.number())),
        }
    }

    /// Returns the device address of byte `at`, and how many bytes follow it in the same page.
    fn locate(&self, at: u64) -> Option<(u64, usize)> {
        let (addr, room) = match &self.0 {
            List::Umem(range) => range.locate(at)?,
            List::Own { pages, log_page, offset } => {
                let at = offset.checked_add(at)?;
                let page = 1u64 << log_page;
                let within = at & (page - 1);
                let base = pages.get(usize::try_from(at >> log_page).ok()?)?;
                (base.checked_add(within)?, page - within)
            }
        };
        Some((addr, usize::try_from(room).unwrap_or(usize::MAX)))
    }

    fn each(
        &self,
        at: u64,
        len: usize,
        mut act: impl FnMut(u64, std::ops::Range<usize>) -> Result<(), DmaFault>,
    ) -> Result<(), DmaFault> {
        let mut done = 0;
        while done < len {
            let (addr, room) = self.locate(at + done as u64).ok_or(DmaFault { addr: at, len })?;
            let end = len.min(done.saturating_add(room));
            act(addr, done..end)?;
            done = end;
        }
        Ok(())
    }

    /// Copies bytes out.
    pub(super) fn read(&self, memory: &dyn HostMemory, at: u64, into: &mut [u8]) -> Result<(), DmaFault> {
        self.each(at, into.len(), |addr, range| memory.read(addr, into.get_mut(range).unwrap_or_default()))
    }

    /// Copies bytes in.
    pub(super) fn write(&self, memory: &dyn HostMemory, at: u64, from: &[u8]) -> Result<(), DmaFault> {
        self.each(at, from.len(), |addr, range| memory.write(addr, from.get(range).unwrap_or_default()))
    }
}

/// A ring of a power of two of equal entries inside a buffer; counters run on, an entry's place is the counter modulo
/// the size.
#[derive(Clone, Debug)]
pub(super) struct Ring {
    pages: Pages,
    start: u64,
    log_entries: u32,
    log_stride: u32,
}

impl Ring {
    /// `1 << log_entries` entries of `1 << log_stride` bytes, from byte `start` of the buffer.
    pub(super) fn new(pages: Pages, start: u64, log_entries: u32, log_stride: u32) -> Self {
        Self { pages, start, log_entries, log_stride }
    }

    /// Returns the user memory object that it lies in.
    pub(super) fn umem(&self) -> Option<Resource> {
        self.pages.umem()
    }

    /// Returns the entries.
    pub(super) fn entries(&self) -> u32 {
        1 << self.log_entries
    }

    /// Returns the bytes of an entry.
    pub(super) fn stride(&self) -> usize {
        1 << self.log_stride
    }

    fn place(&self, counter: u32) -> u64 {
        self.start + (u64::from(counter & (self.entries() - 1)) << self.log_stride)
    }

    /// Copies out bytes from entry `counter` on. What passes the end of the ring continues at its start.
    pub(super) fn read(&self, memory: &dyn HostMemory, counter: u32, into: &mut [u8]) -> Result<(), DmaFault> {
        let stride = self.stride();
        let mut counter = counter;
        for chunk in into.chunks_mut(stride) {
            self.pages.read(memory, self.place(counter), chunk)?;
            counter = counter.wrapping_add(1);
        }
        Ok(())
    }

    /// Copies bytes into entry `counter`, from byte `at` of it.
    pub(super) fn write(&self, memory: &dyn HostMemory, counter: u32, at: u64, from: &[u8]) -> Result<(), DmaFault> {
        self.pages.write(memory, self.place(counter) + at, from)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::harness::TestMemory;
    use super::*;

    #[test]
    fn large_pages_offset_and_wrap() {
        let memory = TestMemory::new(0x1_0000, 0x1_0000);
        // Two pages of 8 KB out of order, starting 1/64 of a page (128 bytes) in.
        let plan = |pages: &[u64], log_page_size, page_offset, len| {
            let raw: Vec<u8> = pages.iter().flat_map(|page| page.to_be_bytes()).collect();
            Pages::plan(PageSource::Listed(&raw), log_page_size, page_offset, len).map(PagesPlan::pages)
        };
        let pages = plan(&[0x1_4000, 0x1_0000], 1, 1, 16 * 1024 - 128).unwrap();
        memory.write(0x1_4080, b"first").unwrap();
        memory.write(0x1_0000, b"second page").unwrap();
        let mut five = [0; 5];
        pages.read(&memory, 0, &mut five).unwrap();
        assert_eq!(&five, b"first");
        let mut cross = [0; 8];
        pages.read(&memory, 8192 - 128 - 2, &mut cross).unwrap();
        assert_eq!(&cross, b"\0\0second");
        assert_eq!(plan(&[0x1_4000, 0x1_0000], 1, 1, 16 * 1024).unwrap_err(), CmdStatus::BadParam);

        let ring = Ring::new(plan(&[0x1_0000], 0, 0, 4096).unwrap(), 2048, 1, 6);
        ring.write(&memory, 7, 0, &[7; 64]).unwrap();
        ring.write(&memory, 8, 0, &[8; 64]).unwrap();
        let mut both = [0; 128];
        ring.read(&memory, 0x1_0001, &mut both).unwrap();
        assert_eq!((both[0], both[127]), (7, 8));
    }
}

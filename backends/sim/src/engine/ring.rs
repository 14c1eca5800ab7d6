//! A queue's buffer in host memory: a list of pages, and a place in it.

use bareverbs_mlx5_spec::CmdStatus;

use crate::memory::{DmaFault, HostMemory};

/// Pages of `1 << log_page` bytes that the host named, seen as one run of bytes.
#[derive(Clone, Debug)]
pub(super) struct Pages {
    pages: Vec<u64>,
    log_page: u32,
    /// Byte of the first page where the buffer starts.
    offset: u64,
}

impl Pages {
    /// `log_page_size` counts from 4096 bytes, `page_offset` in 64ths of a page; the buffer has `len` bytes.
    pub(super) fn new(pas: &[u64], log_page_size: u32, page_offset: u32, len: u64) -> Result<Self, CmdStatus> {
        let log_page = log_page_size + 12;
        if log_page > 40 {
            return Err(CmdStatus::BadParam);
        }
        let page = 1u64 << log_page;
        let offset = u64::from(page_offset) * (page / 64);
        let needed = (offset + len).div_ceil(page);
        let pages = usize::try_from(needed).ok().and_then(|needed| pas.get(..needed)).ok_or(CmdStatus::BadParam)?;
        // The low bits of an entry are not address bits.
        Ok(Self { pages: pages.iter().map(|pa| pa & !0xfff).collect(), log_page, offset })
    }

    /// Bytes that the list takes here.
    pub(super) fn cost(&self) -> u64 {
        self.pages.len() as u64 * 8
    }

    /// Device address of byte `at`, and how many bytes follow it in the same page.
    fn locate(&self, at: u64) -> Option<(u64, usize)> {
        let at = self.offset.checked_add(at)?;
        let page = 1u64 << self.log_page;
        let within = at & (page - 1);
        let base = self.pages.get(usize::try_from(at >> self.log_page).ok()?)?;
        Some((base.checked_add(within)?, usize::try_from(page - within).unwrap_or(usize::MAX)))
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

    /// Bytes that it takes here.
    pub(super) fn cost(&self) -> u64 {
        self.pages.cost()
    }

    /// Entries.
    pub(super) fn entries(&self) -> u32 {
        1 << self.log_entries
    }

    /// Bytes of an entry.
    pub(super) fn stride(&self) -> usize {
        1 << self.log_stride
    }

    fn place(&self, counter: u32) -> u64 {
        self.start + (u64::from(counter & (self.entries() - 1)) << self.log_stride)
    }

    /// Copies out bytes from entry `counter` on; what passes the end of the ring goes on at its start.
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
    use super::super::testing::TestMemory;
    use super::*;

    #[test]
    fn large_pages_offset_and_wrap() {
        let memory = TestMemory::new(0x1_0000, 0x1_0000);
        // Two pages of 8 KB out of order, starting 1/64 of a page (128 bytes) in.
        let pages = Pages::new(&[0x1_4000, 0x1_0000], 1, 1, 16 * 1024 - 128).unwrap();
        memory.write(0x1_4080, b"first").unwrap();
        memory.write(0x1_0000, b"second page").unwrap();
        let mut five = [0; 5];
        pages.read(&memory, 0, &mut five).unwrap();
        assert_eq!(&five, b"first");
        let mut cross = [0; 8];
        pages.read(&memory, 8192 - 128 - 2, &mut cross).unwrap();
        assert_eq!(&cross, b"\0\0second");
        assert_eq!(Pages::new(&[0x1_4000, 0x1_0000], 1, 1, 16 * 1024).unwrap_err(), CmdStatus::BadParam);

        let ring = Ring::new(Pages::new(&[0x1_0000], 0, 0, 4096).unwrap(), 2048, 1, 6);
        ring.write(&memory, 7, 0, &[7; 64]).unwrap();
        ring.write(&memory, 8, 0, &[8; 64]).unwrap();
        let mut both = [0; 128];
        ring.read(&memory, 0x1_0001, &mut both).unwrap();
        assert_eq!((both[0], both[127]), (7, 8));
    }
}

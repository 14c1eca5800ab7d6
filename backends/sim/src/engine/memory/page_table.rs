//! The translations of a key whose pages have one size.

use std::collections::BTreeMap;

use crate::engine::memory::page_source::PageSource;
use crate::engine::memory::umem::UmemRange;

/// Entries of a chunk.
const CHUNK: u64 = 512;
/// Bytes that a chunk takes beside its entries.
const CHUNK_MEMORY: u64 = 64;
/// Bits of an entry that are no address.
const PERMISSIONS: u64 = 0xff;

/// Addresses of pages by their index. A change of some of them costs what is changed, wherever in the table that is.
#[derive(Clone, Debug, Default)]
pub(in crate::engine) struct PageTable {
    /// Entries that no chunk has.
    umem: Option<(UmemRange, u32)>,
    /// The first chunk; most keys have no other.
    first: Vec<u64>,
    chunks: BTreeMap<u64, Vec<u64>>,
}

/// Returns the entries as a list has them.
fn entries(raw: &[u8]) -> impl Iterator<Item = u64> {
    raw.as_chunks::<8>().0.iter().map(|entry| u64::from_be_bytes(*entry))
}

impl PageTable {
    /// Creates the table that a command brings; `log_page` is the size of a page.
    pub(in crate::engine) fn new(source: PageSource<'_>, log_page: u32) -> Self {
        match source {
            PageSource::Umem(range) => Self { umem: Some((range, log_page)), ..Self::default() },
            PageSource::Listed(raw) => {
                let mut table = Self::default();
                table.write(0, raw);
                table
            }
        }
    }

    /// Returns the bytes of this process that a table of `entries` entries takes at most.
    pub(in crate::engine) const fn memory_of(entries: u64) -> u64 {
        if entries <= CHUNK {
            if entries < 4 { 32 } else { entries.next_power_of_two() * 8 }
        } else {
            entries.div_ceil(CHUNK) * (CHUNK * 8 + CHUNK_MEMORY)
        }
    }

    /// Returns the bytes of this process that it takes.
    pub(in crate::engine) fn memory(&self) -> u64 {
        self.first.capacity() as u64 * 8 + self.chunks.len() as u64 * (CHUNK * 8 + CHUNK_MEMORY)
    }

    /// Returns the bytes that it takes at most after `len` bytes of entries more were written.
    pub(in crate::engine) fn memory_after(&self, len: usize) -> u64 {
        // A list that begins within a chunk touches one more.
        self.memory() + (len as u64 / 8).div_ceil(CHUNK).saturating_add(1) * (CHUNK * 8 + CHUNK_MEMORY)
    }

    fn chunk(&self, number: u64) -> Option<&Vec<u64>> {
        if number == 0 { Some(&self.first) } else { self.chunks.get(&number) }
    }

    /// Address of a page.
    pub(in crate::engine) fn page(&self, index: u64) -> Option<u64> {
        match self.chunk(index / CHUNK).filter(|chunk| !chunk.is_empty()) {
            Some(chunk) => chunk.get((index % CHUNK) as usize).map(|entry| entry & !PERMISSIONS),
            None => self.beneath(index),
        }
    }

    /// Address of a page of the user memory.
    fn beneath(&self, index: u64) -> Option<u64> {
        let (range, log_page) = self.umem.as_ref()?;
        let at = index.checked_shl(*log_page).filter(|at| at >> log_page == index)?;
        range.locate(at).map(|(address, _)| address)
    }

    /// Writes entries from `index` on.
    pub(in crate::engine) fn write(&mut self, index: u64, raw: &[u8]) {
        let mut index = index;
        let mut rest = raw;
        while !rest.is_empty() {
            let (number, within) = (index / CHUNK, (index % CHUNK) as usize);
            let count = rest.len().min((CHUNK as usize - within) * 8);
            let (part, behind) = rest.split_at_checked(count).unwrap_or((rest, &[]));
            // What the user memory has in the rest of the chunk stays.
            let below: Vec<u64> = match self.chunk(number) {
                Some(chunk) if !chunk.is_empty() => Vec::new(),
                _ => (number * CHUNK..(number + 1) * CHUNK).map_while(|index| self.beneath(index)).collect(),
            };
            let chunk = if number == 0 { &mut self.first } else { self.chunks.entry(number).or_default() };
            if chunk.is_empty() {
                *chunk = below;
            }
            let end = within + part.len() / 8;
            if chunk.len() < end {
                chunk.resize(end, 0);
            }
            for (to, from) in chunk.iter_mut().skip(within).zip(entries(part)) {
                *to = from;
            }
            index += (part.len() / 8) as u64;
            rest = if part.len() < 8 { &[] } else { behind };
        }
    }

    /// Replaces all entries.
    pub(in crate::engine) fn replace(&mut self, raw: &[u8]) {
        *self = Self::new(PageSource::Listed(raw), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(pages: impl Iterator<Item = u64>) -> Vec<u8> {
        pages.flat_map(u64::to_be_bytes).collect()
    }

    #[test]
    fn entries_are_where_they_were_written() {
        let mut table = PageTable::new(PageSource::Listed(&list((0..1500).map(|page| page << 12 | 3))), 12);
        assert_eq!([0, 511, 512, 1499].map(|index| table.page(index)), [0, 511, 512, 1499].map(|page| Some(page << 12)));
        assert_eq!(table.page(1500), None);
        table.write(510, &list((0..600).map(|page| (page + 9000) << 12)));
        assert_eq!([509, 510, 1109, 1110].map(|index| table.page(index)), [509, 9000, 9599, 1110].map(|page| Some(page << 12)));
        // Far away: what is between takes nothing.
        let before = table.memory();
        table.write(1 << 40, &list([7 << 12].into_iter()));
        assert_eq!((table.page(1 << 40), table.page(1 << 39)), (Some(7 << 12), None));
        assert!(table.memory() - before < 5000);
        assert!(table.memory() <= PageTable::memory_of(1500) + 5000);
        table.replace(&list([5 << 12].into_iter()));
        assert_eq!((table.page(0), table.page(1)), (Some(5 << 12), None));
    }
}

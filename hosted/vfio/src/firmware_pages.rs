//! Pages for the firmware of a card, mapped as the card asks for them.

use std::collections::BTreeSet;
use std::sync::Arc;

use bareverbs::platform::{DmaMemory as _, PageSource, TooFewPages};

use crate::address_space::PAGE;
use crate::dma::{DmaAllocation, HUGE};
use crate::error::Error;
use crate::open_function::OpenFunction;
use crate::pci::Obstacle;

/// Bytes that are mapped at a time: a huge page, if any is reserved.
const CHUNK: usize = HUGE;

/// Maps memory for the device.
type Map = dyn Fn(usize) -> Result<DmaAllocation, Error> + Send;

/// Pages for the firmware of a card: memory of this process that is locked and mapped for the device, 2 MiB at a time, as the
/// firmware asks for it. It is unmapped for the device and freed when the value is dropped.
pub struct FirmwarePages {
    map: Box<Map>,
    chunks: Vec<DmaAllocation>,
    free: Vec<u64>,
    allocated: BTreeSet<u64>,
    refused: Option<Error>,
}

impl FirmwarePages {
    pub(crate) fn new(function: Arc<OpenFunction>) -> Self {
        Self::from_map(Box::new(move |len| DmaAllocation::new(function.clone(), len)))
    }

    pub(crate) fn from_map(map: Box<Map>) -> Self {
        Self { map, chunks: Vec::new(), free: Vec::new(), allocated: BTreeSet::new(), refused: None }
    }

    /// Returns the bytes that are mapped.
    pub fn mapped(&self) -> usize {
        self.chunks.len() * CHUNK
    }

    /// Returns why there were too few pages at the last attempt, with the remedy ([`Error::remedy`]).
    pub const fn refused(&self) -> Option<&Error> {
        self.refused.as_ref()
    }
}

impl std::fmt::Debug for FirmwarePages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FirmwarePages")
            .field("mapped", &self.mapped())
            .field("allocated", &self.allocated.len())
            .finish_non_exhaustive()
    }
}

// SAFETY: each address is of a page of an allocation that this value has, mapped for the device and used by nothing else. The drop of
// the allocation unmaps it for the device first, or leaks it.
#[expect(unsafe_code, reason = "the trait is unsafe to implement")]
unsafe impl PageSource for FirmwarePages {
    fn reserve(&mut self, wanted: u32) -> Result<(), TooFewPages> {
        let mut chunks = Vec::new();
        let mut available = self.free.len();
        while available < wanted as usize {
            match (self.map)(CHUNK) {
                Ok(chunk) => {
                    available += chunk.len() / PAGE;
                    chunks.push(chunk);
                }
                // What was mapped for this request is unmapped again: a firmware that asks for too much leaves memory for the rest.
                Err(error) => {
                    let missing = (wanted as usize).saturating_sub(available) * PAGE;
                    self.refused = Some(for_all(error, missing.next_multiple_of(CHUNK) - CHUNK));
                    return Err(TooFewPages { wanted, available: available as u32 });
                }
            }
        }
        for chunk in &chunks {
            let pages = (chunk.len() / PAGE) as u64;
            self.free.extend((0..pages).rev().map(|page| chunk.device_addr() + page * PAGE as u64));
        }
        self.chunks.append(&mut chunks);
        Ok(())
    }

    fn allocate(&mut self) -> Option<u64> {
        let addr = self.free.pop()?;
        self.allocated.insert(addr);
        Some(addr)
    }

    fn free(&mut self, device_addr: u64) -> bool {
        let was = self.allocated.remove(&device_addr);
        if was {
            self.free.push(device_addr);
        }
        was
    }

    fn free_all(&mut self) {
        self.free.extend(std::mem::take(&mut self.allocated));
    }
}

/// Returns the error of a chunk as that of all memory that is missing, of which `rest` bytes come after the chunk: a user raises
/// the limit once.
fn for_all(error: Error, rest: usize) -> Error {
    match error {
        Error::Obstacle(Obstacle::Memlock { limit, needed }) => {
            Error::Obstacle(Obstacle::Memlock { limit, needed: needed.saturating_add(rest as u64) })
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::dma::tests::Iommu;

    #[test]
    fn memory_is_mapped_as_the_card_asks_and_unmapped_at_the_end() {
        let iommu = Iommu::default();
        let (counter, next) = (iommu.clone(), AtomicU64::new(0));
        let mut pages = FirmwarePages::from_map(Box::new(move |len| {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let full = Error::Obstacle(Obstacle::Memlock { limit: 7 << 20, needed: 8 << 20 });
            if number == 3 { Err(full) } else { Ok(iommu.buffer_at(len, 0x1_0000_0000 + number * (2 << 20))) }
        }));
        assert_eq!(pages.mapped(), 0);
        pages.reserve(17).unwrap();
        assert_eq!(pages.mapped(), 2 << 20);
        let first: Vec<u64> = (0..17).map(|_| pages.allocate().unwrap()).collect();
        assert_eq!(first[..2], [0x1_0000_0000, 0x1_0000_1000]);
        pages.reserve(496).unwrap();
        let more: Vec<u64> = (0..496).map(|_| pages.allocate().unwrap()).collect();
        assert_eq!(pages.mapped(), 4 << 20);
        assert_eq!(first.iter().chain(&more).collect::<BTreeSet<_>>().len(), 513);
        assert!(pages.free(more[0]) && !pages.free(more[0]) && !pages.free(0x1000));
        assert!(pages.refused().is_none());
        // 1,024 of 5,000 pages are there: the missing 15.5 MiB are 8 chunks, of which the first was refused.
        assert_eq!(pages.reserve(5000), Err(TooFewPages { wanted: 5000, available: 1024 }));
        let needed = (8 << 20) + 7 * (2 << 20);
        assert!(matches!(pages.refused(), Some(Error::Obstacle(Obstacle::Memlock { needed: all, .. })) if *all == needed));
        assert_eq!((pages.mapped(), counter.unmapped()), (4 << 20, 1), "the third chunk is given back");
        assert_eq!(format!("{pages:?}"), "FirmwarePages { mapped: 4194304, allocated: 512, .. }");
        pages.free_all();
        pages.reserve(2 * 512).unwrap();
        assert_eq!(counter.unmapped(), 1);
        drop(pages);
        assert_eq!(counter.unmapped(), 3);
    }

    /// With two chunks and a scratch for more pages than they have, so that the end is reached.
    #[test]
    fn pages_keep_their_contract() {
        let (iommu, next) = (Iommu::default(), AtomicU64::new(0));
        let mut pages = FirmwarePages::from_map(Box::new(move |len| match next.fetch_add(1, Ordering::Relaxed) {
            number @ 0..2 => Ok(iommu.buffer_at(len, 0x1_0000_0000 + number * (2 << 20))),
            _ => Err(Error::TooManyMappings { limit: Some(2) }),
        }));
        assert_eq!(bareverbs_conformance::check_pages(&mut pages, &mut [0; 1100]), Ok(()));
        assert_eq!(pages.mapped(), 4 << 20);
    }

    /// A limit of locked memory is of all that is missing; another reason has no sum.
    #[test]
    fn another_reason_for_too_few_pages_stays_as_it_is() {
        let iommu = Iommu::default();
        let mut first = Some(iommu.buffer_at(CHUNK, 0x1_0000_0000));
        let map = std::sync::Mutex::new(move || first.take().ok_or(Error::TooManyMappings { limit: Some(1) }));
        let mut pages = FirmwarePages::from_map(Box::new(move |_| map.lock().unwrap()()));
        assert_eq!(pages.reserve(2000), Err(TooFewPages { wanted: 2000, available: 512 }));
        assert!(matches!(pages.refused(), Some(Error::TooManyMappings { limit: Some(1) })), "{:?}", pages.refused());
    }
}

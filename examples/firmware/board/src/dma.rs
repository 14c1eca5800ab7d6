//! Memory that CPU and card both see: static, page-aligned, handed out once.

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, Ordering};

use bareverbs_mmio::{MappedMemory, PageRanges};

use crate::description;

/// `LEN` bytes of a static, page-aligned. [`dma_memory!`](crate::dma_memory) makes it.
#[repr(C, align(4096))]
pub struct Pages<const LEN: usize> {
    bytes: UnsafeCell<MaybeUninit<[u8; LEN]>>,
}

// SAFETY: the bytes are reached through the pointer that `take` gives out once, and not in another way.
unsafe impl<const LEN: usize> Sync for Pages<LEN> {}

impl<const LEN: usize> Pages<LEN> {
    /// Creates bytes of no particular value.
    #[expect(clippy::new_without_default, reason = "only for statics")]
    pub const fn new() -> Self {
        const { assert!(LEN.is_multiple_of(4096), "whole pages") };
        Self { bytes: UnsafeCell::new(MaybeUninit::uninit()) }
    }

    /// Returns the bytes, the first time; `None` after that.
    ///
    /// # Safety
    /// `taken` was made for this memory, and is always given with it.
    #[doc(hidden)]
    pub unsafe fn take(&'static self, taken: &'static AtomicBool) -> Option<MappedMemory> {
        if taken.swap(true, Ordering::AcqRel) {
            return None;
        }
        let bytes = self.first();
        // SAFETY: the static is page-aligned (its type), `LEN` bytes long, and was handed out just now for the first time. Its
        // bytes are in an `UnsafeCell`, to which no reference exists. The card accesses it at the same addresses: the machines
        // map every address to itself, have no IOMMU, and their caches are coherent with the bus.
        Some(unsafe { MappedMemory::new(bytes, LEN, bytes.as_ptr().addr() as u64) })
    }

    fn first(&'static self) -> NonNull<u8> {
        NonNull::from_ref(self).cast()
    }
}

/// Whether the unused RAM was given out.
static PAGES_TAKEN: AtomicBool = AtomicBool::new(false);

/// Returns all RAM of the machine that is unused, as pages for the card's firmware, the first time; `None` after that, and if there is
/// none. How much a card wants is known when it asks: a ConnectX-4 Lx wanted 50 MiB.
pub fn firmware_pages() -> Option<PageRanges> {
    firmware_pages_up_to(usize::MAX)
}

/// Returns the same, but no more than some bytes.
pub fn firmware_pages_up_to(most: usize) -> Option<PageRanges> {
    if PAGES_TAKEN.swap(true, Ordering::AcqRel) {
        return None;
    }
    let (mut pages, mut left) = (PageRanges::new(), most as u64);
    description::unused(|span| {
        let len = span.len().min(left);
        if let Some(base) = NonNull::new(core::ptr::with_exposed_provenance_mut(span.base as usize)) {
            // SAFETY: whole pages of RAM in which there is neither the program nor what the description names as used, given out
            // once. The card reaches them at the same addresses, as in `take`. The start-up code maps them.
            if unsafe { pages.add(base, len as usize, span.base) } {
                left -= len;
            }
        }
    });
    (pages.pages() != 0).then_some(pages)
}

/// `dma_memory!(LEN)`: that many bytes (whole pages) of static memory for the card, as [`MappedMemory`]; `None` when the
/// program comes by this line a second time.
#[macro_export]
macro_rules! dma_memory {
    ($len:expr) => {{
        // SAFETY: a section of its own, which nothing loads or clears: the bytes have no value before they are written.
        #[unsafe(link_section = ".dma")]
        static DMA_MEMORY_PAGES: $crate::dma::Pages<{ $len }> = $crate::dma::Pages::new();
        static DMA_MEMORY_TAKEN: core::sync::atomic::AtomicBool = core::sync::atomic::AtomicBool::new(false);
        // SAFETY: no other code can name the two.
        unsafe { DMA_MEMORY_PAGES.take(&DMA_MEMORY_TAKEN) }
    }};
}

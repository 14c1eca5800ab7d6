//! A ring in mapped memory, with its doorbell record.

use core::marker::PhantomData;
use core::ptr::NonNull;

use bareverbs::format_as;
use bareverbs::platform::{DmaRing, RingView};

/// A ring in [`MappedMemory`](crate::MappedMemory) with its doorbell record.
pub struct MappedRing {
    place: Place,
}

/// Where a ring and its record lie.
#[derive(Clone, Copy)]
struct Place {
    ring: NonNull<u8>,
    /// Bits that the byte offset of a word may have.
    mask: usize,
    record: NonNull<u32>,
}

impl MappedRing {
    /// Returns the ring of `len` bytes at `ring` with its doorbell record at `record`.
    ///
    /// # Safety
    /// `len` is a power of two of at least 64, `ring` is aligned to 64, and `record` to 8. Both ranges stay readable and
    /// writable as long as the ring lives.
    pub(crate) const unsafe fn new(ring: NonNull<u8>, len: usize, record: NonNull<u8>) -> Self {
        Self { place: Place { ring, mask: len.wrapping_sub(8), record: record.cast() } }
    }
}

format_as!([] MappedRing, "MappedRing({:#x})", |this| this.place.ring.addr().get());

// SAFETY: every access is volatile, and the bytes stay where they are as long as the ring lives (promised to `new`). No other thread
// accesses them meanwhile (promised by the implementation of `OpensRings` that opened the ring).
unsafe impl Send for MappedRing {}

impl DmaRing for MappedRing {
    type View<'a> = MappedRingView<'a>;

    #[inline(always)]
    fn view(&self) -> MappedRingView<'_> {
        MappedRingView { place: self.place, borrowed: PhantomData }
    }
}

/// A [`MappedRing`] while a queue uses it, which the compiler can keep in CPU registers. It does not leave the queue's thread.
#[derive(Clone, Copy)]
pub struct MappedRingView<'a> {
    place: Place,
    borrowed: PhantomData<&'a MappedRing>,
}

format_as!([] MappedRingView<'_>, "MappedRingView({:#x})", |this| this.place.ring.addr().get());

impl MappedRingView<'_> {
    /// Returns the word at this byte offset, wrapped around the ring.
    #[inline(always)]
    fn at(self, offset: usize) -> NonNull<u64> {
        // SAFETY: the mask keeps the offset inside the ring, and a word's start at a multiple of 8.
        unsafe { self.place.ring.add(offset & self.place.mask) }.cast()
    }
}

impl RingView for MappedRingView<'_> {
    #[inline(always)]
    fn put<const N: usize>(self, block: u32, words: &[u64; N]) {
        const { assert!(N <= 8, "a block has eight words") };
        let to = self.at((block as usize).wrapping_mul(64));
        for (index, word) in words.iter().enumerate() {
            // SAFETY: `to` is the start of a block, which has eight words: the ring is a power of two of at least 64 bytes.
            unsafe { to.add(index).write_volatile(*word) };
        }
    }

    #[inline(always)]
    fn put_word(self, word: u32, value: u64) {
        // SAFETY: `at` returned a word of the ring.
        unsafe { self.at((word as usize).wrapping_mul(8)).write_volatile(value) };
    }

    #[inline(always)]
    fn put_pair(self, pair: u32, words: [u64; 2]) {
        let (to, [first, second]) = (self.at((pair as usize).wrapping_mul(16)), words);
        // SAFETY: `at` returned a word of the ring.
        unsafe { to.write_volatile(first) };
        // SAFETY: its offset is a multiple of 16, and so is the length of the ring: the word after it lies in the ring too.
        unsafe { to.add(1).write_volatile(second) };
    }

    #[inline(always)]
    fn word(self, word: u32) -> u64 {
        // SAFETY: `at` returned a word of the ring.
        unsafe { self.at((word as usize).wrapping_mul(8)).read_volatile() }
    }

    #[inline(always)]
    fn block_word(self, block: u32, word: usize) -> u64 {
        // SAFETY: a block has eight words, as of `put`.
        unsafe { self.at((block as usize).wrapping_mul(64)).add(word & 7).read_volatile() }
    }

    #[inline(always)]
    fn record(self, second: bool, value: u32) {
        // SAFETY: the record has eight bytes (promised to `new`).
        unsafe { self.place.record.add(usize::from(second)).write_volatile(value) };
    }
}

#[cfg(test)]
mod tests {
    use std::vec;

    use bareverbs::platform::{DmaMemory, OpensRings, OutOfRange, RingLayout, RingToken};

    use super::*;
    use crate::MappedMemory;
    use crate::test_memory::{aligned, bytes};

    struct Test;

    // SAFETY: each test uses the rings of its memory in one thread.
    unsafe impl OpensRings for Test {}

    fn token() -> RingToken {
        RingToken::of(&Test)
    }

    #[test]
    fn words_blocks_and_records_lie_in_their_ring_and_wrap_around_it() {
        let base = aligned::<512>(0);
        // SAFETY: leaked memory of that length and alignment, of this test alone.
        let memory = unsafe { MappedMemory::new(base, 512, 0x10_0000) };
        let ring = memory.ring(token(), &RingLayout::new(128, 128, 264).unwrap()).unwrap();
        let view = ring.view();
        let mut expected = vec![0; 512];
        let mut put = |at: usize, value: &[u8]| expected[at..at + value.len()].copy_from_slice(value);
        view.put(3, &[1, 2]);
        put(128 + 64, &1u64.to_ne_bytes());
        put(128 + 72, &2u64.to_ne_bytes());
        view.put_word(16 + 3, 0x1122_3344_5566_7788);
        put(128 + 24, &0x1122_3344_5566_7788_u64.to_ne_bytes());
        view.put_pair(5, [3, 4]);
        put(128 + 80, &3u64.to_ne_bytes());
        put(128 + 88, &4u64.to_ne_bytes());
        view.put_pair(u32::MAX, [7, 8]);
        put(128 + 112, &7u64.to_ne_bytes());
        put(128 + 120, &8u64.to_ne_bytes());
        view.record(false, 5);
        view.record(true, 6);
        put(264, &5u32.to_ne_bytes());
        put(268, &6u32.to_ne_bytes());
        assert!(bytes(base, 512) == expected);
        assert_eq!((view.word(3), view.word(8), view.word(u32::MAX - 15 + 9)), (0x1122_3344_5566_7788, 1, 2));
    }

    #[test]
    fn a_ring_beyond_the_end_of_the_memory_is_refused() {
        // SAFETY: leaked memory of that length and alignment, of this test alone.
        let memory = unsafe { MappedMemory::new(aligned::<512>(0), 512, 0) };
        assert_eq!(
            memory.ring(token(), &RingLayout::new(448, 128, 0).unwrap()).err(),
            Some(OutOfRange { offset: 448, len: 128, size: 512 })
        );
        assert!(memory.ring(token(), &RingLayout::new(0, 64, 512).unwrap()).is_err());
        assert!(memory.ring(token(), &RingLayout::new(384, 128, 504).unwrap()).is_ok());
    }
}

//! Memory that CPU and device share, at a pointer.

use core::ptr::NonNull;

use bareverbs::format_as;
use bareverbs::platform::{DmaMemory, OutOfRange, RingLayout, RingToken};

use crate::MappedRing;

/// Memory that CPU and device share, at a pointer.
///
/// Every access is volatile and checked against the length and its alignment.
pub struct MappedMemory {
    base: NonNull<u8>,
    len: usize,
    device_addr: u64,
}

format_as!(
    [] MappedMemory,
    "MappedMemory({:#x}, {} bytes, for the device {:#x})",
    |this| this.base.addr().get(), this.len, this.device_addr,
);

impl MappedMemory {
    /// Returns the memory at `base`, which the device reaches at `device_addr`.
    ///
    /// # Safety
    /// - `base` and `device_addr` are aligned to 4096.
    /// - Until the value and every ring made from it are dropped, the `len` bytes stay readable and writable, and no Rust
    ///   reference to any of them exists. A value that is forgotten is never dropped.
    /// - The bytes are contiguous for the device and coherent with it. While it may use them, only its driver has the value: queues and
    ///   commands in them direct the device's accesses.
    /// - Afterwards the device cannot reach them, or they are never used for anything else.
    pub const unsafe fn new(base: NonNull<u8>, len: usize, device_addr: u64) -> Self {
        Self { base, len, device_addr }
    }

    /// Returns the first of `len` bytes at `at`, if all of them lie in the memory.
    fn bytes(&self, at: usize, len: usize) -> Result<NonNull<u8>, OutOfRange> {
        if at.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(OutOfRange { offset: at, len, size: self.len });
        }
        // SAFETY: `at` is within the bytes promised to `new`.
        Ok(unsafe { self.base.add(at) })
    }

    /// Returns the first of `count` values of type `T`, which has at most eight bytes, if they lie in the memory and are
    /// aligned.
    #[inline]
    fn aligned<T>(&self, at: usize, count: usize) -> Result<NonNull<T>, OutOfRange> {
        let len = count * size_of::<T>();
        if !at.is_multiple_of(size_of::<T>()) || len > self.len || at > self.len - len {
            return Err(OutOfRange { offset: at, len, size: self.len });
        }
        // SAFETY: `at` is within the bytes promised to `new`, and a multiple of the size of `T` from an aligned start.
        Ok(unsafe { self.base.add(at) }.cast())
    }

    /// Returns the number of bytes from `at` to the next multiple of 8. The memory itself starts at one.
    const fn to_word(at: usize) -> usize {
        at.wrapping_neg() % 8
    }
}

// SAFETY: the bytes belong to the value and the device (promised to `new`), and every access is volatile.
unsafe impl Send for MappedMemory {}

// SAFETY: the trait's conditions were promised to `new`, and every access below is checked against the length.
unsafe impl DmaMemory for MappedMemory {
    type Ring = MappedRing;

    fn ring(&self, _: RingToken, layout: &RingLayout) -> Result<MappedRing, OutOfRange> {
        if layout.end() > self.len {
            return Err(OutOfRange { offset: layout.ring(), len: layout.len(), size: self.len });
        }
        // SAFETY: both lie below the end that `RingLayout` states, so within the bytes that were promised to `new`.
        let (ring, record) = unsafe { (self.base.add(layout.ring()), self.base.add(layout.doorbell_record())) };
        // SAFETY: a power of two of at least 64 bytes from a multiple of 64, and eight bytes from a multiple of 8 (what a
        // layout promises). They outlive the ring (promised to `new`).
        Ok(unsafe { MappedRing::new(ring, layout.len(), record) })
    }

    fn len(&self) -> usize {
        self.len
    }

    fn device_addr(&self) -> u64 {
        self.device_addr
    }

    fn read(&self, at: usize, into: &mut [u8]) -> Result<(), OutOfRange> {
        let mut from = self.bytes(at, into.len())?;
        let (head, words) = into.split_at_mut(Self::to_word(at).min(into.len()));
        for byte in head {
            // SAFETY: `bytes` returned as many bytes as `into` has; volatile because the device may write at any time.
            (*byte, from) = unsafe { (from.read_volatile(), from.add(1)) };
        }
        let (words, tail) = words.as_chunks_mut::<8>();
        for word in words {
            // SAFETY: as above, and `from` is a multiple of 8 after the head.
            let (value, next) = unsafe { (from.cast::<u64>().read_volatile(), from.add(8)) };
            (*word, from) = (value.to_ne_bytes(), next);
        }
        for byte in tail {
            // SAFETY: as above.
            (*byte, from) = unsafe { (from.read_volatile(), from.add(1)) };
        }
        Ok(())
    }

    fn write(&mut self, at: usize, from: &[u8]) -> Result<(), OutOfRange> {
        let mut to = self.bytes(at, from.len())?;
        let (head, words) = from.split_at(Self::to_word(at).min(from.len()));
        for byte in head {
            // SAFETY: `bytes` returned as many bytes as `from` has; volatile because the device may read at any time.
            to = unsafe {
                to.write_volatile(*byte);
                to.add(1)
            };
        }
        let (words, tail) = words.as_chunks::<8>();
        for word in words {
            // SAFETY: as above, and `to` is a multiple of 8 after the head.
            to = unsafe {
                to.cast::<u64>().write_volatile(u64::from_ne_bytes(*word));
                to.add(8)
            };
        }
        for byte in tail {
            // SAFETY: as above.
            to = unsafe {
                to.write_volatile(*byte);
                to.add(1)
            };
        }
        Ok(())
    }

    #[inline]
    fn read_u8(&self, at: usize) -> Result<u8, OutOfRange> {
        let byte = self.aligned::<u8>(at, 1)?;
        // SAFETY: `aligned` returned one byte of the memory.
        Ok(unsafe { byte.read_volatile() })
    }

    #[inline]
    fn store_u32(&mut self, at: usize, value: u32) -> Result<(), OutOfRange> {
        let word = self.aligned::<u32>(at, 1)?;
        // SAFETY: `aligned` returned four aligned bytes of the memory.
        unsafe { word.write_volatile(value) };
        Ok(())
    }

    #[inline]
    fn load<const N: usize>(&self, at: usize) -> Result<[u64; N], OutOfRange> {
        let from = self.aligned::<u64>(at, N)?;
        let mut words = [0; N];
        for (index, word) in words.iter_mut().enumerate() {
            // SAFETY: `aligned` returned `N` aligned words of the memory.
            *word = unsafe { from.add(index).read_volatile() };
        }
        Ok(words)
    }

    #[inline]
    fn store<const N: usize>(&mut self, at: usize, words: &[u64; N]) -> Result<(), OutOfRange> {
        let to = self.aligned::<u64>(at, N)?;
        for (index, word) in words.iter().enumerate() {
            // SAFETY: `aligned` returned `N` aligned words of the memory.
            unsafe { to.add(index).write_volatile(*word) };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::vec;
    use std::vec::Vec;

    use super::*;
    use crate::test_memory::{aligned, bytes};

    #[test]
    fn memory_is_copied_at_every_alignment() {
        const LEN: usize = 256;
        for at in 0..24 {
            for len in [0, 1, 3, 7, 8, 9, 15, 16, 17, 64, 100] {
                let base = aligned::<LEN>(0xee);
                // SAFETY: leaked memory of that length and alignment, of this test alone.
                let mut memory = unsafe { MappedMemory::new(base, LEN, 0x10_0000) };
                let data: Vec<u8> = (0..len).map(|index| index as u8 ^ 0x5a).collect();
                memory.write(at, &data).unwrap();
                let mut expected = vec![0xee; LEN];
                expected[at..at + len].copy_from_slice(&data);
                assert!(bytes(base, LEN) == expected, "{len} bytes at {at}");
                let mut back = vec![0; len];
                memory.read(at, &mut back).unwrap();
                assert_eq!(back, data, "{len} bytes at {at}");
            }
        }
    }

    #[test]
    fn words_are_stored_as_the_cpu_stores_them_and_nothing_beyond_the_end() {
        let base = aligned::<64>(0);
        // SAFETY: leaked memory of that length and alignment, of this test alone.
        let mut memory = unsafe { MappedMemory::new(base, 64, 0x10_0000) };
        memory.store(8, &[0x1122_3344_5566_7788, 9]).unwrap();
        memory.store_u32(60, 0xaabb_ccdd).unwrap();
        assert_eq!(bytes(base, 64)[8..16], 0x1122_3344_5566_7788_u64.to_ne_bytes());
        assert_eq!(memory.load::<2>(8), Ok([0x1122_3344_5566_7788, 9]));
        assert_eq!(memory.read_u8(60), Ok(0xaabb_ccdd_u32.to_ne_bytes()[0]));
        assert_eq!((memory.len(), memory.device_addr()), (64, 0x10_0000));
        for (at, len) in [(64, 1), (usize::MAX, 1), (63, 2), (0, 65), (usize::MAX - 3, 8)] {
            assert_eq!(memory.read(at, &mut vec![0; len]), Err(OutOfRange { offset: at, len, size: 64 }));
            assert_eq!(memory.write(at, &vec![0; len]), Err(OutOfRange { offset: at, len, size: 64 }));
        }
        assert!(memory.read_u8(64).is_err() && memory.store_u32(62, 0).is_err() && memory.store_u32(64, 0).is_err());
        assert!(memory.load::<1>(60).is_err() && memory.load::<1>(4).is_err() && memory.store(64, &[0]).is_err());
        assert!(memory.load::<9>(0).is_err() && memory.store(usize::MAX - 7, &[0]).is_err());
    }
}

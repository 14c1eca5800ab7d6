//! Host memory that a driver and a simulated device share.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bareverbs::{DmaMemory, OutOfRange};

use crate::memory::{DmaFault, HostMemory};

/// Bytes of a word.
const WORD: usize = 8;

/// Zeroed memory at a device address.
///
/// Clones are the same memory. Words are atomic and every access is relaxed, so that on the driver's side it costs what
/// plain memory costs. Writing less than a word is a read and a write of it: one thread at a time.
#[derive(Clone)]
pub struct SimMemory {
    words: Arc<[AtomicU64]>,
    addr: u64,
}

impl fmt::Debug for SimMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimMemory")
            .field("addr", &format_args!("{:#x}", self.addr))
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

impl SimMemory {
    /// `len` bytes, rounded up to whole words, that no device reaches until a [`MemoryMap`] has them. `addr` is a multiple
    /// of 4096; lower bits are cut off.
    pub fn new(addr: u64, len: usize) -> Self {
        let words = (0..len.div_ceil(WORD)).map(|_| AtomicU64::new(0)).collect();
        Self { words, addr: addr & !0xfff }
    }

    /// The words that hold bytes `at..at + len`.
    fn span(&self, at: usize, len: usize) -> Result<&[AtomicU64], OutOfRange> {
        let out = OutOfRange { offset: at, len };
        let end = at.checked_add(len).ok_or(out)?;
        self.words.get(at / WORD..end.div_ceil(WORD).max(at / WORD)).ok_or(out)
    }

    fn copy_out(&self, at: usize, into: &mut [u8]) -> Result<(), OutOfRange> {
        let words = self.span(at, into.len())?;
        let (head, middle) = into.split_at_mut(into.len().min(at.wrapping_neg() % WORD));
        let mut words = words.iter();
        if !head.is_empty()
            && let Some(word) = words.next()
        {
            let bytes = word.load(Ordering::Relaxed).to_ne_bytes();
            for (to, from) in head.iter_mut().zip(bytes.iter().skip(at % WORD)) {
                *to = *from;
            }
        }
        for (chunk, word) in middle.chunks_mut(WORD).zip(words) {
            let bytes = word.load(Ordering::Relaxed).to_ne_bytes();
            match <&mut [u8; WORD]>::try_from(&mut *chunk) {
                Ok(chunk) => *chunk = bytes,
                Err(_) => chunk.iter_mut().zip(bytes).for_each(|(to, from)| *to = from),
            }
        }
        Ok(())
    }

    fn copy_in(&self, at: usize, from: &[u8]) -> Result<(), OutOfRange> {
        let words = self.span(at, from.len())?;
        let (head, middle) = from.split_at(from.len().min(at.wrapping_neg() % WORD));
        let mut words = words.iter();
        let part = |word: &AtomicU64, skip: usize, from: &[u8]| {
            let mut bytes = word.load(Ordering::Relaxed).to_ne_bytes();
            bytes.iter_mut().skip(skip).zip(from).for_each(|(to, from)| *to = *from);
            word.store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
        };
        if !head.is_empty()
            && let Some(word) = words.next()
        {
            part(word, at % WORD, head);
        }
        for (chunk, word) in middle.chunks(WORD).zip(words) {
            match <[u8; WORD]>::try_from(chunk) {
                Ok(bytes) => word.store(u64::from_ne_bytes(bytes), Ordering::Relaxed),
                Err(_) => part(word, 0, chunk),
            }
        }
        Ok(())
    }
}

impl DmaMemory for SimMemory {
    #[inline]
    fn len(&self) -> usize {
        self.words.len() * WORD
    }

    #[inline]
    fn device_addr(&self) -> u64 {
        self.addr
    }

    fn read(&self, at: usize, into: &mut [u8]) -> Result<(), OutOfRange> {
        self.copy_out(at, into)
    }

    fn write(&mut self, at: usize, from: &[u8]) -> Result<(), OutOfRange> {
        self.copy_in(at, from)
    }

    #[inline]
    fn read_u8(&self, at: usize) -> Result<u8, OutOfRange> {
        let word = self.words.get(at / WORD).ok_or(OutOfRange { offset: at, len: 1 })?;
        let shift = if cfg!(target_endian = "little") { at % WORD * 8 } else { (WORD - 1 - at % WORD) * 8 };
        Ok((word.load(Ordering::Relaxed) >> shift) as u8)
    }

    #[inline]
    fn store_u32(&mut self, at: usize, value: u32) -> Result<(), OutOfRange> {
        let out = OutOfRange { offset: at, len: 4 };
        let word = self.words.get(at / WORD).ok_or(out)?;
        let high = match at % WORD {
            0 => cfg!(target_endian = "big"),
            4 => cfg!(target_endian = "little"),
            _ => return Err(out),
        };
        let (shift, keep) = if high { (32, u64::from(u32::MAX)) } else { (0, u64::from(u32::MAX) << 32) };
        word.store(word.load(Ordering::Relaxed) & keep | u64::from(value) << shift, Ordering::Relaxed);
        Ok(())
    }

    #[inline]
    fn load<const N: usize>(&self, at: usize) -> Result<[u64; N], OutOfRange> {
        let words = self.words.get(at / WORD..).and_then(|words| words.first_chunk::<N>());
        match words {
            Some(words) if at.is_multiple_of(WORD) => Ok(core::array::from_fn(|i| {
                // In range by the type of `words`; the compiler sees it and drops the check.
                words.get(i).map_or(0, |word| word.load(Ordering::Relaxed))
            })),
            _ => Err(OutOfRange { offset: at, len: N * WORD }),
        }
    }

    #[inline]
    fn store<const N: usize>(&mut self, at: usize, words: &[u64; N]) -> Result<(), OutOfRange> {
        let place = self.words.get(at / WORD..).and_then(|place| place.first_chunk::<N>());
        match place {
            Some(place) if at.is_multiple_of(WORD) => {
                for (to, from) in place.iter().zip(words) {
                    to.store(*from, Ordering::Relaxed);
                }
                Ok(())
            }
            _ => Err(OutOfRange { offset: at, len: N * WORD }),
        }
    }
}

/// The memories that one device reaches; clones are the same map.
#[derive(Clone, Debug, Default)]
pub struct MemoryMap {
    /// In order of their addresses, none over another.
    memories: Rc<RefCell<Vec<SimMemory>>>,
}

impl MemoryMap {
    /// Lets the device reach `memory`; `false` if another one lies there.
    pub fn map(&self, memory: &SimMemory) -> bool {
        let Ok(mut memories) = self.memories.try_borrow_mut() else { return false };
        let place = memories.partition_point(|known| known.addr < memory.addr);
        let end = |memory: &SimMemory| memory.addr.saturating_add(memory.len() as u64);
        let before = place.checked_sub(1).and_then(|before| memories.get(before));
        let free = before.is_none_or(|before| end(before) <= memory.addr)
            && memories.get(place).is_none_or(|after| end(memory) <= after.addr);
        if free {
            memories.insert(place, memory.clone());
        }
        free
    }

    /// Takes the memory at `addr` away from the device; `false` if there is none.
    pub fn unmap(&self, addr: u64) -> bool {
        let Ok(mut memories) = self.memories.try_borrow_mut() else { return false };
        let before = memories.len();
        memories.retain(|memory| memory.addr != addr);
        memories.len() < before
    }

    /// The first address after every memory.
    pub(super) fn end(&self) -> Option<u64> {
        let memories = self.memories.try_borrow().ok()?;
        memories.last().map(|last| last.addr.saturating_add(last.len() as u64))
    }

    fn with<R>(
        &self,
        addr: u64,
        len: usize,
        access: impl FnOnce(&SimMemory, usize) -> Result<R, OutOfRange>,
    ) -> Result<R, DmaFault> {
        let fault = DmaFault { addr, len };
        let memories = self.memories.try_borrow().map_err(|_| fault)?;
        let place = memories.partition_point(|known| known.addr <= addr).checked_sub(1).ok_or(fault)?;
        let memory = memories.get(place).ok_or(fault)?;
        let at = usize::try_from(addr - memory.addr).map_err(|_| fault)?;
        access(memory, at).map_err(|_| fault)
    }
}

impl HostMemory for MemoryMap {
    fn read(&self, addr: u64, into: &mut [u8]) -> Result<(), DmaFault> {
        self.with(addr, into.len(), |memory, at| memory.copy_out(at, into))
    }

    fn write(&self, addr: u64, from: &[u8]) -> Result<(), DmaFault> {
        self.with(addr, from.len(), |memory, at| memory.copy_in(at, from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_every_alignment_and_length() {
        let mut memory = SimMemory::new(0x1000, 64);
        for at in 0..20 {
            for len in 0..30 {
                let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + at + 1) as u8).collect();
                memory.write(0, &[0xee; 64]).unwrap();
                memory.write(at, &bytes).unwrap();
                let mut all = [0; 64];
                memory.read(0, &mut all).unwrap();
                assert!(all[..at].iter().chain(&all[at + len..]).all(|byte| *byte == 0xee), "{at} {len}");
                let mut back = vec![0; len];
                memory.read(at, &mut back).unwrap();
                assert_eq!((&back, &all[at..at + len]), (&bytes, &bytes[..]));
                assert!((0..len).all(|i| memory.read_u8(at + i) == Ok(bytes[i])));
            }
        }
    }

    #[test]
    fn words_and_halves_share_their_bytes() {
        let mut memory = SimMemory::new(0, 4096);
        memory.store(8, &[0x0102_0304_0506_0708_u64.to_be(), 1]).unwrap();
        memory.store_u32(12, 0xaabb_ccdd_u32.to_be()).unwrap();
        assert_eq!(memory.load::<2>(8), Ok([0x0102_0304_aabb_ccdd_u64.to_be(), 1]));
        assert_eq!(memory.read_u8(12), Ok(0xaa));
    }

    #[test]
    fn the_end_is_the_end() {
        let mut memory = SimMemory::new(0x1000, 4096);
        assert_eq!(memory.load::<8>(4096 - 64), Ok([0; 8]));
        assert!(memory.load::<8>(4096 - 56).is_err() && memory.load::<1>(4).is_err());
        assert!(memory.store(usize::MAX & !7, &[0]).is_err() && memory.store_u32(2, 0).is_err());
        assert!(memory.read(4095, &mut [0; 2]).is_err() && memory.write(usize::MAX, &[1]).is_err());
        assert!(memory.read(4096, &mut []).is_ok());

        let map = MemoryMap::default();
        assert!(map.map(&memory) && !map.map(&SimMemory::new(0x1000, 8)) && map.map(&SimMemory::new(0x4000, 8)));
        assert!(!map.map(&SimMemory::new(0x0, 0x1008)), "reaches into the next");
        assert_eq!(map.write(0x1ff8, &[5; 8]), Ok(()));
        assert_eq!(map.write(0x1ff9, &[5; 8]), Err(DmaFault { addr: 0x1ff9, len: 8 }));
        assert!(map.read(0xfff, &mut [0]).is_err() && map.read(u64::MAX, &mut [0; 9]).is_err());
        assert_eq!(memory.read_u8(4095), Ok(5));
        assert!(map.unmap(0x1000) && map.read(0x1000, &mut [0]).is_err());
    }
}

//! Host memory that a driver and a simulated device share.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use bareverbs::DmaBuffer;
use bareverbs::platform::{AddressMap, DmaMemory, DmaRing, Extent, OutOfRange, RingLayout, RingToken, RingView};
use parking_lot::RwLock;

use super::idle_reads::{IdleReads, WeakWorld};
use crate::host_memory::{DmaFault, HostMemory};

/// Bytes of a word.
const WORD: usize = 8;

/// How the accesses of one side are ordered.
trait AccessOrder {
    const LOAD: Ordering;
    const STORE: Ordering;
}

/// The host's own accesses: it orders them with fences, as it does on hardware.
struct HostOrder;

impl AccessOrder for HostOrder {
    const LOAD: Ordering = Ordering::Relaxed;
    const STORE: Ordering = Ordering::Relaxed;
}

/// The device's accesses: in the order in which it does them. A thread that sees its owner byte and then has an acquire fence
/// sees what it wrote before. What it reads after a doorbell record is at least as new as the record.
struct DeviceOrder;

impl AccessOrder for DeviceOrder {
    const LOAD: Ordering = Ordering::Acquire;
    const STORE: Ordering = Ordering::Release;
}

/// Replaces the bits of `word` that `mask` selects, in one step: no write of another thread to its other bits is lost.
#[inline]
fn replace_bits<O: AccessOrder>(word: &AtomicU64, mask: u64, bits: u64) {
    let mut old = word.load(Ordering::Relaxed);
    while let Err(current) = word.compare_exchange_weak(old, old & !mask | bits & mask, O::STORE, Ordering::Relaxed) {
        old = current;
    }
}

/// Replaces bytes of `word`, from byte `skip`.
fn replace_bytes<O: AccessOrder>(word: &AtomicU64, skip: usize, from: &[u8]) {
    let (mut mask, mut bits) = ([0; WORD], [0; WORD]);
    for ((mask, bits), from) in mask.iter_mut().zip(&mut bits).skip(skip).zip(from) {
        (*mask, *bits) = (0xff, *from);
    }
    replace_bits::<O>(word, u64::from_ne_bytes(mask), u64::from_ne_bytes(bits));
}

/// The words of a memory.
#[derive(Clone)]
enum Words {
    /// Its own, freed with the last clone.
    Owned(Arc<[AtomicU64]>),
    /// Lent for ever.
    Lent(&'static [AtomicU64]),
}

impl Deref for Words {
    type Target = [AtomicU64];

    #[inline]
    fn deref(&self) -> &[AtomicU64] {
        match self {
            Self::Owned(words) => words,
            Self::Lent(words) => words,
        }
    }
}

impl fmt::Debug for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whose = if matches!(self, Self::Owned(_)) { "own" } else { "lent" };
        write!(f, "{} {whose} words", self.len())
    }
}

/// Memory at a device address, zeroed at first if it is its own.
///
/// Clones are the same memory, for any thread, and serve one purpose together. A memory with rings, such as that of a driver, gives no
/// [`SimBuffer`]: a peer could write into a queue through it. One that has given a buffer has no rings. Words are atomic and every access
/// through [`DmaMemory`] is relaxed, so that loads and whole words cost what plain memory costs. Writing less than a word changes no other
/// byte of it, although other threads write there meanwhile.
///
/// [`Host::memory`](super::Host::memory) gives each memory an address of its own. A program that chooses addresses ([`Self::new`],
/// [`Host::memory_at`](super::Host::memory_at), [`Host::lend_memory`](super::Host::lend_memory)) keeps them apart: to a device that has
/// another memory at the address of a buffer, the buffer is that memory.
///
/// A program that spins on a ring or a [`SimBuffer`] of a [`Host`](super::Host)'s memory needs no clock. After 64 reads of the
/// same place in a row, time moves to the next event of the world, and devices and wire work.
#[derive(Clone)]
pub struct SimMemory {
    words: Words,
    addr: u64,
    world: WeakWorld,
    purpose: Arc<Purpose>,
}

/// What a memory is for, decided by its first use.
#[derive(Debug, Default)]
struct Purpose(AtomicU8);

impl Purpose {
    const RINGS: u8 = 1;
    const BUFFERS: u8 = 2;

    /// Returns whether the memory is for this, now at the latest.
    fn is(&self, wanted: u8) -> bool {
        match self.0.compare_exchange(0, wanted, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => true,
            Err(known) => known == wanted,
        }
    }
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
        Self { words: Words::Owned(words), addr: addr & !0xfff, world: WeakWorld::default(), purpose: Arc::default() }
    }

    /// Returns the memory of these words: of a program in another language, say, which has pointers to them. Otherwise as
    /// [`Self::new`].
    pub fn lent(addr: u64, words: &'static [AtomicU64]) -> Self {
        Self { words: Words::Lent(words), addr: addr & !0xfff, world: WeakWorld::default(), purpose: Arc::default() }
    }

    /// Returns the same memory, whose idle reads let time pass in `world`.
    pub(super) fn in_world(self, world: WeakWorld) -> Self {
        Self { world, ..self }
    }

    /// Returns the words that hold bytes `at..at + len`.
    fn layout(&self, at: usize, len: usize) -> Result<&[AtomicU64], OutOfRange> {
        let out = OutOfRange { offset: at, len, size: self.len() };
        let end = at.checked_add(len).ok_or(out)?;
        self.words.get(at / WORD..end.div_ceil(WORD).max(at / WORD)).ok_or(out)
    }

    fn copy_out<O: AccessOrder>(&self, at: usize, into: &mut [u8]) -> Result<(), OutOfRange> {
        let words = self.layout(at, into.len())?;
        let (head, middle) = into.split_at_mut(into.len().min(at.wrapping_neg() % WORD));
        let mut words = words.iter();
        if !head.is_empty()
            && let Some(word) = words.next()
        {
            let bytes = word.load(O::LOAD).to_ne_bytes();
            for (to, from) in head.iter_mut().zip(bytes.iter().skip(at % WORD)) {
                *to = *from;
            }
        }
        let (whole, tail) = middle.as_chunks_mut::<WORD>();
        let words = words.as_slice();
        for (chunk, word) in whole.iter_mut().zip(words) {
            *chunk = word.load(O::LOAD).to_ne_bytes();
        }
        if !tail.is_empty()
            && let Some(word) = words.get(whole.len())
        {
            tail.iter_mut().zip(word.load(O::LOAD).to_ne_bytes()).for_each(|(to, from)| *to = from);
        }
        Ok(())
    }

    fn copy_in<O: AccessOrder>(&self, at: usize, from: &[u8]) -> Result<(), OutOfRange> {
        let words = self.layout(at, from.len())?;
        let (head, middle) = from.split_at(from.len().min(at.wrapping_neg() % WORD));
        let mut words = words.iter();
        if !head.is_empty()
            && let Some(word) = words.next()
        {
            replace_bytes::<O>(word, at % WORD, head);
        }
        let (whole, tail) = middle.as_chunks::<WORD>();
        let words = words.as_slice();
        for (bytes, word) in whole.iter().zip(words) {
            word.store(u64::from_ne_bytes(*bytes), O::STORE);
        }
        if !tail.is_empty()
            && let Some(word) = words.get(whole.len())
        {
            replace_bytes::<O>(word, 0, tail);
        }
        Ok(())
    }
}

// SAFETY: every access is checked against the words, which live as long as any clone or ring of them. The simulated device
// reaches memory through a `MemoryMap`, by the same checked accesses.
#[expect(unsafe_code, reason = "the trait is unsafe to implement")]
unsafe impl DmaMemory for SimMemory {
    type Ring = SimRing;

    fn ring(&self, _: RingToken, layout: &RingLayout) -> Result<SimRing, OutOfRange> {
        if layout.end() > self.len() || !self.purpose.is(Purpose::RINGS) {
            return Err(OutOfRange { offset: layout.ring(), len: layout.len(), size: self.len() });
        }
        let mask = layout.len() / WORD - 1;
        let idle = IdleReads::new(self.world.clone());
        Ok(SimRing {
            words: self.words.clone(),
            first: layout.ring() / WORD,
            mask,
            record: layout.doorbell_record() / WORD,
            idle,
        })
    }

    #[inline]
    fn len(&self) -> usize {
        self.words.len() * WORD
    }

    #[inline]
    fn device_addr(&self) -> u64 {
        self.addr
    }

    fn read(&self, at: usize, into: &mut [u8]) -> Result<(), OutOfRange> {
        self.copy_out::<HostOrder>(at, into)
    }

    fn write(&mut self, at: usize, from: &[u8]) -> Result<(), OutOfRange> {
        self.copy_in::<HostOrder>(at, from)
    }

    #[inline]
    fn read_u8(&self, at: usize) -> Result<u8, OutOfRange> {
        let word = self.words.get(at / WORD).ok_or(OutOfRange { offset: at, len: 1, size: self.len() })?;
        let shift = if cfg!(target_endian = "little") { at % WORD * 8 } else { (WORD - 1 - at % WORD) * 8 };
        Ok((word.load(Ordering::Relaxed) >> shift) as u8)
    }

    #[inline]
    fn store_u32(&mut self, at: usize, value: u32) -> Result<(), OutOfRange> {
        let out = OutOfRange { offset: at, len: 4, size: self.len() };
        let word = self.words.get(at / WORD).ok_or(out)?;
        let high = match at % WORD {
            0 => cfg!(target_endian = "big"),
            4 => cfg!(target_endian = "little"),
            _ => return Err(out),
        };
        let shift = if high { 32 } else { 0 };
        replace_bits::<HostOrder>(word, u64::from(u32::MAX) << shift, u64::from(value) << shift);
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
            _ => Err(OutOfRange { offset: at, len: N * WORD, size: self.len() }),
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
            _ => Err(OutOfRange { offset: at, len: N * WORD, size: self.len() }),
        }
    }
}

/// A ring in simulated memory with its doorbell record.
#[derive(Debug)]
pub struct SimRing {
    words: Words,
    /// First word of the ring.
    first: usize,
    /// Words of the ring less one.
    mask: usize,
    /// Word of the record.
    record: usize,
    idle: IdleReads,
}

impl SimRing {
    #[inline]
    fn at(&self, word: usize) -> Option<&AtomicU64> {
        self.words.get(self.first.wrapping_add(word & self.mask))
    }
}

impl DmaRing for SimRing {
    type View<'a> = &'a Self;

    #[inline]
    fn view(&self) -> &Self {
        self
    }
}

impl RingView for &SimRing {
    #[inline]
    fn put<const N: usize>(self, block: u32, words: &[u64; N]) {
        for (index, value) in words.iter().enumerate() {
            if let Some(word) = self.at((block as usize).wrapping_mul(8).wrapping_add(index)) {
                word.store(*value, Ordering::Relaxed);
            }
        }
    }

    #[inline]
    fn put_word(self, word: u32, value: u64) {
        if let Some(word) = self.at(word as usize) {
            word.store(value, Ordering::Relaxed);
        }
    }

    #[inline]
    fn word(self, word: u32) -> u64 {
        self.idle.count(word);
        self.at(word as usize).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    #[inline]
    fn record(self, second: bool, value: u32) {
        if let Some(word) = self.words.get(self.record) {
            let shift = if second == cfg!(target_endian = "little") { 32 } else { 0 };
            replace_bits::<HostOrder>(word, u64::from(u32::MAX) << shift, u64::from(value) << shift);
        }
    }
}

/// Some bytes of a memory, as a region owns them. The program sees them at an address of its choice.
///
/// A clone names the same bytes, as a second buffer over them does: of a region too (`(*region).clone()`), whose bytes a device may
/// write meanwhile. Tests look at memory in this way. Bytes are read and written as atomics, so that it is no data race. A buffer of a
/// real machine has one owner, and no such clone ([`DmaBuffer`](bareverbs::DmaBuffer)).
#[derive(Clone, Debug)]
pub struct SimBuffer {
    memory: SimMemory,
    at: usize,
    len: usize,
    addr: u64,
    idle: IdleReads,
}

impl SimMemory {
    /// Returns a buffer over `len` bytes from byte `at`; requests name its first byte as `addr`. `None` if they are not all there, or
    /// if the memory has rings.
    pub fn buffer(&self, at: usize, len: usize, addr: u64) -> Option<SimBuffer> {
        let inside = at.checked_add(len).is_some_and(|end| end <= self.len());
        (inside && self.purpose.is(Purpose::BUFFERS)).then(|| SimBuffer {
            memory: self.clone(),
            at,
            len,
            addr,
            idle: IdleReads::new(self.world.clone()),
        })
    }

    /// All bytes, which the program sees where the device does; none of a memory that has rings.
    pub fn whole(&self) -> SimBuffer {
        let idle = IdleReads::new(self.world.clone());
        let len = if self.purpose.is(Purpose::BUFFERS) { self.len() } else { 0 };
        SimBuffer { memory: self.clone(), at: 0, len, addr: self.addr, idle }
    }
}

impl SimBuffer {
    fn check(&self, at: usize, len: usize) -> Result<usize, OutOfRange> {
        let inside = at.checked_add(len).is_some_and(|end| end <= self.len);
        if inside { Ok(self.at.wrapping_add(at)) } else { Err(OutOfRange { offset: at, len, size: self.len }) }
    }
}

impl AddressMap for SimBuffer {
    fn extent(&self, addr: u64) -> Option<Extent> {
        let offset = addr.checked_sub(self.addr).filter(|offset| *offset < self.len as u64)?;
        let device_addr = self.memory.addr.wrapping_add(self.at as u64).wrapping_add(offset);
        Some(Extent { device_addr, len: self.len as u64 - offset })
    }
}

// SAFETY: the words live as long as any clone of their memory, no reference to their bytes exists, and the device reaches them
// by checked accesses. Addresses that a host gives are those of one memory. Those that a program chooses may be another memory's too:
// whatever a device writes there are atomic words of a memory of the simulator, so that no other memory of the program changes.
#[expect(unsafe_code, reason = "the trait is unsafe to implement")]
unsafe impl DmaBuffer for SimBuffer {
    fn addr(&self) -> u64 {
        self.addr
    }

    fn len(&self) -> u64 {
        self.len as u64
    }

    fn read(&self, at: usize, into: &mut [u8]) -> Result<(), OutOfRange> {
        self.idle.count(at as u32);
        DmaMemory::read(&self.memory, self.check(at, into.len())?, into)
    }

    fn write(&mut self, at: usize, from: &[u8]) -> Result<(), OutOfRange> {
        let at = self.check(at, from.len())?;
        DmaMemory::write(&mut self.memory, at, from)
    }
}

/// Returns the first address after `memory`.
fn end(memory: &SimMemory) -> u64 {
    memory.addr.saturating_add(memory.len() as u64)
}

/// Puts `memory` in its place. Returns `false` if another one lies there.
fn insert(memories: &mut Vec<SimMemory>, memory: &SimMemory) -> bool {
    let place = memories.partition_point(|known| known.addr < memory.addr);
    let before = place.checked_sub(1).and_then(|before| memories.get(before));
    let free = before.is_none_or(|before| end(before) <= memory.addr)
        && memories.get(place).is_none_or(|after| end(memory) <= after.addr);
    if free {
        memories.insert(place, memory.clone());
    }
    free
}

/// The memories that one device reaches; clones are the same map.
#[derive(Clone, Debug, Default)]
pub struct MemoryMap {
    /// In order of their addresses, none over another.
    memories: Arc<RwLock<Vec<SimMemory>>>,
}

impl MemoryMap {
    /// Lets the device reach `memory`. Returns `false` if another one lies there.
    pub fn map(&self, memory: &SimMemory) -> bool {
        insert(&mut self.memories.write(), memory)
    }

    /// Takes the memory at `addr` away from the device. Returns `false` if there is none. The device does not touch it any more
    /// when this returns.
    pub fn unmap(&self, addr: u64) -> bool {
        let mut memories = self.memories.write();
        let before = memories.len();
        memories.retain(|memory| memory.addr != addr);
        memories.len() < before
    }

    /// Maps `len` bytes of new memory after all memory so far, or from address `first` on if there is none yet. An unmapped
    /// page between them catches a device that runs over the end.
    pub(super) fn append(&self, first: u64, len: usize) -> SimMemory {
        let mut memories = self.memories.write();
        let last = memories.last().map_or(first, end);
        let memory = SimMemory::new((last | 0xfff).saturating_add(0x1001), len);
        insert(&mut memories, &memory);
        memory
    }

    fn with<R>(
        &self,
        addr: u64,
        len: usize,
        access: impl FnOnce(&SimMemory, usize) -> Result<R, OutOfRange>,
    ) -> Result<R, DmaFault> {
        let fault = DmaFault { addr, len };
        let memories = self.memories.read();
        let place = memories.partition_point(|known| known.addr <= addr).checked_sub(1).ok_or(fault)?;
        let memory = memories.get(place).ok_or(fault)?;
        let at = usize::try_from(addr - memory.addr).map_err(|_| fault)?;
        access(memory, at).map_err(|_| fault)
    }
}

impl HostMemory for MemoryMap {
    fn read(&self, addr: u64, into: &mut [u8]) -> Result<(), DmaFault> {
        self.with(addr, into.len(), |memory, at| memory.copy_out::<DeviceOrder>(at, into))
    }

    fn write(&self, addr: u64, from: &[u8]) -> Result<(), DmaFault> {
        self.with(addr, from.len(), |memory, at| memory.copy_in::<DeviceOrder>(at, from))
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
    fn lent_words_are_what_the_device_sees() {
        static WORDS: [AtomicU64; 512] = [const { AtomicU64::new(0) }; 512];
        let mut memory = SimMemory::lent(0x1000, &WORDS);
        let map = MemoryMap::default();
        assert!(map.map(&memory) && !map.map(&memory));
        map.write(0x1ff8, &[5; 8]).unwrap();
        assert_eq!(WORDS[511].load(Ordering::Relaxed).to_ne_bytes(), [5; 8]);
        memory.write(1, &[7]).unwrap();
        assert_eq!(WORDS[0].load(Ordering::Relaxed).to_ne_bytes(), [0, 7, 0, 0, 0, 0, 0, 0]);
        assert!(map.write(0x1ff9, &[5; 8]).is_err());
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

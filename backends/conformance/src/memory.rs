//! Memory that CPU and device both see, from the CPU's side.

use core::fmt;

use bareverbs::DmaMemory;

use crate::pattern;
use crate::ring::check_rings;

/// A call of [`DmaMemory`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Call {
    /// `read`.
    Read,
    /// `write`.
    Write,
    /// `read_u8`.
    ReadU8,
    /// `store_u32`.
    StoreU32,
    /// `load`.
    Load,
    /// `store`.
    Store,
    /// `ring`.
    Ring,
    /// `RingView::put`.
    Put,
    /// `RingView::put_word`.
    PutWord,
    /// `RingView::word`.
    Word,
    /// `RingView::block_word`.
    BlockWord,
    /// `RingView::record`.
    Record,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::ReadU8 => "read_u8",
            Self::StoreU32 => "store_u32",
            Self::Load => "load",
            Self::Store => "store",
            Self::Ring => "ring",
            Self::Put => "RingView::put",
            Self::PutWord => "RingView::put_word",
            Self::Word => "RingView::word",
            Self::BlockWord => "RingView::block_word",
            Self::Record => "RingView::record",
        })
    }
}

/// What is wrong with a [`DmaMemory`]. Offsets are bytes of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemoryFault {
    /// It has less than a page, which no driver can use.
    Short {
        /// Its bytes.
        len: usize,
    },
    /// The device's address of it is no multiple of 4096.
    Misaligned {
        /// The address.
        device_addr: u64,
    },
    /// Its end is beyond the end of the device's addresses.
    Wraps {
        /// The device's address of it.
        device_addr: u64,
        /// Its bytes.
        len: usize,
    },
    /// A call refuses bytes that are in it.
    Refused {
        /// The call.
        call: Call,
        /// Where.
        at: usize,
        /// How many bytes.
        len: usize,
    },
    /// A call does not refuse bytes that are not all in it, or a word that is not aligned.
    Accepted {
        /// The call.
        call: Call,
        /// Where.
        at: usize,
        /// How many bytes.
        len: usize,
    },
    /// A byte is another one than was written there.
    Differs {
        /// The call after which it is.
        call: Call,
        /// Where.
        at: usize,
        /// What it must be.
        expected: u8,
        /// What it is.
        found: u8,
    },
}

impl fmt::Display for MemoryFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Short { len } => write!(f, "the memory has {len} bytes, less than a page"),
            Self::Misaligned { device_addr } => write!(f, "the device's address {device_addr:#x} is no multiple of 4096"),
            Self::Wraps { device_addr, len } => {
                write!(f, "{len} bytes from the device's address {device_addr:#x} go beyond the last")
            }
            Self::Refused { call, at, len } => write!(f, "{call} refuses {len} bytes at {at}, which are in the memory"),
            Self::Accepted { call, at, len } => {
                write!(f, "{call} accepts {len} bytes at {at}, which are not all in the memory, or not aligned")
            }
            Self::Differs { call, at, expected, found } => {
                write!(f, "after {call} byte {at} is {found:#04x}, and must be {expected:#04x}")
            }
        }
    }
}

impl core::error::Error for MemoryFault {}

/// Bytes of one copy: an odd number, so that copies begin and end everywhere in a word.
const PIECE: usize = 61;

/// Checks the memory's calls against each other: which bytes each touches, what it refuses, and that no two bytes are one. Its content is
/// other bytes afterwards. The device takes no part: [`check_traffic`](crate::check_traffic) sees whether it has the same bytes.
///
/// # Errors
/// The first thing that is wrong.
pub fn check_memory<M: DmaMemory>(memory: &mut M) -> Result<(), MemoryFault> {
    let (len, device_addr) = (memory.len(), memory.device_addr());
    if len < 4096 || memory.is_empty() {
        return Err(MemoryFault::Short { len });
    }
    if !device_addr.is_multiple_of(4096) {
        return Err(MemoryFault::Misaligned { device_addr });
    }
    if device_addr.checked_add(len as u64).is_none() {
        return Err(MemoryFault::Wraps { device_addr, len });
    }
    fill(memory, 0)?;
    compare(memory, 0, Call::Write)?;
    check_bytes(memory)?;
    check_refusals(memory)?;
    compare(memory, 0, Call::Write)?;
    check_words(memory)?;
    check_rings(memory)?;
    fill(memory, 1)?;
    compare(memory, 1, Call::Write)
}

/// Fills the memory with the bytes of a round.
pub(crate) fn fill<M: DmaMemory>(memory: &mut M, round: u32) -> Result<(), MemoryFault> {
    let (len, mut at) = (memory.len(), 0_usize);
    while at < len {
        let mut bytes = [0; PIECE];
        let count = PIECE.min(len.wrapping_sub(at));
        let piece = bytes.get_mut(..count).unwrap_or_default();
        pattern::fill(round, at, piece);
        memory.write(at, piece).map_err(|_| MemoryFault::Refused { call: Call::Write, at, len: count })?;
        at = at.wrapping_add(count);
    }
    Ok(())
}

/// Compares the memory with the bytes of a round; `call` is what it was written by.
pub(crate) fn compare<M: DmaMemory>(memory: &M, round: u32, call: Call) -> Result<(), MemoryFault> {
    let (len, mut at) = (memory.len(), 0_usize);
    while at < len {
        // Other pieces than they were written in.
        let mut bytes = [0; PIECE + 6];
        let count = bytes.len().min(len.wrapping_sub(at));
        let piece = bytes.get_mut(..count).unwrap_or_default();
        read(memory, at, piece)?;
        if let Some((at, expected, found)) = pattern::first_wrong(round, at, piece) {
            return Err(MemoryFault::Differs { call, at, expected, found });
        }
        at = at.wrapping_add(count);
    }
    Ok(())
}

fn read<M: DmaMemory>(memory: &M, at: usize, into: &mut [u8]) -> Result<(), MemoryFault> {
    let len = into.len();
    memory.read(at, into).map_err(|_| MemoryFault::Refused { call: Call::Read, at, len })
}

/// Returns an error if the bytes at `at` are others.
pub(crate) fn expect<M: DmaMemory>(memory: &M, call: Call, at: usize, bytes: &[u8]) -> Result<(), MemoryFault> {
    let mut place = [0; 64];
    for (index, expected) in bytes.chunks(place.len()).enumerate() {
        let at = at.wrapping_add(index.wrapping_mul(64));
        let found = place.get_mut(..expected.len()).unwrap_or_default();
        read(memory, at, found)?;
        if let Some(index) = expected.iter().zip(&*found).position(|(expected, found)| expected != found) {
            let byte = |bytes: &[u8]| bytes.get(index).copied().unwrap_or_default();
            let (expected, found) = (byte(expected), byte(found));
            return Err(MemoryFault::Differs { call, at: at.wrapping_add(index), expected, found });
        }
    }
    Ok(())
}

/// Reads single bytes, at each place in a word, at both ends and in the middle.
fn check_bytes<M: DmaMemory>(memory: &M) -> Result<(), MemoryFault> {
    let len = memory.len();
    for start in [0, len / 2, len.wrapping_sub(16)] {
        for at in start..start.wrapping_add(16).min(len) {
            let found = memory.read_u8(at).map_err(|_| MemoryFault::Refused { call: Call::ReadU8, at, len: 1 })?;
            let expected = pattern::byte(0, at);
            if found != expected {
                return Err(MemoryFault::Differs { call: Call::ReadU8, at, expected, found });
            }
        }
    }
    Ok(())
}

/// Asks each call for what it has to refuse. A call that refuses changes nothing, which the caller compares.
fn check_refusals<M: DmaMemory>(memory: &mut M) -> Result<(), MemoryFault> {
    let end = memory.len();
    let refused = |call, at, len, accepted: bool| if accepted { Err(MemoryFault::Accepted { call, at, len }) } else { Ok(()) };
    let beyond =
        [(end, 1), (end.wrapping_sub(1), 2), (end.wrapping_sub(7), 8), (usize::MAX, 1), (usize::MAX.wrapping_sub(3), 8)];
    for (at, len) in beyond {
        let mut bytes = [0; 8];
        let bytes = bytes.get_mut(..len).unwrap_or_default();
        refused(Call::Read, at, len, memory.read(at, bytes).is_ok())?;
        bytes.fill(0xa5);
        refused(Call::Write, at, len, memory.write(at, bytes).is_ok())?;
    }
    for at in [end, usize::MAX] {
        refused(Call::ReadU8, at, 1, memory.read_u8(at).is_ok())?;
    }
    for at in [end, usize::MAX.wrapping_sub(3), 1, 2, 3] {
        refused(Call::StoreU32, at, 4, memory.store_u32(at, 0xa5a5_a5a5).is_ok())?;
    }
    for at in [end, usize::MAX.wrapping_sub(7), 1, 4] {
        refused(Call::Load, at, 8, memory.load::<1>(at).is_ok())?;
        refused(Call::Store, at, 8, memory.store(at, &[u64::MAX]).is_ok())?;
    }
    for at in [end.wrapping_sub(8) & !7, usize::MAX.wrapping_sub(15) & !7] {
        refused(Call::Load, at, 16, memory.load::<2>(at).is_ok())?;
        refused(Call::Store, at, 16, memory.store(at, &[u64::MAX; 2]).is_ok())?;
    }
    Ok(())
}

/// Returns words of which each byte says where it is.
pub(crate) fn words<const N: usize>(round: u32) -> [u64; N] {
    core::array::from_fn(|index| {
        let mut bytes = [0; 8];
        pattern::fill(round, index.wrapping_mul(8), &mut bytes);
        u64::from_ne_bytes(bytes)
    })
}

/// Stores and loads words: which bytes each has, that the bytes beside it stay, and that they are as the CPU stores them.
fn check_words<M: DmaMemory>(memory: &mut M) -> Result<(), MemoryFault> {
    let last = memory.len().wrapping_sub(128) & !63;
    for start in [0, last] {
        for index in 1..8_usize {
            clear(memory, start)?;
            let at = start.wrapping_add(index.wrapping_mul(4));
            let value = 0x0102_0304_u32.wrapping_add(index as u32);
            memory.store_u32(at, value).map_err(|_| MemoryFault::Refused { call: Call::StoreU32, at, len: 4 })?;
            let mut expected = [0; 64];
            put(&mut expected, at.wrapping_sub(start), &value.to_ne_bytes());
            expect(memory, Call::StoreU32, start, &expected)?;
        }
        store_and_load::<1, M>(memory, start)?;
        store_and_load::<3, M>(memory, start)?;
        store_and_load::<8, M>(memory, start)?;
    }
    Ok(())
}

fn store_and_load<const N: usize, M: DmaMemory>(memory: &mut M, start: usize) -> Result<(), MemoryFault> {
    clear(memory, start)?;
    clear(memory, start.wrapping_add(64))?;
    let (at, len, stored) = (start.wrapping_add(16), N.wrapping_mul(8), words::<N>(7));
    memory.store(at, &stored).map_err(|_| MemoryFault::Refused { call: Call::Store, at, len })?;
    let mut expected = [0; 128];
    for (index, word) in stored.iter().enumerate() {
        put(&mut expected, index.wrapping_mul(8).wrapping_add(16), &word.to_ne_bytes());
    }
    expect(memory, Call::Store, start, &expected)?;
    let loaded = memory.load::<N>(at).map_err(|_| MemoryFault::Refused { call: Call::Load, at, len })?;
    let pairs = stored.iter().zip(&loaded).enumerate();
    for (index, (stored, loaded)) in pairs {
        let at = at.wrapping_add(index.wrapping_mul(8));
        compare_word(Call::Load, at, *stored, *loaded)?;
    }
    Ok(())
}

/// Returns an error if a word that was loaded from `at` is another one, with its first byte that is.
pub(crate) fn compare_word(call: Call, at: usize, expected: u64, found: u64) -> Result<(), MemoryFault> {
    let (expected, found) = (expected.to_ne_bytes(), found.to_ne_bytes());
    for (index, (expected, found)) in expected.into_iter().zip(found).enumerate() {
        if expected != found {
            return Err(MemoryFault::Differs { call, at: at.wrapping_add(index), expected, found });
        }
    }
    Ok(())
}

/// Zeroes 64 bytes.
pub(crate) fn clear<M: DmaMemory>(memory: &mut M, at: usize) -> Result<(), MemoryFault> {
    memory.write(at, &[0; 64]).map_err(|_| MemoryFault::Refused { call: Call::Write, at, len: 64 })
}

/// Puts bytes into others.
pub(crate) fn put(into: &mut [u8], at: usize, bytes: &[u8]) {
    for (to, from) in into.iter_mut().skip(at).zip(bytes) {
        *to = *from;
    }
}

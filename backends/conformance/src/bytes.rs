//! What is wrong with a memory, and comparisons of what it has with what it must have.

use core::fmt;

use bareverbs::platform::DmaMemory;

use crate::pattern;

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
    /// `RingView::put_pair`.
    PutPair,
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
            Self::PutPair => "RingView::put_pair",
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

/// Copies bytes out.
pub(crate) fn read<M: DmaMemory>(memory: &M, at: usize, into: &mut [u8]) -> Result<(), MemoryFault> {
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

/// Returns words of which each byte says where it is.
pub(crate) fn words<const N: usize>(round: u32) -> [u64; N] {
    core::array::from_fn(|index| {
        let mut bytes = [0; 8];
        pattern::fill(round, index.wrapping_mul(8), &mut bytes);
        u64::from_ne_bytes(bytes)
    })
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

//! Buffers that programs register.

use core::fmt;

use bareverbs::DmaBuffer;
use bareverbs::platform::Extent;

use crate::pattern;

/// What is wrong with a [`DmaBuffer`]. Offsets are bytes of the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BufferFault {
    /// It has no byte, or more than the address space.
    Length {
        /// Its bytes, as it says.
        len: u64,
    },
    /// A copy of bytes that are in it is refused.
    Refused {
        /// Where.
        at: usize,
        /// How many bytes.
        len: usize,
    },
    /// A copy of bytes that are not all in it is not refused.
    Accepted {
        /// Where.
        at: usize,
        /// How many bytes.
        len: usize,
    },
    /// A byte is another one than was written there.
    Differs {
        /// Where.
        at: usize,
        /// What it must be.
        expected: u8,
        /// What it is.
        found: u8,
    },
    /// The device does not see a byte: there is no extent, or one without a byte.
    Unmapped {
        /// The address of the byte, as requests name it.
        addr: u64,
    },
    /// An extent goes beyond the last address of the device.
    Wraps {
        /// The extent.
        extent: Extent,
    },
    /// The device sees two bytes at one address.
    Overlap {
        /// The address of the one, as requests name it.
        addr: u64,
        /// That of the other.
        other: u64,
    },
}

impl fmt::Display for BufferFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Length { len } => write!(f, "a buffer of {len} bytes"),
            Self::Refused { at, len } => write!(f, "a copy of {len} bytes at {at} is refused, which are in the buffer"),
            Self::Accepted { at, len } => {
                write!(f, "a copy of {len} bytes at {at} is accepted, which are not all in the buffer")
            }
            Self::Differs { at, expected, found } => write!(f, "byte {at} is {found:#04x}, and must be {expected:#04x}"),
            Self::Unmapped { addr } => write!(f, "the device does not see the byte at {addr:#x}"),
            Self::Wraps { extent: Extent { device_addr, len } } => {
                write!(f, "{len} bytes from the device's address {device_addr:#x} go beyond the last")
            }
            Self::Overlap { addr, other } => {
                write!(f, "the device sees the bytes at {addr:#x} and at {other:#x} at one address")
            }
        }
    }
}

impl core::error::Error for BufferFault {}

/// Checks a buffer: its copies, and where the device sees each byte. Its content is other bytes afterwards. The device takes no part:
/// [`check_traffic`](crate::check_traffic) sees whether it has the same bytes.
///
/// # Errors
/// The first thing that is wrong.
pub fn check_buffer<B: DmaBuffer>(buffer: &mut B) -> Result<(), BufferFault> {
    let (len, addr) = (buffer.len(), buffer.addr());
    let Some(end) = usize::try_from(len).ok().filter(|end| *end != 0 && addr.checked_add(len).is_some() && !buffer.is_empty())
    else {
        return Err(BufferFault::Length { len });
    };
    for round in [0, 1] {
        write(buffer, round, end)?;
        compare(buffer, round, end)?;
    }
    for (at, len) in [(end, 1), (end.wrapping_sub(1), 2), (usize::MAX, 1), (usize::MAX.wrapping_sub(3), 8)] {
        let mut bytes = [0x5a; 8];
        let bytes = bytes.get_mut(..len).unwrap_or_default();
        if buffer.read(at, bytes).is_ok() || buffer.write(at, bytes).is_ok() {
            return Err(BufferFault::Accepted { at, len });
        }
    }
    compare(buffer, 1, end)?;
    check_extents(buffer, addr, len)
}

/// Bytes of one copy: an odd number, so that copies begin and end everywhere in a word.
const PIECE: usize = 61;

fn write<B: DmaBuffer>(buffer: &mut B, round: u32, end: usize) -> Result<(), BufferFault> {
    for at in (0..end).step_by(PIECE) {
        let mut bytes = [0; PIECE];
        let piece = bytes.get_mut(..PIECE.min(end.wrapping_sub(at))).unwrap_or_default();
        pattern::fill(round, at, piece);
        buffer.write(at, piece).map_err(|_| BufferFault::Refused { at, len: piece.len() })?;
    }
    Ok(())
}

fn compare<B: DmaBuffer>(buffer: &B, round: u32, end: usize) -> Result<(), BufferFault> {
    for at in (0..end).step_by(PIECE + 6) {
        let mut bytes = [0; PIECE + 6];
        let piece = bytes.get_mut(..(PIECE + 6).min(end.wrapping_sub(at))).unwrap_or_default();
        let len = piece.len();
        buffer.read(at, piece).map_err(|_| BufferFault::Refused { at, len })?;
        if let Some((at, expected, found)) = pattern::first_wrong(round, at, piece) {
            return Err(BufferFault::Differs { at, expected, found });
        }
    }
    Ok(())
}

/// Extents that are compared with each other. One by one they would take the square of their number.
const EXTENTS: usize = 1024;

/// Returns the extent at an address, cut off at the end of the buffer.
fn extent<B: DmaBuffer>(buffer: &B, addr: u64, end: u64) -> Result<Extent, BufferFault> {
    let found = buffer.extent(addr).filter(|extent| extent.len != 0).ok_or(BufferFault::Unmapped { addr })?;
    let extent = Extent { len: found.len.min(end.wrapping_sub(addr)), ..found };
    if extent.device_addr.checked_add(extent.len).is_none() { Err(BufferFault::Wraps { extent }) } else { Ok(extent) }
}

fn check_extents<B: DmaBuffer>(buffer: &B, first: u64, len: u64) -> Result<(), BufferFault> {
    let end = first.wrapping_add(len);
    let mut addr = first;
    for _ in 0..EXTENTS {
        if addr == end {
            break;
        }
        let here = extent(buffer, addr, end)?;
        let mut other = first;
        while other != addr {
            let there = extent(buffer, other, end)?;
            let apart = here.device_addr >= there.device_addr.wrapping_add(there.len)
                || there.device_addr >= here.device_addr.wrapping_add(here.len);
            if !apart {
                return Err(BufferFault::Overlap { addr, other });
            }
            other = other.wrapping_add(there.len).min(addr);
        }
        // From the middle on the bytes are where the extent has said that they are.
        let middle = addr.wrapping_add(here.len / 2);
        if extent(buffer, middle, end)?.device_addr != here.device_addr.wrapping_add(here.len / 2) {
            return Err(BufferFault::Overlap { addr: middle, other: addr });
        }
        addr = addr.wrapping_add(here.len);
    }
    Ok(())
}

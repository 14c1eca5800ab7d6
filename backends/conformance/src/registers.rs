//! Registers: which there are. What they do is the device's.

use core::fmt;

use bareverbs::platform::Registers;

/// A call of [`Registers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RegisterCall {
    /// `read32`.
    Read32,
    /// `write32`.
    Write32,
    /// `doorbell`.
    Doorbell,
    /// `word`.
    Word,
}

impl fmt::Display for RegisterCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read32 => "read32",
            Self::Write32 => "write32",
            Self::Doorbell => "doorbell",
            Self::Word => "word",
        })
    }
}

/// What is wrong with [`Registers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RegisterFault {
    /// There are fewer bytes than the page of a doorbell.
    Short {
        /// How many.
        len: usize,
    },
    /// A call refuses registers that there are.
    Refused {
        /// The call.
        call: RegisterCall,
        /// Byte offset.
        offset: usize,
        /// Bytes.
        len: usize,
    },
    /// A call does not refuse registers that there are not, or that are not aligned.
    Accepted {
        /// The call.
        call: RegisterCall,
        /// Byte offset.
        offset: usize,
        /// Bytes.
        len: usize,
    },
}

impl fmt::Display for RegisterFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Short { len } => write!(f, "there are {len} bytes of registers, less than a page"),
            Self::Refused { call, offset, len } => write!(f, "{call} refuses {len} bytes at {offset:#x}, which there are"),
            Self::Accepted { call, offset, len } => {
                write!(f, "{call} accepts {len} bytes at {offset:#x}, which are not all there, or not aligned")
            }
        }
    }
}

impl core::error::Error for RegisterFault {}

/// Checks which registers there are. One is read, at offset 0, and none is written: the device does nothing by it.
///
/// # Errors
/// The first thing that is wrong.
pub fn check_registers<R: Registers>(registers: &mut R) -> Result<(), RegisterFault> {
    use RegisterCall::{Doorbell, Read32, Word, Write32};
    let end = registers.len();
    if end < 4096 || registers.is_empty() {
        return Err(RegisterFault::Short { len: end });
    }
    let there = |call, offset, len, done: bool| if done { Ok(()) } else { Err(RegisterFault::Refused { call, offset, len }) };
    there(Read32, 0, 4, registers.read32(0).is_ok())?;
    for (offset, count) in [(0, 1), (0x800, 2), (end.wrapping_sub(8), 1), (end.wrapping_sub(16), 2)] {
        there(Doorbell, offset, 8 * count, registers.doorbell(offset, count).is_ok())?;
    }
    for offset in [0, 4, end.wrapping_sub(4)] {
        there(Word, offset, 4, registers.word(offset).is_ok())?;
    }
    let none = |call, offset, len, done: bool| if done { Err(RegisterFault::Accepted { call, offset, len }) } else { Ok(()) };
    for offset in [1, 2, 3, end, end.wrapping_sub(2), usize::MAX.wrapping_sub(3), usize::MAX] {
        none(Read32, offset, 4, registers.read32(offset).is_ok())?;
        none(Word, offset, 4, registers.word(offset).is_ok())?;
        // A write that is not refused goes where it should not: after the others, which do no harm.
        none(Write32, offset, 4, registers.write32(offset, 0).is_ok())?;
    }
    let counts =
        [(4, 1), (end, 1), (end.wrapping_sub(8), 2), (end.wrapping_sub(4), 1), (8, end / 8), (usize::MAX.wrapping_sub(7), 1)];
    for (offset, count) in counts.into_iter().chain([(0, usize::MAX), (0, 0)]) {
        none(Doorbell, offset, count.saturating_mul(8), registers.doorbell(offset, count).is_ok())?;
    }
    Ok(())
}

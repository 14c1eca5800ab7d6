//! Why a device is lost.

use core::fmt;

/// Why a device is lost: nothing that was posted completes any more, until it is brought up again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum DeviceLoss {
    /// The device did not answer a command, or its answer is impossible.
    NoAnswer,
    /// The device was removed, or lost its power.
    Gone,
    /// The device was reset, and not by its `Verbs`.
    Reset,
    /// The firmware of the device stopped.
    Fatal,
    /// The [`Verbs`](crate::Verbs) of the device were dropped before their queues, or a call that ends an object was left by unwinding. The
    /// device may go on with the requests that it has.
    Abandoned,
}

impl fmt::Display for DeviceLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoAnswer => "it did not answer a command",
            Self::Gone => "it is gone",
            Self::Reset => "it was reset from outside",
            Self::Fatal => "its firmware stopped",
            Self::Abandoned => "its verbs were dropped, or a call unwound",
        })
    }
}

/// First of the words by which slots say that their device is lost. Greater than any syndrome.
const LOST: u32 = 0x200;

impl DeviceLoss {
    /// Returns the word of a slot for it.
    pub(crate) const fn word(self) -> u32 {
        LOST | self as u32
    }

    /// Returns what a word of a slot says.
    pub(crate) const fn of_word(word: u32) -> Option<Self> {
        match word.wrapping_sub(LOST) {
            0 => Some(Self::NoAnswer),
            1 => Some(Self::Gone),
            2 => Some(Self::Reset),
            3 => Some(Self::Fatal),
            4 => Some(Self::Abandoned),
            _ => None,
        }
    }
}

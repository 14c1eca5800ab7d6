//! An error in two numbers.

use core::num::NonZeroU32;

use bareverbs::QpState;

/// An error packed into two numbers. Inside the driver functions return it in CPU registers; an enum would be
/// returned in memory, which costs 7 % of the code on AArch64.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct PackedError {
    /// One more than the number of the error, in bits 0 to 7; small facts from bit 8 on.
    head: NonZeroU32,
    /// A fact of the size of an address.
    wide: usize,
}

const _: () = assert!(size_of::<Result<(), PackedError>>() <= 2 * size_of::<usize>());

#[derive(Clone, Copy)]
pub(super) enum Place {
    /// Bits 8 to 15 of the head.
    Small,
    /// Bits 16 to 31 of the head.
    Upper,
    /// Bits 8 to 31 of the head; a greater number becomes 2^24 - 1.
    Count,
    /// The other number.
    Wide,
}

impl Place {
    /// Returns the lowest bit in the head and the greatest number.
    const fn in_head(self) -> Option<(u32, usize)> {
        match self {
            Self::Small => Some((8, 0xff)),
            Self::Upper => Some((16, 0xffff)),
            Self::Count => Some((8, 0xff_ffff)),
            Self::Wide => None,
        }
    }
}

impl PackedError {
    #[inline(always)]
    pub(super) const fn new(kind: u8) -> Self {
        Self { head: NonZeroU32::MIN.saturating_add(kind as u32), wide: 0 }
    }

    #[inline(always)]
    pub(super) fn with(self, place: Place, fact: usize) -> Self {
        match place.in_head() {
            Some((low, most)) => Self { head: self.head | ((fact.min(most) as u32) << low), ..self },
            None => Self { wide: fact, ..self },
        }
    }

    pub(super) const fn kind(self) -> u8 {
        (self.head.get() as u8).wrapping_sub(1)
    }

    #[inline(always)]
    pub(super) fn fact<T: Fact>(self, place: Place) -> T {
        T::of(match place.in_head() {
            Some((low, most)) => (self.head.get() >> low) as usize & most,
            None => self.wide,
        })
    }
}

pub(super) trait Fact {
    fn of(number: usize) -> Self;
}

macro_rules! facts {
    ($($ty:ty: $of:expr;)+) => {$(
        impl Fact for $ty {
            #[inline(always)]
            fn of(number: usize) -> Self {
                $of(number)
            }
        }
    )+};
}

facts! {
    u8: |number| number as Self;
    u16: |number| number as Self;
    u32: |number| number as Self;
    usize: |number| number;
    QpState: |number| STATES.get(number).copied().unwrap_or_default();
}

pub(super) const STATES: [QpState; 7] =
    [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Sqe, QpState::Err];

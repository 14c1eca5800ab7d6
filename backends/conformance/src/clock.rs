//! Time that moves, and never goes back.

use core::fmt;
use core::time::Duration;

use bareverbs::platform::{Clock, Instant};

/// What is wrong with a [`Clock`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClockFault {
    /// It went back.
    Back {
        /// What it said first.
        before: Instant,
        /// What it said then.
        after: Instant,
    },
    /// It does not move: a wait would never end.
    Stopped {
        /// What it says.
        at: Instant,
        /// How often it was asked.
        looks: u32,
    },
    /// A pause did not end at its deadline.
    Overslept {
        /// By how much.
        by: Duration,
    },
    /// It and the other clock do not go alike.
    Rate {
        /// The time of this one that passed.
        this: Duration,
        /// That of the other one.
        other: Duration,
    },
}

impl fmt::Display for ClockFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Back { before, after } => {
                write!(f, "the clock went from {} ns back to {} ns", before.as_nanos(), after.as_nanos())
            }
            Self::Stopped { at, looks } => write!(f, "the clock has stopped: {looks} times it said {} ns", at.as_nanos()),
            Self::Overslept { by } => write!(f, "a pause ended {by:?} after its deadline"),
            Self::Rate { this, other } => write!(f, "{this:?} passed on the clock, and {other:?} on the other one"),
        }
    }
}

impl core::error::Error for ClockFault {}

/// What a clock is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClockReport {
    /// The least step that was seen.
    pub step: Duration,
}

/// Looks at a clock that may say the same, before it counts as stopped.
const LOOKS: u32 = 10_000_000;
/// Pauses, and how long each is.
const PAUSES: u32 = 8;
const PAUSE: Duration = Duration::from_millis(1);
/// How late the end of a pause may be: a timer that ticks ten times a second is good enough for a driver.
const LATE: Duration = Duration::from_millis(250);

/// Returns the present moment, which may not be before the last one.
fn now<C: Clock>(clock: &C, last: &mut Instant) -> Result<Instant, ClockFault> {
    let (before, after) = (*last, clock.now());
    if after < before {
        return Err(ClockFault::Back { before, after });
    }
    *last = after;
    Ok(after)
}

/// Checks that a clock moves, does not go back, and that its pauses end.
///
/// # Errors
/// The first thing that is wrong. If a pause never ends, nor does this.
pub fn check_clock<C: Clock>(clock: &C) -> Result<ClockReport, ClockFault> {
    let mut last = clock.now();
    let mut step = Duration::MAX;
    let (mut steps, mut same) = (0, 0_u32);
    while steps < 64 {
        let before = last;
        let moved = now(clock, &mut last)?.since(before);
        if moved.is_zero() {
            same = same.saturating_add(1);
            if same == LOOKS {
                return Err(ClockFault::Stopped { at: last, looks: same });
            }
            // Time may pass in pauses only, as that of a simulated device does.
            if same.is_multiple_of(64) {
                clock.relax(last.after(PAUSE));
            }
        } else {
            (steps, same, step) = (steps + 1, 0, step.min(moved));
        }
    }
    for _ in 0..PAUSES {
        let deadline = last.after(PAUSE);
        let mut looks = 0_u32;
        while now(clock, &mut last)? < deadline {
            clock.relax(deadline);
            looks = looks.saturating_add(1);
            if looks == LOOKS {
                return Err(ClockFault::Stopped { at: last, looks });
            }
        }
        let by = last.since(deadline);
        if by > LATE {
            return Err(ClockFault::Overslept { by });
        }
        // A deadline that is over.
        let before = last;
        clock.relax(before);
        let by = now(clock, &mut last)?.since(before);
        if by > LATE {
            return Err(ClockFault::Overslept { by });
        }
    }
    Ok(ClockReport { step })
}

/// Checks that a clock counts nanoseconds: as much time passes on it as on another one, a tenth more or less. A clock that says ticks of
/// its timer is found by it. Lasts `duration` of the other clock.
///
/// # Errors
/// The two do not go alike, or one of them has stopped.
pub fn check_clock_against<C: Clock, O: Clock>(clock: &C, other: &O, duration: Duration) -> Result<(), ClockFault> {
    let (from, other_from) = (clock.now(), other.now());
    let end = other_from.after(duration);
    let (mut looks, mut last) = (0_u32, other_from);
    while now(other, &mut last)? < end {
        other.relax(end);
        looks = looks.saturating_add(1);
        if looks == u32::MAX {
            return Err(ClockFault::Stopped { at: last, looks });
        }
    }
    let (this, other) = (clock.now().since(from), last.since(other_from));
    let tenth = other / 10;
    if this > other.saturating_add(tenth) || this.saturating_add(tenth) < other {
        return Err(ClockFault::Rate { this, other });
    }
    Ok(())
}

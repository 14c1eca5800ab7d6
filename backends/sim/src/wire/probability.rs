//! How often something happens, in parts per million.

use std::fmt;

const MILLION: u32 = 1_000_000;

/// How often something happens: 0 to 1,000,000 times in a million.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Probability {
    per_million: u32,
}

/// A share that no [`Probability`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProbabilityError {
    /// Below 0 or above 100 per cent, or no number.
    OutOfRange,
    /// Finer than one in a million.
    TooFine,
}

impl fmt::Display for ProbabilityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OutOfRange => "not between 0 and 100 per cent",
            Self::TooFine => "not a multiple of 0.0001 per cent",
        })
    }
}

impl std::error::Error for ProbabilityError {}

impl Probability {
    /// Not at all.
    pub const NEVER: Self = Self { per_million: 0 };
    /// Each time.
    pub const ALWAYS: Self = Self { per_million: MILLION };

    /// Creates a probability of `times` in a thousand; [`Probability::ALWAYS`] above that.
    pub const fn per_mille(times: u16) -> Self {
        let per_million = times as u32 * (MILLION / 1000);
        if per_million < MILLION { Self { per_million } } else { Self::ALWAYS }
    }

    /// Creates a probability of `times` in a hundred.
    ///
    /// # Errors
    /// The share is out of range, or finer than one in a million.
    pub fn per_cent(times: f64) -> Result<Self, ProbabilityError> {
        if !(0.0..=100.0).contains(&times) {
            return Err(ProbabilityError::OutOfRange);
        }
        let asked = times * f64::from(MILLION / 100);
        let rounded = asked.round();
        // What decimal fractions lose as binary ones is far below this.
        if (asked - rounded).abs() > 1e-6 || (rounded == 0.0) != (times == 0.0) {
            return Err(ProbabilityError::TooFine);
        }
        Ok(Self { per_million: rounded as u32 })
    }

    /// Times in a million.
    pub const fn per_million(self) -> u32 {
        self.per_million
    }

    /// Times in a hundred.
    pub fn as_per_cent(self) -> f64 {
        f64::from(self.per_million) / f64::from(MILLION / 100)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_is_kept_or_refused() {
        for (times, per_million) in [(0.0, 0), (0.04, 400), (0.0001, 1), (1.5, 15_000), (20.0, 200_000), (100.0, MILLION)] {
            let probability = Probability::per_cent(times).unwrap();
            assert_eq!((probability.per_million(), probability.as_per_cent()), (per_million, times));
        }
        for wrong in [-0.1, 100.1, f64::NAN, f64::INFINITY] {
            assert_eq!(Probability::per_cent(wrong), Err(ProbabilityError::OutOfRange), "{wrong}");
        }
        for fine in [0.000_01, 0.000_15, 1e-12] {
            assert_eq!(Probability::per_cent(fine), Err(ProbabilityError::TooFine), "{fine}");
        }
        assert_eq!(Probability::per_mille(10), Probability::per_cent(1.0).unwrap());
        assert_eq!(Probability::per_mille(1001), Probability::ALWAYS);
    }
}

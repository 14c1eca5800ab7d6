//! Random numbers from a seed.

use super::Probability;

/// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014): the same seed gives the
/// same numbers everywhere.
#[derive(Clone, Copy, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// Creates the generator of a seed.
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Returns the next number.
    pub const fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `bound`, or 0 if that is 0. The bias is below one in 2^32 for bounds below 2^32.
    pub const fn below(&mut self, bound: u64) -> u64 {
        match self.next().checked_rem(bound) {
            Some(value) => value,
            None => 0,
        }
    }

    /// `true` in `per_mille` of a thousand cases.
    pub const fn chance(&mut self, per_mille: u16) -> bool {
        self.below(1000) < per_mille as u64
    }

    /// `true` as often as asked.
    pub const fn strikes(&mut self, probability: Probability) -> bool {
        self.below(1_000_000) < probability.per_million() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::Random;

    #[test]
    fn published_sequence() {
        // First outputs for seed 1234567 of the reference implementation (Vigna, splitmix64.c).
        let mut random = Random::new(1_234_567);
        let first: Vec<u64> = std::iter::repeat_with(|| random.next()).take(3).collect();
        assert_eq!(first, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }
}

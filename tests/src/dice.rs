//! A generator of small numbers, so that a test of random steps runs the same each time.

/// Returns a function that gives the next number below its argument: a linear congruential generator (Knuth's MMIX), of which the upper
/// bits are taken.
pub fn dice(mut seed: u64) -> impl FnMut(u64) -> u64 {
    move |below| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    }
}

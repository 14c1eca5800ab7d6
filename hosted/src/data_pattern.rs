//! The data of transfers: derived from a seed and different for each message, so that every byte can be checked.

/// The bytes of message `index` of stream `stream`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pattern {
    state: u64,
}

/// Applies the mixing function of SplitMix64 (Steele, Lea, Flood 2014).
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

impl Pattern {
    /// Creates the pattern of message `index` of stream `stream` under `seed`.
    pub(crate) fn new(seed: u64, stream: u32, index: u64) -> Self {
        let stream = mix(seed.wrapping_add(STEP.wrapping_mul(u64::from(stream).wrapping_add(1))));
        Self { state: mix(stream.wrapping_add(STEP.wrapping_mul(index.wrapping_add(1)))) }
    }

    fn word(self, at: u64) -> u64 {
        mix(self.state.wrapping_add(STEP.wrapping_mul(at.wrapping_add(1))))
    }

    /// Fills `bytes`.
    pub(crate) fn fill(self, bytes: &mut [u8]) {
        let (words, rest) = bytes.as_chunks_mut::<8>();
        let mut at = 0;
        for bytes in words {
            *bytes = self.word(at).to_le_bytes();
            at += 1;
        }
        rest.iter_mut().zip(self.word(at).to_le_bytes()).for_each(|(byte, value)| *byte = value);
    }

    /// Returns offset, expected value and actual value of the first byte that differs.
    pub(crate) fn differs(self, bytes: &[u8]) -> Option<(usize, u8, u8)> {
        let (words, rest) = bytes.as_chunks::<8>();
        let is_wrong = |(at, bytes): (u64, &[u8; 8])| u64::from_le_bytes(*bytes) != self.word(at);
        let wrong = (0..).zip(words).position(is_wrong).unwrap_or(words.len());
        let have = words.get(wrong).map_or(rest, <[u8; 8]>::as_slice);
        let want = self.word(wrong as u64).to_le_bytes();
        let byte = have.iter().zip(want).position(|(have, want)| *have != want)?;
        Some((wrong * 8 + byte, *want.get(byte)?, *have.get(byte)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_wrong_byte_is_found_wherever_it_is() {
        let pattern = Pattern::new(7, 2, 9);
        for len in [1, 7, 8, 9, 64, 61] {
            let mut bytes = vec![0; len];
            pattern.fill(&mut bytes);
            assert_eq!(pattern.differs(&bytes), None);
            for at in 0..len {
                let right = bytes[at];
                bytes[at] ^= 0x10;
                assert_eq!(pattern.differs(&bytes), Some((at, right, right ^ 0x10)));
                bytes[at] = right;
            }
        }
    }

    #[test]
    fn messages_streams_and_seeds_differ() {
        let filled = |pattern: Pattern| {
            let mut bytes = [0; 32];
            pattern.fill(&mut bytes);
            bytes
        };
        let all = [
            filled(Pattern::new(1, 0, 0)),
            filled(Pattern::new(1, 0, 1)),
            filled(Pattern::new(1, 1, 0)),
            filled(Pattern::new(2, 0, 0)),
        ];
        for (at, one) in all.iter().enumerate() {
            assert!(all.iter().skip(at + 1).all(|other| other != one));
        }
    }
}

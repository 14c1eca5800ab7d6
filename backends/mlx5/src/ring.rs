//! Rings of queues: how they are opened, and who owns an entry of one that the device writes.

use bareverbs::platform::{DmaMemory, OpensRings, RingLayout, RingToken};
use bareverbs_mlx5_spec::Field;

use crate::error::{Error, capped};

/// What proves that rings are opened by this driver.
pub(crate) struct Opener(());

// SAFETY: the type is the driver's own. Each ring is opened in memory that the arena has given to one queue, before the device knows
// of it, and nothing else touches that memory until the queue is destroyed; only then is it free again. Control path and owner of the
// ring take turns where both access it: the core asks for the queue when it is reset or gets another ring. A ring and a record that
// two rings share are written in different words.
#[expect(unsafe_code, reason = "the trait is unsafe to implement")]
unsafe impl OpensRings for Opener {}

/// Opens the ring of `len` bytes at byte `at` of the driver's memory, with its doorbell record at byte `record`.
pub(crate) fn open_ring<M: DmaMemory>(memory: &M, at: usize, len: usize, record: usize) -> Result<M::Ring, Error> {
    let layout = RingLayout::new(at, len, record).ok_or(Error::OutOfRange { offset: capped(at) })?;
    Ok(memory.ring(RingToken::of(&Opener(())), &layout)?)
}

/// Returns whether the device wrote an entry in the current pass over its ring of `1 << log_size` entries. `word` is the
/// entry's word with the owner bit, in host byte order, and `index` the number of entries before it since the ring was created.
/// The device writes 0 in the first pass, 1 in the second, and so on.
#[inline(always)]
pub(crate) const fn owner_matches<L>(owner: Field<L>, word: u64, index: u32, log_size: u32) -> bool {
    owner.take_word(word) == (index >> log_size) & 1
}

#[cfg(test)]
mod tests {
    use bareverbs_mlx5_spec::{Cqe, Eqe};

    use super::*;

    /// A ring of each size, walked over the wraps of the index: the bit that the device writes changes each time it comes round, and
    /// nothing else in the word matters.
    #[test]
    fn the_owner_changes_whenever_the_device_comes_round() {
        const STEPS: u64 = if cfg!(miri) { 300 } else { 1 << 17 };
        for log_size in 0..=16 {
            let size = 1_u64 << log_size;
            for wrap in [1_u64 << 16, 1 << 24, 1 << 32] {
                // The walk begins where the device writes 0 at place 0.
                let first = wrap.saturating_sub(STEPS / 2) / (2 * size) * (2 * size);
                let (mut place, mut bit) = (0, 0);
                for index in first..first + STEPS {
                    for (owner, rest) in [(0, 0), (0, !1), (1, 0), (1, !1)] {
                        let matches = owner_matches(Cqe::OWNER, rest | owner, index as u32, log_size);
                        assert_eq!(matches, owner == bit, "{index:#x} of a ring of {size}");
                        assert_eq!(owner_matches(Eqe::OWNER, rest | owner, index as u32, log_size), matches);
                    }
                    place += 1;
                    if place == size {
                        (place, bit) = (0, 1 - bit);
                    }
                }
            }
        }
    }
}

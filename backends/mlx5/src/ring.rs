//! Who owns an entry of a ring that the device writes.

use bareverbs_mlx5_spec::Field;

/// Returns whether the device wrote an entry in the current pass over its ring of `1 << log_size` entries. `word` is the
/// entry's word with the owner bit, in host byte order, and `index` the number of entries before it since the ring was created.
/// The device writes 0 in the first pass, 1 in the second, and so on.
#[inline(always)]
pub(crate) const fn owner_matches<L>(owner: Field<L>, word: u64, index: u32, log_size: u32) -> bool {
    owner.take_word(word) == (index >> log_size) & 1
}

//! Words: two neighbouring dwords that code loads and stores together.

/// Two dwords (host byte order) as the 64-bit word to store: `first` lies at the lower address.
#[inline(always)]
pub const fn be_word(first: u32, second: u32) -> u64 {
    ((first as u64) << 32 | second as u64).to_be()
}

/// The two dwords (host byte order) of a 64-bit word as it was loaded, the one at the lower address first.
#[inline(always)]
pub const fn from_be_word(word: u64) -> [u32; 2] {
    let word = u64::from_be(word);
    [(word >> 32) as u32, word as u32]
}

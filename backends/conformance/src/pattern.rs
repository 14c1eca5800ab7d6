//! Bytes of which each says where it is.

/// Returns the byte at `at` in a round: neighbours, and bytes a power of two apart, have different ones almost always.
pub(crate) const fn byte(round: u32, at: usize) -> u8 {
    let mixed = (at as u64).wrapping_add((round as u64) << 40).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9).wrapping_shr(52) as u8
}

/// Writes the bytes of a round from `at` on.
pub(crate) fn fill(round: u32, at: usize, bytes: &mut [u8]) {
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = self::byte(round, at.wrapping_add(index));
    }
}

/// Returns the first of the bytes from `at` on that is another one: its place, what it must be, and what it is.
pub(crate) fn first_wrong(round: u32, at: usize, bytes: &[u8]) -> Option<(usize, u8, u8)> {
    bytes.iter().enumerate().find_map(|(index, found)| {
        let at = at.wrapping_add(index);
        let expected = byte(round, at);
        (*found != expected).then_some((at, expected, *found))
    })
}

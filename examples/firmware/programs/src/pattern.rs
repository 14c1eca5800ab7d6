//! Bytes that both ends of a connection can work out: what was sent is compared with what came.

use bareverbs::platform::OutOfRange;
use bareverbs::{DmaBuffer as _, Region};
use bareverbs_mmio::IdentityBuffer;
use board::Failure;

/// Returns byte `at` of message `number`. The first byte of each page is 0, which `ibv_rc_pingpong -c` asks for.
pub const fn byte(number: u32, at: usize) -> u8 {
    if at.is_multiple_of(4096) {
        return 0;
    }
    let mixed = (number.wrapping_mul(0x9e37_79b9) ^ at as u32).wrapping_mul(0x85eb_ca6b);
    (mixed >> 24) as u8
}

/// Writes message `number` of `len` bytes to `at`.
///
/// # Errors
/// If the buffer is shorter.
pub fn fill(region: &mut Region<'_, IdentityBuffer>, at: usize, len: usize, number: u32) -> Result<(), Failure> {
    (0..len).try_for_each(|index| region.write(at + index, &[byte(number, index)])).map_err(outside)
}

fn outside(error: OutOfRange) -> Failure {
    Failure::new(format_args!("{error}"))
}

/// Compares the `len` bytes at `at` with `want`, which gives each byte by its place.
///
/// # Errors
/// The first byte that differs, or if the buffer is shorter.
pub fn check(buffer: &IdentityBuffer, at: usize, len: usize, want: impl Fn(usize) -> u8) -> Result<(), Failure> {
    for index in 0..len {
        let mut have = [0];
        buffer.read(at + index, &mut have).map_err(outside)?;
        if have != [want(index)] {
            return Err(Failure::new(format_args!("byte {index} is {:#04x} instead of {:#04x}", have[0], want(index))));
        }
    }
    Ok(())
}

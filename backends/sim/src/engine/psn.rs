//! Packet sequence numbers: 24 bits that wrap.

/// Numbers that there are.
const SPAN: u32 = 1 << 24;
/// Half of them: of two numbers, the one less than this far ahead is the later.
pub(in crate::engine) const HALF: u32 = SPAN / 2;

/// Returns the number `count` after `psn`.
pub(in crate::engine) const fn add(psn: u32, count: u32) -> u32 {
    psn.wrapping_add(count) & (SPAN - 1)
}

/// Returns how far `a` is ahead of `b`, negative if before.
pub(in crate::engine) const fn ahead(a: u32, b: u32) -> i32 {
    (a.wrapping_sub(b) << 8).cast_signed() >> 8
}

/// Returns the later of two numbers.
pub(in crate::engine) const fn later(a: u32, b: u32) -> u32 {
    if ahead(a, b) >= 0 { a } else { b }
}

/// Returns how many numbers from `b` up to `a`, which is not before it.
pub(in crate::engine) const fn distance(a: u32, b: u32) -> u32 {
    a.wrapping_sub(b) & (SPAN - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_the_wrap() {
        assert_eq!(add(0xff_ffff, 1), 0);
        assert_eq!(ahead(0, 0xff_ffff), 1);
        assert_eq!(ahead(0xff_ffff, 0), -1);
        assert_eq!(distance(2, 0xff_fffe), 4);
        assert_eq!((later(0xff_ffff, 1), later(1, 0xff_ffff), later(5, 3)), (1, 1, 5));
        assert_eq!(ahead(HALF, 0), -(HALF as i32), "exactly half ahead counts as behind");
    }
}

//! Counters of a ring of requests in flight: they run freely over 32 bits, and only wrapped differences mean anything.
#![deny(clippy::arithmetic_side_effects)]

/// Returns where the request of a counter lies among `places`, a power of two.
#[inline(always)]
pub(crate) const fn place(counter: u32, places: usize) -> usize {
    counter as usize & places.wrapping_sub(1)
}

/// Returns the counter from `tail` to before `head` with these low 16 bits, if there is one. A ring has 32,768 places at most,
/// so that 16 bits distinguish any two in flight.
#[inline(always)]
pub(crate) fn locate(head: u32, tail: u32, low: u16) -> Option<u32> {
    let distance = u32::from(low.wrapping_sub(tail as u16));
    if distance < head.wrapping_sub(tail) { Some(tail.wrapping_add(distance)) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One step in this many is taken: Miri takes minutes over all.
    const STEP: usize = if cfg!(miri) { 4099 } else { 1 };

    #[test]
    fn lookup_is_right_across_each_wrap() {
        for (wrap, _) in [(1_u32 << 16, "16 bits"), (1 << 24, "24 bits"), (0, "32 bits")] {
            for limit in [1_u32, 2, 64, 32_768] {
                let start = wrap.wrapping_sub(limit).wrapping_sub(3);
                for step in (0..limit.wrapping_mul(2).wrapping_add(6)).step_by(STEP) {
                    let tail = start.wrapping_add(step);
                    let head = tail.wrapping_add(limit);
                    assert_eq!(locate(head, tail, tail as u16), Some(tail));
                    let last = head.wrapping_sub(1);
                    assert_eq!(locate(head, tail, last as u16), Some(last));
                    assert_eq!(locate(head, tail, head as u16), None, "not posted yet");
                    assert_eq!(locate(tail, tail, tail as u16), None, "retired");
                }
            }
        }
    }

    #[test]
    fn the_largest_ring_full_has_every_counter_once() {
        let tail = u32::MAX.wrapping_sub(100);
        let head = tail.wrapping_add(32_768);
        for distance in (0..32_768).step_by(STEP) {
            let at = tail.wrapping_add(distance);
            assert_eq!(locate(head, tail, at as u16), Some(at));
        }
        assert_eq!(locate(head, tail, head as u16), None);
        assert_eq!(locate(head, tail, tail.wrapping_sub(1) as u16), None);
    }
}

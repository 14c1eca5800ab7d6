//! Counters of a ring of requests in flight: they run freely over 32 bits, and only wrapped differences mean anything.
#![deny(clippy::arithmetic_side_effects)]

/// Returns where the request of a counter lies among `places`, a power of two.
#[inline(always)]
pub(crate) const fn place(counter: u32, places: usize) -> usize {
    counter as usize & places.wrapping_sub(1)
}

/// What is remembered of each place of a ring, whose places are a power of two, or none.
#[derive(Debug)]
pub(crate) struct Entries<'r, T> {
    all: &'r [T],
    /// Bits of a counter that name its place. Kept, because each request and each completion asks for it.
    mask: u32,
}

impl<T> Clone for Entries<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Entries<'_, T> {}

impl<'r, T> Entries<'r, T> {
    pub(crate) const fn new(all: &'r [T]) -> Self {
        Self { all, mask: (all.len() as u32).wrapping_sub(1) }
    }

    pub(crate) const fn len(&self) -> usize {
        self.all.len()
    }

    #[cfg(all(test, loom))]
    pub(crate) fn iter(&self) -> core::slice::Iter<'r, T> {
        self.all.iter()
    }

    /// Returns what is remembered of the request of a counter.
    #[inline(always)]
    pub(crate) fn get(&self, counter: u32) -> Option<&'r T> {
        self.all.get((counter & self.mask) as usize)
    }
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

    /// A place is where a walk round the ring is, whatever wraps meanwhile.
    #[test]
    #[cfg_attr(miri, ignore = "a whole domain of numbers takes minutes")]
    fn a_place_is_where_a_walk_round_the_ring_is() {
        const STEPS: u64 = 1 << 17;
        for log in 0..=15 {
            let places = 1_usize << log;
            for wrap in [1_u64 << 16, 1 << 24, 1 << 32] {
                // The walk begins at place 0.
                let first = (wrap - STEPS / 2) / places as u64 * places as u64;
                let mut at = 0;
                for counter in first..first + STEPS {
                    assert_eq!(place(counter as u32, places), at, "{counter:#x} of {places}");
                    at += 1;
                    if at == places {
                        at = 0;
                    }
                }
            }
        }
    }

    /// Each of the 65,536 indices, for each number of requests in flight of a small ring and of the largest, with the oldest at each kind of
    /// place before a wrap: beside the list of all that are in flight.
    #[test]
    #[cfg_attr(miri, ignore = "a whole domain of numbers takes minutes")]
    fn every_index_is_found_where_the_list_of_requests_has_it() {
        let counts = (0..=17).chain([63, 64, 255, 256, 257, 4095, 32_767, 32_768]);
        for count in counts {
            for wrap in [1_u64 << 16, 1 << 24, 1 << 32] {
                for before in [0, 1, count / 2, count, count + 1] {
                    let tail = wrap - before;
                    let mut wanted = std::vec![None; 1 << 16];
                    for at in tail..tail + count {
                        wanted[(at % (1 << 16)) as usize] = Some((at % (1 << 32)) as u32);
                    }
                    let (head, tail) = (((tail + count) % (1 << 32)) as u32, (tail % (1 << 32)) as u32);
                    for low in 0..=u16::MAX {
                        let found = locate(head, tail, low);
                        assert_eq!(found, wanted[usize::from(low)], "{low:#x} of {count} from {tail:#x}");
                    }
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

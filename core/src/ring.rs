//! Counters of a ring of requests in flight.
//!
//! `head` and `tail` run freely over 32 bits; only their wrapped difference means anything.
#![deny(clippy::arithmetic_side_effects)]

/// Head, tail and room of one ring.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ring {
    /// Where the next request goes.
    head: u32,
    /// The oldest request in flight.
    tail: u32,
    /// Places in all: 32,768 at most, so that 16 bits tell any two in flight apart.
    limit: u32,
}

impl Ring {
    /// An empty ring.
    pub(crate) const fn new(limit: u32) -> Self {
        Self::starting_at(0, limit)
    }

    /// An empty ring whose counters stand at `at`: 0, but for tests of their wraps.
    pub(crate) const fn starting_at(at: u32, limit: u32) -> Self {
        Self { head: at, tail: at, limit }
    }

    #[inline]
    pub(crate) const fn head(&self) -> u32 {
        self.head
    }

    #[cfg(test)]
    pub(crate) const fn tail(&self) -> u32 {
        self.tail
    }

    pub(crate) const fn limit(&self) -> u32 {
        self.limit
    }

    /// Places taken.
    #[inline]
    pub(crate) const fn in_flight(&self) -> u32 {
        self.head.wrapping_sub(self.tail)
    }

    /// Places free.
    #[inline]
    pub(crate) const fn free(&self) -> u32 {
        self.limit.wrapping_sub(self.in_flight())
    }

    /// Takes `places`, which the caller knows to be free.
    #[inline]
    pub(crate) const fn advance(&mut self, places: u32) {
        self.head = self.head.wrapping_add(places);
    }

    /// Takes every place before `head`, all of which the caller knows to be free.
    #[inline]
    pub(crate) const fn move_to(&mut self, head: u32) {
        self.head = head;
    }

    /// The counter in flight with these low 16 bits, if there is one.
    #[inline]
    pub(crate) fn locate(&self, low: u16) -> Option<u32> {
        let distance = u32::from(low.wrapping_sub(self.tail as u16));
        if distance < self.in_flight() { Some(self.tail.wrapping_add(distance)) } else { None }
    }

    /// How far behind the tail `counter` lies: small for everything in flight.
    pub(crate) const fn age(&self, counter: u32) -> u32 {
        counter.wrapping_sub(self.tail)
    }

    /// Frees `places` at `counter` and everything before it.
    #[inline]
    pub(crate) const fn retire(&mut self, counter: u32, places: u32) {
        self.tail = counter.wrapping_add(places);
    }
}

/// Where the request of a counter lies among `places`, a power of two.
#[inline]
pub(crate) const fn place(counter: u32, places: usize) -> usize {
    counter as usize & places.wrapping_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Walks a ring over `start` to `start + steps` one place at a time and looks every counter up by its low 16 bits.
    fn walk(start: u32, limit: u32, steps: u32) {
        let mut ring = Ring::starting_at(start, limit);
        for step in 0..steps {
            let at = start.wrapping_add(step);
            if ring.free() == 0 {
                let oldest = ring.tail();
                assert_eq!(ring.locate(oldest as u16), Some(oldest));
                ring.retire(oldest, 1);
                assert_eq!(ring.locate(oldest as u16), None, "retired");
            }
            assert_eq!(ring.head(), at);
            assert_eq!(ring.locate(at as u16), None, "not posted yet");
            ring.advance(1);
            assert_eq!(ring.locate(at as u16), Some(at));
            assert_eq!(ring.free().wrapping_add(ring.in_flight()), limit);
        }
    }

    #[test]
    fn lookup_is_right_across_each_wrap() {
        for (wrap, _) in [(1_u32 << 16, "16 bits"), (1 << 24, "24 bits"), (0, "32 bits")] {
            for limit in [1_u32, 2, 64, 32_768] {
                walk(wrap.wrapping_sub(limit).wrapping_sub(3), limit, limit.wrapping_mul(2).wrapping_add(6));
            }
        }
    }

    #[test]
    fn the_largest_ring_full_has_every_counter_once() {
        let mut ring = Ring::starting_at(u32::MAX.wrapping_sub(100), 32_768);
        ring.advance(32_768);
        assert_eq!(ring.free(), 0);
        for distance in 0..32_768 {
            let at = ring.tail().wrapping_add(distance);
            assert_eq!(ring.locate(at as u16), Some(at));
        }
        assert_eq!(ring.locate(ring.head() as u16), None);
        assert_eq!(ring.locate(ring.tail().wrapping_sub(1) as u16), None);
    }
}

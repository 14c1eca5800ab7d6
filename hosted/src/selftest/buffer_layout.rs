//! Layout of an end's memory region.

/// Layout of a region: send slots, receive slots, slots exposed to the peer, the target and the results of atomics.
#[derive(Clone, Copy, Debug)]
pub(super) struct BufferLayout {
    /// Bytes of a message.
    pub(super) size: usize,
    /// Slots of each kind, which is the maximum number of messages in flight.
    pub(super) slots: usize,
}

impl BufferLayout {
    /// Maximum bytes of all slots of one kind.
    const MAX_BYTES: usize = 4 << 20;

    pub(super) fn new(size: usize) -> Self {
        let stride = size.next_multiple_of(64);
        Self { size, slots: (Self::MAX_BYTES / stride).clamp(1, 32) }
    }

    fn slot(self, kind: usize, index: usize) -> usize {
        (kind * self.slots + index % self.slots) * self.size.next_multiple_of(64)
    }

    /// Returns the offset of a send slot.
    pub(super) fn tx(self, index: usize) -> usize {
        self.slot(0, index)
    }

    /// Returns the offset of a receive slot.
    pub(super) fn rx(self, index: usize) -> usize {
        self.slot(1, index)
    }

    /// Returns the offset of a slot that the peer reads and writes.
    pub(super) fn exposed(self, index: usize) -> usize {
        self.slot(2, index)
    }

    /// Returns the offset of the 8-byte target of the peer's atomics.
    pub(super) fn counter(self) -> usize {
        self.slot(3, 0)
    }

    /// Returns the offset of the result of an atomic.
    pub(super) fn result(self, index: usize) -> usize {
        self.counter() + 64 + 8 * (index % self.slots)
    }

    /// Returns the length of the memory window: from the first exposed slot to the end of the counter.
    pub(super) fn window(self) -> usize {
        self.counter() + 8 - self.exposed(0)
    }

    /// Returns the length of the region.
    pub(super) fn total(self) -> usize {
        (self.result(self.slots - 1) + 8).next_multiple_of(4096)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_do_not_overlap() {
        for size in [1, 8, 64, 100, 4096, 1 << 20] {
            let layout = BufferLayout::new(size);
            let mut places: Vec<(usize, usize)> = (0..layout.slots)
                .flat_map(|slot| [layout.tx(slot), layout.rx(slot), layout.exposed(slot)].map(|at| (at, at + size)))
                .chain([(layout.counter(), layout.counter() + 8)])
                .chain((0..layout.slots).map(|slot| (layout.result(slot), layout.result(slot) + 8)))
                .collect();
            places.sort_unstable();
            assert!(places.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{size}");
            assert!(places.last().unwrap().1 <= layout.total() && layout.counter().is_multiple_of(8));
            let window = layout.exposed(0)..layout.exposed(0) + layout.window();
            assert!(window.contains(&(layout.counter() + 7)) && !window.contains(&layout.rx(layout.slots - 1)));
        }
    }
}

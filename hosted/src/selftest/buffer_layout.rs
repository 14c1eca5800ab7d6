//! Where messages lie in an end's memory.

/// Where things lie in a side's region: slots to send from, slots to receive into, slots for the peer, results of atomics.
#[derive(Clone, Copy, Debug)]
pub(super) struct BufferLayout {
    /// Bytes of a message.
    pub(super) size: usize,
    /// Messages in flight at most.
    pub(super) slots: usize,
}

impl BufferLayout {
    /// Bytes of all slots of one kind.
    const MAX_BYTES: usize = 4 << 20;

    pub(super) fn new(size: usize) -> Self {
        let stride = size.next_multiple_of(64);
        Self { size, slots: (Self::MAX_BYTES / stride).clamp(1, 32) }
    }

    fn slot(self, kind: usize, index: usize) -> usize {
        (kind * self.slots + index % self.slots) * self.size.next_multiple_of(64)
    }

    /// Bytes to send.
    pub(super) fn tx(self, index: usize) -> usize {
        self.slot(0, index)
    }

    /// Bytes that arrive here.
    pub(super) fn rx(self, index: usize) -> usize {
        self.slot(1, index)
    }

    /// Bytes that the peer reads and writes.
    pub(super) fn exposed(self, index: usize) -> usize {
        self.slot(2, index)
    }

    /// The 8 bytes that the peer's atomics work on.
    pub(super) fn counter(self) -> usize {
        self.slot(3, 0)
    }

    /// Where results of atomics go.
    pub(super) fn result(self, index: usize) -> usize {
        self.counter() + 64 + 8 * (index % self.slots)
    }

    /// Bytes that a window shows the peer: from the first exposed slot over the counter.
    pub(super) fn window(self) -> usize {
        self.counter() + 8 - self.exposed(0)
    }

    /// Bytes of all of them.
    pub(super) fn total(self) -> usize {
        (self.result(self.slots - 1) + 8).next_multiple_of(4096)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_do_not_overlap() {
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

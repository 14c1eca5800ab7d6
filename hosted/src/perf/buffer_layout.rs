//! Layout of an end's memory region: for each queue pair a ring of send slots and a ring of receive slots.

use super::parameters::{Parameters, Point, Verb};

/// Maximum bytes of a ring of slots, so that it stays in a cache. A ring has at least one slot.
const MAX_RING: usize = 128 << 10;
/// Alignment of slots: a cache line.
const CACHE_LINE: usize = 64;

/// The slots of one measurement; the same at both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BufferLayout {
    /// Bytes of a message.
    pub(super) size: usize,
    /// Bytes from slot to slot.
    pub(super) stride: usize,
    /// Slots of a ring.
    pub(super) slots: usize,
    /// Number of queue pairs with separate rings.
    pub(super) queue_pairs: usize,
}

impl BufferLayout {
    pub(super) fn new(parameters: &Parameters, point: Point) -> Self {
        let size = point.size as usize;
        let stride = size.next_multiple_of(CACHE_LINE);
        let (queue_pairs, most) = if point.test.is_latency() {
            (1, 1)
        } else {
            let receives = if point.test.verb() == Verb::Send { parameters.rx_depth } else { 0 };
            (usize::from(parameters.queue_pairs), parameters.tx_depth.max(receives) as usize)
        };
        Self { size, stride, slots: (MAX_RING / stride).clamp(1, most), queue_pairs }
    }

    /// Returns the bytes of a ring of slots.
    pub(super) const fn ring(self) -> usize {
        self.slots * self.stride
    }

    /// Returns the offset of a send slot. The peer's RDMA reads access these slots.
    pub(super) const fn tx(self, queue_pair: usize, slot: usize) -> usize {
        queue_pair * self.ring() + slot * self.stride
    }

    /// Returns the offset of a receive slot, which holds data received, written by the peer, or read from it. Slot 0 is the
    /// target of atomics.
    pub(super) const fn rx(self, queue_pair: usize, slot: usize) -> usize {
        self.queue_pairs * self.ring() + self.tx(queue_pair, slot)
    }

    /// Returns the bytes of all rings.
    pub(super) const fn total(self) -> usize {
        2 * self.queue_pairs * self.ring()
    }
}

#[cfg(test)]
mod tests {
    use super::super::parameters::Test;
    use super::*;

    #[test]
    fn slots_do_not_overlap_and_fit() {
        for (size, queue_pairs) in [(1, 1), (64, 3), (65, 2), (65_536, 4), (1 << 20, 2)] {
            for test in [Test::WriteBw, Test::SendBw, Test::SendLat] {
                let parameters = Parameters { queue_pairs, ..Parameters::default() };
                let layout = BufferLayout::new(&parameters, Point { test, size });
                let slots =
                    (0..layout.queue_pairs).flat_map(|queue_pair| (0..layout.slots).map(move |slot| (queue_pair, slot)));
                let mut starts: Vec<_> =
                    slots.flat_map(|(queue_pair, slot)| [layout.tx(queue_pair, slot), layout.rx(queue_pair, slot)]).collect();
                starts.sort_unstable();
                assert!(starts.windows(2).all(|pair| pair[0] + size as usize <= pair[1]));
                assert!(starts.last().unwrap() + size as usize <= layout.total());
                assert!(starts.iter().all(|start| start.is_multiple_of(64)));
            }
        }
    }
}

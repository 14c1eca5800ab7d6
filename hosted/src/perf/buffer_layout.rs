//! Where messages lie in an end's memory: slots to send from, slots into which messages come, for each queue pair.

use super::parameters::{Parameters, Point, Verb};

/// Bytes of the slots of one kind of a queue pair: little enough to stay in a cache.
const CACHED: usize = 128 << 10;
/// Slots begin at cache lines.
const LINE: usize = 64;

/// The slots of one measurement; the same at both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BufferLayout {
    /// Bytes of a message.
    pub(super) size: usize,
    /// Bytes from slot to slot.
    pub(super) stride: usize,
    /// Slots of one kind of a queue pair.
    pub(super) slots: usize,
    /// Queue pairs with slots of their own.
    pub(super) queue_pairs: usize,
}

impl BufferLayout {
    pub(super) fn new(parameters: &Parameters, point: Point) -> Self {
        let size = point.size as usize;
        let stride = size.next_multiple_of(LINE);
        let (queue_pairs, most) = if point.test.is_latency() {
            (1, 1)
        } else {
            let receives = if point.test.verb() == Verb::Send { parameters.rx_depth } else { 0 };
            (usize::from(parameters.queue_pairs), parameters.tx_depth.max(receives) as usize)
        };
        Self { size, stride, slots: (CACHED / stride).clamp(1, most), queue_pairs }
    }

    /// Bytes of the slots of one kind of a queue pair.
    pub(super) const fn ring(self) -> usize {
        self.slots * self.stride
    }

    /// Offset of a slot to send from; for reads the slot that the peer reads.
    pub(super) const fn tx(self, queue_pair: usize, slot: usize) -> usize {
        queue_pair * self.ring() + slot * self.stride
    }

    /// Offset of a slot into which messages come: written by the peer, received or read. Slot 0 is the word of atomics.
    pub(super) const fn rx(self, queue_pair: usize, slot: usize) -> usize {
        self.queue_pairs * self.ring() + self.tx(queue_pair, slot)
    }

    /// Bytes of all of them.
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

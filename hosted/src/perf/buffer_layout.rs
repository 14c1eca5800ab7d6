//! Layout of an end's memory region: for each queue pair a ring of send slots and a ring of receive slots.

use bareverbs::GlobalRoute;

use super::parameters::{CREDITS, Parameters, Point, Transport, Verb};

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
    /// Bytes before a received message: the route of a datagram.
    pub(super) area: usize,
    /// Number of queue pairs with separate rings.
    pub(super) queue_pairs: usize,
}

impl BufferLayout {
    pub(super) fn new(parameters: &Parameters, point: Point) -> Self {
        let size = point.size as usize;
        let area = if parameters.transport == Transport::Ud { GlobalRoute::AREA } else { 0 };
        let stride = (area + size).next_multiple_of(CACHE_LINE);
        let receives = match point.test.verb() {
            // Messages of several queue pairs come at a time, so each receive of a shared queue has a slot of its own.
            Verb::Send if parameters.use_srq => parameters.receives_each() + CREDITS,
            Verb::Send => parameters.rx_depth,
            _ => 0,
        };
        let most = parameters.tx_depth.max(receives) as usize;
        let (queue_pairs, slots) = match point.test.is_latency() {
            true => (1, 1),
            false if parameters.use_srq => (parameters.queue_pairs.into(), most),
            false => (parameters.queue_pairs.into(), (MAX_RING / stride).clamp(1, most)),
        };
        Self { size, stride, slots, area, queue_pairs }
    }

    /// Returns where a receive into a slot begins, and its length: the area of a datagram comes before the message.
    pub(super) const fn receive(self, queue_pair: usize, slot: usize) -> (usize, usize) {
        (self.rx(queue_pair, slot) - self.area, self.area + self.size)
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
        self.queue_pairs * self.ring() + self.tx(queue_pair, slot) + self.area
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
                let transport = if size <= 4096 && test != Test::WriteBw { Transport::Ud } else { Transport::Rc };
                let use_srq = queue_pairs == 3;
                let parameters = Parameters { queue_pairs, transport, use_srq, ..Parameters::default() };
                let layout = BufferLayout::new(&parameters, Point { test, size });
                let slots =
                    (0..layout.queue_pairs).flat_map(|queue_pair| (0..layout.slots).map(move |slot| (queue_pair, slot)));
                let mut starts: Vec<_> = slots
                    .flat_map(|(queue_pair, slot)| [layout.tx(queue_pair, slot), layout.receive(queue_pair, slot).0])
                    .collect();
                starts.sort_unstable();
                assert!(starts.windows(2).all(|pair| pair[0] + layout.area + size as usize <= pair[1]));
                assert!(starts.last().unwrap() + layout.area + size as usize <= layout.total());
                assert!(starts.iter().all(|start| start.is_multiple_of(64)));
            }
        }
    }
}

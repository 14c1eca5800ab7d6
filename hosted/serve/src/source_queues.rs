//! Frames of several ports that wait for one way out, served in turn.

use std::collections::VecDeque;

use bareverbs_sim::wire::PortId;

/// Maximum number of frames in the queue of a port, and of bytes of memory that they take: as many of an InfiniBand packet.
pub(crate) const MAX_QUEUED: usize = 1024;
const MAX_BYTES: usize = 5 << 20;

/// The queue of a port.
#[derive(Clone, Debug, Default)]
struct Queue {
    frames: VecDeque<Vec<u8>>,
    bytes: usize,
}

impl Queue {
    fn pop(&mut self) -> Option<Vec<u8>> {
        let frame = self.frames.pop_front()?;
        self.bytes -= frame.capacity();
        Some(frame)
    }
}

/// A queue for each port. A full one drops only frames of its own port.
#[derive(Debug)]
pub(crate) struct SourceQueues {
    queues: Vec<Queue>,
    /// The queue that was served last.
    next: usize,
}

impl SourceQueues {
    /// Creates empty queues for the ports with numbers below `ports`.
    pub(crate) fn new(ports: usize) -> Self {
        Self { queues: vec![Queue::default(); ports], next: 0 }
    }

    /// Queues a frame. Returns whether there was room.
    pub(crate) fn push(&mut self, from: PortId, frame: Vec<u8>) -> bool {
        let Some(queue) = self.queues.get_mut(from.0) else { return false };
        let bytes = queue.bytes + frame.capacity();
        if queue.frames.len() >= MAX_QUEUED || bytes > MAX_BYTES {
            return false;
        }
        queue.frames.push_back(frame);
        queue.bytes = bytes;
        true
    }

    /// Takes a frame of the next port in turn that has one.
    pub(crate) fn pop(&mut self) -> Option<Vec<u8>> {
        for _ in 0..self.queues.len() {
            self.next = if self.next + 1 < self.queues.len() { self.next + 1 } else { 0 };
            if let Some(frame) = self.queues.get_mut(self.next).and_then(Queue::pop) {
                return Some(frame);
            }
        }
        None
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queues.iter().all(|queue| queue.frames.is_empty())
    }

    /// Drops all frames. Returns how many.
    pub(crate) fn clear(&mut self) -> usize {
        self.queues.iter_mut().map(|queue| std::mem::take(queue).frames.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fills the queue of port 1 with frames of this length, and returns how many it takes.
    fn filled(queues: &mut SourceQueues, len: usize) -> usize {
        (0..10 * MAX_QUEUED).take_while(|_| queues.push(PortId(1), vec![1; len])).count()
    }

    #[test]
    fn a_queue_is_bounded_by_frames_and_by_bytes_and_leaves_the_others_alone() {
        let mut queues = SourceQueues::new(3);
        assert_eq!(filled(&mut queues, 60), MAX_QUEUED);
        assert!(
            queues.push(PortId(0), vec![0; 9]) && queues.push(PortId(2), vec![2; 9]) && !queues.push(PortId(3), vec![3; 9])
        );
        assert_eq!([0; 4].map(|_| queues.pop().unwrap()[0]), [1, 2, 0, 1], "in turn");
        assert_eq!((filled(&mut queues, 60), queues.clear()), (2, MAX_QUEUED));
        assert!(queues.is_empty() && queues.pop().is_none());
        // Of long frames it takes fewer, and as many again once some have left.
        for _ in 0..2 {
            let count = filled(&mut queues, 10_000);
            assert_eq!(count, MAX_BYTES / 10_000);
            assert!(!queues.push(PortId(1), vec![1; 9_000]) && queues.push(PortId(0), vec![0; 10_000]));
            assert_eq!(std::iter::from_fn(|| queues.pop()).count(), count + 1);
        }
    }
}

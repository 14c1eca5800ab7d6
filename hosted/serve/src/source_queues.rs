//! Frames of several ports that wait for one way out, served in turn.

use std::collections::VecDeque;

use bareverbs_sim::wire::PortId;

/// Maximum number of frames in the queue of a port.
pub(crate) const MAX_QUEUED: usize = 1024;

/// A queue for each port. A full one drops only frames of its own port.
#[derive(Debug)]
pub(crate) struct SourceQueues {
    queues: Vec<VecDeque<Vec<u8>>>,
    /// The queue that was served last.
    next: usize,
}

impl SourceQueues {
    /// Creates empty queues for the ports with numbers below `ports`.
    pub(crate) fn new(ports: usize) -> Self {
        Self { queues: vec![VecDeque::new(); ports], next: 0 }
    }

    /// Queues a frame. Returns whether there was room.
    pub(crate) fn push(&mut self, from: PortId, frame: Vec<u8>) -> bool {
        let Some(queue) = self.queues.get_mut(from.0).filter(|queue| queue.len() < MAX_QUEUED) else { return false };
        queue.push_back(frame);
        true
    }

    /// Takes a frame of the next port in turn that has one.
    pub(crate) fn pop(&mut self) -> Option<Vec<u8>> {
        for _ in 0..self.queues.len() {
            self.next = if self.next + 1 < self.queues.len() { self.next + 1 } else { 0 };
            if let Some(frame) = self.queues.get_mut(self.next).and_then(VecDeque::pop_front) {
                return Some(frame);
            }
        }
        None
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queues.iter().all(VecDeque::is_empty)
    }

    /// Drops all frames. Returns how many.
    pub(crate) fn clear(&mut self) -> usize {
        self.queues.iter_mut().map(|queue| std::mem::take(queue).len()).sum()
    }
}

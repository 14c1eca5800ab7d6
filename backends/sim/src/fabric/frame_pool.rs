//! A pool of buffers for long frames, so that they are reused.
//!
//! A long frame is made on one thread and done with on another. The allocator would give its memory back to the system and ask
//! for it again, which costs more than the frame; short frames it handles well.

use crate::packet::MAX_PAYLOAD;
use crate::step::Budget;

/// A frame of fewer bytes gets a buffer from the allocator.
const LONG: usize = 1024;
/// Bytes of a buffer: the greatest payload and all headers. All have the same, so that each has room for each frame.
pub(crate) const CAPACITY: usize = MAX_PAYLOAD + 256;

/// Frames with a whole payload that a device sends or gets in one turn.
pub(crate) const MAX_FRAMES_PER_TURN: usize = (Budget::TURN.bytes / MAX_PAYLOAD as u64) as usize;

/// Returns whether the buffer of a frame that is done with is worth keeping.
pub(crate) fn is_spare(frame: &Vec<u8>) -> bool {
    frame.capacity() == CAPACITY
}

/// A pool of at most `most` buffers.
#[derive(Debug)]
pub(crate) struct FramePool {
    buffers: Vec<Vec<u8>>,
    most: usize,
    /// Some were taken, and not many are left.
    is_wanted: bool,
}

impl FramePool {
    pub(crate) fn new(most: usize) -> Self {
        Self { buffers: Vec::new(), most, is_wanted: false }
    }

    /// Returns a buffer for a frame whose transport headers and payload have `len` bytes; its content is to be replaced.
    pub(crate) fn take(&mut self, len: usize) -> Vec<u8> {
        if len < LONG {
            return Vec::new();
        }
        self.is_wanted |= self.buffers.len() <= self.most / 2;
        self.buffers.pop().unwrap_or_else(|| Vec::with_capacity(CAPACITY))
    }

    /// Returns whether they may become too few.
    pub(crate) fn is_wanted(&self) -> bool {
        self.is_wanted
    }

    /// Keeps the buffer of a frame that is done with, if it is long enough and there is room.
    pub(crate) fn keep(&mut self, frame: Vec<u8>) {
        if is_spare(&frame) && self.buffers.len() < self.most {
            self.buffers.push(frame);
        }
    }

    /// Takes from others what there is room for.
    pub(crate) fn refill(&mut self, others: &mut Vec<Vec<u8>>) {
        let from = others.len().saturating_sub(self.most.saturating_sub(self.buffers.len()));
        self.buffers.extend(others.drain(from..));
    }

    /// Takes from others what there is room for.
    pub(crate) fn refill_from(&mut self, others: &mut Self) {
        self.is_wanted = false;
        self.refill(&mut others.buffers);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_of_use_and_not_too_much() {
        let mut spare = FramePool::new(4);
        for capacity in [0, LONG, CAPACITY - 1, CAPACITY + 1] {
            spare.keep(Vec::with_capacity(capacity));
        }
        assert!(spare.buffers.is_empty() && !spare.is_wanted());
        assert_eq!(spare.take(LONG - 1).capacity(), 0, "the allocator's");
        let new = spare.take(LONG);
        assert_eq!((new.capacity(), spare.is_wanted()), (CAPACITY, true));
        spare.keep(new);
        (0..10).for_each(|_| spare.keep(Vec::with_capacity(CAPACITY)));
        assert_eq!(spare.buffers.len(), 4);
        spare.is_wanted = false;
        drop(spare.take(CAPACITY));
        assert!(!spare.is_wanted());
        drop(spare.take(CAPACITY));
        drop(spare.take(CAPACITY));
        assert!(spare.is_wanted(), "few are left");
        let mut others = FramePool::new(3);
        (0..3).for_each(|_| others.keep(Vec::with_capacity(CAPACITY)));
        spare.refill_from(&mut others);
        assert_eq!((spare.buffers.len(), others.buffers.len(), spare.is_wanted()), (4, 0, false));
    }
}

//! Buffers of long frames that nobody needs any more, for frames to come.
//!
//! A long frame is made on one thread and done with on another. The allocator would give its memory back to the system and ask
//! for it again, which costs more than the frame; short frames it handles well.

use crate::packet::MAX_PAYLOAD;

/// A frame of fewer bytes gets a buffer of its own from the allocator.
const LONG: usize = 1024;
/// Frames that a device makes are not longer: the greatest payload and all headers. What comes from elsewhere may be.
const MOST_BYTES: usize = MAX_PAYLOAD + 256;

/// Whether the buffer of a frame that nobody needs any more is worth keeping.
pub(crate) fn is_spare(frame: &Vec<u8>) -> bool {
    (LONG..=MOST_BYTES).contains(&frame.capacity())
}

/// Some buffers, at most so many.
#[derive(Debug)]
pub(crate) struct SpareFrames {
    buffers: Vec<Vec<u8>>,
    most: usize,
}

impl SpareFrames {
    pub(crate) fn new(most: usize) -> Self {
        Self { buffers: Vec::new(), most }
    }

    /// A buffer for a frame of `len` bytes; what it holds is to be replaced.
    pub(crate) fn take(&mut self, len: usize) -> Vec<u8> {
        if len < LONG { Vec::new() } else { self.buffers.pop().unwrap_or_default() }
    }

    /// Whether fewer than half of them are there.
    pub(crate) fn is_low(&self) -> bool {
        self.buffers.len() < self.most / 2
    }

    /// Keeps the buffer of a frame that nobody needs any more, if it is worth it and there is room.
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
        self.refill(&mut others.buffers);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_of_use_and_not_too_much() {
        let mut spare = SpareFrames::new(4);
        for len in [0, LONG - 1, MOST_BYTES + 1] {
            spare.keep(Vec::with_capacity(len));
        }
        assert_eq!((spare.take(LONG).capacity(), spare.is_low()), (0, true));
        (0..10).for_each(|_| spare.keep(Vec::with_capacity(LONG)));
        assert!(!spare.is_low());
        assert_eq!(spare.take(LONG - 1).capacity(), 0, "a short frame takes none of them");
        let mut others: Vec<Vec<u8>> = (0..3).map(|_| Vec::with_capacity(MOST_BYTES)).collect();
        assert_eq!((0..2).map(|_| spare.take(MOST_BYTES).capacity()).collect::<Vec<_>>(), [LONG; 2]);
        spare.refill(&mut others);
        assert_eq!(others.len(), 1);
        let kept: Vec<usize> = (0..5).map(|_| spare.take(MOST_BYTES).capacity()).collect();
        assert_eq!(kept, [MOST_BYTES, MOST_BYTES, LONG, LONG, 0]);
    }
}

//! The memory that one object of the device lies in.

use core::num::NonZeroU32;

use super::arena::{PageRange, RECORD};

/// Memory that an object of the device lies in: its ring and its doorbell record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ObjectMemory {
    range: Option<PageRange>,
    /// Number of the record, counted from the start of the arena, where none lies: the command queue does.
    record: Option<NonZeroU32>,
}

impl ObjectMemory {
    pub(crate) const NONE: Self = Self { range: None, record: None };

    pub(crate) fn new(range: Option<PageRange>, record: Option<usize>) -> Self {
        let record = record.and_then(|at| NonZeroU32::new(u32::try_from(at / RECORD).ok()?));
        Self { range, record }
    }

    pub(crate) const fn range(&self) -> Option<PageRange> {
        self.range
    }

    /// Returns the byte offset of the ring, 0 if there is none.
    pub(crate) fn at(&self) -> usize {
        self.range.map_or(0, PageRange::at)
    }

    /// Returns the number of pages of the ring.
    pub(crate) fn pages(&self) -> u32 {
        self.range.map_or(0, PageRange::pages)
    }

    /// Returns the byte offset of the doorbell record, 0 if there is none.
    pub(crate) fn record(&self) -> usize {
        self.record.map_or(0, |record| record.get() as usize * RECORD)
    }
}

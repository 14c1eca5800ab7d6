//! Who has rings: those of one queue pair, or the slots of one shared receive queue, serve one table at a time.

use core::sync::atomic::{AtomicU32, Ordering};

/// Beside the rings: 1 while a table has them.
#[derive(Debug)]
pub(crate) struct Taken(AtomicU32);

impl Taken {
    pub(crate) const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    fn take(&self) -> bool {
        #[cfg(target_has_atomic = "32")]
        let was_free = self.0.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok();
        // Without compare-and-swap there is one core, and an interrupt handler makes no verbs.
        #[cfg(not(target_has_atomic = "32"))]
        let was_free = {
            let was_free = self.0.load(Ordering::Relaxed) == 0;
            self.0.store(1, Ordering::Relaxed);
            was_free
        };
        was_free
    }
}

/// In the table: whether it has the rings beside it. They are free again when it is dropped.
#[derive(Debug)]
pub(crate) struct Claim<'r> {
    /// `None` if there are no rings.
    taken: Option<&'r Taken>,
    is_mine: AtomicU32,
}

impl<'r> Claim<'r> {
    pub(crate) const fn new(taken: Option<&'r Taken>) -> Self {
        Self { taken, is_mine: AtomicU32::new(0) }
    }

    /// Is about other rings from here on.
    pub(crate) const fn change(&mut self, taken: Option<&'r Taken>) {
        self.taken = taken;
        self.is_mine = AtomicU32::new(0);
    }

    /// Takes the rings, unless another table has them.
    pub(crate) fn take(&self) {
        if !self.has() && self.taken.is_some_and(Taken::take) {
            self.is_mine.store(1, Ordering::Relaxed);
        }
    }

    /// Returns whether the table has them.
    pub(crate) fn has(&self) -> bool {
        self.is_mine.load(Ordering::Relaxed) != 0
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if let (1.., Some(taken)) = (*self.is_mine.get_mut(), self.taken) {
            taken.0.store(0, Ordering::Release);
        }
    }
}

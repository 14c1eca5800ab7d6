//! Numbers of the worlds that a program has at one time: the lowest that are free, so that a program does the same every time.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;

static TAKEN: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());

/// The number of a world, which it and its memories have until the last of them is gone.
#[derive(Debug)]
pub(super) struct WorldNumber(u64);

impl WorldNumber {
    pub(super) fn take() -> Arc<Self> {
        let mut taken = TAKEN.lock();
        let number = (0..u64::MAX).find(|number| taken.insert(*number)).unwrap_or(u64::MAX);
        Arc::new(Self(number))
    }

    pub(super) fn get(&self) -> u64 {
        self.0
    }
}

impl Drop for WorldNumber {
    fn drop(&mut self) {
        TAKEN.lock().remove(&self.0);
    }
}

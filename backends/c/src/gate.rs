//! One call at a time for each device.

use core::sync::atomic::{AtomicU32, Ordering};

/// No call is running.
const IDLE: u32 = 0x6276_0001;
/// A call is running.
const BUSY: u32 = 0x6276_0002;

/// Lets one call in at a time. Any other content of its word is that of storage that was never initialized.
#[derive(Debug)]
pub(crate) struct Gate(AtomicU32);

/// Why a call was not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closed {
    /// Another one is running.
    Busy,
    /// There is no device here.
    NoDevice,
}

impl Gate {
    /// Returns a gate that lets a call in.
    pub(crate) const fn new() -> Self {
        Self(AtomicU32::new(IDLE))
    }

    /// Lets a call in, until [`Self::leave`].
    #[inline(always)]
    pub(crate) fn enter(&self) -> Result<(), Closed> {
        #[cfg(target_has_atomic = "32")]
        let found = match self.0.compare_exchange(IDLE, BUSY, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => return Ok(()),
            Err(found) => found,
        };
        // One core: an interrupt handler that comes between load and store is done before the store.
        #[cfg(not(target_has_atomic = "32"))]
        let found = match self.0.load(Ordering::Acquire) {
            IDLE => {
                self.0.store(BUSY, Ordering::Relaxed);
                return Ok(());
            }
            found => found,
        };
        Err(if found == BUSY { Closed::Busy } else { Closed::NoDevice })
    }

    /// Ends the call that was let in.
    #[inline(always)]
    pub(crate) fn leave(&self) {
        self.0.store(IDLE, Ordering::Release);
    }
}

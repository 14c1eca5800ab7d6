//! The device, and what one step of a program may cost.

use core::time::Duration;
use std::sync::{Arc, Mutex};

use bareverbs::platform::{Clock, Instant};
use bareverbs_sim::in_process::Host;

use super::lies::Lies;

/// Writes of the device in one step: an output of 4 KiB is 20, a message one for each page, and a bring-up has 60 commands.
const WRITES: u64 = 20_000;

/// The device, what it does wrong, and the bounds of a step.
pub(super) struct Lab {
    pub(super) host: Host,
    pub(super) lies: Arc<Mutex<Lies>>,
    pub(super) limit: Duration,
}

impl Lab {
    pub(super) fn mark(&self) -> (Instant, u64) {
        (self.host.clock().now(), self.lies.lock().unwrap().writes)
    }

    /// Asserts that what was done since `mark` had an end in time.
    pub(super) fn check(&self, mark: (Instant, u64), what: &str) {
        let (now, writes) = self.mark();
        let (took, wrote) = (now.since(mark.0), writes - mark.1);
        assert!(took < self.limit, "{what} took {took:?}");
        assert!(wrote < WRITES, "{what} made the device write {wrote} times");
    }
}

//! How long one step of a device may take.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Processor time of this thread that one step of a device may take: a register access, a turn, a frame. Sanitizers make
/// it several times slower than it is served.
const MAX_STEP_TIME: Duration = Duration::from_millis(200);

/// Does `step` and checks how long it took.
pub(crate) fn bounded<R>(what: &str, step: impl FnOnce() -> R) -> R {
    let now = || {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
    };
    let start = now();
    let result = step();
    let took = now().saturating_sub(start);
    assert!(took < MAX_STEP_TIME, "{what} took {took:?}");
    result
}

//! Message-signalled interrupts: handed to the program's function, and counted.
//!
//! That function comes in the middle of whatever the program does. What both use is used by the program while interrupts are
//! held back ([`held`]). Who waits sleeps: the machine's timer ends the sleep at the deadline.

use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;

use bareverbs::platform::{Clock as _, Instant};
use spin::Mutex;

use crate::{Timer, arch};

/// Vectors that a machine has for the card.
pub const VECTORS: usize = 8;

static TAKEN: [AtomicU32; VECTORS] = [const { AtomicU32::new(0) }; VECTORS];

/// What the card writes, and where, to raise one interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Address of the interrupt controller.
    pub address: u64,
    /// Number of the interrupt.
    pub data: u32,
}

/// Returns the message of vector `index`, which is open from now on; `None` if the machine has fewer.
pub fn message(index: usize) -> Option<Message> {
    if index < VECTORS { arch::open_interrupt(index) } else { None }
}

/// Called with each vector that is raised.
static HANDLER: Mutex<Option<fn(usize)>> = Mutex::new(None);

/// Has `handler` called with the number of each vector that is raised from now on, with interrupts held back.
pub fn handle_with(handler: fn(usize)) {
    held(|| *HANDLER.lock() = Some(handler));
}

/// Holds interrupts back while `f` runs.
pub fn held<T>(f: impl FnOnce() -> T) -> T {
    let came_through = arch::hold_interrupts();
    let result = f();
    if came_through {
        arch::let_interrupts_through();
    }
    result
}

/// Sleeps until an interrupt comes, at the latest at `deadline`; not at all if `unless` says so, with interrupts held back.
pub fn sleep_until(deadline: Instant, unless: impl FnOnce() -> bool) {
    held(|| {
        if !unless() && Timer.now() < deadline {
            // An interrupt between the question and the sleep ends the sleep at once.
            arch::sleep_until(deadline.as_nanos());
        }
    });
}

/// Counts an interrupt; called by the machine's handler.
pub(crate) fn raised(index: usize) {
    // Never locked here: the program locks it with interrupts held back.
    let handler = HANDLER.try_lock().and_then(|handler| *handler);
    if let Some(handler) = handler {
        handler(index);
    }
    // After the handler: who sees the number sees what the handler did.
    if let Some(taken) = TAKEN.get(index) {
        taken.fetch_add(1, Ordering::Release);
    }
}

/// Returns how often vector `index` was raised so far.
pub fn taken(index: usize) -> u32 {
    TAKEN.get(index).map_or(0, |taken| taken.load(Ordering::Acquire))
}

/// Sleeps until vector `index` was raised more often than `before`; gives the number, or `None` after `timeout`.
pub fn wait(index: usize, before: u32, timeout: Duration) -> Option<u32> {
    let deadline = Timer.now().after(timeout);
    loop {
        // An interrupt between the check and the sleep ends the sleep at once.
        let result = held(|| {
            let now = taken(index);
            if now != before {
                return Some(Some(now));
            }
            if Timer.now() >= deadline {
                return Some(None);
            }
            arch::sleep_until(deadline.as_nanos());
            None
        });
        if let Some(result) = result {
            return result;
        }
    }
}

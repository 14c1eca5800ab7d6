//! The lock of a device, the state that it protects, and the thread that runs the device.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::thread::{self, Thread};
use std::time::{self, Duration};

use bareverbs::platform::Instant;
use bareverbs_sim::fabric::Port;

use crate::device_slot::DeviceSlot;
use crate::interrupts::Vectors;
use crate::log::Log;

/// Interval between attempts to take a lock that another thread holds.
pub(crate) const RETRY_INTERVAL: Duration = Duration::from_micros(100);

/// State of a runner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunnerState {
    /// It works, or is about to check for work.
    Awake,
    /// It sleeps until the given time, or until it is woken.
    Asleep(Option<Instant>),
}

/// State that the lock of a device protects.
pub(crate) struct State {
    pub(crate) slot: DeviceSlot,
    pub(crate) port: Port,
    pub(crate) runner: RunnerState,
    /// Until when only its runner runs it, since another thread waited long for its memory.
    pub(crate) alone_until: Instant,
}

/// A device, its interrupts and its runner.
pub(crate) struct Runner {
    pub(crate) name: String,
    pub(crate) log: Log,
    /// Held while waiting for the lock, so that the runner, which takes the lock repeatedly, lets other threads in between two
    /// turns.
    pub(crate) turnstile: Mutex<()>,
    /// `None` after the device has stopped being served.
    pub(crate) state: Mutex<Option<State>>,
    pub(crate) vectors: Mutex<Vectors>,
    /// The port of the device has work that no thread has taken yet.
    pub(crate) work_pending: AtomicBool,
    /// A thread has the lock and checks `work_pending` before it releases the lock: the runner need not be woken.
    pub(crate) being_served: AtomicBool,
    pub(crate) runner: OnceLock<Thread>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Runner {
    /// Takes the lock, in turn with other threads.
    pub(crate) fn enter(&self) -> MutexGuard<'_, Option<State>> {
        let _turn = lock(&self.turnstile);
        let state = lock(&self.state);
        self.being_served.store(true, Ordering::SeqCst);
        state
    }

    /// Returns whether a thread waits for the lock, or is about to get it.
    #[cfg(test)]
    pub(crate) fn has_waiter(&self) -> bool {
        self.turnstile.try_lock().is_err()
    }

    /// Takes the lock, or returns `None` if another thread held it for `limit`.
    pub(crate) fn enter_within(&self, limit: Duration) -> Option<MutexGuard<'_, Option<State>>> {
        let start = time::Instant::now();
        loop {
            let state = match self.state.try_lock() {
                Ok(state) => Some(state),
                Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => None,
            };
            if let Some(state) = state {
                self.being_served.store(true, Ordering::SeqCst);
                return Some(state);
            }
            if start.elapsed() >= limit {
                return None;
            }
            thread::sleep(RETRY_INTERVAL);
        }
    }

    /// Releases the lock, raises pending interrupts, and wakes the runner if there is work for it.
    pub(crate) fn leave(&self, mut guard: MutexGuard<'_, Option<State>>) {
        let mut raised = (Vec::new(), None);
        let mut lines = Vec::new();
        if let Some(State { slot, .. }) = guard.as_mut() {
            lines = slot.device.take_unsupported();
            if slot.device.has_interrupts() {
                // Locked before the device is unlocked, so that no thread clears the vectors in between.
                raised = (slot.device.take_interrupts(), Some(lock(&self.vectors)));
            }
        }
        self.being_served.store(false, Ordering::SeqCst);
        drop(guard);
        if self.work_pending.load(Ordering::SeqCst) {
            self.wake();
        }
        if let (interrupts, Some(mut vectors)) = raised {
            interrupts.into_iter().for_each(|vector| vectors.raise(vector));
        }
        for line in lines {
            self.log.line(format!("{}: {line}", self.name));
        }
    }

    /// Makes the runner check for work.
    pub(crate) fn wake(&self) {
        self.work_pending.store(true, Ordering::SeqCst);
        if let Some(runner) = self.runner.get() {
            runner.unpark();
        }
    }
}

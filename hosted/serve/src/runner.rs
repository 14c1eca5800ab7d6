//! The lock of a device, what it guards, and the thread that does the device's work.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::thread::{self, Thread};
use std::time::{self, Duration};

use bareverbs::Instant;
use bareverbs_sim::fabric::Port;

use crate::device_slot::DeviceSlot;
use crate::interrupts::Vectors;
use crate::log::Log;

/// How often a lock that another thread has is tried again.
pub(crate) const RETRY_INTERVAL: Duration = Duration::from_micros(100);

/// What a runner does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunnerState {
    /// It works, or is about to look for work.
    Awake,
    /// It sleeps until then, or until it is woken.
    Asleep(Option<Instant>),
}

/// What a device's lock guards.
pub(crate) struct State {
    pub(crate) slot: DeviceSlot,
    pub(crate) port: Port,
    pub(crate) runner: RunnerState,
}

/// A device, its interrupts and its runner.
pub(crate) struct Runner {
    pub(crate) name: String,
    pub(crate) log: Log,
    /// Held while waiting for the lock: the runner, which takes the lock again and again, so lets everyone else in between
    /// two turns.
    pub(crate) turnstile: Mutex<()>,
    /// `None` once it is no longer served.
    pub(crate) state: Mutex<Option<State>>,
    pub(crate) vectors: Mutex<Vectors>,
    /// The device's port got something to do that nobody has looked at.
    pub(crate) work_pending: AtomicBool,
    /// Somebody is at the device who looks at `work_pending` before leaving: the runner need not wake up for it.
    pub(crate) being_served: AtomicBool,
    pub(crate) runner: OnceLock<Thread>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Runner {
    /// The lock, in turn with everyone else.
    pub(crate) fn enter(&self) -> MutexGuard<'_, Option<State>> {
        let _turn = lock(&self.turnstile);
        let state = lock(&self.state);
        self.being_served.store(true, Ordering::SeqCst);
        state
    }

    /// As [`Runner::enter`]; `None` if someone has held it for so long.
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

    /// Gives the lock back, raises the interrupts that came up, and wakes the runner if there is something for it.
    pub(crate) fn leave(&self, mut guard: MutexGuard<'_, Option<State>>) {
        let mut raised = (Vec::new(), None);
        let mut lines = Vec::new();
        if let Some(State { slot, .. }) = guard.as_mut() {
            lines = slot.device.take_unsupported();
            if slot.device.has_interrupts() {
                // Nobody may come in between who clears them.
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

    /// Has the runner look for work.
    pub(crate) fn wake(&self) {
        self.work_pending.store(true, Ordering::SeqCst);
        if let Some(runner) = self.runner.get() {
            runner.unpark();
        }
    }
}

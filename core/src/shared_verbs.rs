//! The control path shared between cores.

use spin::{Mutex, MutexGuard};

use crate::log::format_as;
use crate::{Provider, Verbs};

/// [`Verbs`] behind a spin lock: the control path for several cores without an operating system.
///
/// The lock may be held for the length of a firmware command. Nothing on the data path takes it: send, receive and completion
/// queues and the interrupt handler are split off and used independently.
pub struct SharedVerbs<'s, P: Provider> {
    verbs: Mutex<Verbs<'s, P>>,
}

format_as!([P: Provider] SharedVerbs<'_, P>, "SharedVerbs(locked: {})", |this| this.verbs.is_locked());

impl<'s, P: Provider> SharedVerbs<'s, P> {
    /// Puts verbs behind a lock.
    pub const fn new(verbs: Verbs<'s, P>) -> Self {
        Self { verbs: Mutex::new(verbs) }
    }

    /// Waits for the lock, spinning. Not for interrupt handlers: the core that they interrupt may hold it.
    pub fn lock(&self) -> MutexGuard<'_, Verbs<'s, P>> {
        self.verbs.lock()
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, Verbs<'s, P>>> {
        self.verbs.try_lock()
    }

    /// Gives the verbs back.
    pub fn into_inner(self) -> Verbs<'s, P> {
        self.verbs.into_inner()
    }
}

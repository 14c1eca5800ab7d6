//! Time for a loop that only polls: a host that reads the same word again and again makes the world move to its next event.
//!
//! On hardware, time passes while a program spins on a completion queue. Here it passes in the clock, which such a loop never
//! asks. So rings and buffers count how often in a row a host has read the same place.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use super::number::WorldNumber;
use super::state::WorldState;

/// Reads of one place in a row after which the world moves to its next event.
pub(super) const READS_PER_EVENT: u32 = 64;

/// The world that a memory belongs to, if it belongs to one. One pointer, since each ring has it.
#[derive(Clone, Debug, Default)]
pub(super) struct WeakWorld(Option<Arc<Belonging>>);

#[derive(Debug)]
struct Belonging {
    /// A weak reference: the world's devices have the memory too.
    state: Weak<WorldState>,
    /// While the memory is there, no other world gives out its device addresses.
    _number: Arc<WorldNumber>,
}

impl WeakWorld {
    pub(super) fn new(world: &Arc<WorldState>) -> Self {
        Self(Some(Arc::new(Belonging { state: Arc::downgrade(world), _number: Arc::clone(&world.number) })))
    }
}

/// Counts reads that find the same place.
#[derive(Debug)]
pub(super) struct IdleReads {
    world: WeakWorld,
    /// The place read last, and in the lower half how often it was read in a row before. Used by the one thread that polls; if
    /// two do, counts may be lost.
    last: AtomicU64,
}

impl Clone for IdleReads {
    fn clone(&self) -> Self {
        Self::new(self.world.clone())
    }
}

impl IdleReads {
    pub(super) fn new(world: WeakWorld) -> Self {
        Self { world, last: AtomicU64::new(0) }
    }

    /// Counts a read of `place`.
    #[inline]
    pub(super) fn count(&self, place: u32) {
        let last = self.last.load(Ordering::Relaxed);
        let reads = if (last >> 32) as u32 == place { (last as u32).wrapping_add(1) } else { 0 };
        let idle = reads >= READS_PER_EVENT;
        self.last.store(u64::from(place) << 32 | u64::from(if idle { 0 } else { reads }), Ordering::Relaxed);
        if idle {
            self.go_on();
        }
    }

    #[cold]
    fn go_on(&self) {
        if let Some(world) = self.world.0.as_ref().and_then(|belonging| belonging.state.upgrade()) {
            world.go_to_next_event();
        }
    }
}

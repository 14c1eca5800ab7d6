//! What cores share: words that are read and written whole, and the type of the locks.
//!
//! Nothing here needs compare-and-swap but a lock, and that only with the feature `multicore`: every shared word has one
//! writer, or its writers hold the lock.
//!
//! Under the model checker (`--cfg loom`, in tests only) words, lock and waker are loom's.

#[cfg(test)]
#[cfg(loom)]
pub(crate) mod modelled;

#[cfg(all(feature = "multicore", not(all(test, loom))))]
pub(crate) use atomic_waker::AtomicWaker;
#[cfg(not(all(test, loom)))]
pub(crate) use core::sync::atomic::{AtomicU32, Ordering, fence};
#[cfg(all(test, loom))]
pub(crate) use modelled::{AtomicU32, AtomicWaker, Lock, Ordering, fence};

/// Eight bytes that are written by one core and read by another after it has seen a counter that was published later.
#[cfg(all(target_has_atomic = "64", not(all(test, loom))))]
#[derive(Debug)]
pub(crate) struct Word64(core::sync::atomic::AtomicU64);

#[cfg(all(target_has_atomic = "64", not(all(test, loom))))]
impl Word64 {
    pub(crate) const fn new(value: u64) -> Self {
        Self(core::sync::atomic::AtomicU64::new(value))
    }

    #[inline(always)]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
}

/// Eight bytes that are written by one core and read by another after it has seen a counter that was published later. What is
/// true for two halves is true for a whole word, so the model has these.
#[cfg(any(not(target_has_atomic = "64"), all(test, loom)))]
#[derive(Debug)]
pub(crate) struct Word64 {
    low: AtomicU32,
    high: AtomicU32,
}

#[cfg(any(not(target_has_atomic = "64"), all(test, loom)))]
impl Word64 {
    pub(crate) const fn new(value: u64) -> Self {
        Self { low: AtomicU32::new(value as u32), high: AtomicU32::new((value >> 32) as u32) }
    }

    #[inline(always)]
    pub(crate) fn get(&self) -> u64 {
        u64::from(self.high.load(Ordering::Relaxed)) << 32 | u64::from(self.low.load(Ordering::Relaxed))
    }

    #[inline(always)]
    pub(crate) fn set(&self, value: u64) {
        self.low.store(value as u32, Ordering::Relaxed);
        self.high.store((value >> 32) as u32, Ordering::Relaxed);
    }
}

/// A lock that is held for a few dozen instructions, never across a firmware command, and never taken by `on_interrupt`.
#[cfg(all(feature = "multicore", not(all(test, loom))))]
#[derive(Debug)]
pub(crate) struct Lock<T: ?Sized>(spin::Mutex<T>);

#[cfg(all(feature = "multicore", not(all(test, loom))))]
impl<T> Lock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(spin::Mutex::new(value))
    }
}

#[cfg(all(feature = "multicore", not(all(test, loom))))]
impl<T: ?Sized> Lock<T> {
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        work(&mut self.0.lock())
    }
}

/// The same without a lock: its owner is not [`Sync`], so that queues stay on their core.
#[cfg(not(any(feature = "multicore", all(test, loom))))]
#[derive(Debug)]
pub(crate) struct Lock<T: ?Sized>(core::cell::RefCell<T>);

#[cfg(not(any(feature = "multicore", all(test, loom))))]
impl<T> Lock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(core::cell::RefCell::new(value))
    }
}

#[cfg(not(any(feature = "multicore", all(test, loom))))]
impl<T: ?Sized> Lock<T> {
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        work(&mut self.lock())
    }

    #[cfg_attr(feature = "small", inline(never))]
    fn lock(&self) -> core::cell::RefMut<'_, T> {
        loop {
            // Never borrowed here: no `work` calls back, and without `Sync` there is no other core.
            if let Ok(value) = self.0.try_borrow_mut() {
                return value;
            }
        }
    }
}

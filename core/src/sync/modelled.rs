//! Words, lock and waker of the model checker, which runs code in every order that cores may see.
//!
//! Those of loom are made at run time and live for one execution of the model. These have the `const` constructors of the real
//! ones, so that nothing outside of this module differs. Each creates its loom counterpart at its first write.
//!
//! What is checked is how this crate uses them. The spin lock and the waker themselves are other crates' (`spin`,
//! `atomic-waker`): Miri runs those.

use core::cell::Cell;
use core::sync::atomic::AtomicBool;
use core::task::Waker;
use std::sync::OnceLock;
use std::thread_local;

pub(crate) use loom::sync::atomic::{Ordering, fence};
use loom::thread::ThreadId;

thread_local! {
    /// The thread that an execution of the model begins with. All threads of the model are one of the machine.
    static FIRST: Cell<Option<ThreadId>> = const { Cell::new(None) };
}

fn is_first() -> bool {
    FIRST.get() == Some(loom::thread::current().id())
}

/// Runs `model` in every order of its accesses to words and locks, with this many switches between threads that could have gone
/// on: 2, or `LOOM_MAX_PREEMPTIONS`.
pub(crate) fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(2));
    builder.max_branches = 10_000;
    builder.check(move || {
        FIRST.set(Some(loom::thread::current().id()));
        model();
    });
}

/// A word. It is first written by the thread that the model begins with, before others see it: loom does not see accesses
/// before.
#[derive(Debug)]
pub(crate) struct AtomicU32 {
    initial: u32,
    word: OnceLock<loom::sync::atomic::AtomicU32>,
    /// Whether another thread has read it before it was written.
    was_read: AtomicBool,
}

impl AtomicU32 {
    pub(crate) const fn new(initial: u32) -> Self {
        Self { initial, word: OnceLock::new(), was_read: AtomicBool::new(false) }
    }

    pub(crate) fn load(&self, ordering: Ordering) -> u32 {
        match self.word.get() {
            Some(word) => word.load(ordering),
            None => {
                if !is_first() {
                    self.was_read.store(true, Ordering::Relaxed);
                }
                self.initial
            }
        }
    }

    pub(crate) fn store(&self, value: u32, ordering: Ordering) {
        let word = self.word.get_or_init(|| {
            let is_seen = is_first() && !self.was_read.load(Ordering::Relaxed);
            assert!(is_seen, "a word is written for the first time where the model does not see it");
            loom::sync::atomic::AtomicU32::new(self.initial)
        });
        word.store(value, ordering);
    }
}

/// A lock.
#[derive(Debug)]
pub(crate) struct Lock<T: ?Sized> {
    turn: OnceLock<loom::sync::Mutex<()>>,
    value: std::sync::Mutex<T>,
}

impl<T> Lock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self { turn: OnceLock::new(), value: std::sync::Mutex::new(value) }
    }
}

impl<T: ?Sized> Lock<T> {
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        let _turn = self.turn.get_or_init(|| loom::sync::Mutex::new(())).lock().unwrap();
        work(&mut self.value.try_lock().unwrap())
    }
}

/// A waker.
#[derive(Debug)]
pub(crate) struct AtomicWaker(OnceLock<loom::future::AtomicWaker>);

impl AtomicWaker {
    pub(crate) const fn new() -> Self {
        Self(OnceLock::new())
    }

    fn get(&self) -> &loom::future::AtomicWaker {
        self.0.get_or_init(loom::future::AtomicWaker::new)
    }

    pub(crate) fn register(&self, waker: &Waker) {
        self.get().register_by_ref(waker);
    }

    pub(crate) fn wake(&self) {
        self.get().wake();
    }
}

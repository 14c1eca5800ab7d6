//! Handles: an index and a generation, so that a stale handle is an error and never another object.

use core::fmt;
use core::hash::{Hash, Hasher};
use core::marker::PhantomData;

/// Names an object of kind `K` in its table.
///
/// The generation of a slot starts at a number of the verbs' own, so a handle of other verbs, also of earlier ones, is stale here.
pub struct Handle<K> {
    /// Generation in the lower half, index in the upper: one word, which a completion copies whole.
    word: u64,
    kind: PhantomData<fn() -> K>,
}

impl<K> Handle<K> {
    /// Names nothing: no table has a slot with its index.
    pub const NONE: Self = Self::new(u16::MAX, 0);

    pub(crate) const fn new(index: u16, generation: u32) -> Self {
        Self::of_word((index as u64) << 32 | generation as u64)
    }

    /// Returns the handle that [`Self::word`] gave.
    pub(crate) const fn of_word(word: u64) -> Self {
        Self { word, kind: PhantomData }
    }

    pub(crate) const fn word(self) -> u64 {
        self.word
    }

    pub(crate) const fn index(self) -> u16 {
        (self.word >> 32) as u16
    }

    pub(crate) const fn generation(self) -> u32 {
        self.word as u32
    }
}

impl<K> Clone for Handle<K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for Handle<K> {}

impl<K> PartialEq for Handle<K> {
    fn eq(&self, other: &Self) -> bool {
        self.word == other.word
    }
}

impl<K> Eq for Handle<K> {}

impl<K> Hash for Handle<K> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.word.hash(state);
    }
}

impl<K> fmt::Debug for Handle<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}.{}", self.index(), self.generation())
    }
}

#[cfg(feature = "defmt")]
impl<K> defmt::Format for Handle<K> {
    fn format(&self, f: defmt::Formatter<'_>) {
        defmt::write!(f, "#{=u16}.{=u32}", self.index(), self.generation());
    }
}

/// Kinds of object that a [`Handle`] can name.
pub mod kind {
    /// Protection domain.
    #[derive(Debug)]
    #[cfg_attr(feature = "defmt", derive(defmt::Format))]
    pub enum Pd {}
    /// Memory region.
    #[derive(Debug)]
    #[cfg_attr(feature = "defmt", derive(defmt::Format))]
    pub enum Mr {}
    /// Memory window.
    #[derive(Debug)]
    #[cfg_attr(feature = "defmt", derive(defmt::Format))]
    pub enum Mw {}
    /// Completion queue.
    #[derive(Debug)]
    #[cfg_attr(feature = "defmt", derive(defmt::Format))]
    pub enum Cq {}
    /// Queue pair.
    #[derive(Debug)]
    #[cfg_attr(feature = "defmt", derive(defmt::Format))]
    pub enum Qp {}
}

/// Names a protection domain.
pub type PdHandle = Handle<kind::Pd>;
/// Names a memory region.
pub type MrHandle = Handle<kind::Mr>;
/// Names a memory window.
pub type MwHandle = Handle<kind::Mw>;
/// Names a completion queue.
pub type CqHandle = Handle<kind::Cq>;
/// Names a queue pair.
pub type QpHandle = Handle<kind::Qp>;

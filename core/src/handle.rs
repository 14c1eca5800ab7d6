//! Handles: an index and a generation, so that a stale handle is an error and never another object.

use core::fmt;
use core::hash::{Hash, Hasher};
use core::marker::PhantomData;

/// Names an object of kind `K` in its table.
///
/// The generation of a slot starts at a number of the device's own, so the handle of another device is stale here too.
pub struct Handle<K> {
    index: u16,
    generation: u32,
    kind: PhantomData<fn() -> K>,
}

impl<K> Handle<K> {
    /// Names nothing: no table has a slot with its index.
    pub const NONE: Self = Self::new(u16::MAX, 0);

    pub(crate) const fn new(index: u16, generation: u32) -> Self {
        Self { index, generation, kind: PhantomData }
    }

    pub(crate) const fn index(self) -> u16 {
        self.index
    }

    pub(crate) const fn generation(self) -> u32 {
        self.generation
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
        self.index == other.index && self.generation == other.generation
    }
}

impl<K> Eq for Handle<K> {}

impl<K> Hash for Handle<K> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.index.hash(state);
        self.generation.hash(state);
    }
}

impl<K> fmt::Debug for Handle<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}.{}", self.index, self.generation)
    }
}

#[cfg(feature = "defmt")]
impl<K> defmt::Format for Handle<K> {
    fn format(&self, f: defmt::Formatter<'_>) {
        defmt::write!(f, "#{=u16}.{=u32}", self.index, self.generation);
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

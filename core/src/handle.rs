//! Handles: an index and a generation, so that a stale handle is an error and never another object.

use core::fmt;
use core::hash::{Hash, Hasher};
use core::marker::PhantomData;

/// Handle of an object of kind `K` in its table.
///
/// The generation of a slot starts at a number of the `Verbs`' own, so a handle of another `Verbs`, also of an earlier one, is stale here.
pub struct Handle<K> {
    /// Generation in the lower half, index in the upper: one word, which a completion copies whole.
    word: u64,
    kind: PhantomData<fn() -> K>,
}

/// The number of the handle with index 0 and generation 0.
const FIRST_RAW: u64 = 1 << 32;

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

    /// Returns the slot of its table, from 0: below the capacity that the [`Storage`](crate::storage::Storage) has for the kind, if it names
    /// anything. A program may have a table of its own beside that one.
    pub const fn index(self) -> u16 {
        (self.word >> 32) as u16
    }

    /// Returns the handle as a number, never 0, for a program that cannot have the type: one in another language, say.
    pub const fn into_raw(self) -> u64 {
        self.word + FIRST_RAW
    }

    /// Returns the handle that [`Self::into_raw`] made a number of. Of any other number it makes one that names nothing, or what a
    /// handle with that number names: each call compares it with its table, as it does any handle.
    ///
    /// ```
    /// # use bareverbs::error::DeallocPdError;
    /// # use bareverbs::PdHandle;
    /// # use bareverbs_testing::{Faults, pair};
    /// # let [mut a, _b] = pair(Faults::none())?;
    /// let number = a.verbs.alloc_pd()?.into_raw();
    /// a.verbs.dealloc_pd(PdHandle::from_raw(number))?;
    /// assert_eq!(a.verbs.dealloc_pd(PdHandle::from_raw(number)), Err(DeallocPdError::Stale));
    /// assert_eq!(PdHandle::from_raw(0), PdHandle::NONE);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const fn from_raw(raw: u64) -> Self {
        match raw.checked_sub(FIRST_RAW) {
            Some(word) if word >> 32 < u16::MAX as u64 => Self::of_word(word),
            _ => Self::NONE,
        }
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
    /// Shared receive queue.
    #[derive(Debug)]
    #[cfg_attr(feature = "defmt", derive(defmt::Format))]
    pub enum Srq {}
}

/// Handle of a protection domain.
pub type PdHandle = Handle<kind::Pd>;
/// Handle of a memory region.
pub type MrHandle = Handle<kind::Mr>;
/// Handle of a memory window.
pub type MwHandle = Handle<kind::Mw>;
/// Handle of a completion queue.
pub type CqHandle = Handle<kind::Cq>;
/// Handle of a queue pair.
pub type QpHandle = Handle<kind::Qp>;
/// Handle of a shared receive queue.
pub type SrqHandle = Handle<kind::Srq>;

#[cfg(test)]
mod tests {
    use super::*;

    /// Each index that a table has: index and generation are read as they were given, and so from a word and a number.
    #[test]
    #[cfg_attr(miri, ignore = "a whole domain of numbers takes minutes")]
    fn every_index_and_generation_comes_back() {
        for index in 0..u16::MAX {
            for generation in [0, 1, 0x7fff_ffff, 0x8000_0000, u32::MAX] {
                let handle = PdHandle::new(index, generation);
                for same in [handle, PdHandle::of_word(handle.word()), PdHandle::from_raw(handle.into_raw())] {
                    assert_eq!((same.index(), same.generation()), (index, generation));
                }
                let number = (u128::from(index) + 1) * (1 << 32) + u128::from(generation);
                assert_eq!(u128::from(handle.into_raw()), number);
            }
        }
        // No table has the last index, and what lies above it is no index.
        for index in [u64::from(u16::MAX), 1 << 16, (1 << 16) + 1, (1 << 32) - 2] {
            for generation in [0, 1, u64::from(u32::MAX)] {
                assert_eq!(PdHandle::from_raw((index + 1) << 32 | generation), PdHandle::NONE, "{index:#x}");
            }
        }
    }

    #[test]
    fn a_number_names_what_its_handle_does_and_no_other_number_does() {
        for index in [0, 1, 255, u16::MAX - 1] {
            for generation in [0, 1, 0x9e37_79b9, u32::MAX] {
                let handle = PdHandle::new(index, generation);
                let raw = handle.into_raw();
                assert_ne!(raw, 0);
                assert_eq!(PdHandle::from_raw(raw), handle);
                // The same index and generation in the lower bits.
                for other in [1 << 49, 1 << 50, 1 << 63] {
                    assert_eq!(PdHandle::from_raw(raw | other), PdHandle::NONE, "{raw:#x} {other:#x}");
                }
            }
        }
        assert_eq!(PdHandle::from_raw(PdHandle::NONE.into_raw()), PdHandle::NONE);
        for raw in [0, 1, FIRST_RAW - 1, u64::MAX, 1 << 48] {
            assert_eq!(PdHandle::from_raw(raw), PdHandle::NONE, "{raw:#x}");
        }
    }
}

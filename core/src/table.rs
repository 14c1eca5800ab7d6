//! Tables of objects: fixed capacity, and a generation in each slot.

use core::marker::PhantomData;

use crate::Handle;

/// A place for one object.
pub(crate) struct Slot<T> {
    generation: u32,
    /// Whether there is an object here or was one before: then the first generation is the last one over again.
    used: bool,
    value: Option<T>,
}

impl<T> Slot<T> {
    pub(crate) const EMPTY: Self = Self { generation: 0, used: false, value: None };

    /// Returns the generation that the next object here gets, if one may be put here; `first` is the one that every slot starts
    /// with.
    fn vacancy(&self, first: u32) -> Option<u32> {
        if self.value.is_some() || self.used && self.generation == first {
            return None;
        }
        Some(if self.used { self.generation } else { first })
    }
}

/// A table of objects of kind `K`, over storage of any capacity.
pub(crate) struct Table<'s, K, T> {
    kind: PhantomData<fn() -> K>,
    slots: &'s mut [Slot<T>],
}

impl<'s, K, T> Table<'s, K, T> {
    pub(crate) const fn new(slots: &'s mut [Slot<T>]) -> Self {
        Self { kind: PhantomData, slots }
    }

    /// Returns how many places it has.
    pub(crate) const fn capacity(&self) -> usize {
        self.slots.len()
    }

    #[cfg_attr(not(feature = "small"), inline)]
    #[cfg_attr(feature = "small", inline(never))]
    pub(crate) fn get(&self, handle: Handle<K>) -> Option<&T> {
        let slot = self.slots.get(usize::from(handle.index()))?;
        if slot.generation == handle.generation() { slot.value.as_ref() } else { None }
    }

    #[cfg_attr(not(feature = "small"), inline)]
    #[cfg_attr(feature = "small", inline(never))]
    pub(crate) fn get_mut(&mut self, handle: Handle<K>) -> Option<&mut T> {
        let slot = self.slots.get_mut(usize::from(handle.index()))?;
        if slot.generation == handle.generation() { slot.value.as_mut() } else { None }
    }

    /// Returns every live object with its handle, by slot.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Handle<K>, &T)> {
        (0..=u16::MAX).zip(&*self.slots).filter_map(|(index, slot)| {
            let value = slot.value.as_ref()?;
            Some((Handle::new(index, slot.generation), value))
        })
    }

    /// Returns the handle that the next object gets, if there is room; `first` is the generation that every slot starts with.
    ///
    /// A slot that has been through all its generations is not used again: its old handles stay stale.
    pub(crate) fn vacancy(&self, first: u32) -> Option<Handle<K>> {
        (0..u16::MAX).zip(&*self.slots).find_map(|(index, slot)| Some(Handle::new(index, slot.vacancy(first)?)))
    }

    /// Returns the handle of the next object at `index`, if that slot is free.
    pub(crate) fn vacancy_at(&self, index: usize, first: u32) -> Option<Handle<K>> {
        Some(Handle::new(u16::try_from(index).ok()?, self.slots.get(index)?.vacancy(first)?))
    }

    /// Drops every object.
    pub(crate) fn clear(&mut self) {
        for slot in &mut *self.slots {
            (slot.used, slot.value) = (false, None);
        }
    }

    /// Puts an object where [`Self::vacancy`] has said; nothing else may have been put since.
    pub(crate) fn occupy(&mut self, handle: Handle<K>, value: T) {
        if let Some(slot) = self.slots.get_mut(usize::from(handle.index())) {
            (slot.generation, slot.used) = (handle.generation(), true);
            slot.value = Some(value);
        }
    }

    /// Takes an object out; its handle is stale from here on. [`Self::occupy`] puts it back under the same one, if nothing else was
    /// put there since.
    pub(crate) fn remove(&mut self, handle: Handle<K>) -> Option<T> {
        let slot = self.slots.get_mut(usize::from(handle.index()))?;
        if slot.generation != handle.generation() {
            return None;
        }
        let value = slot.value.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind;

    #[test]
    fn a_stale_handle_never_names_the_next_object() {
        let mut slots = [Slot::EMPTY];
        let mut table = Table::<kind::Pd, u8>::new(&mut slots);
        let first = table.vacancy(7).unwrap();
        table.occupy(first, 1);
        assert_eq!(table.vacancy(7), None, "full");
        assert_eq!(table.remove(first), Some(1));
        let second = table.vacancy(7).unwrap();
        table.occupy(second, 2);
        assert_ne!(first, second);
        assert_eq!(table.get(first), None);
        assert_eq!(table.remove(first), None);
        assert_eq!(table.get(second), Some(&2));
    }

    #[test]
    fn a_slot_out_of_generations_is_retired() {
        let mut slots = [Slot::EMPTY];
        let mut table = Table::<kind::Pd, u8>::new(&mut slots);
        let last = Handle::new(0, 6);
        table.occupy(last, 1);
        table.remove(last);
        assert_eq!(table.vacancy(7), None);
    }
}

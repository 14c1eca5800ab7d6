//! Tables of objects: fixed capacity, and a generation in each slot.

use core::marker::PhantomData;

use heapless::{Vec, VecView};

use crate::Handle;

/// A place for one object.
pub(crate) struct Slot<T> {
    generation: u32,
    /// Whether there was an object here before: then the first generation is the last one over again.
    used: bool,
    value: Option<T>,
}

impl<T> Slot<T> {
    fn is_reusable(&self, first: u32) -> bool {
        self.value.is_none() && !(self.used && self.generation == first)
    }
}

/// A table of objects of kind `K`. `V` is the storage: of a capacity known to the type, or a view of any.
pub(crate) struct Table<K, V: ?Sized> {
    kind: PhantomData<fn() -> K>,
    slots: V,
}

/// A table with room for `N` objects.
pub(crate) type TableOf<K, T, const N: usize> = Table<K, Vec<Slot<T>, N>>;
/// A table of any capacity: what the control logic is written for.
pub(crate) type TableView<K, T> = Table<K, VecView<Slot<T>>>;

impl<K, T, const N: usize> TableOf<K, T, N> {
    pub(crate) const fn new() -> Self {
        Self { kind: PhantomData, slots: Vec::new() }
    }
}

impl<K, T> TableView<K, T> {
    #[inline]
    pub(crate) fn get(&self, handle: Handle<K>) -> Option<&T> {
        let slot = self.slots.as_slice().get(usize::from(handle.index()))?;
        if slot.generation == handle.generation() { slot.value.as_ref() } else { None }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, handle: Handle<K>) -> Option<&mut T> {
        let slot = self.slots.as_mut_slice().get_mut(usize::from(handle.index()))?;
        if slot.generation == handle.generation() { slot.value.as_mut() } else { None }
    }

    /// Every live object with its handle, by slot.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Handle<K>, &T)> {
        (0..=u16::MAX).zip(self.slots.as_slice()).filter_map(|(index, slot)| {
            let value = slot.value.as_ref()?;
            Some((Handle::new(index, slot.generation), value))
        })
    }

    /// The handle that the next object gets, if there is room; `first` is the generation that every slot starts with.
    ///
    /// A slot that has been through all its generations is not used again: its old handles stay stale.
    pub(crate) fn vacancy(&mut self, first: u32) -> Option<Handle<K>> {
        let slots = self.slots.as_slice();
        let fresh = u16::try_from(slots.len()).ok()?;
        if let Some((index, slot)) = (0..fresh).zip(slots).find(|(_, slot)| slot.is_reusable(first)) {
            return Some(Handle::new(index, slot.generation));
        }
        if slots.len() < self.slots.capacity() { Some(Handle::new(fresh, first)) } else { None }
    }

    /// The handle of the next object at `index`, if that slot is free.
    pub(crate) fn vacancy_at(&mut self, index: usize, first: u32) -> Option<Handle<K>> {
        while self.slots.len() <= index {
            self.slots.push(Slot { generation: first, used: false, value: None }).ok()?;
        }
        let slot = self.slots.as_slice().get(index)?;
        if slot.is_reusable(first) { Some(Handle::new(u16::try_from(index).ok()?, slot.generation)) } else { None }
    }

    /// Drops every object.
    pub(crate) fn clear(&mut self) {
        self.slots.clear();
    }

    /// Puts an object where [`Self::vacancy`] has said; nothing else may have been put since.
    pub(crate) fn occupy(&mut self, handle: Handle<K>, value: T) {
        let slot = Slot { generation: handle.generation(), used: true, value: Some(value) };
        match self.slots.as_mut_slice().get_mut(usize::from(handle.index())) {
            Some(place) => *place = slot,
            // A vacancy past the end is only given while there is room for one more.
            None => drop(self.slots.push(slot)),
        }
    }

    /// Takes an object out; its handle is stale from here on.
    pub(crate) fn remove(&mut self, handle: Handle<K>) -> Option<T> {
        let slot = self.slots.as_mut_slice().get_mut(usize::from(handle.index()))?;
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
        let mut table = TableOf::<kind::Pd, u8, 1>::new();
        let table: &mut TableView<kind::Pd, u8> = &mut table;
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
        let mut table = TableOf::<kind::Pd, u8, 1>::new();
        let table: &mut TableView<kind::Pd, u8> = &mut table;
        let last = Handle::new(0, 6);
        table.occupy(last, 1);
        table.remove(last);
        assert_eq!(table.vacancy(7), None);
    }
}

//! Objects by number that the verbs give as values without one: XRC domains, and address handles.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::argument::Argument;

/// Tables that were made: each begins at a number of its own, so that a number of another device names nothing.
static TABLES: AtomicU32 = AtomicU32::new(0);

/// Writes `None` to each place of an array, so that neither the stack nor a constant ever has all of it.
///
/// # Safety
/// The array may be written.
pub(crate) unsafe fn empty<T, const N: usize>(array: *mut [Option<T>; N]) {
    for index in 0..N {
        // SAFETY: one of the array's places (promised).
        unsafe { array.cast::<Option<T>>().add(index).write(None) };
    }
}

/// Up to `N` objects of type `T`.
#[derive(Debug)]
pub(crate) struct Numbered<T, const N: usize> {
    /// What an object is called in a text.
    name: &'static str,
    /// Each with the count that its number has.
    places: [Option<(u64, T)>; N],
    /// Counts the objects that were made, so that no number comes twice.
    made: u64,
}

/// Bits of a number that are the place, counted from 1. The others are the count.
const PLACE_BITS: u32 = 8;

impl<T, const N: usize> Numbered<T, N> {
    /// Writes that there are none, of objects with this name.
    ///
    /// # Safety
    /// `this` may be written.
    pub(crate) unsafe fn init(this: *mut Self, name: &'static str) {
        const { assert!(N < 1 << PLACE_BITS, "a number has room for no more places") };
        // SAFETY: fields of what may be written.
        unsafe {
            (&raw mut (*this).name).write(name);
            empty(&raw mut (*this).places);
            // No read-modify-write: some processors lack it. A device is made by one caller at a time.
            let tables = TABLES.load(Ordering::Relaxed);
            TABLES.store(tables.wrapping_add(1), Ordering::Relaxed);
            (&raw mut (*this).made).write(u64::from(tables & 0xff_ffff) << 32);
        }
    }

    /// Forgets all of them.
    pub(crate) fn clear(&mut self) {
        self.places.fill_with(|| None);
    }

    /// Returns whether there is room for one more.
    pub(crate) fn has_room(&self) -> bool {
        self.places.iter().any(Option::is_none)
    }

    /// Keeps an object and returns its number; 0 if there was no room.
    pub(crate) fn insert(&mut self, object: T) -> u64 {
        let mut vacant = (1_u64..).zip(&mut self.places).filter(|(_, place)| place.is_none());
        let Some((index, place)) = vacant.next() else { return 0 };
        *place = Some((self.made, object));
        let number = self.made << PLACE_BITS | index;
        self.made = self.made.wrapping_add(1);
        number
    }

    /// Returns the place of an object, which is not empty.
    fn place(&mut self, number: u64) -> Result<&mut Option<(u64, T)>, Argument> {
        let index = (number & ((1 << PLACE_BITS) - 1)).checked_sub(1);
        let place = index.and_then(|index| self.places.get_mut(index as usize));
        let is_it = |kept: &(u64, T)| kept.0 == number >> PLACE_BITS;
        place.filter(|place| place.as_ref().is_some_and(is_it)).ok_or(Argument::Stale(self.name))
    }

    /// Returns an object.
    pub(crate) fn get(&mut self, number: u64) -> Result<&T, Argument> {
        let name = self.name;
        self.place(number)?.as_ref().map(|(_, object)| object).ok_or(Argument::Stale(name))
    }

    /// Takes an object out.
    pub(crate) fn take(&mut self, number: u64) -> Result<(u64, T), Argument> {
        let name = self.name;
        self.place(number)?.take().ok_or(Argument::Stale(name))
    }

    /// Puts an object back under the number that it had.
    pub(crate) fn put_back(&mut self, number: u64, kept: (u64, T)) {
        let index = (number & ((1 << PLACE_BITS) - 1)).wrapping_sub(1);
        if let Some(place) = self.places.get_mut(index as usize) {
            *place = Some(kept);
        }
    }
}

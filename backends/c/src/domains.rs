//! XRC domains by number.

use crate::argument::Argument;
use crate::{BV_MAX_XRCD, bv_xrcd};

/// The domains of a device, of type `D`. The verbs give them as values without a number.
#[derive(Debug)]
pub(crate) struct Domains<D> {
    /// Each with how many domains were made before it.
    places: [Option<(u32, D)>; BV_MAX_XRCD],
    /// Domains that were made, so that no number comes twice.
    made: u32,
}

/// Bits of a number that are the place, counted from 1. The others are how many domains were made before.
const PLACE_BITS: u32 = 8;

impl<D> Domains<D> {
    /// None.
    pub(crate) const NONE: Self = Self { places: [const { None }; BV_MAX_XRCD], made: 0 };

    /// Forgets all of them.
    pub(crate) fn clear(&mut self) {
        self.places.fill_with(|| None);
    }

    /// Returns whether there is room for one more.
    pub(crate) fn has_room(&self) -> bool {
        self.places.iter().any(Option::is_none)
    }

    /// Keeps a domain and returns its number; 0 if there was no room.
    pub(crate) fn insert(&mut self, domain: D) -> bv_xrcd {
        let mut vacant = (1_u64..).zip(&mut self.places).filter(|(_, place)| place.is_none());
        let Some((index, place)) = vacant.next() else { return bv_xrcd { number: 0 } };
        *place = Some((self.made, domain));
        let number = u64::from(self.made) << PLACE_BITS | index;
        self.made = self.made.wrapping_add(1);
        bv_xrcd { number }
    }

    /// Returns the place of a domain, which is not empty.
    fn place(&mut self, xrcd: bv_xrcd) -> Result<&mut Option<(u32, D)>, Argument> {
        let index = (xrcd.number & ((1 << PLACE_BITS) - 1)).checked_sub(1);
        let place = index.and_then(|index| self.places.get_mut(index as usize));
        let is_it = |kept: &(u32, D)| u64::from(kept.0) == xrcd.number >> PLACE_BITS;
        place.filter(|place| place.as_ref().is_some_and(is_it)).ok_or(Argument::Stale("XRC domain"))
    }

    /// Returns a domain.
    pub(crate) fn get(&mut self, xrcd: bv_xrcd) -> Result<&D, Argument> {
        self.place(xrcd)?.as_ref().map(|(_, domain)| domain).ok_or(Argument::Stale("XRC domain"))
    }

    /// Takes a domain out.
    pub(crate) fn take(&mut self, xrcd: bv_xrcd) -> Result<(u32, D), Argument> {
        self.place(xrcd)?.take().ok_or(Argument::Stale("XRC domain"))
    }

    /// Puts a domain back under the number that it had.
    pub(crate) fn put_back(&mut self, xrcd: bv_xrcd, kept: (u32, D)) {
        let index = (xrcd.number & ((1 << PLACE_BITS) - 1)).wrapping_sub(1);
        if let Some(place) = self.places.get_mut(index as usize) {
            *place = Some(kept);
        }
    }
}

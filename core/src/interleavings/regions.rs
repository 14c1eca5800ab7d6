//! Slots of regions: who posts reads them while the control path writes.

use loom::sync::Arc;
use loom::thread;

use super::Between;
use crate::shared::{RegionFacts, RegionSlot, Regions, domain_word};
use crate::sync::modelled::check;
use crate::{Access, Lkey};

/// Returns a region, every fact of which names `n`.
fn region(key: u32, n: u32) -> RegionFacts {
    let all = u64::from(n) << 32 | u64::from(n);
    let access = Access::from_bits_retain(n);
    RegionFacts { lkey: Lkey::new(key), generation: n, pd: n as u16, access, base: all, length: all, max_message: u32::MAX }
}

/// A region follows another with the same key in its slot. A search finds the one, the other, or none.
fn one_or_the_other<T: PartialEq + core::fmt::Debug + 'static>(
    find: impl Fn(&RegionSlot) -> Option<T> + Copy + Send + Sync + 'static,
) {
    check(move || {
        let expected = [1, 2].map(|n| {
            let slot = RegionSlot::new();
            slot.set(Some(&region(7, n)));
            find(&slot)
        });
        let slot = Arc::new(RegionSlot::new());
        slot.set(Some(&region(7, 1)));
        let between = Arc::new(Between::default());
        let writer = {
            let (slot, between) = (Arc::clone(&slot), Arc::clone(&between));
            thread::spawn(move || {
                between.others_run();
                slot.set(Some(&region(7, 2)));
            })
        };
        between.others_run();
        let found = find(&slot);
        assert!(found.is_none() || expected.contains(&found), "{found:?}");
        writer.join().unwrap();
        assert_eq!(find(&slot), expected[1]);
    });
}

#[test]
fn facts_are_of_one_region() {
    one_or_the_other(RegionSlot::facts);
}

#[test]
fn facts_found_by_key_are_of_one_region() {
    one_or_the_other(|slot| Regions::new(core::slice::from_ref(slot)).find(Lkey::new(7)));
}

#[test]
fn facts_for_posting_are_of_one_region() {
    one_or_the_other(|slot| {
        let regions = Regions::new(core::slice::from_ref(slot));
        let of = |n| Some((n, regions.find_usable(Lkey::new(7), domain_word(n), 1)?));
        let (pd, found) = of(1).or_else(|| of(2))?;
        let contains = |n: u64| found.contains(n << 32 | n, 1) && !found.contains((n << 32 | n) - 1, 1);
        Some((pd, found.access.bits(), contains(1), contains(2)))
    });
}

//! How many pages the firmware has, and for which functions.

use heapless::Vec;

/// Maximum number of functions for which the firmware may request pages.
pub(super) const FUNCTIONS: usize = 8;

/// Pages that the firmware has for one function of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FunctionPages {
    /// As the firmware numbers functions.
    pub(super) function: u16,
    pub(super) pages: u32,
}

/// The counts of the pages that the firmware has. The machine's [`PageSource`](bareverbs::PageSource) knows which they are.
#[derive(Debug)]
pub(crate) struct HeldPages {
    limit: u32,
    total: u32,
    functions: Vec<FunctionPages, FUNCTIONS>,
}

impl HeldPages {
    /// Returns the counts of firmware that has no page, and may have `limit`.
    pub(super) const fn new(limit: u32) -> Self {
        Self { limit, total: 0, functions: Vec::new() }
    }

    pub(crate) const fn total(&self) -> u32 {
        self.total
    }

    pub(super) const fn room(&self) -> u32 {
        self.limit.saturating_sub(self.total)
    }

    /// Returns the `index`-th function that has, or had, pages.
    pub(super) fn function(&self, index: usize) -> Option<FunctionPages> {
        self.functions.get(index).copied()
    }

    /// Counts more pages of a function. Returns `false` if there are pages of too many other functions.
    pub(super) fn add(&mut self, function: u16, count: u32) -> bool {
        if !self.functions.iter().any(|of| of.function == function) {
            self.functions.retain(|of| of.pages != 0);
            if self.functions.push(FunctionPages { function, pages: 0 }).is_err() {
                return false;
            }
        }
        self.total = self.total.saturating_add(count);
        for of in self.functions.iter_mut().filter(|of| of.function == function) {
            of.pages = of.pages.saturating_add(count);
        }
        true
    }

    pub(super) fn remove(&mut self, function: u16, count: u32) {
        self.total = self.total.saturating_sub(count);
        for of in self.functions.iter_mut().filter(|of| of.function == function) {
            of.pages = of.pages.saturating_sub(count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_counted_for_each_function_and_in_all() {
        let mut held = HeldPages::new(1000);
        for function in 0..FUNCTIONS as u16 {
            assert!(held.add(function, 10 + u32::from(function)));
        }
        assert!(held.add(3, 5));
        assert!(!held.add(8, 1), "there is no ninth");
        assert_eq!((held.total(), held.room()), (113, 887));
        assert_eq!(held.function(3), Some(FunctionPages { function: 3, pages: 18 }));
        held.remove(3, 18);
        assert!(held.add(8, 1), "once another has none");
        assert_eq!((0..=8).filter_map(|index| held.function(index)).map(|of| of.pages).sum::<u32>(), held.total());
        held.remove(77, 1000);
        assert_eq!((held.total(), held.room()), (0, 1000));
    }
}

//! Numbers of objects of one kind.

use std::collections::BTreeMap;

/// Numbers that are handed out. What a call costs grows with the logarithm of the gaps between numbers in use.
#[derive(Clone, Debug)]
pub(crate) struct IdAllocator {
    /// Runs of free numbers: the first of each, and the one after its last. No two touch.
    free: BTreeMap<u32, u32>,
    first: u32,
    end: u32,
    used: u32,
    next: u32,
}

impl IdAllocator {
    /// `most` numbers from `first` on.
    pub(crate) fn new(first: u32, most: u32) -> Self {
        let end = first.saturating_add(most);
        let free = if first < end { BTreeMap::from([(first, end)]) } else { BTreeMap::new() };
        Self { free, first, end, used: 0, next: first }
    }

    /// Returns the numbers in use.
    pub(crate) fn len(&self) -> usize {
        self.used as usize
    }

    /// Returns the run of free numbers that has `number` or begins after it.
    fn run_from(&self, number: u32) -> Option<(u32, u32)> {
        let at_or_before = self.free.range(..=number).next_back().filter(|&(_, &end)| end > number);
        at_or_before.or_else(|| self.free.range(number..).next()).map(|(&start, &end)| (start, end))
    }

    /// Lets the numbers that are given next begin at `number`, or at the first free one behind it.
    pub(crate) fn start_at(&mut self, number: u32) {
        self.next = number.clamp(self.first, self.end.max(self.first));
    }

    /// Returns a free number. A number that was just freed is not the next one, so that a stale one is detected.
    pub(crate) fn allocate(&mut self) -> Option<u32> {
        let (start, end, number) = match self.run_from(self.next) {
            Some((start, end)) => (start, end, start.max(self.next)),
            None => self.run_from(self.first).map(|(start, end)| (start, end, start))?,
        };
        self.free.remove(&start);
        if start < number {
            self.free.insert(start, number);
        }
        if number + 1 < end {
            self.free.insert(number + 1, end);
        }
        self.used += 1;
        self.next = if number + 1 < self.end { number + 1 } else { self.first };
        Some(number)
    }

    /// Takes back a number that is in use.
    pub(crate) fn free(&mut self, number: u32) {
        let before = self.free.range(..=number).next_back().map(|(&start, &end)| (start, end));
        let is_free = before.is_some_and(|(_, end)| end > number);
        if is_free || !(self.first..self.end).contains(&number) {
            return;
        }
        let start = before.filter(|&(_, end)| end == number).map_or(number, |(start, _)| start);
        let end = self.free.remove(&(number + 1)).unwrap_or(number + 1);
        self.free.insert(start, end);
        self.used = self.used.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn numbers_go_round_and_come_back_in_any_order() {
        let mut numbers = IdAllocator::new(2, 5);
        let all: Vec<u32> = std::iter::from_fn(|| numbers.allocate()).collect();
        assert_eq!((all, numbers.len()), (vec![2, 3, 4, 5, 6], 5));
        for number in [3, 5, 4, 4, 7, 1] {
            numbers.free(number);
        }
        assert_eq!(numbers.len(), 2, "what is free or was never there is not given back");
        assert_eq!(numbers.allocate(), Some(3));
        // The one just given back comes last.
        numbers.free(3);
        assert_eq!([(); 4].map(|()| numbers.allocate()), [Some(4), Some(5), Some(3), None]);
        assert_eq!(IdAllocator::new(1, 0).allocate(), None);
    }

    #[test]
    fn as_a_set_of_numbers_would() {
        let mut random = crate::wire::Random::new(3);
        let mut numbers = IdAllocator::new(10, 100);
        let mut used = BTreeSet::new();
        for _ in 0..20_000 {
            if random.chance(500) {
                match numbers.allocate() {
                    Some(number) => assert!((10..110).contains(&number) && used.insert(number)),
                    None => assert_eq!(used.len(), 100),
                }
            } else {
                let number = random.below(120) as u32;
                used.remove(&number);
                numbers.free(number);
            }
            assert_eq!(numbers.len(), used.len());
        }
    }

    #[test]
    fn a_number_costs_the_same_however_many_are_used() {
        // With a search from the last number on this would be 2^40 steps.
        let mut numbers = IdAllocator::new(0, 1 << 20);
        while numbers.allocate().is_some() {}
        for number in 0..1 << 20 {
            numbers.free(number);
            assert_eq!(numbers.allocate(), Some(number));
        }
    }
}

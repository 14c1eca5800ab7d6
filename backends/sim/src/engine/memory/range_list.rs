//! Ranges of bytes one after another, of which single ones change while bytes are looked up by their place in the whole.

use super::key_range::KeyRange;

/// Ranges with a tree of sums over their lengths (a Fenwick tree): a look-up and a change cost the logarithm of their number.
#[derive(Clone, Debug, Default)]
pub(super) struct RangeList {
    ranges: Vec<KeyRange>,
    /// Entry `i` (counted from 1) has the bytes of the ranges from `i` without its lowest bit on, up to `i`.
    sums: Vec<u64>,
}

/// Returns the lowest bit that is set.
const fn lowest_bit(i: usize) -> usize {
    i & i.wrapping_neg()
}

impl RangeList {
    /// Returns the ranges there are.
    pub(super) fn count(&self) -> usize {
        self.ranges.len()
    }

    /// All of them.
    pub(super) fn all(&self) -> &[KeyRange] {
        &self.ranges
    }

    /// Returns the bytes of the first `count` ranges.
    fn bytes_before(&self, count: usize) -> u64 {
        let (mut i, mut sum) = (count, 0u64);
        while i > 0 {
            sum += self.sums.get(i - 1).copied().unwrap_or(0);
            i -= lowest_bit(i);
        }
        sum
    }

    /// Returns the byte of all at which the range at `index` begins.
    pub(super) fn start_of(&self, index: usize) -> u64 {
        self.bytes_before(index.min(self.ranges.len()))
    }

    /// Returns the bytes of all ranges.
    pub(super) fn len(&self) -> u64 {
        self.bytes_before(self.ranges.len())
    }

    /// Adds a range at the end.
    pub(super) fn push(&mut self, range: KeyRange) {
        let i = self.ranges.len() + 1;
        let sum = self.bytes_before(i - 1) - self.bytes_before(i - lowest_bit(i)) + range.len;
        self.ranges.push(range);
        self.sums.push(sum);
    }

    /// Changes the range at `index`; those that are missing before it have no bytes.
    pub(super) fn set(&mut self, index: usize, range: KeyRange) {
        while self.ranges.len() < index {
            self.push(KeyRange { len: 0, key: 0, addr: 0 });
        }
        let Some(old) = self.ranges.get_mut(index) else { return self.push(range) };
        let before = std::mem::replace(old, range).len;
        let mut i = index + 1;
        while let Some(sum) = self.sums.get_mut(i - 1) {
            *sum = *sum - before + range.len;
            i += lowest_bit(i);
        }
    }

    /// Returns the range with byte `at` of all, and the place of that byte in it.
    pub(super) fn find(&self, at: u64) -> Option<(usize, u64)> {
        let mut step = self.ranges.len().checked_add(1)?.next_power_of_two();
        let (mut i, mut rest) = (0, at);
        while step > 0 {
            if let Some(&sum) = self.sums.get(i + step - 1)
                && sum <= rest
            {
                i += step;
                rest -= sum;
            }
            step /= 2;
        }
        (i < self.ranges.len()).then_some((i, rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(len: u64) -> KeyRange {
        KeyRange { len, key: len as u32, addr: 0 }
    }

    #[test]
    fn as_a_search_from_the_start_would() {
        let mut random = crate::wire::Random::new(11);
        let (mut list, mut plain) = (RangeList::default(), Vec::new());
        for _ in 0..2000 {
            let (index, len) = (random.below(300) as usize, random.below(20));
            list.set(index, range(len));
            if plain.len() <= index {
                plain.resize(index + 1, 0);
            }
            plain[index] = len;
            let whole: u64 = plain.iter().sum();
            assert_eq!((list.count(), list.len()), (plain.len(), whole));
            let at = random.below(whole + 3);
            let (mut rest, mut expected) = (at, None);
            for (index, &len) in plain.iter().enumerate() {
                if rest < len {
                    expected = Some((index, rest));
                    break;
                }
                rest -= len;
            }
            assert_eq!(list.find(at), expected, "{at} of {plain:?}");
        }
    }
}

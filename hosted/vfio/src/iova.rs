//! Which I/O virtual addresses are free.

use std::collections::BTreeMap;
use std::ops::Range;

/// What every address is a multiple of, relative to the memory that it stands for: pages of 4096 bytes.
const PAGE: u64 = 4096;

/// Addresses that are given out: above 4 GiB, where platforms keep their reserved regions. The first range is tried first: every
/// IOMMU translates 36 bits. Those of Intel and AMD have 39 at least, RISC-V's smallest mode 38 for the lower half.
const RANGES: [Range<u64>; 2] = [1 << 32..1 << 36, 1 << 36..1 << 38];

/// The free I/O virtual addresses of this process.
///
/// They are given out once for all address spaces, so that what is mapped for one card has no address in the address space of
/// another. One that was given back is not given out again before all after it were: what still names it by mistake meets nothing.
#[derive(Debug)]
pub(crate) struct Iovas {
    /// Taken ranges, by start. They do not overlap.
    taken: BTreeMap<u64, u64>,
    /// Where the search of each range goes on.
    cursors: [u64; RANGES.len()],
}

impl Iovas {
    /// All free.
    pub(crate) const fn new() -> Self {
        let [first, second] = &RANGES;
        Self { taken: BTreeMap::new(), cursors: [first.start, second.start] }
    }

    /// Takes `len` bytes whose address is congruent to `like` modulo `align`, a power of two, and which touch none of the
    /// `reserved` ranges (first and last address); `None` if there are none.
    pub(crate) fn take(&mut self, len: u64, align: u64, like: u64, reserved: &[(u64, u64)]) -> Option<u64> {
        let len = len.checked_next_multiple_of(PAGE).filter(|len| *len != 0)?;
        let align = align.max(PAGE);
        for (range, cursor) in RANGES.iter().zip(self.cursors) {
            let found = self.search(cursor..range.end, len, align, like, reserved);
            if let Some(at) = found.or_else(|| self.search(range.clone(), len, align, like, reserved)) {
                self.taken.insert(at, at + len);
                if let Some((_, cursor)) = RANGES.iter().zip(&mut self.cursors).find(|(each, _)| each.contains(&at)) {
                    *cursor = at + len;
                }
                return Some(at);
            }
        }
        None
    }

    /// The lowest such address within a range.
    fn search(&self, range: Range<u64>, len: u64, align: u64, like: u64, reserved: &[(u64, u64)]) -> Option<u64> {
        let mut from = range.start;
        loop {
            let at = from.checked_add(like.wrapping_sub(from) & (align - 1))?;
            let end = at.checked_add(len).filter(|end| *end <= range.end)?;
            let taken =
                self.taken.range(..end).next_back().map(|(_, taken_end)| *taken_end).filter(|taken_end| *taken_end > at);
            let kept =
                reserved.iter().filter(|(first, last)| *first < end && *last >= at).map(|(_, last)| last.saturating_add(1));
            match taken.into_iter().chain(kept).max() {
                Some(next) => from = next,
                None => return Some(at),
            }
        }
    }

    /// Gives back what [`Iovas::take`] gave.
    pub(crate) fn give_back(&mut self, at: u64) {
        self.taken.remove(&at);
    }
}

/// The ranges of a group's file `reserved_regions` (Documentation/ABI/testing/sysfs-kernel-iommu_groups): a line
/// `0xfirst 0xlast type` each. Direct mappings that the IOMMU lets a user map over (`direct-relaxable`) count too.
pub(crate) fn parse_reserved(text: &str) -> Vec<(u64, u64)> {
    let number = |word: Option<&str>| u64::from_str_radix(word?.strip_prefix("0x")?, 16).ok();
    text.lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            Some((number(words.next())?, number(words.next())?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_congruent_and_apart() {
        let mut iovas = Iovas::new();
        let a = iovas.take(5000, 4096, 0x7f00_0000_1000, &[]).unwrap();
        let b = iovas.take(4 << 20, 2 << 20, 0x7f00_0012_3000, &[]).unwrap();
        let c = iovas.take(4096, 4096, 0, &[]).unwrap();
        assert_eq!((a, b % (2 << 20)), (1 << 32, 0x12_3000));
        assert!(b >= a + 8192 && c >= b + (4 << 20));
        assert_eq!(iovas.take(0, 4096, 0, &[]), None);
    }

    #[test]
    fn an_address_comes_again_after_all_others() {
        let mut iovas = Iovas::new();
        let gib = 1 << 30;
        let first = iovas.take(gib, 4096, 0, &[]).unwrap();
        iovas.give_back(first);
        let mut others = 0;
        loop {
            let next = iovas.take(gib, 4096, 0, &[]).unwrap();
            if next == first {
                break;
            }
            others += 1;
            iovas.give_back(next);
        }
        assert_eq!(others, 59, "60 GiB of the first range");
    }

    #[test]
    fn reserved_ranges_are_never_given_out() {
        let reserved = parse_reserved(
            "0x00000000fee00000 0x00000000feefffff msi\n0x0000000100000000 0x00000001ffffffff direct\n\
             0x0000000180000000 0x000000027fffffff reserved\n0x0000003d00000000 0x000000ffffffffff reserved\nnonsense\n",
        );
        assert_eq!(reserved.len(), 4);
        let mut iovas = Iovas::new();
        assert_eq!(iovas.take(4096, 4096, 0, &reserved), Some(0x2_8000_0000));
        let mut given = 0;
        while let Some(at) = iovas.take(1 << 30, 1 << 30, 0, &reserved) {
            assert!(at >= 0x2_c000_0000 && at + (1 << 30) <= 0x3d_0000_0000, "{at:#x}");
            given += 1;
        }
        assert_eq!(given, 53 + 180, "whole aligned GiB between the reserved ranges");
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let mut iovas = Iovas::new();
        assert_eq!(iovas.take(1 << 38, 4096, 0, &[]), None);
        assert_eq!(iovas.take(u64::MAX, 4096, 0, &[]), None);
        assert_eq!(iovas.take(3 << 36, 4096, 0, &[]), Some(1 << 36));
        assert_eq!(iovas.take(60 << 30, 4096, 0, &[]), Some(1 << 32));
        assert_eq!(iovas.take(1, 4096, 0, &[]), None);
    }
}

//! Which I/O virtual addresses are free.

use std::collections::BTreeMap;
use std::ops::Range;

/// What every address is a multiple of, relative to the memory that it stands for: pages of 4096 bytes.
const PAGE: u64 = 4096;

/// Addresses that are given out: above 4 GiB, where platforms keep their reserved regions, and below 2^39, which every
/// IOMMU translates (Intel VT-d has 39, 48 or 57 bits, AMD-Vi and SMMUv3 48).
pub(crate) const APERTURE: Range<u64> = 1 << 32..1 << 39;

/// Free addresses of one I/O address space.
#[derive(Debug)]
pub(crate) struct Iovas {
    /// Taken ranges, by start: what is mapped, and what the platform reserves. They do not overlap.
    taken: BTreeMap<u64, u64>,
}

impl Iovas {
    /// An address space in which the `reserved` ranges (first and last address) cannot be used.
    pub(crate) fn new(reserved: &[(u64, u64)]) -> Self {
        let mut sorted = reserved.to_vec();
        sorted.sort_unstable();
        let mut taken = BTreeMap::new();
        let mut end = APERTURE.start;
        for (first, last) in sorted {
            let (from, to) = (first.max(end), last.saturating_add(1).min(APERTURE.end));
            if from < to {
                taken.insert(from, to);
                end = to;
            }
        }
        Self { taken }
    }

    /// Takes the lowest `len` bytes whose address is congruent to `like` modulo `align`, a power of two; `None` if there
    /// are none.
    pub(crate) fn take(&mut self, len: u64, align: u64, like: u64) -> Option<u64> {
        let (align, len) = (align.max(PAGE), len.checked_next_multiple_of(PAGE)?);
        let fit = |from: u64| {
            let offset = like.wrapping_sub(from) & (align - 1);
            from.checked_add(offset)
        };
        let mut at = fit(APERTURE.start)?;
        for (&from, &to) in &self.taken {
            if at.checked_add(len)? <= from {
                break;
            }
            if to > at {
                at = fit(to)?;
            }
        }
        let end = at.checked_add(len)?;
        if len == 0 || end > APERTURE.end {
            return None;
        }
        self.taken.insert(at, end);
        Some(at)
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
        let mut iovas = Iovas::new(&[]);
        let a = iovas.take(5000, 4096, 0x7f00_0000_1000).unwrap();
        let b = iovas.take(4 << 20, 2 << 20, 0x7f00_0012_3000).unwrap();
        let c = iovas.take(4096, 4096, 0).unwrap();
        assert_eq!(a, APERTURE.start);
        assert_eq!(b % (2 << 20), 0x12_3000);
        assert_eq!(c, a + 8192, "the hole before the aligned range is used");
        iovas.give_back(a);
        assert_eq!(iovas.take(8192, 4096, 0), Some(a));
        assert_eq!(iovas.take(0, 4096, 0), None);
    }

    #[test]
    fn reserved_ranges_are_never_given_out() {
        let reserved = parse_reserved(
            "0x00000000fee00000 0x00000000feefffff msi\n0x0000000100000000 0x00000001ffffffff direct\n\
             0x0000000180000000 0x000000027fffffff reserved\n0x0000007d00000000 0x000000ffffffffff reserved\nnonsense\n",
        );
        assert_eq!(reserved.len(), 4);
        let mut iovas = Iovas::new(&reserved);
        assert_eq!(iovas.take(4096, 4096, 0), Some(0x2_8000_0000));
        let mut last = 0;
        while let Some(at) = iovas.take(1 << 30, 4096, 0) {
            last = at;
        }
        assert!((0x7c_8000_0000..=0x7c_c000_0000).contains(&last), "{last:#x}");
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let mut iovas = Iovas::new(&[]);
        assert_eq!(iovas.take(APERTURE.end, 4096, 0), None);
        assert_eq!(iovas.take(u64::MAX, 4096, 0), None);
        assert!(iovas.take(APERTURE.end - APERTURE.start, 4096, 0).is_some());
        assert_eq!(iovas.take(1, 4096, 0), None);
    }
}

//! Allocates I/O virtual addresses.

use std::collections::BTreeMap;
use std::ops::Range;

/// Granularity of the addresses: pages of 4096 bytes.
const PAGE: u64 = 4096;

/// Ranges that addresses are allocated from, in order. The first ones are above 4 GiB, since the reserved regions of platforms and
/// the registers of most devices are below. The last one is for an IOMMU that translates 32 bits, without the lowest MiB.
const RANGES: [Range<u64>; 4] = [1 << 32..1 << 36, 1 << 36..1 << 38, 1 << 38..1 << 47, 1 << 20..1 << 32];

/// Allocator of the I/O virtual addresses of this process.
///
/// It serves all address spaces, so that an address of one card is not valid in the address space of another. A freed address is
/// allocated again only after all addresses behind it, so that a stale address does not name other memory soon.
#[derive(Debug)]
pub(crate) struct Iovas {
    /// Allocated ranges: end by start. They do not overlap.
    allocated: BTreeMap<u64, u64>,
    /// Start of the next search in each range.
    cursors: [u64; RANGES.len()],
}

impl Iovas {
    /// Creates an allocator with all addresses free.
    pub(crate) const fn new() -> Self {
        let [first, second, third, last] = &RANGES;
        Self { allocated: BTreeMap::new(), cursors: [first.start, second.start, third.start, last.start] }
    }

    /// Allocates `len` bytes and returns their address; `None` if there is no free range.
    ///
    /// The address is congruent to `like` modulo `align`, a power of two, and the range overlaps none of `reserved` (first and last
    /// addresses): neither what the IOMMU does not translate nor what the platform reserves.
    pub(crate) fn allocate(&mut self, len: u64, align: u64, like: u64, reserved: &[(u64, u64)]) -> Option<u64> {
        let len = len.checked_next_multiple_of(PAGE).filter(|len| *len != 0)?;
        let align = align.max(PAGE);
        for (range, cursor) in RANGES.iter().zip(self.cursors) {
            let found = self.search(cursor..range.end, len, align, like, reserved);
            if let Some(at) = found.or_else(|| self.search(range.clone(), len, align, like, reserved)) {
                self.allocated.insert(at, at + len);
                if let Some((_, cursor)) = RANGES.iter().zip(&mut self.cursors).find(|(each, _)| each.contains(&at)) {
                    *cursor = at + len;
                }
                return Some(at);
            }
        }
        None
    }

    /// Returns the lowest suitable address within `range`.
    fn search(&self, range: Range<u64>, len: u64, align: u64, like: u64, reserved: &[(u64, u64)]) -> Option<u64> {
        let mut from = range.start;
        loop {
            let at = from.checked_add(like.wrapping_sub(from) & (align - 1))?;
            let end = at.checked_add(len).filter(|end| *end <= range.end)?;
            let taken =
                self.allocated.range(..end).next_back().map(|(_, taken_end)| *taken_end).filter(|taken_end| *taken_end > at);
            let reserved_end =
                reserved.iter().filter(|(first, last)| *first < end && *last >= at).map(|(_, last)| last.saturating_add(1));
            match taken.into_iter().chain(reserved_end).max() {
                Some(next) => from = next,
                None => return Some(at),
            }
        }
    }

    /// Frees the range that [`Iovas::allocate`] returned.
    pub(crate) fn free(&mut self, at: u64) {
        self.allocated.remove(&at);
    }
}

/// Parses a group's file `reserved_regions` (Documentation/ABI/testing/sysfs-kernel-iommu_groups), with a line `0xfirst 0xlast type`
/// for each range. Direct mappings that a user may replace (`direct-relaxable`) are included.
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

    /// What cannot be mapped where the kernel says nothing.
    const UNKNOWN: [(u64, u64); 2] = [(0, 0xffff_ffff), (1 << 38, u64::MAX)];

    #[test]
    fn addresses_are_congruent_and_do_not_overlap() {
        let mut iovas = Iovas::new();
        let a = iovas.allocate(5000, 4096, 0x7f00_0000_1000, &[]).unwrap();
        let b = iovas.allocate(4 << 20, 2 << 20, 0x7f00_0012_3000, &[]).unwrap();
        let c = iovas.allocate(4096, 4096, 0, &[]).unwrap();
        assert_eq!((a, b % (2 << 20)), (1 << 32, 0x12_3000));
        assert!(b >= a + 8192 && c >= b + (4 << 20));
        assert_eq!(iovas.allocate(0, 4096, 0, &[]), None);
    }

    #[test]
    fn an_address_is_reused_after_all_others() {
        let mut iovas = Iovas::new();
        let gib = 1 << 30;
        let first = iovas.allocate(gib, 4096, 0, &[]).unwrap();
        iovas.free(first);
        let mut others = 0;
        loop {
            let next = iovas.allocate(gib, 4096, 0, &[]).unwrap();
            if next == first {
                break;
            }
            others += 1;
            iovas.free(next);
        }
        assert_eq!(others, 59, "60 GiB of the first range");
    }

    #[test]
    fn reserved_ranges_are_never_allocated() {
        let reserved = parse_reserved(
            "0x00000000fee00000 0x00000000feefffff msi\n0x0000000100000000 0x00000001ffffffff direct\n\
             0x0000000180000000 0x000000027fffffff reserved\n0x0000003d00000000 0x000000ffffffffff reserved\nnonsense\n",
        );
        assert_eq!(reserved.len(), 4);
        let mut iovas = Iovas::new();
        assert_eq!(iovas.allocate(4096, 4096, 0, &reserved), Some(0x2_8000_0000));
        let mut allocated = 0;
        let reserved = [reserved, UNKNOWN.to_vec()].concat();
        while let Some(at) = iovas.allocate(1 << 30, 1 << 30, 0, &reserved) {
            assert!(at >= 0x2_c000_0000 && at + (1 << 30) <= 0x3d_0000_0000, "{at:#x}");
            allocated += 1;
        }
        assert_eq!(allocated, 53 + 180, "whole aligned GiB between the reserved ranges");
    }

    #[test]
    fn a_range_that_does_not_fit_is_refused() {
        let mut iovas = Iovas::new();
        assert_eq!(iovas.allocate(1 << 38, 4096, 0, &UNKNOWN), None);
        assert_eq!(iovas.allocate(u64::MAX, 4096, 0, &[]), None);
        assert_eq!(iovas.allocate(3 << 36, 4096, 0, &UNKNOWN), Some(1 << 36));
        assert_eq!(iovas.allocate(60 << 30, 4096, 0, &UNKNOWN), Some(1 << 32));
        assert_eq!(iovas.allocate(1, 4096, 0, &UNKNOWN), None);
        // An IOMMU that translates more has room for it.
        assert_eq!(iovas.allocate(1 << 38, 4096, 0, &[]), Some(1 << 38));
    }

    #[test]
    fn an_iommu_of_few_bits_has_addresses_below_4_gib_around_the_window_of_msi() {
        let holes = [(0xfee0_0000, 0xfeef_ffff), (1 << 32, u64::MAX)];
        let mut iovas = Iovas::new();
        let mut ranges = Vec::new();
        while let Some(at) = iovas.allocate(1 << 20, 4096, 0x7f00_0000_1000, &holes) {
            assert!(at >= 1 << 20 && at + (1 << 20) <= 1 << 32, "{at:#x}");
            assert!(at + (1 << 20) <= 0xfee0_0000 || at >= 0xfef0_0000, "{at:#x} overlaps the window");
            ranges.push(at);
        }
        assert_eq!(ranges.len(), 4096 - 1 - 1, "every MiB but the lowest and the window");
        // What was freed can be had again.
        iovas.free(ranges[7]);
        assert_eq!(iovas.allocate(1 << 20, 4096, 0, &holes), Some(ranges[7]));
    }
}

//! The entries of an indirect key: ranges behind other keys, one after another, or blocks of them that repeat.

use bareverbs_mlx5_spec::{Layout, View, WqeKlm, WqeRepeatBlock, WqeRepeatEntry};

use super::key_range::{KeyRange, covering};
use super::range_list::RangeList;

/// In place of a key: the entry begins a repeat block (rdma-core `umr_strided_seg_create`).
const REPEAT_BLOCK: u32 = 0x400;
/// The index of a key that would be taken for the mark if its tag were 0.
pub(in crate::engine) const RESERVED_INDEX: u32 = REPEAT_BLOCK >> 8;

/// An entry of a repeat block: it moves on by a stride each time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RepeatEntry {
    first: KeyRange,
    stride: u64,
    /// Bytes of a period up to its end.
    end: u64,
}

/// An entry, or a repeat block.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Entry {
    Klm(KeyRange),
    RepeatBlock { count: u64, entries: Vec<RepeatEntry> },
}

impl Entry {
    fn len(&self) -> u64 {
        match self {
            Self::Klm(range) => range.len,
            Self::RepeatBlock { count, entries } => count.saturating_mul(entries.last().map_or(0, |entry| entry.end)),
        }
    }

    /// Returns the ranges of other keys that its first `len` bytes reach; of a repeated entry the whole range from first byte
    /// to last.
    fn ranges(&self, len: u64) -> impl Iterator<Item = KeyRange> {
        let (klm, count, repeated) = match self {
            Self::Klm(range) => (Some(KeyRange { len: range.len.min(len), ..*range }), 0, &[][..]),
            Self::RepeatBlock { count, entries } => {
                let period = entries.last().map_or(0, |entry| entry.end);
                let turns = if period == 0 { 0 } else { len.div_ceil(period) };
                (None, turns.min(*count), entries.as_slice())
            }
        };
        let whole = move |entry: &RepeatEntry| {
            let more = count.checked_sub(1)?.saturating_mul(entry.stride);
            Some(KeyRange { len: entry.first.len.saturating_add(more), ..entry.first })
        };
        let repeated = repeated.iter().filter(|entry| entry.first.len != 0).filter_map(whole);
        klm.into_iter().chain(repeated).filter(|range| range.len != 0)
    }
}

/// Entries of a list that has blocks that repeat. It is read as a whole: what an entry is depends on those before it.
#[derive(Clone, Debug, Default)]
struct Blocks {
    raw: Vec<u8>,
    blocks: Vec<Entry>,
    /// The byte after each entry, counted from the start of the key.
    ends: Vec<u64>,
}

impl Blocks {
    fn read(raw: Vec<u8>) -> Self {
        let blocks = blocks(&raw);
        let mut end = 0u64;
        let ends = blocks.iter().map(|entry| {
            end = end.saturating_add(entry.len());
            end
        });
        Self { ends: ends.collect(), blocks, raw }
    }

    fn locate(&self, at: u64) -> Option<KeyRange> {
        let index = self.ends.partition_point(|&end| end <= at);
        let entry = self.blocks.get(index)?;
        let within = at - self.ends.get(index)?.saturating_sub(entry.len());
        match entry {
            Entry::Klm(range) => range.from(within),
            Entry::RepeatBlock { entries, .. } => {
                let period = entries.last()?.end;
                let (turn, within) = (within.checked_div(period)?, within.checked_rem(period)?);
                let entry = entries.get(entries.partition_point(|entry| entry.end <= within))?;
                let moved = entry.first.addr.checked_add(turn.checked_mul(entry.stride)?)?;
                KeyRange { addr: moved, ..entry.first }.from(within - (entry.end - entry.first.len))
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Entries {
    /// One range each: an entry changes without reading the others.
    Plain(RangeList),
    Blocks(Blocks),
}

/// All entries of an indirect key.
#[derive(Clone, Debug)]
pub(in crate::engine) struct KlmList {
    entries: Entries,
}

impl Default for KlmList {
    fn default() -> Self {
        Self { entries: Entries::Plain(RangeList::default()) }
    }
}

/// Maximum bytes of a list with repeat blocks of which a part can be changed.
const MAX_CHANGED_BLOCKS: usize = 16 << 10;

impl KlmList {
    /// Returns the bytes of this process that a list of `len` raw bytes takes at most, with what the registry keeps of the keys
    /// that it names.
    pub(in crate::engine) const fn memory_of(len: u64) -> u64 {
        len.saturating_mul(8)
    }

    /// Returns the bytes of this process that it takes.
    pub(in crate::engine) fn memory(&self) -> u64 {
        Self::memory_of(self.raw_len() as u64)
    }

    /// Returns the bytes that it has as a list.
    pub(in crate::engine) fn raw_len(&self) -> usize {
        match &self.entries {
            Entries::Plain(plain) => plain.count() * WqeKlm::SIZE,
            Entries::Blocks(blocks) => blocks.raw.len(),
        }
    }

    /// Returns the entries that it has as a list.
    pub(in crate::engine) fn count(&self) -> usize {
        self.raw_len() / WqeKlm::SIZE
    }

    /// Reads a raw list.
    pub(in crate::engine) fn read(raw: &[u8]) -> Self {
        let entries = if has_blocks(raw) {
            Entries::Blocks(Blocks::read(raw.to_vec()))
        } else {
            let mut plain = RangeList::default();
            klms(raw).for_each(|range| plain.push(range));
            Entries::Plain(plain)
        };
        Self { entries }
    }

    /// Returns the bytes that all entries together reach.
    pub(in crate::engine) fn len(&self) -> u64 {
        match &self.entries {
            Entries::Plain(plain) => plain.len(),
            Entries::Blocks(blocks) => blocks.ends.last().copied().unwrap_or(0),
        }
    }

    /// Returns the ranges of other keys that the first `len` bytes reach; of a repeated entry the whole range from first byte
    /// to last. Lists are padded to a whole unit, so what is beyond the bytes of the key may be anything.
    pub(in crate::engine) fn ranges(&self, len: u64) -> impl Iterator<Item = KeyRange> {
        let (plain, blocks) = match &self.entries {
            Entries::Plain(plain) => (plain.all(), None),
            Entries::Blocks(blocks) => (&[][..], Some(blocks)),
        };
        let blocks = blocks.into_iter().flat_map(move |blocks| {
            let used = blocks.ends.partition_point(|&end| end < len).saturating_add(1);
            let used = blocks.blocks.iter().zip(&blocks.ends).take(used);
            used.flat_map(move |(entry, &end)| entry.ranges(len.saturating_sub(end.saturating_sub(entry.len()))))
        });
        covering(plain.iter().copied(), 0, len).chain(blocks)
    }

    /// Returns where byte `at` of the key lies, and how many bytes follow it there.
    pub(in crate::engine) fn locate(&self, at: u64) -> Option<KeyRange> {
        match &self.entries {
            Entries::Plain(plain) => {
                let (index, within) = plain.find(at)?;
                plain.all().get(index)?.from(within)
            }
            Entries::Blocks(blocks) => blocks.locate(at),
        }
    }

    /// Returns the entry `index`, regardless of its length, of a key whose entries all have one size.
    pub(in crate::engine) fn entry(&self, index: u64) -> Option<KeyRange> {
        let index = usize::try_from(index).ok()?;
        match &self.entries {
            Entries::Plain(plain) => plain.all().get(index).copied(),
            Entries::Blocks(blocks) => match blocks.blocks.get(index)? {
                Entry::Klm(range) => Some(*range),
                Entry::RepeatBlock { .. } => None,
            },
        }
    }

    /// Returns the byte of the key at which entry `first` begins, in a list without blocks.
    pub(in crate::engine) fn start_of(&self, first: usize) -> u64 {
        match &self.entries {
            Entries::Plain(plain) => plain.start_of(first),
            Entries::Blocks(_) => 0,
        }
    }

    /// Returns whether entries from `first` on can be changed into those of a raw list: not if a long list would have to be
    /// read again for it.
    pub(in crate::engine) fn can_change(&self, first: usize, raw: &[u8]) -> bool {
        let end = first.saturating_mul(WqeKlm::SIZE).saturating_add(raw.len());
        let plain = matches!(self.entries, Entries::Plain(_)) && !has_blocks(raw);
        plain || (self.raw_len() <= MAX_CHANGED_BLOCKS && end <= MAX_CHANGED_BLOCKS)
    }

    /// Returns the entries that a change from `first` on puts out and those that it brings in, if no others are touched by it.
    pub(in crate::engine) fn changed(&self, first: usize, raw: &[u8]) -> Option<(Vec<KeyRange>, Vec<KeyRange>)> {
        let Entries::Plain(plain) = &self.entries else { return None };
        if has_blocks(raw) {
            return None;
        }
        let new: Vec<KeyRange> = klms(raw).collect();
        let old = plain.all().iter().skip(first).take(new.len()).copied().collect();
        Some((old, new))
    }

    /// Changes entries from `first` on, which [`KlmList::can_change`] allowed; between the last entry and those are entries of
    /// no bytes.
    pub(in crate::engine) fn change(&mut self, first: usize, raw: &[u8]) {
        if let (Entries::Plain(plain), false) = (&mut self.entries, has_blocks(raw)) {
            for (index, range) in (first..).zip(klms(raw)) {
                plain.set(index, range);
            }
            return;
        }
        let mut whole = match &self.entries {
            Entries::Plain(plain) => plain.all().iter().flat_map(|range| range.to_raw()).collect(),
            Entries::Blocks(blocks) => blocks.raw.clone(),
        };
        let start = first.saturating_mul(WqeKlm::SIZE);
        let end = start.saturating_add(raw.len());
        if end > MAX_CHANGED_BLOCKS {
            return;
        }
        if whole.len() < end {
            whole.resize(end, 0);
        }
        if let Some(part) = whole.get_mut(start..end) {
            part.copy_from_slice(raw);
        }
        *self = Self::read(&whole);
    }
}

/// Returns the entries of a list without blocks.
fn klms(raw: &[u8]) -> impl Iterator<Item = KeyRange> {
    raw.chunks_exact(WqeKlm::SIZE).filter_map(View::<WqeKlm>::new).map(KeyRange::from_klm)
}

/// Returns whether a list has the mark of a block that repeats, or something that looks like it within one.
fn has_blocks(raw: &[u8]) -> bool {
    klms(raw).any(|range| range.key == REPEAT_BLOCK)
}

/// Returns the entries of a list with blocks.
fn blocks(raw: &[u8]) -> Vec<Entry> {
    let mut blocks = Vec::new();
    let mut rest = raw;
    while let Some((entry, behind)) = rest.split_at_checked(WqeKlm::SIZE) {
        rest = behind;
        let Some(klm) = View::<WqeKlm>::new(entry) else { break };
        blocks.push(if klm.get(WqeKlm::MKEY) == REPEAT_BLOCK {
            let (entry, behind) = repeat(entry, rest);
            rest = behind;
            entry
        } else {
            Entry::Klm(KeyRange::from_klm(klm))
        });
    }
    blocks
}

/// Returns a block that repeats: its head, and the entries that follow; what is behind it.
fn repeat<'a>(head: &[u8], rest: &'a [u8]) -> (Entry, &'a [u8]) {
    let (count, entries) = View::<WqeRepeatBlock>::new(head)
        .map_or((0, 0), |head| (head.get(WqeRepeatBlock::REPEAT_COUNT), head.get(WqeRepeatBlock::NUM_ENT)));
    let len = (entries as usize * WqeRepeatEntry::SIZE).min(rest.len());
    let (list, behind) = rest.split_at_checked(len).unwrap_or((rest, &[]));
    let mut end = 0;
    let entries = list.chunks_exact(WqeRepeatEntry::SIZE).filter_map(View::<WqeRepeatEntry>::new).map(|entry| {
        let len = u64::from(entry.get(WqeRepeatEntry::BYTE_COUNT));
        end += len;
        let first = KeyRange { len, key: entry.get(WqeRepeatEntry::MEMKEY), addr: entry.get64(WqeRepeatEntry::VA) };
        RepeatEntry { first, stride: entry.get(WqeRepeatEntry::STRIDE).into(), end }
    });
    (Entry::RepeatBlock { count: count.into(), entries: entries.collect() }, behind)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As libmlx5 writes it for three repetitions of 8 bytes of every 10 at two places, padded to 64 bytes; then a KLM.
    fn strided() -> Vec<u8> {
        let words: [u32; 20] =
            [0x10, 0x400, 3, 2, 0x000a_0008, 0x17d5d4, 0, 0x5000, 0x000a_0008, 0x17d5d4, 0, 0x5040, 0, 0, 0, 0, 5, 0x77, 1, 0];
        words.iter().flat_map(|word| word.to_be_bytes()).collect()
    }

    #[test]
    fn a_repeat_block_interleaves_its_entries() {
        let list = KlmList::read(&strided());
        assert_eq!(list.len(), 3 * 16 + 5);
        let range = |len, key, addr| Some(KeyRange { len, key, addr });
        assert_eq!(list.locate(0), range(8, 0x17d5d4, 0x5000));
        assert_eq!(list.locate(7), range(1, 0x17d5d4, 0x5007));
        assert_eq!(list.locate(8), range(8, 0x17d5d4, 0x5040));
        assert_eq!(list.locate(16), range(8, 0x17d5d4, 0x500a));
        assert_eq!(list.locate(47), range(1, 0x17d5d4, 0x505b));
        assert_eq!(list.locate(48), range(5, 0x77, 1 << 32));
        assert_eq!(list.locate(53), None);
        let ranges: Vec<KeyRange> = list.ranges(list.len()).collect();
        let expected = [range(28, 0x17d5d4, 0x5000), range(28, 0x17d5d4, 0x5040), range(5, 0x77, 1 << 32)];
        assert_eq!(ranges, expected.map(Option::unwrap));
        // The bytes end in the second round, or in the last entry.
        let ranges = |len| list.ranges(len).map(|range| (range.len, range.addr)).collect::<Vec<_>>();
        assert_eq!(ranges(17), [(18, 0x5000), (18, 0x5040)]);
        assert_eq!(ranges(48), [(28, 0x5000), (28, 0x5040)]);
        assert_eq!(ranges(50), [(28, 0x5000), (28, 0x5040), (2, 1 << 32)]);
        assert_eq!(ranges(0), []);
    }

    #[test]
    fn empty_and_oversized_repeat_blocks_end() {
        let mut raw = strided();
        // No repetitions.
        raw[8..12].fill(0);
        assert_eq!((KlmList::read(&raw).len(), KlmList::read(&raw).ranges(5).count()), (5, 1));
        // Entries of no bytes.
        let mut raw = strided();
        raw[18..20].fill(0);
        raw[34..36].fill(0);
        assert_eq!(KlmList::read(&raw).locate(0), Some(KeyRange { len: 5, key: 0x77, addr: 1 << 32 }));
        // More entries than the list has, and a huge count of repetitions.
        let mut raw = strided();
        raw[8..16].fill(0xff);
        let list = KlmList::read(&raw);
        assert_eq!(list.len(), 0xffff_ffff * (8 + 8 + 5));
        assert!(list.locate(list.len() - 1).is_some() && list.locate(list.len()).is_none());
    }

    /// Returns a KLM as it lies in a list.
    fn klm(len: u32, key: u32, addr: u64) -> Vec<u8> {
        [len, key, (addr >> 32) as u32, addr as u32].iter().flat_map(|word| word.to_be_bytes()).collect()
    }

    /// A list changes as its bytes do: what is read of the whole is what was before, with the new entries in their place.
    #[test]
    fn a_part_of_a_list_with_blocks_is_changed_like_its_bytes() {
        let plain = || [klm(10, 0x11, 0x1_0000_2000), klm(20, 0x22, 0x3000), klm(30, 0x33, 0x4000)].concat();
        let mut repeated = strided();
        // Five repetitions.
        repeated[11] = 5;
        let cases: [(&str, Vec<u8>, usize, Vec<u8>); 6] = [
            ("the entry behind a block", strided(), 4, klm(9, 0x88, 0x2_0000_0000)),
            ("the head of a block", strided(), 0, repeated[..16].to_vec()),
            (
                "a block by entries",
                strided(),
                0,
                [klm(1, 5, 0), klm(2, 6, 0), klm(3, 7, 0), klm(4, 8, 0), klm(5, 9, 0)].concat(),
            ),
            ("an entry by a block", plain(), 1, strided()),
            ("a block behind an entry", klm(10, 0x11, 0x1_0000_2000), 1, strided()),
            ("a block beyond the end", klm(10, 0x11, 0x1_0000_2000), 3, strided()),
        ];
        for (case, before, first, raw) in cases {
            let mut bytes = before.clone();
            let end = first * WqeKlm::SIZE + raw.len();
            bytes.resize(bytes.len().max(end), 0);
            bytes[first * WqeKlm::SIZE..end].copy_from_slice(&raw);
            let whole = KlmList::read(&bytes);
            let mut list = KlmList::read(&before);
            assert!(list.can_change(first, &raw), "{case}");
            // Which entries go and come cannot be said of these alone.
            assert!(list.changed(first, &raw).is_none(), "{case}");
            list.change(first, &raw);
            assert_eq!((list.len(), list.raw_len()), (whole.len(), whole.raw_len()), "{case}");
            for at in 0..=whole.len() {
                assert_eq!(list.locate(at), whole.locate(at), "{case}: byte {at}");
            }
        }
    }

    /// Each change of it reads the whole list again, so a long one has none: a program could make the device work for ever.
    #[test]
    fn a_long_list_gets_no_blocks_in_part() {
        let most = MAX_CHANGED_BLOCKS / WqeKlm::SIZE;
        let long = klm(10, 0x11, 0).repeat(most + 1);
        let mut list = KlmList::read(&long);
        assert!(list.can_change(most, &klm(1, 0x22, 0)) && !list.can_change(0, &strided()));
        let mut short = KlmList::read(&klm(10, 0x11, 0));
        assert!(short.can_change(most - 5, &strided()) && !short.can_change(most - 4, &strided()));
        for (list, first) in [(&mut list, most), (&mut short, most - 4)] {
            let before = (list.len(), list.raw_len());
            list.change(first, &strided());
            assert_eq!((list.len(), list.raw_len()), before);
        }
    }

    #[test]
    fn entries_are_found_by_their_number() {
        let list = KlmList::read(&[klm(10, 0x11, 0x100), klm(20, 0x22, 0x200)].concat());
        assert_eq!(list.entry(1), Some(KeyRange { len: 20, key: 0x22, addr: 0x200 }));
        assert_eq!((list.entry(2), list.entry(u64::MAX), list.start_of(1)), (None, None, 10));
        // A block has a number too, and is no range.
        let list = KlmList::read(&strided());
        let keys = [0, 1, 2, 3].map(|index| list.entry(index).map(|range| range.key));
        assert_eq!((keys, list.start_of(1)), ([None, Some(0), Some(0x77), None], 0));
    }
}

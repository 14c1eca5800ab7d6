//! The entries of an indirect key: KLMs, each a range of another key, and repeat blocks, which interleave strided ranges.

use bareverbs_mlx5_spec::{Layout, View, WqeKlm, WqeRepeatBlock, WqeRepeatEntry};

/// In place of a key: the entry is the head of a repeat block (rdma-core `umr_strided_seg_create`).
const REPEAT_BLOCK: u32 = 0x400;

/// Whether a key with this index and variant would be taken for the head of a repeat block.
pub(in crate::engine) const fn is_reserved(index: u32, variant: u32) -> bool {
    index << 8 | variant == REPEAT_BLOCK
}

/// A range of bytes of another key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) struct KeyRange {
    pub(in crate::engine) len: u64,
    pub(in crate::engine) key: u32,
    pub(in crate::engine) addr: u64,
}

impl KeyRange {
    /// The range from byte `at` of this one on, `None` if that is beyond all addresses.
    fn from(self, at: u64) -> Option<Self> {
        Some(Self { len: self.len.saturating_sub(at), addr: self.addr.checked_add(at)?, ..self })
    }
}

/// One entry of a repeat block: its range moves on by a stride in each repetition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RepeatEntry {
    first: KeyRange,
    stride: u64,
    /// Bytes of one repetition up to the end of this entry.
    end: u64,
}

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
}

/// All entries of a key.
#[derive(Clone, Debug, Default)]
pub(in crate::engine) struct KlmList {
    entries: Vec<Entry>,
    /// The byte after each entry, counted from the start of the key.
    ends: Vec<u64>,
}

impl KlmList {
    /// Reads a raw list.
    pub(in crate::engine) fn read(raw: &[u8]) -> Self {
        let mut entries = Vec::new();
        let mut rest = raw;
        while let Some((head, tail)) = rest.split_at_checked(WqeKlm::SIZE) {
            rest = tail;
            let Some(klm) = View::<WqeKlm>::new(head) else { break };
            entries.push(if klm.get(WqeKlm::MKEY) == REPEAT_BLOCK {
                let (block, tail) = repeat_block(head, rest);
                rest = tail;
                block
            } else {
                let len = u64::from(klm.get(WqeKlm::BYTE_COUNT));
                Entry::Klm(KeyRange { len, key: klm.get(WqeKlm::MKEY), addr: klm.get64(WqeKlm::ADDRESS) })
            });
        }
        let mut end = 0u64;
        let ends = entries.iter().map(|entry: &Entry| {
            end = end.saturating_add(entry.len());
            end
        });
        Self { ends: ends.collect(), entries }
    }

    /// Bytes that the entries take here.
    pub(in crate::engine) fn cost(&self) -> usize {
        let repeated = |entry: &Entry| match entry {
            Entry::Klm(_) => 0,
            Entry::RepeatBlock { entries, .. } => entries.len() * size_of::<RepeatEntry>(),
        };
        let lists = self.entries.len() * (size_of::<Entry>() + size_of::<u64>());
        lists + self.entries.iter().map(repeated).sum::<usize>()
    }

    /// Bytes that all entries together reach.
    pub(in crate::engine) fn len(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// The ranges of other keys that the first `len` bytes reach; of a repeated entry the whole range from first byte to last.
    /// Lists are padded to a whole unit, so what is beyond the bytes of the key may be anything.
    pub(in crate::engine) fn ranges(&self, len: u64) -> impl Iterator<Item = KeyRange> {
        let used = self.ends.partition_point(|&end| end < len).saturating_add(1);
        self.entries.iter().zip(&self.ends).take(used).flat_map(move |(entry, &end)| {
            let rest = len.saturating_sub(end.saturating_sub(entry.len()));
            let (klm, count, repeated) = match entry {
                Entry::Klm(range) => (Some(KeyRange { len: range.len.min(rest), ..*range }), 0, &[][..]),
                Entry::RepeatBlock { count, entries } => {
                    let round = entries.last().map_or(0, |entry| entry.end);
                    let rounds = if round == 0 { 0 } else { rest.div_ceil(round) };
                    (None, rounds.min(*count), entries.as_slice())
                }
            };
            let whole = move |entry: &RepeatEntry| {
                let more = count.checked_sub(1)?.saturating_mul(entry.stride);
                Some(KeyRange { len: entry.first.len.saturating_add(more), ..entry.first })
            };
            let repeated = repeated.iter().filter(|entry| entry.first.len != 0).filter_map(whole);
            klm.into_iter().chain(repeated).filter(|range| range.len != 0)
        })
    }

    /// Where byte `at` of the key lies, and how many bytes follow it there.
    pub(in crate::engine) fn locate(&self, at: u64) -> Option<KeyRange> {
        let index = self.ends.partition_point(|&end| end <= at);
        let entry = self.entries.get(index)?;
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

    /// Entry `index`, whatever its length says, of a key whose entries all have one size.
    pub(in crate::engine) fn entry(&self, index: u64) -> Option<KeyRange> {
        match self.entries.get(usize::try_from(index).ok()?)? {
            Entry::Klm(range) => Some(*range),
            Entry::RepeatBlock { .. } => None,
        }
    }
}

/// A repeat block from its head and the entries that follow it, and the bytes after it.
fn repeat_block<'a>(head: &[u8], rest: &'a [u8]) -> (Entry, &'a [u8]) {
    let (count, entries) = View::<WqeRepeatBlock>::new(head)
        .map_or((0, 0), |head| (head.get(WqeRepeatBlock::REPEAT_COUNT), head.get(WqeRepeatBlock::NUM_ENT)));
    let len = (entries as usize * WqeRepeatEntry::SIZE).min(rest.len());
    let (list, tail) = rest.split_at_checked(len).unwrap_or((rest, &[]));
    let mut end = 0;
    let entries = list.chunks_exact(WqeRepeatEntry::SIZE).filter_map(View::<WqeRepeatEntry>::new).map(|entry| {
        let len = u64::from(entry.get(WqeRepeatEntry::BYTE_COUNT));
        end += len;
        let first = KeyRange { len, key: entry.get(WqeRepeatEntry::MEMKEY), addr: entry.get64(WqeRepeatEntry::VA) };
        RepeatEntry { first, stride: entry.get(WqeRepeatEntry::STRIDE).into(), end }
    });
    (Entry::RepeatBlock { count: count.into(), entries: entries.collect() }, tail)
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
}

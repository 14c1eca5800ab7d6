//! The entries of an indirect key: runs of bytes behind other keys, one after another, or a few of them over and over.

use bareverbs_mlx5_spec::{Layout, View, WqeKlm, WqeRepeatBlock, WqeRepeatEntry};

/// In place of a key: the entry begins a block of runs that repeat (rdma-core `umr_strided_seg_create`).
const REPEATS: u32 = 0x400;

/// Whether a key with this index and variant would be taken for the mark of a block that repeats.
pub(in crate::engine) const fn is_reserved(index: u32, variant: u32) -> bool {
    index << 8 | variant == REPEATS
}

/// Bytes behind another key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) struct Run {
    pub(in crate::engine) len: u64,
    pub(in crate::engine) key: u32,
    pub(in crate::engine) addr: u64,
}

impl Run {
    /// The run from byte `at` of this one on, `None` if that is beyond all addresses.
    fn from(self, at: u64) -> Option<Self> {
        Some(Self { len: self.len.saturating_sub(at), addr: self.addr.checked_add(at)?, ..self })
    }
}

/// One of the runs that repeat: it moves on by a stride each time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stripe {
    first: Run,
    stride: u64,
    /// Bytes of a round up to its end.
    end: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Run(Run),
    Rounds { count: u64, stripes: Vec<Stripe> },
}

impl Piece {
    fn len(&self) -> u64 {
        match self {
            Self::Run(run) => run.len,
            Self::Rounds { count, stripes } => count.saturating_mul(stripes.last().map_or(0, |stripe| stripe.end)),
        }
    }
}

/// All entries of a key.
#[derive(Clone, Debug, Default)]
pub(in crate::engine) struct Pieces {
    pieces: Vec<Piece>,
    /// The byte after each piece, counted from the start of the key.
    ends: Vec<u64>,
}

impl Pieces {
    /// Reads a raw list.
    pub(in crate::engine) fn read(raw: &[u8]) -> Self {
        let mut pieces = Vec::new();
        let mut rest = raw;
        while let Some((entry, behind)) = rest.split_at_checked(WqeKlm::SIZE) {
            rest = behind;
            let Some(klm) = View::<WqeKlm>::new(entry) else { break };
            pieces.push(if klm.get(WqeKlm::MKEY) == REPEATS {
                let (piece, behind) = rounds(entry, rest);
                rest = behind;
                piece
            } else {
                let len = u64::from(klm.get(WqeKlm::BYTE_COUNT));
                Piece::Run(Run { len, key: klm.get(WqeKlm::MKEY), addr: klm.get64(WqeKlm::ADDRESS) })
            });
        }
        let mut end = 0u64;
        let ends = pieces.iter().map(|piece| {
            end = end.saturating_add(piece.len());
            end
        });
        Self { ends: ends.collect(), pieces }
    }

    /// Bytes that the entries take here.
    pub(in crate::engine) fn cost(&self) -> usize {
        let stripes = |piece: &Piece| match piece {
            Piece::Run(_) => 0,
            Piece::Rounds { stripes, .. } => stripes.len() * size_of::<Stripe>(),
        };
        let lists = self.pieces.len() * (size_of::<Piece>() + size_of::<u64>());
        lists + self.pieces.iter().map(stripes).sum::<usize>()
    }

    /// Bytes that all entries together reach.
    pub(in crate::engine) fn len(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// What of other keys the entries reach, for each the whole range from its first byte to its last.
    pub(in crate::engine) fn reached(&self) -> impl Iterator<Item = Run> {
        self.pieces.iter().flat_map(|piece| {
            let (run, count, stripes) = match piece {
                Piece::Run(run) => (Some(*run), 0, &[][..]),
                Piece::Rounds { count, stripes } => (None, *count, stripes.as_slice()),
            };
            let whole = move |stripe: &Stripe| {
                let more = count.checked_sub(1)?.saturating_mul(stripe.stride);
                Some(Run { len: stripe.first.len.saturating_add(more), ..stripe.first })
            };
            let stripes = stripes.iter().filter(|stripe| stripe.first.len != 0).filter_map(whole);
            run.into_iter().chain(stripes).filter(|run| run.len != 0)
        })
    }

    /// Where byte `at` of the key lies, and how many bytes follow it there.
    pub(in crate::engine) fn locate(&self, at: u64) -> Option<Run> {
        let index = self.ends.partition_point(|&end| end <= at);
        let piece = self.pieces.get(index)?;
        let within = at - self.ends.get(index)?.saturating_sub(piece.len());
        match piece {
            Piece::Run(run) => run.from(within),
            Piece::Rounds { stripes, .. } => {
                let round = stripes.last()?.end;
                let (turn, within) = (within.checked_div(round)?, within.checked_rem(round)?);
                let stripe = stripes.get(stripes.partition_point(|stripe| stripe.end <= within))?;
                let moved = stripe.first.addr.checked_add(turn.checked_mul(stripe.stride)?)?;
                Run { addr: moved, ..stripe.first }.from(within - (stripe.end - stripe.first.len))
            }
        }
    }

    /// Entry `index`, whatever its length says, of a key whose entries all have one size.
    pub(in crate::engine) fn entry(&self, index: u64) -> Option<Run> {
        match self.pieces.get(usize::try_from(index).ok()?)? {
            Piece::Run(run) => Some(*run),
            Piece::Rounds { .. } => None,
        }
    }
}

/// A block that repeats: its head, and the entries that follow; what is behind it.
fn rounds<'a>(head: &[u8], rest: &'a [u8]) -> (Piece, &'a [u8]) {
    let (count, entries) = View::<WqeRepeatBlock>::new(head)
        .map_or((0, 0), |head| (head.get(WqeRepeatBlock::REPEAT_COUNT), head.get(WqeRepeatBlock::NUM_ENT)));
    let len = (entries as usize * WqeRepeatEntry::SIZE).min(rest.len());
    let (list, behind) = rest.split_at_checked(len).unwrap_or((rest, &[]));
    let mut end = 0;
    let stripes = list.chunks_exact(WqeRepeatEntry::SIZE).filter_map(View::<WqeRepeatEntry>::new).map(|entry| {
        let len = u64::from(entry.get(WqeRepeatEntry::BYTE_COUNT));
        end += len;
        let first = Run { len, key: entry.get(WqeRepeatEntry::MEMKEY), addr: entry.get64(WqeRepeatEntry::VA) };
        Stripe { first, stride: entry.get(WqeRepeatEntry::STRIDE).into(), end }
    });
    (Piece::Rounds { count: count.into(), stripes: stripes.collect() }, behind)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As libmlx5 writes it for three rounds of 8 bytes of every 10 at two places, padded to 64 bytes; then a run.
    fn strided() -> Vec<u8> {
        let words: [u32; 20] =
            [0x10, 0x400, 3, 2, 0x000a_0008, 0x17d5d4, 0, 0x5000, 0x000a_0008, 0x17d5d4, 0, 0x5040, 0, 0, 0, 0, 5, 0x77, 1, 0];
        words.iter().flat_map(|word| word.to_be_bytes()).collect()
    }

    #[test]
    fn rounds_go_from_stripe_to_stripe() {
        let pieces = Pieces::read(&strided());
        assert_eq!(pieces.len(), 3 * 16 + 5);
        let run = |len, key, addr| Some(Run { len, key, addr });
        assert_eq!(pieces.locate(0), run(8, 0x17d5d4, 0x5000));
        assert_eq!(pieces.locate(7), run(1, 0x17d5d4, 0x5007));
        assert_eq!(pieces.locate(8), run(8, 0x17d5d4, 0x5040));
        assert_eq!(pieces.locate(16), run(8, 0x17d5d4, 0x500a));
        assert_eq!(pieces.locate(47), run(1, 0x17d5d4, 0x505b));
        assert_eq!(pieces.locate(48), run(5, 0x77, 1 << 32));
        assert_eq!(pieces.locate(53), None);
        let reached: Vec<Run> = pieces.reached().collect();
        let expected = [run(28, 0x17d5d4, 0x5000), run(28, 0x17d5d4, 0x5040), run(5, 0x77, 1 << 32)];
        assert_eq!(reached, expected.map(Option::unwrap));
    }

    #[test]
    fn blocks_of_nothing_and_blocks_that_promise_more_end() {
        let mut raw = strided();
        // No rounds.
        raw[8..12].fill(0);
        assert_eq!((Pieces::read(&raw).len(), Pieces::read(&raw).reached().count()), (5, 1));
        // Entries of no bytes.
        let mut raw = strided();
        raw[18..20].fill(0);
        raw[34..36].fill(0);
        assert_eq!(Pieces::read(&raw).locate(0), Some(Run { len: 5, key: 0x77, addr: 1 << 32 }));
        // More entries than the list has, and rounds without end.
        let mut raw = strided();
        raw[8..16].fill(0xff);
        let pieces = Pieces::read(&raw);
        assert_eq!(pieces.len(), 0xffff_ffff * (8 + 8 + 5));
        assert!(pieces.locate(pieces.len() - 1).is_some() && pieces.locate(pieces.len()).is_none());
    }
}

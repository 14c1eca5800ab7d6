//! Rings in memory: each word in its place round the ring, and nowhere else.

use bareverbs::platform::{DmaMemory, DmaRing as _, OpensRings, RingLayout, RingToken, RingView};

use crate::bytes::{Call, MemoryFault, clear, compare_word, expect, put, words};

/// Opens the rings of this check.
struct Check;

// SAFETY: nothing else has a value of the type. A ring is used in one thread, in turn with its memory, and dropped before the call ends
// that borrows the memory alone.
#[expect(unsafe_code, reason = "rings are opened by backends, and this stands in for one")]
unsafe impl OpensRings for Check {}

/// Bytes of a ring.
const RING: usize = 256;
const WORDS: u32 = RING as u32 / 8;
/// Bytes that are looked at: the ring, with what lies beside it.
const AROUND: usize = RING + 128;

/// Checks rings at the start and at the end of the memory.
pub(crate) fn check_rings<M: DmaMemory>(memory: &mut M) -> Result<(), MemoryFault> {
    let end = memory.len() & !63;
    for (ring, len, record) in
        [(end, 64, 0), (end.wrapping_sub(RING).wrapping_add(64), RING, 0), (0, 64, end), (1 << (usize::BITS - 1), 64, 0)]
    {
        let Some(layout) = RingLayout::new(ring, len, record) else { continue };
        if layout.end() > memory.len() && memory.ring(RingToken::of(&Check), &layout).is_ok() {
            return Err(MemoryFault::Accepted { call: Call::Ring, at: ring, len });
        }
    }
    for (ring, record) in [(64, 1024), (1024, 72), (end.wrapping_sub(RING), 8), (512, end.wrapping_sub(8))] {
        check_ring(memory, ring, record)?;
    }
    Ok(())
}

/// What the bytes around a ring must be.
struct Expected {
    at: usize,
    bytes: [u8; AROUND],
    ring: usize,
}

impl Expected {
    fn word(&mut self, word: u32, value: u64) {
        let at = self.ring.wrapping_sub(self.at).wrapping_add((word % WORDS) as usize * 8);
        put(&mut self.bytes, at, &value.to_ne_bytes());
    }

    fn compare<M: DmaMemory>(&self, memory: &M, call: Call) -> Result<(), MemoryFault> {
        let len = AROUND.min(memory.len().wrapping_sub(self.at));
        expect(memory, call, self.at, self.bytes.get(..len).unwrap_or_default())
    }
}

fn check_ring<M: DmaMemory>(memory: &mut M, ring: usize, record: usize) -> Result<(), MemoryFault> {
    let Some(layout) = RingLayout::new(ring, RING, record) else { return Ok(()) };
    let refused = MemoryFault::Refused { call: Call::Ring, at: ring, len: RING };
    let at = ring.wrapping_sub(64);
    (at..at.wrapping_add(AROUND).min(memory.len() & !63)).step_by(64).try_for_each(|at| clear(memory, at))?;
    clear(memory, record & !63)?;
    let opened = memory.ring(RingToken::of(&Check), &layout).map_err(|_| refused)?;
    let mut expected = Expected { at, bytes: [0; AROUND], ring };
    let all = words::<{ WORDS as usize }>(11);
    for (word, value) in (0..WORDS).zip(all) {
        opened.view().put_word(word, value);
        expected.word(word, value);
    }
    expected.compare(memory, Call::PutWord)?;
    // Counters run round the ring, and over 32 bits.
    for word in [WORDS + 5, WORDS * 1000 + 7, u32::MAX, 1 << 31] {
        let value = u64::from(word) << 20 | 0xabc;
        opened.view().put_word(word, value);
        expected.word(word, value);
        expected.compare(memory, Call::PutWord)?;
    }
    // Each pair of a block, and round the ring and 32 bits.
    for pair in [0, 1, 2, 3, WORDS / 2 + 1, u32::MAX] {
        let values = words::<2>(pair);
        opened.view().put_pair(pair, values);
        for (index, value) in (0_u32..).zip(values) {
            expected.word(pair.wrapping_mul(2).wrapping_add(index), value);
        }
        expected.compare(memory, Call::PutPair)?;
    }
    put_block::<8, M>(memory, &opened, &mut expected, WORDS / 8)?;
    put_block::<3, M>(memory, &opened, &mut expected, u32::MAX)?;
    put_block::<1, M>(memory, &opened, &mut expected, 2)?;
    // What another writes is seen.
    for (word, value) in (0..WORDS).zip(words::<{ WORDS as usize }>(13)) {
        let at = ring.wrapping_add(word as usize * 8);
        memory.store(at, &[value]).map_err(|_| MemoryFault::Refused { call: Call::Store, at, len: 8 })?;
        for counter in [word, word.wrapping_sub(WORDS)] {
            compare_word(Call::Word, at, value, opened.view().word(counter))?;
            compare_word(Call::BlockWord, at, value, opened.view().block_word(counter / 8, counter as usize % 8))?;
        }
        expected.word(word, value);
    }
    let mut of_record = [0; 64];
    for (second, value) in [(false, 0x0102_0304_u32), (true, 0x0506_0708), (false, 0xf0e0_d0c0)] {
        opened.view().record(second, value);
        let offset = if second { 4 } else { 0 };
        put(&mut of_record, (record % 64).wrapping_add(offset), &value.to_ne_bytes());
        expect(memory, Call::Record, record & !63, &of_record)?;
    }
    if !(at..at.wrapping_add(AROUND)).contains(&record) {
        expected.compare(memory, Call::Record)?;
    }
    Ok(())
}

fn put_block<const N: usize, M: DmaMemory>(
    memory: &M,
    ring: &M::Ring,
    expected: &mut Expected,
    block: u32,
) -> Result<(), MemoryFault> {
    let values = words::<N>(block);
    ring.view().put(block, &values);
    for (index, value) in (0_u32..).zip(values) {
        expected.word(block.wrapping_mul(8).wrapping_add(index), value);
    }
    expected.compare(memory, Call::Put)
}

//! Memory that CPU and device both see, from the CPU's side.

use bareverbs::platform::DmaMemory;

use crate::bytes::{Call, MemoryFault, clear, compare_word, expect, put, read, words};
use crate::pattern;
use crate::ring::check_rings;

/// Bytes of one copy: an odd number, so that copies begin and end everywhere in a word.
const PIECE: usize = 61;

/// Checks the memory's calls against each other: which bytes each touches, what it refuses, and that no two bytes are one. Its content is
/// other bytes afterwards. The device takes no part: [`check_traffic`](crate::check_traffic) sees whether it has the same bytes.
///
/// # Errors
/// The first thing that is wrong.
pub fn check_memory<M: DmaMemory>(memory: &mut M) -> Result<(), MemoryFault> {
    let (len, device_addr) = (memory.len(), memory.device_addr());
    if len < 4096 || memory.is_empty() {
        return Err(MemoryFault::Short { len });
    }
    if !device_addr.is_multiple_of(4096) {
        return Err(MemoryFault::Misaligned { device_addr });
    }
    if device_addr.checked_add(len as u64).is_none() {
        return Err(MemoryFault::Wraps { device_addr, len });
    }
    fill(memory, 0)?;
    compare(memory, 0, Call::Write)?;
    check_bytes(memory)?;
    check_copies(memory)?;
    fill(memory, 0)?;
    check_refusals(memory)?;
    compare(memory, 0, Call::Write)?;
    check_words(memory)?;
    check_rings(memory)?;
    fill(memory, 1)?;
    compare(memory, 1, Call::Write)
}

/// Fills the memory with the bytes of a round.
pub(crate) fn fill<M: DmaMemory>(memory: &mut M, round: u32) -> Result<(), MemoryFault> {
    let (len, mut at) = (memory.len(), 0_usize);
    while at < len {
        let mut bytes = [0; PIECE];
        let count = PIECE.min(len.wrapping_sub(at));
        let piece = bytes.get_mut(..count).unwrap_or_default();
        pattern::fill(round, at, piece);
        memory.write(at, piece).map_err(|_| MemoryFault::Refused { call: Call::Write, at, len: count })?;
        at = at.wrapping_add(count);
    }
    Ok(())
}

/// Compares the memory with the bytes of a round; `call` is what it was written by.
pub(crate) fn compare<M: DmaMemory>(memory: &M, round: u32, call: Call) -> Result<(), MemoryFault> {
    let (len, mut at) = (memory.len(), 0_usize);
    while at < len {
        // Other pieces than they were written in.
        let mut bytes = [0; PIECE + 6];
        let count = bytes.len().min(len.wrapping_sub(at));
        let piece = bytes.get_mut(..count).unwrap_or_default();
        read(memory, at, piece)?;
        if let Some((at, expected, found)) = pattern::first_wrong(round, at, piece) {
            return Err(MemoryFault::Differs { call, at, expected, found });
        }
        at = at.wrapping_add(count);
    }
    Ok(())
}

/// Reads single bytes, at each place in a word, at both ends and in the middle.
fn check_bytes<M: DmaMemory>(memory: &M) -> Result<(), MemoryFault> {
    let len = memory.len();
    for start in [0, len / 2, len.wrapping_sub(16)] {
        for at in start..start.wrapping_add(16).min(len) {
            let found = memory.read_u8(at).map_err(|_| MemoryFault::Refused { call: Call::ReadU8, at, len: 1 })?;
            let expected = pattern::byte(0, at);
            if found != expected {
                return Err(MemoryFault::Differs { call: Call::ReadU8, at, expected, found });
            }
        }
    }
    Ok(())
}

/// Copies short pieces that begin and end everywhere in a word: the bytes beside them stay.
fn check_copies<M: DmaMemory>(memory: &mut M) -> Result<(), MemoryFault> {
    for (from, len) in (20..28_usize).flat_map(|from| (1..18).map(move |len| (from, len))) {
        // No byte beside them is zero, as those of a word may be that is made of fewer.
        let mut expected = [0x5a; 64];
        memory.write(64, &expected).map_err(|_| MemoryFault::Refused { call: Call::Write, at: 64, len: 64 })?;
        let piece = expected.get_mut(from..from.wrapping_add(len)).unwrap_or_default();
        pattern::fill(2, from, piece);
        let at = from.wrapping_add(64);
        memory.write(at, piece).map_err(|_| MemoryFault::Refused { call: Call::Write, at, len })?;
        expect(memory, Call::Write, 64, &expected)?;
    }
    Ok(())
}

/// Asks each call for what it has to refuse. A call that refuses changes nothing, which the caller compares.
fn check_refusals<M: DmaMemory>(memory: &mut M) -> Result<(), MemoryFault> {
    let end = memory.len();
    let refused = |call, at, len, accepted: bool| if accepted { Err(MemoryFault::Accepted { call, at, len }) } else { Ok(()) };
    let beyond =
        [(end, 1), (end.wrapping_sub(1), 2), (end.wrapping_sub(7), 8), (usize::MAX, 1), (usize::MAX.wrapping_sub(3), 8)];
    for (at, len) in beyond {
        let mut bytes = [0; 8];
        let bytes = bytes.get_mut(..len).unwrap_or_default();
        refused(Call::Read, at, len, memory.read(at, bytes).is_ok())?;
        bytes.fill(0xa5);
        refused(Call::Write, at, len, memory.write(at, bytes).is_ok())?;
    }
    for at in [end, usize::MAX] {
        refused(Call::ReadU8, at, 1, memory.read_u8(at).is_ok())?;
    }
    for at in [end, usize::MAX.wrapping_sub(3), 1, 2, 3] {
        refused(Call::StoreU32, at, 4, memory.store_u32(at, 0xa5a5_a5a5).is_ok())?;
    }
    for at in [end, usize::MAX.wrapping_sub(7), 1, 4] {
        refused(Call::Load, at, 8, memory.load::<1>(at).is_ok())?;
        refused(Call::Store, at, 8, memory.store(at, &[u64::MAX]).is_ok())?;
    }
    for at in [end.wrapping_sub(8) & !7, usize::MAX.wrapping_sub(15) & !7] {
        refused(Call::Load, at, 16, memory.load::<2>(at).is_ok())?;
        refused(Call::Store, at, 16, memory.store(at, &[u64::MAX; 2]).is_ok())?;
    }
    Ok(())
}

/// Stores and loads words: which bytes each has, that the bytes beside it stay, and that they are as the CPU stores them.
fn check_words<M: DmaMemory>(memory: &mut M) -> Result<(), MemoryFault> {
    let last = memory.len().wrapping_sub(128) & !63;
    for start in [0, last] {
        for index in 1..8_usize {
            clear(memory, start)?;
            let at = start.wrapping_add(index.wrapping_mul(4));
            let value = 0x0102_0304_u32.wrapping_add(index as u32);
            memory.store_u32(at, value).map_err(|_| MemoryFault::Refused { call: Call::StoreU32, at, len: 4 })?;
            let mut expected = [0; 64];
            put(&mut expected, at.wrapping_sub(start), &value.to_ne_bytes());
            expect(memory, Call::StoreU32, start, &expected)?;
        }
        store_and_load::<1, M>(memory, start)?;
        store_and_load::<3, M>(memory, start)?;
        store_and_load::<8, M>(memory, start)?;
    }
    Ok(())
}

fn store_and_load<const N: usize, M: DmaMemory>(memory: &mut M, start: usize) -> Result<(), MemoryFault> {
    clear(memory, start)?;
    clear(memory, start.wrapping_add(64))?;
    let (at, len, stored) = (start.wrapping_add(16), N.wrapping_mul(8), words::<N>(7));
    memory.store(at, &stored).map_err(|_| MemoryFault::Refused { call: Call::Store, at, len })?;
    let mut expected = [0; 128];
    for (index, word) in stored.iter().enumerate() {
        put(&mut expected, index.wrapping_mul(8).wrapping_add(16), &word.to_ne_bytes());
    }
    expect(memory, Call::Store, start, &expected)?;
    let loaded = memory.load::<N>(at).map_err(|_| MemoryFault::Refused { call: Call::Load, at, len })?;
    let pairs = stored.iter().zip(&loaded).enumerate();
    for (index, (stored, loaded)) in pairs {
        let at = at.wrapping_add(index.wrapping_mul(8));
        compare_word(Call::Load, at, *stored, *loaded)?;
    }
    Ok(())
}

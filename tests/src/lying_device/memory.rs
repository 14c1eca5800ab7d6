//! The memory of the program: a part that is registered, and guards around it that nobody may touch.

use std::sync::atomic::AtomicU64;

use bareverbs::platform::DmaMemory;
use bareverbs_sim::in_process::{Host, SimBuffer, SimMemory};

/// Below all memory of the simulated host.
const ADDRESS: u64 = 0x1000_0000;
/// Where the program sees its first byte.
const BASE: u64 = 0x7f00_0000_0000;
/// Bytes: guards of a page and a half around one region after another.
const LEN: usize = 0x6000;
/// The first byte that may be registered, and the first one behind: in the middle of pages.
const REGISTERED: core::ops::Range<usize> = 0x1800..0x4800;
/// Bytes of a region, and from one to the next.
const REGION: (usize, usize) = (0x600, 0x700);
/// What the guards contain.
const GUARD: u8 = 0xa5;

thread_local! {
    /// Made once for a thread and never freed: a region whose device keeps it is not either.
    static WORDS: SimMemory = {
        let words: Vec<AtomicU64> = (0..LEN / 8).map(|_| AtomicU64::new(0)).collect();
        SimMemory::lent(ADDRESS, words.leak())
    };
}

/// The memory, which the device reaches all of.
pub(super) struct Memory(SimMemory);

impl Memory {
    /// Lets the device of `host` reach the memory, and fills it.
    pub(super) fn new(host: &Host) -> Self {
        let mut memory = WORDS.with(SimMemory::clone);
        memory.write(0, &[GUARD; LEN]).expect("all of it");
        assert!(host.memory_map().map(&memory), "the address is free");
        Self(memory)
    }

    /// Returns the bytes of a region with this number.
    pub(super) fn buffer(&self, number: usize) -> SimBuffer {
        let (len, step) = REGION;
        let at = REGISTERED.start + number * step % (REGISTERED.len() - len);
        self.0.buffer(at, len, BASE + at as u64).expect("inside the memory")
    }

    /// Asserts that the bytes around and between the regions are as they were.
    pub(super) fn check(&self) {
        let mut bytes = [0; LEN];
        self.0.read(0, &mut bytes).expect("all of it");
        let (len, step) = REGION;
        let of_a_region = |at: usize| REGISTERED.contains(&at) && (at - REGISTERED.start) % step < len;
        let touched = (0..LEN).find(|at| !of_a_region(*at) && bytes[*at] != GUARD);
        assert_eq!(touched, None, "a byte that was never registered has changed");
    }
}

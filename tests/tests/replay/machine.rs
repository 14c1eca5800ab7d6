//! A machine whose card answers from a table.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bareverbs::platform::{Clock, Doorbell, Instant, Machine, OutOfRange, Platform, Registers, WordRegister};
use bareverbs_decode::command_table::Exchange;
use bareverbs_sim::in_process::{MemoryMap, SimFence, SimMemory, SimPages};

use crate::card::{BAR, Card, Setting};

/// Where the driver's memory lies for the card.
const MEMORY: u64 = 0x12_3400_0000;
/// From where on the pages for its firmware lie.
const PAGES: u64 = 0x77_0000_0000;

pub(crate) struct ReplayPlatform;

// SAFETY: a recorded card reaches simulated memory alone.
#[expect(unsafe_code, reason = "the trait is unsafe to implement")]
unsafe impl Platform for ReplayPlatform {
    type Registers = CardRegisters;
    type Memory = SimMemory;
    type Pages = SimPages;
    type Fence = SimFence;
    type Clock = Ticks;
}

/// Returns a machine with `len` bytes of memory, and its card.
pub(crate) fn machine(table: Vec<Exchange>, setting: Setting, len: usize) -> (Machine<ReplayPlatform>, Arc<Mutex<Card>>) {
    let memory = SimMemory::new(MEMORY, len);
    let card = Arc::new(Mutex::new(Card::new(table, setting, memory.clone())));
    let registers = CardRegisters(Arc::clone(&card));
    let pages = SimPages::new(MemoryMap::default(), PAGES, u32::MAX);
    (Machine { registers, memory, pages, fence: SimFence, clock: Ticks::default() }, card)
}

/// BAR0 of the card.
pub(crate) struct CardRegisters(Arc<Mutex<Card>>);

impl Registers for CardRegisters {
    type Doorbell = Ignored;
    type Word = Ignored;

    fn len(&self) -> usize {
        BAR
    }

    fn read32(&self, offset: usize) -> Result<u32, OutOfRange> {
        Ok(u32::from_ne_bytes(self.0.lock().unwrap().read32(offset)))
    }

    fn write32(&mut self, offset: usize, value: u32) -> Result<(), OutOfRange> {
        self.0.lock().unwrap().write32(offset, value.to_ne_bytes());
        Ok(())
    }

    fn doorbell(&self, _: usize, _: usize) -> Result<Ignored, OutOfRange> {
        Ok(Ignored)
    }

    fn word(&self, _: usize) -> Result<Ignored, OutOfRange> {
        Ok(Ignored)
    }
}

/// A register of a UAR page: the card has no queues that could look at it.
pub(crate) struct Ignored;

impl Doorbell for Ignored {
    fn write(&self, _: usize, _: u64) {}
}

impl WordRegister for Ignored {
    fn write(&self, _: u32) {}
}

/// A clock that goes a microsecond further whenever it is read.
#[derive(Default)]
pub(crate) struct Ticks(AtomicU64);

impl Clock for Ticks {
    fn now(&self) -> Instant {
        Instant::from_nanos(self.0.fetch_add(1000, Ordering::Relaxed))
    }
}

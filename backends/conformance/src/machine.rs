//! The parts of a machine, together.

use core::fmt;

use bareverbs::platform::{DmaMemory as _, Machine, PageSource as _, Platform};

use crate::{ClockFault, MemoryFault, PageFault, RegisterFault, check_clock, check_memory, check_pages, check_registers};

/// What is wrong with a [`Machine`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MachineFault {
    /// Its registers.
    Registers(RegisterFault),
    /// Its memory.
    Memory(MemoryFault),
    /// Its pages.
    Pages(PageFault),
    /// Its clock.
    Clock(ClockFault),
    /// A page lies in the memory: device and driver would write over each other.
    PageInMemory {
        /// The page's address.
        device_addr: u64,
    },
    /// The memory changed while pages were allocated.
    MemoryChanged(MemoryFault),
}

impl fmt::Display for MachineFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Registers(fault) => write!(f, "registers: {fault}"),
            Self::Memory(fault) => write!(f, "memory: {fault}"),
            Self::Pages(fault) => write!(f, "pages: {fault}"),
            Self::Clock(fault) => write!(f, "clock: {fault}"),
            Self::PageInMemory { device_addr } => write!(f, "the page at {device_addr:#x} lies in the memory of the queues"),
            Self::MemoryChanged(fault) => write!(f, "the memory changed while pages were allocated: {fault}"),
        }
    }
}

impl core::error::Error for MachineFault {}

/// Checks the parts of a machine before a driver has it: [`check_memory`], [`check_registers`], [`check_clock`] and [`check_pages`], with a
/// place of `scratch` for each page that is tried; and that pages and memory are apart.
///
/// The device's bus mastering may be on: the device is not informed of any of these accesses.
///
/// # Errors
/// The first thing that is wrong.
pub fn check_machine<P: Platform>(machine: &mut Machine<P>, scratch: &mut [u64]) -> Result<(), MachineFault> {
    check_registers(&mut machine.registers).map_err(MachineFault::Registers)?;
    check_clock(&machine.clock).map_err(MachineFault::Clock)?;
    check_memory(&mut machine.memory).map_err(MachineFault::Memory)?;
    check_pages(&mut machine.pages, scratch).map_err(MachineFault::Pages)?;
    let memory = machine.memory.device_addr();
    let bytes = machine.memory.len() as u64;
    for _ in 0..scratch.len() {
        if machine.pages.reserve(1).is_err() {
            break;
        }
        let Some(device_addr) = machine.pages.allocate() else { break };
        if device_addr < memory.wrapping_add(bytes) && memory < device_addr.wrapping_add(4096) {
            machine.pages.free_all();
            return Err(MachineFault::PageInMemory { device_addr });
        }
    }
    machine.pages.free_all();
    // The round that `check_memory` left.
    crate::memory::compare(&machine.memory, 1, crate::Call::Write).map_err(MachineFault::MemoryChanged)
}

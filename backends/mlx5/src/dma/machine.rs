//! The machine under the driver: registers, memory, fences, time.

use crate::log::format_as;
use bareverbs::{DmaMemory, OutOfRange, Platform, Registers};

/// What the integrator hands in and gets back.
pub struct Machine<P: Platform> {
    /// BAR0 of the device. Bus mastering is the integrator's to switch on.
    pub registers: P::Registers,
    /// Memory for queues, commands and firmware; at least as long as the driver's type promises.
    pub memory: P::Memory,
    /// Ordering.
    pub fence: P::Fence,
    /// Time.
    pub clock: P::Clock,
}

format_as!(
    [P: Platform] Machine<P>,
    "Machine({} bytes of registers, {} bytes of memory)",
    |this| this.registers.len(), this.memory.len(),
);

impl<P: Platform> Machine<P> {
    /// A register of the initialization segment, in host byte order.
    pub(crate) fn register(&self, at: usize) -> Result<u32, OutOfRange> {
        Ok(u32::from_be(self.registers.read32(at)?))
    }
}

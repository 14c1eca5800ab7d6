//! The machine under the driver: registers, memory, fences, time.

use bareverbs::Platform;

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

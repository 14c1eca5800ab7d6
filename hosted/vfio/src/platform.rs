//! The platform of a driver on Linux.

use bareverbs::Platform;
use bareverbs_mmio::CpuFence;

use crate::{Bar, DmaBuffer, MonotonicClock};

/// Registers, memory, fences and clock of a card that this process owns through VFIO.
#[derive(Debug)]
pub struct VfioPlatform;

impl Platform for VfioPlatform {
    type Registers = Bar;
    type Memory = DmaBuffer;
    type Fence = CpuFence;
    type Clock = MonotonicClock;
}

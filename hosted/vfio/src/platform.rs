//! The [`Platform`] of a driver on Linux.

use bareverbs::Platform;
use bareverbs_mmio::CpuFence;

use crate::bar::Bar;
use crate::clock::MonotonicClock;
use crate::dma::DmaAllocation;

/// Registers, memory, fences and clock of a card that this process owns through VFIO.
#[derive(Debug)]
pub struct VfioPlatform;

impl Platform for VfioPlatform {
    type Registers = Bar;
    type Memory = DmaAllocation;
    type Fence = CpuFence;
    type Clock = MonotonicClock;
}

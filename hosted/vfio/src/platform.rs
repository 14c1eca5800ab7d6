//! The [`Platform`] of a driver on Linux.

use bareverbs::Platform;
use bareverbs_mmio::CpuFence;

use crate::bar::Bar;
use crate::clock::MonotonicClock;
use crate::dma::DmaAllocation;
use crate::firmware_pages::FirmwarePages;

/// Registers, memory, pages for the firmware, fences and clock of a card that this process owns through VFIO.
#[derive(Debug)]
pub struct VfioPlatform;

impl Platform for VfioPlatform {
    type Registers = Bar;
    type Memory = DmaAllocation;
    type Pages = FirmwarePages;
    type Fence = CpuFence;
    type Clock = MonotonicClock;
}

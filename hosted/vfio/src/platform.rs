//! The [`Platform`] of a driver on Linux.

use bareverbs::platform::Platform;
use bareverbs_mmio::CpuFence;

use crate::bar::Bar;
use crate::clock::MonotonicClock;
use crate::dma::DmaAllocation;
use crate::firmware_pages::FirmwarePages;

/// Registers, memory, pages for the firmware, fences and clock of a card that this process owns through VFIO.
#[derive(Debug)]
pub struct VfioPlatform;

// SAFETY: the BAR, the memory and the fences of one card.
#[expect(unsafe_code, reason = "the trait is unsafe to implement")]
unsafe impl Platform for VfioPlatform {
    type Registers = Bar;
    type Memory = DmaAllocation;
    type Pages = FirmwarePages;
    type Fence = CpuFence;
    type Clock = MonotonicClock;
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use bareverbs::platform::{Machine, PageSource as _};

    use super::*;
    use crate::bar;
    use crate::dma::tests::Iommu;

    /// What a driver returns after a teardown that failed, and what it drops without one.
    #[test]
    fn a_machine_ends_the_dma_of_its_card_before_it_unmaps_memory() {
        let iommu = Iommu::default();
        let (mapper, counter, seen) = (iommu.clone(), iommu.clone(), Arc::new(Mutex::new(Vec::new())));
        let log = seen.clone();
        let mut pages = FirmwarePages::from_map(Box::new(move |len| Ok(mapper.buffer_at(len, 0x2_0000_0000))));
        pages.reserve(1).unwrap();
        let machine = Machine::<VfioPlatform> {
            registers: bar::tests::registers(move || log.lock().unwrap().push(counter.unmapped())),
            memory: iommu.buffer_at(8192, 0x1_0000_0000),
            pages,
            fence: CpuFence::UNCACHED,
            clock: MonotonicClock::new(),
        };
        drop(machine);
        assert_eq!((seen.lock().unwrap().as_slice(), iommu.unmapped()), ([0].as_slice(), 2));
    }
}

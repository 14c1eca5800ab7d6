//! What exists on a node: to find out what a failed operation has left behind.

use bareverbs_sim::DeviceCounts;

use crate::Node;

/// Objects of the device and pages of the driver. Pages of the firmware come and go by its own choice and are left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResourceSnapshot {
    /// Objects that the device has.
    pub device: DeviceCounts,
    /// Pages that the driver uses.
    pub pages_used: u32,
}

impl Node {
    /// Returns the resources that exist now.
    pub fn snapshot(&self) -> ResourceSnapshot {
        let counts = self.host.with_device(|device| device.counts());
        let statistics = self.verbs.provider().statistics();
        ResourceSnapshot { device: DeviceCounts { pages_held: 0, ..counts }, pages_used: statistics.pages_used }
    }
}

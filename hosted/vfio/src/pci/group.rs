//! IOMMU groups: the unit in which VFIO assigns functions to processes.

use super::address::Address;
use super::sysfs::Sysfs;
use super::sysfs::{link_name, names, number, text};

/// Base class and subclass of PCI-to-PCI bridges.
const BRIDGE: u32 = 0x0604;

/// Name of groups that VFIO creates for functions without an IOMMU.
const NO_IOMMU: &str = "vfio-noiommu";

/// An IOMMU group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its number.
    pub number: u32,
    /// Whether it is without protection by an IOMMU (`vfio.enable_unsafe_noiommu_mode`).
    pub no_iommu: bool,
    /// The other devices in it.
    pub others: Vec<Member>,
}

/// A device in a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Name in sysfs; the address of a PCI function.
    pub name: String,
    /// The driver that it is bound to.
    pub driver: Option<String>,
    /// Whether it is a PCI-to-PCI bridge.
    pub bridge: bool,
}

impl Member {
    /// Returns whether it prevents VFIO from assigning its group, because its driver uses DMA.
    ///
    /// Bridges do not, nor do drivers that leave DMA to user space (`driver_managed_dma` in Linux).
    pub fn blocks(&self) -> bool {
        let Some(driver) = self.driver.as_deref() else { return false };
        let leaves_dma = driver == "pci-stub" || driver == "pcieport" || driver.replace('_', "-").ends_with("vfio-pci");
        !self.bridge && !leaves_dma
    }

    /// Returns its address, if it is a PCI function.
    pub fn address(&self) -> Option<Address> {
        self.name.parse().ok()
    }
}

/// Returns the group of a function.
pub(crate) fn of(sysfs: &Sysfs, address: Address) -> Option<Group> {
    let number_of = link_name(&sysfs.folder(address).join("iommu_group"))?.parse().ok()?;
    let folder = sysfs.group(number_of);
    let own = address.to_string();
    let others = names(&folder.join("devices")).into_iter().filter(|name| *name != own);
    let others = others.map(|name| {
        let device = folder.join("devices").join(&name);
        let class: Option<u32> = number(&device.join("class"));
        Member { driver: link_name(&device.join("driver")), bridge: class.is_some_and(|class| class >> 8 == BRIDGE), name }
    });
    let no_iommu = text(&folder.join("name")).as_deref() == Some(NO_IOMMU);
    Some(Group { number: number_of, no_iommu, others: others.collect() })
}

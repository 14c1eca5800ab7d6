//! IOMMU groups: what VFIO hands out as one.

use super::address::Address;
use super::sysfs::Sysfs;
use super::sysfs::{link_name, names, number, text};

/// Base class and subclass of PCI-to-PCI bridges.
const BRIDGE: u32 = 0x0604;

/// The name of groups that VFIO makes for functions without an IOMMU.
const NO_IOMMU: &str = "vfio-noiommu";

/// An IOMMU group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its number.
    pub number: u32,
    /// Whether it stands for no protection at all (`vfio.enable_unsafe_noiommu_mode`).
    pub no_iommu: bool,
    /// The devices in it, the function that was asked for left out.
    pub others: Vec<Member>,
}

/// A device in a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Name in sysfs; the address of a PCI function.
    pub name: String,
    /// The driver that has it.
    pub driver: Option<String>,
    /// Whether it is a PCI-to-PCI bridge.
    pub bridge: bool,
}

impl Member {
    /// Whether it keeps VFIO from handing out its group: a driver has it that uses its DMA.
    ///
    /// Bridges do not, nor the drivers that leave DMA to user space (those with `driver_managed_dma` in Linux).
    pub fn blocks(&self) -> bool {
        let Some(driver) = self.driver.as_deref() else { return false };
        let leaves_dma = driver == "pci-stub" || driver == "pcieport" || driver.replace('_', "-").ends_with("vfio-pci");
        !self.bridge && !leaves_dma
    }

    /// Its address, if it is a PCI function.
    pub fn address(&self) -> Option<Address> {
        self.name.parse().ok()
    }
}

/// The group of a function.
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

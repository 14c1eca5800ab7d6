//! A function: what sysfs says of it.

use std::fs;
use std::path::{Path, PathBuf};

use super::address::Address;
use super::capability::{self, Msix};
use super::group::{self, Group};
use super::model::{Kind, Model};
use super::sysfs::{self, ReadError, Sysfs, link_name, names, number, text};

/// A PCI function as sysfs shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Where it is.
    pub address: Address,
    /// PCI vendor identifier.
    pub vendor: u16,
    /// PCI device identifier.
    pub device: u16,
    /// What the identifiers stand for; none if it is neither an mlx5 function nor one in recovery.
    pub model: Option<Model>,
    /// PCI class code: base class, subclass, programming interface.
    pub class: u32,
    /// The driver that has it.
    pub driver: Option<String>,
    /// Which driver alone may have it (`driver_override`).
    pub driver_override: Option<String>,
    /// Its IOMMU group.
    pub group: Option<Group>,
    /// The memory node that it is near to.
    pub numa_node: Option<u32>,
    /// Its PCIe link.
    pub link: Option<Link>,
    /// Bytes of BAR0; 0 if there is none.
    pub bar0: u64,
    /// The physical function whose virtual function it is.
    pub physical_function: Option<Address>,
    /// How many virtual functions it has now.
    pub virtual_functions: u16,
    /// Whether it has MSI-X.
    pub msix: Msix,
    /// Whether its configuration space answers: all ones come from a function that is not there any more.
    pub answers: bool,
    /// Whether the kernel can reset it.
    pub resettable: bool,
    /// Network interfaces that the kernel's driver made of it.
    pub interfaces: Vec<String>,
    /// RDMA devices that the kernel's driver made of it.
    pub rdma_devices: Vec<String>,
    /// Its file for VFIO without groups (`/dev/vfio/devices/vfioN`), if it is there: kernels have it since 6.6, and only with
    /// `CONFIG_VFIO_DEVICE_CDEV`.
    pub device_file: Option<PathBuf>,
}

/// A PCIe link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Speed now, in the kernel's words: "16.0 GT/s PCIe".
    pub speed: String,
    /// Lanes now.
    pub width: u8,
    /// Highest speed of the function.
    pub max_speed: String,
    /// Most lanes of the function.
    pub max_width: u8,
}

impl Link {
    /// Whether it is slower or narrower than the function can.
    pub fn degraded(&self) -> bool {
        self.speed != self.max_speed || self.width != self.max_width
    }
}

impl Function {
    /// Name of the product, with what kind of function it is; the identifiers if they are unknown.
    pub fn name(&self) -> String {
        match self.model {
            Some(Model { name, kind: Kind::Physical, .. }) => name.into(),
            Some(Model { name, kind: Kind::Virtual, .. }) => format!("{name} VF"),
            Some(Model { name, kind: Kind::Recovery, .. }) => format!("{name} in recovery"),
            None => format!("{:04x}:{:04x}", self.vendor, self.device),
        }
    }
}

/// The mlx5 functions of a machine, adapters in firmware recovery included, by address. None if the machine has no PCI.
///
/// # Errors
///
/// If the list of functions is there and cannot be read.
pub fn functions(sysfs: &Sysfs) -> Result<Vec<Function>, ReadError> {
    let folder = sysfs.pci("devices");
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let addresses = sysfs::list(&folder)?.into_iter().filter_map(|name| name.parse().ok());
    let mut found: Vec<_> = addresses.filter_map(|address| function(sysfs, address)).collect();
    found.retain(|function| function.model.is_some());
    found.sort_by_key(|function| function.address);
    Ok(found)
}

/// The function at an address, whatever it is; none if there is none.
pub fn function(sysfs: &Sysfs, address: Address) -> Option<Function> {
    let folder = sysfs.folder(address);
    let (vendor, device) = (number(&folder.join("vendor"))?, number(&folder.join("device"))?);
    // A file that is not readable is none that says anything.
    let config = fs::read(folder.join("config")).unwrap_or_default();
    Some(Function {
        address,
        vendor,
        device,
        model: Model::find(vendor, device),
        class: number(&folder.join("class")).unwrap_or(0),
        driver: link_name(&folder.join("driver")),
        driver_override: text(&folder.join("driver_override")).filter(|name| name != "(null)"),
        group: group::of(sysfs, address),
        // -1, which is no number here, stands for none.
        numa_node: number(&folder.join("numa_node")),
        link: link(&folder),
        bar0: bar0(&folder),
        physical_function: link_name(&folder.join("physfn")).and_then(|name| name.parse().ok()),
        virtual_functions: number(&folder.join("sriov_numvfs")).unwrap_or(0),
        msix: capability::msix(&config),
        // Not the identifiers alone: those of a virtual function read as ones (SR-IOV 1.1, 3.4.1.1).
        answers: config.is_empty() || config.iter().take(64).any(|byte| *byte != 0xff),
        resettable: folder.join("reset").exists(),
        interfaces: names(&folder.join("net")),
        rdma_devices: names(&folder.join("infiniband")),
        device_file: device_path(sysfs, address).filter(|path| path.exists()),
    })
}

/// Where the file of a function for VFIO without groups has its place. Kernels without the device interface name it too.
pub(crate) fn device_path(sysfs: &Sysfs, address: Address) -> Option<PathBuf> {
    let made = names(&sysfs.folder(address).join("vfio-dev"));
    made.first().map(|name| sysfs.dev(&format!("vfio/devices/{name}")))
}

fn link(folder: &Path) -> Option<Link> {
    let read = |name: &str| text(&folder.join(name));
    let width = |name: &str| number(&folder.join(name));
    // Functions that are not on a link, as virtual ones, have the files and "Unknown" or 0 in them.
    let link = Link {
        speed: read("current_link_speed")?,
        width: width("current_link_width")?,
        max_speed: read("max_link_speed")?,
        max_width: width("max_link_width")?,
    };
    (link.width > 0 && !link.speed.starts_with("Unknown")).then_some(link)
}

/// Bytes of BAR0 according to the first line of `resource`: first address, last address, flags.
fn bar0(folder: &Path) -> u64 {
    let size = || {
        let resources = text(&folder.join("resource"))?;
        let mut words = resources.lines().next()?.split_whitespace();
        let mut address = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
        let (first, last) = (address()?, address()?);
        if last == 0 { None } else { last.checked_sub(first)?.checked_add(1) }
    };
    size().unwrap_or(0)
}

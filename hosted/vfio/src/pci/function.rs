//! A PCI function according to sysfs.

use std::fs;
use std::path::{Path, PathBuf};

use bareverbs::LinkLayer;

use super::address::Address;
use super::capability::{self, Msix};
use super::group::{self, Group};
use super::model::{Kind, Model};
use super::sysfs::{self, ReadError, Sysfs, link_name, names, number, text};

/// A PCI function according to sysfs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its address.
    pub address: Address,
    /// PCI vendor identifier.
    pub vendor: u16,
    /// PCI device identifier.
    pub device: u16,
    /// Model of these identifiers; `None` if it is neither an mlx5 function nor one in recovery.
    pub model: Option<Model>,
    /// PCI class code: base class, subclass, programming interface.
    pub class: u32,
    /// The driver that it is bound to.
    pub driver: Option<String>,
    /// The only driver that it may be bound to (`driver_override`).
    pub driver_override: Option<String>,
    /// Its IOMMU group.
    pub group: Option<Group>,
    /// Its NUMA node.
    pub numa_node: Option<u32>,
    /// Its PCIe link.
    pub link: Option<Link>,
    /// Size of BAR0 in bytes; 0 if there is none.
    pub bar0: u64,
    /// Its physical function, if it is a virtual one.
    pub physical_function: Option<Address>,
    /// Number of its virtual functions now.
    pub virtual_functions: u16,
    /// Whether it has MSI-X.
    pub msix: Msix,
    /// Whether its configuration space does not read as all ones, as that of a removed function does.
    pub answers: bool,
    /// Whether the kernel can reset it.
    pub resettable: bool,
    /// Network interfaces that the kernel's driver created for it.
    pub interfaces: Vec<String>,
    /// RDMA devices that the kernel's driver created for it.
    pub rdma_devices: Vec<String>,
    /// Its file for VFIO without groups (`/dev/vfio/devices/vfioN`), if it exists. Kernels since 6.6 have it with
    /// `CONFIG_VFIO_DEVICE_CDEV`.
    pub device_file: Option<PathBuf>,
}

/// A PCIe link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Current speed as text of the kernel: "16.0 GT/s PCIe".
    pub speed: String,
    /// Current number of lanes.
    pub width: u8,
    /// Maximum speed of the function.
    pub max_speed: String,
    /// Maximum number of lanes of the function.
    pub max_width: u8,
}

impl Link {
    /// Returns whether speed or width is below the maximum of the function.
    pub fn degraded(&self) -> bool {
        self.speed != self.max_speed || self.width != self.max_width
    }
}

impl Function {
    /// Returns what its port is, which its class shows (PCI Code and ID Assignment, base class 02: subclass 00 Ethernet, 07 InfiniBand).
    /// `None` of another class, as in firmware recovery. `LINK_TYPE_P1` of the card's settings changes the class.
    pub const fn link_layer(&self) -> Option<LinkLayer> {
        match self.class >> 8 {
            0x0200 => Some(LinkLayer::Ethernet),
            0x0207 => Some(LinkLayer::InfiniBand),
            _ => None,
        }
    }

    /// Returns the name of the product and the kind of function; the identifiers if they are unknown.
    pub fn name(&self) -> String {
        match self.model {
            Some(Model { name, kind: Kind::Physical, .. }) => name.into(),
            Some(Model { name, kind: Kind::Virtual, .. }) => format!("{name} VF"),
            Some(Model { name, kind: Kind::Recovery, .. }) => format!("{name} in recovery"),
            None => format!("{:04x}:{:04x}", self.vendor, self.device),
        }
    }
}

/// Returns the mlx5 functions of a machine in order of address, including adapters in firmware recovery. The list is empty if the
/// machine has no PCI.
///
/// # Errors
///
/// The list of functions exists and cannot be read.
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

/// Returns the function of any kind at an address; `None` if there is none.
pub fn function(sysfs: &Sysfs, address: Address) -> Option<Function> {
    let folder = sysfs.folder(address);
    let (vendor, device) = (number(&folder.join("vendor"))?, number(&folder.join("device"))?);
    // A file that is not readable counts as empty.
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
        // -1 means none, and does not parse.
        numa_node: number(&folder.join("numa_node")),
        link: link(&folder),
        bar0: bar0(&folder),
        physical_function: link_name(&folder.join("physfn")).and_then(|name| name.parse().ok()),
        virtual_functions: number(&folder.join("sriov_numvfs")).unwrap_or(0),
        msix: capability::msix(&config),
        // More than the identifiers, since those of a virtual function read as ones (SR-IOV 1.1, 3.4.1.1).
        answers: config.is_empty() || config.iter().take(64).any(|byte| *byte != 0xff),
        resettable: folder.join("reset").exists(),
        interfaces: names(&folder.join("net")),
        rdma_devices: names(&folder.join("infiniband")),
        device_file: device_path(sysfs, address).filter(|path| path.exists()),
    })
}

/// Returns the path of a function's file for VFIO without groups. Kernels without this interface name it too.
pub(crate) fn device_path(sysfs: &Sysfs, address: Address) -> Option<PathBuf> {
    let made = names(&sysfs.folder(address).join("vfio-dev"));
    made.first().map(|name| sysfs.dev(&format!("vfio/devices/{name}")))
}

fn link(folder: &Path) -> Option<Link> {
    let read = |name: &str| text(&folder.join(name));
    let width = |name: &str| number(&folder.join(name));
    // Functions without a link, such as virtual ones, have these files with "Unknown" or 0.
    let link = Link {
        speed: read("current_link_speed")?,
        width: width("current_link_width")?,
        max_speed: read("max_link_speed")?,
        max_width: width("max_link_width")?,
    };
    (link.width > 0 && !link.speed.starts_with("Unknown")).then_some(link)
}

/// Returns the size of BAR0 in bytes, from the first line of `resource`: first address, last address, flags.
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

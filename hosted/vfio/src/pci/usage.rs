//! Uses of a function by the machine, which would break if it were bound to vfio-pci.

use std::fmt;
use std::fs;

use super::address::Address;
use super::function::Function;
use super::process::{Holder, holders};
use super::sysfs::{Sysfs, link_name, names, number};

/// Flag of an interface: it is up (`IFF_UP`).
const IFF_UP: u32 = 1;

/// Flag of a route in `/proc/net/route` and `/proc/net/ipv6_route`: usable.
const RTF_UP: u32 = 1;

/// A use of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Usage {
    /// A network interface of it carries a default route.
    DefaultRoute {
        /// The interface of the route: that of the function, or the one above it (a bond, a bridge).
        interface: String,
    },
    /// A network interface of it is up.
    InterfaceUp {
        /// The interface.
        interface: String,
    },
    /// Processes use an RDMA device of it.
    Rdma {
        /// The RDMA device.
        device: String,
        /// The processes.
        holders: Vec<Holder>,
    },
    /// It has virtual functions, which are removed when its driver is unbound.
    VirtualFunctions {
        /// Number of them.
        count: u16,
    },
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DefaultRoute { interface } => write!(f, "the machine's default route goes through {interface}"),
            Self::InterfaceUp { interface } => write!(f, "network interface {interface} is up"),
            Self::Rdma { device, holders } => write!(f, "RDMA device {device} is in use by {}", Holders(holders)),
            Self::VirtualFunctions { count } => write!(f, "its {count} virtual functions would go away with its driver"),
        }
    }
}

/// Returns a list of processes for a message.
pub(crate) struct Holders<'a>(pub(crate) &'a [Holder]);

impl fmt::Display for Holders<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("another process (root sees which)");
        }
        for (at, holder) in self.0.iter().enumerate() {
            let comma = if at > 0 { ", " } else { "" };
            write!(f, "{comma}process {}", holder.pid)?;
            if !holder.name.is_empty() {
                write!(f, " ({})", holder.name)?;
            }
        }
        Ok(())
    }
}

/// Returns the uses of a function, except kernel users of RDMA (NFS, NVMe over fabrics).
pub(crate) fn of(sysfs: &Sysfs, function: &Function) -> Vec<Usage> {
    let mut found = Vec::new();
    let folder = sysfs.folder(function.address);
    for interface in &function.interfaces {
        let net = folder.join("net").join(interface);
        let master = link_name(&net.join("master"));
        let route = default_routes(sysfs).into_iter().find(|name| name == interface || Some(name) == master.as_ref());
        let flags: u32 = number(&net.join("flags")).unwrap_or(0);
        if let Some(interface) = route {
            found.push(Usage::DefaultRoute { interface });
        } else if flags & IFF_UP != 0 {
            found.push(Usage::InterfaceUp { interface: interface.clone() });
        }
    }
    // The folder of each verbs device file names its RDMA device.
    for file in names(&folder.join("infiniband_verbs")) {
        let holders = holders(sysfs, &sysfs.dev(&format!("infiniband/{file}")));
        if !holders.is_empty() {
            let device = super::sysfs::text(&folder.join("infiniband_verbs").join(&file).join("ibdev"));
            found.push(Usage::Rdma { device: device.unwrap_or(file), holders });
        }
    }
    if function.virtual_functions > 0 {
        found.push(Usage::VirtualFunctions { count: function.virtual_functions });
    }
    found
}

/// Returns the interfaces with a default route of IPv4 or IPv6.
fn default_routes(sysfs: &Sysfs) -> Vec<String> {
    let mut found = Vec::new();
    let table = |name: &str| fs::read_to_string(sysfs.proc(name)).unwrap_or_default();
    // Interface, destination, gateway, flags, …, mask in the eighth column.
    for line in table("net/route").lines().skip(1) {
        let words: Vec<_> = line.split_whitespace().collect();
        if let [interface, "00000000", _, flags, _, _, _, "00000000", ..] = words.as_slice()
            && u32::from_str_radix(flags, 16).is_ok_and(|flags| flags & RTF_UP != 0)
        {
            found.push((*interface).into());
        }
    }
    // Destination, its prefix length, source, its prefix length, next hop, metric, users, uses, flags, interface.
    for line in table("net/ipv6_route").lines() {
        let words: Vec<_> = line.split_whitespace().collect();
        if let [destination, "00", _, _, _, _, _, _, flags, interface] = words.as_slice()
            && destination.bytes().all(|digit| digit == b'0')
            && u32::from_str_radix(flags, 16).is_ok_and(|flags| flags & RTF_UP != 0)
            // The kernel's own "unreachable" default is on the loopback interface.
            && *interface != "lo"
        {
            found.push((*interface).into());
        }
    }
    found
}

/// Returns the processes that have a group open.
pub(crate) fn group_holders(sysfs: &Sysfs, group: u32) -> Vec<Holder> {
    holders(sysfs, &sysfs.dev(&format!("vfio/{group}")))
}

/// Returns the processes that have a function open, by its group or by its own file.
pub(crate) fn vfio_holders(sysfs: &Sysfs, address: Address) -> Vec<Holder> {
    let Some(function) = super::function(sysfs, address) else { return Vec::new() };
    let mut found = function.group.map_or_else(Vec::new, |group| group_holders(sysfs, group.number));
    found.extend(function.device_file.iter().flat_map(|path| holders(sysfs, path)));
    found.sort_by_key(|holder| holder.pid);
    found.dedup();
    found
}

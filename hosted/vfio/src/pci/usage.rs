//! Uses of a function by the machine, which would break if it were bound to vfio-pci.

use std::fmt;
use std::path::{Path, PathBuf};

use super::address::Address;
use super::function::{Function, device_path};
use super::network::{Carried, Networks};
use super::process::{Holder, holders, processes};
use super::rdma_users;
use super::sysfs::{Sysfs, link_name, names, number};

/// Flag of an interface: it is up (`IFF_UP`).
const IFF_UP: u32 = 1;

/// A use of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Usage {
    /// A network interface of it carries a default route.
    DefaultRoute {
        /// The interface of the route: that of the function, or the one above it (a bond, a bridge).
        interface: String,
    },
    /// A network interface of it, or one above it (a bond, a bridge, a VLAN), has addresses or routes.
    Network {
        /// The interface.
        interface: String,
        /// Its addresses with their prefix lengths.
        addresses: Vec<String>,
        /// Destinations of its routes, except the default and the networks of its addresses.
        routes: Vec<String>,
    },
    /// A network interface of it is up.
    InterfaceUp {
        /// The interface.
        interface: String,
    },
    /// Network interfaces of it that are up are ports of a bridge, a bond or Open vSwitch without addresses or routes: those of the
    /// machine may be on another port of it.
    Ports {
        /// The interfaces.
        interfaces: Vec<String>,
        /// The bridge, bond or switch.
        of: String,
    },
    /// A SCSI host of the kernel reaches its disks through it (SRP, iSER).
    ScsiHost {
        /// Name of the host.
        host: String,
        /// Module of the kernel.
        module: String,
    },
    /// A module of the kernel has queue pairs on an RDMA device of it: NVMe over fabrics or NFS by `rdma_cm`, SRP, SMC.
    KernelQueuePairs {
        /// The RDMA device.
        device: String,
        /// The module.
        module: String,
        /// Number of them.
        count: u32,
    },
    /// A network interface of it is in another network namespace: that of a container, say.
    OtherNamespace {
        /// The interface.
        interface: String,
        /// A process in that namespace.
        holder: Holder,
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
            Self::Network { interface, addresses, routes } => {
                write!(f, "network interface {interface} would lose ")?;
                let list = |one: &str, several: &str, all: &[String]| match all {
                    [] => None,
                    [only] => Some(format!("{one} {only}")),
                    all => Some(format!("{several} {}", all.join(" and "))),
                };
                let parts = [list("its address", "its addresses", addresses), list("its route to", "its routes to", routes)];
                f.write_str(&parts.into_iter().flatten().collect::<Vec<_>>().join(" and "))
            }
            Self::InterfaceUp { interface } => write!(f, "network interface {interface} is up"),
            Self::Ports { interfaces, of } => match interfaces.as_slice() {
                [only] => write!(f, "network interface {only} is a port of {of}"),
                all => write!(f, "network interfaces {} are ports of {of}", all.join(" and ")),
            },
            Self::ScsiHost { host, module } => write!(f, "SCSI host {host} reaches its disks through it ({module})"),
            Self::KernelQueuePairs { device, module, count } => {
                write!(f, "RDMA device {device} has {count} queue pairs of the kernel's module {module}")
            }
            Self::OtherNamespace { interface, holder } => {
                write!(
                    f,
                    "network interface {interface} is in the network namespace of {}",
                    Holders(std::slice::from_ref(holder))
                )
            }
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

/// Returns the uses of a function. Queue pairs of the kernel are asked for on this machine alone: no copied tree has them.
pub(crate) fn of(sysfs: &Sysfs, function: &Function) -> Vec<Usage> {
    let mut found = Vec::new();
    let folder = sysfs.folder(function.address);
    let networks = Networks::of(sysfs);
    for interface in &function.interfaces {
        let net = folder.join("net").join(interface);
        let mut interfaces = vec![interface.clone()];
        interfaces.extend(above(&net));
        let flags: u32 = number(&net.join("flags")).unwrap_or(0);
        let default_route = networks.default_route(&interfaces);
        if let Some(interface) = default_route {
            found.push(Usage::DefaultRoute { interface: interface.clone() });
        }
        let is_in_use = found.len();
        for name in &interfaces {
            let Carried { addresses, routes } = networks.carried_by(name);
            if !addresses.is_empty() || !routes.is_empty() {
                found.push(Usage::Network { interface: name.clone(), addresses, routes });
            }
        }
        if default_route.is_none() && found.len() == is_in_use && flags & IFF_UP != 0 {
            match link_name(&net.join("master")).or_else(|| upper_links(&net).into_iter().next().map(|(name, _)| name)) {
                Some(of) => add_port(&mut found, interface, of),
                None => found.push(Usage::InterfaceUp { interface: interface.clone() }),
            }
        }
    }
    found.extend(in_other_namespaces(sysfs, function));
    // The folder of each verbs device file names its RDMA device.
    for file in names(&folder.join("infiniband_verbs")) {
        let holders = holders(sysfs, &sysfs.dev(&format!("infiniband/{file}")));
        if !holders.is_empty() {
            let device = super::sysfs::text(&folder.join("infiniband_verbs").join(&file).join("ibdev"));
            found.push(Usage::Rdma { device: device.unwrap_or(file), holders });
        }
    }
    found.extend(of_the_kernel(sysfs, function));
    if function.virtual_functions > 0 {
        found.push(Usage::VirtualFunctions { count: function.virtual_functions });
    }
    found
}

/// Adds an interface to the ports of another, so that an uplink and its representors are named together.
fn add_port(found: &mut Vec<Usage>, interface: &str, of: String) {
    for usage in found.iter_mut() {
        if let Usage::Ports { interfaces, of: known } = usage
            && *known == of
        {
            interfaces.push(interface.into());
            return;
        }
    }
    found.push(Usage::Ports { interfaces: vec![interface.into()], of });
}

/// Returns what the kernel itself does with a function's RDMA devices. Its SCSI hosts lie in the folder of the function
/// (`scsi_add_host` of ib_srp, `iscsi_host_add` of ib_iser).
fn of_the_kernel(sysfs: &Sysfs, function: &Function) -> Vec<Usage> {
    let folder = sysfs.folder(function.address);
    let is_host = |name: &String| name.strip_prefix("host").is_some_and(|number| number.parse::<u32>().is_ok());
    let scsi_host = |host: String| {
        let module = super::sysfs::text(&folder.join(&host).join("scsi_host").join(&host).join("proc_name"));
        Usage::ScsiHost { module: module.unwrap_or_else(|| "scsi".into()), host }
    };
    let mut found: Vec<_> = names(&folder).into_iter().filter(is_host).map(scsi_host).collect();
    if sysfs.is_machine() {
        for device in &function.rdma_devices {
            let modules = rdma_users::modules(device).into_iter();
            found.extend(modules.map(|(module, count)| Usage::KernelQueuePairs { device: device.clone(), module, count }));
        }
    }
    found
}

/// Returns the interfaces of a function that its folder does not list, because they are in other network namespaces. The sysfs of a
/// process there lists them, if it has one mounted. Root sees those of all processes.
fn in_other_namespaces(sysfs: &Sysfs, function: &Function) -> Vec<Usage> {
    let mut found: Vec<Usage> = Vec::new();
    for holder in processes(sysfs) {
        let net = sysfs.proc(&format!("{}/root/sys/bus/pci/devices/{}/net", holder.pid, function.address));
        for interface in names(&net) {
            let is_new =
                |usage: &Usage| !matches!(usage, Usage::OtherNamespace { interface: known, .. } if *known == interface);
            if !function.interfaces.contains(&interface) && found.iter().all(is_new) {
                found.push(Usage::OtherNamespace { interface, holder: holder.clone() });
            }
        }
    }
    found
}

/// Returns the interfaces above one (a bond, a bridge, a VLAN), by the links that the kernel makes: `upper_NAME`, `master`.
fn above(folder: &Path) -> Vec<String> {
    let mut found: Vec<String> = link_name(&folder.join("master")).into_iter().collect();
    // The links among many interfaces could form a circle in a tree that is none of a kernel.
    const DEPTH: usize = 8;
    let mut folders = vec![folder.to_path_buf()];
    for _ in 0..DEPTH {
        let next: Vec<_> = folders.iter().flat_map(|folder| upper_links(folder)).collect();
        found.extend(next.iter().map(|(name, _)| name.clone()));
        folders = next.into_iter().map(|(_, folder)| folder).collect();
    }
    found.sort_unstable();
    found.dedup();
    found
}

fn upper_links(folder: &Path) -> Vec<(String, PathBuf)> {
    let link = |name: &String| Some((name.strip_prefix("upper_")?.to_string(), folder.join(name)));
    names(folder).iter().filter_map(link).collect()
}

/// Returns the processes that have a group open, or a function of it by its own file.
pub(crate) fn group_holders(sysfs: &Sysfs, group: u32) -> Vec<Holder> {
    let members = names(&sysfs.group(group).join("devices"));
    let own_files = members.iter().filter_map(|name| device_path(sysfs, name.parse().ok()?));
    let mut found: Vec<_> =
        own_files.chain([sysfs.dev(&format!("vfio/{group}"))]).flat_map(|path| holders(sysfs, &path)).collect();
    found.sort_by_key(|holder| holder.pid);
    found.dedup();
    found
}

/// Returns the processes that have a function's group open.
pub(crate) fn vfio_holders(sysfs: &Sysfs, address: Address) -> Vec<Holder> {
    let group = super::function(sysfs, address).and_then(|function| function.group);
    group.map_or_else(Vec::new, |group| group_holders(sysfs, group.number))
}

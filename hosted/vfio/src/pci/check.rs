//! Finds the obstacles to using a function over VFIO.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use super::capability::Msix;
use super::function::Function;
use super::interface::Interface;
use super::model::Kind;
use super::model::Model;
use super::obstacle::{Cpu, Machine, Obstacle};
use super::plan::VFIO_PCI;
use super::process::Process;
use super::sysfs::{Sysfs, link_name};
use super::usage::{self, group_holders};

/// Requirements of a program on a function and on the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// Minimum size of BAR0 in bytes.
    pub bar0: u64,
    /// Bytes of memory to lock for DMA.
    pub memlock: u64,
}

impl Default for Need {
    /// Returns the requirements of the driver: the initialization segment (to the health counter at 0x1010), the MSI-X table and a
    /// doorbell page, without memory.
    fn default() -> Self {
        Self { bar0: 0x8000, memlock: 0 }
    }
}

/// Returns the obstacles to the use of `function` over VFIO by `process`.
///
/// Obstacles that only an attempt shows are not included: an exhausted limit of locked memory, or a process that is not visible.
pub fn obstacles(sysfs: &Sysfs, function: &Function, process: &Process, need: &Need) -> Vec<Obstacle> {
    let mut found = hardware(sysfs, function, need);
    if found.iter().any(Obstacle::is_final) {
        // Removing the other obstacles would not help.
        return found;
    }
    found.extend(iommu(sysfs, function));
    found.extend(driver(sysfs, function));
    if function.driver.as_deref() == Some(VFIO_PCI) {
        found.extend(files(sysfs, function, process));
    }
    if let Some(limit) = process.memlock
        && limit < need.memlock
        && !process.ipc_lock
    {
        found.push(Obstacle::Memlock { limit, needed: need.memlock });
    }
    found
}

/// Returns [`Obstacle::InUse`] for a group, with the visible processes that have it open.
pub fn in_use(sysfs: &Sysfs, group: u32) -> Obstacle {
    Obstacle::InUse { group, holders: group_holders(sysfs, group) }
}

/// Returns the obstacles of the function itself.
pub(crate) fn hardware(sysfs: &Sysfs, function: &Function, need: &Need) -> Vec<Obstacle> {
    let address = function.address;
    let mut found = Vec::new();
    match function.model {
        None => return vec![Obstacle::NotMlx5 { address, vendor: function.vendor, device: function.device }],
        Some(Model { name, kind: Kind::Recovery, device, .. }) => {
            return vec![Obstacle::FirmwareRecovery { address, name, device }];
        }
        Some(_) => {}
    }
    if !function.answers {
        return vec![Obstacle::NoAnswer { address }];
    }
    if is_on_bluefield(sysfs) && function.model.is_some_and(|model| model.name.starts_with("BlueField")) {
        return vec![Obstacle::EmbeddedCpu { address }];
    }
    if function.bar0 < need.bar0 {
        found.push(Obstacle::BarTooSmall { address, size: function.bar0, needed: need.bar0 });
    }
    if function.msix == Msix::Absent {
        found.push(Obstacle::NoMsix { address });
    }
    found
}

/// Returns an obstacle if no IOMMU translates the function's DMA.
pub(crate) fn iommu(sysfs: &Sysfs, function: &Function) -> Option<Obstacle> {
    match &function.group {
        None => Some(Obstacle::NoIommu { address: function.address, machine: machine(sysfs) }),
        Some(group) if group.no_iommu => Some(Obstacle::UnsafeNoIommu { group: group.number, machine: machine(sysfs) }),
        Some(_) => None,
    }
}

fn driver(sysfs: &Sysfs, function: &Function) -> Vec<Obstacle> {
    let address = function.address;
    let mut found = Vec::new();
    if !sysfs.driver(VFIO_PCI).exists() {
        found.push(Obstacle::ModuleNotLoaded);
    }
    if function.driver.as_deref() != Some(VFIO_PCI) {
        found.push(Obstacle::NotBound { address, driver: function.driver.clone() });
        found.extend(usage::of(sysfs, function).into_iter().map(|usage| Obstacle::Used { address, usage: Box::new(usage) }));
    }
    found.extend(vf_token(sysfs, function));
    if let Some(group) = &function.group {
        let members: Vec<_> = group.others.iter().filter(|member| member.blocks()).cloned().collect();
        if !members.is_empty() {
            found.push(Obstacle::GroupNotViable { address, group: group.number, members });
        }
    }
    found
}

/// Returns an obstacle if vfio-pci has the physical function of a virtual one.
fn vf_token(sysfs: &Sysfs, function: &Function) -> Option<Obstacle> {
    let physical = function.physical_function?;
    let driver = link_name(&sysfs.folder(physical).join("driver"));
    (driver.as_deref() == Some(VFIO_PCI)).then_some(Obstacle::VfToken { address: function.address, physical })
}

fn files(sysfs: &Sysfs, function: &Function, process: &Process) -> Vec<Obstacle> {
    let Some(group) = function.group.as_ref().filter(|group| !group.no_iommu) else { return Vec::new() };
    let wanted = Interface::of(sysfs, function, process).files(sysfs, function);
    let mut found: Vec<_> = wanted.into_iter().filter_map(|path| denied(path, process)).collect();
    let holders = group_holders(sysfs, group.number);
    if !holders.is_empty() {
        found.push(Obstacle::InUse { group: group.number, holders });
    }
    found
}

fn denied(path: PathBuf, process: &Process) -> Option<Obstacle> {
    let Ok(file) = fs::metadata(&path) else { return Some(Obstacle::NoFile { path }) };
    let denied = Obstacle::NoAccess { path: path.clone(), uid: file.uid(), gid: file.gid(), mode: file.mode() };
    (!process.may_open(&path)).then_some(denied)
}

/// Returns the properties of the machine that decide how its IOMMU is enabled.
fn machine(sysfs: &Sysfs) -> Machine {
    let text = fs::read_to_string(sysfs.proc("cpuinfo")).unwrap_or_default();
    let line = |name: &str| text.lines().find(|line| line.starts_with(name));
    let cpu = match line("vendor_id") {
        Some(line) if line.contains("GenuineIntel") => Cpu::Intel,
        Some(line) if line.contains("AuthenticAMD") || line.contains("HygonGenuine") => Cpu::Amd,
        _ => Cpu::Other,
    };
    // Bit 31 of ECX of CPUID leaf 1, which only hypervisors set. Without CPUID, the maker according to the firmware.
    let has_flag = line("flags").is_some_and(|line| line.split_whitespace().any(|flag| flag == "hypervisor"));
    Machine { cpu, is_virtual: has_flag || has_virtual_maker(sysfs), parameters: parameters(sysfs) }
}

/// Returns whether the machine is the processor of a BlueField: its firmware describes parts that no other machine has (MLNXBF04 is
/// the boot control of `drivers/platform/mellanox/mlxbf-bootctl.c`).
fn is_on_bluefield(sysfs: &Sysfs) -> bool {
    super::sysfs::names(&sysfs.acpi_devices()).iter().any(|name| name.starts_with("MLNXBF"))
}

/// Returns whether the firmware names a hypervisor as the maker of the machine.
fn has_virtual_maker(sysfs: &Sysfs) -> bool {
    const MAKERS: [&str; 5] = ["QEMU", "VMware", "Xen", "innotek GmbH", "Parallels"];
    let maker = super::sysfs::text(&sysfs.dmi("sys_vendor")).unwrap_or_default();
    MAKERS.iter().any(|name| maker.starts_with(name))
}

/// Returns the parameters of the IOMMU on the kernel's command line.
fn parameters(sysfs: &Sysfs) -> Vec<String> {
    let text = fs::read_to_string(sysfs.proc("cmdline")).unwrap_or_default();
    let names = ["intel_iommu=", "amd_iommu=", "iommu="];
    text.split_whitespace().filter(|word| names.iter().any(|name| word.starts_with(name))).map(Into::into).collect()
}

//! The kernel's two interfaces for devices of a process.

use std::path::PathBuf;

use super::function::{Function, device_path};
use super::process::Process;
use super::sysfs::Sysfs;

/// The interface of the kernel by which a function is opened (Documentation/driver-api/vfio.rst).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interface {
    /// A VFIO container (`/dev/vfio/vfio`) and the file of the IOMMU group (`/dev/vfio/GROUP`).
    Group,
    /// iommufd (`/dev/iommu`) and the function's own file (`/dev/vfio/devices/vfioN`), from Linux 6.6 on if it was built with them.
    Iommufd,
}

impl Interface {
    /// Returns the interface by which this process opens a function: the first one that the kernel has and whose files the process may
    /// open. If it may open neither, the first one that the kernel has.
    pub fn of(sysfs: &Sysfs, function: &Function, process: &Process) -> Self {
        let has = |interface: &Self| interface.files(sysfs, function).iter().all(|path| path.exists());
        let may = |interface: &Self| interface.files(sysfs, function).iter().all(|path| process.may_open(path));
        let both = [Self::Group, Self::Iommufd];
        let found = both.into_iter().find(|interface| has(interface) && may(interface));
        found.or_else(|| both.into_iter().find(has)).unwrap_or(match function.device_file {
            Some(_) => Self::Iommufd,
            None => Self::Group,
        })
    }

    /// Returns the files of it that open a function.
    pub(crate) fn files(self, sysfs: &Sysfs, function: &Function) -> Vec<PathBuf> {
        match self {
            Self::Group => {
                let group = function.group.as_ref().map(|group| sysfs.dev(&format!("vfio/{}", group.number)));
                [sysfs.dev("vfio/vfio")].into_iter().chain(group).collect()
            }
            Self::Iommufd => device_path(sysfs, function.address).into_iter().chain([sysfs.dev("iommu")]).collect(),
        }
    }
}

//! Paths and files of the kernel: sysfs, procfs and device files.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::address::Address;

/// The root folder of sysfs, procfs and the device files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sysfs {
    root: PathBuf,
}

/// A file or folder that could not be read.
#[derive(Debug)]
pub struct ReadError {
    /// The path.
    pub path: PathBuf,
    /// Why.
    pub cause: io::Error,
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cannot be read: {}", self.path.display(), self.cause)
    }
}

impl std::error::Error for ReadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.cause)
    }
}

impl Sysfs {
    /// Returns the root folder of this machine.
    pub fn machine() -> Self {
        Self::at("/")
    }

    /// Creates a root at a folder with `sys`, `dev`, `proc` and `run`: a copy of another machine's, or one of a test.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Returns whether it is the root of this machine.
    pub fn is_machine(&self) -> bool {
        self.root == Path::new("/")
    }

    /// Returns a path below `/sys/bus/pci`.
    pub(crate) fn pci(&self, path: &str) -> PathBuf {
        self.root.join("sys/bus/pci").join(path)
    }

    /// Returns the folder of a function.
    pub(crate) fn folder(&self, address: Address) -> PathBuf {
        self.pci(&format!("devices/{address}"))
    }

    /// Returns the folder of a PCI driver.
    pub(crate) fn driver(&self, name: &str) -> PathBuf {
        self.pci(&format!("drivers/{name}"))
    }

    /// Returns the folder of a kernel module.
    pub(crate) fn module(&self, name: &str) -> PathBuf {
        self.root.join("sys/module").join(name)
    }

    /// Returns the folder of an IOMMU group.
    pub(crate) fn group(&self, number: u32) -> PathBuf {
        self.root.join(format!("sys/kernel/iommu_groups/{number}"))
    }

    /// Returns the folder with the devices that ACPI describes.
    pub(crate) fn acpi_devices(&self) -> PathBuf {
        self.root.join("sys/bus/acpi/devices")
    }

    /// Returns the path of an SMBIOS attribute.
    pub(crate) fn dmi(&self, name: &str) -> PathBuf {
        self.root.join("sys/class/dmi/id").join(name)
    }

    /// Returns a path below `/dev`.
    pub(crate) fn dev(&self, path: &str) -> PathBuf {
        self.root.join("dev").join(path)
    }

    /// Returns a path below `/proc`.
    pub(crate) fn proc(&self, path: &str) -> PathBuf {
        self.root.join("proc").join(path)
    }

    /// Returns the path of the record of a function's former binding, if that differs from the kernel's choice.
    pub(crate) fn memory(&self, address: Address) -> PathBuf {
        self.root.join(format!("run/bareverbs/bind/{address}"))
    }
}

/// Reads an attribute without its line feed; `None` if it does not exist, is not readable or is empty.
pub(crate) fn text(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.into())
}

/// Reads a number from an attribute, decimal or with `0x`.
pub(crate) fn number<T: TryFrom<u64>>(path: &Path) -> Option<T> {
    let text = text(path)?;
    let number = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok()?,
        None => text.parse().ok()?,
    };
    T::try_from(number).ok()
}

/// Returns the last component of the target of a symbolic link.
pub(crate) fn link_name(path: &Path) -> Option<String> {
    Some(fs::read_link(path).ok()?.file_name()?.to_str()?.into())
}

/// Returns the sorted names in a folder; none if there is no such folder.
pub(crate) fn names(path: &Path) -> Vec<String> {
    list(path).unwrap_or_default()
}

/// Returns the sorted names in a folder.
///
/// # Errors
///
/// The folder cannot be read.
pub(crate) fn list(path: &Path) -> Result<Vec<String>, ReadError> {
    let error = |cause| ReadError { path: path.into(), cause };
    let mut names = Vec::new();
    for entry in fs::read_dir(path).map_err(error)? {
        // The kernel has no names that are not Unicode.
        names.extend(entry.map_err(error)?.file_name().into_string());
    }
    names.sort_unstable();
    Ok(names)
}

//! Where the kernel describes functions: sysfs, procfs and device files.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::address::Address;

/// The folders that everything is read from and written to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sysfs {
    root: PathBuf,
}

/// A file or folder that could not be read.
#[derive(Debug)]
pub struct ReadError {
    /// Which.
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
    /// This machine.
    pub fn machine() -> Self {
        Self::at("/")
    }

    /// A folder that has `sys`, `dev`, `proc` and `run` as this machine's root has them: a copy of another machine's, or a
    /// test's.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Whether it is this machine.
    pub fn is_machine(&self) -> bool {
        self.root == Path::new("/")
    }

    /// A path below `/sys/bus/pci`.
    pub(crate) fn pci(&self, path: &str) -> PathBuf {
        self.root.join("sys/bus/pci").join(path)
    }

    /// Folder of a function.
    pub(crate) fn folder(&self, address: Address) -> PathBuf {
        self.pci(&format!("devices/{address}"))
    }

    /// Folder of a driver of PCI functions.
    pub(crate) fn driver(&self, name: &str) -> PathBuf {
        self.pci(&format!("drivers/{name}"))
    }

    /// Folder of a module of the kernel.
    pub(crate) fn module(&self, name: &str) -> PathBuf {
        self.root.join("sys/module").join(name)
    }

    /// Folder of an IOMMU group.
    pub(crate) fn group(&self, number: u32) -> PathBuf {
        self.root.join(format!("sys/kernel/iommu_groups/{number}"))
    }

    /// What the firmware says of the machine (SMBIOS).
    pub(crate) fn dmi(&self, name: &str) -> PathBuf {
        self.root.join("sys/class/dmi/id").join(name)
    }

    /// A path below `/dev`.
    pub(crate) fn dev(&self, path: &str) -> PathBuf {
        self.root.join("dev").join(path)
    }

    /// A path below `/proc`.
    pub(crate) fn proc(&self, path: &str) -> PathBuf {
        self.root.join("proc").join(path)
    }

    /// File that remembers what a function was bound to, if that is not what the kernel would choose.
    pub(crate) fn memory(&self, address: Address) -> PathBuf {
        self.root.join(format!("run/bareverbs/bind/{address}"))
    }
}

/// Text of an attribute, without the end of the line; none if it is not there, not readable or empty.
pub(crate) fn text(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.into())
}

/// Number of an attribute, decimal or with `0x`.
pub(crate) fn number<T: TryFrom<u64>>(path: &Path) -> Option<T> {
    let text = text(path)?;
    let number = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok()?,
        None => text.parse().ok()?,
    };
    T::try_from(number).ok()
}

/// Last part of what a symbolic link names.
pub(crate) fn link_name(path: &Path) -> Option<String> {
    Some(fs::read_link(path).ok()?.file_name()?.to_str()?.into())
}

/// Names in a folder, in order; none if there is no such folder.
pub(crate) fn names(path: &Path) -> Vec<String> {
    list(path).unwrap_or_default()
}

/// Names in a folder, in order.
///
/// # Errors
///
/// If it cannot be read.
pub(crate) fn list(path: &Path) -> Result<Vec<String>, ReadError> {
    let error = |cause| ReadError { path: path.into(), cause };
    let mut names = Vec::new();
    for entry in fs::read_dir(path).map_err(error)? {
        // A name that is no Unicode is none of the kernel's.
        names.extend(entry.map_err(error)?.file_name().into_string());
    }
    names.sort_unstable();
    Ok(names)
}

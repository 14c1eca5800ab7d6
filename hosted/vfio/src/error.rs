//! What can go wrong between a program and its card.

use std::fmt;
use std::io;
use std::path::PathBuf;

use vfio_ioctls::VfioError;

use crate::pci::{Address, Obstacle};

/// Why a card, its memory or its interrupts cannot be had. [`Error::remedy`] says what to do about it.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// There is no PCI function with this address.
    NoSuchFunction {
        /// The address.
        address: Address,
    },
    /// Something that the machine's files show stands in the way.
    Obstacle(Obstacle),
    /// This process has the function open already.
    AlreadyOpen {
        /// The function.
        address: Address,
    },
    /// A file of VFIO did not open.
    File {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        error: io::Error,
    },
    /// The platform's firmware keeps memory mapped for this group (RMRR), which Linux gives to no user.
    DirectMapping {
        /// The IOMMU group.
        group: u32,
    },
    /// The IOMMU does not remap interrupts, so that Linux does not trust the device.
    UnsafeInterrupts,
    /// The IOMMU takes no more mappings for this device's address space (`dma_entry_limit` of vfio_iommu_type1).
    TooManyMappings,
    /// No I/O virtual addresses are left for this many bytes.
    NoAddresses {
        /// Bytes.
        len: u64,
    },
    /// Memory whose start or length is no multiple of the page size, or which is empty.
    Unaligned {
        /// Address of the first byte.
        addr: usize,
        /// Bytes.
        len: usize,
    },
    /// The kernel does not let BAR0 be mapped.
    BarNotMappable,
    /// The device has fewer MSI-X vectors than were asked for.
    NoVectors {
        /// Vectors that were asked for.
        wanted: u16,
        /// Vectors that it has.
        have: u32,
    },
    /// The registers of the device were handed out before.
    RegistersTaken,
    /// The kernel refused something else.
    Io {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        error: io::Error,
    },
    /// VFIO refused something else.
    Vfio {
        /// What was tried.
        what: &'static str,
        /// What it said.
        error: VfioError,
    },
}

impl Error {
    pub(crate) const fn io(what: &'static str, error: io::Error) -> Self {
        Self::Io { what, error }
    }

    pub(crate) const fn vfio(what: &'static str, error: VfioError) -> Self {
        Self::Vfio { what, error }
    }

    /// The remedy: a command, a setting, or a place to look. `None` if nothing is known.
    pub fn remedy(&self) -> Option<String> {
        match self {
            Self::NoSuchFunction { .. } => Some("bareverbs devices (lists the functions that can be used)".into()),
            Self::Obstacle(obstacle) => obstacle.remedy(),
            Self::AlreadyOpen { .. } => Some("drop the device, its memory and its registers first".into()),
            Self::DirectMapping { .. } => {
                Some("dmesg (names the function); another slot, or a setting of the machine's firmware".into())
            }
            Self::UnsafeInterrupts => {
                const TRUST: &str = "echo 1 | sudo tee /sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts, if the \
                                     devices of this machine are trusted and it can remap no interrupts";
                Some(TRUST.into())
            }
            Self::TooManyMappings => Some(
                "fewer and larger buffers, or sudo modprobe vfio_iommu_type1 dma_entry_limit=NUMBER before it is loaded".into(),
            ),
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchFunction { address } => write!(f, "there is no PCI function {address}"),
            Self::Obstacle(obstacle) => obstacle.fmt(f),
            Self::AlreadyOpen { address } => write!(f, "this process has {address} open already"),
            Self::File { path, error } => write!(f, "{} did not open: {error}", path.display()),
            Self::DirectMapping { group } => {
                write!(f, "the machine's firmware keeps memory mapped for IOMMU group {group}, which Linux gives to no user")
            }
            Self::UnsafeInterrupts => f.write_str("the IOMMU of this machine does not remap interrupts"),
            Self::TooManyMappings => f.write_str("the IOMMU takes no more mappings for this device"),
            Self::NoAddresses { len } => write!(f, "no I/O virtual addresses are left for {len} bytes"),
            Self::Unaligned { addr, len } => write!(f, "memory of {len} bytes at {addr:#x} is not whole pages"),
            Self::BarNotMappable => f.write_str("the kernel does not let BAR0 be mapped"),
            Self::NoVectors { wanted, have } => write!(f, "the device has {have} MSI-X vectors, {wanted} are needed"),
            Self::RegistersTaken => f.write_str("the registers of the device were handed out before"),
            Self::Io { what, error } => write!(f, "{what}: {error}"),
            Self::Vfio { what, error } => write!(f, "{what}: {error}"),
        }
    }
}

// Without a source: the text has the cause already.
impl std::error::Error for Error {}

//! What can go wrong between a program and its card.

use std::fmt;
use std::io;
use std::path::PathBuf;

use vfio_ioctls::VfioError;

/// Why a card, its memory or its interrupts cannot be had. [`Error::remedy`] tells what to do about it.
#[derive(Debug)]
pub enum Error {
    /// There is no PCI function with this address.
    NoSuchFunction {
        /// The address as it was asked for.
        address: String,
    },
    /// The function is no ConnectX: its vendor and device ID.
    NotMlx5 {
        /// PCI vendor ID.
        vendor: u16,
        /// PCI device ID.
        device: u16,
    },
    /// The function has another driver than vfio-pci, or none.
    NotBound {
        /// The driver that it has.
        driver: Option<String>,
    },
    /// The function is in no IOMMU group: the machine has no IOMMU, or it is off.
    NoIommu,
    /// The group is one without an IOMMU (`enable_unsafe_noiommu_mode`): the device would reach all memory.
    NoIommuMode {
        /// The file of the group.
        path: PathBuf,
    },
    /// A file of VFIO is not there: its module is not loaded.
    NoVfio {
        /// The file.
        path: PathBuf,
    },
    /// This user may not open a file of VFIO.
    Permission {
        /// The file.
        path: PathBuf,
    },
    /// Another process (or another part of this one) has the device.
    InUse {
        /// The file of its group.
        path: PathBuf,
    },
    /// Functions of the same IOMMU group have drivers of the kernel.
    NotViable {
        /// Number of the group.
        group: u32,
    },
    /// The IOMMU does not remap interrupts, so that Linux does not trust the device.
    UnsafeInterrupts,
    /// More memory than this process may lock (RLIMIT_MEMLOCK).
    MemoryLock {
        /// Bytes that were to be locked.
        needed: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// The IOMMU takes no more mappings from this process (`dma_entry_limit` of vfio_iommu_type1).
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
    /// BAR0 is shorter than an initialization segment and a UAR page.
    BarTooSmall {
        /// Its bytes.
        len: u64,
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
    /// VFIO or the kernel refused something else.
    Io {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        error: io::Error,
    },
    /// The library below refused something else.
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

    pub(crate) fn vfio(what: &'static str, error: VfioError) -> Self {
        Self::Vfio { what, error }
    }

    /// What mends it: a command, a setting, or a place to look. `None` if nothing is known.
    pub fn remedy(&self) -> Option<String> {
        let text = match self {
            Self::NoSuchFunction { .. } => "`bareverbs devices` lists what there is".into(),
            Self::NotBound { .. } => "bind it with `bareverbs bind`".into(),
            Self::NoIommu => {
                "switch the IOMMU on: in the firmware's setup (VT-d, AMD-Vi, SMMU), and with intel_iommu=on or amd_iommu=on on \
                 the kernel's command line"
                    .into()
            }
            Self::NoIommuMode { .. } => "this library uses a card only behind an IOMMU".into(),
            Self::NoVfio { .. } => "modprobe vfio-pci".into(),
            Self::Permission { path } => format!("chown $USER {}", path.display()),
            Self::InUse { path } => format!("end the process that has it: fuser -v {}", path.display()),
            Self::NotViable { .. } => "bind the other functions of the group to vfio-pci too: `bareverbs bind --group`".into(),
            Self::UnsafeInterrupts => "if this machine can remap no interrupts and its devices are trusted: \
                 echo 1 > /sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts"
                .into(),
            Self::MemoryLock { needed, .. } => {
                format!("raise the limit: ulimit -l {}, or memlock in /etc/security/limits.conf", needed.div_ceil(1024))
            }
            Self::TooManyMappings => {
                "reserve huge pages (vm.nr_hugepages), or raise dma_entry_limit of vfio_iommu_type1".into()
            }
            _ => return None,
        };
        Some(text)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchFunction { address } => write!(f, "there is no PCI function {address}"),
            Self::NotMlx5 { vendor, device } => write!(f, "the function {vendor:04x}:{device:04x} is no ConnectX"),
            Self::NotBound { driver: Some(driver) } => write!(f, "the function is bound to {driver}, not to vfio-pci"),
            Self::NotBound { driver: None } => f.write_str("the function is bound to no driver, not to vfio-pci"),
            Self::NoIommu => f.write_str("the function is in no IOMMU group: the IOMMU is off, or there is none"),
            Self::NoIommuMode { path } => {
                write!(f, "the group {} has no IOMMU: the device would reach all memory", path.display())
            }
            Self::NoVfio { path } => write!(f, "there is no {}", path.display()),
            Self::Permission { path } => write!(f, "no permission to open {}", path.display()),
            Self::InUse { path } => write!(f, "another process has the device ({})", path.display()),
            Self::NotViable { group } => {
                write!(f, "IOMMU group {group} is not viable: other functions in it have other drivers")
            }
            Self::UnsafeInterrupts => f.write_str("the IOMMU of this machine does not remap interrupts"),
            Self::MemoryLock { needed, limit } => {
                write!(f, "{needed} bytes of memory have to be locked, and this process may lock {limit} in all")
            }
            Self::TooManyMappings => f.write_str("the IOMMU takes no more mappings from this process"),
            Self::NoAddresses { len } => write!(f, "no I/O virtual addresses are left for {len} bytes"),
            Self::Unaligned { addr, len } => write!(f, "memory of {len} bytes at {addr:#x} is not whole pages"),
            Self::BarTooSmall { len } => write!(f, "BAR0 has {len} bytes, too few for a ConnectX"),
            Self::BarNotMappable => f.write_str("the kernel does not let BAR0 be mapped"),
            Self::NoVectors { wanted, have } => write!(f, "the device has {have} MSI-X vectors, {wanted} are needed"),
            Self::RegistersTaken => f.write_str("the registers of the device were handed out before"),
            Self::Io { what, error } => write!(f, "{what}: {error}"),
            Self::Vfio { what, error } => write!(f, "{what}: {error}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { error, .. } => Some(error),
            Self::Vfio { error, .. } => Some(error),
            _ => None,
        }
    }
}

//! Errors of opening and using a card.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use vfio_ioctls::VfioError;

use crate::pci::{Address, Obstacle};

/// Why a card, its memory or its interrupts are not available. [`Error::remedy`] says what the user can do.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// There is no PCI function with this address.
    NoSuchFunction {
        /// The address.
        address: Address,
    },
    /// The state of the machine prevents the use of the function.
    Obstacle(Obstacle),
    /// This process has the function open already.
    AlreadyOpen {
        /// The function.
        address: Address,
    },
    /// The configuration space of the function answers, and its registers (BAR0) read as all ones: the card's firmware does not run.
    NoRegisters {
        /// The function.
        address: Address,
        /// Time waited.
        waited: Duration,
    },
    /// This process is a forked child of the one that opened the device.
    Forked,
    /// A file of VFIO did not open.
    File {
        /// The file.
        path: PathBuf,
        /// Error of the kernel.
        error: io::Error,
    },
    /// The firmware requires a direct mapping for this group (RMRR), for which Linux refuses it to users.
    DirectMapping {
        /// The IOMMU group.
        group: u32,
    },
    /// The IOMMU does not remap interrupts, so that Linux refuses the device to users.
    UnsafeInterrupts {
        /// The module of the kernel that refuses.
        module: &'static str,
    },
    /// The address space has the maximum number of mappings (`dma_entry_limit` of vfio_iommu_type1).
    TooManyMappings {
        /// The maximum. `None` if the kernel does not tell it (before Linux 5.10).
        limit: Option<u32>,
    },
    /// The smallest page of the IOMMU is larger than a page of the kernel.
    LargePages {
        /// Bytes of the smallest page of the IOMMU.
        iommu: u64,
        /// Bytes of a page of the kernel.
        kernel: u64,
    },
    /// No I/O virtual addresses are left for this many bytes.
    NoAddresses {
        /// Bytes.
        len: u64,
    },
    /// The start or the length of the memory is not a multiple of the page size, or the length is zero.
    Unaligned {
        /// Address of the first byte.
        addr: usize,
        /// Bytes.
        len: usize,
    },
    /// The kernel does not let BAR0 be mapped.
    BarNotMappable,
    /// The device has fewer MSI-X vectors than requested.
    NoVectors {
        /// Requested number of vectors.
        wanted: u16,
        /// Number of vectors of the device.
        have: u32,
    },
    /// [`crate::Device::registers`] was called before.
    RegistersTaken,
    /// Another system call failed.
    Io {
        /// The operation.
        what: &'static str,
        /// Error of the kernel.
        error: io::Error,
    },
    /// Another VFIO operation failed.
    Vfio {
        /// The operation.
        what: &'static str,
        /// Error of `vfio-ioctls`.
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

    /// Returns the remedy: a command, a setting, or a source of information. `None` if none is known.
    pub fn remedy(&self) -> Option<String> {
        match self {
            Self::NoSuchFunction { .. } => Some("bareverbs devices (lists the functions that can be used)".into()),
            Self::Obstacle(obstacle) => obstacle.remedy(),
            Self::AlreadyOpen { .. } => Some("drop the device, its memory and its registers first".into()),
            Self::NoRegisters { .. } => {
                const COLD: &str = "switch the power of the machine off and on: the card keeps its own through a restart. Of a virtual \
                                    function: see that its physical function works";
                Some(COLD.into())
            }
            Self::Forked => Some("open the device after the fork, in the process that uses it".into()),
            Self::DirectMapping { .. } => {
                Some("dmesg (names the function); another slot, or a setting of the machine's firmware".into())
            }
            Self::UnsafeInterrupts { module } => Some(format!(
                "echo 1 | sudo tee /sys/module/{module}/parameters/allow_unsafe_interrupts, if the devices of this machine are \
                 trusted and it can remap no interrupts"
            )),
            Self::TooManyMappings { .. } => {
                const RAISE: &str = "fewer and larger buffers, or echo NUMBER | sudo tee \
                                     /sys/module/vfio_iommu_type1/parameters/dma_entry_limit (for cards that are opened after it; \
                                     at boot: options vfio_iommu_type1 dma_entry_limit=NUMBER in /etc/modprobe.d)";
                Some(RAISE.into())
            }
            Self::LargePages { .. } => Some("a kernel with larger pages".into()),
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
            Self::NoRegisters { address, waited } => write!(
                f,
                "{address} does not answer: its registers (BAR0) read as all ones after {} s, its configuration space does not",
                waited.as_secs()
            ),
            Self::Forked => f.write_str("the device belongs to the process that forked this one"),
            Self::File { path, error } => write!(f, "{} did not open: {error}", path.display()),
            Self::DirectMapping { group } => {
                write!(f, "the machine's firmware keeps memory mapped for IOMMU group {group}, which Linux gives to no user")
            }
            Self::UnsafeInterrupts { .. } => f.write_str("the IOMMU of this machine does not remap interrupts"),
            Self::TooManyMappings { limit: Some(limit) } => {
                write!(f, "the kernel allows {limit} mappings of memory for this device")
            }
            Self::TooManyMappings { limit: None } => {
                f.write_str("the kernel allows no more mappings of memory for this device")
            }
            Self::LargePages { iommu, kernel } => {
                write!(f, "the IOMMU maps no less than {iommu} bytes, and a page of the kernel has {kernel}")
            }
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

// Without a source: the message contains the cause already.
impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: Address = Address::new(0, 1, 0, 0).unwrap();

    /// What a user reads: the fact, and what to do about it.
    #[test]
    fn errors_have_their_facts_and_their_remedies() {
        let io = |code| io::Error::from_raw_os_error(code);
        for (error, facts, remedy) in [
            (Error::NoSuchFunction { address: ADDRESS }, &["0000:01:00.0"][..], Some("bareverbs devices")),
            (Error::Obstacle(Obstacle::ModuleNotLoaded), &["vfio-pci is not loaded"], Some("modprobe vfio-pci")),
            (Error::AlreadyOpen { address: ADDRESS }, &["0000:01:00.0", "open already"], Some("drop the device")),
            (
                Error::NoRegisters { address: ADDRESS, waited: Duration::from_secs(120) },
                &["0000:01:00.0", "BAR0", "after 120 s"],
                Some("power of the machine off and on"),
            ),
            (Error::Forked, &["forked"], Some("after the fork")),
            (Error::File { path: "/dev/vfio/7".into(), error: io(5) }, &["/dev/vfio/7", "os error 5"], None),
            (Error::DirectMapping { group: 7 }, &["IOMMU group 7"], Some("dmesg")),
            (
                Error::UnsafeInterrupts { module: "iommufd" },
                &["does not remap interrupts"],
                Some("/sys/module/iommufd/parameters/allow_unsafe_interrupts"),
            ),
            (Error::TooManyMappings { limit: Some(2) }, &["2 mappings"], Some("dma_entry_limit")),
            (Error::TooManyMappings { limit: None }, &["no more mappings"], Some("dma_entry_limit")),
            (Error::LargePages { iommu: 65536, kernel: 4096 }, &["65536", "4096"], Some("larger pages")),
            (Error::NoAddresses { len: 100 }, &["100 bytes"], None),
            (Error::Unaligned { addr: 0x1001, len: 4095 }, &["4095", "0x1001"], None),
            (Error::BarNotMappable, &["BAR0"], None),
            (Error::NoVectors { wanted: 2, have: 1 }, &["1 MSI-X vectors", "2 are needed"], None),
            (Error::RegistersTaken, &["handed out before"], None),
            (Error::io("eventfd", io(24)), &["eventfd: ", "os error 24"], None),
            (Error::vfio("MSI-X", VfioError::VfioDeviceSetIrq), &["MSI-X: ", "irq"], None),
        ] {
            let text = error.to_string();
            assert!(facts.iter().all(|fact| text.contains(fact)), "{text}");
            let said = error.remedy();
            assert_eq!(said.is_some(), remedy.is_some(), "{text}: {said:?}");
            assert!(said.unwrap_or_default().contains(remedy.unwrap_or_default()), "{text}: {remedy:?}");
        }
    }
}

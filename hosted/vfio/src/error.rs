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

    /// Returns the remedy: a command, a setting, or a source of information.
    pub fn remedy(&self) -> String {
        const COLD: &str = "switch the power of the machine off and on: the card keeps its own through a restart. Of a virtual function: see \
                            that its physical function works";
        const RAISE: &str = "fewer and larger buffers, or echo NUMBER | sudo tee /sys/module/vfio_iommu_type1/parameters/dma_entry_limit \
                             (for cards that are opened after it; at boot: options vfio_iommu_type1 dma_entry_limit=NUMBER in \
                             /etc/modprobe.d)";
        const VECTORS: &str = "sudo mstconfig -d ADDRESS set NUM_PF_MSIX=63 (package mstflint; of virtual functions NUM_VF_MSIX), then power the \
                               machine off and on; of one virtual function, while it has no driver: echo NUMBER | sudo tee \
                               /sys/bus/pci/devices/ADDRESS/sriov_vf_msix_count";
        const MAPPABLE: &str = "zgrep VFIO_PCI_MMAP /proc/config.gz (a kernel without it maps no BAR); if it is set, the BAR shares a page with \
                                another device's: pci=resource_alignment=ADDRESS on the kernel's command line";
        match self {
            Self::NoSuchFunction { .. } => "bareverbs devices (lists the functions that can be used)".into(),
            Self::Obstacle(obstacle) => obstacle.remedy(),
            Self::AlreadyOpen { .. } => "drop the device, its memory and its registers first".into(),
            Self::NoRegisters { .. } => COLD.into(),
            Self::Forked => "open the device after the fork, in the process that uses it".into(),
            Self::File { path, error } => match error.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
                Some(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE) => {
                    "ulimit -n NUMBER (as far as the hard limit lets), or fewer open files in this process".into()
                }
                _ => format!("sudo bareverbs devices (examines what opens the function); ls -l {}; dmesg", path.display()),
            },
            Self::DirectMapping { .. } => {
                "dmesg (names the function); another slot, or a setting of the machine's firmware".into()
            }
            Self::UnsafeInterrupts { module } => format!(
                "echo 1 | sudo tee /sys/module/{module}/parameters/allow_unsafe_interrupts, if the devices of this machine are trusted and it \
                 can remap no interrupts"
            ),
            Self::TooManyMappings { .. } => RAISE.into(),
            Self::LargePages { .. } => "a kernel with larger pages".into(),
            Self::NoAddresses { .. } => {
                "less memory, or memory of other sizes: the IOMMU of this machine has no more addresses for the device".into()
            }
            Self::Unaligned { .. } => "whole pages, as Device::memory gives them".into(),
            Self::BarNotMappable => MAPPABLE.into(),
            Self::NoVectors { .. } => VECTORS.into(),
            Self::RegistersTaken => "keep them, or drop the device with all that is of it and open it again".into(),
            Self::Io { .. } | Self::Vfio { .. } => "dmesg (says what the kernel refused)".into(),
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
    use crate::pci::Cpu;
    use crate::pci::{Machine, Usage};

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
            assert!(error.remedy().contains(remedy.unwrap_or_default()), "{text}: {remedy:?}");
        }
    }

    fn obstacles(address: Address) -> Vec<Obstacle> {
        let machine = || Machine { cpu: Cpu::Intel, is_virtual: false, parameters: Vec::new() };
        vec![
            Obstacle::NotMlx5 { address, vendor: 1, device: 2 },
            Obstacle::FirmwareRecovery { address, name: "ConnectX-7", device: 0x218 },
            Obstacle::NoAnswer { address },
            Obstacle::EmbeddedCpu { address },
            Obstacle::BarTooSmall { address, size: 0, needed: 0x8000 },
            Obstacle::BarTooSmall { address, size: 4096, needed: 0x8000 },
            Obstacle::NoMsix { address },
            Obstacle::NoIommu { address, machine: machine() },
            Obstacle::UnsafeNoIommu { group: 1, machine: machine() },
            Obstacle::ModuleNotLoaded,
            Obstacle::NotBound { address, driver: None },
            Obstacle::VfToken { address, physical: address },
            Obstacle::Used { address, usage: Box::new(Usage::VirtualFunctions { count: 2 }) },
            Obstacle::GroupNotViable { address, group: 1, members: Vec::new() },
            Obstacle::NoFile { path: "/dev/vfio/1".into() },
            Obstacle::NoAccess { path: "/dev/vfio/1".into(), uid: 0, gid: 0, mode: 0o600 },
            Obstacle::InUse { group: 1, holders: Vec::new() },
            Obstacle::Memlock { limit: 1, needed: 4096 },
        ]
    }

    fn errors(address: Address) -> Vec<Error> {
        let error = || io::Error::from_raw_os_error(5);
        let mut errors = vec![
            Error::NoSuchFunction { address },
            Error::AlreadyOpen { address },
            Error::NoRegisters { address, waited: Duration::from_secs(120) },
            Error::Forked,
            Error::File { path: "/dev/vfio/1".into(), error: error() },
            Error::File { path: "/dev/vfio/1".into(), error: io::Error::from_raw_os_error(24) },
            Error::DirectMapping { group: 1 },
            Error::UnsafeInterrupts { module: "vfio_iommu_type1" },
            Error::TooManyMappings { limit: None },
            Error::LargePages { iommu: 65_536, kernel: 4096 },
            Error::NoAddresses { len: 4096 },
            Error::Unaligned { addr: 1, len: 2 },
            Error::BarNotMappable,
            Error::NoVectors { wanted: 2, have: 1 },
            Error::RegistersTaken,
            Error::io("mmap", error()),
            Error::vfio("open", VfioError::GetGroupStatus),
        ];
        errors.extend(obstacles(address).into_iter().map(Error::Obstacle));
        errors
    }

    /// The compiler finds a new error in [`Error::remedy`]; this finds one whose remedy says nothing, or repeats the error.
    #[test]
    fn every_error_has_a_remedy_with_the_facts_of_its_machine() {
        let address: Address = "0000:01:00.0".parse().unwrap();
        for error in errors(address) {
            let (text, remedy) = (error.to_string(), error.remedy());
            assert!(remedy.len() > 15 && !text.contains(&remedy) && !remedy.ends_with('.'), "{text}: {remedy}");
            assert!(!remedy.contains("  ") && !remedy.contains('\n'), "{remedy}");
        }
        let of_files = [5, 24]
            .map(|errno| Error::File { path: "/dev/vfio/9".into(), error: io::Error::from_raw_os_error(errno) }.remedy());
        assert!(of_files[0].contains("ls -l /dev/vfio/9") && of_files[1].contains("ulimit -n"), "{of_files:?}");
        let small = Obstacle::BarTooSmall { address, size: 4096, needed: 0x8000 }.remedy();
        assert!(small.contains("lspci -vv -s 0000:01:00.0"), "{small}");
    }
}

//! Obstacles to using a function over VFIO, and their remedies.

use std::fmt;
use std::path::PathBuf;

use super::address::Address;
use super::group::Member;
use super::process::Holder;
use super::usage::{Holders, Usage};

/// A reason why a function cannot be used over VFIO now.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Obstacle {
    /// The function is not one that mlx5 drives.
    NotMlx5 {
        /// The function.
        address: Address,
        /// PCI vendor identifier.
        vendor: u16,
        /// PCI device identifier.
        device: u16,
    },
    /// The adapter's firmware did not start; it can only be flashed.
    FirmwareRecovery {
        /// The function.
        address: Address,
        /// Name of the product.
        name: &'static str,
        /// PCI device identifier of the recovery mode.
        device: u16,
    },
    /// The configuration space reads as all ones: the adapter is gone or has no power.
    NoAnswer {
        /// The function.
        address: Address,
    },
    /// It is the function of a BlueField's own processor, which supplies the host's functions too.
    EmbeddedCpu {
        /// The function.
        address: Address,
    },
    /// BAR0 is too small for the registers.
    BarTooSmall {
        /// The function.
        address: Address,
        /// Its size in bytes.
        size: u64,
        /// Required bytes.
        needed: u64,
    },
    /// The function has no MSI-X.
    NoMsix {
        /// The function.
        address: Address,
    },
    /// No IOMMU translates the function's DMA.
    NoIommu {
        /// The function.
        address: Address,
        /// Properties of the machine that decide how one is enabled.
        machine: Machine,
    },
    /// The group is of VFIO's mode without an IOMMU, in which DMA can access all memory.
    UnsafeNoIommu {
        /// The group.
        group: u32,
        /// Properties of the machine that decide how an IOMMU is enabled.
        machine: Machine,
    },
    /// The kernel has no vfio-pci yet.
    ModuleNotLoaded,
    /// The function is bound to another driver than vfio-pci, or to none.
    NotBound {
        /// The function.
        address: Address,
        /// Its driver.
        driver: Option<String>,
    },
    /// vfio-pci has the physical function of a virtual one: Linux opens the virtual function only for who knows a token of the process that
    /// has the physical one, and the physical one, while virtual functions are open, for who knows theirs (`vfio_pci_validate_vf_token`).
    VfToken {
        /// The function.
        address: Address,
        /// Its physical function, or itself.
        physical: Address,
    },
    /// The machine uses the function through its driver.
    Used {
        /// The function.
        address: Address,
        /// How.
        usage: Box<Usage>,
    },
    /// Other devices of the IOMMU group are bound to drivers that use DMA.
    GroupNotViable {
        /// The function.
        address: Address,
        /// The group.
        group: u32,
        /// Those devices.
        members: Vec<Member>,
    },
    /// The file of the group, of the function or of VFIO itself does not exist.
    NoFile {
        /// The file.
        path: PathBuf,
    },
    /// The file may not be opened by this user.
    NoAccess {
        /// The file.
        path: PathBuf,
        /// Its owner.
        uid: u32,
        /// Its group.
        gid: u32,
        /// Its permissions.
        mode: u32,
    },
    /// Another process has the group open.
    InUse {
        /// The group.
        group: u32,
        /// The processes that are visible to this one.
        holders: Vec<Holder>,
    },
    /// The process may lock less memory than is needed for DMA.
    Memlock {
        /// Limit of locked memory in bytes.
        limit: u64,
        /// Required bytes.
        needed: u64,
    },
}

/// Properties of a machine that decide how its IOMMU is enabled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Vendor of the processor.
    pub cpu: Cpu,
    /// Whether it is a virtual machine: its IOMMU is an option of its hypervisor, not of its firmware.
    pub is_virtual: bool,
    /// Parameters of the IOMMU on the kernel's command line.
    pub parameters: Vec<String>,
}

/// Vendor of a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cpu {
    /// Intel: VT-d, and a parameter of the kernel.
    Intel,
    /// AMD: AMD-Vi.
    Amd,
    /// Others, where the firmware describes the IOMMU (for example an SMMU).
    Other,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotMlx5 { address, vendor, device } => {
                write!(f, "{address} is {vendor:04x}:{device:04x}, which is no ConnectX or BlueField that mlx5 drives")
            }
            Self::FirmwareRecovery { address, name, device } => {
                write!(f, "{address} is a {name} whose firmware did not start (device id {device:04x}: flash recovery)")
            }
            Self::NoAnswer { address } => {
                write!(f, "{address} does not answer: its configuration space reads as all ones")
            }
            Self::EmbeddedCpu { address } => {
                write!(f, "{address} is the function of the card's own processor (BlueField), on which this system runs")
            }
            Self::BarTooSmall { address, size: 0, needed } => {
                write!(f, "{address} has no BAR0 assigned; {needed} bytes are needed")
            }
            Self::BarTooSmall { address, size, needed } => {
                write!(f, "BAR0 of {address} has {size} bytes; {needed} are needed")
            }
            Self::NoMsix { address } => write!(f, "{address} has no MSI-X capability, and mlx5 has no other interrupts"),
            Self::NoIommu { address, machine } => {
                write!(f, "no IOMMU translates the DMA of {address}: it is in no IOMMU group")?;
                match machine.parameters.as_slice() {
                    [] => Ok(()),
                    given => write!(f, ", though the kernel was started with {}", given.join(" ")),
                }
            }
            Self::UnsafeNoIommu { group, .. } => write!(
                f,
                "group {group} is of VFIO's mode without an IOMMU: the function's DMA would reach all of memory, which is refused"
            ),
            Self::ModuleNotLoaded => f.write_str("the kernel module vfio-pci is not loaded"),
            Self::NotBound { address, driver: Some(driver) } => write!(f, "{address} is bound to {driver}, not to vfio-pci"),
            Self::NotBound { address, driver: None } => write!(f, "{address} is bound to no driver, and vfio-pci is needed"),
            Self::VfToken { address, physical } if address == physical => write!(
                f,
                "other processes have virtual functions of {address} open: Linux opens it then only with their token (VF token)"
            ),
            Self::VfToken { address, physical } => write!(
                f,
                "{address} is a virtual function of {physical}, which vfio-pci has: Linux opens it only with the token (VF token) of that one's \
                 user"
            ),
            Self::Used { address, usage } => write!(f, "the machine uses {address}: {usage}"),
            Self::GroupNotViable { group, members, .. } => {
                write!(f, "IOMMU group {group} is not viable: it also has ")?;
                for (at, member) in members.iter().enumerate() {
                    let comma = if at > 0 { ", " } else { "" };
                    write!(f, "{comma}{}, bound to {}", member.name, member.driver.as_deref().unwrap_or("nothing"))?;
                }
                Ok(())
            }
            Self::NoFile { path } => write!(f, "{} is not there", path.display()),
            Self::NoAccess { path, uid, gid, mode } => {
                let mode = mode & 0o7777;
                write!(
                    f,
                    "{} may not be opened by this user: it is of user {uid}, group {gid}, mode {mode:04o}",
                    path.display()
                )
            }
            Self::InUse { group, holders } => write!(f, "IOMMU group {group} is in use by {}", Holders(holders)),
            Self::Memlock { limit, needed } => {
                write!(
                    f,
                    "the process may lock {limit} bytes of memory (RLIMIT_MEMLOCK), and {needed} at least are needed for DMA"
                )
            }
        }
    }
}

impl std::error::Error for Obstacle {}

impl Obstacle {
    /// Returns whether no removal of other obstacles makes the function usable.
    pub(crate) const fn is_final(&self) -> bool {
        matches!(self, Self::NotMlx5 { .. } | Self::FirmwareRecovery { .. } | Self::NoAnswer { .. } | Self::EmbeddedCpu { .. })
    }

    /// Returns whether the function is one for other programs, to which it may be given.
    pub(crate) const fn is_of_the_port(&self) -> bool {
        matches!(self, Self::EmbeddedCpu { .. })
    }

    /// Returns a stable name for programs.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::NotMlx5 { .. } => "not-mlx5",
            Self::FirmwareRecovery { .. } => "firmware-recovery",
            Self::NoAnswer { .. } => "no-answer",
            Self::EmbeddedCpu { .. } => "embedded-cpu",
            Self::BarTooSmall { .. } => "bar-too-small",
            Self::NoMsix { .. } => "no-msix",
            Self::NoIommu { .. } => "no-iommu",
            Self::UnsafeNoIommu { .. } => "unsafe-no-iommu",
            Self::ModuleNotLoaded => "module-not-loaded",
            Self::NotBound { .. } => "not-bound",
            Self::VfToken { .. } => "vf-token",
            Self::Used { .. } => "used",
            Self::GroupNotViable { .. } => "group-not-viable",
            Self::NoFile { .. } => "no-file",
            Self::NoAccess { .. } => "no-access",
            Self::InUse { .. } => "in-use",
            Self::Memlock { .. } => "memlock",
        }
    }

    /// Returns the remedy: a command, or an instruction where no command helps.
    pub fn remedy(&self) -> String {
        match self {
            Self::NotMlx5 { .. } => "bareverbs devices (lists the functions that can be used)".into(),
            Self::FirmwareRecovery { address, .. } => {
                format!(
                    "mstflint -d {address} -i FIRMWARE.bin burn (with the firmware of this card), then power the machine off and on"
                )
            }
            Self::NoAnswer { address } => format!(
                "echo 1 | sudo tee /sys/bus/pci/devices/{address}/remove && echo 1 | sudo tee /sys/bus/pci/rescan; \
                 power the machine off and on if it stays away"
            ),
            Self::EmbeddedCpu { .. } => "the function that the host of the card sees".into(),
            Self::BarTooSmall { size: 0, .. } => {
                "start the kernel with pci=realloc, or enable 'Above 4G decoding' in the firmware setup".into()
            }
            Self::BarTooSmall { address, .. } => format!(
                "lspci -vv -s {address} (shows its regions); in a virtual machine, give it the whole function; elsewhere another version of the \
                 card's firmware (mstflint -d {address} query shows which it has)"
            ),
            Self::NoMsix { address } => format!(
                "in a virtual machine, give it the whole function; \
                 elsewhere sudo mstconfig -d {address} set NUM_PF_MSIX=63 (package mstflint), then power the machine off and on"
            ),
            Self::NoIommu { machine, .. } => machine.switch_on(),
            Self::UnsafeNoIommu { machine, .. } => {
                format!("take vfio.enable_unsafe_noiommu_mode away, and {}", machine.switch_on())
            }
            Self::ModuleNotLoaded => "sudo modprobe vfio-pci".into(),
            Self::NotBound { address, .. } => format!("sudo bareverbs bind {address}"),
            Self::VfToken { address, physical } if address == physical => {
                "end the processes that have its virtual functions open, or open it first".into()
            }
            Self::VfToken { physical, .. } => format!(
                "give {physical} back to the kernel's driver (sudo bareverbs unbind --force {physical}, which removes its virtual functions), and \
                 create the virtual functions there"
            ),
            Self::Used { address, usage } => match usage.as_ref() {
                Usage::InterfaceUp { interface } => {
                    format!("sudo ip link set {interface} down, or sudo bareverbs bind --force {address}")
                }
                // Not the interface down: it may be the way of the host's whole network, whose address another port has.
                Usage::Ports { of, .. } => format!(
                    "see that the host's network does not depend on it, and take it out of {of} first (Open vSwitch: ovs-vsctl del-port), or sudo \
                     bareverbs bind --force {address}"
                ),
                Usage::ScsiHost { .. } | Usage::KernelQueuePairs { .. } => format!(
                    "unmount what it carries and end its connections (rdma resource show qp lists them), or sudo bareverbs bind --force \
                     {address}"
                ),
                Usage::DefaultRoute { interface } | Usage::Network { interface, .. } => format!(
                    "give another interface what {interface} has and sudo ip address flush dev {interface}, or sudo bareverbs bind \
                     --force {address}"
                ),
                Usage::OtherNamespace { holder, .. } => {
                    format!("end process {} and its container, or sudo bareverbs bind --force {address}", holder.pid)
                }
                Usage::Rdma { .. } => format!("end these programs, or sudo bareverbs bind --force {address}"),
                Usage::VirtualFunctions { .. } => {
                    format!(
                        "echo 0 | sudo tee /sys/bus/pci/devices/{address}/sriov_numvfs, or sudo bareverbs bind --force {address}"
                    )
                }
            },
            Self::GroupNotViable { address, .. } => {
                format!(
                    "sudo bareverbs bind --group {address} (takes all of them from their drivers), or another slot for the card"
                )
            }
            Self::NoFile { path } => {
                format!("ls -l {0}; in a container, give it the file (docker run --device {0})", path.display())
            }
            Self::NoAccess { path, .. } => {
                format!("sudo chown $USER {} (lasting: examples/systemd/70-bareverbs.rules, a udev rule)", path.display())
            }
            Self::InUse { holders, .. } => match holders.as_slice() {
                [] => "sudo bareverbs devices (names the process)".into(),
                // Not how: of a virtual machine it is somebody's computer.
                [only] => format!(
                    "end {} by its own means, a virtual machine (QEMU) from inside",
                    Holders(std::slice::from_ref(only))
                ),
                several => format!("end {} by their own means, virtual machines (QEMU) from inside", Holders(several)),
            },
            Self::Memlock { needed, .. } => {
                let kib = needed.div_ceil(1024);
                format!(
                    "ulimit -l {kib} (as far as the hard limit lets), sudo prlimit --pid $$ --memlock={needed}:{needed}, or lasting: \
                     '* - memlock {kib}' in /etc/security/limits.conf, LimitMEMLOCK={needed} in a systemd unit"
                )
            }
        }
    }
}

impl Machine {
    /// Returns how to enable its IOMMU.
    fn switch_on(&self) -> String {
        const PARAMETER: &str = "intel_iommu=on to the kernel's command line (GRUB_CMDLINE_LINUX in /etc/default/grub, then sudo \
                                 update-grub)";
        if let Some(off) = self.parameters.iter().find(|parameter| parameter.ends_with("=off")) {
            return format!("take {off} from the kernel's command line and start the machine again");
        }
        // QEMU's option depends on its machine type, not on the vendor of the guest's processor.
        let has_parameter = self.parameters.iter().any(|parameter| parameter.starts_with("intel_iommu=on"));
        match (self.is_virtual, self.cpu) {
            (true, Cpu::Intel | Cpu::Amd) => {
                let option = "give this virtual machine an IOMMU: with QEMU, -machine q35 and -device intel-iommu,caching-mode=on before \
                              the card's -device; with libvirt, <iommu model='intel'><driver caching_mode='on'/></iommu> in <devices>";
                if has_parameter { option.into() } else { format!("{option}; then add {PARAMETER}") }
            }
            (true, Cpu::Other) => {
                "give this virtual machine an IOMMU: with QEMU, -machine virt,iommu=smmuv3; with libvirt, <iommu model='smmuv3'/> in \
                 <devices>"
                    .into()
            }
            (false, Cpu::Intel) if has_parameter => "switch VT-d on in the firmware setup".into(),
            (false, Cpu::Intel) => {
                format!("add {PARAMETER}, switch VT-d on in the firmware setup, and start the machine again")
            }
            (false, Cpu::Amd) => {
                "switch the IOMMU (AMD-Vi) on in the firmware setup; amd_iommu=on is the kernel's default then".into()
            }
            (false, Cpu::Other) => {
                "switch the IOMMU (SMMU) on in the firmware setup, or use a machine that has one".into()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: Address = Address::new(0, 1, 0, 0).unwrap();

    /// The name for programs (`bareverbs devices --json`), and words of the text and of the remedy. A remedy that is empty is none.
    #[test]
    fn obstacles_have_their_names_facts_and_remedies() {
        let machine = Machine { cpu: Cpu::Intel, is_virtual: false, parameters: Vec::new() };
        let member =
            |name: &str, driver: Option<&str>| Member { name: name.into(), driver: driver.map(Into::into), bridge: false };
        let address = ADDRESS;
        let physical = Address::new(0, 1, 0, 1).unwrap();
        let path = PathBuf::from("/dev/vfio/7");
        for (obstacle, code, fact, remedy) in [
            (Obstacle::NotMlx5 { address, vendor: 0x8086, device: 0x1572 }, "not-mlx5", "8086:1572", "bareverbs devices"),
            (
                Obstacle::FirmwareRecovery { address, name: "ConnectX-7", device: 0x218 },
                "firmware-recovery",
                "ConnectX-7 whose firmware did not start",
                "mstflint -d 0000:01:00.0",
            ),
            (Obstacle::NoAnswer { address }, "no-answer", "does not answer", "0000:01:00.0/remove"),
            (Obstacle::EmbeddedCpu { address }, "embedded-cpu", "BlueField", "host of the card"),
            (Obstacle::BarTooSmall { address, size: 0, needed: 8 }, "bar-too-small", "no BAR0", "pci=realloc"),
            (Obstacle::BarTooSmall { address, size: 4, needed: 8 }, "bar-too-small", "has 4 bytes; 8 are needed", ""),
            (Obstacle::NoMsix { address }, "no-msix", "MSI-X", ""),
            (Obstacle::NoIommu { address, machine: machine.clone() }, "no-iommu", "in no IOMMU group", "intel_iommu=on"),
            (Obstacle::UnsafeNoIommu { group: 7, machine }, "unsafe-no-iommu", "group 7", "enable_unsafe_noiommu_mode"),
            (Obstacle::ModuleNotLoaded, "module-not-loaded", "vfio-pci", "modprobe"),
            (Obstacle::NotBound { address, driver: None }, "not-bound", "no driver", "bind 0000:01:00.0"),
            (
                Obstacle::VfToken { address, physical: address },
                "vf-token",
                "virtual functions of 0000:01:00.0",
                "open it first",
            ),
            (
                Obstacle::VfToken { address, physical },
                "vf-token",
                "virtual function of 0000:01:00.1",
                "unbind --force 0000:01:00.1",
            ),
            (
                Obstacle::GroupNotViable {
                    address,
                    group: 7,
                    members: vec![member("0000:01:00.1", Some("ahci")), member("vfio-ap", None)],
                },
                "group-not-viable",
                "0000:01:00.1, bound to ahci, vfio-ap, bound to nothing",
                "bind --group 0000:01:00.0",
            ),
            (Obstacle::NoFile { path: path.clone() }, "no-file", "/dev/vfio/7 is not there", "docker run --device /dev/vfio/7"),
            (Obstacle::NoAccess { path, uid: 1, gid: 2, mode: 0o20600 }, "no-access", "mode 0600", "chown $USER /dev/vfio/7"),
            (Obstacle::InUse { group: 7, holders: Vec::new() }, "in-use", "IOMMU group 7", "names the process"),
            (
                Obstacle::Used { address, usage: Box::new(Usage::DefaultRoute { interface: "eth0".into() }) },
                "used",
                "eth0",
                "ip address flush dev eth0",
            ),
            (
                Obstacle::Used {
                    address,
                    usage: Box::new(Usage::OtherNamespace {
                        interface: "eth0".into(),
                        holder: Holder { pid: 70, name: "runc".into() },
                    }),
                },
                "used",
                "process 70 (runc)",
                "end process 70",
            ),
            (Obstacle::Memlock { limit: 1024, needed: 4097 }, "memlock", "4097 at least", "ulimit -l 5 "),
        ] {
            let text = obstacle.to_string();
            assert_eq!(obstacle.code(), code, "{text}");
            assert!(text.contains(fact), "{text}");
            assert!(obstacle.remedy().contains(remedy), "{text}: {remedy}");
        }
    }
}

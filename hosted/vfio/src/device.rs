//! A card that this process owns.
#![expect(unsafe_code, reason = "registers and memory of a device are raw memory, and a reset is an ioctl")]

use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::ops::ControlFlow;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bareverbs::platform::Machine;
use bareverbs_mmio::CpuFence;
use rustix::io::Errno;
use vfio_bindings::bindings::vfio::{
    VFIO_BASE, VFIO_PCI_BAR0_REGION_INDEX, VFIO_PCI_CONFIG_REGION_INDEX, VFIO_PCI_ERR_IRQ_INDEX, VFIO_PCI_MSIX_IRQ_INDEX,
    VFIO_PCI_REQ_IRQ_INDEX, VFIO_REGION_INFO_FLAG_MMAP, VFIO_TYPE,
};
use vfio_ioctls::{VfioDevice, VfioError};
use vmm_sys_util::ioctl::ioctl;
use vmm_sys_util::ioctl_io_nr;

use crate::address_space::{AddressSpace, open_error};
use crate::bar::Bar;
use crate::clock::MonotonicClock;
use crate::config_space::ConfigSpace;
use crate::dma::{DmaAllocation, Mapping};
use crate::error::Error;
use crate::firmware_pages::FirmwarePages;
use crate::interrupt::Interrupt;
use crate::open_function::{Claim, OpenFunction};
use crate::opener::Opener;
use crate::pci::{self, Address, Interface, Need, Obstacle, Process, Sysfs};
use crate::platform::VfioPlatform;

ioctl_io_nr!(VFIO_DEVICE_RESET, VFIO_TYPE as u32, VFIO_BASE + 11);

/// How long the registers may read as all ones: the kernel has just reset the function, and firmware boots after that. It is the time
/// that Linux's driver gives them (`FW_PRE_INIT_TIMEOUT` of `mlx5/core/lib/tout.c`), and `Config::boot_timeout` of ours.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

/// A card that this process owns. Dropping it disables the card's bus mastering.
///
/// A forked child has neither its memory nor its registers: an access ends the child, and dropping its copies of the values does
/// nothing. Memory of [`Device::map`] is inherited; before Linux 5.10 such memory must be kept from the child (`MADV_DONTFORK`).
///
/// Memory and registers may outlive the device. When the last of them is dropped, the kernel resets the function and releases it.
#[derive(Debug)]
pub struct Device {
    function: Arc<OpenFunction>,
    pci_device_id: u16,
    pci_revision: u8,
    is_virtual: bool,
    removal: Option<Interrupt>,
    failure: Option<Interrupt>,
    registers_taken: AtomicBool,
}

impl Device {
    /// Opens the PCI function at `address`, which is bound to vfio-pci, and enables its bus mastering.
    ///
    /// # Errors
    /// The function cannot be used; [`Error::remedy`] says what the user can do. The function is unchanged.
    pub fn open(address: Address) -> Result<Self, Error> {
        Self::open_with(address, |_| ControlFlow::Continue(()))
    }

    /// Opens the PCI function as [`Device::open`] does. A function that was reset may take two minutes to answer: meanwhile `hook` is
    /// called a hundred times a second with the time waited, and `Break` ends the wait.
    ///
    /// # Errors
    /// The function cannot be used; [`Error::remedy`] says what the user can do. [`Error::NoRegisters`] if `hook` ended the wait.
    pub fn open_with(address: Address, hook: impl FnMut(Duration) -> ControlFlow<()>) -> Result<Self, Error> {
        let claim = Claim::new(address)?;
        let sysfs = Sysfs::machine();
        let (group, interface, is_virtual) = Self::usable(&sysfs, address)?;
        let folder = Path::new("/sys/bus/pci/devices").join(address.to_string());
        let (opened, config, space) = Self::open_function(&sysfs, &folder, address, group, interface)?;
        let function = OpenFunction { device: ManuallyDrop::new(opened), config, space, opener: Opener::this(), folder, claim };
        Self::new(function, is_virtual, hook)
    }

    /// Returns the number of a function's IOMMU group, the interface to open it by, and whether it is a virtual function.
    ///
    /// # Errors
    /// sysfs shows an obstacle.
    fn usable(sysfs: &Sysfs, address: Address) -> Result<(u32, Interface, bool), Error> {
        let function = pci::function(sysfs, address).ok_or(Error::NoSuchFunction { address })?;
        let need = Need::default();
        // This process may already have another device of the group open.
        let own = |obstacle: &Obstacle| matches!(obstacle, Obstacle::InUse { holders, .. } if holders.iter().all(|holder| holder.pid == std::process::id()));
        let process = Process::current();
        let mut obstacles = pci::obstacles(sysfs, &function, &process, &need).into_iter();
        match obstacles.find(|obstacle| !own(obstacle)) {
            Some(obstacle) => Err(Error::Obstacle(obstacle)),
            None => {
                // A virtual machine does not see the physical function: there only the device ID shows it.
                let is_virtual = function.physical_function.is_some()
                    || function.model.is_some_and(|model| model.kind == pci::Kind::Virtual);
                let interface = Interface::of(sysfs, &function, &process);
                function.group.map(|group| (group.number, interface, is_virtual)).ok_or(Error::NoSuchFunction { address })
            }
        }
    }

    /// Opens the device. Returns it, a second descriptor of it for configuration space, and its address space.
    fn open_function(
        sysfs: &Sysfs,
        folder: &Path,
        address: Address,
        group: u32,
        interface: Interface,
    ) -> Result<(VfioDevice, ConfigSpace, Arc<AddressSpace>), Error> {
        let space = AddressSpace::of_group(group, interface)?;
        let opened = VfioDevice::new(folder, space.ops(), true);
        let opened = opened.map_err(|error| Self::refusal(error, sysfs, address, group, space.has_direct_mapping()))?;
        space.ask()?;
        // SAFETY: `opened` owns the descriptor and lives as long as the borrow.
        let descriptor = unsafe { BorrowedFd::borrow_raw(opened.as_raw_fd()) };
        let file = descriptor.try_clone_to_owned().map(File::from);
        let offset = opened.get_region_offset(VFIO_PCI_CONFIG_REGION_INDEX);
        let file = file.map_err(|error| Error::io("the descriptor of the device", error))?;
        if offset == 0 || opened.get_region_size(VFIO_PCI_CONFIG_REGION_INDEX) == 0 {
            return Err(Error::io("PCI configuration space", io::Error::other("VFIO has none of this device")));
        }
        Ok((opened, ConfigSpace::new(file, offset), space))
    }

    /// Converts the error of opening a device, whose group may have a direct mapping (RMRR).
    fn refusal(error: VfioError, sysfs: &Sysfs, address: Address, group: u32, has_direct_mapping: bool) -> Error {
        let is = |errno: i32, kind: Errno| errno == kind.raw_os_error();
        match error {
            VfioError::OpenGroup(error, _) | VfioError::OpenDeviceCdev(error)
                if error.kind() == io::ErrorKind::ResourceBusy =>
            {
                Error::Obstacle(pci::in_use(sysfs, group))
            }
            VfioError::OpenGroup(error, group) => open_error(error, Path::new("/dev/vfio").join(group)),
            VfioError::OpenDeviceCdev(error) => Error::File { path: "/dev/vfio/devices".into(), error },
            // Of a virtual function the obstacle was found before. That of a physical one is that its virtual functions are open.
            VfioError::GroupGetDeviceFD(error) | VfioError::VfioDeviceBindIommufd(error)
                if is(error.errno(), Errno::ACCESS) =>
            {
                Error::Obstacle(Obstacle::VfToken { address, physical: address })
            }
            // A group that is open, another function of it, or this one by its own file.
            VfioError::VfioDeviceBindIommufd(error) if is(error.errno(), Errno::BUSY) || is(error.errno(), Errno::INVAL) => {
                Error::Obstacle(pci::in_use(sysfs, group))
            }
            VfioError::ContainerSetIOMMU(error) if is(error.errno(), Errno::PERM) => {
                if has_direct_mapping {
                    Error::DirectMapping { group }
                } else {
                    Error::UnsafeInterrupts { module: "vfio_iommu_type1" }
                }
            }
            VfioError::VfioDeviceBindIommufd(error) if is(error.errno(), Errno::PERM) => {
                Error::UnsafeInterrupts { module: "iommufd" }
            }
            VfioError::VfioDeviceAttachIommufdPt(_) if has_direct_mapping => Error::DirectMapping { group },
            other => Error::vfio("the device cannot be opened", other),
        }
    }

    fn new(function: OpenFunction, is_virtual: bool, hook: impl FnMut(Duration) -> ControlFlow<()>) -> Result<Self, Error> {
        let (vendor, pci_device_id) = function.config.ids()?;
        let pci_revision = function.config.revision()?;
        function.config.enable()?;
        if vendor == u16::MAX {
            return Err(Error::Obstacle(Obstacle::NoAnswer { address: function.address() }));
        }
        function.wait_for_registers(ANSWER_TIMEOUT, hook)?;
        let mut device = Self {
            function: Arc::new(function),
            pci_device_id,
            pci_revision,
            is_virtual,
            removal: None,
            failure: None,
            registers_taken: AtomicBool::new(false),
        };
        device.removal = device.watch(VFIO_PCI_REQ_IRQ_INDEX);
        device.failure = device.watch(VFIO_PCI_ERR_IRQ_INDEX);
        Ok(device)
    }

    /// Creates an event descriptor for a notification of the kernel; `None` if the kernel does not support it.
    fn watch(&self, index: u32) -> Option<Interrupt> {
        self.function.device.get_irq_info(index).filter(|info| info.count != 0)?;
        let event = Interrupt::new().ok()?;
        self.function.device.enable_irq(index, vec![event.event()]).ok()?;
        Some(event)
    }

    /// Returns the PCI address.
    pub fn address(&self) -> Address {
        self.function.address()
    }

    /// Returns the PCI device ID.
    pub const fn pci_device_id(&self) -> u16 {
        self.pci_device_id
    }

    /// Returns the PCI revision.
    pub const fn pci_revision(&self) -> u8 {
        self.pci_revision
    }

    /// Returns whether it is a virtual function: the driver's `Config::virtual_function` must have this value.
    pub const fn is_virtual_function(&self) -> bool {
        self.is_virtual
    }

    /// Returns the interface of the kernel that it was opened by.
    pub fn interface(&self) -> Interface {
        self.function.space().interface()
    }

    /// Returns first and last I/O virtual addresses of the ranges that are never used for memory: what the IOMMU does not translate, as
    /// the kernel told, and the reserved regions of the platform. They may overlap.
    pub fn unmapped_addresses(&self) -> Vec<(u64, u64)> {
        self.function.space().holes()
    }

    /// Returns the number of MSI-X vectors of the device.
    pub fn vectors(&self) -> u32 {
        self.function.device.get_irq_info(VFIO_PCI_MSIX_IRQ_INDEX).map_or(0, |info| info.count)
    }

    /// Maps and returns the registers, once: their owner has exclusive access to the device. When they are dropped, bus mastering is
    /// disabled.
    ///
    /// # Errors
    /// This function was called before, or the kernel does not map the registers.
    pub fn registers(&self) -> Result<Bar, Error> {
        if self.function.device.get_region_flags(VFIO_PCI_BAR0_REGION_INDEX) & VFIO_REGION_INFO_FLAG_MMAP == 0 {
            return Err(Error::BarNotMappable);
        }
        let function = &self.function;
        let len = function.device.get_region_size(VFIO_PCI_BAR0_REGION_INDEX);
        let len = usize::try_from(len).map_err(|_| Error::BarNotMappable)?;
        let offset = function.device.get_region_offset(VFIO_PCI_BAR0_REGION_INDEX);
        if self.registers_taken.swap(true, Ordering::Relaxed) {
            return Err(Error::RegistersTaken);
        }
        // SAFETY: this is BAR0 of the function. It is not mapped twice: the flag above prevents it for this device, and the function
        // cannot be opened again while the mapping exists.
        let bar = unsafe { Bar::map(function.clone(), offset, len) };
        bar.inspect_err(|_| self.registers_taken.store(false, Ordering::Relaxed))
    }

    /// Allocates `len` zeroed bytes that the device can access.
    ///
    /// # Errors
    /// There is no memory, or it cannot be locked or mapped for the device.
    pub fn memory(&self, len: usize) -> Result<DmaAllocation, Error> {
        DmaAllocation::new(self.function.clone(), len)
    }

    /// Maps `len` bytes of the caller's memory at `base` for the device; both are multiples of the page size.
    ///
    /// # Errors
    /// They are not whole pages, or cannot be locked or mapped for the device.
    ///
    /// # Safety
    /// Until [`Mapping::end`] has succeeded, the device may read and write the bytes at any time. Until then they stay mapped readable
    /// and writable in this process, and no Rust reference to them is used. If `end` never succeeds, this applies until the process
    /// ends, even if the value is dropped or forgotten. Accesses that bypass the value are volatile and not concurrent with its own.
    pub unsafe fn map(&self, base: NonNull<u8>, len: usize) -> Result<Mapping, Error> {
        // SAFETY: as the caller promises.
        unsafe { Mapping::new(self.function.clone(), base, len) }
    }

    /// Creates the machine for the driver: the registers, `arena` bytes of memory, pages for the firmware, the fences of this CPU, and a clock.
    ///
    /// # Errors
    /// As for [`Device::registers`] and [`Device::memory`].
    pub fn machine(&self, arena: usize) -> Result<Machine<VfioPlatform>, Error> {
        let memory = self.memory(arena)?;
        let pages = FirmwarePages::new(self.function.clone());
        Ok(Machine { registers: self.registers()?, memory, pages, fence: CpuFence::UNCACHED, clock: MonotonicClock::new() })
    }

    /// Enables the first `count` MSI-X vectors of the device and returns their event descriptors. Those of an earlier call are no longer
    /// signalled.
    ///
    /// # Errors
    /// The device has fewer vectors, or the kernel refuses them.
    pub fn interrupts(&self, count: u16) -> Result<Vec<Interrupt>, Error> {
        let have = self.vectors();
        if have < u32::from(count) {
            return Err(Error::NoVectors { wanted: count, have });
        }
        let interrupts = (0..count).map(|_| Interrupt::new()).collect::<Result<Vec<_>, _>>()?;
        // Not every kernel can add or remove single vectors: disables all (an error if none was enabled), then enables these.
        let _ = self.function.device.disable_msix();
        if interrupts.is_empty() {
            return Ok(interrupts);
        }
        let events = interrupts.iter().map(Interrupt::event).collect();
        self.function.device.enable_msix(events).map_err(|error| Error::vfio("MSI-X cannot be switched on", error))?;
        Ok(interrupts)
    }

    /// Returns the interrupt by which the kernel requests the device back, because it is being unbound or removed. The kernel waits
    /// until the process has dropped the device. `None` if the kernel does not support it.
    pub const fn removal(&self) -> Option<&Interrupt> {
        self.removal.as_ref()
    }

    /// Returns the interrupt for a PCIe error of the device that only a reset clears (advanced error reporting). `None` if the kernel
    /// does not support it.
    pub const fn failure(&self) -> Option<&Interrupt> {
        self.failure.as_ref()
    }

    /// Resets the function (function-level reset). No driver is in use at the time, or the driver has been forgotten.
    ///
    /// # Errors
    /// The kernel cannot reset the function.
    pub fn reset(&self) -> Result<(), Error> {
        if !self.function.opener.is_this() {
            return Err(Error::Forked);
        }
        // SAFETY: the descriptor is that of a VFIO device, and the call takes no argument.
        let done = unsafe { ioctl(&*self.function.device, VFIO_DEVICE_RESET()) };
        if done == 0 {
            self.function.config.enable()
        } else {
            Err(Error::io("the function cannot be reset", io::Error::last_os_error()))
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.function.end_dma();
    }
}

#[cfg(test)]
mod tests {
    use vmm_sys_util::errno::Error as SysError;

    use super::*;

    const CARD: Address = Address::new(0, 1, 0, 0).unwrap();

    /// `vfio_group_fops_open` and `vfio_device_fops_cdev_open` of Linux give EBUSY, `vfio_pci_validate_vf_token` EACCES,
    /// `vfio_iommu_type1_attach_group` and `iommufd_device_bind` EPERM, `iommu_attach_group` EINVAL.
    #[test]
    fn a_refusal_of_the_kernel_names_what_stands_in_the_way() {
        let machine = tempfile::tempdir().unwrap();
        let sysfs = Sysfs::at(machine.path());
        let of = |error, direct| Device::refusal(error, &sysfs, CARD, 7, direct);
        let io = |errno: Errno| io::Error::from(errno);
        let sys = |errno: Errno| SysError::new(errno.raw_os_error());
        let in_use = |error: Error| matches!(error, Error::Obstacle(Obstacle::InUse { group: 7, .. }));
        assert!(in_use(of(VfioError::OpenGroup(io(Errno::BUSY), "7".into()), false)));
        assert!(in_use(of(VfioError::OpenDeviceCdev(io(Errno::BUSY)), false)));
        for errno in [Errno::BUSY, Errno::INVAL] {
            assert!(in_use(of(VfioError::VfioDeviceBindIommufd(sys(errno)), false)));
        }
        for error in [VfioError::GroupGetDeviceFD(sys(Errno::ACCESS)), VfioError::VfioDeviceBindIommufd(sys(Errno::ACCESS))] {
            let refused = of(error, false);
            assert!(matches!(refused, Error::Obstacle(Obstacle::VfToken { address: CARD, physical: CARD })), "{refused}");
        }
        for (error, module) in [
            (VfioError::ContainerSetIOMMU(sys(Errno::PERM)), "vfio_iommu_type1"),
            (VfioError::VfioDeviceBindIommufd(sys(Errno::PERM)), "iommufd"),
        ] {
            let refused = of(error, false);
            assert!(matches!(refused, Error::UnsafeInterrupts { module: said } if said == module), "{refused}");
        }
        for error in [VfioError::ContainerSetIOMMU(sys(Errno::PERM)), VfioError::VfioDeviceAttachIommufdPt(sys(Errno::INVAL))] {
            let refused = of(error, true);
            assert!(matches!(refused, Error::DirectMapping { group: 7 }), "{refused}");
        }
        // The file of the group, which is not there on this machine.
        let missing = of(VfioError::OpenGroup(io(Errno::NOENT), "no group".into()), false);
        assert!(matches!(missing, Error::Obstacle(Obstacle::NoFile { path }) if path == Path::new("/dev/vfio/no group")));
        let closed = of(VfioError::OpenDeviceCdev(io(Errno::ACCESS)), false);
        assert!(matches!(closed, Error::File { path, .. } if path == Path::new("/dev/vfio/devices")));
        for error in [VfioError::VfioDeviceAttachIommufdPt(sys(Errno::INVAL)), VfioError::ContainerSetIOMMU(sys(Errno::NODEV))]
        {
            let other = of(error, false);
            assert!(matches!(other, Error::Vfio { what: "the device cannot be opened", .. }), "{other}");
        }
    }

    #[test]
    fn a_function_that_is_not_there_is_not_opened() {
        let nowhere = Address::new(u32::MAX, 0xff, 31, 7).unwrap();
        for _ in 0..2 {
            let refused = Device::open(nowhere).unwrap_err();
            assert!(matches!(refused, Error::NoSuchFunction { address } if address == nowhere), "{refused}");
        }
    }
}

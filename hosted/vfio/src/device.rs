//! A card that this process owns.
#![expect(unsafe_code, reason = "registers and memory of a device are raw memory, and a reset is an ioctl")]

use std::collections::BTreeSet;
use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bareverbs_mlx5::Machine;
use bareverbs_mlx5::mmio::CpuFence;
use vfio_bindings::bindings::vfio::{
    VFIO_BASE, VFIO_PCI_BAR0_REGION_INDEX, VFIO_PCI_CONFIG_REGION_INDEX, VFIO_PCI_ERR_IRQ_INDEX, VFIO_PCI_MSIX_IRQ_INDEX,
    VFIO_PCI_REQ_IRQ_INDEX, VFIO_REGION_INFO_FLAG_MMAP, VFIO_TYPE,
};
use vfio_ioctls::{VfioDevice, VfioError};
use vmm_sys_util::ioctl::ioctl;
use vmm_sys_util::ioctl_io_nr;

use crate::address_space::{AddressSpace, open_error};
use crate::bar::Bar;
use crate::config_space::ConfigSpace;
use crate::dma::{DmaBuffer, Mapping};
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::{MonotonicClock, VfioPlatform};

ioctl_io_nr!(VFIO_DEVICE_RESET, VFIO_TYPE as u32, VFIO_BASE + 11);

/// PCI vendor ID of NVIDIA's adapters (Mellanox).
const VENDOR: u16 = 0x15b3;
/// The least that a ConnectX has in BAR0: the initialization segment (to the health counter at 0x1010) and a UAR page after it.
const LEAST_BAR: u64 = 0x4000;

/// Addresses of the functions that this process has open: the kernel would give it a second descriptor of the same device.
static OPEN: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// A function that is open: its descriptor and its address space, for as long as something of it is in use.
pub(crate) struct OpenFunction {
    address: String,
    device: ManuallyDrop<VfioDevice>,
    /// The function's folder in sysfs.
    folder: PathBuf,
    config: ConfigSpace,
    space: Arc<AddressSpace>,
}

impl OpenFunction {
    /// What the device reaches.
    pub(crate) fn space(&self) -> &AddressSpace {
        &self.space
    }
}

impl std::fmt::Debug for OpenFunction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenFunction").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Drop for OpenFunction {
    fn drop(&mut self) {
        if self.folder.join("iommu_group").read_link().is_ok() {
            // SAFETY: dropped here and nowhere else.
            unsafe { ManuallyDrop::drop(&mut self.device) };
        } else {
            // The drop of `VfioDevice` asks sysfs for the group, and panics for a function that is gone: its descriptor alone is
            // closed. The group goes with the address space.
            // SAFETY: the descriptor belongs to `self.device`, which is not used or dropped any more.
            drop(unsafe { OwnedFd::from_raw_fd(self.device.as_raw_fd()) });
        }
        OPEN.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.address);
    }
}

/// A card that belongs to this process, from [`Device::open`] to its drop, which keeps the card from reaching memory any more.
///
/// Memory and registers may outlive it; the kernel resets the function and gives it to others when the last of them is dropped.
#[derive(Debug)]
pub struct Device {
    function: Arc<OpenFunction>,
    pci_device_id: u16,
    removal: Option<Interrupt>,
    failure: Option<Interrupt>,
    registers_taken: AtomicBool,
}

impl Device {
    /// Takes the PCI function `address` (`0000:01:00.0`), which is bound to vfio-pci, and lets it reach memory.
    ///
    /// # Errors
    /// What stands in the way; [`Error::remedy`] says what to do. The function is left as it was.
    pub fn open(address: &str) -> Result<Self, Error> {
        Self::open_in(Path::new("/sys/bus/pci/devices"), address)
    }

    fn open_in(functions: &Path, address: &str) -> Result<Self, Error> {
        let folder = functions.join(address);
        if !folder.join("vendor").exists() {
            return Err(Error::NoSuchFunction { address: address.into() });
        }
        let driver = folder.join("driver").read_link().ok();
        let driver = driver.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
        if driver.as_deref() != Some("vfio-pci") {
            return Err(Error::NotBound { driver });
        }
        let group_folder = folder.join("iommu_group").canonicalize().map_err(|_| Error::NoIommu)?;
        let number = group_folder.file_name().and_then(|name| name.to_str()?.parse().ok());
        let group: u32 = number.ok_or(Error::NoIommu)?;
        if std::fs::read_to_string(group_folder.join("name")).is_ok_and(|name| name.trim() == "vfio-noiommu") {
            return Err(Error::NoIommuMode { path: format!("/dev/vfio/noiommu-{group}").into() });
        }
        let group_file = Path::new("/dev/vfio").join(group.to_string());
        if !OPEN.lock().unwrap_or_else(PoisonError::into_inner).insert(address.into()) {
            return Err(Error::InUse { path: group_file });
        }
        let opened = AddressSpace::of_group(group, &group_folder).and_then(|space| {
            let opened = VfioDevice::new(&folder, space.ops(), true).map_err(|error| Self::why_not_opened(error, group));
            Ok((opened?, space))
        });
        let (opened, space) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                OPEN.lock().unwrap_or_else(PoisonError::into_inner).remove(address);
                return Err(error);
            }
        };
        // SAFETY: `opened` owns the descriptor and lives as long as the borrow.
        let descriptor = unsafe { BorrowedFd::borrow_raw(opened.as_raw_fd()) };
        let file = descriptor.try_clone_to_owned().map(File::from);
        let offset = opened.get_region_offset(VFIO_PCI_CONFIG_REGION_INDEX);
        let file = file.map_err(|error| Error::io("the descriptor of the device", error));
        let file = file.inspect_err(|_| {
            OPEN.lock().unwrap_or_else(PoisonError::into_inner).remove(address);
        })?;
        let config = ConfigSpace::new(file, offset);
        Self::new(OpenFunction { address: address.into(), device: ManuallyDrop::new(opened), folder, config, space })
    }

    fn why_not_opened(error: VfioError, group: u32) -> Error {
        match error {
            VfioError::OpenGroup(error, group) => open_error(error, Path::new("/dev/vfio").join(group)),
            VfioError::GroupViable => Error::NotViable { group },
            VfioError::ContainerSetIOMMU(error) if error.errno() == rustix::io::Errno::PERM.raw_os_error() => {
                Error::UnsafeInterrupts
            }
            #[cfg(feature = "cdev")]
            VfioError::OpenDeviceCdev(error) => open_error(error, "/dev/vfio/devices".into()),
            other => Error::vfio("the device cannot be opened", other),
        }
    }

    fn new(function: OpenFunction) -> Result<Self, Error> {
        let (vendor, id) = function.config.ids()?;
        if vendor != VENDOR {
            return Err(Error::NotMlx5 { vendor, device: id });
        }
        let len = function.device.get_region_size(VFIO_PCI_BAR0_REGION_INDEX);
        if len < LEAST_BAR {
            return Err(Error::BarTooSmall { len });
        }
        function.config.enable()?;
        let mut device = Self {
            function: Arc::new(function),
            pci_device_id: id,
            removal: None,
            failure: None,
            registers_taken: AtomicBool::new(false),
        };
        device.removal = device.watch(VFIO_PCI_REQ_IRQ_INDEX);
        device.failure = device.watch(VFIO_PCI_ERR_IRQ_INDEX);
        Ok(device)
    }

    /// An event descriptor for one of the kernel's notices; `None` where the kernel has no such notice.
    fn watch(&self, index: u32) -> Option<Interrupt> {
        self.function.device.get_irq_info(index).filter(|info| info.count != 0)?;
        let event = Interrupt::new().ok()?;
        self.function.device.enable_irq(index, vec![event.event()]).ok()?;
        Some(event)
    }

    /// The PCI address.
    pub fn address(&self) -> &str {
        &self.function.address
    }

    /// PCI device ID.
    pub const fn pci_device_id(&self) -> u16 {
        self.pci_device_id
    }

    /// Whether it is a virtual function, which `bareverbs_mlx5::Config::virtual_function` has to say.
    pub fn is_virtual_function(&self) -> bool {
        self.function.folder.join("physfn").exists()
    }

    /// MSI-X vectors that the device has.
    pub fn vectors(&self) -> u32 {
        self.function.device.get_irq_info(VFIO_PCI_MSIX_IRQ_INDEX).map_or(0, |info| info.count)
    }

    /// The registers. They are handed out once, since whoever has them owns the device.
    ///
    /// # Errors
    /// They were handed out before, or the kernel does not map them.
    pub fn registers(&self) -> Result<Bar, Error> {
        if self.function.device.get_region_flags(VFIO_PCI_BAR0_REGION_INDEX) & VFIO_REGION_INFO_FLAG_MMAP == 0 {
            return Err(Error::BarNotMappable);
        }
        if self.registers_taken.swap(true, Ordering::Relaxed) {
            return Err(Error::RegistersTaken);
        }
        let len = self.function.device.get_region_size(VFIO_PCI_BAR0_REGION_INDEX);
        let len = usize::try_from(len).map_err(|_| Error::BarNotMappable)?;
        let offset = self.function.device.get_region_offset(VFIO_PCI_BAR0_REGION_INDEX);
        // SAFETY: this is BAR0 of a device that the value owns, and the flag above keeps it from being mapped twice.
        unsafe { Bar::map(self.function.config.descriptor(), offset, len) }
    }

    /// `len` zeroed bytes that the device reaches.
    ///
    /// # Errors
    /// There is no memory, or it cannot be locked or mapped for the device.
    pub fn memory(&self, len: usize) -> Result<DmaBuffer, Error> {
        DmaBuffer::new(self.function.clone(), len)
    }

    /// Lets the device reach `len` bytes of the caller's memory at `base`, both multiples of the page size, with one mapping.
    ///
    /// # Errors
    /// They are not whole pages, or cannot be locked or mapped for the device.
    ///
    /// # Safety
    /// The bytes stay mapped readable and writable in this process, and no Rust reference to them is used, as long as the
    /// [`Mapping`] lives: the device may read and write them at any time.
    pub unsafe fn map(&self, base: NonNull<u8>, len: usize) -> Result<Mapping, Error> {
        // SAFETY: as the caller promises.
        unsafe { Mapping::new(self.function.clone(), base, len) }
    }

    /// What the driver is brought up with: the registers, `arena` bytes of memory, the fences of this CPU, a clock.
    ///
    /// # Errors
    /// As for [`Device::registers`] and [`Device::memory`].
    pub fn machine(&self, arena: usize) -> Result<Machine<VfioPlatform>, Error> {
        let memory = self.memory(arena)?;
        Ok(Machine { registers: self.registers()?, memory, fence: CpuFence::UNCACHED, clock: MonotonicClock::new() })
    }

    /// Has the first `count` MSI-X vectors of the device signal event descriptors; an earlier call's signal nothing any more.
    ///
    /// # Errors
    /// The device has not as many vectors, or the kernel refuses them.
    pub fn interrupts(&self, count: u16) -> Result<Vec<Interrupt>, Error> {
        let have = self.vectors();
        if have < u32::from(count) {
            return Err(Error::NoVectors { wanted: count, have });
        }
        let interrupts = (0..count).map(|_| Interrupt::new()).collect::<Result<Vec<_>, _>>()?;
        let events = interrupts.iter().map(Interrupt::event).collect();
        self.function.device.enable_msix(events).map_err(|error| Error::vfio("MSI-X cannot be switched on", error))?;
        Ok(interrupts)
    }

    /// Becomes readable when the kernel wants the device back (it is being unbound or removed): the process lets go of it soon,
    /// or the kernel waits. `None` if the kernel has no such notice.
    pub const fn removal(&self) -> Option<&Interrupt> {
        self.removal.as_ref()
    }

    /// Becomes readable when the bus reported an error of the device that nothing mends but a reset (PCIe advanced error
    /// reporting). `None` if the kernel has no such notice.
    pub const fn failure(&self) -> Option<&Interrupt> {
        self.failure.as_ref()
    }

    /// Resets the function (function-level reset). The driver is not up then, or is forgotten.
    ///
    /// # Errors
    /// The kernel cannot reset the function.
    pub fn reset(&self) -> Result<(), Error> {
        // SAFETY: the descriptor is that of a VFIO device, and the call takes no argument.
        let done = unsafe { ioctl(&*self.function.device, VFIO_DEVICE_RESET()) };
        if done == 0 {
            self.function.config.enable()
        } else {
            Err(Error::io("the function cannot be reset", std::io::Error::last_os_error()))
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // A device that is gone cannot be told.
        let _ = self.function.config.disable();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(folder: &Path, address: &str) -> Error {
        Device::open_in(folder, address).unwrap_err()
    }

    #[test]
    fn what_stands_in_the_way_is_told_before_anything_is_touched() {
        let folder = tempfile::tempdir().unwrap();
        let function = folder.path().join("0000:01:00.0");
        assert!(matches!(refused(folder.path(), "0000:01:00.0"), Error::NoSuchFunction { .. }));
        std::fs::create_dir(&function).unwrap();
        std::fs::write(function.join("vendor"), "0x15b3\n").unwrap();
        assert!(matches!(refused(folder.path(), "0000:01:00.0"), Error::NotBound { driver: None }));
        std::os::unix::fs::symlink("../../drivers/mlx5_core", function.join("driver")).unwrap();
        assert!(
            matches!(refused(folder.path(), "0000:01:00.0"), Error::NotBound { driver: Some(name) } if name == "mlx5_core")
        );
        std::fs::remove_file(function.join("driver")).unwrap();
        std::os::unix::fs::symlink("../../drivers/vfio-pci", function.join("driver")).unwrap();
        assert!(matches!(refused(folder.path(), "0000:01:00.0"), Error::NoIommu));
        let group = folder.path().join("12");
        std::fs::create_dir(&group).unwrap();
        std::fs::write(group.join("name"), "vfio-noiommu\n").unwrap();
        std::os::unix::fs::symlink(&group, function.join("iommu_group")).unwrap();
        assert!(matches!(refused(folder.path(), "0000:01:00.0"), Error::NoIommuMode { .. }));
    }
}

//! A function that this process has open, until its registers and its memory are dropped.
#![expect(unsafe_code, reason = "a device whose group is gone from sysfs is closed by its descriptor")]

use std::collections::BTreeSet;
use std::fs::File;
use std::mem::ManuallyDrop;
use std::ops::ControlFlow;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use vfio_bindings::bindings::vfio::VFIO_PCI_BAR0_REGION_INDEX;
use vfio_ioctls::VfioDevice;

use crate::address_space::AddressSpace;
use crate::config_space::ConfigSpace;
use crate::error::Error;
use crate::opener::Opener;
use crate::pci::{Address, Interface};

/// Time between two looks at registers that read as all ones.
const ANSWER_INTERVAL: Duration = Duration::from_millis(10);

/// Waits until `is_there` returns `true`.
///
/// # Errors
/// It did not within `timeout`, or before `hook` returned `Break`: the time waited.
fn wait_for(
    mut is_there: impl FnMut() -> bool,
    timeout: Duration,
    mut hook: impl FnMut(Duration) -> ControlFlow<()>,
) -> Result<(), Duration> {
    let start = Instant::now();
    while !is_there() {
        let waited = start.elapsed();
        if waited >= timeout || hook(waited).is_break() {
            return Err(waited);
        }
        std::thread::sleep(ANSWER_INTERVAL);
    }
    Ok(())
}

/// Addresses of the functions that this process has open. The kernel would allow a second descriptor of the same device.
static OPEN: Mutex<BTreeSet<Address>> = Mutex::new(BTreeSet::new());

/// An address in [`OPEN`], until it is dropped.
pub(crate) struct Claim(Address);

impl Claim {
    pub(crate) fn new(address: Address) -> Result<Self, Error> {
        let is_new = OPEN.lock().unwrap_or_else(PoisonError::into_inner).insert(address);
        is_new.then_some(Self(address)).ok_or(Error::AlreadyOpen { address })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        OPEN.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.0);
    }
}

/// An open function: its descriptors and its address space.
///
/// The fields are dropped in this order. `config` is a second descriptor of the device, which keeps the function in sysfs until the
/// drop of `device` has read its group there. The claim is dropped last.
pub(crate) struct OpenFunction {
    pub(crate) device: ManuallyDrop<VfioDevice>,
    pub(crate) config: ConfigSpace,
    pub(crate) space: Arc<AddressSpace>,
    pub(crate) opener: Opener,
    /// The function's folder in sysfs.
    pub(crate) folder: PathBuf,
    pub(crate) claim: Claim,
}

impl OpenFunction {
    /// Waits until the registers read as anything but all ones.
    ///
    /// # Errors
    /// They did not within `timeout`, or before `hook`, which is called with the time waited, returned `Break`.
    pub(crate) fn wait_for_registers(
        &self,
        timeout: Duration,
        hook: impl FnMut(Duration) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        wait_for(|| self.answers(), timeout, hook).map_err(|waited| Error::NoRegisters { address: self.address(), waited })
    }

    /// Returns whether the registers read as anything but all ones.
    ///
    /// They are read through the descriptor. For a device that is removed or without power, the kernel emulates reads of configuration
    /// space, and an access to the mapped BAR would end the process.
    fn answers(&self) -> bool {
        let mut word = [0xff; 4];
        let offset = self.device.get_region_offset(VFIO_PCI_BAR0_REGION_INDEX);
        self.config.descriptor().read_exact_at(&mut word, offset).is_ok() && word != [0xff; 4]
    }

    /// Ends the DMA of the device: disables its bus mastering. One that was removed accepts no writes, and that of a forked child is
    /// its parent's.
    pub(crate) fn end_dma(&self) {
        if self.opener.is_this() {
            let _ = self.config.disable();
        }
    }

    pub(crate) fn address(&self) -> Address {
        self.claim.0
    }

    /// Returns the descriptor of the device.
    pub(crate) const fn descriptor(&self) -> &File {
        self.config.descriptor()
    }

    /// Returns the address space of the device.
    pub(crate) fn space(&self) -> &AddressSpace {
        &self.space
    }
}

impl std::fmt::Debug for OpenFunction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenFunction").field("address", &self.address()).finish_non_exhaustive()
    }
}

impl Drop for OpenFunction {
    fn drop(&mut self) {
        // The drop of `VfioDevice` panics where either fails: it reads the group from sysfs, or takes the device from the address space
        // of iommufd, for which the kernel wakes the device up.
        // A forked child must not take its parent's device from anything.
        let can_be_dropped = self.opener.is_this()
            && match self.space.interface() {
                Interface::Group => self.folder.join("iommu_group").read_link().is_ok(),
                Interface::Iommufd => self.device.detach_hwpt().is_ok(),
            };
        if can_be_dropped {
            // SAFETY: dropped here and nowhere else.
            unsafe { ManuallyDrop::drop(&mut self.device) };
        } else {
            // Only the descriptor is closed; group and container, or iommufd, stay open until the process ends.
            // SAFETY: the descriptor belongs to `self.device`, which is not used or dropped any more.
            drop(unsafe { OwnedFd::from_raw_fd(self.device.as_raw_fd()) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_for_an_answer_ends_with_it_with_its_time_and_with_the_hook() {
        let long = Duration::from_secs(120);
        let (mut looks, mut last) = (0, Duration::ZERO);
        let go = |waited| {
            assert!(waited >= last, "{waited:?}");
            last = waited;
            ControlFlow::Continue(())
        };
        let third = || {
            looks += 1;
            looks == 3
        };
        assert_eq!(wait_for(third, long, go), Ok(()));
        assert!((2 * ANSWER_INTERVAL..long).contains(&(last + ANSWER_INTERVAL)), "{last:?}");
        assert_eq!(wait_for(|| true, Duration::ZERO, |_| panic!("nothing is waited for")), Ok(()));
        let waited = wait_for(|| false, 3 * ANSWER_INTERVAL, |_| ControlFlow::Continue(())).unwrap_err();
        assert!((3 * ANSWER_INTERVAL..long).contains(&waited), "{waited:?}");
        let mut calls = 0;
        let stop = |_| {
            calls += 1;
            if calls == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        assert!(wait_for(|| false, long, stop).is_err());
        assert_eq!(calls, 2);
    }

    #[test]
    fn a_function_is_claimed_once_at_a_time() {
        let [first, second] = [6, 7].map(|function| Address::new(u32::MAX, 0xff, 31, function).unwrap());
        let claim = Claim::new(first).unwrap();
        let refused = Claim::new(first).err().unwrap();
        assert!(matches!(refused, Error::AlreadyOpen { address } if address == first), "{refused}");
        assert!(Claim::new(second).is_ok());
        drop(claim);
        assert!(Claim::new(first).is_ok());
    }
}

//! The I/O address space of a device: the memory of this process that it can access, and the I/O virtual addresses.
#![expect(unsafe_code, reason = "mapping memory for a device hands it to the device")]

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use iommufd_ioctls::{IommuFd, IommufdError};
use vfio_ioctls::{VfioContainer, VfioError, VfioIommufd, VfioOps};

use crate::error::Error;
use crate::iova::{Iovas, parse_reserved};
use crate::opener::Opener;
use crate::pci::{Interface, Obstacle, Process};
use crate::space_info::SpaceInfo;

/// Page size of the driver in bytes.
pub(crate) const PAGE: usize = 4096;

/// Returns the granularity of IOMMU mappings in bytes: a page of the kernel, which has 16 or 64 KiB on some machines.
pub(crate) fn kernel_page() -> usize {
    rustix::param::page_size().max(PAGE)
}

/// The address spaces of this process by IOMMU group. The kernel requires that devices of one group share an address space.
static SPACES: Mutex<BTreeMap<u32, Weak<AddressSpace>>> = Mutex::new(BTreeMap::new());

/// The allocator of addresses for all of them.
static IOVAS: Mutex<Iovas> = Mutex::new(Iovas::new());

/// What the kernel keeps an address space in.
enum Backend {
    Container(Arc<VfioContainer>),
    Iommufd(Arc<VfioIommufd>),
}

/// An I/O address space: a VFIO container, or an I/O address space of iommufd.
pub(crate) struct AddressSpace {
    backend: Backend,
    opener: Opener,
    /// First and last addresses of the reserved ranges of the platform.
    reserved: Vec<(u64, u64)>,
    has_direct_mapping: bool,
    /// What the kernel said of the space when a device was last added to it.
    answer: Mutex<Answer>,
}

/// What the kernel said of an address space, for allocations.
#[derive(Debug, Default)]
struct Answer {
    /// First and last addresses of what cannot be mapped: the reserved ranges, and what the IOMMU does not translate.
    holes: Vec<(u64, u64)>,
    /// How many mappings there may be.
    limit: Option<u32>,
}

impl AddressSpace {
    /// Returns the address space of an IOMMU group, and opens it for the first device of the group. The kernel requires that the others
    /// are opened by the same interface.
    pub(crate) fn of_group(group: u32, interface: Interface) -> Result<Arc<Self>, Error> {
        let mut spaces = SPACES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(space) = spaces.get(&group).and_then(Weak::upgrade) {
            return Ok(space);
        }
        let backend = open(interface)?;
        // A kernel without the file reports no reserved range.
        let reserved = std::fs::read_to_string(format!("/sys/kernel/iommu_groups/{group}/reserved_regions"));
        let reserved = reserved.unwrap_or_default();
        let space = Arc::new(Self {
            backend,
            opener: Opener::this(),
            has_direct_mapping: reserved.lines().any(|line| line.trim_end().ends_with(" direct")),
            reserved: parse_reserved(&reserved),
            answer: Mutex::default(),
        });
        spaces.retain(|_, space| space.strong_count() > 0);
        spaces.insert(group, Arc::downgrade(&space));
        Ok(space)
    }

    /// Asks the kernel what can be mapped. Called after each device that was added, since each may restrict the space.
    ///
    /// # Errors
    /// The kernel does not answer, or the smallest page of the IOMMU is larger than that of the kernel.
    pub(crate) fn ask(&self) -> Result<(), Error> {
        let info = self.info().map_err(|error| Error::io("the description of the I/O address space", error))?;
        check_page(info.page, kernel_page() as u64)?;
        let mut answer = self.answer.lock().unwrap_or_else(PoisonError::into_inner);
        answer.holes = [info.holes(), self.reserved.clone()].concat();
        // Of a space that has mappings already, the kernel tells how many are left.
        answer.limit = answer.limit.or(info.mappings);
        Ok(())
    }

    /// Refuses a forked child, whose memory and addresses are others.
    fn check_process(&self) -> Result<(), Error> {
        if self.opener.is_this() { Ok(()) } else { Err(Error::Forked) }
    }

    fn info(&self) -> io::Result<SpaceInfo> {
        match &self.backend {
            Backend::Container(container) => SpaceInfo::of_container(container.as_ref()),
            Backend::Iommufd(space) => SpaceInfo::of_ioas(space.iommufd().as_ref(), space.ioas().id()),
        }
    }

    /// Returns whether the firmware requires a direct mapping (RMRR), for which Linux refuses the group to users.
    pub(crate) const fn has_direct_mapping(&self) -> bool {
        self.has_direct_mapping
    }

    /// Returns the VFIO container or the iommufd.
    pub(crate) fn ops(&self) -> Arc<dyn VfioOps> {
        match &self.backend {
            Backend::Container(container) => container.clone(),
            Backend::Iommufd(space) => space.clone(),
        }
    }

    /// Returns the interface of the kernel that it was opened by.
    pub(crate) const fn interface(&self) -> Interface {
        match self.backend {
            Backend::Container(_) => Interface::Group,
            Backend::Iommufd(_) => Interface::Iommufd,
        }
    }

    /// Returns first and last addresses of what cannot be mapped.
    pub(crate) fn holes(&self) -> Vec<(u64, u64)> {
        self.answer.lock().unwrap_or_else(PoisonError::into_inner).holes.clone()
    }

    /// Locks the `len` bytes at `base` in memory and maps them for the device. Returns their I/O virtual address, which is congruent
    /// to `base` modulo `align`.
    ///
    /// # Safety
    /// The bytes are whole pages, mapped readable and writable in this process until [`AddressSpace::unmap`] has succeeded.
    /// Until then the device may read and write them at any time, so that no Rust reference to them exists.
    pub(crate) unsafe fn map(&self, base: NonNull<u8>, len: usize, align: u64) -> Result<u64, Error> {
        self.check_process()?;
        let addr = base.addr().get() as u64;
        let answer = self.answer.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = IOVAS.lock().unwrap_or_else(PoisonError::into_inner).allocate(len as u64, align, addr, &answer.holes);
        let (iova, limit) = (taken.ok_or(Error::NoAddresses { len: len as u64 })?, answer.limit);
        drop(answer);
        // SAFETY: as promised by the caller; nothing else is mapped at the address range.
        let mapped = unsafe { self.ops().vfio_dma_map(iova, len, base.as_ptr()) };
        mapped.map(|()| iova).map_err(|error| {
            IOVAS.lock().unwrap_or_else(PoisonError::into_inner).free(iova);
            map_error(error, len, limit, &Process::current(), locked())
        })
    }

    /// Unmaps the `len` bytes at `iova`, so that the device can no longer access them.
    pub(crate) fn unmap(&self, iova: u64, len: usize) -> Result<(), Error> {
        self.check_process()?;
        self.ops().vfio_dma_unmap(iova, len).map_err(|error| Error::vfio("the IOMMU mapping cannot be taken away", error))?;
        IOVAS.lock().unwrap_or_else(PoisonError::into_inner).free(iova);
        Ok(())
    }
}

impl std::fmt::Debug for AddressSpace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AddressSpace").field("answer", &self.answer).finish_non_exhaustive()
    }
}

fn open(interface: Interface) -> Result<Backend, Error> {
    match interface {
        Interface::Group => match VfioContainer::new(None) {
            Ok(container) => Ok(Backend::Container(Arc::new(container))),
            Err(VfioError::OpenContainer(error)) => Err(open_error(error, "/dev/vfio/vfio".into())),
            Err(error) => Err(Error::vfio("the VFIO container", error)),
        },
        Interface::Iommufd => {
            let iommufd = IommuFd::new().map_err(|error| match error {
                IommufdError::OpenIommufd(error) => open_error(error, "/dev/iommu".into()),
                other => Error::io("iommufd", io::Error::other(other)),
            })?;
            let space = VfioIommufd::new(Arc::new(iommufd), None, None);
            space.map(|space| Backend::Iommufd(Arc::new(space))).map_err(|error| Error::vfio("iommufd", error))
        }
    }
}

/// Checks that the smallest page of the IOMMU is no larger than one of the kernel.
const fn check_page(iommu: Option<u64>, kernel: u64) -> Result<(), Error> {
    match iommu {
        Some(iommu) if iommu > kernel => Err(Error::LargePages { iommu, kernel }),
        _ => Ok(()),
    }
}

/// Converts the error of opening a VFIO file.
pub(crate) fn open_error(error: io::Error, path: PathBuf) -> Error {
    match (error.raw_os_error().map(rustix::io::Errno::from_raw_os_error), std::fs::metadata(&path)) {
        (Some(rustix::io::Errno::NOENT), _) => Error::Obstacle(Obstacle::NoFile { path }),
        // EPERM comes from elsewhere (a container's list of devices, say), and no owner or mode helps.
        (Some(rustix::io::Errno::ACCESS), Ok(file)) => {
            Error::Obstacle(Obstacle::NoAccess { path, uid: file.uid(), gid: file.gid(), mode: file.mode() })
        }
        _ => Error::File { path, error },
    }
}

/// Returns the bytes that this process has locked (`VmLck`) or pinned for devices (`VmPin`): the larger of the two counts against
/// the limit.
fn locked() -> u64 {
    locked_of(&std::fs::read_to_string("/proc/self/status").unwrap_or_default())
}

/// Reads them in the text of proc_pid_status(5).
fn locked_of(status: &str) -> u64 {
    let kib = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    kib("VmLck:").unwrap_or(0).max(kib("VmPin:").unwrap_or(0)).saturating_mul(1024)
}

fn map_error(error: VfioError, len: usize, limit: Option<u32>, process: &Process, locked: u64) -> Error {
    // iommufd counts the memory of all processes of the user, which this one does not see: the limit and these bytes suffice.
    let (errno, others) = match &error {
        VfioError::IommuDmaMap(error) => (error.errno(), None),
        VfioError::IommufdIoctlError(IommufdError::IommuIoasMap(error)) => (error.errno(), process.memlock),
        _ => (0, None),
    };
    let needed = locked.max(others.unwrap_or(0)).saturating_add(len as u64);
    match (rustix::io::Errno::from_raw_os_error(errno), process.memlock) {
        (rustix::io::Errno::NOMEM, Some(limit)) if needed > limit && !process.ipc_lock => {
            Error::Obstacle(Obstacle::Memlock { limit, needed })
        }
        (rustix::io::Errno::NOSPC, _) => Error::TooManyMappings { limit },
        _ => Error::vfio("the IOMMU does not map the memory", error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_iommu_whose_pages_are_larger_than_the_kernels_is_refused() {
        for fits in [None, Some(4096), Some(16384)] {
            assert!(check_page(fits, 16384).is_ok(), "{fits:?}");
        }
        let large = check_page(Some(65536), 16384);
        assert!(matches!(large, Err(Error::LargePages { iommu: 65536, kernel: 16384 })), "{large:?}");
    }

    #[test]
    fn errors_name_the_cause_that_the_user_can_remove() {
        let of = |errno, path: &str| open_error(io::Error::from_raw_os_error(errno), path.into());
        assert!(matches!(of(2, "/dev/vfio/7"), Error::Obstacle(Obstacle::NoFile { .. })));
        assert!(matches!(of(13, "/dev/null"), Error::Obstacle(Obstacle::NoAccess { uid: 0, .. })));
        assert!(matches!(of(5, "/dev/null"), Error::File { .. }));
        assert!(matches!(of(1, "/dev/null"), Error::File { .. }));
    }

    #[test]
    fn a_refused_mapping_names_the_limit_that_is_reached() {
        let errno = vmm_sys_util::errno::Error::new;
        let process = |memlock, ipc_lock| Process { access: crate::pci::Access::This, memlock, ipc_lock };
        let limited = process(Some(1 << 20), false);
        let by_container = |locked| map_error(VfioError::IommuDmaMap(errno(12)), 4096, None, &limited, locked);
        // One page more than fits, and as many as fit: then another thing has no memory.
        let full = by_container((1 << 20) - 4095);
        let needed = (1 << 20) + 1;
        assert!(
            matches!(full, Error::Obstacle(Obstacle::Memlock { limit: 0x10_0000, needed: all }) if all == needed),
            "{full}"
        );
        for other in [by_container((1 << 20) - 4096), by_container(0)] {
            assert!(matches!(other, Error::Vfio { what: "the IOMMU does not map the memory", .. }), "{other}");
        }
        let huge = map_error(VfioError::IommuDmaMap(errno(12)), usize::MAX, None, &limited, 1);
        assert!(matches!(huge, Error::Obstacle(Obstacle::Memlock { needed: u64::MAX, .. })), "{huge}");
        // The limit of the user may be reached by other processes.
        let by_user = |process| {
            let refused = VfioError::IommufdIoctlError(IommufdError::IommuIoasMap(errno(12)));
            map_error(refused, 4096, None, &process, 0)
        };
        let shared = by_user(limited.clone());
        assert!(matches!(shared, Error::Obstacle(Obstacle::Memlock { needed, .. }) if needed == (1 << 20) + 4096), "{shared}");
        for other in [by_user(process(Some(1 << 20), true)), by_user(process(None, false))] {
            assert!(matches!(other, Error::Vfio { .. }), "{other}");
        }
        let many = map_error(VfioError::IommuDmaMap(errno(28)), 1 << 20, Some(65535), &limited, 0);
        assert_eq!(many.to_string(), "the kernel allows 65535 mappings of memory for this device");
        assert!(many.remedy().contains("/sys/module/vfio_iommu_type1/parameters/dma_entry_limit"));
        let fault = map_error(VfioError::IommuDmaMap(errno(14)), 4096, None, &limited, 1 << 20);
        assert!(matches!(fault, Error::Vfio { .. }), "{fault}");
    }

    #[test]
    fn locked_and_pinned_memory_is_read_in_the_status_of_a_process() {
        let status = |locked, pinned| format!("Name:\tx\nVmLck:\t    {locked} kB\nVmPin:\t    {pinned} kB\nVmHWM:\t 9999 kB\n");
        assert_eq!((locked_of(&status(8, 4)), locked_of(&status(4, 12)), locked_of("Name:\tx\n")), (8192, 12288, 0));
        // Some pages of this process, which fit into every limit.
        let pages = vec![0_u8; 8192];
        // SAFETY: the bytes belong to the vector, and locking changes no content.
        unsafe { rustix::mm::mlock(pages.as_ptr().cast_mut().cast(), pages.len()) }.unwrap();
        assert!(locked() >= 8192, "{}", locked());
    }
}

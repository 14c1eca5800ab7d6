//! The client's memory: what it offered by DMA_MAP, mapped into this process.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::net::Shutdown;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use bareverbs_sim::host_memory::{DmaFault, HostMemory};
use rustix::io::Errno;
use vm_memory::mmap::MmapRegionError;
use vm_memory::{Bytes as _, FileOffset, MmapRegion, VolatileMemory as _};

use crate::log::RateLimited;
use crate::sigbus::SigbusGuard;

/// Maximum number of mappings of one client: the default of `max_dma_maps` in vfio-user. With an IOMMU in the guest, its driver
/// has a mapping for each page.
const MAX_MAPPINGS: usize = 65_535;

/// Types of file systems whose files are memory (statfs(2)): tmpfs for memfd and /dev/shm, hugetlbfs for huge pages.
const TMPFS: u64 = 0x0102_1994;
const HUGETLBFS: u64 = 0x9584_58f6;

/// Page size that the server announces (`pgsize`): addresses and lengths of mappings are multiples of it.
const PAGE: u64 = 4096;

/// Maximum address space of this process for the files of one client, in bytes: a file is mapped as a whole.
const MAX_ADDRESS_SPACE: usize = 4 << 40;

/// Limits of the memory of one client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Total bytes of its files.
    pub(crate) bytes: u64,
    /// Number of its files, each of which takes a descriptor.
    pub(crate) files: usize,
}

/// A file of the client, mapped as a whole: one mapping per range could exceed the limit of the kernel (vm.max_map_count).
struct MappedFile {
    /// Device and inode.
    id: (u64, u64),
    writable: bool,
    pages: Weak<FilePages>,
}

/// The mapping of a whole file.
struct FilePages {
    /// Declared before the region, so that it is dropped before the region is unmapped.
    sigbus_guard: SigbusGuard,
    region: MmapRegion,
}

/// A range of a file.
struct Pages {
    file: Arc<FilePages>,
    offset: usize,
}

/// One range of device addresses.
struct Mapping {
    len: u64,
    writable: bool,
    /// `None` for memory offered without a descriptor, which cannot be accessed.
    pages: Option<Pages>,
    /// Whether an access without a descriptor has been logged.
    logged: AtomicBool,
}

impl Mapping {
    /// Returns the address of the last byte of a mapping that starts at `start`.
    const fn last(&self, start: u64) -> u64 {
        // Cannot wrap: `last_byte` has checked that the range is not empty and ends within 64 bits.
        start.wrapping_add(self.len).wrapping_sub(1)
    }
}

/// Returns the address of the last byte of a range. Its end may be 2^64, which does not fit in 64 bits.
///
/// # Errors
/// The range is empty, or ends beyond the address space.
fn last_byte(start: u64, len: u64) -> Result<u64, MapError> {
    let more = len.checked_sub(1).ok_or(MapError::Empty)?;
    start.checked_add(more).ok_or(MapError::Beyond { start, len })
}

/// Why a range could not be mapped or unmapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MapError {
    /// The range is empty.
    Empty,
    /// An address, a length or an offset is not a multiple of 4096.
    Unaligned(u64),
    /// The range ends beyond the address space.
    Beyond {
        /// First byte.
        start: u64,
        /// Bytes.
        len: u64,
    },
    /// The range overlaps this mapping.
    Overlap {
        /// Device address of the mapping.
        start: u64,
        /// Length of the mapping in bytes.
        len: u64,
    },
    /// An unmapped range cuts through this mapping.
    Partial {
        /// Device address of the mapping.
        start: u64,
        /// Length of the mapping in bytes.
        len: u64,
    },
    /// The client has the maximum number of mappings.
    TooManyMappings(usize),
    /// The client's mappings are of the maximum number of files.
    TooManyFiles(usize),
    /// The total size of the client's files would exceed the limit.
    TooLarge {
        /// Bytes of this file.
        file: u64,
        /// Limit of all files together, in bytes.
        most: u64,
    },
    /// The file is shorter than the range.
    FileTooShort {
        /// Bytes of the file.
        file: u64,
        /// Where in the file the range ends.
        end: u64,
    },
    /// The file is not a memfd and not on tmpfs or hugetlbfs.
    NoMemoryFile {
        /// Type of its file system (statfs(2)).
        system: u64,
    },
    /// The system refused.
    System(Errno),
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(f, "the range has no bytes"),
            Self::Unaligned(number) => write!(f, "{number:#x} is not a multiple of {PAGE} bytes"),
            Self::Beyond { start, len } => write!(f, "{len} bytes from {start:#x} on end beyond 64 bits"),
            Self::Overlap { start, len } => write!(f, "the range overlaps the mapping at {start:#x}, {len} bytes"),
            Self::Partial { start, len } => write!(f, "the range cuts through the mapping at {start:#x}, {len} bytes"),
            Self::TooManyMappings(most) => write!(f, "the client has {most} mappings, as many as it may have"),
            Self::TooManyFiles(most) => write!(f, "the client's mappings are of {most} files, as many as they may be of"),
            Self::TooLarge { file, most } => {
                write!(f, "the file has {file} bytes, with which the client's files would have more than {most} together")
            }
            Self::FileTooShort { file, end } => write!(f, "the file has {file} bytes, the range ends at {end}"),
            Self::NoMemoryFile { system } => {
                write!(f, "the file is no memory (memfd, tmpfs or hugetlbfs): its file system is of type {system:#x}")
            }
            Self::System(error) => write!(f, "the system refused: {}", io::Error::from(*error)),
        }
    }
}

impl std::error::Error for MapError {}

impl From<MapError> for io::Error {
    fn from(error: MapError) -> Self {
        let kind = match error {
            // The client gets the system's own number.
            MapError::System(error) => return error.into(),
            MapError::TooManyMappings(_) | MapError::TooManyFiles(_) | MapError::TooLarge { .. } => io::ErrorKind::OutOfMemory,
            _ => io::ErrorKind::InvalidInput,
        };
        Self::new(kind, error)
    }
}

impl From<Errno> for MapError {
    fn from(error: Errno) -> Self {
        Self::System(error)
    }
}

impl MapError {
    /// Converts an error of a system call.
    fn system(error: &io::Error) -> Self {
        Self::System(Errno::from_io_error(error).unwrap_or(Errno::IO))
    }
}

/// The memory of one client. A thread may change the mappings while others read and write.
pub(crate) struct ClientMemory {
    lines: Arc<RateLimited>,
    bounds: Bounds,
    mappings: RwLock<BTreeMap<u64, Mapping>>,
    files: Mutex<Vec<MappedFile>>,
    /// The connection of the client, to end it.
    connection: Mutex<Option<UnixStream>>,
    /// Set when a file of the client had no page for an access: all later accesses fail.
    lost: AtomicBool,
    /// The server has ended: no client is served any more.
    ended: AtomicBool,
}

/// One step of a copy: `len` bytes at offset `at` of the mapping, and at offset `from` of the buffer.
struct Step<'a> {
    pages: &'a Pages,
    at: usize,
    from: usize,
    len: usize,
}

impl ClientMemory {
    /// Creates the memory of a client without mappings.
    pub(crate) fn new(lines: Arc<RateLimited>, bounds: Bounds) -> Self {
        Self {
            lines,
            bounds,
            mappings: RwLock::default(),
            files: Mutex::default(),
            connection: Mutex::default(),
            lost: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        }
    }

    /// Registers the connection of a new client, to be shut down if its memory is lost.
    pub(crate) fn connect(&self, connection: UnixStream) {
        *self.connection.lock().unwrap_or_else(PoisonError::into_inner) = Some(connection);
        if self.ended.load(Ordering::SeqCst) {
            self.hang_up();
        }
    }

    /// Shuts down the connection, if there is one, and all later ones.
    pub(crate) fn hang_up(&self) {
        self.ended.store(true, Ordering::SeqCst);
        if let Some(connection) = &*self.connection.lock().unwrap_or_else(PoisonError::into_inner) {
            // It may have ended before.
            let _ = connection.shutdown(Shutdown::Both);
        }
    }

    /// Returns whether the client was disconnected because a file of its memory had no page for an access.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// Maps `len` bytes at device address `addr` to `file` from `offset` on. Without a file, accesses to the range fail.
    pub(crate) fn map(&self, addr: u64, len: u64, writable: bool, file: Option<File>, offset: u64) -> Result<(), MapError> {
        let last = last_byte(addr, len)?;
        if let Some(number) = [addr, len, offset].into_iter().find(|number| !number.is_multiple_of(PAGE)) {
            return Err(MapError::Unaligned(number));
        }
        // Without the lock, since statfs(2) may wait for the client's file system.
        let pages = file.map(|file| self.pages(file, offset, len, writable)).transpose()?;
        let mut mappings = self.mappings.write().unwrap_or_else(PoisonError::into_inner);
        if mappings.len() >= MAX_MAPPINGS {
            return Err(MapError::TooManyMappings(MAX_MAPPINGS));
        }
        let before = mappings.range(..=last).next_back();
        if let Some((start, mapping)) = before.filter(|(start, mapping)| mapping.last(**start) >= addr) {
            return Err(MapError::Overlap { start: *start, len: mapping.len });
        }
        mappings.insert(addr, Mapping { len, writable, pages, logged: AtomicBool::new(false) });
        Ok(())
    }

    /// Removes all mappings within the range.
    ///
    /// # Errors
    /// The range is invalid or contains only a part of a mapping.
    pub(crate) fn unmap(&self, addr: u64, len: u64) -> Result<(), MapError> {
        let last = last_byte(addr, len)?;
        let mut mappings = self.mappings.write().unwrap_or_else(PoisonError::into_inner);
        // They do not overlap: at most one begins before the range and reaches into it.
        let before = mappings.range(..addr).next_back();
        let touched: Vec<(u64, u64)> = before
            .into_iter()
            .chain(mappings.range(addr..=last))
            .map(|(start, mapping)| (*start, mapping.last(*start)))
            .filter(|(_, mapping_last)| *mapping_last >= addr)
            .collect();
        if let Some((start, mapping_last)) = touched.iter().find(|(start, mapping_last)| *start < addr || *mapping_last > last)
        {
            return Err(MapError::Partial { start: *start, len: mapping_last - start + 1 });
        }
        let unmapped: Vec<Option<Mapping>> = touched.iter().map(|(start, _)| mappings.remove(start)).collect();
        drop(mappings);
        // Dropped after the lock, because unmapping a large file takes long.
        drop(unmapped);
        Ok(())
    }

    /// Removes all mappings.
    pub(crate) fn clear(&self) {
        let unmapped = std::mem::take(&mut *self.mappings.write().unwrap_or_else(PoisonError::into_inner));
        drop(unmapped);
    }

    /// Resets the state after the client has disconnected.
    pub(crate) fn disconnect(&self) {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.clear();
        self.lost.store(false, Ordering::Relaxed);
    }

    /// Shuts down the connection of a client whose file had no page for an access.
    fn lose(&self, file: &FilePages) {
        if self.lost.swap(true, Ordering::Relaxed) {
            return;
        }
        let len = file.region.file_offset().and_then(|file| file.file().metadata().ok()).map_or(0, |metadata| metadata.len());
        let why = if len < file.region.size() as u64 {
            "the client has made the file of its memory shorter, and is given up"
        } else {
            "the system has no page for a hole in the file of the client's memory (huge pages, a full tmpfs): it is given up"
        };
        self.lines.line(format_args!("{why}"));
        if let Some(connection) = &*self.connection.lock().unwrap_or_else(PoisonError::into_inner) {
            // It may have ended already.
            let _ = connection.shutdown(Shutdown::Both);
        }
    }

    /// Returns a range of a file, and maps the whole file unless it is mapped already.
    fn pages(&self, file: File, offset: u64, len: u64, writable: bool) -> Result<Pages, MapError> {
        let system = rustix::fs::fstatfs(&file)?;
        // A page of another file system may be served by a process (FUSE). An access would block, and with it every thread of this
        // process that maps memory.
        let system = system.f_type as u64;
        if !matches!(system, TMPFS | HUGETLBFS) {
            return Err(MapError::NoMemoryFile { system });
        }
        let metadata = file.metadata().map_err(|error| MapError::system(&error))?;
        // An access beyond the end of the file raises SIGBUS.
        let end = offset.checked_add(len).ok_or(MapError::Beyond { start: offset, len })?;
        let whole = metadata.len();
        if end > whole {
            return Err(MapError::FileTooShort { file: whole, end });
        }
        // Each page may be charged to the memory cgroup of this process: the kernel charges the process that touches a page first,
        // until the file is freed.
        let too_large = MapError::TooLarge { file: whole, most: self.bounds.bytes.min(MAX_ADDRESS_SPACE as u64) };
        let start = usize::try_from(offset).map_err(|_| too_large)?;
        let id = (metadata.dev(), metadata.ino());
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.retain(|file| file.pages.strong_count() > 0);
        let mapped =
            files.iter().filter(|file| file.id == id && file.writable == writable).find_map(|file| file.pages.upgrade());
        // A file that has grown since is mapped again.
        if let Some(file) = mapped.filter(|mapped| end <= mapped.region.size() as u64) {
            return Ok(Pages { file, offset: start });
        }
        let len = usize::try_from(whole).map_err(|_| too_large)?;
        if files.len() >= self.bounds.files {
            return Err(MapError::TooManyFiles(self.bounds.files));
        }
        // A file may be mapped more than once: read-only, or with a former length.
        let mut sizes = BTreeMap::from([(id, whole)]);
        let mut mapped = 0;
        for (id, pages) in files.iter().filter_map(|file| Some((file.id, file.pages.upgrade()?))) {
            let size = pages.region.size();
            mapped += size;
            sizes.entry(id).and_modify(|most| *most = (*most).max(size as u64)).or_insert(size as u64);
        }
        let offered = sizes.values().fold(0, |sum: u64, size| sum.saturating_add(*size));
        if offered > self.bounds.bytes || len > MAX_ADDRESS_SPACE - mapped.min(MAX_ADDRESS_SPACE) {
            return Err(too_large);
        }
        let protection = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        let region = MmapRegion::build(Some(FileOffset::new(file, 0)), len, protection, libc::MAP_SHARED | libc::MAP_NORESERVE)
            .map_err(|error| match error {
                MmapRegionError::Mmap(error) => MapError::system(&error),
                _ => MapError::System(Errno::INVAL),
            })?;
        let sigbus_guard = SigbusGuard::new(region.as_ptr() as usize, len).map_err(|error| MapError::system(&error))?;
        let file = Arc::new(FilePages { sigbus_guard, region });
        files.push(MappedFile { id, writable, pages: Arc::downgrade(&file) });
        Ok(Pages { file, offset: start })
    }

    /// Logs an access to memory without a descriptor, once for each mapping.
    fn log_unreachable(&self, addr: u64, start: u64, mapping: &Mapping) {
        if !mapping.logged.swap(true, Ordering::Relaxed) {
            let len = mapping.len;
            let offered = format_args!("the client offered {start:#x}, {len} bytes, without a descriptor");
            self.lines.line(format_args!("no access to {addr:#x}: {offered}"));
        }
    }

    fn copy(&self, addr: u64, len: usize, write: bool, mut step: impl FnMut(Step<'_>)) -> Result<(), DmaFault> {
        let fault = DmaFault { addr, len };
        // The last byte may have the address 2^64 - 1: nothing here computes the address after it.
        if len > 0 && addr.checked_add(len as u64 - 1).is_none() {
            return Err(fault);
        }
        if self.is_lost() {
            return Err(fault);
        }
        let mappings = self.mappings.read().unwrap_or_else(PoisonError::into_inner);
        // Two passes over the same ranges: nothing is copied unless all of it can be.
        for copying in [false, true] {
            let mut done = 0;
            while done < len {
                let at = addr + done as u64;
                let (start, mapping) = mappings.range(..=at).next_back().ok_or(fault)?;
                let within = at - start;
                let left = mapping.len.checked_sub(within).filter(|left| *left > 0).ok_or(fault)?;
                if mapping.pages.is_none() {
                    self.log_unreachable(at, *start, mapping);
                }
                let pages = mapping.pages.as_ref().filter(|_| mapping.writable || !write).ok_or(fault)?;
                let count = left.min((len - done) as u64) as usize;
                if copying {
                    step(Step { pages, at: within as usize, from: done, len: count });
                    if pages.file.sigbus_guard.has_faulted() {
                        self.lose(&pages.file);
                        return Err(fault);
                    }
                }
                done += count;
            }
        }
        Ok(())
    }
}

impl HostMemory for ClientMemory {
    fn read(&self, addr: u64, into: &mut [u8]) -> Result<(), DmaFault> {
        let fault = DmaFault { addr, len: into.len() };
        let mut whole = true;
        self.copy(addr, into.len(), false, |step| {
            let place = into.get_mut(step.from..step.from + step.len);
            let slice = step.pages.file.region.get_slice(step.pages.offset + step.at, step.len);
            match (place, slice) {
                (Some(place), Ok(slice)) => whole &= slice.copy_to(place) == step.len,
                _ => whole = false,
            }
        })?;
        // A later read must not return older bytes than this one: a producer index is read before the entries.
        fence(Ordering::Acquire);
        if whole { Ok(()) } else { Err(fault) }
    }

    fn write(&self, addr: u64, from: &[u8]) -> Result<(), DmaFault> {
        let fault = DmaFault { addr, len: from.len() };
        let mut whole = true;
        // Earlier writes must be visible before this one: an owner byte follows the entry that it hands over.
        fence(Ordering::Release);
        self.copy(addr, from.len(), true, |step| {
            let bytes = from.get(step.from..step.from + step.len);
            whole &= bytes.is_some_and(|bytes| store(&step.pages.file.region, step.pages.offset + step.at, bytes));
        })?;
        if whole { Ok(()) } else { Err(fault) }
    }
}

/// Copies bytes to offset `at` of a region in ascending order of addresses. Returns whether they fit.
///
/// A reader that sees a byte also sees all bytes before it, and aligned words are stored atomically. Programs rely on this when
/// they poll the last byte or word of received data. `memcpy` gives no such guarantee.
fn store(region: &MmapRegion, mut at: usize, mut bytes: &[u8]) -> bool {
    if at.checked_add(bytes.len()).is_none_or(|end| end > region.size()) {
        return false;
    }
    let slice = region.as_volatile_slice();
    while !bytes.is_empty() {
        let align = if at == 0 { size_of::<u64>() } else { 1 << at.trailing_zeros().min(3) };
        let size = align.min(1 << bytes.len().ilog2().min(3));
        let stored = match size {
            8 => {
                let (words, rest) = bytes.as_chunks();
                store_words(region, at, words).map(|()| bytes.len() - rest.len())
            }
            4 => store_first(bytes, |value| slice.store(u32::from_ne_bytes(value), at, Ordering::Release)),
            2 => store_first(bytes, |value| slice.store(u16::from_ne_bytes(value), at, Ordering::Release)),
            _ => store_first(bytes, |value| slice.store(u8::from_ne_bytes(value), at, Ordering::Release)),
        };
        let Some(rest) = stored.and_then(|stored| bytes.get(stored..)) else { return false };
        at += bytes.len() - rest.len();
        bytes = rest;
    }
    true
}

/// Stores the first `N` bytes and returns `N`.
fn store_first<const N: usize, E>(bytes: &[u8], store: impl FnOnce([u8; N]) -> Result<(), E>) -> Option<usize> {
    store(*bytes.first_chunk()?).ok().map(|()| N)
}

/// Stores whole words to an offset that is aligned for them.
fn store_words(region: &MmapRegion, at: usize, words: &[[u8; 8]]) -> Option<()> {
    let slice = region.get_slice(at, words.len().checked_mul(size_of::<u64>())?).ok()?;
    let guard = slice.ptr_guard_mut();
    let first = guard.as_ptr().cast::<AtomicU64>();
    if !first.is_aligned() {
        return None;
    }
    // SAFETY: this many aligned words are within the slice, which stays mapped as long as the region is borrowed. All other
    // accesses go through mappings of other processes, or are atomic or volatile accesses of this module.
    #[expect(unsafe_code, reason = "the library checks each word on its own, at three times the time of a copy")]
    let places = unsafe { std::slice::from_raw_parts(first.cast_const(), words.len()) };
    for (place, word) in places.iter().zip(words) {
        place.store(u64::from_ne_bytes(*word), Ordering::Release);
    }
    Some(())
}

/// [`HostMemory`] of a device: the memory of its client.
pub(crate) struct ClientDma(pub(crate) Arc<ClientMemory>);

impl HostMemory for ClientDma {
    fn read(&self, addr: u64, into: &mut [u8]) -> Result<(), DmaFault> {
        self.0.read(addr, into)
    }

    fn write(&self, addr: u64, from: &[u8]) -> Result<(), DmaFault> {
        self.0.write(addr, from)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
    use std::sync::atomic::{AtomicU8, AtomicU32};

    use super::*;
    use crate::log::Log;

    fn client(device: &str) -> ClientMemory {
        ClientMemory::new(Arc::new(RateLimited::new(device.into(), Log::discard())), Bounds { bytes: u64::MAX, files: 64 })
    }

    fn file(len: u64) -> File {
        let file = File::from(rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
        file.set_len(len).unwrap();
        file
    }

    #[test]
    fn a_file_that_is_not_memory_is_refused() {
        let memory = client("test");
        // The source folder is on a disk as a rule. On tmpfs the file is accepted.
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = folder.path().join("pages");
        File::create_new(&path).unwrap().set_len(4096).unwrap();
        let disk = File::options().read(true).write(true).open(path).unwrap();
        let type_of_disk = rustix::fs::fstatfs(&disk).unwrap().f_type as u64;
        let mapped = memory.map(0x10_0000, 4096, true, Some(disk), 0);
        assert_eq!(mapped.is_ok(), matches!(type_of_disk, TMPFS | HUGETLBFS));
        assert!(mapped.is_ok() || mapped == Err(MapError::NoMemoryFile { system: type_of_disk }));
    }

    #[test]
    fn ranges_are_of_whole_pages() {
        let memory = client("test");
        for (addr, len, offset, wrong) in [(1, 0x1000, 0, 1), (0, 0xfff, 0, 0xfff), (0, 0x1000, 8, 8), (0, 1, 0, 1)] {
            assert_eq!(memory.map(addr, len, true, Some(file(0x2000)), offset), Err(MapError::Unaligned(wrong)));
        }
    }

    #[test]
    fn files_take_a_bounded_part_of_the_address_space() {
        let memory = client("test");
        let half = file(MAX_ADDRESS_SPACE as u64 / 2);
        memory.map(0, 0x1000, true, Some(half), 0).unwrap();
        let more = file(MAX_ADDRESS_SPACE as u64 / 2 + 0x1000);
        let too_large = MapError::TooLarge { file: MAX_ADDRESS_SPACE as u64 / 2 + 0x1000, most: MAX_ADDRESS_SPACE as u64 };
        assert_eq!(memory.map(0x1000, 0x1000, true, Some(more), 0), Err(too_large));
    }

    #[test]
    fn a_client_offers_a_bounded_amount_of_memory() {
        let memory =
            ClientMemory::new(Arc::new(RateLimited::new("test".into(), Log::discard())), Bounds { bytes: 0x4000, files: 64 });
        let shared = file(0x2000);
        memory.map(0, 0x1000, true, Some(shared.try_clone().unwrap()), 0).unwrap();
        // The same file counts once, with any protection and after it has grown.
        memory.map(0x1000, 0x1000, false, Some(shared.try_clone().unwrap()), 0).unwrap();
        shared.set_len(0x3000).unwrap();
        memory.map(0x2000, 0x1000, true, Some(shared.try_clone().unwrap()), 0x2000).unwrap();
        let refused = MapError::TooLarge { file: 0x2000, most: 0x4000 };
        assert_eq!(memory.map(0x3000, 0x1000, true, Some(file(0x2000)), 0), Err(refused), "however little of it");
        memory.map(0x3000, 0x1000, true, Some(file(0x1000)), 0).unwrap();
        // An unmapped file makes room.
        memory.unmap(0, 0x3000).unwrap();
        memory.map(0, 0x1000, true, Some(file(0x3000)), 0).unwrap();
    }

    #[test]
    fn bytes_reach_the_file_across_two_mappings() {
        let memory = client("test");
        let mut shared = file(0x3000);
        memory.map(0x1000, 0x1000, true, Some(shared.try_clone().unwrap()), 0x1000).unwrap();
        memory.map(0x2000, 0x1000, true, Some(shared.try_clone().unwrap()), 0).unwrap();
        memory.write(0x1ffe, &[1, 2, 3, 4]).unwrap();
        let mut bytes = [0; 2];
        shared.seek(SeekFrom::Start(0x1ffe)).unwrap();
        shared.read_exact(&mut bytes).unwrap();
        assert_eq!(bytes, [1, 2]);
        shared.rewind().unwrap();
        shared.write_all(&[9]).unwrap();
        let mut read = [0; 4];
        memory.read(0x1ffe, &mut read).unwrap();
        assert_eq!(read, [1, 2, 9, 4]);
    }

    /// A driver behind an IOMMU maps single pages: many ranges of one file need one mapping and one descriptor of this process.
    #[test]
    fn as_many_pages_as_a_driver_maps_one_by_one() {
        const PAGES: u64 = MAX_MAPPINGS as u64;
        let memory = client("test");
        let shared = file(PAGES * 0x1000);
        let maps = || std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
        let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let before = (maps(), descriptors());
        for page in 0..PAGES {
            memory.map(page << 13, 0x1000, true, Some(shared.try_clone().unwrap()), page << 12).unwrap();
        }
        assert!(maps() < before.0 + 100 && descriptors() < before.1 + 100, "tests beside this one open and map a few");
        let more = memory.map(PAGES << 13, 0x1000, true, Some(shared.try_clone().unwrap()), 0);
        assert_eq!(more, Err(MapError::TooManyMappings(MAX_MAPPINGS)));
        memory.write((PAGES - 1) << 13, &[7]).unwrap();
        memory.unmap(0, (PAGES - 1) << 13).unwrap();
        let mut byte = [0];
        memory.read((PAGES - 1) << 13, &mut byte).unwrap();
        assert_eq!(byte, [7]);
        assert!(memory.read(0, &mut byte).is_err() && memory.read(((PAGES - 1) << 13) + 0x1000, &mut byte).is_err());
        memory.unmap(0, u64::MAX).unwrap();
        assert!(memory.read((PAGES - 1) << 13, &mut byte).is_err());
    }

    #[test]
    fn a_file_that_grows_is_reached_to_its_new_end() {
        let memory = client("test");
        let shared = file(0x1000);
        memory.map(0, 0x1000, true, Some(shared.try_clone().unwrap()), 0).unwrap();
        let beyond = memory.map(0x1000, 0x1000, true, Some(shared.try_clone().unwrap()), 0x1000);
        assert_eq!(beyond, Err(MapError::FileTooShort { file: 0x1000, end: 0x2000 }));
        shared.set_len(0x2000).unwrap();
        memory.map(0x1000, 0x1000, true, Some(shared.try_clone().unwrap()), 0x1000).unwrap();
        memory.write(0xfff, &[1, 2]).unwrap();
        let mut bytes = [0; 2];
        memory.read(0xfff, &mut bytes).unwrap();
        assert_eq!(bytes, [1, 2]);
    }

    #[test]
    fn nothing_is_written_when_the_end_is_missing() {
        let memory = client("test");
        memory.map(0, 0x1000, true, Some(file(0x1000)), 0).unwrap();
        assert_eq!(memory.write(0xffe, &[7; 4]), Err(DmaFault { addr: 0xffe, len: 4 }));
        let mut read = [1; 2];
        memory.read(0xffe, &mut read).unwrap();
        assert_eq!(read, [0, 0]);
        assert!(memory.read(u64::MAX, &mut read).is_err());
    }

    #[test]
    fn memory_without_a_descriptor_is_refused() {
        let memory = client("test");
        memory.map(0x8000, 0x1000, true, None, 0).unwrap();
        assert!(memory.read(0x8010, &mut [0; 4]).is_err());
        assert!(memory.write(0x8010, &[0; 4]).is_err());
    }

    #[test]
    fn read_only_memory_is_not_written() {
        let memory = client("test");
        memory.map(0, 0x1000, false, Some(file(0x1000)), 0).unwrap();
        assert!(memory.write(0, &[1]).is_err());
        assert!(memory.read(0, &mut [0]).is_ok());
    }

    /// A reader on another processor polls the last byte or word, and then reads everything before it.
    #[test]
    fn a_reader_that_sees_the_last_byte_sees_all() {
        const LEN: usize = 0x2_0000;
        const ROUNDS: u32 = 10;
        let memory = client("test");
        let shared = file(LEN as u64);
        memory.map(0, LEN as u64, true, Some(shared.try_clone().unwrap()), 0).unwrap();
        let there: MmapRegion = MmapRegion::from_file(FileOffset::new(shared, 0), LEN).unwrap();
        let lengths =
            [1, 2, 7, 8, 9, 16, 31, 33, 63, 64, 65, 100, 255, 257, 511, 1000, 2049, 4096, 4097, 9001, 0x1_0000, 0x1_0007];
        let ranges: Vec<(usize, usize)> = lengths.iter().flat_map(|len| [0, 1, 3, 4, 63].map(|at| (at, *len))).collect();
        let seen = AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut number = 0;
                let mut bytes = vec![0; LEN];
                for _ in 0..ROUNDS {
                    for &(at, len) in &ranges {
                        number += 1;
                        let mark = number as u8 | 1;
                        let last = there.get_atomic_ref::<AtomicU8>(at + len - 1).unwrap();
                        while last.load(Ordering::Acquire) != mark {
                            std::hint::spin_loop();
                        }
                        let bytes = &mut bytes[..len];
                        there.get_slice(at, len).unwrap().copy_to(bytes);
                        // From the end: the bytes stored last are those that may be missing.
                        assert!(bytes.iter().all(|byte| *byte == mark), "{len} bytes at {at}");
                        let clear = vec![0; len];
                        there.get_slice(at, len).unwrap().copy_from(&clear);
                        seen.store(number, Ordering::Release);
                    }
                }
            });
            let mut number = 0;
            for _ in 0..ROUNDS {
                for &(at, len) in &ranges {
                    number += 1;
                    memory.write(at as u64, &vec![number as u8 | 1; len]).unwrap();
                    let start = std::time::Instant::now();
                    while seen.load(Ordering::Acquire) < number {
                        assert!(start.elapsed().as_secs() < 20, "the reader has ended");
                        std::thread::yield_now();
                    }
                }
            }
        });
    }

    /// Environment variable for the child process of this test: file, offset and number of bytes.
    const STORE: &str = "BAREVERBS_TEST_STORE";

    /// The file is truncated under its mapping, so that a signal ends the storing process at the first byte beyond the end. All
    /// bytes before it must be stored by then.
    #[test]
    fn bytes_are_stored_from_the_first_to_the_last() {
        const PAGE: usize = 0x1000;
        if let Ok(store_here) = std::env::var(STORE) {
            let mut parts = store_here.splitn(3, ' ');
            let mut number = || parts.next().unwrap().parse::<usize>().unwrap();
            let (at, len) = (number(), number());
            let path = parts.next().unwrap();
            let file = File::options().read(true).write(true).open(path).unwrap();
            let region: MmapRegion = MmapRegion::from_file(FileOffset::new(file.try_clone().unwrap(), 0), 3 * PAGE).unwrap();
            file.set_len(2 * PAGE as u64).unwrap();
            store(&region, at, &vec![0x5a; len]);
            std::process::exit(0);
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("memory");
        for at in [0, 1, 3, 4, 63, PAGE - 7, 2 * PAGE - 8, 2 * PAGE - 1] {
            for behind in [1, 3, 8, 13, 100] {
                std::fs::write(&path, vec![0; 3 * PAGE]).unwrap();
                let (len, end) = (2 * PAGE + behind - at, 2 * PAGE);
                let ended = std::process::Command::new(std::env::current_exe().unwrap())
                    .args(["--exact", "client_memory::tests::bytes_are_stored_from_the_first_to_the_last"])
                    .env(STORE, format!("{at} {len} {}", path.display()))
                    .stdout(std::process::Stdio::null())
                    .status()
                    .unwrap();
                assert_eq!(std::os::unix::process::ExitStatusExt::signal(&ended), Some(libc::SIGBUS), "{len} bytes at {at}");
                let stored = std::fs::read(&path).unwrap();
                assert!(stored[..at].iter().all(|byte| *byte == 0), "{len} bytes at {at}");
                let missing = stored[at..end].iter().filter(|byte| **byte != 0x5a).count();
                assert_eq!(missing, 0, "of {len} bytes at {at}, when the one at {end} is stored");
            }
        }
    }

    #[test]
    fn every_length_and_place_is_stored_and_nothing_beside() {
        let memory = client("test");
        memory.map(0, 0x1000, true, Some(file(0x1000)), 0).unwrap();
        for at in 0..17 {
            for len in 0..40 {
                memory.write(0, &[0; 64]).unwrap();
                let bytes: Vec<u8> = (1..=len as u8).collect();
                memory.write(at as u64, &bytes).unwrap();
                let mut read = [0; 64];
                memory.read(0, &mut read).unwrap();
                let expected: Vec<u8> = [vec![0; at], bytes, vec![0; 64 - at - len]].concat();
                assert_eq!(read[..], expected[..], "{len} bytes at {at}");
            }
        }
    }

    #[test]
    fn a_file_that_shrinks_disconnects_only_its_own_client() {
        let (memory, other) = (client("test"), client("other"));
        let shared = file(0x4000);
        memory.map(0, 0x4000, true, Some(shared.try_clone().unwrap()), 0).unwrap();
        other.map(0, 0x4000, true, Some(file(0x4000)), 0).unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        memory.connect(ours);
        memory.write(0x3000, &[1; 0x1000]).unwrap();
        shared.set_len(0x1000).unwrap();
        assert_eq!(memory.write(0x2ffc, &[1; 8]), Err(DmaFault { addr: 0x2ffc, len: 8 }));
        assert!(memory.read(0, &mut [0; 8]).is_err(), "nothing of it is reached any more");
        assert_eq!((&theirs).read(&mut [0]).unwrap(), 0, "the client is disconnected");
        other.write(0x3000, &[7]).unwrap();
        let mut byte = [0];
        other.read(0x3000, &mut byte).unwrap();
        assert_eq!(byte, [7]);
        // The next client is not affected.
        memory.disconnect();
        memory.map(0, 0x1000, true, Some(shared), 0).unwrap();
        memory.write(0, &[9]).unwrap();
    }

    /// The replacement of a file is a shared mapping, which needs no commit charge. A private mapping of that size is refused where
    /// vm.overcommit_memory is 2.
    #[test]
    fn the_replacement_of_a_file_needs_no_commit_charge() {
        const LEN: u64 = 0x7777_7000;
        let memory = client("test");
        let shared = file(LEN);
        memory.map(0, LEN, true, Some(shared.try_clone().unwrap()), 0).unwrap();
        shared.set_len(0).unwrap();
        assert!(memory.write(0x1000, &[1; 8]).is_err());
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let place = maps.lines().find(|line| {
            let ends = line.split(' ').next().and_then(|range| range.split_once('-')).unwrap();
            let [start, end] = [ends.0, ends.1].map(|end| u64::from_str_radix(end, 16).unwrap());
            end - start == LEN
        });
        let place = place.unwrap();
        assert!(place.contains(" rw-s ") && place.contains("/memfd:zeros"), "{place}");
    }

    /// Huge pages are not reserved when a file is mapped: an access to a hole raises SIGBUS if none is free.
    #[test]
    fn a_hole_without_a_huge_page_disconnects_only_its_own_client() {
        const HUGE: u64 = 2 << 20;
        let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::HUGETLB | rustix::fs::MemfdFlags::HUGE_2MB;
        let huge = File::from(rustix::fs::memfd_create("huge", flags).expect("a kernel with huge pages"));
        let count = |name: &str| {
            let path = format!("/sys/kernel/mm/hugepages/hugepages-2048kB/{name}");
            std::fs::read_to_string(path).unwrap().trim().parse::<u64>().unwrap()
        };
        // More huge pages than the machine has.
        let pages = count("nr_hugepages") + count("nr_overcommit_hugepages") + 1;
        huge.set_len(pages * HUGE).unwrap();
        let (memory, other) = (client("test"), client("other"));
        memory.map(0, pages * HUGE, true, Some(huge), 0).unwrap();
        other.map(0, 0x1000, true, Some(file(0x1000)), 0).unwrap();
        assert!((0..pages).any(|page| memory.write(page * HUGE, &[1; 8]).is_err()));
        assert!(memory.is_lost() && memory.read(0, &mut [0]).is_err(), "all accesses fail");
        other.write(0, &[7]).unwrap();
        memory.disconnect();
        memory.map(0, 0x1000, true, Some(file(0x1000)), 0).unwrap();
        memory.write(0, &[9]).unwrap();
    }

    /// Measures the time of a copy: `cargo test --release -p bareverbs-serve --lib copies -- --ignored --nocapture`.
    #[test]
    #[ignore = "a measurement"]
    fn time_of_copies() {
        let memory = client("test");
        memory.map(0, 0x2_0000, true, Some(file(0x2_0000)), 0).unwrap();
        for (len, times) in [(8_usize, 1_000_000_u32), (64, 1_000_000), (0x1_0000, 20_000)] {
            let bytes = vec![1; len];
            let mut best = f64::MAX;
            for _ in 0..9 {
                let start = std::time::Instant::now();
                (0..times).for_each(|_| memory.write(0x40, &bytes).unwrap());
                best = best.min(start.elapsed().as_secs_f64() * 1e9 / f64::from(times));
            }
            println!("{len} bytes: {best:.1} ns");
        }
    }

    #[test]
    fn a_range_may_end_with_the_last_address() {
        const LAST_PAGE: u64 = u64::MAX - 0xfff;
        let memory = client("test");
        memory.map(LAST_PAGE, 0x1000, true, Some(file(0x1000)), 0).unwrap();
        memory.write(u64::MAX - 7, &[7; 8]).unwrap();
        let mut read = [0; 8];
        memory.read(u64::MAX - 7, &mut read).unwrap();
        assert_eq!(read, [7; 8]);
        assert!(memory.read(u64::MAX - 6, &mut read).is_err());
        let there = MapError::Overlap { start: LAST_PAGE, len: 0x1000 };
        assert_eq!(memory.map(LAST_PAGE - 0x1000, 0x2000, true, None, 0), Err(there));
        memory.unmap(LAST_PAGE - 0x1000, 0x2000).unwrap();
        assert!(memory.read(u64::MAX - 7, &mut read).is_err());
    }

    #[test]
    fn wrong_ranges_are_refused() {
        let memory = client("test");
        let last = u64::MAX - 0xfff;
        assert_eq!(memory.map(0, 0, true, None, 0), Err(MapError::Empty));
        assert_eq!(memory.map(last, 0x2000, true, None, 0), Err(MapError::Beyond { start: last, len: 0x2000 }));
        assert_eq!(memory.unmap(last, 0x2000), Err(MapError::Beyond { start: last, len: 0x2000 }));
        assert_eq!(memory.unmap(0x1000, 0), Err(MapError::Empty));
        let short = memory.map(0, 0x2000, true, Some(file(0x1000)), 0);
        assert_eq!(short, Err(MapError::FileTooShort { file: 0x1000, end: 0x2000 }));
        memory.map(0x1000, 0x2000, true, None, 0).unwrap();
        let there = MapError::Overlap { start: 0x1000, len: 0x2000 };
        assert_eq!(memory.map(0x2000, 0x1000, true, None, 0), Err(there));
        assert_eq!(memory.map(0, 0x2000, true, None, 0), Err(there));
        assert_eq!(memory.unmap(0x1000, 0x1000), Err(MapError::Partial { start: 0x1000, len: 0x2000 }));
        assert_eq!(memory.unmap(0, 0x4000), Ok(()));
        assert_eq!(memory.map(0x2000, 0x1000, true, None, 0), Ok(()));
    }
}

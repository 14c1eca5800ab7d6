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
use crate::sigbus::GuardedMapping;

/// Most mappings of one client: what vfio-user takes for granted (its default of `max_dma_maps`). A driver behind the IOMMU of a
/// guest has one for each page that it maps.
const MAX_MAPPINGS: usize = 65_535;

/// Types of file systems whose files are memory (statfs(2)): memfd and /dev/shm, and huge pages.
const TMPFS: u64 = 0x0102_1994;
const HUGETLBFS: u64 = 0x9584_58f6;

/// What vfio-user announces that ranges are multiples of.
const PAGE: u64 = 4096;

/// Most bytes of this process's address space that the files of one client take: a file is mapped as a whole.
const MAX_ADDRESS_SPACE: usize = 4 << 40;

/// What one client may offer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Bytes of its files together.
    pub(crate) bytes: u64,
    /// Files that its mappings are of; each is a descriptor.
    pub(crate) files: usize,
}

/// A file of the client, mapped as a whole: a mapping of this process for each of its ranges would be too many.
struct MappedFile {
    /// Device and inode.
    id: (u64, u64),
    writable: bool,
    pages: Weak<FilePages>,
}

/// All pages of a file.
struct FilePages {
    /// Before the pages: what is dropped first is not looked after any more.
    guarded: GuardedMapping,
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
    /// `None`: offered without a descriptor, so there is nothing to reach it by.
    pages: Option<Pages>,
    /// That has been said already.
    said: AtomicBool,
}

impl Mapping {
    /// Address of its last byte, if its first is at `start`.
    const fn last(&self, start: u64) -> u64 {
        // A mapping has bytes, and ends within 64 bits: `last_byte` said so.
        start.wrapping_add(self.len).wrapping_sub(1)
    }
}

/// Address of the last byte of a range. Its end may be 2^64, which is no address.
fn last_byte(start: u64, len: u64) -> Result<u64, MapError> {
    let more = len.checked_sub(1).ok_or(MapError::Empty)?;
    start.checked_add(more).ok_or(MapError::Beyond { start, len })
}

/// Why a range could not be mapped or unmapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MapError {
    /// The range is empty.
    Empty,
    /// An address, a length or an offset is not of whole pages of 4096 bytes.
    Unaligned(u64),
    /// So many bytes from there on end beyond the address space.
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
        /// Its bytes.
        len: u64,
    },
    /// An unmapped range cuts through this mapping.
    Partial {
        /// Device address of the mapping.
        start: u64,
        /// Its bytes.
        len: u64,
    },
    /// The client has as many mappings as it may have.
    TooManyMappings(usize),
    /// The client's mappings are of as many files as they may be.
    TooManyFiles(usize),
    /// The client's files would be longer together than they may be.
    TooLarge {
        /// Bytes of this file.
        file: u64,
        /// Bytes of all files.
        most: u64,
    },
    /// The file is shorter than the range.
    FileTooShort {
        /// Bytes of the file.
        file: u64,
        /// Where in the file the range ends.
        end: u64,
    },
    /// The file is not memory of its own: of a memfd, of tmpfs (/dev/shm) or of hugetlbfs.
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
    /// What the system said.
    fn system(error: &io::Error) -> Self {
        Self::System(Errno::from_io_error(error).unwrap_or(Errno::IO))
    }
}

/// The memory of one client. One thread may map it while others read and write it.
pub(crate) struct ClientMemory {
    lines: Arc<RateLimited>,
    bounds: Bounds,
    mappings: RwLock<BTreeMap<u64, Mapping>>,
    files: Mutex<Vec<MappedFile>>,
    /// The connection of the client, to end it.
    connection: Mutex<Option<UnixStream>>,
    /// A file of the client had no page for an access: nothing of its memory is reached any more.
    shrunk: AtomicBool,
    /// The server has ended: no client is served any more.
    ended: AtomicBool,
}

/// The steps in which a range of addresses is copied: mapping, place in it, place in the buffer.
struct Step<'a> {
    pages: &'a Pages,
    at: usize,
    from: usize,
    len: usize,
}

impl ClientMemory {
    /// Without any memory.
    pub(crate) fn new(lines: Arc<RateLimited>, bounds: Bounds) -> Self {
        Self {
            lines,
            bounds,
            mappings: RwLock::default(),
            files: Mutex::default(),
            connection: Mutex::default(),
            shrunk: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        }
    }

    /// A client has connected: the connection ends if its memory goes away.
    pub(crate) fn connect(&self, connection: UnixStream) {
        *self.connection.lock().unwrap_or_else(PoisonError::into_inner) = Some(connection);
        if self.ended.load(Ordering::SeqCst) {
            self.hang_up();
        }
    }

    /// Ends the connection, if there is one, and those that come later.
    pub(crate) fn hang_up(&self) {
        self.ended.store(true, Ordering::SeqCst);
        if let Some(connection) = &*self.connection.lock().unwrap_or_else(PoisonError::into_inner) {
            // It may have ended before.
            let _ = connection.shutdown(Shutdown::Both);
        }
    }

    /// Why the client was given up, if it was.
    pub(crate) fn is_shrunk(&self) -> bool {
        self.shrunk.load(Ordering::Relaxed)
    }

    /// Offers `len` bytes at `addr`: those of `file` from `offset` on, if there is one.
    pub(crate) fn map(&self, addr: u64, len: u64, writable: bool, file: Option<File>, offset: u64) -> Result<(), MapError> {
        let last = last_byte(addr, len)?;
        if let Some(number) = [addr, len, offset].into_iter().find(|number| !number.is_multiple_of(PAGE)) {
            return Err(MapError::Unaligned(number));
        }
        // Without the lock: it may wait for the client's file system to find that this is no memory.
        let pages = file.map(|file| self.pages(file, offset, len, writable)).transpose()?;
        let mut mappings = self.mappings.write().unwrap_or_else(PoisonError::into_inner);
        if mappings.len() >= MAX_MAPPINGS {
            return Err(MapError::TooManyMappings(MAX_MAPPINGS));
        }
        let before = mappings.range(..=last).next_back();
        if let Some((start, mapping)) = before.filter(|(start, mapping)| mapping.last(**start) >= addr) {
            return Err(MapError::Overlap { start: *start, len: mapping.len });
        }
        mappings.insert(addr, Mapping { len, writable, pages, said: AtomicBool::new(false) });
        Ok(())
    }

    /// Takes back every mapping within the range.
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
        // To unmap a large file takes a while.
        drop(unmapped);
        Ok(())
    }

    /// Takes back everything.
    pub(crate) fn clear(&self) {
        let unmapped = std::mem::take(&mut *self.mappings.write().unwrap_or_else(PoisonError::into_inner));
        drop(unmapped);
    }

    /// The client is gone: as before one came.
    pub(crate) fn disconnect(&self) {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.clear();
        self.shrunk.store(false, Ordering::Relaxed);
    }

    /// A file of the client had no page for an access: the client is given up.
    fn give_up(&self, file: &FilePages) {
        if self.shrunk.swap(true, Ordering::Relaxed) {
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

    /// The range of a file, which is mapped as a whole unless it is already.
    fn pages(&self, file: File, offset: u64, len: u64, writable: bool) -> Result<Pages, MapError> {
        let system = rustix::fs::fstatfs(&file)?;
        // An access to a page of another file waits for the process that has it, and so does every thread of this process that maps
        // memory meanwhile.
        let system = system.f_type as u64;
        if !matches!(system, TMPFS | HUGETLBFS) {
            return Err(MapError::NoMemoryFile { system });
        }
        let metadata = file.metadata().map_err(|error| MapError::system(&error))?;
        // Beyond the file's end is nothing to reach, and a touch there raises SIGBUS.
        let end = offset.checked_add(len).ok_or(MapError::Beyond { start: offset, len })?;
        let whole = metadata.len();
        if end > whole {
            return Err(MapError::FileTooShort { file: whole, end });
        }
        // Each page of it may be charged to this process's memory cgroup: it is the first process to touch a page that the kernel
        // charges, and keeps charging until the file is gone.
        let too_large = MapError::TooLarge { file: whole, most: self.bounds.bytes.min(MAX_ADDRESS_SPACE as u64) };
        let start = usize::try_from(offset).map_err(|_| too_large)?;
        let id = (metadata.dev(), metadata.ino());
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.retain(|file| file.pages.strong_count() > 0);
        let mapped =
            files.iter().filter(|file| file.id == id && file.writable == writable).find_map(|file| file.pages.upgrade());
        // A file that has grown since is mapped anew.
        if let Some(file) = mapped.filter(|mapped| end <= mapped.region.size() as u64) {
            return Ok(Pages { file, offset: start });
        }
        let len = usize::try_from(whole).map_err(|_| too_large)?;
        if files.len() >= self.bounds.files {
            return Err(MapError::TooManyFiles(self.bounds.files));
        }
        // A file may be mapped more than once: to be read alone, or before it grew.
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
        let guarded = GuardedMapping::new(region.as_ptr() as usize, len).map_err(|error| MapError::system(&error))?;
        let file = Arc::new(FilePages { guarded, region });
        files.push(MappedFile { id, writable, pages: Arc::downgrade(&file) });
        Ok(Pages { file, offset: start })
    }

    /// Says once for each mapping that it cannot be reached.
    fn say_unreachable(&self, addr: u64, start: u64, mapping: &Mapping) {
        if !mapping.said.swap(true, Ordering::Relaxed) {
            let len = mapping.len;
            let offered = format_args!("the client offered {start:#x}, {len} bytes, without a descriptor");
            self.lines.line(format_args!("no access to {addr:#x}: {offered}"));
        }
    }

    fn copy(&self, addr: u64, len: usize, write: bool, mut step: impl FnMut(Step<'_>)) -> Result<(), DmaFault> {
        let fault = DmaFault { addr, len };
        // The last byte may be the last of all addresses: nothing here computes the address after it.
        if len > 0 && addr.checked_add(len as u64 - 1).is_none() {
            return Err(fault);
        }
        if self.is_shrunk() {
            return Err(fault);
        }
        let mappings = self.mappings.read().unwrap_or_else(PoisonError::into_inner);
        // Twice over the same ranges: nothing may be copied unless everything can be.
        for copying in [false, true] {
            let mut done = 0;
            while done < len {
                let at = addr + done as u64;
                let (start, mapping) = mappings.range(..=at).next_back().ok_or(fault)?;
                let within = at - start;
                let left = mapping.len.checked_sub(within).filter(|left| *left > 0).ok_or(fault)?;
                if mapping.pages.is_none() {
                    self.say_unreachable(at, *start, mapping);
                }
                let pages = mapping.pages.as_ref().filter(|_| mapping.writable || !write).ok_or(fault)?;
                let count = left.min((len - done) as u64) as usize;
                if copying {
                    step(Step { pages, at: within as usize, from: done, len: count });
                    if pages.file.guarded.has_shrunk() {
                        self.give_up(&pages.file);
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
        // A later read must not see older bytes than this one: a counter is read before what it counts.
        fence(Ordering::Acquire);
        if whole { Ok(()) } else { Err(fault) }
    }

    fn write(&self, addr: u64, from: &[u8]) -> Result<(), DmaFault> {
        let fault = DmaFault { addr, len: from.len() };
        let mut whole = true;
        // Earlier writes must be seen before this one: an owner byte comes after what it owns.
        fence(Ordering::Release);
        self.copy(addr, from.len(), true, |step| {
            let bytes = from.get(step.from..step.from + step.len);
            whole &= bytes.is_some_and(|bytes| store(&step.pages.file.region, step.pages.offset + step.at, bytes));
        })?;
        if whole { Ok(()) } else { Err(fault) }
    }
}

/// Copies bytes to a place in a region, in ascending order of their addresses: a reader that sees a byte sees all before it, and an
/// aligned word is seen whole. A program may poll the last byte of what it receives, or a word there; a copy of the C library
/// may write the end first. Whether they all fit.
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

/// Stores the first `N` bytes; their number.
fn store_first<const N: usize, E>(bytes: &[u8], store: impl FnOnce([u8; N]) -> Result<(), E>) -> Option<usize> {
    store(*bytes.first_chunk()?).ok().map(|()| N)
}

/// Stores whole words to a place that is aligned for them.
fn store_words(region: &MmapRegion, at: usize, words: &[[u8; 8]]) -> Option<()> {
    let slice = region.get_slice(at, words.len().checked_mul(size_of::<u64>())?).ok()?;
    let guard = slice.ptr_guard_mut();
    let first = guard.as_ptr().cast::<AtomicU64>();
    if !first.is_aligned() {
        return None;
    }
    // SAFETY: this many aligned words lie in the slice, which stays mapped as long as the region is borrowed. Everything else that
    // reaches them does so through its own mapping, or by atomic and volatile accesses of this module.
    #[expect(unsafe_code, reason = "the library checks each word on its own, at three times the time of a copy")]
    let places = unsafe { std::slice::from_raw_parts(first.cast_const(), words.len()) };
    for (place, word) in places.iter().zip(words) {
        place.store(u64::from_ne_bytes(*word), Ordering::Release);
    }
    Some(())
}

/// The device's way to its client's memory.
pub(crate) struct Reach(pub(crate) Arc<ClientMemory>);

impl HostMemory for Reach {
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
        // Where the build puts things is a disk, or else this shows nothing.
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
        // The same file counts once, however it is mapped and also when it has grown.
        memory.map(0x1000, 0x1000, false, Some(shared.try_clone().unwrap()), 0).unwrap();
        shared.set_len(0x3000).unwrap();
        memory.map(0x2000, 0x1000, true, Some(shared.try_clone().unwrap()), 0x2000).unwrap();
        let refused = MapError::TooLarge { file: 0x2000, most: 0x4000 };
        assert_eq!(memory.map(0x3000, 0x1000, true, Some(file(0x2000)), 0), Err(refused), "however little of it");
        memory.map(0x3000, 0x1000, true, Some(file(0x1000)), 0).unwrap();
        // What is taken back makes room.
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

    /// A driver behind an IOMMU maps page by page: many ranges of one file cost this process one mapping and one descriptor.
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

    /// A reader on another processor waits for the last byte, or for the word there, and then finds everything before it.
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
                        // From the end: what comes last is what may be missing.
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

    /// Tells a process of this test where it stores bytes: a file, a place in it, how many.
    const STORE: &str = "BAREVERBS_TEST_STORE";

    /// The end of a file is cut off under its mapping, so that the process that stores ends with a signal at the first byte
    /// behind it. What is before that byte has to be there by then.
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
    fn a_file_that_shrinks_costs_its_own_client_alone() {
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
        // The next client begins anew.
        memory.disconnect();
        memory.map(0, 0x1000, true, Some(shared), 0).unwrap();
        memory.write(0, &[9]).unwrap();
    }

    /// What takes the place of a file is a shared mapping, which the kernel charges nobody for in advance: a private one of so many
    /// bytes is refused where vm.overcommit_memory is 2.
    #[test]
    fn what_takes_the_place_of_a_file_needs_no_commit_charge() {
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

    /// Huge pages are not reserved when a file is mapped: one for which there is none raises SIGBUS, as beyond a file's end.
    #[test]
    fn a_hole_without_a_huge_page_costs_its_own_client_alone() {
        const HUGE: u64 = 2 << 20;
        let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::HUGETLB | rustix::fs::MemfdFlags::HUGE_2MB;
        let huge = File::from(rustix::fs::memfd_create("huge", flags).expect("a kernel with huge pages"));
        let count = |name: &str| {
            let path = format!("/sys/kernel/mm/hugepages/hugepages-2048kB/{name}");
            std::fs::read_to_string(path).unwrap().trim().parse::<u64>().unwrap()
        };
        // One more than there can be, of which the machine of a build has none.
        let pages = count("nr_hugepages") + count("nr_overcommit_hugepages") + 1;
        huge.set_len(pages * HUGE).unwrap();
        let (memory, other) = (client("test"), client("other"));
        memory.map(0, pages * HUGE, true, Some(huge), 0).unwrap();
        other.map(0, 0x1000, true, Some(file(0x1000)), 0).unwrap();
        assert!((0..pages).any(|page| memory.write(page * HUGE, &[1; 8]).is_err()));
        assert!(memory.is_shrunk() && memory.read(0, &mut [0]).is_err(), "nothing of it is reached any more");
        other.write(0, &[7]).unwrap();
        memory.disconnect();
        memory.map(0, 0x1000, true, Some(file(0x1000)), 0).unwrap();
        memory.write(0, &[9]).unwrap();
    }

    /// Time of a copy: `cargo test --release -p bareverbs-serve --lib copies -- --ignored --nocapture`.
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

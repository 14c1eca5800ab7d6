//! A handler of SIGBUS for the mapped files of clients.
//!
//! An access raises SIGBUS if the file has no page for it. Either the file was truncated, or there is no memory for a hole: no free
//! huge page of hugetlbfs, or a full tmpfs. Without a handler the process would end with all of its devices. Clients cannot be required to
//! seal and preallocate their memory, since QEMU does neither.
//!
//! The handler maps zeros over the file and marks the mapping, and the copy continues; the client is disconnected afterwards.
//!
//! The zeros are a sparse memfd. Shared mappings of it need no commit charge, unlike private ones where vm.overcommit_memory is 2
//! or RLIMIT_DATA applies. Bytes written to it are never read; its pages are freed when the mapping is dropped. If the memfd cannot
//! be mapped, the handler writes a message and the process ends.

use std::ffi::{c_int, c_void};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, memfd_create};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use vmm_sys_util::signal::register_signal_handler;

/// Number of mappings in one [`Table`].
const ENTRIES: usize = 64;

/// One mapping. The handler may read it while another thread changes it.
struct Entry {
    taken: AtomicBool,
    /// Odd while `start` and `len` change.
    version: AtomicUsize,
    start: AtomicUsize,
    len: AtomicUsize,
    /// Whether the handler has mapped zeros over it.
    faulted: AtomicBool,
}

/// A chain of tables of mappings: a signal handler must neither lock nor allocate.
struct Table {
    entries: [Entry; ENTRIES],
    more: OnceLock<Box<Table>>,
}

impl Table {
    const fn new() -> Self {
        Self { entries: [const { Entry::new() }; ENTRIES], more: OnceLock::new() }
    }

    /// Returns a free entry, and marks it as taken. Adds a table if none is free.
    fn take(&'static self) -> &'static Entry {
        let mut table = self;
        loop {
            let free = table.entries.iter().find(|entry| !entry.taken.swap(true, Ordering::Acquire));
            match free {
                Some(entry) => return entry,
                None => table = table.more.get_or_init(|| Box::new(Self::new())),
            }
        }
    }

    /// Returns the mapping that contains `addr`, with its start and length.
    fn find(&self, addr: usize) -> Option<(&Entry, usize, usize)> {
        let mut table = Some(self);
        while let Some(Self { entries, more }) = table {
            let found = entries.iter().find_map(|entry| {
                let (start, len) = entry.range()?;
                (addr.checked_sub(start)? < len).then_some((entry, start, len))
            });
            if found.is_some() {
                return found;
            }
            table = more.get().map(|table| &**table);
        }
        None
    }
}

impl Entry {
    const fn new() -> Self {
        Self {
            taken: AtomicBool::new(false),
            version: AtomicUsize::new(0),
            start: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            faulted: AtomicBool::new(false),
        }
    }

    fn set(&self, start: usize, len: usize) {
        self.version.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::Release);
        self.start.store(start, Ordering::Relaxed);
        self.len.store(len, Ordering::Relaxed);
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Returns start and length; `None` while they change, when the mapping cannot be the accessed one.
    fn range(&self) -> Option<(usize, usize)> {
        let before = self.version.load(Ordering::Acquire);
        let range = (self.start.load(Ordering::Relaxed), self.len.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        (before.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == before).then_some(range)
    }
}

static MAPPINGS: Table = Table::new();

/// Descriptor of the file of zeros; -1 while there is none.
static ZEROS: AtomicI32 = AtomicI32::new(-1);

/// The file that replaces clients' files.
struct Zeros {
    file: File,
    /// Its length in bytes: that of the longest mapping.
    len: Mutex<u64>,
}

impl Zeros {
    /// Returns the file of this process, and creates it at the first call.
    fn get() -> io::Result<&'static Self> {
        static ONE: OnceLock<Result<Zeros, i32>> = OnceLock::new();
        let new = || {
            let file = File::from(memfd_create("zeros", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
            fcntl_add_seals(&file, SealFlags::SHRINK)?;
            ZEROS.store(file.as_raw_fd(), Ordering::Release);
            Ok(Self { file, len: Mutex::new(0) })
        };
        let zeros = ONE.get_or_init(|| new().map_err(|error: rustix::io::Errno| error.raw_os_error()));
        zeros.as_ref().map_err(|error| io::Error::from_raw_os_error(*error))
    }

    /// Extends the file to at least `len` bytes.
    fn cover(&self, len: u64) -> io::Result<()> {
        let mut longest = self.len.lock().unwrap_or_else(PoisonError::into_inner);
        if len > *longest {
            // A file beyond RLIMIT_FSIZE would raise SIGXFSZ, which ends the process.
            if getrlimit(Resource::Fsize).current.is_some_and(|most| len > most) {
                return Err(Errno::FBIG.into());
            }
            self.file.set_len(len)?;
            *longest = len;
        }
        Ok(())
    }

    /// Frees the pages that were written.
    fn clear(&self) {
        let len = *self.len.lock().unwrap_or_else(PoisonError::into_inner);
        // A failure only leaves the pages allocated.
        let _ = fallocate(&self.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, len);
    }
}

/// Handles SIGBUS for a mapping of a client's file until it is dropped, which must precede the unmapping.
pub(crate) struct SigbusGuard {
    entry: &'static Entry,
}

impl SigbusGuard {
    /// Registers the caller's mapping of `len` bytes at `start`, both multiples of the page size.
    ///
    /// # Errors
    /// The handler cannot be installed, or the file of zeros cannot have `len` bytes.
    pub(crate) fn new(start: usize, len: usize) -> io::Result<Self> {
        Zeros::get()?.cover(len as u64)?;
        static HANDLER: OnceLock<Result<(), i32>> = OnceLock::new();
        let handler = HANDLER.get_or_init(|| register_signal_handler(libc::SIGBUS, on_sigbus).map_err(|error| error.errno()));
        handler.map_err(io::Error::from_raw_os_error)?;
        let entry = MAPPINGS.take();
        entry.faulted.store(false, Ordering::Relaxed);
        entry.set(start, len);
        Ok(Self { entry })
    }

    /// Returns whether an access found no page, so that the whole mapping was replaced by zeros.
    pub(crate) fn has_faulted(&self) -> bool {
        self.entry.faulted.load(Ordering::Acquire)
    }
}

impl Drop for SigbusGuard {
    fn drop(&mut self) {
        if let (true, Ok(zeros)) = (self.has_faulted(), Zeros::get()) {
            zeros.clear();
        }
        self.entry.set(0, 0);
        self.entry.taken.store(false, Ordering::Release);
    }
}

/// Message of a process that cannot replace a client's memory.
const NO_REPLACEMENT: &[u8] =
    b"bareverbs: a client's memory is gone and the system lets nothing be mapped in its place: the server ends\n";

/// Maps zeros over the mapping of the faulting address. A SIGBUS for any other address ends the process, as without this handler.
#[expect(unsafe_code, reason = "a signal handler is handed a pointer, and mapping over a range has no safe interface")]
extern "C" fn on_sigbus(_: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel passes a valid siginfo_t to a handler with SA_SIGINFO.
    let raised = unsafe { info.as_ref() };
    // Only a SIGBUS raised by an access of this thread: others are sent by processes, or report memory errors found elsewhere.
    let synchronous = |info: &&libc::siginfo_t| matches!(info.si_code, libc::BUS_ADRERR | libc::BUS_MCEERR_AR);
    let hit = raised.filter(synchronous).and_then(|info| {
        // SAFETY: the kernel raised a SIGBUS, which has an address.
        let addr = unsafe { info.si_addr() };
        MAPPINGS.find(addr as usize)
    });
    if let Some((entry, start, len)) = hit {
        let zeros = ZEROS.load(Ordering::Acquire);
        let shared = (libc::MAP_SHARED | libc::MAP_NORESERVE, zeros);
        let private = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE, -1);
        for (flags, descriptor) in [shared, private] {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: the range is exactly a mapping of a client's file. It stays mapped until this access has ended, since the
            // access borrows its owner. mmap is a system call, which a handler may execute.
            let mapped = unsafe { libc::mmap(start as *mut c_void, len, protection, flags | libc::MAP_FIXED, descriptor, 0) };
            if mapped as usize == start {
                entry.faulted.store(true, Ordering::Release);
                return;
            }
        }
        // SAFETY: write is async-signal-safe; the bytes are static.
        unsafe { libc::write(libc::STDERR_FILENO, NO_REPLACEMENT.as_ptr().cast(), NO_REPLACEMENT.len()) };
    }
    // SAFETY: both are async-signal-safe. The signal is blocked here, and ends the process when this returns.
    unsafe {
        libc::signal(libc::SIGBUS, libc::SIG_DFL);
        libc::raise(libc::SIGBUS);
    }
}

//! Files of clients that have no page for an access while they are mapped, which raises SIGBUS and would end the process with
//! all of its devices: they have become shorter, or there is no memory for a hole (no huge page of hugetlbfs, a full tmpfs).
//!
//! A client's memory cannot be required to be sealed and without holes, since QEMU's is neither. The handler puts zeros in the
//! place of the file and marks the mapping, and the copy that hit it goes on; the client is given up afterwards.
//!
//! The zeros are a sparse file of memory: shared mappings of it need no commit charge, which private ones do where
//! vm.overcommit_memory is 2, and where RLIMIT_DATA counts them. What is written to it is never read by anyone, and its pages are
//! given back when the mapping that was hit goes. If it cannot be mapped either, the process says so and ends.

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

/// Mappings of one [`Table`].
const ENTRIES: usize = 64;

/// One mapping. The handler reads it while others change.
struct Entry {
    taken: AtomicBool,
    /// Odd while `start` and `len` change.
    version: AtomicUsize,
    start: AtomicUsize,
    len: AtomicUsize,
    shrunk: AtomicBool,
}

/// Mappings, and more of them: a handler may take no lock and may not allocate.
struct Table {
    entries: [Entry; ENTRIES],
    more: OnceLock<Box<Table>>,
}

impl Table {
    const fn new() -> Self {
        Self { entries: [const { Entry::new() }; ENTRIES], more: OnceLock::new() }
    }

    /// Takes a free entry.
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

    /// The mapping that holds `addr`.
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
            shrunk: AtomicBool::new(false),
        }
    }

    fn set(&self, start: usize, len: usize) {
        self.version.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::Release);
        self.start.store(start, Ordering::Relaxed);
        self.len.store(len, Ordering::Relaxed);
        self.version.fetch_add(1, Ordering::Release);
    }

    /// `None` while it changes: then it is not the mapping that is being accessed.
    fn range(&self) -> Option<(usize, usize)> {
        let before = self.version.load(Ordering::Acquire);
        let range = (self.start.load(Ordering::Relaxed), self.len.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        (before.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == before).then_some(range)
    }
}

static MAPPINGS: Table = Table::new();

/// The file of zeros; -1 while there is none.
static ZEROS: AtomicI32 = AtomicI32::new(-1);

/// What takes the place of clients' files.
struct Zeros {
    file: File,
    /// Its bytes, as many as the longest mapping.
    len: Mutex<u64>,
}

impl Zeros {
    /// The one of this process.
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

    /// Makes it long enough for a mapping.
    fn cover(&self, len: u64) -> io::Result<()> {
        let mut longest = self.len.lock().unwrap_or_else(PoisonError::into_inner);
        if len > *longest {
            // A file beyond this process's limit would raise SIGXFSZ, which ends it.
            if getrlimit(Resource::Fsize).current.is_some_and(|most| len > most) {
                return Err(Errno::FBIG.into());
            }
            self.file.set_len(len)?;
            *longest = len;
        }
        Ok(())
    }

    /// Gives back the pages that were written.
    fn clear(&self) {
        let len = *self.len.lock().unwrap_or_else(PoisonError::into_inner);
        // They would stay, no more.
        let _ = fallocate(&self.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, len);
    }
}

/// A mapping of a client's file that is looked after until this is dropped, which comes before it is unmapped.
pub(crate) struct GuardedMapping {
    entry: &'static Entry,
}

impl GuardedMapping {
    /// Looks after `len` bytes at `start`, both multiples of a page, that are the caller's mapping.
    ///
    /// # Errors
    /// SIGBUS cannot be caught, or there is nothing to put in the place of that many bytes.
    pub(crate) fn new(start: usize, len: usize) -> io::Result<Self> {
        Zeros::get()?.cover(len as u64)?;
        static CAUGHT: OnceLock<Result<(), i32>> = OnceLock::new();
        let caught = CAUGHT.get_or_init(|| register_signal_handler(libc::SIGBUS, on_sigbus).map_err(|error| error.errno()));
        caught.map_err(io::Error::from_raw_os_error)?;
        let entry = MAPPINGS.take();
        entry.shrunk.store(false, Ordering::Relaxed);
        entry.set(start, len);
        Ok(Self { entry })
    }

    /// Whether an access has hit a page that the file does not have, so that zeros are in the place of all its pages.
    pub(crate) fn has_shrunk(&self) -> bool {
        self.entry.shrunk.load(Ordering::Acquire)
    }
}

impl Drop for GuardedMapping {
    fn drop(&mut self) {
        if let (true, Ok(zeros)) = (self.has_shrunk(), Zeros::get()) {
            zeros.clear();
        }
        self.entry.set(0, 0);
        self.entry.taken.store(false, Ordering::Release);
    }
}

/// The last words of a process that has nothing to put in the place of a client's memory.
const NOTHING_LEFT: &[u8] =
    b"bareverbs: a client's memory is gone and the system lets nothing be mapped in its place: the server ends\n";

/// Puts zeros in the place of the mapping that was hit; what hit no mapping of a client ends the process, as it would
/// without this handler.
#[expect(unsafe_code, reason = "a signal handler is handed a pointer, and mapping over a range has no safe interface")]
extern "C" fn on_sigbus(_: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel hands a handler with SA_SIGINFO what it knows of the signal.
    let raised = unsafe { info.as_ref() };
    // Raised by an access of this thread. Others are sent by processes, or report memory that nobody touched.
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
            // SAFETY: the range is a mapping of a client's file, whole and for nothing else; it stays mapped at least until this
            // access has ended, since its owner is borrowed by it. mmap is a system call and may be done in a handler.
            let mapped = unsafe { libc::mmap(start as *mut c_void, len, protection, flags | libc::MAP_FIXED, descriptor, 0) };
            if mapped as usize == start {
                entry.shrunk.store(true, Ordering::Release);
                return;
            }
        }
        // SAFETY: write is a system call and may be done in a handler; the bytes are static.
        unsafe { libc::write(libc::STDERR_FILENO, NOTHING_LEFT.as_ptr().cast(), NOTHING_LEFT.len()) };
    }
    // SAFETY: both may be called in a handler. The signal is blocked here, and ends the process when this returns.
    unsafe {
        libc::signal(libc::SIGBUS, libc::SIG_DFL);
        libc::raise(libc::SIGBUS);
    }
}

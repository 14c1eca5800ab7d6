//! Files of clients that become shorter while they are mapped: an access beyond their end raises SIGBUS, which would end the
//! process with all of its devices.
//!
//! A client's memory cannot be required to be sealed against that, since QEMU does not seal it. The handler puts zeros in the
//! place of the file and marks the mapping, and the copy that hit it goes on; the client is given up afterwards.

use std::ffi::{c_int, c_void};
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

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

/// A mapping of a client's file that is looked after until this is dropped, which comes before it is unmapped.
pub(super) struct Guarded {
    entry: &'static Entry,
}

impl Guarded {
    /// Looks after `len` bytes at `start`, both multiples of a page, that are the caller's mapping.
    ///
    /// # Errors
    /// SIGBUS cannot be caught.
    pub(super) fn new(start: usize, len: usize) -> io::Result<Self> {
        static CAUGHT: OnceLock<Result<(), i32>> = OnceLock::new();
        let caught = CAUGHT.get_or_init(|| register_signal_handler(libc::SIGBUS, on_sigbus).map_err(|error| error.errno()));
        caught.map_err(io::Error::from_raw_os_error)?;
        let entry = MAPPINGS.take();
        entry.shrunk.store(false, Ordering::Relaxed);
        entry.set(start, len);
        Ok(Self { entry })
    }

    /// Whether an access has hit a page that the file has no more, so that zeros are in the place of all its pages.
    pub(super) fn has_shrunk(&self) -> bool {
        self.entry.shrunk.load(Ordering::Acquire)
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.entry.set(0, 0);
        self.entry.taken.store(false, Ordering::Release);
    }
}

/// Puts zeros in the place of the mapping that was hit; what hit no mapping of a client ends the process, as it would
/// without this handler.
#[expect(unsafe_code, reason = "a signal handler is handed a pointer, and mapping over a range has no safe interface")]
extern "C" fn on_sigbus(_: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel hands a handler with SA_SIGINFO what it knows of the signal.
    let raised = unsafe { info.as_ref() };
    // Raised by an access of this thread. Others are sent by processes, or tell of memory that nobody touched.
    let synchronous = |info: &&libc::siginfo_t| matches!(info.si_code, libc::BUS_ADRERR | libc::BUS_MCEERR_AR);
    let hit = raised.filter(synchronous).and_then(|info| {
        // SAFETY: the kernel raised a SIGBUS, which has an address.
        let addr = unsafe { info.si_addr() };
        MAPPINGS.find(addr as usize)
    });
    if let Some((entry, start, len)) = hit {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
        // SAFETY: the range is a mapping of a client's file, whole and for nothing else; it stays mapped at least until this
        // access has ended, since its owner is borrowed by it. mmap is a system call and may be done in a handler.
        let mapped = unsafe { libc::mmap(start as *mut c_void, len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        if mapped as usize == start {
            entry.shrunk.store(true, Ordering::Release);
            return;
        }
    }
    // SAFETY: both may be called in a handler. The signal is blocked here, and ends the process when this returns.
    unsafe {
        libc::signal(libc::SIGBUS, libc::SIG_DFL);
        libc::raise(libc::SIGBUS);
    }
}

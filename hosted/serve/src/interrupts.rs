//! MSI-X vectors as event descriptors.
//!
//! A write to an event descriptor of a client blocks while its counter is at the maximum. The client shares the open file
//! description, so that it can clear O_NONBLOCK, and it can fill the counter between a check and the write. RWF_NOWAIT is not
//! supported for event descriptors. The kernel itself never blocks when it signals the end of an asynchronous read (io_submit(2),
//! IOCB_FLAG_RESFD): a counter at its maximum keeps that value. Vectors are raised by such reads.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::sync::OnceLock;

use vfio_bindings::bindings::vfio::{
    VFIO_IRQ_SET_ACTION_MASK, VFIO_IRQ_SET_ACTION_TRIGGER, VFIO_IRQ_SET_ACTION_UNMASK, VFIO_IRQ_SET_DATA_EVENTFD,
    VFIO_IRQ_SET_DATA_NONE,
};
use vmm_sys_util::aio::{IOCB_CMD_PREAD, IOCB_FLAG_RESFD, IoContext, IoControlBlock, IoEvent};

/// One vector.
#[derive(Debug, Default)]
struct Vector {
    descriptor: Option<File>,
    masked: bool,
    /// Raised while masked or without a descriptor.
    pending: bool,
}

/// Maximum number of reads in progress. Each ends when it is submitted, so that a thread has one at a time.
const READS: u32 = 256;

/// Number of completed reads that are removed from the context at a time.
const ENDED: usize = 4;

/// Signals event descriptors without blocking.
#[derive(Debug)]
struct Signal {
    context: IoContext,
    /// The file that is read, zero bytes at a time.
    file: File,
}

impl Signal {
    /// Returns the instance of this process, and creates it at the first call.
    fn get() -> io::Result<&'static Self> {
        static SIGNAL: OnceLock<Result<Signal, i32>> = OnceLock::new();
        let new = || Ok(Self { context: IoContext::new(READS)?, file: File::open("/dev/zero")? });
        let signal = SIGNAL.get_or_init(|| new().map_err(|error: io::Error| error.raw_os_error().unwrap_or(libc::EIO)));
        signal.as_ref().map_err(|error| io::Error::from_raw_os_error(*error))
    }

    /// Increments the counter of an event descriptor.
    fn raise(&self, descriptor: &File) -> io::Result<()> {
        let number = |file: &File| u32::try_from(file.as_raw_fd()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput));
        let mut read = IoControlBlock {
            aio_lio_opcode: IOCB_CMD_PREAD as u16,
            aio_fildes: number(&self.file)?,
            aio_flags: IOCB_FLAG_RESFD,
            aio_resfd: number(descriptor)?,
            ..IoControlBlock::default()
        };
        self.context.submit(&[&mut read])?;
        // Makes room for the next ones.
        self.context.get_events(0, &mut [IoEvent::default(); ENDED], None)?;
        Ok(())
    }
}

/// Checks that clients can be signalled.
///
/// # Errors
/// The system has no asynchronous I/O (io_setup(2)), which is the only means to signal a client without blocking.
pub(crate) fn check() -> io::Result<()> {
    Signal::get().map(|_| ())
}

/// Returns whether a descriptor is an event descriptor (eventfd(2)).
pub(crate) fn is_event(descriptor: &File) -> bool {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", descriptor.as_raw_fd()));
    link.is_ok_and(|link| link == Path::new("anon_inode:[eventfd]"))
}

/// All vectors of one function.
#[derive(Debug)]
pub(crate) struct Vectors {
    vectors: Vec<Vector>,
}

impl Vectors {
    /// Creates `count` vectors without descriptors.
    pub(crate) fn new(count: u16) -> Self {
        Self { vectors: (0..count).map(|_| Vector::default()).collect() }
    }

    /// Raises a vector: now, or as soon as it has a descriptor and is not masked.
    pub(crate) fn raise(&mut self, vector: u16) {
        if let Some(vector) = self.vectors.get_mut(usize::from(vector)) {
            vector.pending = true;
            vector.deliver();
        }
    }

    /// Clears all vectors and returns their descriptors, which the caller closes.
    pub(crate) fn clear(&mut self) -> Vec<File> {
        self.vectors.iter_mut().filter_map(|vector| std::mem::take(vector).descriptor).collect()
    }

    /// Executes SET_IRQS for the vectors from `start` on. `descriptors` contains `count` event descriptors or none; afterwards it
    /// contains the replaced ones, which the caller closes.
    ///
    /// # Errors
    /// The request is invalid.
    pub(crate) fn set(&mut self, flags: u32, start: u32, count: u32, descriptors: &mut Vec<File>) -> io::Result<()> {
        let wrong = || io::Error::from(io::ErrorKind::InvalidInput);
        let action = flags & (VFIO_IRQ_SET_ACTION_MASK | VFIO_IRQ_SET_ACTION_UNMASK | VFIO_IRQ_SET_ACTION_TRIGGER);
        let none = flags & VFIO_IRQ_SET_DATA_NONE != 0;
        if none && count == 0 && action == VFIO_IRQ_SET_ACTION_TRIGGER {
            descriptors.extend(self.clear());
            return Ok(());
        }
        let start = usize::try_from(start).map_err(|_| wrong())?;
        let end = start.checked_add(usize::try_from(count).map_err(|_| wrong())?).ok_or_else(wrong)?;
        let range = self.vectors.get_mut(start..end).ok_or_else(wrong)?;
        match action {
            VFIO_IRQ_SET_ACTION_TRIGGER if flags & VFIO_IRQ_SET_DATA_EVENTFD != 0 => {
                if !descriptors.is_empty() && descriptors.len() != range.len() {
                    return Err(wrong());
                }
                let mut given = std::mem::take(descriptors).into_iter();
                for vector in range {
                    descriptors.extend(std::mem::replace(&mut vector.descriptor, given.next()));
                    vector.deliver();
                }
            }
            // The client tests the delivery of its interrupts.
            VFIO_IRQ_SET_ACTION_TRIGGER if none => range.iter_mut().for_each(|vector| {
                vector.pending = true;
                vector.deliver();
            }),
            VFIO_IRQ_SET_ACTION_MASK if none => range.iter_mut().for_each(|vector| vector.masked = true),
            VFIO_IRQ_SET_ACTION_UNMASK if none => range.iter_mut().for_each(|vector| {
                vector.masked = false;
                vector.deliver();
            }),
            _ => return Err(wrong()),
        }
        Ok(())
    }
}

impl Vector {
    fn deliver(&mut self) {
        if let (true, false, Some(descriptor)) = (self.pending, self.masked, self.descriptor.as_ref()) {
            self.pending = false;
            // If the kernel is out of memory, the client loses an interrupt, and no other client is affected.
            let _ = Signal::get().and_then(|signal| signal.raise(descriptor));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    const EVENT: u32 = VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER;

    /// Creates an event descriptor. Returns it and a function that reads and clears its counter.
    fn wire() -> (File, impl FnMut() -> u64) {
        let descriptor = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let here = descriptor.try_clone().unwrap();
        let count = move || {
            let mut bytes = [0; 8];
            rustix::io::read(&here, &mut bytes).map_or(0, |_| u64::from_ne_bytes(bytes))
        };
        (File::from(descriptor), count)
    }

    #[test]
    fn a_counter_at_its_maximum_does_not_block() {
        const MAX: u64 = u64::MAX - 1;
        let mut vectors = Vectors::new(1);
        // A write to it would block.
        let full = eventfd(0, EventfdFlags::empty()).unwrap();
        rustix::io::write(&full, &MAX.to_ne_bytes()).unwrap();
        vectors.set(EVENT, 0, 1, &mut vec![File::from(full.try_clone().unwrap())]).unwrap();
        (0..100).for_each(|_| vectors.raise(0));
        let mut bytes = [0; 8];
        rustix::io::read(&full, &mut bytes).unwrap();
        assert!(u64::from_ne_bytes(bytes) >= MAX);
        vectors.raise(0);
        rustix::io::read(&full, &mut bytes).unwrap();
        assert_eq!(u64::from_ne_bytes(bytes), 1);
    }

    #[test]
    fn event_descriptors_are_recognized() {
        let socket = std::os::unix::net::UnixStream::pair().unwrap().0;
        assert!(is_event(&wire().0) && !is_event(&File::from(OwnedFd::from(socket))));
        assert!(!is_event(&tempfile::tempfile().unwrap()));
    }

    #[test]
    fn a_pending_vector_is_signalled_when_its_descriptor_is_set() {
        let mut vectors = Vectors::new(4);
        let (descriptor, mut count) = wire();
        vectors.raise(2);
        vectors.set(EVENT, 2, 1, &mut Vec::new()).unwrap();
        vectors.set(EVENT, 2, 1, &mut vec![descriptor]).unwrap();
        assert_eq!(count(), 1);
        vectors.raise(2);
        vectors.raise(2);
        vectors.raise(9);
        assert_eq!(count(), 2);
    }

    #[test]
    fn a_masked_vector_waits() {
        let mut vectors = Vectors::new(1);
        let (descriptor, mut count) = wire();
        vectors.set(EVENT, 0, 1, &mut vec![descriptor]).unwrap();
        vectors.set(VFIO_IRQ_SET_DATA_NONE | VFIO_IRQ_SET_ACTION_MASK, 0, 1, &mut Vec::new()).unwrap();
        vectors.raise(0);
        assert_eq!(count(), 0);
        vectors.set(VFIO_IRQ_SET_DATA_NONE | VFIO_IRQ_SET_ACTION_UNMASK, 0, 1, &mut Vec::new()).unwrap();
        assert_eq!(count(), 1);
        vectors.set(VFIO_IRQ_SET_DATA_NONE | VFIO_IRQ_SET_ACTION_TRIGGER, 0, 0, &mut Vec::new()).unwrap();
        vectors.raise(0);
        assert_eq!(count(), 0);
    }

    #[test]
    fn ranges_beyond_the_vectors_are_refused() {
        let mut vectors = Vectors::new(4);
        assert!(vectors.set(EVENT, 3, 2, &mut Vec::new()).is_err());
        assert!(vectors.set(EVENT, u32::MAX, u32::MAX, &mut Vec::new()).is_err());
        assert!(vectors.set(EVENT, 0, 2, &mut vec![wire().0]).is_err());
    }
}

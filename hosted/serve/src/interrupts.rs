//! MSI-X vectors as event descriptors.
//!
//! A write to an event descriptor of a client may block: its counter may be at its maximum, or it may be no event descriptor at
//! all. Neither can be prevented: O_NONBLOCK belongs to what the client shares, RWF_NOWAIT is not there for writes to event
//! descriptors, and between a look and the write the client may fill the counter. What never blocks is the kernel's own way of
//! signalling one, which it does when an asynchronous read has ended (io_submit(2), IOCB_FLAG_RESFD): a counter at its maximum
//! stays there.

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
    /// Raised while there was no descriptor to signal.
    pending: bool,
}

/// Reads that may be under way at a time: each has ended when it is submitted, so that this is one for each thread.
const READS: u32 = 256;

/// Ended reads that are forgotten at a time.
const ENDED: usize = 4;

/// Signals event descriptors without waiting for anyone.
#[derive(Debug)]
struct Signal {
    context: IoContext,
    /// What is read, no bytes at a time.
    file: File,
}

impl Signal {
    /// The one of this process.
    fn get() -> io::Result<&'static Self> {
        static SIGNAL: OnceLock<Result<Signal, i32>> = OnceLock::new();
        let new = || Ok(Self { context: IoContext::new(READS)?, file: File::open("/dev/zero")? });
        let signal = SIGNAL.get_or_init(|| new().map_err(|error: io::Error| error.raw_os_error().unwrap_or(libc::EIO)));
        signal.as_ref().map_err(|error| io::Error::from_raw_os_error(*error))
    }

    /// Counts the descriptor up by one.
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

/// Whether clients can be signalled at all.
///
/// # Errors
/// The system has no asynchronous input and output: nothing else signals a client without waiting for it.
pub(crate) fn check() -> io::Result<()> {
    Signal::get().map(|_| ())
}

/// Whether a descriptor is an event descriptor.
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
    /// So many vectors, without descriptors.
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

    /// Forgets what is pending, and gives the descriptors to be closed.
    pub(crate) fn clear(&mut self) -> Vec<File> {
        self.vectors.iter_mut().filter_map(|vector| std::mem::take(vector).descriptor).collect()
    }

    /// Does what SET_IRQS asks for the vectors from `start` on. `descriptors` are event descriptors, as many as `count`, or none;
    /// afterwards they are those to be closed.
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
            // The client tests its own wiring.
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
            // Kernel memory that is short loses the client an interrupt, not the others their devices.
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

    /// An event descriptor, and how often it was signalled since the last look.
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
    fn a_counter_at_its_maximum_stays_there_and_nobody_waits() {
        const MOST: u64 = u64::MAX - 1;
        let mut vectors = Vectors::new(1);
        // A write to it would block.
        let full = eventfd(0, EventfdFlags::empty()).unwrap();
        rustix::io::write(&full, &MOST.to_ne_bytes()).unwrap();
        vectors.set(EVENT, 0, 1, &mut vec![File::from(full.try_clone().unwrap())]).unwrap();
        (0..100).for_each(|_| vectors.raise(0));
        let mut bytes = [0; 8];
        rustix::io::read(&full, &mut bytes).unwrap();
        assert!(u64::from_ne_bytes(bytes) >= MOST);
        vectors.raise(0);
        rustix::io::read(&full, &mut bytes).unwrap();
        assert_eq!(u64::from_ne_bytes(bytes), 1);
    }

    #[test]
    fn event_descriptors_are_told_from_others() {
        let socket = std::os::unix::net::UnixStream::pair().unwrap().0;
        assert!(is_event(&wire().0) && !is_event(&File::from(OwnedFd::from(socket))));
        assert!(!is_event(&tempfile::tempfile().unwrap()));
    }

    #[test]
    fn a_vector_raised_early_is_told_when_its_descriptor_comes() {
        let mut vectors = Vectors::new(4);
        let (descriptor, mut told) = wire();
        vectors.raise(2);
        vectors.set(EVENT, 2, 1, &mut Vec::new()).unwrap();
        vectors.set(EVENT, 2, 1, &mut vec![descriptor]).unwrap();
        assert_eq!(told(), 1);
        vectors.raise(2);
        vectors.raise(2);
        vectors.raise(9);
        assert_eq!(told(), 2);
    }

    #[test]
    fn a_masked_vector_waits() {
        let mut vectors = Vectors::new(1);
        let (descriptor, mut told) = wire();
        vectors.set(EVENT, 0, 1, &mut vec![descriptor]).unwrap();
        vectors.set(VFIO_IRQ_SET_DATA_NONE | VFIO_IRQ_SET_ACTION_MASK, 0, 1, &mut Vec::new()).unwrap();
        vectors.raise(0);
        assert_eq!(told(), 0);
        vectors.set(VFIO_IRQ_SET_DATA_NONE | VFIO_IRQ_SET_ACTION_UNMASK, 0, 1, &mut Vec::new()).unwrap();
        assert_eq!(told(), 1);
        vectors.set(VFIO_IRQ_SET_DATA_NONE | VFIO_IRQ_SET_ACTION_TRIGGER, 0, 0, &mut Vec::new()).unwrap();
        vectors.raise(0);
        assert_eq!(told(), 0);
    }

    #[test]
    fn ranges_beyond_the_vectors_are_refused() {
        let mut vectors = Vectors::new(4);
        assert!(vectors.set(EVENT, 3, 2, &mut Vec::new()).is_err());
        assert!(vectors.set(EVENT, u32::MAX, u32::MAX, &mut Vec::new()).is_err());
        assert!(vectors.set(EVENT, 0, 2, &mut vec![wire().0]).is_err());
    }
}

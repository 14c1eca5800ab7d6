//! Interrupts as event descriptors.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

use crate::error::Error;

/// One interrupt of a device: an event descriptor (eventfd(2)) that becomes readable when the interrupt comes.
///
/// An event loop waits on it through [`AsFd`], calls [`Interrupt::take`], and then polls the device's event queues
/// (`Verbs::poll_event`), which arms them again.
#[derive(Debug)]
pub struct Interrupt {
    event: EventFd,
}

impl Interrupt {
    pub(crate) fn new() -> Result<Self, Error> {
        EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC).map(|event| Self { event }).map_err(|error| Error::io("eventfd", error))
    }

    pub(crate) const fn event(&self) -> &EventFd {
        &self.event
    }

    /// Returns how often the interrupt was signalled since the last call.
    ///
    /// # Errors
    /// The descriptor cannot be read.
    pub fn take(&self) -> io::Result<u64> {
        match self.event.read() {
            Ok(count) => Ok(count),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Waits up to `timeout` for the interrupt. Returns how often it was signalled; 0 after a timeout.
    ///
    /// # Errors
    /// The descriptor cannot be waited for or read.
    pub fn wait(&self, timeout: Duration) -> io::Result<u64> {
        if wait_any(&[self], timeout)? { self.take() } else { Ok(0) }
    }
}

impl AsFd for Interrupt {
    fn as_fd(&self) -> BorrowedFd<'_> {
        #[expect(unsafe_code, reason = "EventFd knows its descriptor as a number only")]
        // SAFETY: `event` owns the descriptor and lives as long as the borrow.
        unsafe {
            BorrowedFd::borrow_raw(self.event.as_raw_fd())
        }
    }
}

/// Waits up to `timeout` for one of the interrupts. Returns `false` after a timeout. The counters are not cleared.
///
/// # Errors
/// The descriptors cannot be waited for. A signal ends the wait early, without an error.
pub fn wait_any(interrupts: &[&Interrupt], timeout: Duration) -> io::Result<bool> {
    let mut waits: Vec<PollFd<'_>> = interrupts.iter().map(|each| PollFd::new(*each, PollFlags::IN)).collect();
    let timeout = Timespec { tv_sec: timeout.as_secs().try_into().unwrap_or(i64::MAX), tv_nsec: timeout.subsec_nanos().into() };
    match poll(&mut waits, Some(&timeout)) {
        Ok(ready) => Ok(ready != 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupts_are_counted_and_waited_for() {
        let (quiet, loud) = (Interrupt::new().unwrap(), Interrupt::new().unwrap());
        assert_eq!(loud.take().unwrap(), 0);
        assert!(!wait_any(&[&quiet, &loud], Duration::from_millis(1)).unwrap());
        loud.event.write(1).unwrap();
        loud.event.write(1).unwrap();
        assert!(wait_any(&[&quiet, &loud], Duration::from_secs(10)).unwrap());
        assert_eq!((quiet.take().unwrap(), loud.wait(Duration::from_secs(10)).unwrap()), (0, 2));
        assert_eq!(loud.wait(Duration::from_millis(1)).unwrap(), 0);
    }
}

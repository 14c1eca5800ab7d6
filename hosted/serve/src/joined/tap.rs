//! A cable to a TAP interface: what the network stack of this machine sends through the interface comes from the cable, and the other
//! way round (Linux `Documentation/networking/tuntap.rst`).

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags, Timespec};
use rustix::io::Errno;

use super::address::TapName;
use super::cable::{Cable, Deliver, LENGTHS, Work};
use crate::error::{Gone, ServeError};

/// Interval at which a thread that waits for frames checks whether the server has ended.
const CHECK_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// Interval between attempts to attach to an interface that has been deleted.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// `struct ifreq` as TUNSETIFF reads and writes it.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; libc::IFNAMSIZ],
    flags: u16,
    rest: [u8; 22],
}

const _: () = assert!(size_of::<InterfaceRequest>() == size_of::<libc::ifreq>());

/// An interface, attached.
pub(super) struct Tap {
    name: TapName,
    file: OwnedFd,
}

impl Tap {
    /// Attaches to an interface, which is created if there is none.
    pub(super) fn new(name: &TapName) -> Result<Self, ServeError> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = rustix::fs::open("/dev/net/tun", flags, Mode::empty()).map_err(|error| ServeError::Tun(error.into()))?;
        let file = attach(file, name).map_err(|error| ServeError::Tap(name.to_string(), error))?;
        Ok(Self { name: name.clone(), file })
    }
}

/// Makes a file of `/dev/net/tun` the other end of an interface: frames as on the wire, without a header.
#[expect(unsafe_code, reason = "this request has no safe interface")]
fn attach(file: OwnedFd, name: &TapName) -> io::Result<OwnedFd> {
    let mut request = InterfaceRequest { name: [0; _], flags: (libc::IFF_TAP | libc::IFF_NO_PI) as u16, rest: [0; _] };
    for (to, from) in request.name.iter_mut().zip(name.as_str().bytes()) {
        *to = from;
    }
    // SAFETY: the request reads and writes one `struct ifreq` at the pointer, which has its size and outlives the call.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(file) }
}

/// Exchanges frames until the server ends, and attaches again to an interface that was deleted.
pub(super) fn run(cable: &Arc<Cable>, mut tap: Tap, deliver: impl Deliver) {
    loop {
        let name = tap.name;
        if let Err(error) = carry(cable, tap.file, deliver.clone()) {
            cable.line(format_args!("{error}"));
        }
        if cable.is_closed() {
            return;
        }
        cable.line(format_args!("the interface {name} was deleted; it is tried again"));
        tap = loop {
            cable.pause(RETRY_INTERVAL);
            if cable.is_closed() {
                return;
            }
            if let Ok(tap) = Tap::new(&name) {
                break tap;
            }
        };
        cable.line(format_args!("the interface {name} is there"));
    }
}

/// Exchanges frames until the server ends or the interface is deleted.
fn carry(cable: &Arc<Cable>, file: OwnedFd, deliver: impl Deliver) -> io::Result<()> {
    let (output, input) = (file.try_clone()?, file);
    let receives = Arc::clone(cable);
    cable.set_connected(true);
    let receiver = thread::Builder::new().name(format!("{} in", cable.name())).spawn(move || {
        receive(&receives, &input, &deliver);
        receives.set_connected(false);
    });
    let receiver = receiver.inspect_err(|_| cable.set_connected(false))?;
    while let Work::Frames(frames) = cable.next(0x1_0000) {
        for frame in frames {
            // An interface that is down takes none.
            let is_sent = rustix::io::write(&output, &frame).is_ok();
            cable.count(|stats| *if is_sent { &mut stats.sent } else { &mut stats.sends_dropped } += 1);
        }
    }
    // It looks whether the server has ended. A panic of it was reported.
    let _ = receiver.join();
    Ok(())
}

/// Takes frames until the server ends or the interface is deleted.
fn receive(cable: &Cable, input: &OwnedFd, deliver: &impl Deliver) {
    // One byte more, by which a frame that is too long is seen.
    let mut bytes = vec![0; LENGTHS.end() + 1];
    while !cable.is_closed() {
        match rustix::io::read(input, &mut bytes[..]) {
            Ok(len) => {
                if let Err(Gone) = cable.take(bytes.get(..len).unwrap_or_default().to_vec(), deliver) {
                    return;
                }
            }
            Err(Errno::AGAIN) => {
                // Whatever it says, the next read says it more clearly.
                let _ = poll(&mut [PollFd::new(input, PollFlags::IN)], Some(&CHECK_INTERVAL));
            }
            Err(Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

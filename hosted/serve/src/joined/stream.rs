//! A cable over a connection: each frame follows its length in four bytes (big-endian), as in QEMU's `net/stream.c`.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream, ToSocketAddrs as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::net::{RecvFlags, SendFlags, Shutdown, sockopt};

use super::address::StreamAddress;
use super::cable::{Cable, Deliver, Work};
use crate::error::{Gone, MAX_SOCKET_PATH, ServeError};
use crate::socket::{self, Claim};

/// Maximum length that a peer may announce, which is QEMU's (`NET_BUFSIZE`). A longer one ends the connection.
const MAX_LENGTH: usize = 4096 + 65536;
/// Bytes that are sent or received at a time.
const BATCH: usize = 1 << 16;
/// Interval between attempts to connect or to accept.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// Timeout of an attempt to connect by TCP.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// A connection over TCP whose other end answers nothing ends after 25 s of silence.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 3;

/// How the two ends meet.
pub(super) enum Meeting {
    /// The other end listens there.
    Connect(StreamAddress),
    /// The other end connects to this socket.
    Listen(OwnedFd),
}

fn is_too_long(path: &Path) -> bool {
    path.as_os_str().len() > MAX_SOCKET_PATH
}

impl Meeting {
    /// Creates the socket if this end listens, and returns its path if it is at one.
    pub(super) fn new(address: &StreamAddress, listens: bool, mode: Option<u32>) -> Result<(Self, Option<Claim>), ServeError> {
        match address {
            StreamAddress::Unix(path) if listens => {
                let (listener, claim) = socket::listen(path, mode)?;
                Ok((Self::Listen(listener.into()), Some(claim)))
            }
            StreamAddress::Tcp(address) if listens => {
                let listener = TcpListener::bind(address).map_err(|error| ServeError::Address(address.clone(), error))?;
                Ok((Self::Listen(listener.into()), None))
            }
            StreamAddress::Unix(path) if is_too_long(path) => Err(ServeError::TooLong(path.clone())),
            address => Ok((Self::Connect(address.clone()), None)),
        }
    }

    /// Returns a connection.
    fn meet(&self, cable: &Cable) -> io::Result<OwnedFd> {
        let stream = match self {
            Self::Listen(listener) => {
                if !cable.set_socket(Some(listener.try_clone()?)) {
                    return Err(io::ErrorKind::NotConnected.into());
                }
                rustix::net::accept_with(listener, rustix::net::SocketFlags::CLOEXEC)?
            }
            Self::Connect(StreamAddress::Unix(path)) => UnixStream::connect(path)?.into(),
            Self::Connect(StreamAddress::Tcp(address)) => connect(address)?.into(),
        };
        // Options of TCP, which other sockets refuse.
        if sockopt::set_tcp_nodelay(&stream, true).is_ok() {
            sockopt::set_socket_keepalive(&stream, true)?;
            sockopt::set_tcp_keepidle(&stream, KEEPALIVE_IDLE)?;
            sockopt::set_tcp_keepintvl(&stream, KEEPALIVE_INTERVAL)?;
            sockopt::set_tcp_keepcnt(&stream, KEEPALIVE_PROBES)?;
        }
        Ok(stream)
    }
}

/// Connects to one of the addresses of a host.
fn connect(address: &str) -> io::Result<TcpStream> {
    let mut failed = io::ErrorKind::AddrNotAvailable.into();
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

/// A socket to be read and written. A peer that has gone causes no signal.
struct Socket(OwnedFd);

impl io::Read for Socket {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::net::recv(&self.0, bytes, RecvFlags::empty())?.0)
    }
}

impl io::Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::net::send(&self.0, bytes, SendFlags::NOSIGNAL)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Exchanges frames with one peer after another.
pub(super) fn run(cable: &Arc<Cable>, meeting: Meeting, deliver: impl Deliver) {
    let mut logged = None;
    while !cable.is_closed() {
        match meeting.meet(cable).and_then(|stream| carry(cable, stream, deliver.clone())) {
            Ok(()) => logged = None,
            Err(error) => {
                // Logged once for each kind of error: there are ten attempts per second.
                if logged != Some(error.kind()) && !cable.is_closed() {
                    cable.line(format_args!("{error}; it is tried again"));
                    logged = Some(error.kind());
                }
                cable.pause(RETRY_INTERVAL);
            }
        }
    }
}

/// Exchanges frames until the connection ends.
fn carry(cable: &Arc<Cable>, stream: OwnedFd, deliver: impl Deliver) -> io::Result<()> {
    let (mut output, input) = (Socket(stream.try_clone()?), Socket(stream.try_clone()?));
    if !cable.set_socket(Some(stream)) {
        return Ok(());
    }
    let receives = Arc::clone(cable);
    cable.set_connected(true);
    let receiver = thread::Builder::new().name(format!("{} in", cable.name())).spawn(move || {
        let ended = receive(&receives, input, &deliver);
        receives.set_connected(false);
        ended
    });
    let receiver = receiver.inspect_err(|_| cable.set_connected(false))?;
    cable.line(format_args!("connected"));
    let mut bytes = Vec::new();
    while let Work::Frames(frames) = cable.next(BATCH) {
        bytes.clear();
        for frame in &frames {
            // None is so long that its length has more than 32 bits.
            bytes.extend((frame.len() as u32).to_be_bytes());
            bytes.extend(frame);
        }
        let is_sent = output.write_all(&bytes).is_ok();
        let count = frames.len() as u64;
        cable.count(|stats| *if is_sent { &mut stats.sent } else { &mut stats.sends_dropped } += count);
        if !is_sent {
            break;
        }
    }
    // Ends the receiver, which may have ended it.
    let _ = rustix::net::shutdown(output.0.as_fd(), Shutdown::Both);
    cable.set_socket(None);
    let ended = receiver.join().unwrap_or(End::Gone);
    cable.set_connected(false);
    if !cable.is_closed() {
        match ended {
            End::Gone => cable.line(format_args!("the peer is gone")),
            End::Within(have, len) => {
                cable.line(format_args!("connection ended within a frame: {have} of {len} bytes came"));
            }
            End::TooLong(len) => cable.line(format_args!(
                "connection ended: a frame of {len} bytes announced, {MAX_LENGTH} at most are of the format of -netdev stream"
            )),
        }
    }
    Ok(())
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Between two frames, or with an error of the connection.
    Gone,
    /// After so many bytes of a frame and its length, of so many.
    Within(usize, usize),
    /// A length that no frame has.
    TooLong(usize),
}

/// Receives frames until the connection or the server ends, and shuts the connection down.
fn receive(cable: &Cable, input: Socket, deliver: &impl Deliver) -> End {
    let mut input = BufReader::with_capacity(BATCH, input);
    let end = loop {
        match receive_frame(cable, &mut input, deliver) {
            Ok(Ok(())) => {}
            Ok(Err(Gone)) => break End::Gone,
            Err(end) => break end,
        }
    };
    if end != End::Gone && !cable.is_closed() {
        cable.count(|stats| stats.violations += 1);
    }
    // Ends a sender that waits for the peer.
    let _ = rustix::net::shutdown(input.get_ref().0.as_fd(), Shutdown::Both);
    end
}

fn receive_frame(cable: &Cable, input: &mut BufReader<Socket>, deliver: &impl Deliver) -> Result<Result<(), Gone>, End> {
    const LENGTH: usize = size_of::<u32>();
    if input.fill_buf().map_err(|_| End::Gone)?.is_empty() {
        return Err(End::Gone);
    }
    let mut length = Vec::new();
    let have = input.by_ref().take(LENGTH as u64).read_to_end(&mut length).map_err(|_| End::Gone)?;
    let Some(length) = length.first_chunk() else { return Err(End::Within(have, LENGTH)) };
    let len = u32::from_be_bytes(*length) as usize;
    if len > MAX_LENGTH {
        return Err(End::TooLong(len));
    }
    let mut frame = Vec::with_capacity(len);
    let have = input.by_ref().take(len as u64).read_to_end(&mut frame).map_err(|_| End::Gone)?;
    if have < len {
        return Err(End::Within(LENGTH + have, LENGTH + len));
    }
    Ok(cable.take(frame, deliver))
}

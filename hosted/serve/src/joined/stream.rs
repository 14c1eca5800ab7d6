//! A cable over a connection: each frame follows its length in four bytes (big-endian), as in QEMU's `net/stream.c`.

use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream, ToSocketAddrs as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{RecvFlags, SendFlags, Shutdown, sockopt};

use super::address::StreamAddress;
use super::cable::{Cable, Deliver, Work};
use super::frame_stream::{FrameStream, FrameTooLong};
use crate::error::{Gone, MAX_SOCKET_PATH, ServeError};
use crate::socket::{self, Claim};

/// Bytes that are sent or received at a time.
const BATCH: usize = 1 << 16;
/// How long a frame may take from its first byte to its last one. A peer that stops within a frame is not one to wait for.
const FRAME_TIME: Duration = Duration::from_secs(10);
/// Interval between attempts to connect, and between peers that are accepted.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// Timeout of an attempt to connect by TCP.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// A connection over TCP whose other end answers nothing ends after 25 s of silence.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 3;

/// How the two ends meet.
pub(super) enum Rendezvous {
    /// The other end listens there.
    Connect(StreamAddress),
    /// The other end connects to this socket.
    Listen(OwnedFd),
}

fn is_too_long(path: &Path) -> bool {
    path.as_os_str().len() > MAX_SOCKET_PATH
}

impl Rendezvous {
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
}

/// Connects to the other end.
fn connect(address: &StreamAddress) -> io::Result<OwnedFd> {
    match address {
        StreamAddress::Unix(path) => Ok(UnixStream::connect(path)?.into()),
        StreamAddress::Tcp(address) => connect_tcp(address).map(OwnedFd::from),
    }
}

/// Connects to one of the addresses of a host.
fn connect_tcp(address: &str) -> io::Result<TcpStream> {
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

/// Sets the options of a connection.
fn set_options(stream: &OwnedFd) -> io::Result<()> {
    // A receiver looks at the clock that often within a frame.
    sockopt::set_socket_timeout(stream, sockopt::Timeout::Recv, Some(FRAME_TIME / 10))?;
    // Options of TCP, which other sockets refuse.
    if sockopt::set_tcp_nodelay(stream, true).is_ok() {
        sockopt::set_socket_keepalive(stream, true)?;
        sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
        sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
        sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES)?;
    }
    Ok(())
}

/// Errors of attempts to meet, each kind logged once: there are ten attempts per second.
#[derive(Default)]
struct Attempts(Option<io::ErrorKind>);

impl Attempts {
    fn log(&mut self, cable: &Cable, result: io::Result<()>) {
        match result {
            Ok(()) => self.0 = None,
            Err(error) if self.0 != Some(error.kind()) && !cable.is_closed() => {
                cable.line(format_args!("{error}; it is tried again"));
                self.0 = Some(error.kind());
            }
            Err(_) => {}
        }
    }
}

/// Exchanges frames with one peer after another.
pub(super) fn run(cable: &Arc<Cable>, meeting: Rendezvous, deliver: impl Deliver) {
    let mut attempts = Attempts::default();
    match meeting {
        Rendezvous::Connect(address) => {
            while !cable.is_closed() {
                attempts.log(cable, connect(&address).and_then(|stream| carry(cable, stream, deliver.clone())));
                // Also after a connection, which the other end may have ended at once.
                cable.pause(RETRY_INTERVAL);
            }
        }
        Rendezvous::Listen(listener) => {
            let accepts = Arc::clone(cable);
            let acceptor = thread::Builder::new().name(format!("{} new", cable.name()));
            if let Err(error) = acceptor.spawn(move || accept(&accepts, &listener)) {
                return cable.line(format_args!("cannot start a thread: {error}"));
            }
            while let Some(stream) = cable.next_peer() {
                attempts.log(cable, carry(cable, stream, deliver.clone()));
            }
        }
    }
}

/// Accepts peers until the server ends. Each takes the place of the one before.
fn accept(cable: &Cable, listener: &OwnedFd) {
    let mut attempts = Attempts::default();
    let Ok(copy) = listener.try_clone() else { return cable.line(format_args!("no descriptor is left for it")) };
    let mut is_open = cable.set_listener(copy);
    while is_open {
        let accepted = rustix::net::accept_with(listener, rustix::net::SocketFlags::CLOEXEC);
        attempts.log(cable, accepted.map_err(io::Error::from).map(|stream| is_open = cable.replace_peer(stream)));
        // Peers that come one upon the other each cost two threads.
        cable.pause(RETRY_INTERVAL);
        is_open &= !cable.is_closed();
    }
}

/// Exchanges frames until the connection ends.
fn carry(cable: &Arc<Cable>, stream: OwnedFd, deliver: impl Deliver) -> io::Result<()> {
    set_options(&stream)?;
    let (mut output, input) = (Socket(stream.try_clone()?), Socket(stream.try_clone()?));
    if !cable.set_socket(Some(stream)) {
        return Ok(());
    }
    let receives = Arc::clone(cable);
    cable.set_connected(true);
    let receiver = thread::Builder::new().name(format!("{} in", cable.name())).spawn(move || {
        let ended = receive(&receives, input, FRAME_TIME, &deliver);
        receives.set_connected(false);
        ended
    });
    let receiver = receiver.inspect_err(|_| cable.set_connected(false))?;
    cable.line(format_args!("connected"));
    let mut bytes = Vec::new();
    while let Work::Frames(frames) = cable.next(BATCH) {
        bytes.clear();
        for frame in &frames {
            FrameStream::append(frame, &mut bytes);
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
            End::Stalled(have, len) => {
                cable.line(format_args!(
                    "connection ended: {have} of {len} bytes of a frame came in {} s",
                    FRAME_TIME.as_secs()
                ));
            }
            End::TooLong(error) => cable.line(format_args!("connection ended: {error}")),
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
    /// The rest of a frame did not come in time, after so many bytes of it and its length, of so many.
    Stalled(usize, usize),
    /// A length that no frame has.
    TooLong(FrameTooLong),
}

/// Receives frames, each within `limit`, until the connection or the server ends, and shuts the connection down.
fn receive(cable: &Cable, mut input: Socket, limit: Duration, deliver: &impl Deliver) -> End {
    let end = receive_frames(cable, &mut input, limit, deliver);
    if end != End::Gone && !cable.is_closed() {
        cable.count(|stats| stats.violations += 1);
    }
    // Ends a sender that waits for the peer.
    let _ = rustix::net::shutdown(input.0.as_fd(), Shutdown::Both);
    end
}

fn receive_frames(cable: &Cable, input: &mut Socket, limit: Duration, deliver: &impl Deliver) -> End {
    let mut buffer = vec![0; BATCH];
    let mut stream = FrameStream::default();
    // Until when the frame has to end that has begun.
    let mut until = None;
    loop {
        let mut bytes = match input.read(&mut buffer) {
            Ok(0) => return stream.begun().map_or(End::Gone, |(have, len)| End::Within(have, len)),
            Ok(len) => buffer.get(..len).unwrap_or_default(),
            // The timeout, or a signal.
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => &[],
            Err(_) => return End::Gone,
        };
        while !bytes.is_empty() {
            match stream.take(&mut bytes) {
                Ok(None) => {}
                Ok(Some(frame)) => {
                    until = None;
                    if let Err(Gone) = cable.take(frame, deliver) {
                        return End::Gone;
                    }
                }
                Err(error) => return End::TooLong(error),
            }
        }
        // Between two frames a peer may be silent for ever.
        let Some((have, len)) = stream.begun() else { continue };
        if Instant::now() >= *until.get_or_insert_with(|| Instant::now() + limit) {
            return End::Stalled(have, len);
        }
    }
}

#[cfg(test)]
mod tests {
    use bareverbs_sim::fabric::{Arrival, Uplink as _};
    use bareverbs_sim::wire::PortId;

    use super::super::cable::NearEnd;
    use super::*;
    use crate::log::Log;

    /// The second peer comes when the first is taken and not yet known as the one that is connected, so nobody can shut that down. It
    /// ends by itself: one that is silent for ever would keep the second out.
    #[test]
    fn a_peer_whose_place_is_taken_before_it_is_connected_ends_and_the_next_one_is_served() {
        let limit = Duration::from_secs(20);
        let cable = Arc::new(Cable::new("join1".into(), "here".into(), vec!["lid1".into()], &Log::discard()));
        let near = NearEnd(Arc::clone(&cable));
        let [(first, mut far_first), (second, mut far_second)] = [(); 2].map(|()| UnixStream::pair().unwrap());
        for far in [&far_first, &far_second] {
            far.set_read_timeout(Some(limit)).unwrap();
        }
        assert!(cable.replace_peer(first.into()));
        let taken = cable.next_peer().unwrap();
        assert!(cable.replace_peer(second.into()));
        let deliver = |_| Ok(Arrival { is_on_wire: true, foreign: None });
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut next = Some(taken);
                while let Some(stream) = next {
                    carry(&cable, stream, deliver).unwrap();
                    next = cable.next_peer();
                }
            });
            let frame = [[0, 0, 0, 60].as_slice(), &[7; 60]].concat();
            far_second.write_all(&frame).unwrap();
            let start = Instant::now();
            while cable.stats().received == 0 && start.elapsed() < limit {
                thread::sleep(Duration::from_millis(1));
            }
            let received = cable.stats().received;
            let was_sent = near.send(PortId(0), vec![9; 60]);
            let mut answer = [0; 64];
            let answered = received == 1 && far_second.read_exact(&mut answer).is_ok();
            let ended = answered && matches!(far_first.read(&mut [0]), Ok(0));
            // The other end leaves also if something was wrong.
            drop((near, far_first, far_second));
            assert_eq!((received, was_sent, answered, ended), (1, true, true, true));
            assert_eq!((&answer[..4], &answer[4..]), (&[0, 0, 0, 60][..], &[9; 60][..]));
        });
    }

    /// Half a length, half a frame, and one whose bytes come so slowly that it never ends.
    #[test]
    fn a_frame_has_to_end_in_time_and_silence_between_frames_has_not() {
        let limit = Duration::from_millis(200);
        let last = [0; 60];
        for (bytes, drips, end) in [
            (&[0, 0][..], false, End::Stalled(2, 4)),
            (&[0, 0, 0, 60, 1, 2, 3], false, End::Stalled(7, 64)),
            (&[0, 1, 0, 0], true, End::Gone),
        ] {
            let (near, mut far) = UnixStream::pair().unwrap();
            near.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
            let cable = Cable::new("join1".into(), "here".into(), vec!["lid1".into()], &Log::discard());
            let start = Instant::now();
            let ended = thread::scope(|scope| {
                let receiver = scope.spawn(|| {
                    receive(&cable, Socket(near.into()), limit, &|_| Ok(Arrival { is_on_wire: true, foreign: None }))
                });
                // Silence, and a whole frame.
                thread::sleep(limit * 2);
                far.write_all(&[&60_u32.to_be_bytes()[..], &last].concat()).unwrap();
                thread::sleep(limit * 2);
                far.write_all(bytes).unwrap();
                while drips && far.write_all(&[0]).is_ok() {
                    thread::sleep(Duration::from_millis(5));
                }
                receiver.join().unwrap()
            });
            assert!(start.elapsed() >= limit * 5);
            if drips {
                assert!(matches!(ended, End::Stalled(have, 65_540) if have > 4), "{ended:?}");
            } else {
                assert_eq!(ended, end);
            }
            let stats = cable.stats();
            assert_eq!((stats.received, stats.violations), (1, 1));
        }
    }
}

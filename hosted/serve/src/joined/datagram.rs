//! A cable over datagrams, each of them a frame, as in QEMU's `net/dgram.c`.

use std::io;
use std::net::{ToSocketAddrs as _, UdpSocket};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketAddrUnix, sockopt};

use super::address::DatagramAddress;
use super::cable::{Cable, Deliver, LENGTHS, Work};
use crate::error::{Gone, ServeError};
use crate::socket::{self, Claim, check_path};

/// Interval at which a thread that waits for the peer checks whether the server has ended.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// A socket, and where it sends to.
pub(super) struct Socket {
    socket: OwnedFd,
    /// The peer, which need not be there; `None` if the socket is connected to it.
    remote: Option<SocketAddrUnix>,
}

fn unix(local: &Path, remote: &PathBuf, mode: Option<u32>) -> Result<(Socket, Claim), ServeError> {
    check_path(remote)?;
    let remote = SocketAddrUnix::new(remote).map_err(|_| ServeError::TooLong(remote.clone()))?;
    let (socket, claim) = socket::bind_datagram(local, mode)?;
    Ok((Socket { socket, remote: Some(remote) }, claim))
}

fn udp(local: &str, remote: &str) -> Result<Socket, ServeError> {
    let failed = |address: &str| {
        let address = address.to_owned();
        move |error: io::Error| ServeError::Address(address, error)
    };
    let socket = UdpSocket::bind(local).map_err(failed(local))?;
    // An address of the same family as the local one.
    let is_ipv4 = socket.local_addr().map_err(failed(local))?.is_ipv4();
    let to = remote.to_socket_addrs().map_err(failed(remote))?.find(|address| address.is_ipv4() == is_ipv4);
    let to = to.ok_or_else(|| failed(remote)(io::ErrorKind::AddrNotAvailable.into()))?;
    socket.connect(to).map_err(failed(remote))?;
    Ok(Socket { socket: socket.into(), remote: None })
}

impl Socket {
    /// Creates the socket, and returns its path if it is at one.
    pub(super) fn new(address: &DatagramAddress, mode: Option<u32>) -> Result<(Self, Option<Claim>), ServeError> {
        let (created, claim) = match address {
            DatagramAddress::Unix { local, remote } => {
                let (created, claim) = unix(local, remote, mode)?;
                (created, Some(claim))
            }
            DatagramAddress::Udp { local, remote } => (udp(local, remote)?, None),
        };
        for timeout in [sockopt::Timeout::Recv, sockopt::Timeout::Send] {
            let set = sockopt::set_socket_timeout(&created.socket, timeout, Some(CHECK_INTERVAL));
            set.map_err(|error| ServeError::Address("datagrams".into(), error.into()))?;
        }
        Ok((created, claim))
    }

    fn send(&self, frame: &[u8]) -> Result<usize, Errno> {
        match &self.remote {
            Some(remote) => rustix::net::sendto(&self.socket, frame, SendFlags::NOSIGNAL, remote),
            None => rustix::net::send(&self.socket, frame, SendFlags::NOSIGNAL),
        }
    }
}

/// Exchanges frames until the server ends.
pub(super) fn run(cable: &Arc<Cable>, socket: Socket, deliver: impl Deliver) {
    let Ok(input) = socket.socket.try_clone() else { return cable.line(format_args!("no descriptor is left for it")) };
    let receives = Arc::clone(cable);
    let receiver =
        thread::Builder::new().name(format!("{} in", cable.name())).spawn(move || receive(&receives, &input, &deliver));
    if let Err(error) = receiver {
        return cable.line(format_args!("cannot start a thread: {error}"));
    }
    cable.set_connected(true);
    // It is never broken.
    while let Work::Frames(frames) = cable.next(0x1_0000) {
        for frame in frames {
            let is_sent = send(cable, &socket, &frame);
            cable.count(|stats| *if is_sent { &mut stats.sent } else { &mut stats.sends_dropped } += 1);
        }
    }
}

/// Sends a frame, as soon as the peer has room. Returns `false` if there is no peer.
fn send(cable: &Cable, socket: &Socket, frame: &[u8]) -> bool {
    loop {
        match socket.send(frame) {
            Ok(_) => return true,
            Err(Errno::AGAIN | Errno::INTR) if !cable.is_closed() => {}
            Err(_) => return false,
        }
    }
}

fn receive(cable: &Cable, input: &OwnedFd, deliver: &impl Deliver) {
    // One byte more, by which a frame that is too long is seen.
    let mut bytes = vec![0; LENGTHS.end() + 1];
    while !cable.is_closed() {
        match rustix::net::recv(input, &mut bytes[..], RecvFlags::empty()) {
            Ok((len, _)) => {
                if let Err(Gone) = cable.take(bytes.get(..len).unwrap_or_default().to_vec(), deliver) {
                    return;
                }
            }
            // The timeout. Or an answer to an earlier datagram: nobody is there.
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNREFUSED) => {}
            Err(error) => {
                cable.line(format_args!("{error}"));
                cable.pause(CHECK_INTERVAL);
            }
        }
    }
}

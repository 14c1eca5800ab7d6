//! The TCP exchange of the `ibv_*_pingpong` tools: the client sends its address, the server connects its queue pair and
//! answers with its own, the client confirms with `done`; both close.
//!
//! After `pp_client_exch_dest` and `pp_server_exch_dest` in libibverbs/examples/rc_pingpong.c and uc_pingpong.c of rdma-core,
//! the same in versions 44.0 to 64.0. The tools read each message with one call: each is written with one here.

use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;

use super::address::{Address, AddressError, MESSAGE_LEN};

/// TCP port of the tools.
pub const DEFAULT_PORT: u16 = 18515;

/// What the client sends last, with its NUL.
const DONE: &[u8; 5] = b"done\0";
/// How long a client tries to reach a server that may be about to start.
const CONNECT_TIME: Duration = Duration::from_secs(5);
/// How long the peer may take for a message of the exchange.
const MESSAGE_TIME: Duration = Duration::from_secs(30);
/// Between two attempts to connect, and two looks at a socket.
const SLICE: Duration = Duration::from_millis(20);

/// What went wrong in the exchange.
#[derive(Debug)]
pub enum ExchangeError {
    /// The port cannot be listened on.
    Listen(u16, io::Error),
    /// No client came in time.
    NoClient(Duration),
    /// The name of the server cannot be resolved.
    Resolve(String, io::Error),
    /// Nobody listens there, or it is not reached.
    Connect(String, u16, io::Error),
    /// The peer closed before it had sent all of a message.
    Closed {
        /// What was awaited.
        awaited: &'static str,
        /// Bytes that came.
        got: usize,
        /// Bytes of the message.
        len: usize,
    },
    /// The peer is silent.
    Late {
        /// What was awaited.
        awaited: &'static str,
        /// Bytes that came.
        got: usize,
        /// Bytes of the message.
        len: usize,
        /// How long was waited.
        time: Duration,
    },
    /// Something else than `done` came at the end.
    NotDone(String),
    /// The peer's address is wrong.
    Address(AddressError),
    /// The connection failed.
    Io(&'static str, io::Error),
    /// The user stopped it.
    Stopped,
}

impl fmt::Display for ExchangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listen(port, error) => {
                write!(f, "TCP port {port} cannot be listened on: {error}; does another server run? -p takes another port")
            }
            Self::NoClient(time) => write!(f, "no client came within {} s; --wait takes another time", time.as_secs()),
            Self::Resolve(name, error) => write!(f, "{name}: {error}"),
            Self::Connect(name, port, error) => {
                write!(f, "{name}, TCP port {port}: {error}; start the server (without HOST) there first, with the same -p")
            }
            Self::Closed { awaited, got, len } => {
                write!(f, "the peer closed the connection after {got} of the {len} bytes of {awaited}; see what it says")
            }
            Self::Late { awaited, got, len, time } => {
                write!(f, "the peer sent {got} of the {len} bytes of {awaited} within {} s", time.as_secs())
            }
            Self::NotDone(text) => write!(f, "the client sent \"{text}\" instead of \"done\""),
            Self::Address(error) => error.fmt(f),
            Self::Io(what, error) => write!(f, "{what}: {error}"),
            Self::Stopped => f.write_str("stopped during the exchange of addresses"),
        }
    }
}

impl std::error::Error for ExchangeError {}

/// How a wait goes on: until when, and what is done meanwhile.
pub struct Wait<'a> {
    /// Ends every wait when it is set.
    pub stop: &'a AtomicBool,
    /// Called between two looks at the socket; its error ends the wait.
    pub idle: &'a mut dyn FnMut() -> Result<()>,
    /// How long a message may take: [`Wait::new`] sets 30 s.
    pub message_time: Duration,
    /// How long a server may be out of reach: [`Wait::new`] sets 5 s.
    pub connect_time: Duration,
}

impl<'a> Wait<'a> {
    /// The usual times.
    pub const fn new(stop: &'a AtomicBool, idle: &'a mut dyn FnMut() -> Result<()>) -> Self {
        Self { stop, idle, message_time: MESSAGE_TIME, connect_time: CONNECT_TIME }
    }

    fn pause(&mut self) -> Result<()> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(ExchangeError::Stopped.into());
        }
        (self.idle)()
    }

    /// Reads `len` bytes of `awaited`.
    fn read<const LEN: usize>(&mut self, stream: &mut TcpStream, awaited: &'static str) -> Result<[u8; LEN]> {
        let (start, mut bytes, mut got) = (Instant::now(), [0; LEN], 0);
        stream.set_read_timeout(Some(SLICE)).map_err(|error| ExchangeError::Io("the socket", error))?;
        while let Some(rest) = bytes.get_mut(got..).filter(|rest| !rest.is_empty()) {
            match stream.read(rest) {
                Ok(0) => return Err(ExchangeError::Closed { awaited, got, len: LEN }.into()),
                Ok(more) => got += more,
                Err(error) if is_transient(&error) => {
                    if start.elapsed() > self.message_time {
                        let time = self.message_time;
                        return Err(ExchangeError::Late { awaited, got, len: LEN, time }.into());
                    }
                    self.pause()?;
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                    return Err(ExchangeError::Closed { awaited, got, len: LEN }.into());
                }
                Err(error) => return Err(ExchangeError::Io(awaited, error).into()),
            }
        }
        Ok(bytes)
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

fn write(stream: &mut TcpStream, bytes: &[u8], what: &'static str) -> Result<(), ExchangeError> {
    // A few bytes into an empty socket buffer: it takes them at once, in one piece.
    stream.set_nodelay(true).and_then(|()| stream.write_all(bytes)).map_err(|error| ExchangeError::Io(what, error))
}

/// A server that waits for its client.
#[derive(Debug)]
pub struct Listener {
    inner: TcpListener,
}

impl Listener {
    /// Listens on a port of all addresses of this machine.
    ///
    /// # Errors
    /// The port is taken, or not allowed.
    pub fn bind(port: u16) -> Result<Self, ExchangeError> {
        // A socket of IPv6 takes IPv4 too, where the machine has IPv6 at all.
        let any = |ip: IpAddr| TcpListener::bind((ip, port));
        let inner = any(Ipv6Addr::UNSPECIFIED.into()).or_else(|error| match error.kind() {
            io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied => Err(error),
            _ => any(Ipv4Addr::UNSPECIFIED.into()),
        });
        Self::ready(port, inner)
    }

    /// Listens for a client in this process only.
    ///
    /// # Errors
    /// The port is taken, or not allowed.
    pub fn bind_loopback(port: u16) -> Result<Self, ExchangeError> {
        Self::ready(port, TcpListener::bind((Ipv4Addr::LOCALHOST, port)))
    }

    fn ready(port: u16, inner: io::Result<TcpListener>) -> Result<Self, ExchangeError> {
        let inner = inner.and_then(|inner| inner.set_nonblocking(true).map(|()| inner));
        inner.map(|inner| Self { inner }).map_err(|error| ExchangeError::Listen(port, error))
    }

    /// The port.
    ///
    /// # Errors
    /// The socket does not report it.
    pub fn port(&self) -> Result<u16, ExchangeError> {
        self.inner.local_addr().map(|addr| addr.port()).map_err(|error| ExchangeError::Io("the socket", error))
    }

    /// Waits for a client, at most for `time`, and for its address.
    ///
    /// # Errors
    /// No client came, or it said something else.
    pub fn accept(self, time: Duration, waiting: &mut Wait<'_>) -> Result<(ServerExchange, Address)> {
        let start = Instant::now();
        let mut stream = loop {
            match self.inner.accept() {
                Ok((stream, _)) => break stream,
                Err(error) if is_transient(&error) => {}
                Err(error) => return Err(ExchangeError::Io("accept", error).into()),
            }
            if start.elapsed() > time {
                return Err(ExchangeError::NoClient(time).into());
            }
            waiting.pause()?;
            std::thread::sleep(SLICE);
        };
        stream.set_nonblocking(false).map_err(|error| ExchangeError::Io("the socket", error))?;
        let message = waiting.read::<MESSAGE_LEN>(&mut stream, "its address")?;
        let address = Address::from_message(&message).map_err(ExchangeError::Address)?;
        Ok((ServerExchange { stream }, address))
    }
}

/// A server that knows its client's address.
#[derive(Debug)]
pub struct ServerExchange {
    stream: TcpStream,
}

impl ServerExchange {
    /// Sends this end's address. Its queue pair must be ready: the client's message may come at once.
    ///
    /// # Errors
    /// The connection failed.
    pub fn answer(&mut self, local: Address) -> Result<(), ExchangeError> {
        write(&mut self.stream, &local.to_message(), "the answer to the client")
    }

    /// Waits until the client has confirmed.
    ///
    /// # Errors
    /// It did not.
    pub fn confirm(mut self, waiting: &mut Wait<'_>) -> Result<()> {
        let bytes = waiting.read::<{ DONE.len() }>(&mut self.stream, "its confirmation")?;
        if &bytes == DONE {
            Ok(())
        } else {
            Err(ExchangeError::NotDone(String::from_utf8_lossy(&bytes).escape_default().to_string()).into())
        }
    }
}

/// A client that has sent its address.
#[derive(Debug)]
pub struct ClientExchange {
    stream: TcpStream,
}

impl ClientExchange {
    /// Connects to a server, which may start a few seconds later, and sends it this end's address.
    ///
    /// # Errors
    /// There is no such machine or nobody listens there.
    pub fn connect(host: &str, port: u16, local: Address, waiting: &mut Wait<'_>) -> Result<Self> {
        let start = Instant::now();
        let found = (host, port).to_socket_addrs().map_err(|error| ExchangeError::Resolve(host.into(), error))?;
        let addresses: Vec<SocketAddr> = found.collect();
        let mut stream = loop {
            let mut failure = io::Error::from(io::ErrorKind::AddrNotAvailable);
            let connected = addresses.iter().find_map(|address| {
                let left = waiting.connect_time.saturating_sub(start.elapsed()).max(SLICE);
                TcpStream::connect_timeout(address, left).map_err(|error| failure = error).ok()
            });
            match connected {
                Some(stream) => break stream,
                None if start.elapsed() < waiting.connect_time => {}
                None => return Err(ExchangeError::Connect(host.into(), port, failure).into()),
            }
            waiting.pause()?;
            std::thread::sleep(SLICE);
        };
        write(&mut stream, &local.to_message(), "the address for the server")?;
        Ok(Self { stream })
    }

    /// Waits for the server's address and confirms it.
    ///
    /// # Errors
    /// The server said something else, or nothing.
    pub fn finish(mut self, waiting: &mut Wait<'_>) -> Result<Address> {
        let message = waiting.read::<MESSAGE_LEN>(&mut self.stream, "its address")?;
        let address = Address::from_message(&message).map_err(ExchangeError::Address)?;
        write(&mut self.stream, DONE, "the confirmation for the server")?;
        Ok(address)
    }
}

//! TCP connections to an end on another machine.
//!
//! Every wait has an end, reacts to Ctrl-C, and calls a function of its caller meanwhile, which looks after the device.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

use crate::stop::Interrupted;

/// TCP port of perftest and of the `ibv_*_pingpong` tools.
pub const DEFAULT_PORT: u16 = 18515;

/// Interval at which a wait checks for Ctrl-C and calls its function.
pub const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Maximum time to connect to one address of the server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Error of a connection.
#[derive(Debug)]
pub enum ConnectionError {
    /// The address cannot be listened on.
    Listen {
        /// The address.
        at: String,
        /// The cause.
        error: io::Error,
    },
    /// No client connected in time.
    NoClient {
        /// The timeout.
        timeout: Duration,
    },
    /// The name of the server has no address.
    Resolve {
        /// The server.
        server: String,
        /// The cause.
        error: io::Error,
    },
    /// The server does not accept connections.
    Connect {
        /// The server.
        server: String,
        /// The cause, at the last address of the server.
        error: io::Error,
    },
    /// A socket operation failed.
    Socket(io::Error),
}

impl fmt::Display for ConnectionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listen { at, error } if error.kind() == io::ErrorKind::AddrInUse => {
                write!(f, "listening at {at}: another program uses this port; choose another with --port (-p)")
            }
            Self::Listen { at, error } => write!(f, "listening at {at}: {error}"),
            Self::NoClient { timeout } => {
                write!(f, "no client connected within {} s; --wait takes another time", timeout.as_secs())
            }
            Self::Resolve { server, error } => write!(f, "the address {server}: {error}"),
            Self::Connect { server, error } => write!(f, "no server at {server}: {error}; start it there first"),
            Self::Socket(error) => write!(f, "the connection to the peer: {error}"),
        }
    }
}

impl std::error::Error for ConnectionError {}

impl From<io::Error> for ConnectionError {
    fn from(error: io::Error) -> Self {
        Self::Socket(error)
    }
}

/// What a wait does besides waiting.
pub struct Wait<'a> {
    /// Ends the wait when it is set.
    stop: &'a AtomicBool,
    /// Called at intervals. Its error ends the wait.
    idle: &'a mut dyn FnMut() -> Result<()>,
}

impl<'a> Wait<'a> {
    /// Creates a wait that ends early if `stop` is set or `idle` fails.
    pub const fn new(stop: &'a AtomicBool, idle: &'a mut dyn FnMut() -> Result<()>) -> Self {
        Self { stop, idle }
    }

    /// Checks the stop flag, and calls the function.
    ///
    /// # Errors
    /// [`Interrupted`], or the error of the function.
    pub fn check(&mut self) -> Result<()> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(Interrupted.into());
        }
        (self.idle)()
    }
}

/// Returns whether an operation can be repeated: there was no data in time, or a signal interrupted it.
pub fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

/// A socket that listens for one client.
#[derive(Debug)]
pub struct Listener {
    inner: TcpListener,
}

impl Listener {
    /// Listens at an address, `HOST:PORT`.
    ///
    /// # Errors
    /// The address cannot be listened on.
    pub fn bind(at: &str) -> Result<Self, ConnectionError> {
        Self::new(at.into(), TcpListener::bind(at))
    }

    /// Listens on a port of all addresses of this machine, IPv6 and IPv4.
    ///
    /// # Errors
    /// The port cannot be listened on.
    pub fn bind_any(port: u16) -> Result<Self, ConnectionError> {
        // A socket of IPv6 accepts IPv4 too. A machine may have no IPv6.
        let any = |ip: IpAddr| TcpListener::bind((ip, port));
        let inner = any(Ipv6Addr::UNSPECIFIED.into()).or_else(|error| match error.kind() {
            io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied => Err(error),
            _ => any(Ipv4Addr::UNSPECIFIED.into()),
        });
        Self::new(format!("TCP port {port}"), inner)
    }

    fn new(at: String, inner: io::Result<TcpListener>) -> Result<Self, ConnectionError> {
        let inner = inner.and_then(|inner| inner.set_nonblocking(true).map(|()| inner));
        inner.map(|inner| Self { inner }).map_err(|error| ConnectionError::Listen { at, error })
    }

    /// Returns the address of the socket.
    ///
    /// # Errors
    /// The system does not report it.
    pub fn local_addr(&self) -> Result<SocketAddr, ConnectionError> {
        Ok(self.inner.local_addr()?)
    }

    /// Waits for a client, up to `timeout` if there is one. The connections of further clients are refused from then on.
    ///
    /// # Errors
    /// No client connected in time, or the wait was ended.
    pub fn accept(self, timeout: Option<Duration>, wait: &mut Wait<'_>) -> Result<TcpStream> {
        let start = Instant::now();
        loop {
            match self.inner.accept() {
                Ok((stream, _)) => return Ok(connected(stream)?),
                Err(error) if is_transient(&error) => {}
                Err(error) => return Err(ConnectionError::Socket(error).into()),
            }
            if let Some(timeout) = timeout.filter(|timeout| start.elapsed() > *timeout) {
                return Err(ConnectionError::NoClient { timeout }.into());
            }
            wait.check()?;
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

/// Connects to a server, `HOST:PORT`. Retries for `retry_time`, because the server may be about to start.
///
/// # Errors
/// The server has no address or does not accept, or the wait was ended.
pub fn connect(server: &str, retry_time: Duration, wait: &mut Wait<'_>) -> Result<TcpStream> {
    let (sender, receiver) = mpsc::channel();
    let name = server.to_owned();
    // Neither the lookup of a name nor `connect` can be cancelled. A thread that is left behind ends by itself.
    std::thread::spawn(move || sender.send(connect_until(&name, Instant::now(), retry_time)));
    loop {
        wait.check()?;
        match receiver.recv_timeout(POLL_INTERVAL) {
            Ok(result) => return Ok(connected(result?)?),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(anyhow!("connecting to {server} ended without a result")),
        }
    }
}

fn connect_until(server: &str, start: Instant, retry_time: Duration) -> Result<TcpStream, ConnectionError> {
    let resolved = server.to_socket_addrs();
    let addresses: Vec<_> = resolved.map_err(|error| ConnectionError::Resolve { server: server.into(), error })?.collect();
    loop {
        let mut error = io::Error::from(io::ErrorKind::AddrNotAvailable);
        for address in &addresses {
            match TcpStream::connect_timeout(address, CONNECT_TIMEOUT) {
                Ok(stream) => return Ok(stream),
                Err(refusal) => error = refusal,
            }
        }
        if start.elapsed() >= retry_time {
            return Err(ConnectionError::Connect { server: server.into(), error });
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Returns `HOST:PORT` of a text that may lack the host or the port. Defaults are `default_host` and `port`.
///
/// # Errors
/// The port is invalid, or there is no host.
pub fn host_and_port(text: &str, default_host: &str, port: u16) -> Result<String, String> {
    if text.parse::<std::net::Ipv6Addr>().is_ok() {
        return Ok(format!("[{text}]:{port}"));
    }
    let (host, port) = match text.rsplit_once(':') {
        // An IPv6 address in brackets, without a port.
        Some(_) if text.ends_with(']') => (text, port),
        Some((host, after)) => (host, after.parse::<u16>().map_err(|_| format!("{text}: {after:?} is not a TCP port"))?),
        None => (text, port),
    };
    match (host, default_host) {
        ("", "") => Err(format!("{text:?} names no host")),
        ("", _) => Ok(format!("{default_host}:{port}")),
        _ => Ok(format!("{host}:{port}")),
    }
}

/// Makes a new connection send each message at once.
fn connected(stream: TcpStream) -> Result<TcpStream, ConnectionError> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_ends_every_wait() {
        let stop = AtomicBool::new(true);
        let started = Instant::now();
        let mut idle = || Ok(());
        let mut wait = Wait::new(&stop, &mut idle);
        // An address for documentation (RFC 5737), which does not answer.
        assert!(connect("192.0.2.1:18515", Duration::ZERO, &mut wait).unwrap_err().is::<Interrupted>());
        let listener = Listener::bind("127.0.0.1:0").unwrap();
        assert!(listener.accept(None, &mut wait).unwrap_err().is::<Interrupted>());
        assert!(started.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn an_error_of_the_idle_function_ends_the_wait() {
        let stop = AtomicBool::new(false);
        let mut idle = || Err(anyhow!("device gone"));
        let listener = Listener::bind_any(0).unwrap();
        let error = listener.accept(None, &mut Wait::new(&stop, &mut idle)).unwrap_err();
        assert_eq!(error.to_string(), "device gone");
    }

    #[test]
    fn a_client_retries_until_a_server_listens() {
        let stop = AtomicBool::new(false);
        let address = Listener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let server = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            TcpListener::bind(address).unwrap().accept().unwrap();
        });
        let mut checks = 0;
        let mut idle = || {
            checks += 1;
            Ok(())
        };
        let server_address = address.to_string();
        connect(&server_address, Duration::from_secs(20), &mut Wait::new(&stop, &mut idle)).unwrap();
        server.join().unwrap();
        assert!(checks > 5, "{checks}");
        let mut idle = || Ok(());
        let error = connect(&server_address, Duration::ZERO, &mut Wait::new(&stop, &mut idle)).unwrap_err().to_string();
        assert!(error.contains(&format!("no server at {server_address}")) && error.contains("refused"), "{error}");
    }

    #[test]
    fn a_port_in_use_is_an_error_with_the_remedy() {
        let first = Listener::bind_any(0).unwrap();
        let error = Listener::bind_any(first.local_addr().unwrap().port()).unwrap_err();
        assert!(error.to_string().contains("choose another with --port"), "{error}");
    }

    #[test]
    fn a_wait_for_a_client_times_out() {
        let stop = AtomicBool::new(false);
        let mut idle = || Ok(());
        let listener = Listener::bind_any(0).unwrap();
        let error = listener.accept(Some(Duration::from_millis(50)), &mut Wait::new(&stop, &mut idle)).unwrap_err();
        assert!(error.to_string().contains("--wait"), "{error}");
    }

    #[test]
    fn a_name_without_an_address_is_an_error_with_the_name() {
        let stop = AtomicBool::new(false);
        let mut idle = || Ok(());
        let error = connect("no.such.machine.invalid:1", Duration::ZERO, &mut Wait::new(&stop, &mut idle)).unwrap_err();
        assert!(error.to_string().starts_with("the address no.such.machine.invalid:1: "), "{error}");
    }

    #[test]
    fn missing_hosts_and_ports_of_addresses_get_defaults() {
        for (text, wanted) in [
            ("", "0.0.0.0:18515"),
            ("host", "host:18515"),
            ("host:1", "host:1"),
            ("10.0.0.1", "10.0.0.1:18515"),
            ("::1", "[::1]:18515"),
            ("[::1]:5", "[::1]:5"),
            ("[::1]", "[::1]:18515"),
            (":1", "0.0.0.0:1"),
        ] {
            assert_eq!(host_and_port(text, "0.0.0.0", 18515).as_deref(), Ok(wanted));
        }
        for (text, part) in [
            (":99999", "\"99999\" is not a TCP port"),
            ("host:", "\"\" is not a TCP port"),
            ("h:ssh", "\"ssh\" is not a TCP port"),
        ] {
            assert!(host_and_port(text, "0.0.0.0", 18515).unwrap_err().contains(part), "{text}");
        }
        assert!(host_and_port(":1", "", 18515).unwrap_err().contains("names no host"));
    }
}

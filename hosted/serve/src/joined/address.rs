//! Where a joined wire leads, as text.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// A wire of another program that joins the Ethernet of a server.
///
/// ```
/// use bareverbs_serve::{JoinedWire, StreamAddress};
///
/// let wire: JoinedWire = "stream:tcp:192.0.2.7:5500".parse()?;
/// assert_eq!(wire, JoinedWire::Stream { address: StreamAddress::Tcp("192.0.2.7:5500".into()), listens: false });
/// for text in ["stream:unix:/run/lan,server=on", "dgram:unix:/run/a,/run/b", "dgram:udp:127.0.0.1:5500,[::1]:5501", "tap:cx0"] {
///     assert_eq!(text.parse::<JoinedWire>()?.to_string(), text);
/// }
/// # Ok::<(), bareverbs_serve::JoinedWireError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum JoinedWire {
    /// A connection on which each frame follows its length, four bytes in network byte order: `-netdev stream` of QEMU, and
    /// its older `-netdev socket`. Text: `stream:unix:PATH` or `stream:tcp:HOST:PORT`, then `,server=on` if it listens.
    Stream {
        /// The other end, or where this one listens.
        address: StreamAddress,
        /// Whether this end waits for the other one to connect. Otherwise it connects, again and again.
        listens: bool,
    },
    /// A frame in each datagram: `-netdev dgram` of QEMU. Text: `dgram:unix:LOCAL,REMOTE` or
    /// `dgram:udp:HOST:PORT,HOST:PORT`, local address first.
    Datagram(DatagramAddress),
    /// A TAP interface of this machine, whose network stack is the other end. Text: `tap:NAME`. It is created if there is none,
    /// which needs the capability `CAP_NET_ADMIN`, and deleted with the server. One that belongs to the user of the server needs
    /// nothing and stays.
    Tap(TapName),
}

/// The name of a TAP interface: 1 to 15 bytes without white space, `/`, `:` and `%`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TapName(String);

impl TapName {
    /// Returns the name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TapName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for TapName {
    type Err = JoinedWireError;

    /// As the kernel takes it (`dev_valid_name`), without templates like `tap%d`.
    fn from_str(text: &str) -> Result<Self, JoinedWireError> {
        let is_invalid = |char: char| char.is_whitespace() || matches!(char, '/' | ':' | '%' | '\0');
        if !(1..16).contains(&text.len()) || text.contains(is_invalid) || matches!(text, "." | "..") {
            return Err(JoinedWireError::Interface);
        }
        Ok(Self(text.into()))
    }
}

/// The address of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StreamAddress {
    /// The path of a Unix socket.
    Unix(PathBuf),
    /// Host and port of TCP, as in `localhost:5500` or `[::1]:5500`.
    Tcp(String),
}

/// The addresses of both ends of datagrams.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DatagramAddress {
    /// Paths of Unix sockets.
    Unix {
        /// Path of the socket that is created here.
        local: PathBuf,
        /// Path of the peer's socket.
        remote: PathBuf,
    },
    /// Hosts and ports of UDP. Datagrams of others than the peer are not received.
    Udp {
        /// Address here.
        local: String,
        /// Address of the peer.
        remote: String,
    },
}

/// A text that is no [`JoinedWire`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum JoinedWireError {
    /// It does not begin with a kind of socket.
    Kind,
    /// Its address, or one of both, is not there.
    Address,
    /// An address of TCP or UDP does not end with a port.
    Port,
    /// No interface can have this name.
    Interface,
    /// What follows a comma is neither `server=on` nor `server=off`.
    Option,
}

impl fmt::Display for JoinedWireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kind => {
                "as in: stream:unix:PATH, stream:tcp:HOST:PORT, dgram:unix:LOCAL,REMOTE, dgram:udp:HOST:PORT,HOST:PORT, tap:NAME"
            }
            Self::Address => "an address is missing",
            Self::Port => "an address of TCP or UDP is HOST:PORT",
            Self::Interface => "the name of an interface has 1 to 15 bytes without white space, '/', ':' and '%'",
            Self::Option => "there is no option but server=on and server=off",
        })
    }
}

impl std::error::Error for JoinedWireError {}

/// Returns a path as it is, unless it is empty.
fn path(text: &str) -> Result<PathBuf, JoinedWireError> {
    if text.is_empty() { Err(JoinedWireError::Address) } else { Ok(text.into()) }
}

/// Returns HOST:PORT as it is.
fn host(text: &str) -> Result<String, JoinedWireError> {
    let (host, port) = text.rsplit_once(':').ok_or(JoinedWireError::Port)?;
    if host.is_empty() {
        return Err(JoinedWireError::Address);
    }
    port.parse::<u16>().map_err(|_| JoinedWireError::Port)?;
    Ok(text.into())
}

impl FromStr for JoinedWire {
    type Err = JoinedWireError;

    fn from_str(text: &str) -> Result<Self, JoinedWireError> {
        if let Some(name) = text.strip_prefix("tap:") {
            return Ok(Self::Tap(name.parse()?));
        }
        let mut words = text.splitn(3, ':');
        let (kind, family, rest) = (words.next(), words.next(), words.next().unwrap_or_default());
        let stream = |parse: fn(&str) -> Result<StreamAddress, JoinedWireError>| {
            let (rest, listens) = match rest.split_once(",server=") {
                None => (rest, false),
                Some((rest, "on")) => (rest, true),
                Some((rest, "off")) => (rest, false),
                Some(_) => return Err(JoinedWireError::Option),
            };
            if rest.contains(',') {
                return Err(JoinedWireError::Option);
            }
            Ok(Self::Stream { address: parse(rest)?, listens })
        };
        let both = || rest.split_once(',').ok_or(JoinedWireError::Address);
        match (kind, family) {
            (Some("stream"), Some("unix")) => stream(|rest| path(rest).map(StreamAddress::Unix)),
            (Some("stream"), Some("tcp")) => stream(|rest| host(rest).map(StreamAddress::Tcp)),
            (Some("dgram"), Some("unix")) => {
                let (local, remote) = both()?;
                Ok(Self::Datagram(DatagramAddress::Unix { local: path(local)?, remote: path(remote)? }))
            }
            (Some("dgram"), Some("udp")) => {
                let (local, remote) = both()?;
                Ok(Self::Datagram(DatagramAddress::Udp { local: host(local)?, remote: host(remote)? }))
            }
            _ => Err(JoinedWireError::Kind),
        }
    }
}

impl fmt::Display for JoinedWire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stream { address, listens } => {
                match address {
                    StreamAddress::Unix(path) => write!(f, "stream:unix:{}", path.display())?,
                    StreamAddress::Tcp(address) => write!(f, "stream:tcp:{address}")?,
                }
                f.write_str(if *listens { ",server=on" } else { "" })
            }
            Self::Datagram(DatagramAddress::Unix { local, remote }) => {
                write!(f, "dgram:unix:{},{}", local.display(), remote.display())
            }
            Self::Datagram(DatagramAddress::Udp { local, remote }) => write!(f, "dgram:udp:{local},{remote}"),
            Self::Tap(name) => write!(f, "tap:{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_wire_is_refused_with_the_reason() {
        use JoinedWireError::{Address, Interface, Kind, Option, Port};
        for (text, error) in [
            ("", Kind),
            ("tap", Kind),
            ("tap:", Interface),
            ("tap:..", Interface),
            ("tap:a b", Interface),
            ("tap:a/b", Interface),
            ("tap:a:b", Interface),
            ("tap:tap%d", Interface),
            ("tap:a\0b", Interface),
            ("tap:0123456789abcdef", Interface),
            ("stream", Kind),
            ("stream:udp:a:1", Kind),
            ("dgram:tcp:a:1,b:2", Kind),
            ("stream:unix:", Address),
            ("stream:tcp::1", Address),
            ("dgram:unix:/a", Address),
            ("dgram:unix:/a,", Address),
            ("dgram:unix:,/b", Address),
            ("dgram:udp:a:1", Address),
            ("stream:tcp:a", Port),
            ("stream:tcp:a:", Port),
            ("stream:tcp:a:65536", Port),
            ("dgram:udp:a:1,b", Port),
            ("stream:unix:/a,server=yes", Option),
            ("stream:unix:/a,listen", Option),
        ] {
            assert_eq!(text.parse::<JoinedWire>(), Err(error), "{text}");
        }
        let off: JoinedWire = "stream:unix:/a,server=off".parse().unwrap();
        assert_eq!(off, JoinedWire::Stream { address: StreamAddress::Unix("/a".into()), listens: false });
    }
}

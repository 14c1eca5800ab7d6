//! Errors of the server.

use std::fmt;
use std::io;
use std::path::PathBuf;

use bareverbs_sim::ConfigError;

use crate::binding::BindingError;
use crate::config::MAX_LID;

/// Maximum length of a socket's path in bytes: 108 with the terminating zero (unix(7)).
pub(crate) const MAX_SOCKET_PATH: usize = 107;

/// The devices are no longer served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gone;

/// Why a server could not start.
#[derive(Debug)]
#[non_exhaustive]
pub enum ServeError {
    /// Another server listens on the path.
    InUse(PathBuf),
    /// The path names a file that is not a socket.
    NotASocket(PathBuf),
    /// The folder of the path does not exist.
    NoFolder(PathBuf),
    /// The path is too long for the address of a socket.
    TooLong(PathBuf),
    /// The same path was given twice.
    Twice(PathBuf),
    /// No device to serve.
    NoDevices,
    /// The LID of a device is not between 1 and [`MAX_LID`].
    Lid(u16),
    /// The configuration of a device is invalid.
    Config {
        /// LID of the device.
        lid: u16,
        /// The invalid part of the configuration.
        error: ConfigError,
    },
    /// The devices cannot be on one wire.
    Wire(ConfigError),
    /// A managed port and a link to another server: each server keeps LIDs unique among its own ports alone.
    LinkedManaged {
        /// LID of the first managed device.
        lid: u16,
    },
    /// The same LID was given to two devices.
    LidTwice(u16),
    /// The limit of file descriptors is too low for the devices.
    Descriptors {
        /// The limit of this process.
        limit: u64,
        /// The number that the devices need.
        least: u64,
    },
    /// A fault names a LID that no device has.
    NoSuchLid(u16),
    /// Wires join the Ethernet of a server without Ethernet ports.
    JoinedInfiniBand,
    /// The port of this name cannot be bound to its addresses.
    Binding(String, BindingError),
    /// The socket could not be created.
    Socket(PathBuf, String),
    /// The socket of a joined wire could not be created for this address.
    Address(String, io::Error),
    /// `/dev/net/tun`, by which programs reach TAP interfaces, could not be opened.
    Tun(io::Error),
    /// The TAP interface of this name could not be created or attached to.
    Tap(String, io::Error),
    /// The system has no asynchronous I/O, which signals clients without blocking.
    Interrupts(io::Error),
    /// A thread could not be started.
    Thread(io::Error),
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUse(path) => write!(f, "{}: another server listens there", path.display()),
            Self::NotASocket(path) => write!(f, "{}: is there and is not a socket", path.display()),
            Self::NoFolder(path) => write!(f, "{}: no such folder", path.display()),
            Self::TooLong(path) => {
                write!(f, "{}: longer than the {MAX_SOCKET_PATH} bytes that the path of a socket may have", path.display())
            }
            Self::Twice(path) => write!(f, "{}: given twice", path.display()),
            Self::NoDevices => write!(f, "no device to serve"),
            Self::Lid(lid) => write!(f, "LID {lid:#x}: not between 1 and {MAX_LID:#x}"),
            Self::Config { lid, error } => write!(f, "the device with LID {lid}: {error}"),
            Self::Wire(error) => write!(f, "{error}"),
            Self::LinkedManaged { lid } => {
                write!(
                    f,
                    "the device with LID {lid:#x} is managed: the wire of managed ports cannot be joined to another server's"
                )
            }
            Self::LidTwice(lid) => write!(f, "two devices have LID {lid:#x}"),
            Self::Descriptors { limit, least } => {
                write!(f, "that many devices need {least} file descriptors, and {limit} are allowed (ulimit -Hn, LimitNOFILE=)")
            }
            Self::NoSuchLid(lid) => write!(f, "a fault for LID {lid}: no device has it"),
            Self::JoinedInfiniBand => write!(f, "wires of others can join Ethernet ports alone, and there are none"),
            Self::Binding(port, error) => write!(f, "port {port}: {error}"),
            Self::Socket(path, error) => write!(f, "{}: {error}", path.display()),
            Self::Address(address, error) => write!(f, "{address}: {error}"),
            Self::Tun(error) => write!(f, "/dev/net/tun: {error}; TAP interfaces need it, and the module tun of the kernel"),
            Self::Tap(name, error) => match error.raw_os_error() {
                Some(libc::EPERM) => write!(
                    f,
                    "tap:{name}: creating an interface needs CAP_NET_ADMIN; one that belongs to this user does not: \
                     sudo ip tuntap add mode tap user $USER name {name}"
                ),
                Some(libc::EBUSY) => write!(f, "tap:{name}: another program is attached to it"),
                Some(libc::EINVAL) => write!(f, "tap:{name}: an interface of this name is there and is no TAP interface"),
                _ => write!(f, "tap:{name}: {error}"),
            },
            Self::Interrupts(error) => write!(f, "interrupts need asynchronous input and output (io_setup): {error}"),
            Self::Thread(error) => write!(f, "cannot start a thread: {error}"),
        }
    }
}

impl std::error::Error for ServeError {}

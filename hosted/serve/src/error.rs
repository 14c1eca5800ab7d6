//! Why serving could not start.

use std::fmt;
use std::io;
use std::path::PathBuf;

use bareverbs_sim::ConfigError;

use crate::config::MAX_LID;

/// Bytes that the path of a socket may have: 108 with the zero after it (unix(7)).
pub(crate) const MAX_SOCKET_PATH: usize = 107;

/// The devices are no longer served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gone;

/// Why serving could not start.
#[derive(Debug)]
pub enum ServeError {
    /// Another server listens on the path.
    InUse(PathBuf),
    /// Something that is not a socket lies at the path.
    NotASocket(PathBuf),
    /// The folder of the path is not there.
    NoFolder(PathBuf),
    /// The path is longer than a socket's address may be.
    TooLong(PathBuf),
    /// The same path was given twice.
    Twice(PathBuf),
    /// No device to serve.
    NoDevices,
    /// A device with a LID that no port can have.
    Lid(u16),
    /// A device cannot be as its configuration says.
    Config {
        /// Its LID.
        lid: u16,
        /// What it cannot be.
        error: ConfigError,
    },
    /// The same LID was given to two devices.
    LidTwice(u16),
    /// Fewer file descriptors than the devices need.
    Descriptors {
        /// As many as this process may have.
        limit: u64,
        /// As many as they need.
        least: u64,
    },
    /// A fault is for a device that there is not.
    NoSuchLid(u16),
    /// The socket could not be made.
    Socket(PathBuf, String),
    /// The system cannot signal clients without waiting for them.
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
            Self::LidTwice(lid) => write!(f, "two devices have LID {lid:#x}"),
            Self::Descriptors { limit, least } => {
                write!(f, "that many devices need {least} file descriptors, and {limit} are allowed (ulimit -Hn, LimitNOFILE=)")
            }
            Self::NoSuchLid(lid) => write!(f, "a fault for LID {lid}: no device has it"),
            Self::Socket(path, error) => write!(f, "{}: {error}", path.display()),
            Self::Interrupts(error) => write!(f, "interrupts need asynchronous input and output (io_setup): {error}"),
            Self::Thread(error) => write!(f, "cannot start a thread: {error}"),
        }
    }
}

impl std::error::Error for ServeError {}

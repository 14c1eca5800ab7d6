//! Why serving could not start.

use std::fmt;
use std::io;
use std::path::PathBuf;

use bareverbs_sim::LimitError;

use super::values::LAST_LID;

/// Bytes that the path of a socket may have: 108 with the zero after it (unix(7)).
pub(super) const LONGEST_PATH: usize = 107;

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
    /// More devices than LIDs that may be given to them.
    TooMany,
    /// A limit that the device cannot have.
    Limit(&'static str, LimitError),
    /// Less memory than the devices need.
    Memory {
        /// Bytes that they need.
        least: u64,
    },
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
    /// The trace could not be begun; the file's path, if there is one.
    Trace(Option<PathBuf>, io::Error),
    /// The recording could not be made.
    Recording(PathBuf, io::Error),
    /// The system cannot signal clients without waiting for them.
    Interrupts(io::Error),
    /// Ctrl-C cannot be caught.
    Signal(ctrlc::Error),
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
                write!(f, "{}: longer than the {LONGEST_PATH} bytes that the path of a socket may have", path.display())
            }
            Self::Twice(path) => write!(f, "{}: given twice", path.display()),
            Self::TooMany => write!(f, "the devices' LIDs would pass {LAST_LID:#x}"),
            Self::Limit(name, error) => write!(f, "limit {name}: {error}"),
            Self::Memory { least } => write!(f, "so many devices need a memory limit of {}M at least", least >> 20),
            Self::Descriptors { limit, least } => {
                write!(f, "so many devices need {least} file descriptors, and {limit} are allowed (ulimit -Hn, LimitNOFILE=)")
            }
            Self::NoSuchLid(lid) => write!(f, "a fault for LID {lid}: no device has it"),
            Self::Socket(path, error) => write!(f, "{}: {error}", path.display()),
            Self::Trace(None, error) => write!(f, "trace: {error}"),
            Self::Trace(Some(path), error) => write!(f, "trace: {}: {error}", path.display()),
            Self::Recording(path, error) => write!(f, "recording: {}: {error}", path.display()),
            Self::Interrupts(error) => write!(f, "interrupts need asynchronous input and output (io_setup): {error}"),
            Self::Signal(error) => write!(f, "cannot catch Ctrl-C: {error}"),
            Self::Thread(error) => write!(f, "cannot start a thread: {error}"),
        }
    }
}

impl std::error::Error for ServeError {}

//! The Unix sockets: creates them, serves one client after another, and removes them.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::error::{MAX_SOCKET_PATH, ServeError};
use crate::log::{Log, RateLimited};
use crate::pci_function::PciFunction;
use crate::protocol::Connection;

/// Interval between attempts of a listener that fails to accept.
pub(crate) const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// A socket path of this process: removed when dropped.
pub(crate) struct Claim {
    path: PathBuf,
}

impl Drop for Claim {
    fn drop(&mut self) {
        // Another process may have removed it.
        let _ = fs::remove_file(&self.path);
    }
}

/// Maximum number of clients that wait to be accepted.
const BACKLOG: i32 = 16;

/// Creates a listening socket with the permissions `mode`, or with those of the file mode creation mask.
///
/// # Errors
/// The path is in use or not usable, or the socket could not be created.
pub(crate) fn listen(path: &Path, mode: Option<u32>) -> Result<(UnixListener, Claim), ServeError> {
    // No client can connect before it listens.
    let (socket, claim) = bind(path, mode, SocketType::STREAM)?;
    rustix::net::listen(&socket, BACKLOG).map_err(|error| ServeError::Socket(path.to_path_buf(), error.to_string()))?;
    Ok((UnixListener::from(socket), claim))
}

/// Creates a socket for datagrams with the permissions `mode`, or with those of the file mode creation mask.
///
/// # Errors
/// The path is in use or not usable, or the socket could not be created.
pub(crate) fn bind_datagram(path: &Path, mode: Option<u32>) -> Result<(OwnedFd, Claim), ServeError> {
    bind(path, mode, SocketType::DGRAM)
}

fn bind(path: &Path, mode: Option<u32>, kind: SocketType) -> Result<(OwnedFd, Claim), ServeError> {
    check_path(path)?;
    clear_path(path)?;
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::AddrInUse => ServeError::InUse(path.to_path_buf()),
        _ => ServeError::Socket(path.to_path_buf(), error.to_string()),
    };
    let family = AddressFamily::UNIX;
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None).map_err(|error| failed(error.into()))?;
    let address = SocketAddrUnix::new(path).map_err(|error| failed(error.into()))?;
    rustix::net::bind(&socket, &address).map_err(|error| failed(error.into()))?;
    let claim = Claim { path: path.to_path_buf() };
    if let Some(mode) = mode {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(failed)?;
    }
    Ok((socket, claim))
}

/// Checks that a path is short enough for a socket, and that its folder exists.
pub(crate) fn check_path(path: &Path) -> Result<(), ServeError> {
    if path.as_os_str().len() > MAX_SOCKET_PATH {
        return Err(ServeError::TooLong(path.to_path_buf()));
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    match folder.filter(|folder| !folder.is_dir()) {
        Some(folder) => Err(ServeError::NoFolder(folder.to_path_buf())),
        None => Ok(()),
    }
}

/// Removes a stale socket of a server that no longer runs.
fn clear_path(path: &Path) -> Result<(), ServeError> {
    let there = match fs::symlink_metadata(path) {
        Ok(there) => there,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(ServeError::Socket(path.to_path_buf(), error.to_string())),
    };
    if !there.file_type().is_socket() {
        return Err(ServeError::NotASocket(path.to_path_buf()));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(|error| ServeError::Socket(path.to_path_buf(), error.to_string()))
        }
        _ => Err(ServeError::InUse(path.to_path_buf())),
    }
}

/// Serves one client after another for as long as the process runs.
pub(crate) fn serve(listener: &UnixListener, mut function: PciFunction, log: Log) {
    // A rate limit of its own: connections are logged even if a client has exhausted that of its other lines.
    let lines = RateLimited::new(function.name().to_owned(), log);
    loop {
        let served = listener.accept().and_then(|(stream, _)| {
            function.memory().connect(stream.try_clone()?);
            Ok(Connection::new(stream).serve(&mut function))
        });
        let memory_lost = function.memory().is_lost();
        let Ok(left) = function.disconnect() else { return };
        match served {
            Ok(_) if memory_lost => lines.line(format_args!("client given up, {left}")),
            Ok(Ok(())) => lines.line(format_args!("client gone, {left}")),
            Ok(Err(broken)) => lines.line(format_args!("client lost ({broken}), {left}")),
            Err(error) => {
                lines.line(format_args!("no client can connect ({error})"));
                thread::sleep(ACCEPT_RETRY_INTERVAL);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_in_use_is_named_and_a_stale_socket_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("device");
        let (server, claim) = listen(&path, None).unwrap();
        assert!(matches!(listen(&path, None), Err(ServeError::InUse(_))));
        // As after a kill: the listener is closed, the file is left.
        let left = folder.path().join("left");
        drop(std::os::unix::net::UnixListener::bind(&left).unwrap());
        let (_second, second_claim) = listen(&left, None).unwrap();
        drop(claim);
        drop(server);
        assert!(!path.exists() && left.exists());
        drop(second_claim);
        assert!(!left.exists());
    }

    #[test]
    fn the_socket_has_the_requested_mode() {
        let folder = tempfile::tempdir().unwrap();
        for mode in [0o600, 0o660, 0o666] {
            let path = folder.path().join(format!("{mode:o}"));
            let (_listener, _claim) = listen(&path, Some(mode)).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, mode);
        }
    }

    #[test]
    fn a_file_that_is_not_a_socket_is_not_removed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "x").unwrap();
        assert!(matches!(listen(&file, None), Err(ServeError::NotASocket(_))));
        assert!(file.exists());
        assert!(matches!(listen(&folder.path().join("no/device"), None), Err(ServeError::NoFolder(_))));
    }
}

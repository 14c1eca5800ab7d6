//! The sockets: made, served one client after another, removed.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixStream;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use vfio_user::Server;

use super::error::{LONGEST_PATH, ServeError};
use super::function::{self, Function};

/// How long a listener that fails rests before it is asked again.
const REST: Duration = Duration::from_millis(100);

/// A socket path of this process: gone when dropped.
pub(crate) struct Claim {
    path: PathBuf,
}

impl Drop for Claim {
    fn drop(&mut self) {
        // Someone else may have removed it.
        let _ = fs::remove_file(&self.path);
    }
}

/// Makes the socket of one device.
pub(crate) fn listen(path: &Path, vectors: u16) -> Result<(Server, Claim), ServeError> {
    check_path(path)?;
    clear_path(path)?;
    let server = Server::new(path, true, function::interrupts(vectors), function::regions()).map_err(|error| match error {
        vfio_user::Error::SocketPathExists => ServeError::InUse(path.to_path_buf()),
        vfio_user::Error::SocketBind(error) => ServeError::Socket(path.to_path_buf(), error.to_string()),
        error => ServeError::Socket(path.to_path_buf(), error.to_string()),
    })?;
    Ok((server, Claim { path: path.to_path_buf() }))
}

/// Whether a socket may be made there at all.
pub(crate) fn check_path(path: &Path) -> Result<(), ServeError> {
    if path.as_os_str().len() > LONGEST_PATH {
        return Err(ServeError::TooLong(path.to_path_buf()));
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    match folder.filter(|folder| !folder.is_dir()) {
        Some(folder) => Err(ServeError::NoFolder(folder.to_path_buf())),
        None => Ok(()),
    }
}

/// Removes a socket that a server left which no longer runs.
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
pub(crate) fn serve(name: &str, server: &Server, mut function: Function) {
    loop {
        // The protocol's library gives up by panic on some malformed messages: that ends the client, not the device.
        let served = panic::catch_unwind(AssertUnwindSafe(|| server.run(&mut function)));
        let Ok(left) = function.disconnect() else { return };
        match &served {
            Ok(Ok(())) => super::messages::line(format!("{name}: client gone, {left}")),
            Ok(Err(error)) => super::messages::line(format!("{name}: client lost ({error}), {left}")),
            Err(_) => super::messages::line(format!("{name}: client sent what the protocol does not allow, {left}")),
        }
        if !matches!(served, Ok(Ok(()))) {
            thread::sleep(REST);
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
        let (server, claim) = listen(&path, 4).unwrap();
        assert!(matches!(listen(&path, 4), Err(ServeError::InUse(_))));
        // As after a kill: the listener is gone, the file is not.
        let left = folder.path().join("left");
        drop(std::os::unix::net::UnixListener::bind(&left).unwrap());
        let (_second, second_claim) = listen(&left, 4).unwrap();
        drop(claim);
        drop(server);
        assert!(!path.exists() && left.exists());
        drop(second_claim);
        assert!(!left.exists());
    }

    #[test]
    fn what_is_not_a_socket_stays() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "x").unwrap();
        assert!(matches!(listen(&file, 4), Err(ServeError::NotASocket(_))));
        assert!(file.exists());
        assert!(matches!(listen(&folder.path().join("no/device"), 4), Err(ServeError::NoFolder(_))));
    }
}

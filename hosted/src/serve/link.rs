//! A wire to another process: frames over a Unix socket, each after its length in four bytes (big-endian).
//!
//! Whoever comes first listens at the path, the other one connects; when the link breaks, both try again. Frames sent
//! while there is no link, or faster than it takes them, are lost, as on a wire.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::error::ServeError;
use super::socket::check_path;
use super::subnet::Gone;

/// Longest frame: far more than a packet of the greatest MTU with all its headers.
const LONGEST: usize = 8192;
/// Frames that wait for the link.
const WAITING: usize = 1024;
/// How long to rest before the next try to connect, and how often a sender without frames looks after the link.
const REST: Duration = Duration::from_millis(100);

/// The near end of a link: frames for LIDs that are not here go into it.
pub(crate) struct Link {
    frames: SyncSender<Vec<u8>>,
    /// The socket that this side made; removed at the end.
    made: Arc<Mutex<Option<PathBuf>>>,
}

impl Link {
    /// Sends a frame, if there is room.
    pub(crate) fn send(&self, frame: Vec<u8>) {
        // A full or broken link loses it.
        let _ = self.frames.try_send(frame);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Some(path) = self.made.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // Someone else may have removed it.
            let _ = fs::remove_file(path);
        }
    }
}

/// The far end, before it runs.
pub(crate) struct FarEnd {
    path: PathBuf,
    frames: Receiver<Vec<u8>>,
    made: Arc<Mutex<Option<PathBuf>>>,
}

/// A link by way of `path`.
pub(crate) fn link(path: &Path) -> Result<(Link, FarEnd), ServeError> {
    check_path(path)?;
    if fs::symlink_metadata(path).is_ok_and(|there| {
        use std::os::unix::fs::FileTypeExt as _;
        !there.file_type().is_socket()
    }) {
        return Err(ServeError::NotASocket(path.to_path_buf()));
    }
    let (sender, receiver) = mpsc::sync_channel(WAITING);
    let made = Arc::new(Mutex::new(None));
    let far = FarEnd { path: path.to_path_buf(), frames: receiver, made: Arc::clone(&made) };
    Ok((Link { frames: sender, made }, far))
}

impl FarEnd {
    /// Connects, carries frames both ways, and connects again, for as long as the process runs.
    /// Frames from there go to `deliver`, until that says that nobody is here any more.
    pub(crate) fn run(self, deliver: impl Fn(&[u8]) -> Result<(), Gone> + Clone + Send + 'static) {
        loop {
            match self.connect() {
                Ok(stream) => {
                    super::messages::line("link: connected".into());
                    if self.carry(stream, deliver.clone()) {
                        return;
                    }
                    super::messages::line("link: broken".into());
                }
                Err(_) => thread::sleep(REST),
            }
        }
    }

    /// To whoever listens; listens itself if nobody does.
    fn connect(&self) -> io::Result<UnixStream> {
        let listener = {
            // Else one process could take away the socket of another that has made it and is about to listen.
            let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            let alone = File::open(folder)?;
            alone.lock()?;
            match UnixStream::connect(&self.path) {
                // Left behind by a process that is gone.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(&self.path)?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                connected => return connected,
            }
            UnixListener::bind(&self.path)?
        };
        *self.made.lock().unwrap_or_else(PoisonError::into_inner) = Some(self.path.clone());
        let accepted = listener.accept();
        // One link has two ends: a third process shall make its own.
        self.made.lock().unwrap_or_else(PoisonError::into_inner).take();
        fs::remove_file(&self.path)?;
        Ok(accepted?.0)
    }

    /// Carries frames until the link breaks; `true` if this side's devices are gone.
    fn carry(&self, mut stream: UnixStream, deliver: impl Fn(&[u8]) -> Result<(), Gone> + Send + 'static) -> bool {
        let Ok(incoming) = stream.try_clone() else { return false };
        let receiver = thread::spawn(move || receive(incoming, deliver));
        let gone = loop {
            match self.frames.recv_timeout(REST) {
                Ok(frame) => {
                    if write_frame(&mut stream, &frame).is_err() {
                        break false;
                    }
                }
                Err(RecvTimeoutError::Timeout) if receiver.is_finished() => break false,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break true,
            }
        };
        // The reader ends with the connection.
        let _ = stream.shutdown(std::net::Shutdown::Both);
        let _ = receiver.join();
        gone
    }
}

fn write_frame(stream: &mut UnixStream, frame: &[u8]) -> io::Result<()> {
    let len = u32::try_from(frame.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let mut bytes = len.to_be_bytes().to_vec();
    bytes.extend(frame);
    stream.write_all(&bytes)
}

fn receive(stream: UnixStream, deliver: impl Fn(&[u8]) -> Result<(), Gone>) {
    let mut stream = io::BufReader::new(stream);
    let mut frame = Vec::new();
    loop {
        let mut len = [0; 4];
        if stream.read_exact(&mut len).is_err() {
            return;
        }
        // A far end that says otherwise is no far end.
        let Some(len) = usize::try_from(u32::from_be_bytes(len)).ok().filter(|len| *len <= LONGEST) else { return };
        frame.resize(len, 0);
        if stream.read_exact(&mut frame).is_err() || deliver(&frame).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One process: the near end of its link, and where frames from the other one arrive.
    fn process(path: &Path) -> (Link, Receiver<Vec<u8>>) {
        let (near, far) = link(path).unwrap();
        let (sender, frames) = mpsc::channel();
        thread::spawn(move || far.run(move |frame| sender.send(frame.to_vec()).map_err(|_| Gone)));
        (near, frames)
    }

    /// Sends until something arrives: what is sent before the link is there is lost.
    fn crosses(from: &Link, to: &Receiver<Vec<u8>>, mark: u8) -> bool {
        (0..3000).any(|_| {
            from.send(vec![mark; 100]);
            to.recv_timeout(Duration::from_millis(20)).is_ok_and(|frame| frame == [mark; 100])
        })
    }

    #[test]
    fn a_socket_that_was_left_behind_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("link");
        drop(UnixListener::bind(&path).unwrap());
        // Both find it, at the same time.
        let (near_a, frames_a) = process(&path);
        let (near_b, frames_b) = process(&path);
        assert!(crosses(&near_a, &frames_b, 1));
        assert!(crosses(&near_b, &frames_a, 2));
    }

    #[test]
    fn frames_cross_both_ways_and_again_after_a_break() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("link");
        let (near_a, frames_a) = process(&path);
        let (near_b, frames_b) = process(&path);
        assert!(crosses(&near_a, &frames_b, 1));
        assert!(crosses(&near_b, &frames_a, 2));
        assert!(!path.exists(), "a link in use needs no socket");
        drop((near_a, frames_a));
        let (near_c, frames_c) = process(&path);
        assert!(crosses(&near_b, &frames_c, 3));
        assert!(crosses(&near_c, &frames_b, 4));
    }

    #[test]
    fn a_wrong_path_is_named() {
        let folder = tempfile::tempdir().unwrap();
        assert!(matches!(link(&folder.path().join("no/link")), Err(ServeError::NoFolder(_))));
        let file = folder.path().join("file");
        fs::write(&file, "x").unwrap();
        assert!(matches!(link(&file), Err(ServeError::NotASocket(_))));
    }
}

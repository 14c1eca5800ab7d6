//! A wire to another process: frames over a Unix socket, each after its length in four bytes (big-endian).
//!
//! Whoever comes first listens at the path, the other one connects; when the link breaks, both try again. Frames sent
//! while there is no link, or faster than it takes them, are lost, as on a wire.
//!
//! There is no lock that someone else could hold: a socket that listens already is moved to the path, in the place of what was
//! left there. Of two processes that do so at the same time the first one finds that another socket is there, and connects.

use std::collections::BTreeSet;
use std::fs;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::error::{LONGEST_PATH, ServeError};
use super::messages::line;
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
    made: Arc<Mutex<Option<Made>>>,
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
        self.made.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// A socket at a path: removed when dropped, unless another one is there by now.
struct Made {
    path: PathBuf,
    /// Device and inode.
    id: (u64, u64),
}

impl Made {
    fn is_there(&self) -> bool {
        fs::symlink_metadata(&self.path).is_ok_and(|there| (there.dev(), there.ino()) == self.id)
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        if self.is_there() {
            // Someone else may have removed it since.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// How two processes meet.
enum Meeting {
    Connected(UnixStream),
    Listening(UnixListener),
}

/// The far end, before it runs.
pub(crate) struct FarEnd {
    path: PathBuf,
    frames: Receiver<Vec<u8>>,
    made: Arc<Mutex<Option<Made>>>,
    first: Option<Meeting>,
}

/// What has been said and counted of the other end's frames.
struct Arrivals {
    /// LIDs of the devices here: no frame of the other end may be from them.
    here: Vec<u16>,
    doubled: Mutex<BTreeSet<u16>>,
    dropped: AtomicU64,
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
    if draft(path).as_os_str().len() > LONGEST_PATH {
        return Err(ServeError::TooLong(path.to_path_buf()));
    }
    let (sender, receiver) = mpsc::sync_channel(WAITING);
    let made = Arc::new(Mutex::new(None));
    let mut far = FarEnd { path: path.to_path_buf(), frames: receiver, made: Arc::clone(&made), first: None };
    // What cannot be done now would be tried for ever.
    far.first = Some(far.meet().map_err(|error| ServeError::Socket(path.to_path_buf(), error.to_string()))?);
    Ok((Link { frames: sender, made }, far))
}

/// Where a socket is made before it is moved to the path: a name that no other process has.
fn draft(path: &Path) -> PathBuf {
    path.with_file_name(format!(".link-{:016x}", RandomState::new().build_hasher().finish()))
}

impl FarEnd {
    /// Connects, carries frames both ways, and connects again, for as long as the process runs.
    /// Frames from there go to `deliver`, until that says that nobody is here any more; but not those from LIDs that are `here`.
    pub(crate) fn run(mut self, here: Vec<u16>, deliver: impl Fn(&[u8]) -> Result<(), Gone> + Clone + Send + 'static) {
        let arrivals = Arc::new(Arrivals { here, doubled: Mutex::default(), dropped: AtomicU64::new(0) });
        let mut told = None;
        loop {
            let meeting = self.first.take().map_or_else(|| self.meet(), Ok);
            match meeting.and_then(|meeting| self.connect(meeting)) {
                Ok(stream) => {
                    told = None;
                    line("link: connected".into());
                    let gone = self.carry(stream, &arrivals, deliver.clone());
                    let dropped = arrivals.dropped.swap(0, Ordering::Relaxed);
                    if dropped > 0 {
                        line(format!("link: {dropped} frames from LIDs of devices here dropped"));
                    }
                    if gone {
                        return;
                    }
                    line("link: broken".into());
                }
                Err(error) => {
                    // Once for each kind: it is tried ten times a second.
                    if told != Some(error.kind()) {
                        line(format!("link: {}: {error}; it is tried again", self.path.display()));
                        told = Some(error.kind());
                    }
                    thread::sleep(REST);
                }
            }
        }
    }

    /// Connects to whoever listens; listens itself if nobody does.
    fn meet(&self) -> io::Result<Meeting> {
        match UnixStream::connect(&self.path) {
            Err(error) if matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) => {}
            connected => return connected.map(Meeting::Connected),
        }
        let draft = draft(&self.path);
        let listener = UnixListener::bind(&draft)?;
        let there = fs::symlink_metadata(&draft)?;
        let id = (there.dev(), there.ino());
        fs::rename(&draft, &self.path).inspect_err(|_| {
            let _ = fs::remove_file(&draft);
        })?;
        listener.set_nonblocking(true)?;
        *self.made.lock().unwrap_or_else(PoisonError::into_inner) = Some(Made { path: self.path.clone(), id });
        Ok(Meeting::Listening(listener))
    }

    /// The connection, once the other end is there.
    fn connect(&self, mut meeting: Meeting) -> io::Result<UnixStream> {
        loop {
            let listener = match meeting {
                Meeting::Connected(stream) => return Ok(stream),
                Meeting::Listening(listener) => listener,
            };
            if let Some(stream) = self.accept(&listener)? {
                return Ok(stream);
            }
            meeting = self.meet()?;
        }
    }

    /// Waits for the other end; `None` if another one's socket is there by now, which waits for this process.
    fn accept(&self, listener: &UnixListener) -> io::Result<Option<UnixStream>> {
        loop {
            match listener.accept() {
                Ok((stream, _)) => {
                    // One link has two ends: a third process shall make its own.
                    self.made.lock().unwrap_or_else(PoisonError::into_inner).take();
                    stream.set_nonblocking(false)?;
                    return Ok(Some(stream));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(REST),
                Err(error) => return Err(error),
            }
            let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
            if !made.as_ref().is_some_and(Made::is_there) {
                made.take();
                return Ok(None);
            }
        }
    }

    /// Carries frames until the link breaks; `true` if this side's devices are gone.
    fn carry(
        &self,
        mut stream: UnixStream,
        arrivals: &Arc<Arrivals>,
        deliver: impl Fn(&[u8]) -> Result<(), Gone> + Send + 'static,
    ) -> bool {
        let Ok(incoming) = stream.try_clone() else { return false };
        let arrivals = Arc::clone(arrivals);
        let deliver = move |frame: &[u8]| if arrivals.take(frame) { deliver(frame) } else { Ok(()) };
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

impl Arrivals {
    /// Whether a frame may be delivered: its source is not here.
    fn take(&self, frame: &[u8]) -> bool {
        // Of the local route header.
        let Some([high, low]) = frame.get(6..8).and_then(<[u8]>::first_chunk) else { return true };
        let source = u16::from_be_bytes([*high, *low]);
        if !self.here.contains(&source) {
            return true;
        }
        self.dropped.fetch_add(1, Ordering::Relaxed);
        if self.doubled.lock().unwrap_or_else(PoisonError::into_inner).insert(source) {
            line(format!("link: LID {source:#x} is here and at the other end: frames from there are dropped"));
        }
        false
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
        thread::spawn(move || far.run(vec![7], move |frame| sender.send(frame.to_vec()).map_err(|_| Gone)));
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
    fn frames_from_a_lid_that_is_here_are_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("link");
        let (near_a, _frames_a) = process(&path);
        let (_near_b, frames_b) = process(&path);
        assert!(crosses(&near_a, &frames_b, 1));
        // From LID 7, which the other process has too, then from LID 8.
        for source in [7, 8] {
            near_a.send(vec![0, 0, 0, 1, 0, 0, 0, source]);
        }
        let from_lid = std::iter::from_fn(|| frames_b.recv_timeout(Duration::from_secs(10)).ok());
        assert_eq!(from_lid.filter(|frame| frame.len() == 8).map(|frame| frame[7]).next(), Some(8));
    }

    #[test]
    fn nobody_can_hold_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let held = fs::File::open(folder.path()).unwrap();
        held.lock().unwrap();
        let path = folder.path().join("link");
        let (near_a, _frames_a) = process(&path);
        let (_near_b, frames_b) = process(&path);
        assert!(crosses(&near_a, &frames_b, 1));
        let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert!(left.is_empty(), "{left:?}");
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

//! The link to the wire of another process: frames over a Unix socket, each preceded by its length in four bytes (big-endian).
//!
//! The first process listens at the path and the other one connects; when the link breaks, both try again. Frames that are sent
//! without a link, or faster than the link accepts them, are lost, as on a wire.
//!
//! Outgoing frames wait in a queue for each sending device, incoming frames in a queue for each destination LID. The queues are
//! served in turn, and a full queue drops only frames of its own device. A device without room does not block the link: its frames
//! wait in its queue while the next frame is read. If the other end reads nothing for [`UNREAD_TIMEOUT`], the link is closed.
//!
//! No lock file is needed, which another process could keep locked. Each process renames a socket that already listens to the
//! path, replacing a stale one. If two processes do so at the same time, the one whose socket was replaced notices it and connects.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bareverbs_sim::fabric::Uplink;
use bareverbs_sim::wire::PortId;

use crate::error::{Gone, MAX_SOCKET_PATH, ServeError};
use crate::log::Log;
use crate::socket::check_path;
use crate::source_queues::{MAX_QUEUED, SourceQueues};

/// Maximum length of a frame: more than a packet of the maximum MTU with all headers.
const MAX_FRAME: usize = 8192;
/// Interval between attempts to connect, and between checks of the link by a sender without frames.
const CONNECT_RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// Interval between attempts to deliver a frame to a device without room.
const DELIVER_RETRY_INTERVAL: Duration = Duration::from_micros(100);
/// Timeout of a write to the other end.
const UNREAD_TIMEOUT: Duration = Duration::from_secs(5);

/// The near end of a link: frames for LIDs outside this process are sent through it.
pub(crate) struct Link {
    outgoing: Arc<Outgoing>,
    /// The socket that this process created; removed at the end.
    made: Arc<Mutex<Option<Made>>>,
}

impl Uplink for Link {
    /// Queues a frame of a device if there is a link and room in the queue.
    fn send(&self, from: PortId, frame: Vec<u8>) -> bool {
        let mut state = self.outgoing.state();
        if !state.connected {
            return false;
        }
        if !state.queues.push(from, frame) {
            if let Some(device) = state.devices.get_mut(from.0) {
                device.lost += 1;
            }
            return false;
        }
        drop(state);
        self.outgoing.work.notify_one();
        true
    }
}

/// Frames that wait for the link.
struct Outgoing {
    log: Log,
    state: Mutex<OutgoingState>,
    work: Condvar,
}

struct OutgoingState {
    queues: SourceQueues,
    /// By the port of the sending device.
    devices: Vec<Sender>,
    connected: bool,
    /// The server has ended.
    closed: bool,
}

/// A device that sends frames.
struct Sender {
    name: String,
    /// Number of its frames dropped because the queue was full.
    lost: u64,
}

/// Result of [`Outgoing::next`].
enum Next {
    Frame(Vec<u8>),
    Nothing,
    Closed,
}

impl Outgoing {
    fn new(devices: Vec<String>, log: Log) -> Self {
        let queues = SourceQueues::new(devices.len());
        let devices = devices.into_iter().map(|name| Sender { name, lost: 0 }).collect();
        let state = OutgoingState { queues, devices, connected: false, closed: false };
        Self { log, state: Mutex::new(state), work: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, OutgoingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the next frame, one of each queue in turn. Waits for one up to [`CONNECT_RETRY_INTERVAL`].
    fn next(&self) -> Next {
        let mut state = self.state();
        if !state.closed && state.queues.is_empty() {
            state = self.work.wait_timeout(state, CONNECT_RETRY_INTERVAL).unwrap_or_else(PoisonError::into_inner).0;
        }
        if state.closed {
            return Next::Closed;
        }
        state.queues.pop().map_or(Next::Nothing, Next::Frame)
    }

    fn is_closed(&self) -> bool {
        self.state().closed
    }

    /// Sets whether there is a link, and drops the queued frames. Logs how many frames were lost.
    fn connect(&self, connected: bool) {
        let mut state = self.state();
        state.connected = connected;
        state.queues.clear();
        for device in &mut state.devices {
            let lost = std::mem::take(&mut device.lost);
            if lost > 0 {
                self.log.line(format!("link: {}: {lost} of its frames lost, faster than the link took them", device.name));
            }
        }
    }

    fn close(&self) {
        self.connect(false);
        self.state().closed = true;
        self.work.notify_one();
    }
}

/// Frames from the other end for devices without room.
struct Incoming<D> {
    log: Log,
    deliver: D,
    state: Mutex<IncomingState>,
    work: Condvar,
}

#[derive(Default)]
struct IncomingState {
    /// By destination LID; none is empty.
    queues: BTreeMap<u16, VecDeque<Vec<u8>>>,
    lost: u64,
    over: bool,
}

impl<D: Fn(Vec<u8>) -> Result<Option<Vec<u8>>, Gone>> Incoming<D> {
    fn state(&self) -> MutexGuard<'_, IncomingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Delivers a frame, or queues it if there is no room or earlier frames for the same LID are queued.
    fn take(&self, frame: Vec<u8>) -> Result<(), Gone> {
        let lid = lid_at(&frame, DESTINATION).unwrap_or_default();
        let mut state = self.state();
        if let Some(queue) = state.queues.get_mut(&lid) {
            if queue.len() < MAX_QUEUED {
                queue.push_back(frame);
            } else {
                state.lost += 1;
            }
        } else if let Some(frame) = (self.deliver)(frame)? {
            state.queues.insert(lid, VecDeque::from([frame]));
            self.work.notify_one();
        }
        Ok(())
    }

    /// Delivers queued frames as soon as there is room, until [`Incoming::end`].
    fn run(&self) {
        let mut state = self.state();
        while !state.over {
            let mut gone = false;
            state.queues.retain(|_, queue| {
                while let Some(frame) = queue.pop_front() {
                    match (self.deliver)(frame) {
                        Ok(None) => {}
                        Ok(Some(frame)) => {
                            queue.push_front(frame);
                            return true;
                        }
                        Err(Gone) => {
                            gone = true;
                            return false;
                        }
                    }
                }
                false
            });
            if gone {
                return;
            }
            state = if state.queues.is_empty() {
                self.work.wait(state).unwrap_or_else(PoisonError::into_inner)
            } else {
                self.work.wait_timeout(state, DELIVER_RETRY_INTERVAL).unwrap_or_else(PoisonError::into_inner).0
            };
        }
    }

    fn end(&self) {
        let mut state = self.state();
        state.over = true;
        self.work.notify_one();
        if state.lost > 0 {
            self.log.line(format!("link: {} frames from there lost, which devices here did not take", state.lost));
        }
    }
}

/// Byte offsets of the LIDs in a local route header (IBTA 7.7).
const DESTINATION: usize = 2;
const SOURCE: usize = 6;

fn lid_at(frame: &[u8], at: usize) -> Option<u16> {
    frame.get(at..)?.first_chunk().map(|lid| u16::from_be_bytes(*lid))
}

impl Drop for Link {
    fn drop(&mut self) {
        self.outgoing.close();
        self.made.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// A socket at a path: removed when dropped, unless another one has replaced it.
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
            // Another process may have removed it since.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// How this process takes part in a link.
enum Rendezvous {
    Connected(UnixStream),
    Listening(UnixListener),
}

/// The far end of a link, before it runs.
pub(crate) struct RemoteEnd {
    path: PathBuf,
    outgoing: Arc<Outgoing>,
    made: Arc<Mutex<Option<Made>>>,
    first: Option<Rendezvous>,
}

/// Filters frames from the other end by their source LID.
struct Arrivals {
    log: Log,
    /// Returns whether a device of this process has a LID: no frame of the other end may have it as its source.
    here: Box<dyn Fn(u16) -> bool + Send + Sync>,
    doubled: Mutex<BTreeSet<u16>>,
    dropped: AtomicU64,
}

/// Creates a link through the socket at `path`, for the devices of these names in the order of their ports.
///
/// # Errors
/// The path is not usable for a socket, or the socket could not be created.
pub(crate) fn link(path: &Path, devices: Vec<String>, log: &Log) -> Result<(Link, RemoteEnd), ServeError> {
    check_path(path)?;
    if fs::symlink_metadata(path).is_ok_and(|there| {
        use std::os::unix::fs::FileTypeExt as _;
        !there.file_type().is_socket()
    }) {
        return Err(ServeError::NotASocket(path.to_path_buf()));
    }
    if draft(path).as_os_str().len() > MAX_SOCKET_PATH {
        return Err(ServeError::TooLong(path.to_path_buf()));
    }
    let outgoing = Arc::new(Outgoing::new(devices, log.clone()));
    let made = Arc::new(Mutex::new(None));
    let mut far = RemoteEnd { path: path.to_path_buf(), outgoing: Arc::clone(&outgoing), made: Arc::clone(&made), first: None };
    // A failure of the first attempt is an error of the configuration; later ones are retried.
    far.first = Some(far.meet().map_err(|error| ServeError::Socket(path.to_path_buf(), error.to_string()))?);
    Ok((Link { outgoing, made }, far))
}

/// Returns a unique path for a new socket, which is then renamed to `path`.
fn draft(path: &Path) -> PathBuf {
    path.with_file_name(format!(".link-{:016x}", RandomState::new().build_hasher().finish()))
}

impl RemoteEnd {
    /// Connects, transfers frames in both directions, and reconnects, until the server ends.
    ///
    /// Frames from the other end are passed to `deliver`, except those whose source LID is `here`. A frame that `deliver`
    /// returns is offered again; its error means that the server has ended.
    pub(crate) fn run<D>(mut self, here: impl Fn(u16) -> bool + Send + Sync + 'static, deliver: D)
    where
        D: Fn(Vec<u8>) -> Result<Option<Vec<u8>>, Gone> + Clone + Send + Sync + 'static,
    {
        let (log, here) = (self.outgoing.log.clone(), Box::new(here));
        let arrivals = Arc::new(Arrivals { log, here, doubled: Mutex::default(), dropped: AtomicU64::new(0) });
        let mut logged = None;
        while !self.outgoing.is_closed() {
            let meeting = self.first.take().map_or_else(|| self.meet(), Ok);
            match meeting.and_then(|meeting| self.connect(meeting)) {
                Ok(stream) => {
                    logged = None;
                    self.outgoing.log.line("link: connected".into());
                    let gone = self.carry(stream, &arrivals, deliver.clone());
                    let dropped = arrivals.dropped.swap(0, Ordering::Relaxed);
                    if dropped > 0 {
                        self.outgoing.log.line(format!("link: {dropped} frames from LIDs of devices here dropped"));
                    }
                    if gone {
                        return;
                    }
                    self.outgoing.log.line("link: broken".into());
                }
                Err(error) => {
                    // Logged once for each kind of error: there are ten attempts per second.
                    if logged != Some(error.kind()) {
                        self.outgoing.log.line(format!("link: {}: {error}; it is tried again", self.path.display()));
                        logged = Some(error.kind());
                    }
                    thread::sleep(CONNECT_RETRY_INTERVAL);
                }
            }
        }
    }

    /// Connects to the listening process; if there is none, creates a listening socket.
    fn meet(&self) -> io::Result<Rendezvous> {
        match UnixStream::connect(&self.path) {
            Err(error) if matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) => {}
            connected => return connected.map(Rendezvous::Connected),
        }
        let draft = draft(&self.path);
        let listener = UnixListener::bind(&draft)?;
        let there = fs::symlink_metadata(&draft)?;
        let id = (there.dev(), there.ino());
        fs::rename(&draft, &self.path).inspect_err(|_| {
            let _ = fs::remove_file(&draft);
        })?;
        listener.set_nonblocking(true)?;
        let made = Made { path: self.path.clone(), id };
        let mut place = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        // If the server has ended already, `made` has been emptied for the last time.
        if !self.outgoing.is_closed() {
            *place = Some(made);
        }
        drop(place);
        Ok(Rendezvous::Listening(listener))
    }

    /// Waits for the other end and returns the connection.
    fn connect(&self, mut meeting: Rendezvous) -> io::Result<UnixStream> {
        loop {
            if self.outgoing.is_closed() {
                return Err(io::ErrorKind::NotConnected.into());
            }
            let listener = match meeting {
                Rendezvous::Connected(stream) => return Ok(stream),
                Rendezvous::Listening(listener) => listener,
            };
            if let Some(stream) = self.accept(&listener)? {
                return Ok(stream);
            }
            meeting = self.meet()?;
        }
    }

    /// Waits for the other end. Returns `None` if the socket of another process has replaced this one.
    fn accept(&self, listener: &UnixListener) -> io::Result<Option<UnixStream>> {
        loop {
            match listener.accept() {
                Ok((stream, _)) => {
                    // A link has two ends: a third process creates a socket of its own.
                    self.made.lock().unwrap_or_else(PoisonError::into_inner).take();
                    stream.set_nonblocking(false)?;
                    return Ok(Some(stream));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(CONNECT_RETRY_INTERVAL),
                Err(error) => return Err(error),
            }
            let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
            if !made.as_ref().is_some_and(Made::is_there) {
                made.take();
                return Ok(None);
            }
        }
    }

    /// Transfers frames until the link breaks. Returns `true` if the server has ended.
    fn carry<D>(&self, mut stream: UnixStream, arrivals: &Arc<Arrivals>, deliver: D) -> bool
    where
        D: Fn(Vec<u8>) -> Result<Option<Vec<u8>>, Gone> + Send + Sync + 'static,
    {
        let incoming =
            Arc::new(Incoming { log: self.outgoing.log.clone(), deliver, state: Mutex::default(), work: Condvar::new() });
        let Ok([receiver, deliverer]) = start(&stream, arrivals, &incoming) else {
            incoming.end();
            thread::sleep(CONNECT_RETRY_INTERVAL);
            return false;
        };
        self.outgoing.connect(true);
        let gone = loop {
            match self.outgoing.next() {
                Next::Frame(frame) => match write_frame(&mut stream, &frame) {
                    Ok(()) => {}
                    Err(error) => {
                        if error.kind() == io::ErrorKind::WouldBlock {
                            self.outgoing
                                .log
                                .line(format!("link: the other end has read nothing for {} s", UNREAD_TIMEOUT.as_secs()));
                        }
                        break false;
                    }
                },
                Next::Nothing if receiver.is_finished() => break false,
                Next::Nothing => {}
                Next::Closed => break true,
            }
        };
        self.outgoing.connect(false);
        // Ends the receiving thread.
        let _ = stream.shutdown(std::net::Shutdown::Both);
        let _ = receiver.join();
        incoming.end();
        let _ = deliverer.join();
        gone
    }
}

/// Starts the threads of a connection: one receives frames, one delivers those that were queued.
fn start<D>(stream: &UnixStream, arrivals: &Arc<Arrivals>, incoming: &Arc<Incoming<D>>) -> io::Result<[JoinHandle<()>; 2]>
where
    D: Fn(Vec<u8>) -> Result<Option<Vec<u8>>, Gone> + Send + Sync + 'static,
{
    stream.set_write_timeout(Some(UNREAD_TIMEOUT))?;
    let stream = stream.try_clone()?;
    let queued = Arc::clone(incoming);
    let deliverer = thread::Builder::new().name("link held".into()).spawn(move || queued.run())?;
    let (arrivals, incoming) = (Arc::clone(arrivals), Arc::clone(incoming));
    let take = move |frame: Vec<u8>| if arrivals.take(&frame) { incoming.take(frame) } else { Ok(()) };
    let receiver = thread::Builder::new().name("link in".into()).spawn(move || receive(stream, take))?;
    Ok([receiver, deliverer])
}

impl Arrivals {
    /// Returns whether a frame may be delivered: its source LID is not one of this process.
    fn take(&self, frame: &[u8]) -> bool {
        let Some(source) = lid_at(frame, SOURCE) else { return true };
        if !(self.here)(source) {
            return true;
        }
        self.dropped.fetch_add(1, Ordering::Relaxed);
        if self.doubled.lock().unwrap_or_else(PoisonError::into_inner).insert(source) {
            self.log.line(format!("link: LID {source:#x} is here and at the other end: frames from there are dropped"));
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

fn receive(stream: UnixStream, take: impl Fn(Vec<u8>) -> Result<(), Gone>) {
    let mut stream = io::BufReader::new(stream);
    loop {
        let mut len = [0; 4];
        if stream.read_exact(&mut len).is_err() {
            return;
        }
        // A longer frame is a violation of the protocol.
        let Some(len) = usize::try_from(u32::from_be_bytes(len)).ok().filter(|len| *len <= MAX_FRAME) else { return };
        let mut frame = vec![0; len];
        if stream.read_exact(&mut frame).is_err() || take(frame).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{self, Receiver};

    use super::*;

    /// The ports of both devices of a process.
    const PORTS: [PortId; 2] = [PortId(0), PortId(1)];

    fn two_devices() -> Vec<String> {
        vec!["lid1".into(), "lid2".into()]
    }

    /// Creates the link of one process. Returns its near end and the frames from the other process.
    fn process(path: &Path) -> (Link, Receiver<Vec<u8>>) {
        let (near, far) = link(path, two_devices(), &Log::discard()).unwrap();
        let (sender, frames) = mpsc::channel();
        thread::spawn(move || far.run(|lid| lid == 7, move |frame| sender.send(frame).map(|()| None).map_err(|_| Gone)));
        (near, frames)
    }

    /// Sends frames until one arrives, since those sent without a link are lost.
    fn crosses(from: &Link, to: &Receiver<Vec<u8>>, mark: u8) -> bool {
        (0..3000).any(|_| {
            from.send(PORTS[0], vec![mark; 100]);
            to.recv_timeout(Duration::from_millis(20)).is_ok_and(|frame| frame == [mark; 100])
        })
    }

    #[test]
    fn a_stale_socket_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("link");
        drop(UnixListener::bind(&path).unwrap());
        // Both processes find it at the same time.
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
            near_a.send(PORTS[0], vec![0, 0, 0, 1, 0, 0, 0, source]);
        }
        let from_lid = std::iter::from_fn(|| frames_b.recv_timeout(Duration::from_secs(10)).ok());
        assert_eq!(from_lid.filter(|frame| frame.len() == 8).map(|frame| frame[7]).next(), Some(8));
    }

    /// Returns whether the thread ends in time.
    fn ends<T>(thread: &thread::JoinHandle<T>) -> bool {
        (0..1000).any(|_| {
            thread::sleep(Duration::from_millis(10));
            thread.is_finished()
        })
    }

    #[test]
    fn a_closed_link_ends_its_thread_and_leaves_no_socket() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("link");
        // While it listens.
        let (near, far) = link(&path, two_devices(), &Log::discard()).unwrap();
        let listening = thread::spawn(move || far.run(|_| false, |_| Ok(None)));
        thread::sleep(CONNECT_RETRY_INTERVAL);
        drop(near);
        assert!(ends(&listening) && !path.exists());
        // While it is connected.
        let (near, far) = link(&path, two_devices(), &Log::discard()).unwrap();
        let connected = thread::spawn(move || far.run(|_| false, |_| Ok(None)));
        let (other, frames) = process(&path);
        assert!(crosses(&near, &frames, 1));
        drop(near);
        assert!(ends(&connected));
        drop(other);
        // Before it connects again: a socket is created and removed.
        let (near, far) = link(&path, two_devices(), &Log::discard()).unwrap();
        drop(near);
        assert!(matches!(far.meet(), Ok(Rendezvous::Listening(_))) && !path.exists());
    }

    fn read_frame(stream: &mut UnixStream) -> Vec<u8> {
        let mut len = [0; 4];
        stream.read_exact(&mut len).unwrap();
        let mut frame = vec![0; u32::from_be_bytes(len) as usize];
        stream.read_exact(&mut frame).unwrap();
        frame
    }

    #[test]
    fn a_device_that_floods_the_link_does_not_crowd_out_another() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("link");
        let (near, _frames) = process(&path);
        let mut far = UnixStream::connect(&path).unwrap();
        far.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let connected = (0..3000).any(|_| {
            near.send(PORTS[0], vec![9; 8]);
            far.read(&mut [0]).is_ok()
        });
        assert!(connected);
        far.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        // The rest of the first frame, of which one byte was read.
        far.read_exact(&mut [0; 11]).unwrap();
        // Far more than the socket and the queue accept while the other end reads nothing.
        for _ in 0..20_000 {
            near.send(PORTS[0], vec![1; 4000]);
        }
        for _ in 0..5 {
            near.send(PORTS[1], vec![2; 4000]);
        }
        // Frames that the socket already contains come first, then those of both queues in turn.
        let mut got = (0..2 * MAX_QUEUED).map(|_| read_frame(&mut far)).take_while(|frame| frame[0] != 2);
        assert!(got.by_ref().count() < MAX_QUEUED, "the queues are served in turn");
        assert!((0..8).map(|_| read_frame(&mut far)).filter(|frame| frame[0] == 2).count() >= 4);
    }

    #[test]
    fn a_device_without_room_delays_no_frame_for_another() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("link");
        let (near, far) = link(&path, two_devices(), &Log::discard()).unwrap();
        let (sender, frames) = mpsc::channel();
        let open = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let is_open = Arc::clone(&open);
        let deliver = move |frame: Vec<u8>| {
            if frame[3] == 1 && !is_open.load(Ordering::SeqCst) {
                return Ok(Some(frame));
            }
            sender.send(frame).map(|()| None).map_err(|_| Gone)
        };
        thread::spawn(move || far.run(|_| false, deliver));
        let (other, _frames) = process(&path);
        assert!(crosses(&other, &frames, 5));
        while frames.recv_timeout(Duration::from_millis(100)).is_ok() {}
        let frame = |lid, mark| vec![0, 0, 0, lid, 0, 0, 0, 9, mark];
        // More frames for LID 1, which has no room, than its queue accepts.
        (0..2 * MAX_QUEUED).for_each(|number| {
            other.send(PORTS[0], frame(1, (number % 100) as u8));
            if number % 100 == 0 {
                thread::sleep(Duration::from_millis(2));
            }
        });
        other.send(PORTS[1], frame(2, 7));
        let first = frames.recv_timeout(Duration::from_secs(10)).unwrap();
        assert_eq!((first[3], first[8]), (2, 7));
        // Queued frames are delivered in order when there is room.
        open.store(true, Ordering::SeqCst);
        let queued: Vec<u8> = (0..200).map(|_| frames.recv_timeout(Duration::from_secs(10)).unwrap()[8]).collect();
        assert!(queued.into_iter().eq((0..200).map(|number| number % 100)));
        drop(near);
    }

    #[test]
    fn a_lock_on_the_folder_does_not_matter() {
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
    fn a_wrong_path_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        assert!(matches!(link(&folder.path().join("no/link"), Vec::new(), &Log::discard()), Err(ServeError::NoFolder(_))));
        let file = folder.path().join("file");
        fs::write(&file, "x").unwrap();
        assert!(matches!(link(&file, Vec::new(), &Log::discard()), Err(ServeError::NotASocket(_))));
    }
}

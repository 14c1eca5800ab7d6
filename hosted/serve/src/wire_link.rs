//! A wire to another process: frames over a Unix socket, each after its length in four bytes (big-endian).
//!
//! The first process listens at the path, the other one connects; when the link breaks, both try again. Frames sent
//! while there is no link, or faster than it takes them, are lost, as on a wire.
//!
//! Frames that wait are in lanes, outgoing ones in that of the device that sent them, incoming ones in that of the LID that they
//! are for, and one of each lane is moved in turn. A full lane loses frames of its own device alone. The link stands still for
//! no device: what finds no room at one is held in its lane, and the next frame is read. An end that reads nothing for
//! [`UNREAD_TIMEOUT`] is given up.
//!
//! There is no lock that someone else could hold: a socket that listens already is moved to the path, in the place of what was
//! left there. Of two processes that do so at the same time the first one finds that another socket is there, and connects.

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

/// Longest frame: far more than a packet of the greatest MTU with all its headers.
const MAX_FRAME: usize = 8192;
/// Frames of a device that wait for the link, and frames for a device that wait for room there.
const MAX_WAITING: usize = 1024;
/// How long to rest before the next try to connect, and how often a sender without frames looks after the link.
const CONNECT_RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// How often a device without room for a frame is asked again.
const DELIVER_RETRY_INTERVAL: Duration = Duration::from_micros(100);
/// How long the other end may read nothing.
const UNREAD_TIMEOUT: Duration = Duration::from_secs(5);

/// The near end of a link: frames for LIDs that are not here go into it.
pub(crate) struct Link {
    outgoing: Arc<Outgoing>,
    /// The socket that this side made; removed at the end.
    made: Arc<Mutex<Option<Made>>>,
}

impl Uplink for Link {
    /// Sends a frame of a device, if there is room.
    fn send(&self, from: PortId, frame: Vec<u8>) {
        let mut lanes = self.outgoing.lanes();
        if !lanes.connected {
            return;
        }
        let Some(lane) = lanes.lanes.get_mut(from.0) else { return };
        if lane.frames.len() >= MAX_WAITING {
            lane.lost += 1;
            return;
        }
        lane.frames.push_back(frame);
        drop(lanes);
        self.outgoing.work.notify_one();
    }
}

/// Frames that wait for the link.
struct Outgoing {
    log: Log,
    lanes: Mutex<Lanes>,
    work: Condvar,
}

struct Lanes {
    /// By the port of the device that sent the frames.
    lanes: Vec<Lane>,
    /// The lane from which the next frame is taken.
    next: usize,
    connected: bool,
    /// The devices are gone.
    closed: bool,
}

/// Frames of one device.
struct Lane {
    device: String,
    frames: VecDeque<Vec<u8>>,
    /// Frames that found no room.
    lost: u64,
}

/// What there is to send.
enum Next {
    Frame(Vec<u8>),
    Nothing,
    Closed,
}

impl Outgoing {
    fn new(devices: Vec<String>, log: Log) -> Self {
        let lane = |device| Lane { device, frames: VecDeque::new(), lost: 0 };
        let lanes = devices.into_iter().map(lane).collect();
        Self { log, lanes: Mutex::new(Lanes { lanes, next: 0, connected: false, closed: false }), work: Condvar::new() }
    }

    fn lanes(&self) -> MutexGuard<'_, Lanes> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next frame, one of each lane in turn; waits for one.
    fn next(&self) -> Next {
        let mut lanes = self.lanes();
        if !lanes.closed && lanes.lanes.iter().all(|lane| lane.frames.is_empty()) {
            lanes = self.work.wait_timeout(lanes, CONNECT_RETRY_INTERVAL).unwrap_or_else(PoisonError::into_inner).0;
        }
        if lanes.closed {
            return Next::Closed;
        }
        let Lanes { lanes, next, .. } = &mut *lanes;
        for _ in 0..lanes.len() {
            *next = if *next + 1 < lanes.len() { *next + 1 } else { 0 };
            if let Some(frame) = lanes.get_mut(*next).and_then(|lane| lane.frames.pop_front()) {
                return Next::Frame(frame);
            }
        }
        Next::Nothing
    }

    fn is_closed(&self) -> bool {
        self.lanes().closed
    }

    /// Says that there is a link, or none any more. What waits for it then is lost.
    fn connect(&self, connected: bool) {
        let mut lanes = self.lanes();
        lanes.connected = connected;
        lanes.lanes.iter_mut().for_each(|lane| lane.frames.clear());
        for lane in &mut lanes.lanes {
            let lost = std::mem::take(&mut lane.lost);
            if lost > 0 {
                self.log.line(format!("link: {}: {lost} of its frames lost, faster than the link took them", lane.device));
            }
        }
    }

    fn close(&self) {
        self.connect(false);
        self.lanes().closed = true;
        self.work.notify_one();
    }
}

/// Frames from the other end that have found no room yet.
struct Held<D> {
    log: Log,
    deliver: D,
    state: Mutex<HeldFrames>,
    work: Condvar,
}

#[derive(Default)]
struct HeldFrames {
    /// By the LID that they are for; none is empty.
    lanes: BTreeMap<u16, VecDeque<Vec<u8>>>,
    lost: u64,
    over: bool,
}

impl<D: Fn(Vec<u8>) -> Result<Option<Vec<u8>>, Gone>> Held<D> {
    fn state(&self) -> MutexGuard<'_, HeldFrames> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Delivers a frame, or holds it behind those that wait already.
    fn take(&self, frame: Vec<u8>) -> Result<(), Gone> {
        let lid = lid_at(&frame, DESTINATION).unwrap_or_default();
        let mut state = self.state();
        if let Some(lane) = state.lanes.get_mut(&lid) {
            if lane.len() < MAX_WAITING {
                lane.push_back(frame);
            } else {
                state.lost += 1;
            }
        } else if let Some(frame) = (self.deliver)(frame)? {
            state.lanes.insert(lid, VecDeque::from([frame]));
            self.work.notify_one();
        }
        Ok(())
    }

    /// Delivers what is held as soon as there is room, until the end.
    fn run(&self) {
        let mut state = self.state();
        while !state.over {
            let mut gone = false;
            state.lanes.retain(|_, lane| {
                while let Some(frame) = lane.pop_front() {
                    match (self.deliver)(frame) {
                        Ok(None) => {}
                        Ok(Some(frame)) => {
                            lane.push_front(frame);
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
            state = if state.lanes.is_empty() {
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

/// Where the LIDs are in a local route header.
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
pub(crate) struct RemoteEnd {
    path: PathBuf,
    outgoing: Arc<Outgoing>,
    made: Arc<Mutex<Option<Made>>>,
    first: Option<Meeting>,
}

/// What has been said and counted of the other end's frames.
struct Arrivals {
    log: Log,
    /// Whether a device here has a LID: no frame of the other end may be from it.
    here: Box<dyn Fn(u16) -> bool + Send + Sync>,
    doubled: Mutex<BTreeSet<u16>>,
    dropped: AtomicU64,
}

/// A link by way of `path`, for devices with these names, in the order of their ports.
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
    // What cannot be done now would be tried for ever.
    far.first = Some(far.meet().map_err(|error| ServeError::Socket(path.to_path_buf(), error.to_string()))?);
    Ok((Link { outgoing, made }, far))
}

/// Where a socket is made before it is moved to the path: a name that no other process has.
fn draft(path: &Path) -> PathBuf {
    path.with_file_name(format!(".link-{:016x}", RandomState::new().build_hasher().finish()))
}

impl RemoteEnd {
    /// Connects, carries frames both ways, and connects again, for as long as the process runs.
    /// Frames from there go to `deliver`, until that says that nobody is here any more; but not those from LIDs that are
    /// `here` at that moment. What it gives back is offered again.
    pub(crate) fn run<D>(mut self, here: impl Fn(u16) -> bool + Send + Sync + 'static, deliver: D)
    where
        D: Fn(Vec<u8>) -> Result<Option<Vec<u8>>, Gone> + Clone + Send + Sync + 'static,
    {
        let (log, here) = (self.outgoing.log.clone(), Box::new(here));
        let arrivals = Arc::new(Arrivals { log, here, doubled: Mutex::default(), dropped: AtomicU64::new(0) });
        let mut told = None;
        while !self.outgoing.is_closed() {
            let meeting = self.first.take().map_or_else(|| self.meet(), Ok);
            match meeting.and_then(|meeting| self.connect(meeting)) {
                Ok(stream) => {
                    told = None;
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
                    // Once for each kind: it is tried ten times a second.
                    if told != Some(error.kind()) {
                        self.outgoing.log.line(format!("link: {}: {error}; it is tried again", self.path.display()));
                        told = Some(error.kind());
                    }
                    thread::sleep(CONNECT_RETRY_INTERVAL);
                }
            }
        }
    }

    /// Connects to the process that listens; listens itself if none does.
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
        let made = Made { path: self.path.clone(), id };
        let mut place = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        // The end of the devices, which removes what is in this place, may have come before.
        if !self.outgoing.is_closed() {
            *place = Some(made);
        }
        drop(place);
        Ok(Meeting::Listening(listener))
    }

    /// The connection, once the other end is there.
    fn connect(&self, mut meeting: Meeting) -> io::Result<UnixStream> {
        loop {
            if self.outgoing.is_closed() {
                return Err(io::ErrorKind::NotConnected.into());
            }
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

    /// Carries frames until the link breaks; `true` if this side's devices are gone.
    fn carry<D>(&self, mut stream: UnixStream, arrivals: &Arc<Arrivals>, deliver: D) -> bool
    where
        D: Fn(Vec<u8>) -> Result<Option<Vec<u8>>, Gone> + Send + Sync + 'static,
    {
        let held = Arc::new(Held { log: self.outgoing.log.clone(), deliver, state: Mutex::default(), work: Condvar::new() });
        let Ok([receiver, deliverer]) = start(&stream, arrivals, &held) else {
            held.end();
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
        // The reader ends with the connection.
        let _ = stream.shutdown(std::net::Shutdown::Both);
        let _ = receiver.join();
        held.end();
        let _ = deliverer.join();
        gone
    }
}

/// Starts the threads of a connection: one reads frames, one delivers those that found no room at first.
fn start<D>(stream: &UnixStream, arrivals: &Arc<Arrivals>, held: &Arc<Held<D>>) -> io::Result<[JoinHandle<()>; 2]>
where
    D: Fn(Vec<u8>) -> Result<Option<Vec<u8>>, Gone> + Send + Sync + 'static,
{
    stream.set_write_timeout(Some(UNREAD_TIMEOUT))?;
    let incoming = stream.try_clone()?;
    let waiting = Arc::clone(held);
    let deliverer = thread::Builder::new().name("link held".into()).spawn(move || waiting.run())?;
    let (arrivals, held) = (Arc::clone(arrivals), Arc::clone(held));
    let take = move |frame: Vec<u8>| if arrivals.take(&frame) { held.take(frame) } else { Ok(()) };
    let receiver = thread::Builder::new().name("link in".into()).spawn(move || receive(incoming, take))?;
    Ok([receiver, deliverer])
}

impl Arrivals {
    /// Whether a frame may be delivered: its source is not here.
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
        // A far end that says otherwise is no far end.
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

    /// One process: the near end of its link, and where frames from the other one arrive.
    fn process(path: &Path) -> (Link, Receiver<Vec<u8>>) {
        let (near, far) = link(path, two_devices(), &Log::discard()).unwrap();
        let (sender, frames) = mpsc::channel();
        thread::spawn(move || far.run(|lid| lid == 7, move |frame| sender.send(frame).map(|()| None).map_err(|_| Gone)));
        (near, frames)
    }

    /// Sends until something arrives: what is sent before the link is there is lost.
    fn crosses(from: &Link, to: &Receiver<Vec<u8>>, mark: u8) -> bool {
        (0..3000).any(|_| {
            from.send(PORTS[0], vec![mark; 100]);
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
            near_a.send(PORTS[0], vec![0, 0, 0, 1, 0, 0, 0, source]);
        }
        let from_lid = std::iter::from_fn(|| frames_b.recv_timeout(Duration::from_secs(10)).ok());
        assert_eq!(from_lid.filter(|frame| frame.len() == 8).map(|frame| frame[7]).next(), Some(8));
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
        // The rest of the first one, of which a byte was read.
        far.read_exact(&mut [0; 11]).unwrap();
        // Far more than the socket and the lane take, while nobody reads.
        (0..20_000).for_each(|_| near.send(PORTS[0], vec![1; 4000]));
        (0..5).for_each(|_| near.send(PORTS[1], vec![2; 4000]));
        // What the socket holds already, and the lane that is full, are before them or beside them.
        let mut got = (0..2 * MAX_WAITING).map(|_| read_frame(&mut far)).take_while(|frame| frame[0] != 2);
        assert!(got.by_ref().count() < MAX_WAITING, "the other one's come in turn");
        assert!((0..8).map(|_| read_frame(&mut far)).filter(|frame| frame[0] == 2).count() >= 4);
    }

    #[test]
    fn a_device_that_takes_nothing_holds_up_no_frame_for_another() {
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
        // LID 1 has no room; more than is held for it.
        (0..2 * MAX_WAITING).for_each(|number| {
            other.send(PORTS[0], frame(1, (number % 100) as u8));
            if number % 100 == 0 {
                thread::sleep(Duration::from_millis(2));
            }
        });
        other.send(PORTS[1], frame(2, 7));
        let first = frames.recv_timeout(Duration::from_secs(10)).unwrap();
        assert_eq!((first[3], first[8]), (2, 7));
        // What was held comes in its order when there is room.
        open.store(true, Ordering::SeqCst);
        let held: Vec<u8> = (0..200).map(|_| frames.recv_timeout(Duration::from_secs(10)).unwrap()[8]).collect();
        assert!(held.into_iter().eq((0..200).map(|number| number % 100)));
        drop(near);
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
        assert!(matches!(link(&folder.path().join("no/link"), Vec::new(), &Log::discard()), Err(ServeError::NoFolder(_))));
        let file = folder.path().join("file");
        fs::write(&file, "x").unwrap();
        assert!(matches!(link(&file, Vec::new(), &Log::discard()), Err(ServeError::NotASocket(_))));
    }
}

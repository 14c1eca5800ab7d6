//! A capture of the wire as a pcapng file, which a thread of its own writes.
//!
//! The switch hands frames over and never waits. What the file does not take in time is dropped and counted, and an error of the
//! file ends the capture, not the devices.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use bareverbs_sim::PortKind;
use bareverbs_sim::capture::PcapNg;
use bareverbs_sim::fabric::Tap;

use crate::log::Log;

/// Bytes that wait for the file at most.
const MAX_BYTES: usize = 16 << 20;
/// Timeout of [`Capture::finish`] for a file that does not accept data.
const FINISH_TIMEOUT: Duration = Duration::from_secs(5);

/// A capture of the wire of one server. Clones are the same capture.
#[derive(Clone)]
pub struct Capture {
    queue: Arc<Producers>,
}

impl fmt::Debug for Capture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Capture").finish_non_exhaustive()
    }
}

/// Blocks of the file that are not written yet.
#[derive(Default)]
struct Queue {
    state: Mutex<QueueState>,
    /// Something changed: bytes wait, or are written.
    changed: Condvar,
}

/// Those who put frames into the queue. After the last one the thread ends.
struct Producers(Arc<Queue>);

impl Drop for Producers {
    fn drop(&mut self) {
        self.0.state().closed = true;
        self.0.changed.notify_all();
    }
}

#[derive(Default)]
struct QueueState {
    waiting: Vec<u8>,
    /// The thread is writing what it took from `waiting`.
    writes: bool,
    dropped: u64,
    /// Nothing is written any more: the file failed, or the reader of a pipe has closed its end.
    ended: bool,
    failed: Option<io::Error>,
    /// Nothing more comes.
    closed: bool,
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes what waits, again and again.
    fn write_all(&self, mut output: impl Write, log: &Log) {
        let mut bytes = Vec::new();
        loop {
            let mut state = self.state();
            state.writes = false;
            self.changed.notify_all();
            while state.waiting.is_empty() {
                if state.closed {
                    return;
                }
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            std::mem::swap(&mut bytes, &mut state.waiting);
            state.writes = true;
            drop(state);
            let written = output.write_all(&bytes).and_then(|()| output.flush());
            bytes.clear();
            if let Err(error) = written {
                let mut state = self.state();
                (state.ended, state.writes, state.waiting) = (true, false, Vec::new());
                // A reader that closed its end of a pipe is no failure.
                if error.kind() != io::ErrorKind::BrokenPipe {
                    log.line(format!("capture: {error}; nothing more is captured"));
                    state.failed = Some(error);
                }
                self.changed.notify_all();
                return;
            }
        }
    }
}

/// The blocks of the file on their way to the queue. Each call writes whole blocks, or none of them if there is no room.
struct QueueWriter(Arc<Producers>);

impl Write for QueueWriter {
    fn write(&mut self, block: &[u8]) -> io::Result<usize> {
        let queue = &self.0.0;
        let mut state = queue.state();
        if state.ended {
            return Ok(block.len());
        }
        if state.waiting.len().saturating_add(block.len()) > MAX_BYTES {
            state.dropped += 1;
            return Ok(block.len());
        }
        let wake = state.waiting.is_empty();
        state.waiting.extend_from_slice(block);
        drop(state);
        if wake {
            queue.changed.notify_all();
        }
        Ok(block.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Capture {
    /// Creates a capture in the file at `path`, replacing the file, and the thread that writes it. The error that ends it early
    /// goes to `log` at once.
    ///
    /// # Errors
    /// The file or the thread could not be created.
    pub fn create(path: &Path, log: &Log) -> io::Result<Self> {
        Self::new(File::create(path)?, log)
    }

    fn new(output: impl Write + Send + 'static, log: &Log) -> io::Result<Self> {
        let queue = Arc::<Queue>::default();
        let (shared, log) = (Arc::clone(&queue), log.clone());
        thread::Builder::new().name("capture".into()).spawn(move || shared.write_all(output, &log))?;
        Ok(Self { queue: Arc::new(Producers(queue)) })
    }

    /// Returns the tap for a wire whose clock starts now, with the names and kinds of its ports in their order.
    pub(crate) fn tap(&self, ports: impl Iterator<Item = (String, PortKind)>) -> Box<dyn Tap + Send> {
        // A clock before 1970 is set wrong.
        let clock_start = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let mut file = PcapNg::new(QueueWriter(Arc::clone(&self.queue)), clock_start);
        ports.for_each(|(name, kind)| file.add_port(&name, kind));
        Box::new(file)
    }

    /// Returns the number of frames that the file did not take in time.
    pub fn dropped(&self) -> u64 {
        self.queue.0.state().dropped
    }

    /// Waits until all frames so far are written.
    ///
    /// # Errors
    /// The error of the file after which nothing was written, or [`io::ErrorKind::TimedOut`] if it accepts no data for five
    /// seconds.
    pub fn finish(&self) -> io::Result<()> {
        let deadline = Instant::now() + FINISH_TIMEOUT;
        let queue = &self.queue.0;
        let mut state = queue.state();
        while !state.ended && (state.writes || !state.waiting.is_empty()) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            state = queue.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.failed.take().map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{self, Receiver};

    use bareverbs::platform::Instant;
    use bareverbs_sim::fabric::Direction;
    use bareverbs_sim::wire::PortId;

    use super::*;
    use crate::shared_buffer::Buffer;

    /// An output that takes nothing before the test opens it.
    struct Gate {
        open: Receiver<()>,
        bytes: Buffer,
    }

    impl Write for Gate {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            // Returns at once after the test has dropped the sender.
            let _ = self.open.recv();
            self.bytes.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn tap(capture: &Capture) -> Box<dyn Tap + Send> {
        capture.tap([("lid1".to_owned(), PortKind::Ethernet { mac: [2, 0, 0, 0, 0, 1] })].into_iter())
    }

    /// The lengths of the blocks of a file.
    fn blocks(mut bytes: &[u8]) -> Vec<usize> {
        let mut lengths = Vec::new();
        while let Some(len) = bytes.get(4..).and_then(|rest| rest.first_chunk()) {
            let len = u32::from_le_bytes(*len) as usize;
            lengths.push(len);
            bytes = &bytes[len..];
        }
        assert!(bytes.is_empty(), "whole blocks");
        lengths
    }

    #[test]
    fn a_file_that_takes_nothing_costs_frames_and_no_time() {
        const FRAME: usize = 9000;
        const FRAMES: u64 = 4000;
        let (key, open) = mpsc::channel();
        let bytes = Buffer::default();
        let capture = Capture::new(Gate { open, bytes: bytes.clone() }, &Log::discard()).unwrap();
        let mut tap = tap(&capture);
        for _ in 0..FRAMES {
            tap.frame(Instant::default(), PortId(0), Direction::ToPort, &[0; FRAME]);
        }
        let dropped = capture.dropped();
        // A turn of the thread may have taken as much as may wait.
        assert!(dropped > FRAMES - 2 * (MAX_BYTES / FRAME) as u64 - 1 && dropped < FRAMES, "{dropped}");
        drop(key);
        capture.finish().unwrap();
        tap.frame(Instant::default(), PortId(0), Direction::ToPort, &[0; FRAME]);
        capture.finish().unwrap();
        let frames = blocks(&bytes.bytes()).into_iter().filter(|len| *len > FRAME).count();
        assert_eq!(frames as u64, FRAMES - dropped + 1, "it goes on");
    }

    #[test]
    fn an_error_is_said_at_once_and_returned_at_the_end() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::StorageFull.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let said = Buffer::default();
        let log = Log::new(Box::new(said.clone())).unwrap();
        let capture = Capture::new(Full, &log).unwrap();
        let mut tap = tap(&capture);
        let start = std::time::Instant::now();
        while said.bytes().is_empty() && start.elapsed() < Duration::from_secs(60) {
            thread::sleep(Duration::from_millis(1));
        }
        let text = String::from_utf8(said.bytes()).unwrap();
        assert!(text.starts_with("capture: no storage space; nothing more is captured"), "{text}");
        for _ in 0..10_000 {
            tap.frame(Instant::default(), PortId(0), Direction::ToPort, &[0; 9000]);
        }
        assert_eq!((capture.dropped(), capture.queue.0.state().waiting.len()), (0, 0));
        assert_eq!(capture.finish().unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
}

//! Writes lines on a separate thread, so that a blocked terminal does not block the sources of the lines.
//!
//! Each source has a queue of bounded length. A full queue blocks its own source, or drops the lines of that source, and
//! affects no other. Lines are written in the order of their arrival, across all queues.

use std::fmt;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Maximum number of lines in the queue of a source, and of their bytes.
const MAX_LINES: usize = 8192;
const MAX_BYTES: usize = 4 << 20;

/// How often a waiting source checks that the writing thread still runs.
const LIVENESS_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// What happens to a line whose queue is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WhenFull {
    /// The source waits for room: for a file, which accepts all data eventually.
    Wait,
    /// The line is dropped and counted: for a terminal or a pipe, which may block for hours.
    Drop,
}

/// Occupancy of the queue of one source.
#[derive(Default)]
struct SourceQueue {
    waiting: Mutex<Waiting>,
    room: Condvar,
}

#[derive(Default)]
struct Waiting {
    lines: usize,
    bytes: usize,
}

impl SourceQueue {
    /// Reserves room for a line of `len` bytes, and waits for room as long as `wait` returns `true`. Returns whether there was room.
    fn enter(&self, len: usize, wait: impl Fn() -> bool) -> bool {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        while waiting.lines >= MAX_LINES || waiting.bytes >= MAX_BYTES {
            if !wait() {
                return false;
            }
            waiting = self.room.wait_timeout(waiting, LIVENESS_CHECK_INTERVAL).unwrap_or_else(PoisonError::into_inner).0;
        }
        waiting.lines += 1;
        waiting.bytes += len;
        true
    }

    /// Releases the room of a line that has been written.
    fn leave(&self, len: usize) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.lines -= 1;
        waiting.bytes -= len;
        drop(waiting);
        self.room.notify_one();
    }
}

enum Order {
    Line(Arc<SourceQueue>, String),
    /// A request to flush all lines before it, then to reply.
    Flush(SyncSender<()>),
}

#[derive(Default)]
struct State {
    dropped: AtomicU64,
    /// The writer thread has ended.
    ended: AtomicBool,
    failed: Mutex<Option<io::Error>>,
}

/// A writer thread, as seen from one source of lines. Clones share the queue of that source.
#[derive(Clone)]
pub(crate) struct Writer {
    orders: Sender<Order>,
    queue: Arc<SourceQueue>,
    when_full: WhenFull,
    state: Arc<State>,
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").field("when_full", &self.when_full).finish_non_exhaustive()
    }
}

impl Writer {
    /// Starts the writer thread.
    ///
    /// # Errors
    /// The thread could not be started.
    pub(crate) fn new(name: &str, output: Box<dyn Write + Send>, when_full: WhenFull) -> io::Result<Self> {
        let (orders, waiting) = mpsc::channel();
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        thread::Builder::new().name(name.into()).spawn(move || {
            write_all(&waiting, output, &shared);
            shared.ended.store(true, Ordering::Relaxed);
        })?;
        Ok(Self { orders, queue: Arc::default(), when_full, state })
    }

    /// Returns a writer to the same output with a separate queue, for another source of lines.
    pub(crate) fn for_source(&self) -> Self {
        Self { queue: Arc::default(), ..self.clone() }
    }

    /// Queues a line, given without its line feed.
    pub(crate) fn line(&self, line: String) {
        let Self { orders, queue, when_full, state } = self;
        let len = line.len();
        if !queue.enter(len, || *when_full == WhenFull::Wait && !state.ended.load(Ordering::Relaxed)) {
            state.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        if orders.send(Order::Line(Arc::clone(queue), line)).is_err() {
            // The thread has ended: the line is lost.
            queue.leave(len);
        }
    }

    /// Returns whether the lines of one turn of a device can be queued without waiting: at least three quarters of its queue
    /// are free.
    pub(crate) fn has_room(&self) -> bool {
        let waiting = self.queue.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        self.when_full == WhenFull::Drop || (waiting.lines < MAX_LINES / 4 && waiting.bytes < MAX_BYTES / 4)
    }

    /// Returns the number of lines dropped so far because a queue was full.
    pub(crate) fn dropped(&self) -> u64 {
        self.state.dropped.load(Ordering::Relaxed)
    }

    /// Waits up to `limit` until everything is written.
    ///
    /// # Errors
    /// The first error of the output, after which nothing was written, or [`io::ErrorKind::TimedOut`]. A reader that closed its
    /// end of a pipe is no error.
    pub(crate) fn finish(&self, limit: Duration) -> io::Result<()> {
        let (done, answer) = mpsc::sync_channel(1);
        let asked = self.orders.send(Order::Flush(done)).is_ok();
        if !asked || answer.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.state.failed.lock().unwrap_or_else(PoisonError::into_inner).take().map_or(Ok(()), Err)
    }
}

/// Writes lines until all senders are dropped.
fn write_all(orders: &Receiver<Order>, output: Box<dyn Write + Send>, state: &State) {
    let mut output = io::BufWriter::new(output);
    let (mut reported, mut works) = (0, true);
    let note = |result: io::Result<()>| {
        if let Err(error) = result {
            // A reader that closed its end of a pipe is no failure.
            if error.kind() == io::ErrorKind::BrokenPipe {
                return false;
            }
            state.failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            return false;
        }
        true
    };
    while let Ok(first) = orders.recv() {
        // Flushed when the queue is empty, so that a person can follow the output.
        for order in std::iter::once(first).chain(orders.try_iter()) {
            let dropped = state.dropped.load(Ordering::Relaxed);
            if works && dropped > reported {
                works = note(writeln!(output, "({} lines dropped here)", dropped - reported));
                reported = dropped;
            }
            match order {
                Order::Line(queue, line) => {
                    if works {
                        works = note(writeln!(output, "{line}"));
                    }
                    queue.leave(line.len());
                }
                Order::Flush(done) => {
                    works = works && note(output.flush());
                    // The caller may have timed out.
                    let _ = done.try_send(());
                }
            }
        }
        works = works && note(output.flush());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::shared_buffer::Buffer;

    /// An output that blocks until the test opens it.
    struct Gate {
        open: Receiver<()>,
        text: Buffer,
    }

    impl Write for Gate {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            // Returns at once after the test has dropped the sender.
            let _ = self.open.recv();
            self.text.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_are_written_in_order() {
        let text = Buffer::default();
        let writer = Writer::new("test", Box::new(text.clone()), WhenFull::Wait).unwrap();
        (0..20_000).for_each(|number| writer.line(number.to_string()));
        writer.finish(Duration::from_secs(60)).unwrap();
        assert_eq!(writer.dropped(), 0);
        let expected: String = (0..20_000).map(|number| format!("{number}\n")).collect();
        assert!(text.bytes() == expected.as_bytes());
    }

    #[test]
    fn a_blocked_output_does_not_block_the_source() {
        const LINES: u64 = 50_000;
        let (key, open) = mpsc::channel();
        let text = Buffer::default();
        let writer = Writer::new("test", Box::new(Gate { open, text: text.clone() }), WhenFull::Drop).unwrap();
        let start = Instant::now();
        (0..LINES).for_each(|number| writer.line(format!("{number:0100}")));
        let stuck = writer.finish(Duration::from_millis(50)).unwrap_err();
        assert_eq!(stuck.kind(), io::ErrorKind::TimedOut);
        assert!(writer.dropped() > LINES / 2);
        assert!(start.elapsed() < Duration::from_secs(20));
        drop(key);
        writer.finish(Duration::from_secs(60)).unwrap();
        let text = String::from_utf8(text.bytes()).unwrap();
        let (reports, lines): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| line.ends_with("dropped here)"));
        assert_eq!((reports.is_empty(), lines.len() as u64), (false, LINES - writer.dropped()));
        assert!(lines.is_sorted());
    }

    #[test]
    fn a_queue_filled_to_a_quarter_has_no_room_for_a_step() {
        let (key, open) = mpsc::channel();
        let output = Box::new(Gate { open, text: Buffer::default() });
        let writer = Writer::new("test", output, WhenFull::Wait).unwrap();
        let other = writer.for_source();
        assert!(writer.has_room());
        (0..MAX_LINES / 4).for_each(|_| writer.line("line".into()));
        // The thread may have received a few lines before the output blocked.
        writer.line("x".repeat(MAX_BYTES / 4));
        assert!(!writer.has_room() && writer.clone().has_room() == writer.has_room() && other.has_room());
        drop(key);
        writer.finish(Duration::from_secs(60)).unwrap();
        assert!(writer.has_room());
    }

    #[test]
    fn a_full_queue_blocks_only_its_own_source() {
        const LINES: usize = 20_000;
        let (key, open) = mpsc::channel();
        let text = Buffer::default();
        let writer = Writer::new("test", Box::new(Gate { open, text: text.clone() }), WhenFull::Wait).unwrap();
        let (many, few) = (writer.for_source(), writer.for_source());
        let (sent, count) = mpsc::channel();
        let flooding = thread::spawn(move || {
            (0..LINES).for_each(|number| {
                many.line(format!("many {number}"));
                sent.send(()).unwrap();
            });
        });
        let mut lines = 0;
        while count.recv_timeout(Duration::from_millis(500)).is_ok() {
            lines += 1;
        }
        assert!(lines < LINES, "it waits");
        let (sent, done) = mpsc::channel();
        let other = thread::spawn(move || {
            (0..10).for_each(|number| few.line(format!("few {number}")));
            sent.send(()).unwrap();
        });
        assert!(done.recv_timeout(Duration::from_secs(10)).is_ok(), "the other one does not");
        drop(key);
        flooding.join().unwrap();
        other.join().unwrap();
        writer.finish(Duration::from_secs(60)).unwrap();
        let text = String::from_utf8(text.bytes()).unwrap();
        for (name, count) in [("many ", LINES), ("few ", 10)] {
            let numbers =
                text.lines().filter_map(|line| line.strip_prefix(name)).map(|number| number.parse::<usize>().unwrap());
            assert!(numbers.eq(0..count), "each once, in order");
        }
        assert_eq!(writer.dropped(), 0);
    }

    #[test]
    fn the_first_error_is_kept() {
        /// Fails in a different way each time.
        struct Broken {
            errors: std::vec::IntoIter<io::ErrorKind>,
        }
        impl Write for Broken {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                let error = self.errors.next().unwrap_or(io::ErrorKind::Other);
                Err(error.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        for (errors, kept) in [
            (vec![io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded], Err(io::ErrorKind::StorageFull)),
            // The reader of a pipe has had enough: no failure, and nothing is written any more.
            (vec![io::ErrorKind::BrokenPipe, io::ErrorKind::StorageFull], Ok(())),
        ] {
            let broken = Broken { errors: errors.into_iter() };
            let writer = Writer::new("test", Box::new(broken), WhenFull::Wait).unwrap();
            (0..20_000).for_each(|_| writer.line("x".into()));
            let finished = writer.finish(Duration::from_secs(60));
            assert_eq!(finished.map_err(|error| error.kind()), kept);
        }
    }
}

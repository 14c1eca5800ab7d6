//! Lines that a thread of their own writes: their source hardly waits for a terminal that stands still.
//!
//! Lines that wait are counted in lanes, one for each source: a full lane holds up, or loses the lines of, its own source alone.
//! They are written in the order in which they came, whatever their lanes.

use std::fmt;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Lines of a lane that wait at most, and their bytes.
const MAX_LINES: usize = 8192;
const MAX_BYTES: usize = 4 << 20;

/// How often a waiting source checks that the writing thread still runs.
const LIVENESS_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// What becomes of a line when too many wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WhenFull {
    /// It waits: for a file, which takes everything in the end.
    Wait,
    /// It is dropped and counted: for a terminal or a pipe, which may take nothing for hours.
    Drop,
}

/// Lines of one source that wait.
#[derive(Default)]
struct Lane {
    waiting: Mutex<Waiting>,
    room: Condvar,
}

#[derive(Default)]
struct Waiting {
    lines: usize,
    bytes: usize,
}

impl Lane {
    /// Makes room for a line. `false` if there is none, which is waited for if `wait` says so.
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

    /// A line has been written.
    fn leave(&self, len: usize) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.lines -= 1;
        waiting.bytes -= len;
        drop(waiting);
        self.room.notify_one();
    }
}

enum Order {
    Line(Arc<Lane>, String),
    /// Everything before it is written out; then this is answered.
    Flush(SyncSender<()>),
}

#[derive(Default)]
struct State {
    dropped: AtomicU64,
    /// Nobody writes any more.
    ended: AtomicBool,
    failed: Mutex<Option<io::Error>>,
}

/// Where lines go. Clones share a lane.
#[derive(Clone)]
pub(crate) struct Writer {
    orders: Sender<Order>,
    lane: Arc<Lane>,
    when_full: WhenFull,
    state: Arc<State>,
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").field("when_full", &self.when_full).finish_non_exhaustive()
    }
}

impl Writer {
    /// Starts the thread.
    ///
    /// # Errors
    /// There are no more threads.
    pub(crate) fn new(name: &str, output: Box<dyn Write + Send>, when_full: WhenFull) -> io::Result<Self> {
        let (orders, waiting) = mpsc::channel();
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        thread::Builder::new().name(name.into()).spawn(move || {
            write_all(&waiting, output, &shared);
            shared.ended.store(true, Ordering::Relaxed);
        })?;
        Ok(Self { orders, lane: Arc::default(), when_full, state })
    }

    /// The same output, with a lane of its own: for another source of lines.
    pub(crate) fn lane(&self) -> Self {
        Self { lane: Arc::default(), ..self.clone() }
    }

    /// Has a line written, without its end.
    pub(crate) fn line(&self, line: String) {
        let Self { orders, lane, when_full, state } = self;
        let len = line.len();
        if !lane.enter(len, || *when_full == WhenFull::Wait && !state.ended.load(Ordering::Relaxed)) {
            state.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        if orders.send(Order::Line(Arc::clone(lane), line)).is_err() {
            // Without a thread there is nobody to write it.
            lane.leave(len);
        }
    }

    /// Whether the lines of a turn of a device will not have to wait: its lane has at least three quarters of its room left.
    pub(crate) fn has_room(&self) -> bool {
        let waiting = self.lane.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        self.when_full == WhenFull::Drop || (waiting.lines < MAX_LINES / 4 && waiting.bytes < MAX_BYTES / 4)
    }

    /// Lines that were dropped so far because too many waited.
    pub(crate) fn dropped(&self) -> u64 {
        self.state.dropped.load(Ordering::Relaxed)
    }

    /// Waits until everything is written, at most for `limit`.
    ///
    /// # Errors
    /// The first error of the output, after which nothing was written; none if a reader closed its end of a pipe. Or the output
    /// still takes nothing ([`io::ErrorKind::TimedOut`]).
    pub(crate) fn finish(&self, limit: Duration) -> io::Result<()> {
        let (done, answer) = mpsc::sync_channel(1);
        let asked = self.orders.send(Order::Flush(done)).is_ok();
        if !asked || answer.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.state.failed.lock().unwrap_or_else(PoisonError::into_inner).take().map_or(Ok(()), Err)
    }
}

/// Writes what comes, until nobody is left who could send anything.
fn write_all(orders: &Receiver<Order>, output: Box<dyn Write + Send>, state: &State) {
    let mut output = io::BufWriter::new(output);
    let (mut told, mut works) = (0, true);
    let note = |result: io::Result<()>| {
        if let Err(error) = result {
            // A reader that closed its end of a pipe wants no more: that is no failure.
            if error.kind() == io::ErrorKind::BrokenPipe {
                return false;
            }
            state.failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            return false;
        }
        true
    };
    while let Ok(first) = orders.recv() {
        // Written out when no more wait: people read along.
        for order in std::iter::once(first).chain(orders.try_iter()) {
            let dropped = state.dropped.load(Ordering::Relaxed);
            if works && dropped > told {
                works = note(writeln!(output, "({} lines dropped here)", dropped - told));
                told = dropped;
            }
            match order {
                Order::Line(lane, line) => {
                    if works {
                        works = note(writeln!(output, "{line}"));
                    }
                    lane.leave(line.len());
                }
                Order::Flush(done) => {
                    works = works && note(output.flush());
                    // The caller may have given up.
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

    /// An output that takes nothing until it is let.
    struct Gate {
        open: Receiver<()>,
        text: Buffer,
    }

    impl Write for Gate {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            // Open for good once the other end is gone.
            let _ = self.open.recv();
            self.text.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_are_written_in_their_order() {
        let text = Buffer::default();
        let writer = Writer::new("test", Box::new(text.clone()), WhenFull::Wait).unwrap();
        (0..20_000).for_each(|number| writer.line(number.to_string()));
        writer.finish(Duration::from_secs(60)).unwrap();
        assert_eq!(writer.dropped(), 0);
        let expected: String = (0..20_000).map(|number| format!("{number}\n")).collect();
        assert!(text.bytes() == expected.as_bytes());
    }

    #[test]
    fn an_output_that_stands_still_stops_nobody() {
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
        let (told, lines): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| line.ends_with("dropped here)"));
        assert_eq!((told.is_empty(), lines.len() as u64), (false, LINES - writer.dropped()));
        assert!(lines.is_sorted());
    }

    #[test]
    fn a_lane_with_a_quarter_of_its_lines_has_no_room_for_a_turn() {
        let (key, open) = mpsc::channel();
        let output = Box::new(Gate { open, text: Buffer::default() });
        let writer = Writer::new("test", output, WhenFull::Wait).unwrap();
        let other = writer.lane();
        assert!(writer.has_room());
        (0..MAX_LINES / 4).for_each(|_| writer.line("line".into()));
        // The thread may have taken a few before the output stood still.
        writer.line("x".repeat(MAX_BYTES / 4));
        assert!(!writer.has_room() && writer.clone().has_room() == writer.has_room() && other.has_room());
        drop(key);
        writer.finish(Duration::from_secs(60)).unwrap();
        assert!(writer.has_room());
    }

    #[test]
    fn a_full_lane_stops_its_own_source_alone() {
        const LINES: usize = 20_000;
        let (key, open) = mpsc::channel();
        let text = Buffer::default();
        let writer = Writer::new("test", Box::new(Gate { open, text: text.clone() }), WhenFull::Wait).unwrap();
        let (many, few) = (writer.lane(), writer.lane());
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
        struct Broken;
        impl Write for Broken {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let writer = Writer::new("test", Box::new(Broken), WhenFull::Wait).unwrap();
        (0..20_000).for_each(|_| writer.line("x".into()));
        let error = writer.finish(Duration::from_secs(60)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}

//! Lines that a thread of their own writes: whoever has one does not wait for a terminal that stands still, or hardly.

use std::fmt;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Lines that wait at most.
const WAITING: usize = 8192;

/// What becomes of a line when too many wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// It waits: for a file, which takes everything in the end.
    Wait,
    /// It is dropped and counted: for a terminal or a pipe, which may take nothing for hours.
    Drop,
}

enum Order {
    Line(String),
    /// Everything before it is written out; then this is answered.
    Flush(SyncSender<()>),
}

#[derive(Default)]
struct State {
    dropped: AtomicU64,
    failed: Mutex<Option<io::Error>>,
}

/// Where lines go. Clones are the same.
#[derive(Clone)]
pub struct Writer {
    orders: SyncSender<Order>,
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
    pub fn new(name: &str, output: Box<dyn Write + Send>, when_full: WhenFull) -> io::Result<Self> {
        let (orders, waiting) = mpsc::sync_channel(WAITING);
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        thread::Builder::new().name(name.into()).spawn(move || write_all(&waiting, output, &shared))?;
        Ok(Self { orders, when_full, state })
    }

    /// Has a line written, without its end.
    pub fn line(&self, line: String) {
        // Without a thread there is nobody to write it.
        let _ = match self.when_full {
            WhenFull::Wait => self.orders.send(Order::Line(line)).map_err(|_| ()),
            WhenFull::Drop => self.orders.try_send(Order::Line(line)).map_err(|error| {
                if matches!(error, TrySendError::Full(_)) {
                    self.state.dropped.fetch_add(1, Ordering::Relaxed);
                }
            }),
        };
    }

    /// Lines that were dropped so far because too many waited.
    pub fn dropped(&self) -> u64 {
        self.state.dropped.load(Ordering::Relaxed)
    }

    /// Waits until everything is written, at most for `limit`.
    ///
    /// # Errors
    /// The first error of the output, after which nothing was written; or it still takes nothing ([`io::ErrorKind::TimedOut`]).
    pub fn finish(&self, limit: Duration) -> io::Result<()> {
        let end = Instant::now() + limit;
        let (done, answer) = mpsc::sync_channel(1);
        let mut order = Order::Flush(done);
        let asked = loop {
            match self.orders.try_send(order) {
                Ok(()) => break true,
                Err(TrySendError::Full(back)) if Instant::now() < end => order = back,
                Err(_) => break false,
            }
            thread::sleep(Duration::from_millis(1));
        };
        let left = end.saturating_duration_since(Instant::now());
        if !asked || answer.recv_timeout(left) == Err(RecvTimeoutError::Timeout) {
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
                Order::Line(line) if works => works = note(writeln!(output, "{line}")),
                Order::Line(_) => {}
                Order::Flush(done) => {
                    works = works && note(output.flush());
                    // Whoever asked may have given up.
                    let _ = done.try_send(());
                }
            }
        }
        works = works && note(output.flush());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::Buffer;

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

//! The log of the server, for its operator. A log whose reader blocks or has closed its end of a pipe delays no device.

use std::fmt;
use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::line_writer::{WhenFull, Writer};

/// How long [`Log::finish`] waits for an output that takes nothing.
const FINISH_TIMEOUT: Duration = Duration::from_secs(2);

/// Where the messages of a server go, one a line. A clone is the same log.
#[derive(Clone, Debug)]
pub struct Log(Option<Writer>);

impl Log {
    /// Creates a log and the thread that writes it to `output`. Lines that the output does not accept in time are dropped and
    /// counted in it.
    ///
    /// # Errors
    /// The thread could not be started.
    pub fn new(output: Box<dyn Write + Send>) -> io::Result<Self> {
        Ok(Self(Some(Writer::new("messages", output, WhenFull::Drop)?)))
    }

    /// Creates a log that discards all lines.
    pub const fn discard() -> Self {
        Self(None)
    }

    /// Writes a line.
    pub fn line(&self, text: String) {
        if let Some(writer) = &self.0 {
            writer.line(text);
        }
    }

    /// Waits until all lines are written, for two seconds at most.
    pub fn finish(&self) {
        if let Some(writer) = &self.0 {
            // There is no other place to report that it failed.
            let _ = writer.finish(FINISH_TIMEOUT);
        }
    }
}

/// Number of lines that a client may cause at once.
const BURST: u32 = 20;
/// Interval after which a client may cause another line.
const REFILL_INTERVAL: Duration = Duration::from_secs(1);

/// Log of one device for lines that its client can cause: excess lines are counted and left out.
pub(crate) struct RateLimited {
    device: String,
    log: Log,
    allowance: Mutex<Allowance>,
}

struct Allowance {
    left: u32,
    /// Start of the current refill interval.
    since: Instant,
    left_out: u64,
}

impl Allowance {
    fn new(now: Instant) -> Self {
        Self { left: BURST, since: now, left_out: 0 }
    }

    /// Returns how many lines were left out before this one; `None` if this one must be left out too.
    fn take(&mut self, now: Instant) -> Option<u64> {
        let grown = now.saturating_duration_since(self.since).as_secs() / REFILL_INTERVAL.as_secs();
        let grown = u32::try_from(grown).unwrap_or(u32::MAX);
        if self.left.saturating_add(grown) >= BURST {
            (self.left, self.since) = (BURST, now);
        } else {
            self.left += grown;
            self.since += REFILL_INTERVAL * grown;
        }
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                Some(std::mem::take(&mut self.left_out))
            }
            None => {
                self.left_out += 1;
                None
            }
        }
    }
}

impl RateLimited {
    /// Creates the log of the device called `device`.
    pub(crate) fn new(device: String, log: Log) -> Self {
        Self { device, log, allowance: Mutex::new(Allowance::new(Instant::now())) }
    }

    /// Returns the name of the device.
    pub(crate) fn name(&self) -> &str {
        &self.device
    }

    /// Writes a line with the name of the device, unless the client has caused too many.
    pub(crate) fn line(&self, text: fmt::Arguments<'_>) {
        let allowed = self.allowance.lock().unwrap_or_else(PoisonError::into_inner).take(Instant::now());
        if let Some(left_out) = allowed {
            self.log_left_out(left_out);
            self.log.line(format!("{}: {text}", self.device));
        }
    }

    /// Logs how many lines were left out since the last one.
    pub(crate) fn finish(&self) {
        let left_out = std::mem::take(&mut self.allowance.lock().unwrap_or_else(PoisonError::into_inner).left_out);
        self.log_left_out(left_out);
    }

    fn log_left_out(&self, left_out: u64) {
        if left_out > 0 {
            self.log.line(format!("{}: {left_out} lines about its client left out", self.device));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_beyond_the_limit_are_counted_until_the_next_interval() {
        let start = Instant::now();
        let mut allowance = Allowance::new(start);
        let logged = (0..1000).filter(|_| allowance.take(start) == Some(0)).count();
        assert_eq!(logged, BURST as usize);
        assert_eq!(allowance.take(start + REFILL_INTERVAL), Some(1000 - u64::from(BURST)));
        assert_eq!(allowance.take(start + REFILL_INTERVAL * 3 / 2), None);
        assert_eq!(allowance.take(start + REFILL_INTERVAL * 2), Some(1), "half a second is not lost");
        let later = start + REFILL_INTERVAL * 1000;
        assert_eq!((0..1000).filter(|_| allowance.take(later).is_some()).count(), BURST as usize);
    }
}

//! What the server tells people, on standard error: no device waits for whoever reads it, or ends because nobody does.

use std::fmt;
use std::io::{self, Write as _};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::line_writer::{WhenFull, Writer};

/// How long the end of the server waits for a terminal that takes nothing.
const PATIENCE: Duration = Duration::from_secs(2);

fn writer() -> Option<&'static Writer> {
    static WRITER: OnceLock<Option<Writer>> = OnceLock::new();
    WRITER.get_or_init(|| Writer::new("messages", Box::new(io::stderr()), WhenFull::Drop).ok()).as_ref()
}

/// Tells a line.
pub fn line(text: String) {
    match writer() {
        Some(writer) => writer.line(text),
        None => {
            // A reader that has gone wants no more.
            let _ = writeln!(io::stderr(), "{text}");
        }
    }
}

/// Waits until all lines are told, unless nobody takes them.
pub fn finish() {
    if let Some(writer) = writer() {
        // There is nobody left to tell that it failed.
        let _ = writer.finish(PATIENCE);
    }
}

/// Lines that a client may cause at once, and how often it may cause another one then.
const BURST: u32 = 20;
const EACH: Duration = Duration::from_secs(1);

/// Lines about one device that its client causes: those that are too many are counted.
pub(crate) struct Limited {
    device: String,
    allowance: Mutex<Allowance>,
}

struct Allowance {
    left: u32,
    /// Since when the next one grows.
    since: Instant,
    left_out: u64,
}

impl Allowance {
    fn new(now: Instant) -> Self {
        Self { left: BURST, since: now, left_out: 0 }
    }

    /// Whether a line may be told now, and how many were left out before it.
    fn take(&mut self, now: Instant) -> Option<u64> {
        let grown = now.saturating_duration_since(self.since).as_secs() / EACH.as_secs();
        let grown = u32::try_from(grown).unwrap_or(u32::MAX);
        if self.left.saturating_add(grown) >= BURST {
            (self.left, self.since) = (BURST, now);
        } else {
            self.left += grown;
            self.since += EACH * grown;
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

impl Limited {
    /// For the device of this name.
    pub(crate) fn new(device: String) -> Self {
        Self { device, allowance: Mutex::new(Allowance::new(Instant::now())) }
    }

    /// Tells a line after the device's name, unless the client has caused too many.
    pub(crate) fn line(&self, text: fmt::Arguments<'_>) {
        let allowed = self.allowance.lock().unwrap_or_else(PoisonError::into_inner).take(Instant::now());
        if let Some(left_out) = allowed {
            self.tell_left_out(left_out);
            line(format!("{}: {text}", self.device));
        }
    }

    /// Tells how many lines were left out since the last one.
    pub(crate) fn finish(&self) {
        let left_out = std::mem::take(&mut self.allowance.lock().unwrap_or_else(PoisonError::into_inner).left_out);
        self.tell_left_out(left_out);
    }

    fn tell_left_out(&self, left_out: u64) {
        if left_out > 0 {
            line(format!("{}: {left_out} lines about its client left out", self.device));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_beyond_the_limit_are_counted_and_come_again_with_time() {
        let start = Instant::now();
        let mut allowance = Allowance::new(start);
        let told = (0..1000).filter(|_| allowance.take(start) == Some(0)).count();
        assert_eq!(told, BURST as usize);
        assert_eq!(allowance.take(start + EACH), Some(1000 - u64::from(BURST)));
        assert_eq!(allowance.take(start + EACH * 3 / 2), None);
        assert_eq!(allowance.take(start + EACH * 2), Some(1), "half a second is not lost");
        let later = start + EACH * 1000;
        assert_eq!((0..1000).filter(|_| allowance.take(later).is_some()).count(), BURST as usize);
    }
}

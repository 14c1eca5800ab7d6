//! A progress bar for jobs longer than a second, on a terminal.

use std::io::IsTerminal as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};

use crate::status_line::QUIET_TIME;

/// Progress of a job, and whether it has been asked to stop.
pub struct Progress {
    started: Instant,
    total: u64,
    /// What is counted.
    unit: &'static str,
    done: u64,
    is_wanted: bool,
    bar: Option<ProgressBar>,
    stop: Arc<AtomicBool>,
}

impl Progress {
    /// Creates the progress of a job of `total` messages, or of another `unit`. A bar appears only if `is_wanted` and standard error is a terminal.
    pub fn new(total: u64, unit: &'static str, is_wanted: bool, stop: Arc<AtomicBool>) -> Self {
        let is_wanted = is_wanted && std::io::stderr().is_terminal();
        Self { started: Instant::now(), total, unit, done: 0, is_wanted, bar: None, stop }
    }

    /// Counts messages of the phase `what`.
    pub fn advance(&mut self, what: &'static str, messages: u64) {
        self.move_to(what, self.done.saturating_add(messages));
    }

    /// Sets what is done, in the phase `what`.
    pub fn move_to(&mut self, what: &'static str, done: u64) {
        self.done = done;
        if self.bar.is_none() && self.is_wanted && self.started.elapsed() > QUIET_TIME {
            self.bar = Some(self.new_bar());
        }
        if let Some(bar) = &self.bar {
            bar.set_message(what);
            bar.set_position(self.done);
        }
    }

    /// Returns whether Ctrl-C has requested a stop.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn new_bar(&self) -> ProgressBar {
        let bar = ProgressBar::new(self.total).with_position(self.done).with_elapsed(self.started.elapsed());
        let template = format!("{{msg:16}} {{wide_bar}} {{human_pos}}/{{human_len}} {}, {{percent}} %, {{elapsed}}", self.unit);
        if let Ok(style) = ProgressStyle::with_template(&template) {
            bar.set_style(style);
        }
        bar
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

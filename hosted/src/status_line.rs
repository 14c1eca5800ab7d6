//! A line on a terminal that shows the state of a job, and is cleared at its end.

use std::io::IsTerminal as _;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// Duration of a wait or a job before a line or a bar of it appears.
pub(crate) const QUIET_TIME: Duration = Duration::from_secs(1);

/// The line, with a spinner in front.
#[derive(Debug)]
pub(crate) struct StatusLine(ProgressBar);

impl StatusLine {
    /// Creates an empty line on standard error, if that is a terminal.
    pub(crate) fn new() -> Option<Self> {
        std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
                bar.set_style(style);
            }
            Self(bar)
        })
    }

    /// Shows another text.
    pub(crate) fn show(&self, text: String) {
        self.0.set_message(text);
        self.0.tick();
    }
}

impl Drop for StatusLine {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

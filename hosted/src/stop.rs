//! Ctrl-C: the first ends a job, the second the process.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result};

/// Error of a job that Ctrl-C ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// Returns a flag that the first SIGINT, SIGTERM or SIGHUP sets. The second signal kills this process.
///
/// # Errors
/// The signals cannot be caught.
pub fn on_ctrl_c() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let asked = stop.clone();
    let handler = move || {
        if asked.swap(true, Ordering::Relaxed) {
            // SIGKILL ends the process without exit handlers. It cannot fail.
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        }
    };
    ctrlc::set_handler(handler).context("Ctrl-C cannot be caught")?;
    Ok(stop)
}

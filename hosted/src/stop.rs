//! Ctrl-C: the first ends a job, the second the process. Under `nohup` the end of the terminal ends neither.
#![expect(unsafe_code, reason = "a signal is set to be ignored")]

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
    catch(move || {
        if asked.swap(true, Ordering::Relaxed) {
            // SIGKILL ends the process without exit handlers. It cannot fail.
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        }
    })?;
    Ok(stop)
}

/// Calls `handler` at each SIGINT, SIGTERM and SIGHUP. A SIGHUP that is ignored now stays so: `nohup` asks for that. SIGINT does not:
/// a script's shell ignores it for what it starts in the background, and scripts end jobs by it.
///
/// # Errors
/// The signals cannot be caught.
pub fn catch(handler: impl FnMut() + Send + 'static) -> Result<()> {
    // SAFETY: no code of this process runs when a signal is ignored.
    let ignore = || unsafe { libc::signal(libc::SIGHUP, libc::SIG_IGN) };
    // It says what was set before.
    let was_ignored = ignore() == libc::SIG_IGN;
    ctrlc::set_handler(handler).context("Ctrl-C cannot be caught")?;
    if was_ignored {
        ignore();
    }
    Ok(())
}

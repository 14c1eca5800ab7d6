//! Ctrl-C: the first ends a job, the second the process. Under `nohup` the end of the terminal ends neither.
#![expect(unsafe_code, reason = "the handler of a signal is set, to none")]

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
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    ctrlc::set_handler(handler).context("Ctrl-C cannot be caught")?;
    if ignored(&status) & 1 << (libc::SIGHUP - 1) != 0 {
        // SAFETY: no code of this process runs when a signal is ignored.
        unsafe { libc::signal(libc::SIGHUP, libc::SIG_IGN) };
    }
    Ok(())
}

/// Returns the ignored signals in the text of `/proc/PID/status` (proc(5)): bit n - 1 for signal n.
fn ignored(status: &str) -> u64 {
    let digits = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    digits.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_bits_of_a_line() {
        let status = "Name:\tbareverbs\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001003\nSigCgt:\t0000000000000440\n";
        assert_eq!((ignored(status), ignored(""), ignored("SigIgn:\tzz")), (0x1003, 0, 0));
    }
}

//! Limits of the file descriptors of this process, divided between the clients so that none can exhaust those of another.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::error::ServeError;
use crate::message_reader::MAX_DESCRIPTORS;

/// Maximum number of memory files of one client.
const MAX_FILES: u64 = 64;

/// Minimum number of memory files of one client: a virtual machine has one for its memory and some for ROMs and video memory.
const MIN_FILES: u64 = 8;

/// Descriptors of the process itself: standard streams, trace, recording, link, control, the file of zeros, and /proc.
const OWN: u64 = 64;

/// Descriptors of a device besides files and vectors: its socket, two for the connection, and those of one message.
const CONNECTION: u64 = 3 + MAX_DESCRIPTORS as u64;

/// Raises this process's soft limit of file descriptors to its hard limit (RLIMIT_NOFILE).
pub fn raise_descriptor_limit() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // If this fails, the limit is read below as it is.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

/// Returns the maximum number of file descriptors of this process.
pub(crate) fn descriptor_limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Returns the maximum number of memory files of each client, with `limit` descriptors for the process.
///
/// # Errors
/// The limit is too low for this many devices.
pub(crate) fn files(limit: u64, devices: usize, vectors: u16) -> Result<usize, ServeError> {
    let devices = devices as u64;
    let fixed = CONNECTION + u64::from(vectors);
    let each = limit.saturating_sub(OWN) / devices.max(1);
    let files = each.saturating_sub(fixed).min(MAX_FILES);
    if files < MIN_FILES {
        return Err(ServeError::Descriptors { limit, least: OWN + devices * (fixed + MIN_FILES) });
    }
    Ok(files as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_clients_together_stay_below_the_limit() {
        for (limit, devices, vectors) in [(1024, 8, 32), (1024, 16, 32), (150, 2, 4), (20_000, 100, 64), (u64::MAX, 300, 256)] {
            let files = files(limit, devices, vectors).unwrap() as u64;
            assert!((MIN_FILES..=MAX_FILES).contains(&files));
            assert!(OWN + devices as u64 * (files + u64::from(vectors) + CONNECTION) <= limit);
        }
        assert_eq!(files(20_000, 100, 32).unwrap(), 64);
        assert!(matches!(files(1024, 20, 32), Err(ServeError::Descriptors { limit: 1024, least: 1244 })));
    }
}

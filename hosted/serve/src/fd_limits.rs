//! File descriptors of this process: as many as it may have, and shared out so that no client takes those of another.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::error::ServeError;
use crate::message_reader::MAX_DESCRIPTORS;

/// Most files that the mappings of one client are of.
const MAX_FILES: u64 = 64;

/// A client with fewer is of no use: a guest's memory is one, its ROMs and video memory are some more.
const MIN_FILES: u64 = 8;

/// Of the process itself: standard streams, trace, recording, link, control, memory that takes the place of files, the threads'
/// looks into /proc.
const OWN: u64 = 64;

/// Of a device beside files and vectors: its socket, the connection and what ends it, and what one message brings.
const CONNECTION: u64 = 3 + MAX_DESCRIPTORS as u64;

/// Raises this process's soft limit of file descriptors to its hard limit (RLIMIT_NOFILE).
pub fn raise_descriptor_limit() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // What is not granted is not counted below.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

/// File descriptors that this process may have.
pub(crate) fn descriptor_limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// How many files the mappings of each client may be of, with `limit` descriptors for all.
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
    fn all_clients_together_have_no_more_than_there_are() {
        for (limit, devices, vectors) in [(1024, 8, 32), (1024, 16, 32), (150, 2, 4), (20_000, 100, 64), (u64::MAX, 300, 256)] {
            let files = files(limit, devices, vectors).unwrap() as u64;
            assert!((MIN_FILES..=MAX_FILES).contains(&files));
            assert!(OWN + devices as u64 * (files + u64::from(vectors) + CONNECTION) <= limit);
        }
        assert_eq!(files(20_000, 100, 32).unwrap(), 64);
        assert!(matches!(files(1024, 20, 32), Err(ServeError::Descriptors { limit: 1024, least: 1244 })));
    }
}

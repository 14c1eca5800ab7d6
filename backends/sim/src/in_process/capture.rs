//! A capture of the wire of a world.

use std::io;
use std::sync::{Arc, PoisonError};

use super::state::{CaptureFile, WorldState};

/// A capture in progress. It goes on when this is dropped, and ends with the world.
#[derive(Debug)]
pub struct Capture {
    world: Arc<WorldState>,
    file: CaptureFile,
}

impl Capture {
    pub(super) const fn new(world: Arc<WorldState>, file: CaptureFile) -> Self {
        Self { world, file }
    }

    /// Ends the capture and flushes its output.
    ///
    /// # Errors
    /// The first error of the output, after which nothing was written.
    pub fn finish(self) -> io::Result<()> {
        self.world.with(|subnet| subnet.end_capture(&self.file));
        self.file.lock().unwrap_or_else(PoisonError::into_inner).finish()
    }
}

//! What set-up returns when it fails.

use std::error;
use std::fmt;

/// Why something could not be set up: an error of the verbs, the driver or the simulated device, with its text.
#[derive(Debug)]
pub struct Error(Box<dyn error::Error + Send + Sync>);

/// Makes an [`Error`] of any other.
pub(crate) fn failed(error: impl Into<Box<dyn error::Error + Send + Sync>>) -> Error {
    Error(error.into())
}

impl Error {
    /// Returns the error itself, to be downcast.
    pub fn get_ref(&self) -> &(dyn error::Error + Send + Sync + 'static) {
        &*self.0
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl error::Error for Error {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        self.0.source()
    }
}

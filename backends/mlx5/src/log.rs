//! Logs operations that failed.

pub(crate) use bareverbs::{format_as, log_event};

use crate::error::Error;

/// Logs the error of an operation that failed.
#[inline]
pub(crate) fn logged<T>(operation: &str, result: Result<T, Error>) -> Result<T, Error> {
    result.inspect_err(|error| log_event!(error, "{} failed: {:?}", operation, error))
}

//! Logs operations that failed.

pub(crate) use bareverbs::{format_as, log_event};

use crate::error::{Error, PackedError};

/// Logs the error of an operation that failed, and returns it in its public form.
#[inline]
pub(crate) fn logged<T>(operation: &str, result: Result<T, PackedError>) -> Result<T, Error> {
    result.map_err(|packed| {
        let error = Error::from(packed);
        log_event!(error, "{} failed: {:?}", operation, error);
        error
    })
}

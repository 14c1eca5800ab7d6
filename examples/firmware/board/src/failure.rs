//! Why a program ended early: what was being done, and the error of whoever could not do it.

use core::fmt::{self, Write as _};

use heapless::String;

/// The reason of an early end, as a line of text: the errors of a program have many types, and no heap to put them in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    text: String<200>,
}

impl Failure {
    /// What went wrong; cut off after 200 bytes.
    pub fn new(what: fmt::Arguments<'_>) -> Self {
        let mut text = String::new();
        // What does not fit is left out: the beginning says most.
        let _ = text.write_fmt(what);
        Self { text }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl core::error::Error for Failure {}

/// Names what was being done when an error came.
pub trait During<T> {
    /// The value, or `what: error`.
    ///
    /// # Errors
    /// That of the operation, as text.
    fn during(self, what: &str) -> Result<T, Failure>;
}

impl<T, E: fmt::Display> During<T> for Result<T, E> {
    fn during(self, what: &str) -> Result<T, Failure> {
        self.map_err(|error| Failure::new(format_args!("{what}: {error}")))
    }
}

impl<T> During<T> for Option<T> {
    fn during(self, what: &str) -> Result<T, Failure> {
        self.ok_or_else(|| Failure::new(format_args!("{what}")))
    }
}

//! Why a program ended early: the operation that failed, and its error.

use core::fmt::{self, Write as _};

use heapless::String;
use spin::Mutex;

/// The text of the last failure.
static TEXT: Mutex<String<200>> = Mutex::new(String::new());

/// The reason of an early end, as a line of text: the errors of a program have many types, and there is no heap to put them in.
/// The text of the last one is kept, in a static: a program ends with its first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure(());

impl Failure {
    /// Creates a failure with this text, cut off after 200 bytes.
    pub fn new(what: fmt::Arguments<'_>) -> Self {
        let mut text = String::new();
        // What does not fit is left out: the beginning says most.
        let _ = Cut(&mut text).write_fmt(what);
        *TEXT.lock() = text;
        Self(())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&TEXT.lock())
    }
}

impl core::error::Error for Failure {}

/// Takes as much of a text as fits.
struct Cut<'a>(&'a mut String<200>);

impl fmt::Write for Cut<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.chars().try_for_each(|letter| self.0.push(letter)).map_err(|_| fmt::Error)
    }
}

/// Names what was being done when an error came.
pub trait During<T> {
    /// Returns the value, or `what: error`.
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

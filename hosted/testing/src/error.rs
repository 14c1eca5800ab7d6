//! What set-up returns when it fails.

use std::error;
use std::fmt;
use std::panic::Location;

/// Why something could not be set up: an error of the verbs, the driver or the simulated device, with its text.
/// Its `Debug` is the text too: a test that returns it prints that.
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

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
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

/// How a test ends that returns the first error that it meets, of whatever type, or a text (`.ok_or("no peer")?`). Its `Debug`, which the
/// harness prints, and its `Display` are the place of the `?` and the text of the error, where a `Box<dyn Error>` prints the names of its fields.
///
/// A queue that could not be destroyed comes back with the error ([`Refused`](bareverbs::Refused)), and does not go into it:
/// `a.verbs.destroy_qp(qp).map_err(Refused::into_error)?`.
///
/// ```
/// use bareverbs::{Refused, SendWr};
/// use bareverbs_testing::{Faults, TestResult, connect, pair};
///
/// fn send_more_than_fits() -> TestResult {
///     let [mut a, mut b] = pair(Faults::none())?;
///     let [mut qa, _qb] = connect(&mut a, &mut b)?;
///     for _ in 0..1000 {
///         qa.qp.send.post(&SendWr::send(b"x"))?;
///     }
///     let (qp, cq) = qa.into_parts();
///     a.verbs.destroy_qp(qp).map_err(Refused::into_error)?;
///     a.verbs.destroy_cq(cq).map_err(Refused::into_error)?;
///     None.ok_or("all of them fit")?;
///     Ok(())
/// }
/// let failure = send_more_than_fits().unwrap_err();
/// let printed = format!("{failure:?}");
/// assert_eq!(printed, failure.to_string());
/// assert!(printed.contains(".rs:") && printed.contains("the send queue is full"), "{printed}");
/// ```
pub struct Failure {
    error: Box<dyn error::Error + Send + Sync>,
    at: &'static Location<'static>,
}

/// What a test returns: see [`Failure`].
pub type TestResult<T = ()> = Result<T, Failure>;

impl<E: Into<Box<dyn error::Error + Send + Sync>>> From<E> for Failure {
    #[track_caller]
    fn from(error: E) -> Self {
        Self { error: error.into(), at: Location::caller() }
    }
}

impl Failure {
    /// Returns the error itself, to be downcast.
    pub fn get_ref(&self) -> &(dyn error::Error + Send + Sync + 'static) {
        &*self.error
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.at, self.error)
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

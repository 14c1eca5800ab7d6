//! Errors of backends.

use crate::error::Errno;

/// An error of a backend: small, with facts, and with an errno.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not the error of a backend",
    note = "backends have one each, as `bareverbs_mlx5::Error`; the errors of `Verbs` contain it"
)]
pub trait DeviceError: Copy + core::fmt::Debug + core::fmt::Display {
    /// Returns the errno that the verbs give for it.
    fn errno(&self) -> Errno;
    /// Returns whether the device may still use the memory that the failed call was about: it did not answer, or said what cannot
    /// be.
    fn may_use_memory(&self) -> bool;
    /// Returns the error of a call that the backend does not have: EOPNOTSUPP.
    fn unsupported() -> Self;
}

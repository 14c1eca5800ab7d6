//! The errno values of the verbs, with the numbers of Linux.

/// An errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[repr(i32)]
#[non_exhaustive]
pub enum Errno {
    /// Not in the same protection domain.
    Eperm = 1,
    /// Stopped by the caller.
    Eintr = 4,
    /// The device failed.
    Eio = 5,
    /// Try again later.
    Eagain = 11,
    /// No room.
    Enomem = 12,
    /// Right missing.
    Eacces = 13,
    /// Bad address.
    Efault = 14,
    /// Still in use.
    Ebusy = 16,
    /// No such device: it is gone.
    Enodev = 19,
    /// Invalid argument or stale handle.
    Einval = 22,
    /// Queue full.
    Enospc = 28,
    /// Out of range.
    Erange = 34,
    /// An invalid message or completion.
    Ebadmsg = 74,
    /// The device cannot do that.
    Eopnotsupp = 95,
    /// Queue pair in the wrong state.
    Enotconn = 107,
    /// The device did not answer, or the port was not usable, in time.
    Etimedout = 110,
}

impl Errno {
    /// Returns the number.
    pub const fn number(self) -> i32 {
        self as i32
    }

    /// Returns the name, as `errno(3)` prints it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Eperm => "EPERM",
            Self::Eintr => "EINTR",
            Self::Eio => "EIO",
            Self::Eagain => "EAGAIN",
            Self::Enomem => "ENOMEM",
            Self::Eacces => "EACCES",
            Self::Efault => "EFAULT",
            Self::Ebusy => "EBUSY",
            Self::Enodev => "ENODEV",
            Self::Einval => "EINVAL",
            Self::Enospc => "ENOSPC",
            Self::Erange => "ERANGE",
            Self::Ebadmsg => "EBADMSG",
            Self::Eopnotsupp => "EOPNOTSUPP",
            Self::Enotconn => "ENOTCONN",
            Self::Etimedout => "ETIMEDOUT",
        }
    }
}

impl core::fmt::Display for Errno {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}

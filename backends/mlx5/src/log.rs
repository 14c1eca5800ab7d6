//! Log lines, to `log` and to `defmt`, whichever is compiled in.

use crate::error::{Error, Fault};

/// `log_event!(info, "…", args)`: a line at that level. Placeholders are those that `log` and `defmt` share.
macro_rules! log_event {
    ($level:ident, $format:literal $(, $arg:expr)* $(,)?) => {{
        #[cfg(feature = "log")]
        ::log::$level!($format $(, $arg)*);
        #[cfg(feature = "defmt")]
        ::defmt::$level!($format $(, $arg)*);
        #[cfg(not(any(feature = "log", feature = "defmt")))]
        { $(let _ = &$arg;)* }
    }};
}
pub(crate) use log_event;

/// Tells the log of an operation that failed.
#[inline]
pub(crate) fn logged<T>(operation: &str, result: Result<T, Fault>) -> Result<T, Error> {
    result.map_err(|fault| {
        let error = Error::from(fault);
        log_event!(error, "{} failed: {:?}", operation, error);
        error
    })
}

/// `format_as!([generics] Type, "…", |this| args)`: `Debug` and `defmt::Format` of a type that cannot derive them, because it holds
/// what has neither, or because too much would be printed. Placeholders as in [`log_event`].
macro_rules! format_as {
    ([$($generics:tt)*] $type:ty, $format:literal, |$this:pat_param| $($arg:expr),* $(,)?) => {
        impl<$($generics)*> core::fmt::Debug for $type {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                let $this = self;
                core::write!(f, $format $(, $arg)*)
            }
        }

        #[cfg(feature = "defmt")]
        impl<$($generics)*> ::defmt::Format for $type {
            fn format(&self, f: ::defmt::Formatter<'_>) {
                let $this = self;
                ::defmt::write!(f, $format $(, $arg)*);
            }
        }
    };
}
pub(crate) use format_as;

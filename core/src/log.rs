//! Log lines and formatting for `log` and `defmt`, whichever of the two is compiled in. Shared by the packages of the project.

/// `log_event!(info, "…", args)` logs a line at that level. Placeholders are those that `log` and `defmt` share. The features
/// `log` and `defmt` are those of the calling package.
#[doc(hidden)]
#[macro_export]
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
pub(crate) use crate::log_event;

/// `format_as!([generics] Type, "…", |this| args)` implements `Debug` and `defmt::Format` for a type that cannot derive them: a
/// field lacks them, or the derived output would be too long. Placeholders and the feature `defmt` are as for `log_event!`.
#[doc(hidden)]
#[macro_export]
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
pub(crate) use crate::format_as;

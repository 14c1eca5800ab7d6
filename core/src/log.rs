//! Log lines, to `log` and to `defmt`, whichever is compiled in.

/// `log_event!(info, "…", args)`: a line at that level. Placeholders are those that `log` and `defmt` share.
macro_rules! log_event {
    ($level:ident, $format:literal $(, $arg:expr)* $(,)?) => {{
        #[cfg(feature = "log")]
        log::$level!($format $(, $arg)*);
        #[cfg(feature = "defmt")]
        defmt::$level!($format $(, $arg)*);
        #[cfg(not(any(feature = "log", feature = "defmt")))]
        { $(let _ = &$arg;)* }
    }};
}
pub(crate) use log_event;

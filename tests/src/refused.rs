//! Looking at refusals.

/// Checks that an operation was refused with this errno and with an error of this shape, and gives the error.
#[macro_export]
macro_rules! refused {
    ($result:expr, $errno:ident, $pattern:pat) => {{
        let error = match $result {
            Ok(_) => panic!("not refused: {}", stringify!($result)),
            Err(error) => error,
        };
        assert!(matches!(error, $pattern), "{} gave {error:?}", stringify!($result));
        assert_eq!(error.errno(), bareverbs::error::Errno::$errno, "{error:?}");
        error
    }};
}

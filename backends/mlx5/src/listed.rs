//! Enums with the list of their values.

/// Declares an enum, and the list of its values in order.
macro_rules! listed {
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[$doc:meta])* $value:ident,)+ }) => {
        $(#[$meta])*
        pub enum $name {
            $($(#[$doc])* $value,)+
        }

        impl $name {
            /// Every value, in order.
            pub const ALL: &'static [Self] = &[$(Self::$value),+];
        }
    };
}
pub(crate) use listed;

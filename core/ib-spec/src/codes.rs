//! Numbers with names.

/// Defines an enum of device codes: each with its number and its published name, converted both ways from one table.
#[macro_export]
macro_rules! codes {
    ($(#[$meta:meta])* $name:ident { $($(#[$vm:meta])* $variant:ident = $code:literal $text:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[cfg_attr(feature = "defmt", derive(defmt::Format))]
        #[repr(u16)]
        pub enum $name {
            $(#[doc = concat!("`", $text, "`, ", stringify!($code), ".")] $(#[$vm])* $variant = $code,)+
        }

        impl $name {
            /// Every code, in order of definition.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Returns the number.
            pub const fn code(self) -> u32 {
                self as u32
            }

            /// Returns the code of a number, if there is one.
            pub const fn from_code(code: u32) -> Option<Self> {
                match code {
                    $($code => Some(Self::$variant),)+
                    _ => None,
                }
            }

            /// Returns the published name.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)+
                }
            }
        }
    };
}

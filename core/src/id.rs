//! Numbers that a device gives, each a type of its own.

macro_rules! id {
    ($($(#[$meta:meta])* $name:ident($inner:ty);)+) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[cfg_attr(feature = "defmt", derive(defmt::Format))]
        pub struct $name($inner);

        impl $name {
            /// Wraps a number as the device gave it.
            pub const fn new(number: $inner) -> Self {
                Self(number)
            }

            /// Returns the number.
            pub const fn get(self) -> $inner {
                self.0
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }
    )+};
}

id! {
    /// Queue pair number, 24 bits.
    Qpn(u32);
    /// Completion queue number, 24 bits.
    Cqn(u32);
    /// Protection domain number, 24 bits.
    Pdn(u32);
    /// Event queue number.
    Eqn(u32);
    /// Local key of a memory region: a 24-bit index and, in the low byte, the part that its owner chooses (IBTA 10.6.3).
    Lkey(u32);
    /// Remote key of a memory region or window, built as [`Lkey`] is.
    Rkey(u32);
    /// Packet sequence number, 24 bits.
    Psn(u32);
    /// Local identifier of a port (IBTA 4.1.3).
    Lid(u16);
    /// Q_Key of a datagram.
    Qkey(u32);
}

/// Global identifier of a port, 16 bytes in network order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Gid(pub [u8; 16]);

/// 64-bit globally unique identifier (EUI-64).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Guid(pub u64);

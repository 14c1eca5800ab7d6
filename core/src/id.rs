//! Numbers that a device gives, each a type of its own.

macro_rules! id {
    ($($(#[$meta:meta])* $name:ident($inner:ty), $text:tt;)+) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
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

        // As `Display` has the number, so that one is found by the other.
        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.0)
            }
        }

        #[cfg(feature = "defmt")]
        impl defmt::Format for $name {
            fn format(&self, f: defmt::Formatter<'_>) {
                defmt::write!(f, $text, self.0);
            }
        }
    )+};
}

id! {
    /// Queue pair number, 24 bits.
    Qpn(u32), "Qpn({=u32:#x})";
    /// Completion queue number, 24 bits.
    Cqn(u32), "Cqn({=u32:#x})";
    /// Shared receive queue number, 24 bits.
    Srqn(u32), "Srqn({=u32:#x})";
    /// XRC domain number, 24 bits.
    Xrcdn(u32), "Xrcdn({=u32:#x})";
    /// Local key of a memory region: a 24-bit index and, in the low byte, a [`KeyTag`] (IBTA 10.6.3).
    Lkey(u32), "Lkey({=u32:#x})";
    /// Remote key of a memory region or window, built as [`Lkey`] is.
    Rkey(u32), "Rkey({=u32:#x})";
    /// Packet sequence number, 24 bits.
    Psn(u32), "Psn({=u32:#x})";
    /// Local identifier of a port (IBTA 4.1.3).
    Lid(u16), "Lid({=u16:#x})";
    /// Q_Key of a datagram.
    Qkey(u32), "Qkey({=u32:#x})";
}

impl Lid {
    /// That of a port which has none; as a destination the permissive LID, which only subnet management uses (IBTA 4.1.3).
    pub const NONE: Self = Self(0xffff);
}

impl Qpn {
    /// Queue pair that general management datagrams go to at each port: QP1 (IBTA 13.5.1).
    pub const GENERAL_SERVICES: Self = Self(1);
}

impl Qkey {
    /// Q_Key of [`Qpn::GENERAL_SERVICES`] (IBTA 10.2.5).
    pub const GENERAL_SERVICES: Self = Self(0x8001_0000);
}

/// The low byte of a key, which the key's owner chooses (IBTA 10.6.3). The upper 24 bits are the index of the key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct KeyTag(pub u8);

impl KeyTag {
    /// Returns the tag of a key.
    pub const fn of(key: u32) -> Self {
        Self(key as u8)
    }

    /// Returns the tag after this one. The last is followed by the first.
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }

    /// Returns the key of an index of 24 bits with this tag.
    pub const fn key(self, index: u32) -> u32 {
        index << 8 | self.0 as u32
    }
}

macro_rules! key {
    ($($name:ident)+) => {$(
        impl $name {
            /// Returns the index, 24 bits.
            pub const fn index(self) -> u32 {
                self.0 >> 8
            }

            /// Returns the tag.
            pub const fn tag(self) -> KeyTag {
                KeyTag::of(self.0)
            }

            /// Returns the key of the same index with another tag.
            pub const fn with_tag(self, tag: KeyTag) -> Self {
                Self(tag.key(self.index()))
            }
        }
    )+};
}

key! { Lkey Rkey }

/// Global identifier of a port, 16 bytes in network order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Gid(pub [u8; 16]);

/// 64-bit globally unique identifier (EUI-64).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Guid(pub u64);

#[cfg(test)]
mod tests {
    use super::*;

    /// Each index of 24 bits with tags of each kind, and each tag with indices of each kind: as the four bytes of a key, the index first.
    #[test]
    #[cfg_attr(miri, ignore = "a whole domain of numbers takes minutes")]
    fn a_key_is_the_bytes_of_its_index_and_its_tag() {
        let check = |index: u32, tag: u8| {
            let [zero, a, b, c] = index.to_be_bytes();
            assert_eq!(zero, 0);
            let key = KeyTag(tag).key(index);
            assert_eq!(key.to_be_bytes(), [a, b, c, tag]);
            let (lkey, rkey) = (Lkey::new(key), Rkey::new(key));
            assert_eq!((lkey.index(), lkey.tag(), rkey.index(), rkey.tag()), (index, KeyTag(tag), index, KeyTag(tag)));
            let other = tag.reverse_bits();
            assert_eq!(rkey.with_tag(KeyTag(other)).get().to_be_bytes(), [a, b, c, other]);
        };
        for index in 0..1 << 24 {
            check(index, (index % 251) as u8);
        }
        for tag in 0..=u8::MAX {
            for index in [0, 1, 0xff, 0x100, 0x7f_ffff, 0x80_0000, 0xff_fffe, 0xff_ffff] {
                check(index, tag);
            }
        }
    }

    #[test]
    #[cfg(not(loom))]
    fn numbers_print_alike_for_programs_and_for_people() {
        let printed = std::format!("{:?} {:?} {:?}", Rkey::new(0x10_0201), Lid::new(0x1a), Some(Psn::new(10)));
        assert_eq!(printed, "Rkey(0x100201) Lid(0x1a) Some(Psn(0xa))");
        assert_eq!(std::format!("{}", Rkey::new(0x10_0201)), "0x100201");
    }

    #[test]
    fn tags_follow_each_other_in_a_circle_of_all() {
        let mut tag = KeyTag(0);
        for next in (1..=u8::MAX).chain([0]) {
            tag = tag.next();
            assert_eq!(tag.0, next);
        }
    }
}

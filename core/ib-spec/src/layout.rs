//! How a layout is written down, checked at compile time, and reached without panic.
//!
//! A structure is a sequence of big-endian dwords. A field of up to 32 bits lies inside one dword. Its name is the byte offset of that dword with its highest and lowest bit (`12:28..24`). Wider fields are named by
//! their byte offset.

use core::marker::PhantomData;

/// A structure of the device: its published name, its size and its fields.
pub trait Layout: Sized + 'static {
    /// Name and fields of the structure, for tests, decoders and traces.
    const INFO: LayoutInfo;
    /// Size in bytes.
    const SIZE: usize;
    /// An array of [`Layout::SIZE`] bytes.
    type Bytes: Copy + AsRef<[u8]> + AsMut<[u8]>;
    /// Zeros.
    const ZEROED: Self::Bytes;
}

/// Name, size and fields of a structure as data.
#[derive(Clone, Copy, Debug)]
pub struct LayoutInfo {
    /// Name of the structure in `mlx5_ifc.h` (or in the source that its documentation names).
    pub name: &'static str,
    /// Size in bytes; a trailing array is not counted.
    pub size: usize,
    /// The fields in order of their definition.
    pub fields: &'static [FieldInfo],
}

/// One field as data.
#[derive(Clone, Copy, Debug)]
pub struct FieldInfo {
    /// Published name.
    pub name: &'static str,
    /// Place and shape.
    pub place: Place,
    /// For a field that the published structure has as reserved bits: the source that has the field.
    pub reserved: Option<&'static str>,
}

/// Place and shape of a field.
#[derive(Clone, Copy, Debug)]
pub enum Place {
    /// Bits of one dword.
    Bits(Bits),
    /// A big-endian 64-bit number.
    U64 {
        /// Byte offset.
        offset: usize,
    },
    /// Bytes in memory order.
    Bytes {
        /// Byte offset.
        offset: usize,
        /// Length in bytes.
        len: usize,
    },
    /// Another structure.
    Sub {
        /// Byte offset.
        offset: usize,
        /// The structure that lies there.
        layout: LayoutInfo,
    },
    /// An array that reaches to the end of the message.
    Tail {
        /// Byte offset of the first entry.
        offset: usize,
        /// Size of an entry in bytes.
        entry: usize,
    },
}

/// Bits `hi..=lo` of the big-endian dword at byte `dword`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bits {
    /// Byte offset of the dword, a multiple of four.
    pub dword: usize,
    /// Highest bit, 31 at most.
    pub hi: u32,
    /// Lowest bit.
    pub lo: u32,
}

impl Bits {
    /// Returns the number of bits.
    #[inline(always)]
    pub const fn width(self) -> u32 {
        self.hi - self.lo + 1
    }

    /// Returns the greatest value that fits.
    #[inline(always)]
    pub const fn max(self) -> u32 {
        u32::MAX >> (32 - self.width())
    }

    /// Returns the bits in their dword, host byte order.
    #[inline(always)]
    pub const fn mask(self) -> u32 {
        self.max() << self.lo
    }

    /// Returns `value` at its place in the dword, other bits zero; what does not fit is cut off.
    #[inline(always)]
    pub const fn place(self, value: u32) -> u32 {
        (value & self.max()) << self.lo
    }

    /// Returns the value out of its dword (host byte order).
    #[inline(always)]
    pub const fn take(self, dword: u32) -> u32 {
        (dword >> self.lo) & self.max()
    }

    /// Returns `dword` with the bits set to `value`.
    #[inline(always)]
    pub const fn replace(self, dword: u32, value: u32) -> u32 {
        (dword & !self.mask()) | self.place(value)
    }

    /// Returns the value in a structure's bytes, if they reach that far.
    pub fn read(self, bytes: &[u8]) -> Option<u32> {
        let dword = bytes.get(self.dword..)?.first_chunk()?;
        Some(self.take(u32::from_be_bytes(*dword)))
    }
}

impl Place {
    /// Returns the byte offset and length of the bytes that the field touches; a trailing array has length 0.
    pub const fn bytes(&self) -> (usize, usize) {
        match *self {
            Self::Bits(bits) => (bits.dword, 4),
            Self::U64 { offset } => (offset, 8),
            Self::Bytes { offset, len } => (offset, len),
            Self::Sub { offset, layout } => (offset, layout.size),
            Self::Tail { offset, .. } => (offset, 0),
        }
    }
}

/// A field of at most 32 bits of layout `L`. Its place is one word, so that code that sets fields is short.
pub struct Field<L> {
    place: FieldPlace,
    layout: PhantomData<fn() -> L>,
}

/// [`Bits`] in one word: the byte offset of the dword, a multiple of four, shifted left by 8; above it nothing, below it
/// highest and lowest bit in five bits each.
#[derive(Clone, Copy)]
pub(crate) struct FieldPlace(u32);

impl FieldPlace {
    const fn new(bits: Bits) -> Self {
        Self((bits.dword as u32) << 8 | bits.hi << 5 | bits.lo)
    }

    #[inline(always)]
    pub(crate) const fn bits(self) -> Bits {
        Bits { dword: (self.0 >> 10) as usize * 4, hi: self.0 >> 5 & 31, lo: self.0 & 31 }
    }
}

/// A big-endian 64-bit field of layout `L`.
pub struct Field64<L> {
    offset: usize,
    layout: PhantomData<fn() -> L>,
}

/// A field of layout `L` of bytes.
pub struct Bytes<L> {
    offset: usize,
    len: usize,
    layout: PhantomData<fn() -> L>,
}

/// A structure `M` inside layout `L`.
pub struct Sub<L, M> {
    offset: usize,
    layout: PhantomData<fn() -> (L, M)>,
}

/// The array at the end of layout `L`.
pub struct Tail<L> {
    offset: usize,
    entry: usize,
    layout: PhantomData<fn() -> L>,
}

/// Constructors for the expansion of [`layout!`](crate::layout). Nothing else defines fields.
#[doc(hidden)]
pub mod define {
    use super::{Bytes, Field, Field64, Sub, Tail};

    pub const fn field<L>(dword: usize, hi: u32, lo: u32) -> Field<L> {
        Field::new(dword, hi, lo)
    }

    pub const fn field64<L>(offset: usize) -> Field64<L> {
        Field64::new(offset)
    }

    pub const fn bytes<L>(offset: usize, len: usize) -> Bytes<L> {
        Bytes::new(offset, len)
    }

    pub const fn sub<L, M>(offset: usize) -> Sub<L, M> {
        Sub::new(offset)
    }

    pub const fn tail<L>(offset: usize, entry: usize) -> Tail<L> {
        Tail::new(offset, entry)
    }
}

macro_rules! copy {
    ($($name:ident<$($p:ident),+>),+) => {$(
        impl<$($p),+> Clone for $name<$($p),+> {
            fn clone(&self) -> Self {
                *self
            }
        }
        impl<$($p),+> Copy for $name<$($p),+> {}
    )+};
}
copy!(Field<L>, Field64<L>, Bytes<L>, Sub<L, M>, Tail<L>);

impl<L> Field<L> {
    const fn new(dword: usize, hi: u32, lo: u32) -> Self {
        assert!(dword.is_multiple_of(4), "a dword starts at a multiple of four");
        assert!(hi <= 31 && lo <= hi, "a field lies inside one dword");
        assert!(dword < 1 << 24, "a structure has less than 16 MiB");
        Self { place: FieldPlace::new(Bits { dword, hi, lo }), layout: PhantomData }
    }

    /// Its place, without the layout.
    #[inline(always)]
    pub const fn bits(self) -> Bits {
        self.place.bits()
    }

    /// Its place, in one word.
    #[inline(always)]
    pub(crate) const fn place_word(self) -> FieldPlace {
        self.place
    }

    /// Returns the byte offset of the dword.
    #[inline(always)]
    pub const fn dword(self) -> usize {
        self.bits().dword
    }

    /// Returns the number of bits.
    #[inline(always)]
    pub const fn width(self) -> u32 {
        self.bits().width()
    }

    /// Returns the greatest value that fits.
    #[inline(always)]
    pub const fn max(self) -> u32 {
        self.bits().max()
    }

    /// Returns the field's bits in their dword, host byte order.
    #[inline(always)]
    pub const fn mask(self) -> u32 {
        self.bits().mask()
    }

    /// Returns `value` at its place in the dword, other bits zero; what does not fit is cut off.
    #[inline(always)]
    pub const fn place(self, value: u32) -> u32 {
        self.bits().place(value)
    }

    /// Returns the field's value out of its dword (host byte order).
    #[inline(always)]
    pub const fn take(self, dword: u32) -> u32 {
        self.bits().take(dword)
    }

    /// Returns `dword` with the field set to `value`.
    #[inline(always)]
    pub const fn replace(self, dword: u32, value: u32) -> u32 {
        self.bits().replace(dword, value)
    }

    /// Returns the index of the structure's word of eight bytes that contains the field.
    #[inline(always)]
    pub const fn word(self) -> usize {
        self.dword() / 8
    }

    /// Returns where the field's dword begins in its word: the one at the lower address is the upper half.
    #[inline(always)]
    const fn shift(self) -> u32 {
        if self.dword().is_multiple_of(8) { 32 } else { 0 }
    }

    /// Returns the field's value out of its word of eight bytes (host byte order).
    #[inline(always)]
    pub const fn take_word(self, word: u64) -> u32 {
        let Bits { lo, .. } = self.bits();
        (word >> (self.shift() + lo)) as u32 & self.max()
    }

    /// Returns the word of eight bytes (host byte order) with the field set to `value`.
    #[inline(always)]
    pub const fn replace_word(self, word: u64, value: u32) -> u64 {
        word & !((self.mask() as u64) << self.shift()) | (self.place(value) as u64) << self.shift()
    }
}

impl<L> Field64<L> {
    const fn new(offset: usize) -> Self {
        assert!(offset.is_multiple_of(4), "a 64-bit field starts at a dword");
        Self { offset, layout: PhantomData }
    }

    /// Returns the byte offset.
    pub const fn offset(self) -> usize {
        self.offset
    }
}

impl<L> Bytes<L> {
    const fn new(offset: usize, len: usize) -> Self {
        Self { offset, len, layout: PhantomData }
    }

    /// Returns the byte offset.
    pub const fn offset(self) -> usize {
        self.offset
    }

    /// Returns the length in bytes.
    pub const fn len(self) -> usize {
        self.len
    }

    /// Returns whether the field has no bytes.
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Returns the start of the field as structure `M`. Panics, in a constant while compiling, if `M` is longer.
    pub const fn as_sub<M: Layout>(self) -> Sub<L, M> {
        assert!(M::SIZE <= self.len, "the structure is longer than the field");
        Sub::new(self.offset)
    }
}

impl<L, M> Sub<L, M> {
    const fn new(offset: usize) -> Self {
        Self { offset, layout: PhantomData }
    }

    /// Returns the structure at the same offset of layout `N`, such as the head that all commands share.
    pub const fn within<N>(self) -> Sub<N, M> {
        Sub::new(self.offset)
    }

    /// Returns a field of the structure inside, as a field of the one around it.
    pub const fn field(self, field: Field<M>) -> Field<L> {
        let Bits { dword, hi, lo } = field.bits();
        Field::new(self.offset + dword, hi, lo)
    }

    /// Returns a structure inside the structure inside, as one of the outermost.
    pub const fn sub<N>(self, sub: Sub<M, N>) -> Sub<L, N> {
        Sub::new(self.offset + sub.offset)
    }

    /// Returns the byte offset.
    pub const fn offset(self) -> usize {
        self.offset
    }
}

impl<L> Tail<L> {
    const fn new(offset: usize, entry: usize) -> Self {
        Self { offset, entry, layout: PhantomData }
    }

    /// Returns the byte offset of the first entry.
    pub const fn offset(self) -> usize {
        self.offset
    }

    /// Returns the byte offset of entry `index`.
    pub const fn at(self, index: usize) -> usize {
        self.offset.saturating_add(index.saturating_mul(self.entry))
    }

    /// Returns the size of an entry in bytes.
    pub const fn entry(self) -> usize {
        self.entry
    }

    /// Returns the array as structure `M`.
    pub const fn as_sub<M>(self) -> Sub<L, M> {
        Sub::new(self.offset)
    }
}

/// Returns the 64-bit word to store for two dwords in host byte order. `first` is at the lower address.
#[inline(always)]
pub const fn be_word(first: u32, second: u32) -> u64 {
    ((first as u64) << 32 | second as u64).to_be()
}

/// Returns the two dwords, in host byte order, of a 64-bit word as it was loaded. The one at the lower address is first.
#[inline(always)]
pub const fn from_be_word(word: u64) -> [u32; 2] {
    let word = u64::from_be(word);
    [(word >> 32) as u32, word as u32]
}

/// Panics (while compiling) if fields overlap, cross a dword, or leave the structure of `DWORDS` dwords.
pub const fn check_fields<const DWORDS: usize>(fields: &[FieldInfo]) {
    let mut used = [0u32; DWORDS];
    let mut i = 0;
    #[expect(clippy::indexing_slicing, reason = "evaluated by the compiler only: an index out of range does not build")]
    while i < fields.len() {
        match fields[i].place {
            Place::Bits(bits) => {
                let Bits { dword, hi, lo } = bits;
                assert!(dword.is_multiple_of(4), "a dword starts at a multiple of four");
                assert!(hi <= 31 && lo <= hi, "a field lies inside one dword");
                assert!(dword / 4 < DWORDS, "a field lies inside its structure");
                assert!(used[dword / 4] & bits.mask() == 0, "fields overlap");
                used[dword / 4] |= bits.mask();
            }
            Place::Tail { offset, .. } => assert!(offset == DWORDS * 4, "a trailing array starts at the end"),
            place => {
                let (offset, len) = place.bytes();
                assert!(offset + len <= DWORDS * 4, "a field lies inside its structure");
                let mut at = offset;
                while at < offset + len {
                    let mask = 0xffu32 << (24 - 8 * (at % 4));
                    assert!(used[at / 4] & mask == 0, "fields overlap");
                    used[at / 4] |= mask;
                    at += 1;
                }
            }
        }
        i += 1;
    }
}

/// Defines a layout: a type without values that carries a constant for each field.
///
/// | field | meaning |
/// |---|---|
/// | `NAME "published_name" (dword:hi..lo);` | bits of the dword at that byte |
/// | `… (@offset u64);` | a 64-bit number |
/// | `… (@offset [len]);` | bytes |
/// | `… (@offset Other);` | a structure inside |
/// | `… (@offset [entry]..);` | a trailing array of entries of that many bytes |
/// | `… (…) reserved, "source";` | any of these, in bits that the published structure has as reserved |
///
/// Commands have short forms. `, input {` adds the fields OPCODE and OP_MOD, `, input uid {` also UID. `, output {` adds STATUS
/// and SYNDROME; `Name "name", output;` is an output of 16 bytes without other fields.
///
/// ```
/// use bareverbs_ib_spec::{View, ViewMut, layout};
///
/// layout! {
///     /// What arms a queue.
///     Arm "arm", 8 bytes {
///         SEQUENCE "sequence" (0:29..28);
///         INDEX "index" (0:23..0);
///         QUEUE "queue" (4:23..0);
///     }
/// }
///
/// let mut bytes = [0; 8];
/// ViewMut::<Arm>::new(&mut bytes).unwrap().set(Arm::SEQUENCE, 2).set(Arm::QUEUE, 0x81);
/// assert_eq!(bytes, [0x20, 0, 0, 0, 0, 0, 0, 0x81]);
/// assert_eq!(View::<Arm>::new(&bytes).unwrap().get(Arm::QUEUE), 0x81);
/// ```
///
/// A field that crosses its dword does not compile, nor one that starts inside a dword:
///
/// ```compile_fail,E0080
/// bareverbs_ib_spec::layout! {
///     /// Bits 39..24 of the dword at byte 0.
///     Crossing "crossing", 8 bytes {
///         WIDE "wide" (0:39..24);
///     }
/// }
/// ```
///
/// ```compile_fail,E0080
/// bareverbs_ib_spec::layout! {
///     /// A dword at byte 2.
///     Inside "inside", 8 bytes {
///         HALFWAY "halfway" (2:31..0);
///     }
/// }
/// ```
///
/// Fields that overlap do not compile:
///
/// ```compile_fail,E0080
/// bareverbs_ib_spec::layout! {
///     /// Both have bit 16 of the dword.
///     Overlap "overlap", 4 bytes {
///         HIGH "high" (0:31..16);
///         LOW "low" (0:16..0);
///     }
/// }
/// ```
///
/// ```compile_fail,E0080
/// bareverbs_ib_spec::layout! {
///     /// A number in the middle of bytes.
///     Buried "buried", 16 bytes {
///         BYTES "bytes" (@2 [6]);
///         NUMBER "number" (@4 u64);
///     }
/// }
/// ```
///
/// A field outside the structure does not compile, be it bits, bytes, or an array that starts before the end:
///
/// ```compile_fail,E0080
/// bareverbs_ib_spec::layout! {
///     /// Eight bytes have no dword at 8.
///     Outside "outside", 8 bytes {
///         BEYOND "beyond" (8:31..0);
///     }
/// }
/// ```
///
/// ```compile_fail,E0080
/// bareverbs_ib_spec::layout! {
///     /// The last two of these bytes are not there.
///     Outside "outside", 8 bytes {
///         BEYOND "beyond" (@4 [6]);
///     }
/// }
/// ```
///
/// ```compile_fail,E0080
/// bareverbs_ib_spec::layout! {
///     /// An array over the second dword.
///     Array "array", 8 bytes {
///         ENTRIES "entries" (@4 [8]..);
///     }
/// }
/// ```
///
/// A field of another layout does not compile:
///
/// ```compile_fail,E0308
/// use bareverbs_ib_spec::{DatagramHeader, LocalRouteHeader, View};
///
/// let bytes = [0; 8];
/// let header = View::<DatagramHeader>::new(&bytes).unwrap();
/// header.get(LocalRouteHeader::SOURCE_LID);
/// ```
#[macro_export]
macro_rules! layout {
    ($(#[$meta:meta])* $name:ident $ifc:literal, output;) => {
        $crate::layout! { $(#[$meta])* $name $ifc, 16 bytes, output {} }
    };
    ($(#[$meta:meta])* $name:ident $ifc:literal, $size:literal bytes, output { $($fields:tt)* }) => {
        $crate::layout! {
            $(#[$meta])*
            $name $ifc, $size bytes {
                STATUS "status" (0:31..24);
                SYNDROME "syndrome" (4:31..0);
                $($fields)*
            }
        }
    };
    ($(#[$meta:meta])* $name:ident $ifc:literal, $size:literal bytes, input uid { $($fields:tt)* }) => {
        $crate::layout! {
            $(#[$meta])*
            $name $ifc, $size bytes {
                OPCODE "opcode" (0:31..16);
                UID "uid" (0:15..0);
                OP_MOD "op_mod" (4:15..0);
                $($fields)*
            }
        }
    };
    ($(#[$meta:meta])* $name:ident $ifc:literal, $size:literal bytes, input { $($fields:tt)* }) => {
        $crate::layout! {
            $(#[$meta])*
            $name $ifc, $size bytes {
                OPCODE "opcode" (0:31..16);
                OP_MOD "op_mod" (4:15..0);
                $($fields)*
            }
        }
    };
    ($(#[$meta:meta])* $name:ident $ifc:literal, $size:literal bytes {
        $($(#[$field_meta:meta])* $field:ident $field_name:literal $spec:tt $(reserved, $source:literal)?;)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug)]
        pub enum $name {}

        impl $name {
            $($crate::layout!(@field [$(#[$field_meta])*] $name $field $field_name $spec);)*
        }

        impl $crate::Layout for $name {
            const SIZE: usize = $size;
            type Bytes = [u8; $size];
            const ZEROED: Self::Bytes = [0; $size];
            const INFO: $crate::LayoutInfo = $crate::LayoutInfo {
                name: $ifc,
                size: $size,
                fields: &[$($crate::FieldInfo {
                    name: $field_name,
                    place: $crate::layout!(@place $spec),
                    reserved: $crate::layout!(@reserved $($source)?),
                }),*],
            };
        }

        const _: () = {
            assert!($size % 4 == 0, "a layout is a sequence of dwords");
            $crate::check_fields::<{ $size / 4 }>(<$name as $crate::Layout>::INFO.fields);
        };
    };
    (@field [$($m:tt)*] $layout:ident $field:ident $n:literal ($dword:literal : $hi:literal .. $lo:literal)) => {
        #[doc = concat!("`", $n, "`, dword ", stringify!($dword), " bits ", stringify!($hi), "..", stringify!($lo), ".")]
        $($m)*
        pub const $field: $crate::Field<$layout> = $crate::define::field($dword, $hi, $lo);
    };
    (@field [$($m:tt)*] $layout:ident $field:ident $n:literal (@ $offset:literal u64)) => {
        #[doc = concat!("`", $n, "`, 64 bits at byte ", stringify!($offset), ".")]
        $($m)*
        pub const $field: $crate::Field64<$layout> = $crate::define::field64($offset);
    };
    (@field [$($m:tt)*] $layout:ident $field:ident $n:literal (@ $offset:literal [$len:literal])) => {
        #[doc = concat!("`", $n, "`, ", stringify!($len), " bytes at byte ", stringify!($offset), ".")]
        $($m)*
        pub const $field: $crate::Bytes<$layout> = $crate::define::bytes($offset, $len);
    };
    (@field [$($m:tt)*] $layout:ident $field:ident $n:literal (@ $offset:literal [$entry:literal]..)) => {
        #[doc = concat!("`", $n, "[]`, entries of ", stringify!($entry), " bytes from byte ", stringify!($offset), ".")]
        $($m)*
        pub const $field: $crate::Tail<$layout> = $crate::define::tail($offset, $entry);
    };
    (@field [$($m:tt)*] $layout:ident $field:ident $n:literal (@ $offset:literal $sub:ident)) => {
        #[doc = concat!("`", $n, "`, [`", stringify!($sub), "`] at byte ", stringify!($offset), ".")]
        $($m)*
        pub const $field: $crate::Sub<$layout, $sub> = $crate::define::sub($offset);
    };
    (@reserved) => { None };
    (@reserved $source:literal) => { Some($source) };
    (@place ($dword:literal : $hi:literal .. $lo:literal)) => {
        $crate::Place::Bits($crate::Bits { dword: $dword, hi: $hi, lo: $lo })
    };
    (@place (@ $offset:literal u64)) => { $crate::Place::U64 { offset: $offset } };
    (@place (@ $offset:literal [$len:literal])) => { $crate::Place::Bytes { offset: $offset, len: $len } };
    (@place (@ $offset:literal [$entry:literal]..)) => { $crate::Place::Tail { offset: $offset, entry: $entry } };
    (@place (@ $offset:literal $sub:ident)) => {
        $crate::Place::Sub { offset: $offset, layout: <$sub as $crate::Layout>::INFO }
    };
}

#[cfg(test)]
#[expect(unreachable_pub, reason = "the fields of a layout are public")]
mod tests {
    extern crate std;

    use std::panic::{UnwindSafe, catch_unwind};
    use std::string::String;
    use std::vec::Vec;

    use super::*;

    enum Any {}

    crate::layout! {
        /// A structure of eight bytes.
        Inner "inner", 8 bytes {
            NUMBER "number" (4:15..0);
        }
    }

    crate::layout! {
        /// A structure with room for another one, and an array of them.
        Outer "outer", 24 bytes {
            KIND "kind" (0:31..28);
            PARAMETER "parameter" (@8 [12]);
            ENTRIES "entries" (@24 [8]..);
        }
    }

    /// Returns what the compiler would say where `made` is a constant; `None` if that compiles.
    fn refused<T>(made: impl FnOnce() -> T + UnwindSafe) -> Option<String> {
        let said = catch_unwind(made).err()?;
        Some((*said.downcast::<&str>().unwrap()).into())
    }

    const TOP: Field<Any> = Field::new(4, 31, 31);
    const MIDDLE: Field<Any> = Field::new(4, 28, 24);
    const WHOLE: Field<Any> = Field::new(8, 31, 0);

    #[test]
    fn width_and_maximum_hold_at_both_ends() {
        assert_eq!((TOP.width(), TOP.max()), (1, 1));
        assert_eq!((MIDDLE.width(), MIDDLE.max()), (5, 0x1f));
        assert_eq!((TOP.mask(), MIDDLE.mask(), WHOLE.mask()), (0x8000_0000, 0x1f00_0000, u32::MAX));
        assert_eq!((WHOLE.width(), WHOLE.max()), (32, u32::MAX));
    }

    #[test]
    fn a_value_lands_on_its_bits_and_comes_back() {
        assert_eq!(MIDDLE.place(0x15), 0x1500_0000);
        assert_eq!(MIDDLE.take(0xf5ff_ffff), 0x15);
        assert_eq!(WHOLE.place(u32::MAX), u32::MAX);
        assert_eq!(TOP.take(0x8000_0000), 1);
    }

    #[test]
    fn what_does_not_fit_is_cut_off_and_neighbours_stay() {
        assert_eq!(MIDDLE.place(0xffff_ffe1), 0x0100_0000);
        assert_eq!(MIDDLE.replace(u32::MAX, 0), 0xe0ff_ffff);
        assert_eq!(MIDDLE.replace(0, u32::MAX), 0x1f00_0000);
    }

    #[test]
    fn bits_are_read_out_of_bytes_that_reach_that_far() {
        let bytes = [0xff, 0xff, 0xff, 0xff, 0x15, 0, 0, 0];
        assert_eq!(MIDDLE.bits().read(&bytes), Some(0x15));
        assert_eq!(MIDDLE.bits().read(&bytes[..7]), None);
        assert_eq!(WHOLE.bits().read(&bytes), None);
    }

    #[test]
    fn an_index_beyond_memory_saturates() {
        const ENTRIES: Tail<Any> = Tail::new(272, 8);
        assert_eq!(ENTRIES.at(0), 272);
        assert_eq!(ENTRIES.at(3), 296);
        assert_eq!(ENTRIES.at(usize::MAX), usize::MAX);
    }

    #[test]
    fn each_mistake_in_a_layout_is_named() {
        let bits = |dword, hi, lo| Place::Bits(Bits { dword, hi, lo });
        let of = |places: &[Place]| {
            let fields: Vec<_> =
                places.iter().map(|place| FieldInfo { name: "field", place: *place, reserved: None }).collect();
            refused(|| check_fields::<2>(&fields))
        };
        assert_eq!(of(&[bits(0, 31, 16), Place::Bytes { offset: 2, len: 2 }, Place::Tail { offset: 8, entry: 4 }]), None);
        assert_eq!(of(&[Place::U64 { offset: 0 }]), None);
        let (start, dword) = ("a dword starts at a multiple of four", "a field lies inside one dword");
        let (inside, overlap) = ("a field lies inside its structure", "fields overlap");
        for (places, wrong) in [
            (&[bits(2, 7, 0)][..], start),
            (&[bits(0, 32, 0)], dword),
            (&[bits(0, 3, 4)], dword),
            (&[bits(8, 0, 0)], inside),
            (&[Place::U64 { offset: 4 }], inside),
            (&[Place::Bytes { offset: 6, len: 3 }], inside),
            (&[Place::Sub { offset: 4, layout: Inner::INFO }], inside),
            (&[bits(0, 31, 16), bits(0, 16, 0)], overlap),
            (&[bits(4, 31, 31), Place::Bytes { offset: 2, len: 3 }], overlap),
            (&[Place::Bytes { offset: 2, len: 3 }, bits(4, 24, 24)], overlap),
            (&[Place::Tail { offset: 4, entry: 8 }], "a trailing array starts at the end"),
        ] {
            assert_eq!(of(places).as_deref(), Some(wrong), "{places:?}");
        }
    }

    #[test]
    fn what_is_no_field_is_made_by_no_constructor() {
        for (dword, hi, lo, wrong) in [
            (2, 7, 0, "a dword starts at a multiple of four"),
            (0, 32, 0, "a field lies inside one dword"),
            (0, 3, 4, "a field lies inside one dword"),
            (1 << 24, 31, 0, "a structure has less than 16 MiB"),
        ] {
            assert_eq!(refused(|| define::field::<Any>(dword, hi, lo)).as_deref(), Some(wrong), "{dword}:{hi}..{lo}");
        }
        let last = define::field::<Any>((1 << 24) - 4, 31, 0);
        assert_eq!(last.bits(), Bits { dword: (1 << 24) - 4, hi: 31, lo: 0 });
        let wrong = refused(|| define::field64::<Any>(6)).unwrap();
        assert_eq!(wrong, "a 64-bit field starts at a dword");
        assert_eq!(define::field64::<Any>(12).offset(), 12);
        let wrong = refused(|| define::bytes::<Any>(0, 7).as_sub::<Inner>().offset()).unwrap();
        assert_eq!(wrong, "the structure is longer than the field");
    }

    /// The offsets are sums of those in the definitions above.
    #[test]
    fn a_structure_inside_is_where_the_field_begins() {
        let parameter = Outer::PARAMETER.as_sub::<Inner>();
        assert_eq!((parameter.offset(), parameter.field(Inner::NUMBER).bits()), (8, Bits { dword: 12, hi: 15, lo: 0 }));
        assert_eq!((Outer::PARAMETER.len(), Outer::PARAMETER.is_empty()), (12, false));
        assert!(define::bytes::<Any>(8, 0).is_empty());
        let deep = define::sub::<Any, Outer>(40).sub(parameter);
        assert_eq!((deep.offset(), deep.within::<Outer>().offset()), (48, 48));
        let first = Outer::ENTRIES.as_sub::<Inner>();
        assert_eq!((first.offset(), Outer::ENTRIES.offset(), Outer::ENTRIES.entry()), (24, 24, 8));
        let again = define::tail::<Any>(32, 16);
        assert_eq!((again.at(2), again.entry()), (64, 16));
        let ends: Vec<_> = Outer::INFO.fields.iter().map(|field| field.place.bytes()).collect();
        assert_eq!(ends, [(0, 4), (8, 12), (24, 0)]);
        let inner = Place::Sub { offset: 16, layout: Inner::INFO };
        assert_eq!((inner.bytes(), Place::U64 { offset: 4 }.bytes()), ((16, 8), (4, 8)));
    }

    #[test]
    fn a_copy_of_a_field_has_its_place() {
        // By the trait, as code does that knows nothing else of a type.
        fn copy_of<T: Clone>(value: &T) -> T {
            value.clone()
        }
        assert_eq!(copy_of(&Outer::KIND).bits(), Bits { dword: 0, hi: 31, lo: 28 });
        assert_eq!((copy_of(&Outer::PARAMETER).offset(), copy_of(&Outer::ENTRIES).at(1)), (8, 32));
    }

    /// In a word of eight bytes the dword at the lower address is the upper half.
    #[test]
    fn a_field_is_found_in_its_word_of_eight_bytes() {
        assert_eq!([TOP.word(), MIDDLE.word(), WHOLE.word()], [0, 0, 1]);
        let word = be_word(0x1122_3344, 0x9566_7788);
        assert_eq!(word.to_ne_bytes(), [0x11, 0x22, 0x33, 0x44, 0x95, 0x66, 0x77, 0x88]);
        assert_eq!(from_be_word(word), [0x1122_3344, 0x9566_7788]);
        let host = u64::from_be(word);
        assert_eq!((TOP.take_word(host), MIDDLE.take_word(host), WHOLE.take_word(host)), (1, 0x15, 0x1122_3344));
        assert_eq!(MIDDLE.replace_word(host, 0), 0x1122_3344_8066_7788);
        assert_eq!(WHOLE.replace_word(host, 0xaabb_ccdd), 0xaabb_ccdd_9566_7788);
    }

    #[test]
    fn every_layout_is_there_once() {
        let names: Vec<_> = crate::layouts().map(|layout| layout.name).collect();
        let mut sorted = names.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), names.len());
        // IBTA volume 1, 5.2.1 and 14.2.1: the shortest and the longest of them.
        assert!(["lrh", "ib_smp"].iter().all(|name| names.contains(name)), "{names:?}");
    }
}

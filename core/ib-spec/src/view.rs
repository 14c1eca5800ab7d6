//! Bytes seen through a layout.

use core::marker::PhantomData;

use crate::layout::FieldPlace;
use crate::{Bytes, Field, Field64, Layout, Sub, Tail};

/// Bytes read as layout `L`. After [`View::new`] no accessor can fail or panic.
pub struct View<'a, L> {
    bytes: &'a [u8],
    layout: PhantomData<fn() -> L>,
}

impl<L> Clone for View<'_, L> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<L> Copy for View<'_, L> {}

/// Bytes read and written as layout `L`. After [`ViewMut::new`] no accessor can fail or panic.
pub struct ViewMut<'a, L> {
    bytes: &'a mut [u8],
    layout: PhantomData<fn() -> L>,
}

/// The bytes of one structure of layout `L`, no more and no fewer.
pub struct Buffer<L: Layout> {
    bytes: L::Bytes,
}

fn get<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
}

fn put<const N: usize>(bytes: &mut [u8], at: usize, value: [u8; N]) {
    if let Some(place) = bytes.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
        *place = value;
    }
}

/// Returns the value of a field: one function for all layouts, since there are many calls.
fn get_field(bytes: &[u8], place: FieldPlace) -> u32 {
    let bits = place.bits();
    bits.take(u32::from_be_bytes(get(bytes, bits.dword)))
}

/// Sets a field: one function for all layouts.
fn set_field(bytes: &mut [u8], place: FieldPlace, value: u32) {
    let bits = place.bits();
    let dword = u32::from_be_bytes(get(bytes, bits.dword));
    put(bytes, bits.dword, bits.replace(dword, value).to_be_bytes());
}

impl<L: Layout> Clone for Buffer<L> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<L: Layout> Copy for Buffer<L> {}

impl<L: Layout> Buffer<L> {
    /// Creates a structure of zeros.
    pub const fn zeroed() -> Self {
        Self { bytes: L::ZEROED }
    }

    /// Returns the structure, for reading.
    pub fn view(&self) -> View<'_, L> {
        View { bytes: self.bytes.as_ref(), layout: PhantomData }
    }

    /// Returns the structure, for reading and writing.
    pub fn view_mut(&mut self) -> ViewMut<'_, L> {
        ViewMut { bytes: self.bytes.as_mut(), layout: PhantomData }
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.as_ref()
    }

    /// Its bytes, to be written.
    pub fn as_bytes_mut(&mut self) -> &mut [u8] {
        self.bytes.as_mut()
    }
}

/// The largest structure that is sent empty.
static ZEROS: [u8; 32] = [0; 32];

impl<L: Layout> View<'static, L> {
    /// Creates a structure of at most 32 bytes, all of them zero.
    #[inline(always)]
    pub fn zeros() -> Self {
        const { assert!(L::SIZE <= 32, "too long a structure") };
        Self { bytes: ZEROS.get(..L::SIZE).unwrap_or_default(), layout: PhantomData }
    }
}

impl<'a, L: Layout> View<'a, L> {
    /// Creates a view of the layout over bytes that are enough for it, which the compiler checks.
    pub fn of<const N: usize>(bytes: &'a [u8; N]) -> Self {
        const { assert!(N >= L::SIZE, "too few bytes for the layout") };
        Self { bytes, layout: PhantomData }
    }

    /// Creates a view of the layout over the start of `bytes`; bytes after it are kept for trailing arrays. `None` if they are
    /// too few.
    pub fn new(bytes: &'a [u8]) -> Option<Self> {
        (bytes.len() >= L::SIZE).then_some(Self { bytes, layout: PhantomData })
    }

    /// Returns the value of a field.
    #[inline(always)]
    pub fn get(&self, field: Field<L>) -> u32 {
        get_field(self.bytes, field.place_word())
    }

    /// Returns whether a field is not zero.
    pub fn is_set(&self, field: Field<L>) -> bool {
        self.get(field) != 0
    }

    /// Returns the value of a 64-bit field.
    pub fn get64(&self, field: Field64<L>) -> u64 {
        u64::from_be_bytes(get(self.bytes, field.offset()))
    }

    /// Returns the bytes of a field.
    pub fn bytes(&self, field: Bytes<L>) -> &'a [u8] {
        self.bytes.get(field.offset()..field.offset() + field.len()).unwrap_or_default()
    }

    /// Returns a structure inside, with what follows it.
    pub fn sub<M: Layout>(&self, field: Sub<L, M>) -> View<'a, M> {
        View { bytes: self.bytes.get(field.offset()..).unwrap_or_default(), layout: PhantomData }
    }

    /// Returns 64-bit entry `index` of a trailing array, if the bytes reach that far.
    pub fn tail64(&self, field: Tail<L>, index: usize) -> Option<u64> {
        let bytes = self.bytes.get(field.at(index)..)?.first_chunk()?;
        Some(u64::from_be_bytes(*bytes))
    }

    /// Returns the bytes of a trailing array.
    pub fn tail(&self, field: Tail<L>) -> &'a [u8] {
        self.bytes.get(field.offset()..).unwrap_or_default()
    }

    /// Returns all bytes, what follows the layout included.
    pub fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

impl<'a, L: Layout> ViewMut<'a, L> {
    /// Creates a view of the layout over bytes that are enough for it, which the compiler checks.
    pub fn of<const N: usize>(bytes: &'a mut [u8; N]) -> Self {
        const { assert!(N >= L::SIZE, "too few bytes for the layout") };
        Self { bytes, layout: PhantomData }
    }

    /// Creates a view of the layout over the start of `bytes`; bytes after it are kept for trailing arrays. `None` if they are
    /// too few.
    pub fn new(bytes: &'a mut [u8]) -> Option<Self> {
        (bytes.len() >= L::SIZE).then_some(Self { bytes, layout: PhantomData })
    }

    /// Returns the same bytes, read only.
    pub fn view(&self) -> View<'_, L> {
        View { bytes: self.bytes, layout: PhantomData }
    }

    /// Returns the value of a field.
    pub fn get(&self, field: Field<L>) -> u32 {
        self.view().get(field)
    }

    /// Returns the value of a 64-bit field.
    pub fn get64(&self, field: Field64<L>) -> u64 {
        self.view().get64(field)
    }

    /// Sets a field and leaves its neighbours; what does not fit in the field is cut off.
    #[inline(always)]
    pub fn set(&mut self, field: Field<L>, value: u32) -> &mut Self {
        set_field(self.bytes, field.place_word(), value);
        self
    }

    /// Sets a 64-bit field.
    pub fn set64(&mut self, field: Field64<L>, value: u64) -> &mut Self {
        put(self.bytes, field.offset(), value.to_be_bytes());
        self
    }

    /// Copies into a field of bytes; a longer value is cut off, a shorter one leaves the rest as it was.
    pub fn set_bytes(&mut self, field: Bytes<L>, value: &[u8]) -> &mut Self {
        if let Some(place) = self.bytes.get_mut(field.offset()..field.offset() + field.len()) {
            for (to, from) in place.iter_mut().zip(value) {
                *to = *from;
            }
        }
        self
    }

    /// Returns a structure inside, with what follows it.
    pub fn sub<M: Layout>(&mut self, field: Sub<L, M>) -> ViewMut<'_, M> {
        ViewMut { bytes: self.bytes.get_mut(field.offset()..).unwrap_or_default(), layout: PhantomData }
    }

    /// Sets 64-bit entry `index` of a trailing array; `false` if the bytes do not reach that far.
    pub fn set_tail64(&mut self, field: Tail<L>, index: usize, value: u64) -> bool {
        let place = self.bytes.get_mut(field.at(index)..).and_then(|rest| rest.first_chunk_mut());
        place.map(|place| *place = value.to_be_bytes()).is_some()
    }

    /// Returns all bytes, what follows the layout included.
    pub fn as_bytes_mut(&mut self) -> &mut [u8] {
        self.bytes
    }

    /// Returns all bytes, for as long as they are borrowed.
    pub fn into_bytes(self) -> &'a mut [u8] {
        self.bytes
    }
}

#[cfg(test)]
#[expect(unreachable_pub, reason = "the fields of a layout are public")]
mod tests {
    use super::*;
    use crate::{Ipv4Header, LocalRouteHeader};

    crate::layout! {
        /// One field of each shape.
        Shapes "shapes", 24 bytes {
            FLAG "flag" (0:31..31);
            NUMBER "number" (@4 u64);
            BYTES "bytes" (@12 [3]);
            INNER "inner" (@16 LocalRouteHeader);
            ENTRIES "entries" (@24 [8]..);
        }
    }

    /// Copies by the trait, as code does that knows nothing else of a type.
    fn copy_of<T: Clone>(value: &T) -> T {
        value.clone()
    }

    #[test]
    fn what_is_written_through_one_view_is_read_through_another() {
        let mut bytes = [0; 40];
        let mut view = ViewMut::<Shapes>::of(&mut bytes);
        view.set(Shapes::FLAG, 1).set64(Shapes::NUMBER, 0x0102_0304_0506_0708).set_bytes(Shapes::BYTES, &[9, 10, 11]);
        view.sub(Shapes::INNER).set(LocalRouteHeader::SOURCE_LID, 0x1234);
        assert!(view.set_tail64(Shapes::ENTRIES, 1, u64::MAX) && !view.set_tail64(Shapes::ENTRIES, 2, 1));
        view.as_bytes_mut()[15] = 0xee;
        assert_eq!((view.get(Shapes::FLAG), view.get64(Shapes::NUMBER)), (1, 0x0102_0304_0506_0708));
        assert_eq!(view.into_bytes()[..16], [0x80, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 0xee]);
        let view = copy_of(&View::<Shapes>::of(&bytes));
        assert!(view.is_set(Shapes::FLAG));
        assert_eq!((view.get64(Shapes::NUMBER), view.bytes(Shapes::BYTES)), (0x0102_0304_0506_0708, &[9, 10, 11][..]));
        assert_eq!(view.sub(Shapes::INNER).get(LocalRouteHeader::SOURCE_LID), 0x1234);
        let entries = [0, 1, 2].map(|index| view.tail64(Shapes::ENTRIES, index));
        assert_eq!((entries, view.tail(Shapes::ENTRIES).len()), ([Some(0), Some(u64::MAX), None], 16));
        // IBTA volume 1, 5.2.1: the source LID is in the last two bytes of the header.
        assert_eq!(view.as_bytes()[22..24], [0x12, 0x34]);
    }

    #[test]
    fn too_few_bytes_make_no_view() {
        let mut bytes = [0; 23];
        assert!(View::<Shapes>::new(&bytes).is_none() && ViewMut::<Shapes>::new(&mut bytes).is_none());
        let mut bytes = [0; 24];
        assert!(View::<Shapes>::new(&bytes).is_some_and(|view| view.tail(Shapes::ENTRIES).is_empty()));
        assert!(ViewMut::<Shapes>::new(&mut bytes).is_some_and(|view| view.view().as_bytes().len() == 24));
    }

    #[test]
    fn a_copy_of_a_structure_has_bytes_of_its_own() {
        let mut first = Buffer::<Shapes>::zeroed();
        first.view_mut().set64(Shapes::NUMBER, 7);
        let mut second = copy_of(&first);
        second.as_bytes_mut()[11] = 8;
        assert_eq!((first.view().get64(Shapes::NUMBER), second.view().get64(Shapes::NUMBER)), (7, 8));
        assert_eq!(first.as_bytes()[4..12], [0, 0, 0, 0, 0, 0, 0, 7]);
    }

    #[test]
    fn an_empty_structure_is_as_long_as_any_other() {
        assert_eq!(View::<Ipv4Header>::zeros().as_bytes(), [0; 20]);
        assert!(!View::<Shapes>::zeros().is_set(Shapes::FLAG));
    }
}

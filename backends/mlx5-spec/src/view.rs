//! Bytes seen through a layout.

use core::marker::PhantomData;

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

fn get<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
}

fn put<const N: usize>(bytes: &mut [u8], at: usize, value: [u8; N]) {
    if let Some(place) = bytes.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
        *place = value;
    }
}

impl<'a, L: Layout> View<'a, L> {
    /// The layout over the start of `bytes`; bytes after it are kept for trailing arrays. `None` if they are too few.
    pub fn new(bytes: &'a [u8]) -> Option<Self> {
        (bytes.len() >= L::SIZE).then_some(Self { bytes, layout: PhantomData })
    }

    /// Value of a field.
    pub fn get(&self, field: Field<L>) -> u32 {
        field.take(u32::from_be_bytes(get(self.bytes, field.dword())))
    }

    /// Whether a field is not zero.
    pub fn is_set(&self, field: Field<L>) -> bool {
        self.get(field) != 0
    }

    /// Value of a 64-bit field.
    pub fn get64(&self, field: Field64<L>) -> u64 {
        u64::from_be_bytes(get(self.bytes, field.offset()))
    }

    /// Bytes of a field.
    pub fn bytes(&self, field: Bytes<L>) -> &'a [u8] {
        self.bytes.get(field.offset()..field.offset() + field.len()).unwrap_or_default()
    }

    /// A structure inside, with what follows it.
    pub fn sub<M: Layout>(&self, field: Sub<L, M>) -> View<'a, M> {
        View { bytes: self.bytes.get(field.offset()..).unwrap_or_default(), layout: PhantomData }
    }

    /// 64-bit entry `index` of a trailing array, if the bytes reach that far.
    pub fn tail64(&self, field: Tail<L>, index: usize) -> Option<u64> {
        let bytes = self.bytes.get(field.at(index)..)?.first_chunk()?;
        Some(u64::from_be_bytes(*bytes))
    }

    /// The bytes of a trailing array.
    pub fn tail(&self, field: Tail<L>) -> &'a [u8] {
        self.bytes.get(field.offset()..).unwrap_or_default()
    }

    /// All bytes, what follows the layout included.
    pub fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

impl<'a, L: Layout> ViewMut<'a, L> {
    /// The layout over the start of `bytes`; bytes after it are kept for trailing arrays. `None` if they are too few.
    pub fn new(bytes: &'a mut [u8]) -> Option<Self> {
        (bytes.len() >= L::SIZE).then_some(Self { bytes, layout: PhantomData })
    }

    /// The same bytes, read only.
    pub fn view(&self) -> View<'_, L> {
        View { bytes: self.bytes, layout: PhantomData }
    }

    /// Value of a field.
    pub fn get(&self, field: Field<L>) -> u32 {
        self.view().get(field)
    }

    /// Value of a 64-bit field.
    pub fn get64(&self, field: Field64<L>) -> u64 {
        self.view().get64(field)
    }

    /// Sets a field and leaves its neighbours; what does not fit in the field is cut off.
    pub fn set(&mut self, field: Field<L>, value: u32) -> &mut Self {
        let dword = u32::from_be_bytes(get(self.bytes, field.dword()));
        put(self.bytes, field.dword(), field.replace(dword, value).to_be_bytes());
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

    /// A structure inside, with what follows it.
    pub fn sub<M: Layout>(&mut self, field: Sub<L, M>) -> ViewMut<'_, M> {
        ViewMut { bytes: self.bytes.get_mut(field.offset()..).unwrap_or_default(), layout: PhantomData }
    }

    /// Sets 64-bit entry `index` of a trailing array; `false` if the bytes do not reach that far.
    pub fn set_tail64(&mut self, field: Tail<L>, index: usize, value: u64) -> bool {
        let place = self.bytes.get_mut(field.at(index)..).and_then(|rest| rest.first_chunk_mut());
        place.map(|place| *place = value.to_be_bytes()).is_some()
    }

    /// All bytes, what follows the layout included.
    pub fn as_bytes_mut(&mut self) -> &mut [u8] {
        self.bytes
    }
}

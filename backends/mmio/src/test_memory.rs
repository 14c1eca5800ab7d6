//! Leaked, page-aligned memory for unit tests.

use core::ptr::NonNull;
use std::boxed::Box;
use std::vec;
use std::vec::Vec;

#[repr(C, align(4096))]
struct Aligned<const N: usize>([u8; N]);

/// Returns `N` bytes of this value, aligned to a page.
pub(crate) fn aligned<const N: usize>(byte: u8) -> NonNull<u8> {
    NonNull::from(Box::leak(Box::new(Aligned([byte; N])))).cast()
}

/// Returns a copy of the first `len` bytes.
pub(crate) fn bytes(base: NonNull<u8>, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    // SAFETY: leaked memory of at least that length, which nothing writes meanwhile, and a vector of that length.
    unsafe { base.as_ptr().copy_to_nonoverlapping(bytes.as_mut_ptr(), len) };
    bytes
}

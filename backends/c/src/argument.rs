//! What is wrong with an argument, before the verbs see it; slices of what C points to.

use core::fmt;

use bareverbs::error::Errno;

/// What is wrong with an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Argument {
    /// A pointer is NULL.
    Null(&'static str),
    /// A pointer is not aligned to its type, or to what is required.
    Misaligned(&'static str),
    /// A size is less than required, or greater than the address space.
    Size(&'static str),
    /// A number that means nothing there.
    Value(&'static str, u64),
    /// A number that names no object of the device: destroyed, or never made.
    Stale(&'static str),
    /// As many objects of a kind as there is room for.
    Full(&'static str, usize),
    /// A queue pair that has no receives.
    NoReceives,
    /// The device is not up.
    Down,
    /// The device is up already.
    Up,
}

impl Argument {
    pub(crate) const fn errno(self) -> Errno {
        match self {
            Self::Down => Errno::Enodev,
            Self::Up => Errno::Ebusy,
            Self::NoReceives => Errno::Eopnotsupp,
            Self::Full(..) => Errno::Enomem,
            _ => Errno::Einval,
        }
    }
}

impl fmt::Display for Argument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Null(name) => write!(f, "{name} is NULL"),
            Self::Misaligned(name) => write!(f, "{name} is not aligned"),
            Self::Size(name) => write!(f, "{name} is too small, or greater than the address space"),
            Self::Value(name, value) => write!(f, "{name} cannot be {value} ({value:#x})"),
            Self::Stale(what) => write!(f, "the number names no {what}"),
            Self::Full(what, count) => write!(f, "there are {count} {what} already"),
            Self::NoReceives => f.write_str(
                "the queue pair has no receives of its own: post them to the shared receive queue (bv_post_srq_recv)",
            ),
            Self::Down => f.write_str("the device is not up"),
            Self::Up => f.write_str("the device is up already"),
        }
    }
}

/// Returns the `count` values at `first`; NULL is none.
///
/// # Safety
/// Unless `count` is 0, `count` valid values are there, which nobody writes as long as the slice is used.
#[inline(always)]
pub(crate) unsafe fn slice<'a, T>(first: *const T, count: usize, name: &'static str) -> Result<&'a [T], Argument> {
    if count == 0 {
        return Ok(&[]);
    }
    if first.is_null() {
        return Err(Argument::Null(name));
    }
    if !first.is_aligned() {
        return Err(Argument::Misaligned(name));
    }
    if count > isize::MAX as usize / size_of::<T>() {
        return Err(Argument::Size(name));
    }
    // SAFETY: neither NULL nor misaligned nor longer than the address space; the rest was promised.
    Ok(unsafe { core::slice::from_raw_parts(first, count) })
}

/// Returns the value at `pointer`.
///
/// # Safety
/// Unless NULL, a valid value is there, which nobody writes as long as the reference is used.
#[inline(always)]
pub(crate) unsafe fn reference<'a, T>(pointer: *const T, name: &'static str) -> Result<&'a T, Argument> {
    // SAFETY: as promised.
    match unsafe { slice(pointer, 1, name) }? {
        [value] => Ok(value),
        _ => Err(Argument::Null(name)),
    }
}

/// A place of the caller's that a result goes to. It may be uninitialized, so there is no reference to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output<T>(*mut T);

impl<T> Output<T> {
    /// Returns the place at `pointer`.
    ///
    /// # Safety
    /// Unless NULL, a value of the type may be written there as long as the place is used.
    #[inline(always)]
    pub(crate) unsafe fn new(pointer: *mut T, name: &'static str) -> Result<Self, Argument> {
        if pointer.is_null() {
            return Err(Argument::Null(name));
        }
        if !pointer.is_aligned() {
            return Err(Argument::Misaligned(name));
        }
        Ok(Self(pointer))
    }

    /// Writes the result.
    #[inline(always)]
    pub(crate) fn set(self, value: T) {
        // SAFETY: neither NULL nor misaligned; that it may be written was promised to `new`.
        unsafe { self.0.write(value) }
    }
}

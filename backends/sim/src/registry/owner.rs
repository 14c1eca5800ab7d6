//! User contexts (DEVX) as owners of objects.
//!
//! A kernel marks the commands that it passes on for a program with the program's context. Such a command may only name what
//! belongs to that context or is shared; the kernel's own commands may name everything.

/// The context under which a kernel makes what all may name (Linux `MLX5_SHARED_RESOURCE_UID`): its completion event queues.
const SHARED: u16 = 0xffff;

/// To whom an object belongs, or for whom a command is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Owner(u16);

impl Owner {
    /// The kernel.
    pub(crate) const KERNEL: Self = Self(0);

    /// Creates the owner that a command names.
    pub(crate) const fn new(uid: u16) -> Self {
        Self(uid)
    }

    pub(crate) const fn uid(self) -> u32 {
        self.0 as u32
    }

    /// Returns whether its commands are the kernel's own.
    pub(crate) const fn is_kernel(self) -> bool {
        self.0 == 0 || self.0 == SHARED
    }

    /// Returns whether its commands may name an object of `other`.
    pub(crate) fn may_name_of(self, other: Self) -> bool {
        self.is_kernel() || self == other || other.0 == SHARED
    }
}

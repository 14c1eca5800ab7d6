//! Errors: one small enum an operation, with the facts and an errno.

mod device;
mod memory;
mod queue;
mod request;

pub use crate::address::AddressPart;
pub use crate::attr::RawKind;
pub use crate::errno::Errno;
pub use crate::link::LinkFault;
pub use crate::loss::DeviceLoss;
pub use device::DeviceError;
pub use memory::{
    AllocFastMrError, AllocMwError, AllocPdError, BindRefused, BindType1Error, DeallocMwError, DeallocPdError, DeregMrError,
    FastRegError, RegMrError, ReregMrError,
};
pub use queue::{
    AllocXrcdError, ArmSrqError, AttachMcastError, CreateAhError, CreateCqError, CreateQpError, CreateSrqError,
    DeallocXrcdError, DestroyCqError, DestroyQpError, DestroySrqError, DetachMcastError, DrainError, ModifyCqError,
    ModifyQpError, NotifyCqError, PollEventError, QueryError, QueryQpError, QuerySrqError, ResizeCqError, SetGidError,
    TakeError, WaitActiveError,
};
pub use request::{BadWr, PollCqError, PostRecvError, PostSendError, SgeFault};

use core::fmt;

use crate::QpState;

/// Declares the errors of one operation: each variant with its facts, its errno and its text, which names facts, or what is
/// made of them behind it. An enum with `<E>` ends with the variants that carry an error of the backend, which has its own
/// errno.
macro_rules! operation_error {
    (
        $(#[$meta:meta])*
        pub enum $name:ident {
            $($(#[$vmeta:meta])* $variant:ident $({ $($(#[$fmeta:meta])* $field:ident: $ty:ty),+ $(,)? })? => $errno:ident, $text:literal $(, $arg:ident = $value:expr)*;)+
        }
        $(inner { $($(#[$imeta:meta])* $inner:ident($ity:ty);)+ })?
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[cfg_attr(feature = "defmt", derive(defmt::Format))]
        #[non_exhaustive]
        pub enum $name {
            $($(#[$vmeta])* $variant $({ $($(#[$fmeta])* $field: $ty),+ })?,)+
            $($($(#[$imeta])* $inner($ity),)+)?
        }

        impl $name {
            /// Returns the errno that the verbs give for it.
            pub const fn errno(&self) -> Errno {
                match self {
                    $(Self::$variant { .. } => Errno::$errno,)+
                    $($(Self::$inner(inner) => inner.errno(),)+)?
                }
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self {
                    $(Self::$variant $({ $($field),+ })? => write!(f, $text $(, $arg = $value)*),)+
                    $($(Self::$inner(inner) => inner.fmt(f),)+)?
                }
            }
        }

        impl core::error::Error for $name {}
    };
    (
        $(#[$meta:meta])*
        pub enum $name:ident<E> {
            $($(#[$vmeta:meta])* $variant:ident $({ $($(#[$fmeta:meta])* $field:ident: $ty:ty),+ $(,)? })? => $errno:ident, $text:literal $(, $arg:ident = $value:expr)*;)*
        }
        device { $($(#[$dmeta:meta])* $device:ident, $dtext:literal;)+ }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[cfg_attr(feature = "defmt", derive(defmt::Format))]
        #[non_exhaustive]
        pub enum $name<E> {
            $($(#[$vmeta])* $variant $({ $($(#[$fmeta])* $field: $ty),+ })?,)*
            $($(#[$dmeta])* $device(E),)+
        }

        impl<E: $crate::error::DeviceError> $name<E> {
            /// Returns the errno that the verbs give for it.
            pub fn errno(&self) -> Errno {
                match self {
                    $(Self::$variant { .. } => Errno::$errno,)*
                    $(Self::$device(device) => device.errno(),)+
                }
            }
        }

        impl<E: $crate::error::DeviceError> core::fmt::Display for $name<E> {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self {
                    $(Self::$variant $({ $($field),+ })? => write!(f, $text $(, $arg = $value)*),)*
                    $(Self::$device(device) => write!(f, concat!($dtext, ": {}"), device),)+
                }
            }
        }

        impl<E: $crate::error::DeviceError> core::error::Error for $name<E> {}
    };
}
use operation_error;

operation_error! {
    /// What a device or its backend answered that cannot be. What has the key or the number of another is not destroyed, since the device
    /// would destroy the other.
    pub enum AnswerFault {
        /// A key that is none.
        NoKey => Ebadmsg, "the device gave a key that is none";
        /// A key with the index of another region or window.
        KeyInUse {
            /// The key.
            key: u32
        } => Ebadmsg, "the device gave key {key:#x}, whose index another region or window has";
        /// The number of another queue or XRC domain.
        NumberInUse {
            /// The number.
            number: u32
        } => Ebadmsg, "the device gave number {number:#x}, which another of its kind has";
        /// Rings whose length is no power of two or exceeds 32,768.
        Rings {
            /// Blocks of the send ring.
            send: u32,
            /// Entries of the receive ring.
            recv: u32
        } => Ebadmsg, "the device returned impossible sizes: rings of {send} blocks and {recv} entries";
        /// A ring of shared receives whose length is no power of two from 2 to 32,768, or that has no room for its requests.
        SrqSlots {
            /// Slots of the ring.
            slots: u32
        } => Ebadmsg, "the device returned impossible sizes: a shared receive queue of {slots} slots";
    }
}

/// A handle that names nothing here: its object is destroyed, or it belongs to another device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct StaleHandle;

impl StaleHandle {
    /// Returns the errno that the verbs give for it.
    pub const fn errno(&self) -> Errno {
        Errno::Einval
    }
}

impl fmt::Display for StaleHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the handle is stale: its object is destroyed, or is another device's")
    }
}

impl core::error::Error for StaleHandle {}

/// How many there are of something, in words: a noun whose plural has an s.
struct Counted(u64, &'static str);

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(count, noun) = self;
        write!(f, "{count} {noun}{}", if *count == 1 { "" } else { "s" })
    }
}

/// Bytes that are not inside their region, in words: by their offset if the first of them is inside.
struct Outside {
    addr: u64,
    length: u64,
    start: u64,
    size: u64,
}

impl fmt::Display for Outside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { addr, length, start, size } = *self;
        let (outside, verb) = (Counted(length, "byte"), if length == 1 { "is" } else { "are" });
        let size_in_words = Counted(size, "byte");
        match addr.checked_sub(start).filter(|offset| *offset <= size) {
            Some(offset) => write!(f, "{outside} at offset {offset} {verb} not inside the region, which has {size_in_words}"),
            None => {
                write!(f, "{outside} at {addr:#x} {verb} not inside the region, which has {size_in_words} from {start:#x} on")
            }
        }
    }
}

/// A queue pair that cannot send in its state, in words.
struct CannotSend(QpState);

impl fmt::Display for CannotSend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(state) = self;
        write!(
            f,
            "a queue pair in {state:?} does not send: bring it to Rts (modify_qp_to_rts; from Err after reset_qp; from Sqe by modify_qp)"
        )
    }
}

/// A send queue without room for a request, in words.
struct SendQueueFull<'a> {
    needed: &'a u32,
    free: &'a u32,
    blocks: &'a u32,
}

impl fmt::Display for SendQueueFull<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { needed, free, blocks } = self;
        let posted = blocks.saturating_sub(**free);
        write!(
            f,
            "the send queue is full: {posted} of its {blocks} blocks of 64 bytes are posted, {free} are free, and the request needs \
             {needed}: poll completions of sends first (if none is signaled: reset_qp)"
        )
    }
}

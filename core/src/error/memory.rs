//! Errors of protection domains, memory regions and memory windows.

use super::{AnswerFault, CannotSend, Counted, Outside, SendQueueFull, operation_error};
use crate::error::{DeviceLoss, Errno};
use crate::{Access, Lkey, MwType, QpHandle, QpState, QpType, Rkey, SendFlags};

operation_error! {
    /// Why a protection domain was not made.
    pub enum AllocPdError<E> {
        /// The table is full.
        Full {
            /// Places of the table.
            capacity: usize
        } => Enomem, "the table of protection domains is full: the Storage has {places} (pds)", places = Counted(*capacity as u64, "place");
    }
    device {
        /// The device refuses.
        Device, "the device made no protection domain";
    }
}

operation_error! {
    /// Why a protection domain was not destroyed; it is as before.
    pub enum DeallocPdError<E> {
        /// The handle is stale.
        Stale => Einval, "the protection domain's handle is stale: its object is destroyed, or another device's";
        /// Regions, windows, queue pairs or shared receive queues belong to it.
        Busy {
            /// How many.
            users: u32
        } => Ebusy, "the protection domain has {objects}: end its regions, windows, queue pairs and shared receive queues first", objects = Counted((*users).into(), "object");
    }
    device {
        /// The device refuses.
        Device, "the device did not destroy the protection domain";
    }
}

operation_error! {
    /// Why a region was not registered; nothing was made.
    pub enum RegMrError<E> {
        /// The protection domain's handle is stale.
        StalePd => Einval, "the protection domain's handle is stale: its object is destroyed, or another device's";
        /// Flags that this library does not know.
        UnknownFlags {
            /// Bits of the flags that are not known.
            bits: u32
        } => Einval, "unknown access flags {bits:#x}";
        /// REMOTE_WRITE or REMOTE_ATOMIC without LOCAL_WRITE.
        RemoteWithoutLocalWrite => Einval, "remote write and remote atomic need LOCAL_WRITE";
        /// The region has no byte.
        Empty => Einval, "the region is empty";
        /// Address and length overflow the address space.
        Overflow {
            /// First byte.
            addr: u64,
            /// Length in bytes.
            length: u64
        } => Einval, "{length} bytes from {addr:#x} overflow the address space";
        /// Longer than the device allows.
        TooLong {
            /// Maximum length of a region in bytes.
            max: u64
        } => Einval, "the device's maximum region has {max} bytes";
        /// Flags that the device lacks.
        Unsupported {
            /// Bits of the flags that the device lacks.
            bits: u32
        } => Eopnotsupp, "the device lacks access flags {bits:#x}";
        /// The table is full.
        Full {
            /// Places of the table.
            capacity: usize
        } => Enomem, "the table of memory regions is full: the Storage has {places} (mrs), and a region that was dropped keeps its own until dereg_mr_raw", places = Counted(*capacity as u64, "place");
        /// What the device answered cannot be. Nothing that was there is touched. The buffer stays the device's, unless the answer is
        /// no key at all.
        Answer {
            /// What of it.
            fault: AnswerFault
        } => Ebadmsg, "{fault}";
    }
    device {
        /// The device refuses.
        Device, "the device made no region";
    }
}

operation_error! {
    /// Why a region was not deregistered; it is as before.
    pub enum DeregMrError<E> {
        /// The handle is stale.
        Stale => Einval, "the region's handle is stale: its object is destroyed, or another device's";
        /// Windows are bound to it or keys registered over it, or would be again if a bind in flight failed.
        Busy {
            /// How many bindings.
            bindings: u32
        } => Ebusy, "the region has {held} by windows or registrations: invalidate those or end the windows, and poll the completions of that", held = Counted((*bindings).into(), "binding");
    }
    device {
        /// The device refuses.
        Device, "the device did not destroy the region";
    }
}

/// Why a region was not changed; it is as before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum ReregMrError<E> {
    /// What it would be was not registered.
    Register(RegMrError<E>),
    /// What it is was not deregistered.
    Deregister(DeregMrError<E>),
}

impl<E> From<RegMrError<E>> for ReregMrError<E> {
    fn from(error: RegMrError<E>) -> Self {
        Self::Register(error)
    }
}

impl<E> From<DeregMrError<E>> for ReregMrError<E> {
    fn from(error: DeregMrError<E>) -> Self {
        Self::Deregister(error)
    }
}

impl<E: crate::error::DeviceError> ReregMrError<E> {
    /// Returns the errno that the verbs give for it.
    pub fn errno(&self) -> Errno {
        match self {
            Self::Register(error) => error.errno(),
            Self::Deregister(error) => error.errno(),
        }
    }
}

impl<E: crate::error::DeviceError> core::fmt::Display for ReregMrError<E> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Register(error) => error.fmt(f),
            Self::Deregister(error) => error.fmt(f),
        }
    }
}

impl<E: crate::error::DeviceError> core::error::Error for ReregMrError<E> {}

operation_error! {
    /// Why a window was not made.
    pub enum AllocMwError<E> {
        /// The protection domain's handle is stale.
        StalePd => Einval, "the protection domain's handle is stale: its object is destroyed, or another device's";
        /// The table is full.
        Full {
            /// Places of the table.
            capacity: usize
        } => Enomem, "the table of memory windows is full: the Storage has {places} (mws)", places = Counted(*capacity as u64, "place");
        /// What the device answered cannot be. Nothing that was there is touched.
        Answer {
            /// What of it.
            fault: AnswerFault
        } => Ebadmsg, "{fault}";
    }
    device {
        /// The device refuses.
        Device, "the device made no window";
    }
}

operation_error! {
    /// Why a window, or the key of a [`FastMr`](crate::FastMr), was not destroyed; it is as before.
    pub enum DeallocMwError<E> {
        /// The handle is stale.
        Stale => Einval, "the handle of the window or key is stale: its object is destroyed, or another device's";
        /// Binds of it were posted and have not completed.
        Busy {
            /// How many.
            binds: u32
        } => Ebusy, "the window or key has {requests} in flight: poll completions first", requests = Counted((*binds).into(), "request");
    }
    device {
        /// The device refuses.
        Device, "the device did not destroy the window or key";
    }
}

operation_error! {
    /// What is wrong with a binding, however it is requested.
    pub enum BindRefused {
        /// The window's handle is stale.
        StaleWindow => Einval, "the window's handle is stale: its object is destroyed, or another device's";
        /// The region's handle is stale.
        StaleRegion => Einval, "the region's handle is stale: its object is destroyed, or another device's";
        /// No window of the queue pair's domain has this key.
        UnknownKey {
            /// The key.
            rkey: Rkey
        } => Einval, "no type 2 window of this domain has key {rkey}";
        /// A window of the type that is bound another way.
        WindowType {
            /// Type of the window.
            kind: MwType
        } => Einval, "the window is of {kind:?}: {remedy} binds that", remedy = match kind { MwType::Type1 => "SendQueue::bind_type1", MwType::Type2 => "a request (SendWr::bind_mw)" };
        /// Access flags that a window cannot have.
        AccessFlags {
            /// The flags.
            access: Access
        } => Einval, "a window cannot have {access:?}: it opens memory to peers alone, by remote rights and ZERO_BASED";
        /// Queue pair, window and region are not in one protection domain.
        Domain => Eperm, "queue pair, window and region are not in one protection domain: create them in the same (rereg_mr moves a region)";
        /// The region was registered without MW_BIND.
        NoBindRight => Eacces, "the region lacks MW_BIND: register it with Access::MW_BIND, or change it by rereg_mr";
        /// Remote write or atomic asked of a region without LOCAL_WRITE.
        NoLocalWrite => Eacces, "remote write and remote atomic need LOCAL_WRITE of the region: register it with Access::LOCAL_WRITE, or change it by rereg_mr";
        /// Address and length overflow the address space.
        Overflow => Efault, "the window overflows the address space";
        /// The window would reach outside the region.
        Range {
            /// Address of its first byte, as requests name it.
            addr: u64,
            /// Its bytes.
            length: u64,
            /// First address of the region: 0 if it is zero-based.
            start: u64,
            /// Bytes of the region.
            size: u64
        } => Erange, "the window: {outside}", outside = Outside { addr: *addr, length: *length, start: *start, size: *size };
        /// The window would be longer than the device allows.
        TooLong {
            /// Maximum length of a window in bytes.
            max: u64
        } => Einval, "the device's maximum window has {max} bytes";
        /// Binds or invalidations of the window are in flight on another queue pair: which of the two is the last would not be known.
        OtherQueuePair {
            /// The other queue pair.
            qp: QpHandle
        } => Ebusy, "binds of the window are in flight on the queue pair with handle {qp:?}: poll their completions first";
        /// The window is bound with the key that the bind would give it, or was before a bind in flight. Which of the
        /// two bindings a device means by that key would not be known. A window that the peer has invalidated is not bound any more once the completion
        /// that says so was polled.
        KeyInUse {
            /// The key.
            rkey: Rkey
        } => Ebusy, "the window may still be bound with key {rkey}: post a LOCAL_INV before, and bind with another tag, or poll the completion that ended its binding";
    }
}

operation_error! {
    /// Why a window was not bound; window and queue are as before.
    pub enum BindType1Error {
        /// The transport has no windows.
        Transport {
            /// Transport of the queue pair.
            qp_type: QpType
        } => Einval, "a queue pair of type {qp_type:?} binds no windows";
        /// Send flags other than FENCE (where the transport has it) and SIGNALED.
        Flags {
            /// The flags that do not fit.
            flags: SendFlags
        } => Einval, "a bind cannot have {flags:?}";
        /// The queue pair cannot send in its state.
        NotReady {
            /// The state.
            state: QpState
        } => Enotconn, "{reason}", reason = CannotSend(*state);
        /// The device is lost.
        DeviceLost {
            /// Why the device is lost.
            loss: DeviceLoss
        } => Eio, "the device is lost: {loss}";
        /// The send queue is full.
        QueueFull {
            /// Blocks that the request needs.
            needed: u32,
            /// Blocks that are free.
            free: u32,
            /// Blocks of the queue.
            blocks: u32
        } => Enospc, "{full}", full = SendQueueFull { needed, free, blocks };
        /// No room to remember the window as it was: as many binds are unfinished as there may be windows.
        TooManyPendingBinds => Enomem, "no room to remember the bind";
    }
    inner {
        /// Window, region, rights or range do not fit.
        Refused(BindRefused);
    }
}

operation_error! {
    /// Why a region for fast registration was not made.
    pub enum AllocFastMrError<E> {
        /// The protection domain's handle is stale.
        StalePd => Einval, "the protection domain's handle is stale: its object is destroyed, or another device's";
        /// No piece, or more than 65,535.
        SgeCount {
            /// Pieces asked for.
            count: u32
        } => Einval, "a registration of {count} pieces: it has 1 at least, and at most 65,535 or what the device takes, which may be fewer";
        /// The table of regions is full: it takes a place there, and one among the windows.
        RegionsFull {
            /// Places of the table.
            capacity: usize
        } => Enomem, "the table of memory regions is full: the Storage has {places} (mrs), and a region that was dropped keeps its own until dereg_mr_raw", places = Counted(*capacity as u64, "place");
        /// The table of windows is full.
        WindowsFull {
            /// Places of the table.
            capacity: usize
        } => Enomem, "the table of memory windows is full: the Storage has {places} (mws)", places = Counted(*capacity as u64, "place");
        /// What the device answered cannot be. Nothing that was there is touched.
        Answer {
            /// What of it.
            fault: AnswerFault
        } => Ebadmsg, "{fault}";
    }
    device {
        /// The device refuses.
        Device, "the device made no region for fast registration";
    }
}

operation_error! {
    /// Why pieces of a region were not registered by a request; everything is as before.
    pub enum FastRegError {
        /// The region for fast registration was destroyed, or is of another `Verbs`.
        Stale => Einval, "no such FastMr here: it is destroyed, or another device's";
        /// The transport registers nothing.
        Transport {
            /// Transport of the queue pair.
            qp_type: QpType
        } => Einval, "a queue pair of type {qp_type:?} registers nothing";
        /// Send flags other than FENCE (where the transport has it) and SIGNALED.
        Flags {
            /// The flags that do not fit.
            flags: SendFlags
        } => Einval, "a registration cannot have {flags:?}";
        /// Access flags that a registration cannot have.
        AccessFlags {
            /// The flags.
            access: Access
        } => Einval, "a fast registration cannot have {access:?}: it has LOCAL_WRITE, remote rights and ZERO_BASED";
        /// The queue pair cannot send in its state.
        NotReady {
            /// The state.
            state: QpState
        } => Enotconn, "{reason}", reason = CannotSend(*state);
        /// The device is lost.
        DeviceLost {
            /// Why the device is lost.
            loss: DeviceLoss
        } => Eio, "the device is lost: {loss}";
        /// Queue pair, registration and the region of the pieces are not in one protection domain.
        Domain => Eperm, "queue pair, registration and region are not in one protection domain: create them in the same (rereg_mr moves a region)";
        /// No piece, or more than it was made for.
        SgeCount {
            /// Pieces given.
            count: usize,
            /// Most that it takes.
            max: u32
        } => Einval, "{count} pieces, and the FastMr was made for 1 to {max}";
        /// The region was registered without MW_BIND, or is one for fast registration.
        NoBindRight => Eacces, "the region of the pieces lacks MW_BIND: register it with Access::MW_BIND, or change it by rereg_mr";
        /// Rights to write asked of a region without LOCAL_WRITE.
        NoLocalWrite => Eacces, "rights to write need LOCAL_WRITE of the region: register it with Access::LOCAL_WRITE, or change it by rereg_mr";
        /// A piece of another region than the first.
        OtherRegion {
            /// Which one, from 0.
            index: usize
        } => Einval, "piece {index} is of another region than the first";
        /// A piece without a byte, or with too many.
        Length {
            /// Which one, from 0.
            index: usize,
            /// Maximum length of a piece in bytes.
            max: u64
        } => Einval, "piece {index} has no byte or more than {max}";
        /// The pieces one after another overflow the address space.
        Overflow => Efault, "the pieces overflow the address space";
        /// It is registered. Invalidate it first, or poll the completion that says that the peer has.
        Registered {
            /// Key of the registration.
            rkey: Rkey
        } => Ebusy, "the FastMr is registered with key {rkey}: invalidate it (SendWr::local_inv), or poll the completion that says that the peer has";
        /// The key that it would get is that of a registration that may not have ended.
        KeyInUse {
            /// The key.
            rkey: Rkey
        } => Ebusy, "a registration with key {rkey} may not have ended: post a LOCAL_INV before, and use another tag, or poll the completion that ended it";
        /// Registrations or invalidations of it are in flight on another queue pair: which is the last would not be known.
        OtherQueuePair {
            /// The other queue pair.
            qp: QpHandle
        } => Ebusy, "requests about the FastMr are in flight on the queue pair with handle {qp:?}: poll their completions first";
        /// The send queue is full.
        QueueFull {
            /// Blocks that the request needs.
            needed: u32,
            /// Blocks that are free.
            free: u32,
            /// Blocks of the queue.
            blocks: u32
        } => Enospc, "{full}", full = SendQueueFull { needed, free, blocks };
        /// No room to remember it: as many binds and registrations are unfinished as there may be windows.
        TooManyPending => Enomem, "no room to remember the registration";
        /// No region has the key of the pieces.
        UnknownKey {
            /// The key.
            lkey: Lkey
        } => Einval, "no region has key {lkey}";
        /// A piece is not inside its region.
        Range {
            /// Which one, from 0.
            index: usize,
            /// Address of its first byte, as requests name it.
            addr: u64,
            /// Its bytes.
            length: u32,
            /// First address of the region: 0 if it is zero-based.
            start: u64,
            /// Bytes of the region.
            size: u64
        } => Erange, "piece {index}: {outside}", outside = Outside { addr: *addr, length: (*length).into(), start: *start, size: *size };
    }
}

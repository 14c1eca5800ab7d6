//! Errors of requests and completions: the data path.

use core::fmt;

use super::{CannotSend, Counted, Outside, SendQueueFull, operation_error};
use crate::error::{BindRefused, DeviceLoss, Errno, RawKind};
use crate::{Cqn, Lkey, QpHandle, QpState, QpType, Qpn, SendFlags, Srqn, WcOpcode};

operation_error! {
    /// What is wrong with an SGE.
    pub enum SgeFault {
        /// No region has the key: never made, or deregistered.
        UnknownKey => Einval, "no region of these verbs has the key";
        /// The region belongs to another protection domain than the queue pair.
        Domain => Eperm, "the region belongs to another protection domain: register it in that of the queue, or move it by rereg_mr";
        /// The operation writes, and the region lacks LOCAL_WRITE.
        Access => Eacces, "the region lacks LOCAL_WRITE: register it with Access::LOCAL_WRITE, or change it by rereg_mr";
        /// Bytes outside the region.
        Range {
            /// Address of the first of them, as requests name it.
            addr: u64,
            /// How many.
            length: u32,
            /// First address of the region: 0 if it is zero-based.
            start: u64,
            /// Bytes of the region.
            size: u64
        } => Erange, "{outside}", outside = Outside { addr: *addr, length: (*length).into(), start: *start, size: *size };
    }
}

/// Why a send was not posted; the queue is as before, the request the caller's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum PostSendError {
    /// The queue pair cannot send in its state.
    NotReady {
        /// The state.
        state: QpState,
    },
    /// The transport lacks the operation.
    Opcode {
        /// The operation.
        opcode: WcOpcode,
        /// The transport.
        qp_type: QpType,
    },
    /// A SEND_WITH_INV on a transport that lacks it: reliable connections alone have it (IBTA 9.4.1.1).
    NoSendWithInv,
    /// Atomics on a device that does none, or not these: [`DeviceAttr::masked_atomics`](crate::DeviceAttr::masked_atomics) says which
    /// masked ones it does.
    NoAtomics,
    /// A send of a datagram names no destination: see [`SendWr::send_to`](crate::SendWr::send_to).
    NoAddressHandle,
    /// The request names a destination that the transport does not have: an address handle on another than that of datagrams, a shared
    /// receive queue on another than an initiator of XRC.
    Destination {
        /// The transport.
        qp_type: QpType,
    },
    /// A request of an XRC initiator names no shared receive queue: see [`SendWr::to_srq`](crate::SendWr::to_srq).
    NoSrqNumber,
    /// The number of the peer's shared receive queue has more than 24 bits.
    SrqNumber {
        /// The number.
        srqn: Srqn,
    },
    /// The operation goes to no shared receive queue: it is done here (a bind, an invalidation), or names something else.
    NotToSrq,
    /// The address handle belongs to another protection domain than the queue pair.
    AddressDomain,
    /// The number of the destination's queue pair has more than 24 bits.
    RemoteQpn {
        /// The number.
        qpn: Qpn,
    },
    /// Flags that the operation or the transport lacks.
    Flags {
        /// The flags that do not fit.
        flags: SendFlags,
    },
    /// Too many SGEs.
    SgeCount {
        /// SGEs given.
        count: usize,
        /// Most that the queue pair takes.
        max: u32,
    },
    /// An inline payload longer than the queue pair takes.
    InlineSize {
        /// Bytes given.
        length: usize,
        /// Most that the queue pair takes.
        max: u32,
    },
    /// A message longer than the device sends. A datagram is one packet: no longer than the MTU that its port had when the queue
    /// pair was moved to RTR.
    MessageSize {
        /// Maximum in bytes.
        max: u32,
    },
    /// The local buffer of an atomic does not have as many bytes as the atomic.
    AtomicLength {
        /// Bytes given.
        length: u32,
        /// Bytes of the atomic: 8, or 4 of a masked one.
        needed: u32,
    },
    /// The remote address of an atomic is no multiple of its length.
    AtomicAlignment {
        /// The address.
        addr: u64,
        /// Bytes of the atomic: 8, or 4 of a masked one.
        needed: u32,
    },
    /// An SGE does not fit its region.
    Sge {
        /// Which one, from 0.
        index: usize,
        /// Key of the SGE.
        lkey: Lkey,
        /// What is wrong.
        fault: SgeFault,
    },
    /// A binding or invalidation does not fit its window.
    Bind(BindRefused),
    /// The send queue is full.
    QueueFull {
        /// Blocks that the request needs.
        needed: u32,
        /// Blocks that are free.
        free: u32,
        /// Blocks of the queue.
        blocks: u32,
    },
    /// No room to remember the bind.
    TooManyPendingBinds,
    /// The device is lost.
    DeviceLost {
        /// Why the device is lost.
        loss: DeviceLoss,
    },
}

impl PostSendError {
    /// Returns the errno that the verbs give for it.
    pub const fn errno(&self) -> Errno {
        match self {
            Self::NotReady { .. } => Errno::Enotconn,
            Self::DeviceLost { .. } => Errno::Eio,
            Self::NoAtomics => Errno::Eopnotsupp,
            Self::AddressDomain => Errno::Eperm,
            Self::NoAddressHandle
            | Self::Destination { .. }
            | Self::RemoteQpn { .. }
            | Self::NoSrqNumber
            | Self::SrqNumber { .. }
            | Self::NotToSrq
            | Self::Opcode { .. }
            | Self::NoSendWithInv
            | Self::Flags { .. }
            | Self::SgeCount { .. }
            | Self::InlineSize { .. }
            | Self::MessageSize { .. }
            | Self::AtomicLength { .. }
            | Self::AtomicAlignment { .. } => Errno::Einval,
            Self::Sge { fault, .. } => fault.errno(),
            Self::Bind(refused) => refused.errno(),
            Self::QueueFull { .. } => Errno::Enospc,
            Self::TooManyPendingBinds => Errno::Enomem,
        }
    }
}

impl fmt::Display for PostSendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotReady { state } => CannotSend(*state).fmt(f),
            Self::DeviceLost { loss } => write!(f, "the device is lost: {loss}"),
            Self::Opcode { opcode, qp_type } => write!(f, "a queue pair of type {qp_type:?} has no {opcode:?}"),
            Self::NoSendWithInv => f.write_str("only reliable connections have SendWithInv"),
            Self::NoAtomics => f.write_str("the device lacks this atomic (`query_device`)"),
            Self::NoAddressHandle => f.write_str("a datagram needs a destination: send it with SendWr::send_to"),
            Self::Destination { qp_type } => {
                write!(f, "a request of a queue pair of type {qp_type:?} has no such destination")
            }
            Self::NoSrqNumber => {
                f.write_str("a request of an XRC initiator names a shared receive queue of its peer: SendWr::to_srq")
            }
            Self::SrqNumber { srqn } => write!(f, "shared receive queue {srqn} of the peer: a number has 24 bits"),
            Self::NotToSrq => f.write_str("only sends, writes, reads and atomics of a connection go to a shared receive queue"),
            Self::AddressDomain => f.write_str(
                "the address handle belongs to another protection domain: make it in that of the queue pair (create_ah)",
            ),
            Self::RemoteQpn { qpn } => write!(f, "queue pair {qpn} of the destination: a number has 24 bits"),
            Self::Flags { flags } => {
                write!(f, "the request cannot have {flags:?}")?;
                let inline = flags.contains(SendFlags::INLINE);
                if inline { f.write_str(": SendWr::send(&bytes[..]) has it") } else { Ok(()) }
            }
            Self::SgeCount { count, max } => write!(f, "{}, the queue pair takes {max}", Counted(*count as u64, "SGE")),
            Self::InlineSize { length, max } => {
                let given = Counted(*length as u64, "byte");
                write!(f, "{given} inline, the queue pair takes {max}: give them as SGEs of a region")
            }
            Self::MessageSize { max } => {
                write!(f, "the maximum message has {max} bytes: send several (a datagram is one packet)")
            }
            Self::AtomicLength { length, needed } => write!(f, "the atomic moves {needed} bytes, not {length}"),
            Self::AtomicAlignment { addr, needed } => {
                write!(f, "address {addr:#x} of an atomic of {needed} bytes is no multiple of {needed}")
            }
            Self::Sge { index, lkey, fault } => write!(f, "SGE {index} with key {lkey}: {fault}"),
            Self::Bind(refused) => refused.fmt(f),
            Self::QueueFull { needed, free, blocks } => SendQueueFull { needed, free, blocks }.fmt(f),
            Self::TooManyPendingBinds => f.write_str("no room to remember the bind"),
        }
    }
}

impl core::error::Error for PostSendError {}

/// Why a receive was not posted; the queue is as before, the request the caller's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum PostRecvError {
    /// The queue pair cannot receive in its state.
    NotReady {
        /// The state.
        state: QpState,
    },
    /// Too many SGEs.
    SgeCount {
        /// SGEs given.
        count: usize,
        /// Most that the queue pair takes.
        max: u32,
    },
    /// An SGE does not fit its region.
    Sge {
        /// Which one, from 0.
        index: usize,
        /// Key of the SGE.
        lkey: Lkey,
        /// What is wrong.
        fault: SgeFault,
    },
    /// An SGE is longer than a message can be.
    SgeLength {
        /// Which one, from 0.
        index: usize,
        /// Most bytes of an SGE.
        max: u32,
    },
    /// The receive queue is full: as many receives are posted as it has room for.
    QueueFull {
        /// How many.
        capacity: u32,
    },
    /// The shared receive queue is full: as many receives are posted as it has room for. One that a queue pair has taken counts until
    /// its completion was polled.
    SharedQueueFull {
        /// How many.
        capacity: u32,
    },
    /// The device is lost.
    DeviceLost {
        /// Why the device is lost.
        loss: DeviceLoss,
    },
}

impl PostRecvError {
    /// Returns the errno that the verbs give for it.
    pub const fn errno(&self) -> Errno {
        match self {
            Self::NotReady { .. } => Errno::Enotconn,
            Self::DeviceLost { .. } => Errno::Eio,
            Self::SgeCount { .. } | Self::SgeLength { .. } => Errno::Einval,
            Self::Sge { fault, .. } => fault.errno(),
            Self::QueueFull { .. } | Self::SharedQueueFull { .. } => Errno::Enospc,
        }
    }
}

impl fmt::Display for PostRecvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotReady { state } => {
                write!(f, "a queue pair in {state:?} takes no receives: it must have left Reset (modify_qp_to_rts)")
            }
            Self::DeviceLost { loss } => write!(f, "the device is lost: {loss}"),
            Self::SgeCount { count, max } => write!(f, "{}, the queue pair takes {max}", Counted(*count as u64, "SGE")),
            Self::Sge { index, lkey, fault } => write!(f, "SGE {index} with key {lkey}: {fault}"),
            Self::SgeLength { index, max } => write!(f, "SGE {index} is too long: {max} bytes is the maximum"),
            Self::QueueFull { capacity } => write!(
                f,
                "the receive queue is full: it has room for {}, all posted: poll completions of receives first, or create it with \
                 more (max_recv_wr)",
                Counted((*capacity).into(), "receive")
            ),
            Self::SharedQueueFull { capacity } => write!(
                f,
                "the shared receive queue is full: it has room for {}, all posted: poll completions of its queue pairs first, or \
                 create it with more (max_wr)",
                Counted((*capacity).into(), "receive")
            ),
        }
    }
}

impl core::error::Error for PostRecvError {}

/// The request of a list that failed; those before it are posted and the doorbell is rung for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct BadWr<E> {
    /// Index of the request in the list.
    pub index: usize,
    /// Why the request was refused.
    pub error: E,
}

impl<E: fmt::Display> fmt::Display for BadWr<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "request {}: {}", self.index, self.error)
    }
}

impl<E: core::error::Error> core::error::Error for BadWr<E> {}

operation_error! {
    /// What is wrong with a completion, or with the queue. The completion in question is taken with the error, the others stay.
    pub enum PollCqError {
        /// No queue pair of this number completes into this queue.
        UnknownQp {
            /// The number.
            qpn: Qpn,
            /// The queue.
            cqn: Cqn
        } => Ebadmsg, "a completion in queue {cqn} of queue pair {qpn}, which is not known there";
        /// No request in flight has this index.
        UnknownRequest {
            /// The queue pair.
            qp: QpHandle,
            /// Which ring.
            kind: RawKind,
            /// Low 16 bits of the index that the device gave.
            index: u16
        } => Ebadmsg, "a completion of the queue pair with handle {qp:?} for {kind:?} {index}, which is not in flight";
        /// A completion with an opcode that a queue pair does not give.
        BadCompletion {
            /// The queue.
            cqn: Cqn,
            /// The opcode.
            opcode: u8
        } => Ebadmsg, "a completion with opcode {opcode:#x} in queue {cqn}";
        /// The queue is broken, by an overrun for example: no completion comes any more.
        Broken {
            /// The queue.
            cqn: Cqn,
            /// The device's syndrome.
            syndrome: u8,
            /// Its entries.
            entries: u32
        } => Eio, "completion queue {cqn} of {entries} entries is broken: syndrome {syndrome:#x} (0x1: it overran; ring_sizes says how many \
            entries suffice)";
        /// The device is lost, and every request that completes into the queue was given, flushed if it was not done.
        DeviceLost {
            /// Why the device is lost.
            loss: DeviceLoss
        } => Eio, "the device is lost: {loss}";
    }
}

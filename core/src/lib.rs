//! RDMA verbs for machines without an operating system.
//!
//! This crate implements the verbs independently of a device. It has fixed-capacity tables of protection domains, memory
//! regions, memory windows, completion queues and queue pairs. It does the checks that the verbs promise, and keeps the rings
//! of requests in flight. A backend implements [`Provider`]; a machine implements [`Platform`].
#![no_std]
#![deny(unsafe_code)]
#![warn(missing_debug_implementations)]

#[cfg(test)]
extern crate std;

mod attr;
mod buffer;
mod completion;
mod errno;
mod error;
mod event;
mod flags;
mod handle;
mod id;
#[cfg(test)]
#[cfg(loom)]
mod interleavings;
mod interrupt;
mod log;
mod loss;
mod platform;
mod port;
mod provider;
mod queue_pair;
mod recv_queue;
mod region;
mod ring;
mod send_queue;
mod shared;
#[cfg(feature = "multicore")]
mod shared_verbs;
mod storage;
mod sync;
mod table;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;
mod transition;
pub mod typed;
mod verbs;
mod window;
mod work;

/// Whether common requests and completions have code of their own in their callers, apart from that for all others.
const FAST_PATH: bool = cfg!(not(feature = "small"));

pub use attr::{
    AddressVector, DeviceAttr, GlobalRoute, Mtu, PathMigState, PhysState, PortAttr, PortState, QpAttr, QpCap, QpState, QpType,
    ack_timeout,
};
pub use buffer::{AddressMap, DmaBuffer, Extent, OffsetMap, Refused, Region};
pub use completion::{CompletionQueue, Completions, CqInfo};
pub use errno::Errno;
pub use error::{
    AllocMwError, AllocPdError, BadWr, BindMwError, BindRefused, CreateCqError, CreateQpError, DeallocMwError, DeallocPdError,
    DeregMrError, DestroyCqError, DestroyQpError, ModifyQpError, NotifyCqError, PollCqError, PollEventError, PostRecvError,
    PostSendError, QueryError, QueryQpError, RegMrError, SendBatchError, SgeFault, StaleHandle, TakeError, WaitActiveError,
};
pub use event::Event;
pub use flags::{Access, QpAttrMask, SendFlags};
pub use handle::{CqHandle, Handle, MrHandle, MwHandle, PdHandle, QpHandle, kind};
pub use id::{Cqn, Eqn, Gid, Guid, KeyTag, Lid, Lkey, Pdn, Psn, Qkey, Qpn, Rkey};
pub use interrupt::{InterruptHandler, Interrupted};
pub use loss::DeviceLoss;
pub use platform::{
    Clock, DmaFence, DmaMemory, DmaRing, Doorbell, Instant, Machine, OutOfRange, PageSource, Platform, Registers, RingLayout,
    RingView, TooFewPages, WordRegister,
};
pub use provider::{
    AsyncEvent, AtomicOp, AtomicOpcode, Bind, CompletionEvent, CompletionEvents, CoreToken, CqReader, CqRing, CreateQpParams,
    CreatedCq, CreatedQp, DataOp, DataOpcode, DeviceError, MrRequest, MwType, Peek, Provider, RawCompletion, RawKind, RecvRing,
    RingSizes, SendRing, SendWriter,
};
pub use queue_pair::{QpInfo, QpInit};
pub use recv_queue::RecvQueue;
pub use region::MrInfo;
pub use send_queue::{SendBatch, SendQueue};
#[cfg(feature = "multicore")]
pub use shared_verbs::SharedVerbs;
pub use storage::{QpRings, RingsView, Storage};
pub use verbs::Verbs;
pub use window::{Binding, MwBind, MwInfo};
pub use work::{BindInfo, Completion, Payload, RecvWr, Remote, SendOp, SendWr, Sge, WcData, WcError, WcOpcode, WcStatus};

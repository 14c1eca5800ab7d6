#![doc = include_str!("../README.md")]
//!
//! # Steps of a program
//!
//! 1. A backend brings the device up, and [`Verbs::new`] takes it with tables of a chosen size ([`storage!`], [`QpRings`];
//!    with the feature `alloc` `BoxedStorage`).
//! 2. [`Verbs::alloc_pd`], [`Verbs::create_cq`] and [`Verbs::create_qp`] make a protection domain and queues; [`Verbs::modify_qp_to_rts`] takes the
//!    queue pair to the peer's.
//!    On an Ethernet port [`Verbs::set_gid`] sets the addresses first.
//! 3. [`Verbs::reg_mr`] makes a [`Region`] of a [`DmaBuffer`], which owns it.
//! 4. [`SendQueue::post`] and [`RecvQueue::post`] post requests; [`CompletionQueue::poll`] takes completions.
//! 5. [`Verbs::maintain`] and [`Verbs::poll_event`] are called from time to time: they find a device that is lost.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![no_std]
#![deny(unsafe_code)]
#![warn(missing_debug_implementations)]

#[cfg(feature = "alloc")]
extern crate alloc;
#[cfg(test)]
extern crate self as bareverbs;
#[cfg(test)]
extern crate std;

mod address;
mod attr;
#[cfg(feature = "alloc")]
mod boxed_storage;
mod buffer;
mod claim;
mod completion;
mod create_qp;
mod drain;
mod errno;
mod error;
mod event;
mod fast_mr;
mod flags;
mod gid;
mod handle;
mod id;
#[cfg(test)]
#[cfg(loom)]
mod interleavings;
mod interrupt;
#[cfg(test)]
#[path = "tests/kept_verbs.rs"]
#[expect(unreachable_pub, dead_code, reason = "the whole-stack tests have the file too, and use all of it")]
mod kept_verbs;
mod link;
mod log;
mod loss;
mod masked_atomic;
mod modify_cq;
mod platform;
mod port;
mod provider;
mod queue_pair;
mod recv_queue;
mod region;
mod rereg_mr;
mod resize_cq;
mod ring;
mod send_queue;
mod shared;
mod srq;
mod srq_slot;
mod storage;
mod sync;
mod table;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;
mod transition;
mod verbs;
mod window;
mod work;
mod xrc;

/// Whether common requests and completions have code of their own in their callers, apart from that for all others.
const FAST_PATH: bool = cfg!(not(feature = "small"));

pub use address::{AddressHandle, AddressPart, Destination, EncodedAddress, Source};
pub use attr::{
    AddressVector, CqModeration, DeviceAttr, GlobalRoute, LinkLayer, MaskedAtomics, Mtu, MwType, MwType2, PathMigState,
    PhysState, PortAttr, PortState, QpAttr, QpCap, QpState, QpType, RawKind, SrqCap, ack_timeout,
};
#[cfg(feature = "alloc")]
pub use boxed_storage::{BoxedQpRings, BoxedSrqEntries, BoxedStorage, Capacities};
pub use buffer::{DmaBuffer, Refused, Region};
pub use completion::{CompletionQueue, Completions, CqInfo, WithSource};
pub use drain::Drained;
pub use errno::Errno;
pub use error::{
    AllocFastMrError, AllocMwError, AllocPdError, AllocXrcdError, AnswerFault, ArmSrqError, AttachMcastError, BadWr,
    BindRefused, BindType1Error, CreateAhError, CreateCqError, CreateQpError, CreateSrqError, DeallocMwError, DeallocPdError,
    DeallocXrcdError, DeregMrError, DestroyCqError, DestroyQpError, DestroySrqError, DetachMcastError, DeviceError, DrainError,
    FastRegError, ModifyCqError, ModifyQpError, NotifyCqError, PollCqError, PollEventError, PostRecvError, PostSendError,
    QueryError, QueryQpError, QuerySrqError, RegMrError, ReregMrError, ResizeCqError, SetGidError, SgeFault, StaleHandle,
    TakeError, WaitActiveError,
};
pub use event::Event;
pub use fast_mr::{FastMr, FastMrInfo, FastReg, FastRegion};
pub use flags::{Access, QpAttrMask, SendFlags};
pub use gid::{GidEntry, Mac};
pub use handle::{CqHandle, Handle, MrHandle, MwHandle, PdHandle, QpHandle, SrqHandle, kind};
pub use id::{Cqn, Gid, Guid, KeyTag, Lid, Lkey, Psn, Qkey, Qpn, Rkey, Srqn, Xrcdn};
pub use interrupt::{InterruptHandler, Interrupted};
pub use link::LinkFault;
pub use loss::DeviceLoss;
pub use platform::{
    AddressMap, Clock, DmaFence, DmaMemory, DmaRing, Doorbell, Extent, Instant, Machine, OffsetMap, OpensRings, OutOfRange,
    PageSource, Platform, Registers, RingLayout, RingToken, RingView, TooFewPages, WordRegister,
};
pub use provider::{
    AsyncEvent, AtomicOp, AtomicOpcode, BindOp, CompletionEvent, CompletionEvents, CoreToken, CqReader, CqRing, CreateQpParams,
    CreateXrcQpParams, CreateXrcSrqParams, CreatedCq, CreatedQp, CreatedSrq, DataOp, DataOpcode, DatagramOp, MrRequest, Peek,
    Provider, RawCompletion, RecvRing, RegOp, RingSizes, SendRing, SendWriter, SrqRing, SrqSizes,
};
pub use queue_pair::{MCAST_GROUPS, QpInfo, QpInit, QueuePair};
pub use recv_queue::{NoReceives, ReceiveSide, RecvQueue, SharedReceives};
pub use region::MrInfo;
pub use rereg_mr::MrChange;
pub use send_queue::{SendBatch, SendQueue};
pub use srq::{SharedReceiveQueue, SrqInfo, SrqInit};
pub use srq_slot::{SrqEntries, SrqEntriesView};
pub use storage::{QpRings, RingsView, Storage, StorageView};
pub use verbs::{Verbs, XRC_DOMAINS};
pub use window::{MwInfo, Type1Bind};
pub use work::{
    Binding, Completion, ConnectedOp, MaskedOp, MaskedWr, Payload, RecvWr, Remote, SendOp, SendWr, Sge, WcData, WcError,
    WcOpcode, WcStatus,
};
pub use xrc::XrcDomain;

#![doc = include_str!("../README.md")]
//!
//! # Modules
//!
//! | where | what | for |
//! |---|---|---|
//! | this page | [`Verbs`], queues, requests, completions, attributes | every program |
//! | [`mod@storage`] | tables and rings, whose type [`storage!`] names | every program |
//! | [`error`] | an enum for each call, with its [`Errno`](error::Errno) | every program |
//! | [`platform`] | what a machine implements: registers, memory, fences, a clock | a board |
//! | [`backend`] | what a driver implements | a driver |
//!
//! # Steps of a program
//!
//! 1. A backend brings the device up, and [`Verbs::new`] takes it with tables of a chosen size ([`storage!`], [`QpRings`](storage::QpRings);
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
pub mod backend;
#[cfg(feature = "alloc")]
mod boxed_storage;
mod buffer;
mod claim;
mod completion;
mod create_cq;
mod create_qp;
mod drain;
mod errno;
pub mod error;
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
pub mod platform;
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
pub mod storage;
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

pub use address::{AddressHandle, Destination, Source};
pub use attr::{
    AddressVector, CqModeration, DeviceAttr, GlobalRoute, LinkLayer, MaskedAtomics, Mtu, MwType, MwType2, PathMigState,
    PhysState, PortAttr, PortState, QpAttr, QpCap, QpState, QpType, SrqCap, ack_timeout,
};
pub use buffer::{DmaBuffer, Refused, Region};
pub use completion::poll::{Completions, WithSource};
pub use completion::{CompletionQueue, CqInfo};
pub use drain::Drained;
pub use event::Event;
pub use fast_mr::{FastMr, FastMrInfo, FastReg, FastRegion};
pub use flags::{Access, QpAttrMask, SendFlags};
pub use gid::{GidEntry, Mac};
pub use handle::{CqHandle, Handle, MrHandle, MwHandle, PdHandle, QpHandle, SrqHandle, kind};
pub use id::{Cqn, Gid, Guid, KeyTag, Lid, Lkey, Psn, Qkey, Qpn, Rkey, Srqn, Xrcdn};
pub use interrupt::{InterruptHandler, Interrupted};
pub use queue_pair::{MCAST_GROUPS, QpInfo, QpInit, QueuePair};
pub use recv_queue::{NoReceives, ReceiveSide, RecvQueue, SharedReceives};
pub use region::MrInfo;
pub use rereg_mr::MrChange;
pub use send_queue::{SendBatch, SendQueue};
pub use srq::{SharedReceiveQueue, SrqInfo, SrqInit};
pub use verbs::{Held, Verbs, XRC_DOMAINS};
pub use window::{MwInfo, Type1Bind};
pub use work::{
    Binding, Completion, ConnectedOp, MaskedOp, MaskedWr, Payload, RecvWr, Remote, SendOp, SendWr, Sge, WcData, WcError,
    WcOpcode, WcStatus,
};
pub use xrc::XrcDomain;

//! RDMA verbs for machines without an operating system.
//!
//! This crate knows what verbs mean and knows no device: fixed-capacity tables of protection domains, memory regions,
//! memory windows, completion queues and queue pairs, the checks that the verbs promise, and the rings of requests in
//! flight. A backend implements [`Provider`] and [`DataPath`]; a machine implements [`Platform`].
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

mod attr;
mod bind;
mod completion;
mod errno;
mod error;
mod event;
mod flags;
mod handle;
mod id;
mod parts;
mod platform;
mod provider;
mod queue_pair;
mod recv;
mod region;
mod ring;
mod say;
mod send;
mod shared;
mod table;
#[cfg(test)]
mod tests;
mod transition;
pub mod typed;
mod verbs;
mod window;
mod work;

pub use attr::{
    AddressVector, DeviceAttr, GlobalRoute, Mtu, PathMigState, PortAttr, PortState, QpAttr, QpCap, QpState, QpType, ack_timeout,
};
pub use bind::MwBind;
pub use completion::CqInfo;
pub use errno::Errno;
pub use error::{
    AllocMwError, AllocPdError, BadWr, BindMwError, BindRefused, CreateCqError, CreateQpError, DeallocMwError, DeallocPdError,
    DeregMrError, DestroyCqError, DestroyQpError, ModifyQpError, NotifyCqError, PollCqError, PollEventError, PostRecvError,
    PostSendError, QueryError, QueryQpError, RegMrError, SgeFault, StaleHandle,
};
pub use event::Event;
pub use flags::{Access, QpAttrMask, SendFlags};
pub use handle::{CqHandle, Handle, MrHandle, MwHandle, PdHandle, QpHandle, kind};
pub use id::{Cqn, Eqn, Gid, Guid, Lid, Lkey, Pdn, Psn, Qkey, Qpn, Rkey};
pub use platform::{Clock, DmaFence, DmaMemory, Instant, OutOfRange, Platform, Registers};
pub use provider::{
    AddressMap, AsyncEvent, Bind, CheckedOp, DataPath, DeviceError, MrRequest, MwType, OffsetMap, Peek, Provider, QpMade,
    QpRequest, RawCompletion, RawKind, UsualCompletion, UsualOp,
};
pub use queue_pair::{QpInfo, QpInit};
pub use region::MrInfo;
pub use send::SendQueue;
pub use shared::SharedVerbs;
pub use verbs::Verbs;
pub use window::{Binding, MwInfo};
pub use work::{BindInfo, Completion, Payload, RecvWr, Remote, SendOp, SendWr, Sge, WcData, WcOpcode, WcStatus};

//! RDMA verbs for machines without an operating system.
//!
//! This crate knows what verbs mean and knows no device: fixed-capacity tables of protection domains, memory regions,
//! memory windows, completion queues and queue pairs, the checks that the verbs promise, and the rings of requests in
//! flight. A backend implements [`Provider`] and [`DataPath`]; a machine implements [`Platform`].
#![no_std]
#![forbid(unsafe_code)]

mod attr;
mod errno;
mod flags;
mod handle;
mod id;
mod platform;
mod provider;
mod work;

pub use attr::{
    AddressVector, DeviceAttr, GlobalRoute, Mtu, PathMigState, PortAttr, PortState, QpAttr, QpCap, QpState, QpType, ack_timeout,
};
pub use errno::Errno;
pub use flags::{Access, QpAttrMask, SendFlags};
pub use handle::{CqHandle, Handle, MrHandle, MwHandle, PdHandle, QpHandle, kind};
pub use id::{Cqn, Eqn, Gid, Guid, Lid, Lkey, Pdn, Psn, Qkey, Qpn, Rkey};
pub use platform::{Clock, DmaFence, DmaMemory, Instant, OutOfRange, Platform, Registers};
pub use provider::{
    AddressMap, AsyncEvent, Bind, CheckedOp, DataPath, DeviceError, MrRequest, MwType, OffsetMap, Provider, QpMade, QpRequest,
    RawCompletion, RawKind,
};
pub use work::{BindInfo, Completion, Payload, RecvWr, Remote, SendOp, SendWr, Sge, WcData, WcOpcode, WcStatus};

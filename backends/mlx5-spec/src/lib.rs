//! The layout of every structure of an mlx5 (ConnectX) device, each defined once.
//!
//! Driver, simulated device, tests and tools read and write through these definitions. A test compares each with the published
//! offsets. The package has no behaviour. Its packets and the way to define a layout come from `bareverbs-ib-spec`.
//!
//! [`CmdOpcode`] is the table of firmware commands: number, input, output, and the objects that each names. [`cmd`] has each
//! command as a type. Segments, completions and doorbells also come as whole words, for code that loads and stores those.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![no_std]
#![forbid(unsafe_code)]

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod all;
mod command;
mod cqe;
mod doorbell;
mod event;
mod init_segment;
#[cfg(test)]
mod tests;
mod wqe;

pub use all::layouts;
pub use command::*;
pub use cqe::*;
pub use doorbell::*;
pub use event::*;
pub use init_segment::*;

#[doc(hidden)]
pub use bareverbs_ib_spec::define;
pub use bareverbs_ib_spec::{
    AcknowledgeHeader, AtomicAcknowledgeHeader, AtomicHeader, BaseTransportHeader, Bits, Buffer, Bytes, DatagramHeader,
    EthernetAddresses, Field, Field64, FieldInfo, GUIDS_PER_BLOCK, GlobalRouteHeader, ImmediateHeader, InvalidateHeader,
    Ipv4Header, KeyViolationNotice, Layout, LayoutInfo, LocalRouteHeader, MAD_BUSY, MKeyViolationNotice, NodeInfo, Notice,
    PKEYS_PER_BLOCK, Place, PortInfo, RdmaHeader, SMP_BASE_VERSION, SMP_CLASS_VERSION, SMP_GET, SMP_GET_RESP, SMP_LID_ROUTED,
    Smp, Sub, SubnetAttribute, Tail, UdpHeader, View, ViewMut, VlanHeader, XrcHeader, be_word, check_fields, codes, ether_type,
    from_be_word, layout, lnh,
};
pub use wqe::*;

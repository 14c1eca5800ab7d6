//! InfiniBand connection management: how two programs find each other's queue pairs (IBTA volume 1, chapter 12).
//!
//! It reads and writes management datagrams ([`Mad`], 256 bytes). What decides has no input and no output: the caller gives time,
//! randomness and datagrams as arguments. What carries the datagrams is a value of its own.
//!
//! - [`Req`], [`Rep`], [`Rtu`], [`Rej`], [`Mra`], [`Dreq`], [`Drep`], [`SidrReq`], [`SidrRep`] and [`Apr`] are the messages, each field as IBTA has it.
//! - [`Endpoint`] is the state machine of both sides, with a table of connections whose capacity is in its type.
//! - [`Carrier`] is QP1 of a port: it sends what an endpoint transmits, over InfiniBand or Ethernet (RoCEv2), and receives.
//! - [`IpPrivateData`] and [`PortSpace`] are what `rdma_cm` of Linux adds: connections by IP address and port.
//!
//! One connection, seen from both sides. The caller modifies its queue pair where the comments say:
//!
//! ```
//! use bareverbs::platform::Instant;
//! use bareverbs::{Guid, Lid, Mtu, Psn, Qpn};
//! use bareverbs_cm::*;
//!
//! let now = Instant::from_nanos(0);
//! let mut client = Endpoint::<4, 1, 1>::new(Config::new(Guid(1)));
//! let mut server = Endpoint::<4, 1, 1>::new(Config::new(Guid(2)));
//! let service = PortSpace::Tcp.service_id(7174);
//! server.listen(service)?;
//!
//! let path = Path { local_lid: Lid::new(1), remote_lid: Lid::new(2), mtu: Mtu::Mtu4096, ..Path::default() };
//! let request = ConnectRequest::new(service, path, Qpn::new(0x48), Psn::new(0x1000));
//! // Random numbers come from the caller.
//! let connection = client.connect(now, 0x5eed_0001_5eed_0002, &request)?;
//!
//! // What one transmits the other receives. A completion says where a datagram came from.
//! let mut mad = [0; MAD_BYTES];
//! let to = client.transmit(&mut mad).unwrap();
//! assert_eq!((to.path.dlid, to.qpn), (Lid::new(2), Qpn::new(1)));
//! let from_client = Source { lid: Lid::new(1), qpn: Qpn::new(1), ..Source::default() };
//! let Some(Event::Requested { id, .. }) = server.receive(now, 0x5eed_0003_5eed_0004, &from_client, &mad) else { panic!() };
//! let attributes = server.accept(now, id, &Accept::new(Qpn::new(0x51), Psn::new(0x2000)))?;
//! assert_eq!(attributes.rtr.dest_qpn, Qpn::new(0x48));
//! // The server's queue pair goes to RTR and RTS now: before the REP leaves.
//!
//! server.transmit(&mut mad).unwrap();
//! let from_server = Source { lid: Lid::new(2), qpn: Qpn::new(1), ..Source::default() };
//! let Some(Event::Replied { attributes, .. }) = client.receive(now, 0, &from_server, &mad) else { panic!() };
//! assert_eq!(attributes.rts.sq_psn, Psn::new(0x2000));
//! // The client's queue pair goes to RTR and RTS now.
//! client.ready(connection, b"")?;
//!
//! client.transmit(&mut mad).unwrap();
//! assert!(matches!(server.receive(now, 0, &from_client, &mad), Some(Event::Established { .. })));
//! # Ok::<(), CmError>(())
//! ```
#![cfg_attr(docsrs, feature(doc_cfg))]
#![no_std]
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]

#[cfg(test)]
extern crate std;

mod carrier;
mod codes;
mod endpoint;
mod error;
mod event;
mod ip_private_data;
mod message;
mod path;
mod service_id;
mod timeout;
mod unclosed;

pub use carrier::{CARRIER_CAP, Carrier, CarrierError, OpenError};
pub use codes::{ApStatus, MessageType, RejectReason, SidrStatus, Transport};
pub use endpoint::{Accept, Config, ConnectRequest, Endpoint, ResolveRequest, ServiceAnswer};
pub use error::CmError;
pub use event::{Attributes, Cause, ConnectionId, Event, QueryId, RtrAttributes, RtsAttributes, ServiceTicket, Unanswered};
pub use ip_private_data::{IpAddresses, IpPrivateData};
pub use message::{
    Apr, CommId, Drep, Dreq, Lap, MAD_BYTES, Mad, Mra, Rej, Rep, Req, ReqPath, Rtu, SidrRep, SidrReq, attribute,
};
pub use path::{Address, GlobalRoute, Path, PathAddress, Source};
pub use service_id::{PortSpace, ServiceId};
pub use timeout::{TIMEOUT_UNIT, ack_timeout, timeout};
pub use unclosed::{CloseError, Unclosed};

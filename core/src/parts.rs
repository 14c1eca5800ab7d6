//! The objects that the tables hold, and the tables taken together.
//!
//! Control logic works on [`Parts`], whose tables have no capacity in their types, so it is compiled once for a backend.

use heapless::VecView;

use crate::bind::{PendingBind, WindowState};
use crate::ring::Ring;
use crate::table::TableView;
use crate::{
    Access, CqHandle, Cqn, Lkey, MwType, PdHandle, PollCqError, Provider, QpAttr, QpCap, QpState, QpType, Qpn, Rkey, SendFlags,
    kind, send::OpSet,
};

/// A protection domain.
pub(crate) struct Pd<P: Provider> {
    pub(crate) inner: P::Pd,
    /// Regions, windows and queue pairs in it.
    pub(crate) users: u32,
}

/// A memory region. What every request asks for comes first.
pub(crate) struct Mr<P: Provider> {
    pub(crate) lkey: Lkey,
    pub(crate) access: Access,
    pub(crate) pd: PdHandle,
    /// First address by which requests and peers name it: 0 if it is zero-based.
    pub(crate) base: u64,
    pub(crate) length: u64,
    pub(crate) addr: u64,
    pub(crate) rkey: Rkey,
    /// Bindings that hold it: those of windows, and those that a failed bind would bring back.
    pub(crate) bindings: u32,
    pub(crate) inner: P::Mr,
}

/// A memory window.
pub(crate) struct Mw<P: Provider> {
    pub(crate) state: WindowState,
    pub(crate) pd: PdHandle,
    pub(crate) kind: MwType,
    pub(crate) inner: P::Mw,
}

/// A completion queue.
pub(crate) struct Cq<P: Provider> {
    pub(crate) inner: P::Cq,
    pub(crate) cqn: Cqn,
    pub(crate) entries: u32,
    /// Work queues that complete into it.
    pub(crate) users: u32,
    /// What the next poll has to say, because this one had completions to give.
    pub(crate) held: Option<PollCqError<P::Error>>,
}

/// A queue pair. What every request asks for comes first.
pub(crate) struct Qp<P: Provider> {
    pub(crate) send: Ring,
    pub(crate) recv: Ring,
    /// Head of the send ring that the device was told of last.
    pub(crate) announced: u32,
    pub(crate) state: QpState,
    pub(crate) sq_sig_all: bool,
    /// Operations of the transport on this device.
    pub(crate) ops: OpSet,
    /// Send flags of the transport.
    pub(crate) flags: SendFlags,
    pub(crate) pd: PdHandle,
    /// Longest message in bytes.
    pub(crate) max_message: u32,
    pub(crate) cap: QpCap,
    pub(crate) qpn: Qpn,
    pub(crate) send_cq: CqHandle,
    pub(crate) recv_cq: CqHandle,
    /// Binds and invalidations in flight.
    pub(crate) pending: u32,
    pub(crate) inner: P::Qp,
    pub(crate) qp_type: QpType,
    pub(crate) attr: QpAttr,
}

/// All tables, whatever their capacities, and the backend.
pub(crate) struct Parts<'a, P: Provider> {
    pub(crate) provider: &'a mut P,
    pub(crate) pds: &'a mut TableView<kind::Pd, Pd<P>>,
    pub(crate) mrs: &'a mut TableView<kind::Mr, Mr<P>>,
    pub(crate) mws: &'a mut TableView<kind::Mw, Mw<P>>,
    pub(crate) cqs: &'a mut TableView<kind::Cq, Cq<P>>,
    pub(crate) qps: &'a mut TableView<kind::Qp, Qp<P>>,
    pub(crate) binds: &'a mut VecView<PendingBind>,
    /// Low bits of a key that hold the slot of its region.
    pub(crate) slot_mask: u32,
    /// Blocks of a send ring, entries of a receive ring.
    pub(crate) ring_sizes: (u32, u32),
}

impl<P: Provider> Parts<'_, P> {
    /// Generation that slots start with: differs between devices, so that no handle of one fits the other.
    pub(crate) fn first_generation(&self) -> u32 {
        // The multiplier (2^64 over the golden ratio) sets neighbouring GUIDs far apart.
        (self.provider.device_attr().node_guid.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
    }
}

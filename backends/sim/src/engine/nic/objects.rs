//! TIS, TIR and RQT: what a frame's queue is found by.

use crate::registry::{ObjectKind, Resource};

/// Receive queues of a table at most, as a power of two (`log_max_rqt_size`).
pub(crate) const LOG_MAX_QUEUE_TABLE: u32 = 11;

/// A TIS as its context describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TisSpec {
    /// Transport domain of what its queues send.
    pub(crate) domain: u32,
    /// `prio`. No queue is served before another one for it.
    pub(crate) priority: u32,
}

/// Where a TIR leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TirTarget {
    /// To one receive queue.
    Queue(u32),
    /// To one of a table, by the hash of the frame.
    Table(u32),
}

impl TirTarget {
    pub(in crate::engine) const fn resource(self) -> Resource {
        match self {
            Self::Queue(rqn) => Resource::new(ObjectKind::Rq, rqn),
            Self::Table(rqtn) => Resource::new(ObjectKind::Rqt, rqtn),
        }
    }
}

/// Over which fields of a frame the hash is that chooses a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RssSpec {
    /// `rx_hash_fn`.
    pub(crate) function: u32,
    /// `rx_hash_toeplitz_key`.
    pub(crate) key: [u8; 40],
    /// `rx_hash_field_select` of the outer headers.
    pub(crate) fields: u32,
}

/// A TIR as its context describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TirSpec {
    pub(crate) target: TirTarget,
    pub(crate) domain: u32,
    /// `self_lb_block`: unicast and multicast frames of its own transport domain that it takes.
    pub(crate) self_loopback: u32,
    pub(crate) rss: RssSpec,
}

//! The Ethernet side of the port: queues for frames, and what says which frame goes to which queue.

pub(in crate::engine) mod filter;
pub(in crate::engine) mod flow_table;
pub(in crate::engine) mod frame;
mod objects;
pub(in crate::engine) mod queue;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use flow_table::FlowTables;
use queue::{ReceiveQueue, SendQueue};

pub(crate) use filter::FrameFilter;
pub(crate) use flow_table::{
    Destination, FlowTableSpec, LOG_MAX_COUNTER_QUERY, LOG_MAX_DESTINATIONS, LOG_MAX_RULE_COUNTERS, LOG_MAX_TABLE_SIZE,
    MAX_LEVEL, MatchCriteria, Rule,
};
pub(crate) use objects::{LOG_MAX_QUEUE_TABLE, RssSpec, TirSpec, TirTarget, TisSpec};
pub(crate) use queue::{LOG_MAX_WQ_SIZE, QueueMemory};

/// Objects of the Ethernet side.
#[derive(Debug, Default)]
pub(in crate::engine) struct Nic {
    pub(in crate::engine) send_queues: BTreeMap<u32, SendQueue>,
    pub(in crate::engine) receive_queues: BTreeMap<u32, ReceiveQueue>,
    /// Receive queues of each table.
    pub(in crate::engine) queue_tables: BTreeMap<u32, Vec<u32>>,
    pub(in crate::engine) tirs: BTreeMap<u32, TirSpec>,
    pub(in crate::engine) flow_tables: FlowTables,
    /// Which frames from the wire come to the tables.
    pub(in crate::engine) filter: FrameFilter,
    pub(in crate::engine) tiss: BTreeMap<u32, TisSpec>,
    /// Send queues that have work now.
    pub(in crate::engine) busy: BTreeSet<u32>,
    /// Frames of the WQE that was taken last, with the transport domain of its queue.
    pub(in crate::engine) unsent: VecDeque<(Vec<u8>, Option<u32>)>,
}

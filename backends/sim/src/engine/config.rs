//! Configuration, events and statistics of the engine.

use bareverbs_mlx5_spec::EventType;

use crate::config::DEFAULT_MEMORY_LIMIT;
use crate::limits::Limits;
use crate::packet::same_partition;

/// Prefix of GIDs that are valid on the link.
const LINK_LOCAL_PREFIX: u128 = 0xfe80 << 112;

/// What the rest of the device decides about the data path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    /// Local identifier of the port; frames to another one are not for this device.
    pub lid: u16,
    /// GID table of the port in wire order, the sources of global routes. An entry without an interface identifier is unused.
    pub gids: Vec<[u8; 16]>,
    /// P_Key table of the port. An entry whose lower 15 bits are 0 is unused.
    pub pkeys: Vec<u16>,
    /// Atomics treat memory as little-endian 64-bit numbers; otherwise as big-endian ones.
    pub atomic_host_endian: bool,
    /// 1: completions carry the user index of their queue pair beside its number; 0: zero there.
    pub cqe_version: u8,
    /// How many objects of a kind there may be.
    pub limits: Limits,
    /// Binary logarithm of the largest message in bytes.
    pub log_max_msg: u8,
    /// Bytes of payload in the largest packet of the port.
    pub max_mtu: u16,
    /// Binary logarithm of the reads and atomics that a queue pair may have under way, at either end.
    pub log_max_reads: u8,
    /// Bytes of this process that the device may take.
    pub memory_limit: u64,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            lid: 1,
            gids: vec![[0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]],
            pkeys: std::iter::once(0xffff).chain([0; 127]).collect(),
            atomic_host_endian: true,
            cqe_version: 1,
            limits: Limits::default(),
            log_max_msg: 30,
            max_mtu: 4096,
            log_max_reads: 4,
            memory_limit: DEFAULT_MEMORY_LIMIT,
        }
    }
}

/// An event for the event queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineEvent {
    /// An armed completion queue has an entry.
    Completion {
        /// Event queue of the completion queue.
        eqn: u32,
        /// Completion queue.
        cqn: u32,
    },
    /// A completion queue can no longer be written.
    CqError {
        /// Completion queue.
        cqn: u32,
        /// 1: overrun; 2: its memory is not there.
        syndrome: u8,
    },
    /// An event of a queue pair.
    Qp {
        /// What happened.
        event: EventType,
        /// Queue pair.
        qpn: u32,
    },
    /// An event of a shared receive queue.
    Srq {
        /// What happened.
        event: EventType,
        /// Shared receive queue.
        srqn: u32,
    },
    /// A send request that the device does not know; nothing for the host, which finds a failed completion.
    UnknownRequest {
        /// Its opcode.
        opcode: u8,
    },
}

/// How many objects there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineCounts {
    /// Memory keys, windows included.
    pub mkeys: usize,
    /// Memory windows that are bound.
    pub bound_windows: usize,
    /// Allocations of device memory.
    pub device_memories: usize,
    /// Completion queues.
    pub cqs: usize,
    /// Queue pairs.
    pub qps: usize,
    /// Shared receive queues of all kinds.
    pub srqs: usize,
    /// Memberships of queue pairs in multicast groups.
    pub memberships: usize,
}

/// Packets, and their bytes from LRH to ICRC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub octets: u64,
}

impl Traffic {
    /// Counts a packet of `octets` bytes.
    pub(super) fn count(&mut self, octets: usize) {
        self.packets += 1;
        self.octets += octets as u64;
    }

    /// Both together.
    pub(crate) fn and(self, other: Self) -> Self {
        Self { packets: self.packets + other.packets, octets: self.octets + other.octets }
    }
}

/// What went over the wire and what went wrong on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineStats {
    /// Sent to one port.
    pub sent: Traffic,
    /// Sent to multicast groups.
    pub sent_multicast: Traffic,
    /// Received and understood.
    pub received: Traffic,
    /// Received for multicast groups with a member here.
    pub received_multicast: Traffic,
    /// Frames that were no packets, or for no queue pair here.
    pub dropped: u64,
    /// Those of them that were no packets.
    pub malformed: u64,
    /// Datagrams for the agent of subnet management for which there was no room.
    pub subnet_management_dropped: u64,
    /// Times that a requester went back and sent again.
    pub retries: u64,
    /// Sequence errors that peers reported.
    pub sequence_errors: u64,
    /// Times that a peer had no receive.
    pub receiver_not_ready: u64,
    /// Requests that came again.
    pub duplicates: u64,
    /// Packets for a queue pair of another partition (P_Key violations).
    pub pkey_violations: u64,
    /// Datagrams with another queue key than that of their queue pair (Q_Key violations).
    pub qkey_violations: u64,
}

/// What the queue pairs of one set of counters met, since it was last cleared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounts {
    /// RDMA WRITE requests received.
    pub writes: u64,
    /// RDMA READ requests received.
    pub reads: u64,
    /// Atomic requests received.
    pub atomics: u64,
    /// Messages for which no receive was posted.
    pub out_of_buffer: u64,
    /// Requests with a gap before them.
    pub out_of_sequence: u64,
    /// Requests that came again.
    pub duplicates: u64,
    /// Receiver not ready NAKs received.
    pub receiver_not_ready: u64,
    /// Sequence error NAKs received.
    pub sequence_errors: u64,
    /// Responses that a later one showed to be missing.
    pub missing_responses: u64,
    /// Acknowledge timers that ran out.
    pub timeouts: u64,
}

impl EngineConfig {
    /// Entry of the GID table, if it is in use.
    pub(super) fn gid(&self, index: u32) -> Option<[u8; 16]> {
        let gid = usize::try_from(index).ok().and_then(|index| self.gids.get(index)).copied();
        gid.filter(|gid| u128::from_be_bytes(*gid) as u64 != 0)
    }

    /// The GID of answers that name none: the first.
    pub(super) fn port_gid(&self) -> [u8; 16] {
        self.gids.first().copied().unwrap_or_default()
    }

    /// Whether a packet with this destination GID is for the port. The link-local prefix always names it (InfiniBand
    /// Architecture 4.1.1).
    pub(super) fn has_gid(&self, gid: [u8; 16]) -> bool {
        let link_local = |own: [u8; 16]| (LINK_LOCAL_PREFIX | u128::from(u128::from_be_bytes(own) as u64)).to_be_bytes();
        (0..self.gids.len() as u32).filter_map(|index| self.gid(index)).any(|own| gid == own || gid == link_local(own))
    }

    /// Entry of the P_Key table; 0, which is no partition, beyond it.
    pub(super) fn pkey(&self, index: u32) -> u16 {
        usize::try_from(index).ok().and_then(|index| self.pkeys.get(index)).copied().unwrap_or(0)
    }

    /// Whether the port is a member of the partition of a packet.
    pub(super) fn shares_partition(&self, pkey: u16) -> bool {
        self.pkeys.iter().any(|own| same_partition(*own, pkey))
    }

    /// The number that eight bytes of memory hold for an atomic.
    pub(super) fn atomic_value(&self, bytes: [u8; 8]) -> u64 {
        if self.atomic_host_endian { u64::from_le_bytes(bytes) } else { u64::from_be_bytes(bytes) }
    }

    /// The bytes of a number in memory for an atomic.
    pub(super) fn atomic_bytes(&self, value: u64) -> [u8; 8] {
        if self.atomic_host_endian { value.to_le_bytes() } else { value.to_be_bytes() }
    }
}

//! What the rest of the device decides about the engine.

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

//! What the rest of the device decides about the engine.

use crate::config::DEFAULT_MEMORY_LIMIT;
use crate::limits::Limits;

/// What the rest of the device decides about the data path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EngineConfig {
    /// Atomics treat memory as little-endian 64-bit numbers; otherwise as big-endian ones.
    pub atomic_host_endian: bool,
    /// Masked atomics are done, on four and eight bytes.
    pub extended_atomics: bool,
    /// Requests change no right to atomics of a key, and no key over other keys.
    pub restricted_umr: bool,
    /// 1: completions carry the user index of their queue pair beside its number; 0: zero there.
    pub cqe_version: u8,
    /// How many objects of a kind there may be.
    pub limits: Limits,
    /// Binary logarithm of the largest message in bytes.
    pub log_max_msg: u8,
    /// Bytes of payload in the largest packet of the port.
    pub max_mtu: u16,
    /// Binary logarithm of the reads and atomics that a queue pair may have in progress, at either end.
    pub log_max_reads: u8,
    /// Bytes of this process that the device may take.
    pub memory_limit: u64,
    /// Permanent MAC address of an Ethernet port.
    pub mac: Option<[u8; 6]>,
    /// The switch of the card brings the port what is to an address of its lists alone: that of a virtual function (Linux
    /// `esw_update_vport_addr_list`). RoCE passes it too.
    pub is_behind_switch: bool,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            atomic_host_endian: true,
            extended_atomics: true,
            restricted_umr: false,
            cqe_version: 1,
            limits: Limits::default(),
            log_max_msg: 30,
            max_mtu: 4096,
            log_max_reads: 4,
            memory_limit: DEFAULT_MEMORY_LIMIT,
            mac: None,
            is_behind_switch: false,
        }
    }
}

impl EngineConfig {
    /// Returns the number in up to eight bytes of memory, as an atomic reads it.
    pub(super) fn atomic_value(&self, bytes: &[u8]) -> u64 {
        let joined = |value, byte: &u8| value << 8 | u64::from(*byte);
        if self.atomic_host_endian { bytes.iter().rev().fold(0, joined) } else { bytes.iter().fold(0, joined) }
    }

    /// Returns the bytes of a number in memory for an atomic on `size` bytes.
    pub(super) fn atomic_bytes(&self, value: u64, size: usize) -> Vec<u8> {
        let little = value.to_le_bytes().into_iter().take(size);
        if self.atomic_host_endian { little.collect() } else { little.rev().collect() }
    }
}

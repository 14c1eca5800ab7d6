//! How many objects a simulated device has and how large they may be.

use core::fmt;
use core::ops::RangeInclusive;

/// Entries of the GID table (`gid_table_size` 0).
pub(crate) const GIDS: usize = 8;
/// Entries of the P_Key table (`pkey_table_size` 0).
pub(crate) const PKEYS: usize = 128;
/// Binary logarithm of the bytes of the smallest allocation of device memory (`log_min_memic_alloc_size`).
pub(crate) const LOG_MIN_ALLOCATION: u32 = 6;

/// Maximum numbers and sizes of objects, as powers of two; what QUERY_HCA_CAP reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Queue pairs.
    pub log_max_qp: u8,
    /// Blocks of a send queue, entries of a receive queue.
    pub log_max_qp_size: u8,
    /// Shared receive queues of all kinds.
    pub log_max_srq: u8,
    /// Entries of a shared receive queue.
    pub log_max_srq_size: u8,
    /// Completion queues.
    pub log_max_cq: u8,
    /// Entries of a completion queue.
    pub log_max_cq_size: u8,
    /// Event queues.
    pub log_max_eq: u8,
    /// Entries of an event queue.
    pub log_max_eq_size: u8,
    /// Memory keys.
    pub log_max_mkey: u8,
    /// Protection domains.
    pub log_max_pd: u8,
    /// Bytes of a message.
    pub log_max_msg: u8,
    /// Reads and atomics that a queue pair may have outstanding, as requester and as responder.
    pub log_max_reads: u8,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            log_max_qp: 18,
            log_max_qp_size: 15,
            log_max_srq: 16,
            log_max_srq_size: 15,
            log_max_cq: 24,
            log_max_cq_size: 22,
            log_max_eq: 6,
            log_max_eq_size: 15,
            log_max_mkey: 24,
            log_max_pd: 16,
            log_max_msg: 30,
            log_max_reads: 4,
        }
    }
}

/// One of the [`Limits`], by a name for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Limit {
    /// `qps`: queue pairs, two of which the device keeps.
    QueuePairs,
    /// `qp-size`: blocks of a send queue, entries of a receive queue.
    QueuePairSize,
    /// `srqs`: shared receive queues.
    SharedReceiveQueues,
    /// `srq-size`: entries of one.
    SharedReceiveQueueSize,
    /// `cqs`: completion queues.
    CompletionQueues,
    /// `cq-size`: entries of one.
    CompletionQueueSize,
    /// `eqs`: event queues.
    EventQueues,
    /// `eq-size`: entries of one.
    EventQueueSize,
    /// `mkeys`: memory keys.
    MemoryKeys,
    /// `pds`: protection domains.
    ProtectionDomains,
    /// `message`: bytes of a message.
    Message,
    /// `reads`: reads and atomics of a queue pair in flight.
    Reads,
}

/// Why a limit cannot be what was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LimitError {
    /// The number is no power of two.
    NotAPower {
        /// The next one below; 1 for 0.
        below: u64,
        /// The next one above.
        above: u64,
    },
    /// The number is out of the range that the device can have.
    Range {
        /// Least.
        least: u64,
        /// Most.
        most: u64,
    },
}

impl fmt::Display for LimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAPower { below, above } => write!(f, "not a power of two: {below} or {above}?"),
            Self::Range { least, most } => write!(f, "not between {least} and {most}"),
        }
    }
}

impl core::error::Error for LimitError {}

impl Limit {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::QueuePairs,
        Self::QueuePairSize,
        Self::SharedReceiveQueues,
        Self::SharedReceiveQueueSize,
        Self::CompletionQueues,
        Self::CompletionQueueSize,
        Self::EventQueues,
        Self::EventQueueSize,
        Self::MemoryKeys,
        Self::ProtectionDomains,
        Self::Message,
        Self::Reads,
    ];

    /// Its name, lower case.
    pub const fn name(self) -> &'static str {
        match self {
            Self::QueuePairs => "qps",
            Self::QueuePairSize => "qp-size",
            Self::SharedReceiveQueues => "srqs",
            Self::SharedReceiveQueueSize => "srq-size",
            Self::CompletionQueues => "cqs",
            Self::CompletionQueueSize => "cq-size",
            Self::EventQueues => "eqs",
            Self::EventQueueSize => "eq-size",
            Self::MemoryKeys => "mkeys",
            Self::ProtectionDomains => "pds",
            Self::Message => "message",
            Self::Reads => "reads",
        }
    }

    /// Returns the limit of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|limit| limit.name() == name)
    }

    /// Returns what the fields of contexts and capabilities have room for, and no less than a driver can begin with; powers of
    /// two.
    const fn range(self) -> RangeInclusive<u8> {
        match self {
            Self::QueuePairs | Self::CompletionQueues | Self::MemoryKeys => 4..=24,
            Self::QueuePairSize | Self::SharedReceiveQueueSize => 4..=15,
            Self::SharedReceiveQueues => 0..=16,
            Self::CompletionQueueSize => 4..=22,
            Self::EventQueues => 2..=7,
            Self::EventQueueSize => 4..=15,
            Self::ProtectionDomains => 2..=23,
            Self::Message => 12..=31,
            Self::Reads => 0..=7,
        }
    }

    fn of(self, limits: &mut Limits) -> &mut u8 {
        match self {
            Self::QueuePairs => &mut limits.log_max_qp,
            Self::QueuePairSize => &mut limits.log_max_qp_size,
            Self::SharedReceiveQueues => &mut limits.log_max_srq,
            Self::SharedReceiveQueueSize => &mut limits.log_max_srq_size,
            Self::CompletionQueues => &mut limits.log_max_cq,
            Self::CompletionQueueSize => &mut limits.log_max_cq_size,
            Self::EventQueues => &mut limits.log_max_eq,
            Self::EventQueueSize => &mut limits.log_max_eq_size,
            Self::MemoryKeys => &mut limits.log_max_mkey,
            Self::ProtectionDomains => &mut limits.log_max_pd,
            Self::Message => &mut limits.log_max_msg,
            Self::Reads => &mut limits.log_max_reads,
        }
    }
}

impl Limits {
    /// Sets `limit` to `number` objects, entries or bytes.
    ///
    /// # Errors
    /// The number is no power of two, or outside the range of the limit.
    pub fn set(&mut self, limit: Limit, number: u64) -> Result<(), LimitError> {
        if !number.is_power_of_two() {
            let above = number.checked_next_power_of_two().unwrap_or(1 << 63);
            return Err(LimitError::NotAPower { below: (above / 2).max(1), above });
        }
        let (log, range) = (number.trailing_zeros() as u8, limit.range());
        if !range.contains(&log) {
            return Err(LimitError::Range { least: 1 << range.start(), most: 1 << range.end() });
        }
        *limit.of(self) = log;
        Ok(())
    }

    /// Returns the number that `limit` stands at.
    pub fn get(mut self, limit: Limit) -> u64 {
        1_u64.checked_shl((*limit.of(&mut self)).into()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limit_has_a_name_of_its_own_and_a_usual_value_that_may_be_set() {
        let usual = Limits::default();
        for limit in Limit::ALL {
            assert_eq!(Limit::from_name(limit.name()), Some(limit));
            let mut limits = usual;
            limits.set(limit, usual.get(limit)).unwrap();
            assert_eq!(limits, usual, "{limit:?}");
            limits.set(limit, 1 << limit.range().start()).unwrap();
            let changed = Limit::ALL.into_iter().filter(|other| limits.get(*other) != usual.get(*other));
            assert!(changed.eq([limit]), "{limit:?}");
        }
        assert_eq!(Limit::from_name("QPS"), None);
    }

    #[test]
    fn what_is_no_power_or_does_not_fit_is_refused() {
        let mut limits = Limits::default();
        assert_eq!(limits.set(Limit::QueuePairs, 1000), Err(LimitError::NotAPower { below: 512, above: 1024 }));
        assert_eq!(limits.set(Limit::QueuePairs, 0), Err(LimitError::NotAPower { below: 1, above: 1 }));
        assert!(matches!(limits.set(Limit::Reads, u64::MAX), Err(LimitError::NotAPower { .. })));
        assert_eq!(limits.set(Limit::Reads, 256), Err(LimitError::Range { least: 1, most: 128 }));
        assert_eq!(limits.set(Limit::Message, 2048), Err(LimitError::Range { least: 4096, most: 1 << 31 }));
        assert_eq!(limits, Limits::default());
    }
}

//! Events of the engine for the event queues.

use bareverbs_mlx5_spec::EventType;

/// An event for the event queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EngineEvent {
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

//! Injected faults as data: what the device does wrong, and when.

use core::time::Duration;
use std::collections::VecDeque;

/// One fault. Each happens once; arm it again for more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The next command with this opcode is never completed.
    StuckCommand {
        /// Opcode.
        opcode: u16,
    },
    /// The next command with this opcode is executed at once, and its output is written after a delay.
    LateCommand {
        /// Opcode.
        opcode: u16,
        /// Time from the execution to the answer.
        delay: Duration,
    },
    /// The next command with this opcode is not executed and ends with this status and syndrome.
    CommandStatus {
        /// Opcode.
        opcode: u16,
        /// Status.
        status: u8,
        /// Syndrome.
        syndrome: u32,
    },
    /// The next command with this opcode ends with this delivery status.
    DeliveryStatus {
        /// Opcode.
        opcode: u16,
        /// Delivery status.
        status: u8,
    },
    /// The next command is executed, and four bytes of its output are changed before they are written. The entry's signature and those of
    /// the mailboxes fit what is written. Delivery status and owner bit are no part of the output.
    CorruptOutput {
        /// Opcode; `None`: of any command.
        opcode: Option<u16>,
        /// Offset of the first of the four bytes in the output, whose first byte is the status. Bytes behind the end of the output are
        /// not there to be changed.
        offset: u32,
        /// Bits that are inverted, as a number in network byte order.
        mask: u32,
    },
    /// The next completion of this queue is not written.
    DropCqe {
        /// Completion queue.
        cqn: u32,
    },
    /// The next completion of this queue is written twice.
    RepeatCqe {
        /// Completion queue.
        cqn: u32,
    },
    /// The next completion of this queue has the wrong owner bit.
    WrongOwner {
        /// Completion queue.
        cqn: u32,
    },
    /// The next completion of this queue names another queue pair (in its QPN and its user index).
    ForeignQpn {
        /// Completion queue.
        cqn: u32,
        /// The queue pair named.
        qpn: u32,
    },
    /// The next completion of this queue names this WQE.
    WrongWqeCounter {
        /// Completion queue.
        cqn: u32,
        /// The counter named.
        counter: u16,
    },
    /// The next completion of this queue has this opcode.
    CqeOpcode {
        /// Completion queue.
        cqn: u32,
        /// Opcode.
        opcode: u8,
    },
    /// The next interrupt of this vector is lost.
    LostInterrupt {
        /// MSI-X vector.
        vector: u16,
    },
    /// The next event queue entry has this type.
    EventType {
        /// Event type.
        event_type: u8,
    },
}

/// Faults that are armed.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    armed: VecDeque<Fault>,
}

impl Faults {
    /// Arms a fault.
    pub fn arm(&mut self, fault: Fault) {
        self.armed.push_back(fault);
    }

    /// Removes the first armed fault that `pick` accepts, and returns what it made of it.
    pub fn take<T>(&mut self, mut pick: impl FnMut(&Fault) -> Option<T>) -> Option<T> {
        let (at, picked) = self.armed.iter().enumerate().find_map(|(at, fault)| Some((at, pick(fault)?)))?;
        self.armed.remove(at);
        Some(picked)
    }

    /// Returns whether no fault is armed.
    pub fn is_empty(&self) -> bool {
        self.armed.is_empty()
    }
}

//! Trace: a record for each thing that the device does.

use bareverbs::platform::Instant;

/// One thing that happened, with its bytes as they lay in memory, in a register or on the wire.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Record<'a> {
    /// A firmware command was executed.
    Command {
        /// Slot of the command queue.
        slot: u8,
        /// Whole input.
        input: &'a [u8],
        /// Whole output.
        output: &'a [u8],
    },
    /// A doorbell was written in a UAR page.
    Doorbell {
        /// UAR page.
        uar: u32,
        /// Byte in the page.
        offset: usize,
        /// What was written.
        bytes: &'a [u8],
    },
    /// A send WQE was fetched.
    SendWqe {
        /// Queue pair.
        qpn: u32,
        /// Index of its first block.
        index: u16,
        /// The WQE.
        bytes: &'a [u8],
    },
    /// A receive WQE was fetched.
    RecvWqe {
        /// Queue pair.
        qpn: u32,
        /// Receive counter.
        index: u16,
        /// The WQE.
        bytes: &'a [u8],
    },
    /// A completion was written.
    Cqe {
        /// Completion queue.
        cqn: u32,
        /// Producer counter.
        index: u32,
        /// The entry.
        bytes: &'a [u8],
    },
    /// An event was written.
    Eqe {
        /// Event queue.
        eqn: u32,
        /// Producer counter.
        index: u32,
        /// The entry.
        bytes: &'a [u8],
    },
    /// An interrupt was raised.
    Interrupt {
        /// MSI-X vector.
        vector: u16,
    },
    /// A packet or an Ethernet frame left.
    Sent {
        /// From LRH to ICRC; of an Ethernet port from the addresses on, without check sequence.
        bytes: &'a [u8],
    },
    /// A packet or an Ethernet frame came.
    Received {
        /// From LRH to ICRC; of an Ethernet port from the addresses on, without check sequence.
        bytes: &'a [u8],
    },
    /// Anything else worth a line: what is not supported, what was refused and why.
    Note(&'a str),
}

/// Takes records as they happen.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not take records of a device",
    note = "implement `Tracer::record`; `Box<dyn Tracer>` is one too"
)]
pub trait Tracer {
    /// One record; `now` is the device's time.
    fn record(&mut self, now: Instant, record: Record<'_>);
}

impl<T: Tracer + ?Sized> Tracer for Box<T> {
    fn record(&mut self, now: Instant, record: Record<'_>) {
        (**self).record(now, record);
    }
}

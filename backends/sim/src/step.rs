//! One step of the device's work: its context, and the bound on the work of a turn.

use std::cell::Cell;

use bareverbs::platform::Instant;

use crate::audit::Audit;
use crate::fault::Faults;
use crate::host_memory::{DmaFault, HostMemory};
use crate::rejection::{Rejection, Rejections};
use crate::trace::{Record, Tracer};

/// What the parts of the device share in one step of work.
pub(crate) struct StepContext<'a> {
    /// The device's time.
    pub now: Instant,
    /// Host memory.
    pub memory: &'a dyn HostMemory,
    /// Counts the work of this turn.
    pub meter: &'a Meter,
    /// Tracer, if any.
    pub tracer: Option<&'a mut (dyn Tracer + 'static)>,
    /// Faults that are armed.
    pub faults: &'a mut Faults,
    /// What the driver did wrong.
    pub audit: &'a mut Audit,
    /// What was refused or dropped.
    pub rejections: &'a mut Rejections,
}

impl StepContext<'_> {
    /// Passes a record to the tracer, if there is one.
    pub(crate) fn trace(&mut self, record: Record<'_>) {
        if let Some(tracer) = self.tracer.as_deref_mut() {
            tracer.record(self.now, record);
        }
    }

    /// Keeps a rejection, and passes it to the tracer as a line.
    pub(crate) fn reject(&mut self, rejection: Rejection) {
        self.note(|| rejection.to_string());
        self.rejections.report(rejection);
    }

    /// Passes a line to the tracer; it is formatted only if there is one.
    pub(crate) fn note(&mut self, line: impl FnOnce() -> String) {
        if self.tracer.is_some() {
            let line = line();
            self.trace(Record::Note(&line));
        }
    }
}

/// A bound on the work of one turn of a device: [`Device::advance`](crate::Device::advance) with the frames and doorbells that
/// came since the one before. A turn ends with the step that reaches either number: a packet, a work request, a firmware command.
/// Each kind of work that waits gets one step even then, and queue pairs get an eighth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Bytes read from and written to memory, the host's and the device's.
    pub bytes: u64,
    /// Accesses to memory, and steps without one: packets, requests, queue pairs examined.
    pub steps: u64,
}

impl Budget {
    /// What every turn may take. A turn of this size is about a millisecond long.
    pub const TURN: Self = Self { bytes: 1 << 20, steps: 4096 };
}

/// Entries of a key's list that are examined in about the time of an access to memory.
const ENTRIES_PER_STEP: usize = 16;

/// What a turn has taken so far, and where it ends.
#[derive(Debug)]
pub(crate) struct Meter {
    bytes: Cell<u64>,
    steps: Cell<u64>,
    end: Cell<Part>,
}

impl Default for Meter {
    fn default() -> Self {
        Self { bytes: Cell::new(0), steps: Cell::new(0), end: Cell::new(Part::TURN) }
    }
}

impl Meter {
    /// A new turn begins.
    pub(crate) fn restart(&self) {
        self.bytes.set(0);
        self.steps.set(0);
        self.end.set(Part::TURN);
    }

    /// Counts steps that access no memory.
    pub(crate) fn count(&self, steps: u64) {
        self.steps.set(self.steps.get().saturating_add(steps));
    }

    /// Counts entries of the lists of keys that were examined.
    pub(crate) fn count_entries(&self, entries: usize) {
        self.count((entries / ENTRIES_PER_STEP) as u64);
    }

    /// Counts an access to memory.
    pub(crate) fn access(&self, bytes: usize) {
        self.bytes.set(self.bytes.get().saturating_add(bytes as u64));
        self.count(1);
    }

    fn has_reached(&self, bytes: u64, steps: u64) -> bool {
        self.bytes.get() >= bytes || self.steps.get() >= steps
    }

    /// Returns whether the turn is over.
    pub(crate) fn is_spent(&self) -> bool {
        let Part { bytes, steps } = self.end.get();
        self.has_reached(bytes, steps)
    }

    /// Returns whether half of the turn is over: what comes from outside takes no more, so that the device's own work gets the
    /// rest.
    pub(crate) fn is_half_spent(&self) -> bool {
        self.has_reached(Budget::TURN.bytes / 2, Budget::TURN.steps / 2)
    }

    /// Begins one kind of the device's own work, which has an eighth of the turn for itself.
    pub(crate) fn begin_part(&self) -> Part {
        let (bytes, steps) = (Budget::TURN.bytes / 8, Budget::TURN.steps / 8);
        Part { bytes: self.bytes.get().saturating_add(bytes), steps: self.steps.get().saturating_add(steps) }
    }

    /// Begins the work of queue pairs, which is the last: if less than an eighth of the turn is left, the turn ends later.
    pub(crate) fn begin_last_part(&self) {
        let part = self.begin_part();
        let Part { bytes, steps } = Part::TURN;
        self.end.set(Part { bytes: part.bytes.max(bytes), steps: part.steps.max(steps) });
    }

    /// Returns whether this kind of work has used its part, and half of the turn is over as well, or all of it.
    pub(crate) fn is_part_spent(&self, part: &Part) -> bool {
        self.is_spent() || self.is_half_spent() && self.has_reached(part.bytes, part.steps)
    }
}

/// Where the part of a turn ends that one kind of work has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    bytes: u64,
    steps: u64,
}

impl Part {
    const TURN: Self = Self { bytes: Budget::TURN.bytes, steps: Budget::TURN.steps };
}

/// Host memory whose accesses are counted.
#[derive(Debug)]
pub(crate) struct Metered<M> {
    pub(crate) memory: M,
    pub(crate) meter: Meter,
}

impl<M: HostMemory> HostMemory for Metered<M> {
    fn read(&self, addr: u64, into: &mut [u8]) -> Result<(), DmaFault> {
        self.meter.access(into.len());
        self.memory.read(addr, into)
    }

    fn write(&self, addr: u64, from: &[u8]) -> Result<(), DmaFault> {
        self.meter.access(from.len());
        self.memory.write(addr, from)
    }
}

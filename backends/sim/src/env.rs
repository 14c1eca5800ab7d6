//! What the parts of the device share while they work: time, host memory, tracer, faults.

use bareverbs::Instant;

use crate::audit::Audit;
use crate::budget::Meter;
use crate::fault::Faults;
use crate::memory::HostMemory;
use crate::trace::{Record, Tracer};

/// The surroundings of one step of work.
pub struct Env<'a> {
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
}

impl Env<'_> {
    /// Passes a record to the tracer, if there is one.
    pub fn trace(&mut self, record: Record<'_>) {
        if let Some(tracer) = self.tracer.as_deref_mut() {
            tracer.record(self.now, record);
        }
    }

    /// Passes a line to the tracer; it is formatted only if there is one.
    pub fn note(&mut self, line: impl FnOnce() -> String) {
        if self.tracer.is_some() {
            let line = line();
            self.trace(Record::Note(&line));
        }
    }
}

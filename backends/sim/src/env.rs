//! What the parts of the device share while they work: time, host memory, listeners, faults.

use bareverbs::Instant;

use crate::audit::Audit;
use crate::fault::Faults;
use crate::memory::HostMemory;
use crate::trace::{Record, Tracer};

/// The surroundings of one step of work.
pub struct Env<'a> {
    /// The device's time.
    pub now: Instant,
    /// Host memory.
    pub memory: &'a dyn HostMemory,
    /// Listener, if any.
    pub tracer: Option<&'a mut (dyn Tracer + 'static)>,
    /// Faults that wait to strike.
    pub faults: &'a mut Faults,
    /// Mistakes of the driver.
    pub audit: &'a mut Audit,
}

impl Env<'_> {
    /// Tells the listener, if there is one.
    pub fn trace(&mut self, record: Record<'_>) {
        if let Some(tracer) = self.tracer.as_deref_mut() {
            tracer.record(self.now, record);
        }
    }

    /// Tells the listener a line that is made only if there is one.
    pub fn note(&mut self, line: impl FnOnce() -> String) {
        if self.tracer.is_some() {
            let line = line();
            self.trace(Record::Note(&line));
        }
    }
}

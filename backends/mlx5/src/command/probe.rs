//! A sign of life: a command that is sent now, and whose answer is looked for later.

use core::time::Duration;

use bareverbs::platform::{Clock, Platform};
use bareverbs_mlx5_spec::{CmdOpcode, Layout, QueryIssiIn, QueryIssiOut};

use super::{Call, CommandClass, CommandInterface};
use crate::error::Error;

/// Longest time for the answer. Other commands have the minute of Linux, since some work for long. This one reads a number.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);
/// The command: Linux sends it to every card (`mlx5_core_set_issi`).
const PROBE: CmdOpcode = CmdOpcode::QueryIssi;
/// Its slot and mailboxes are those of regular commands, the next of which waits for the answer.
const CLASS: CommandClass = CommandClass::Regular;

impl<P: Platform> CommandInterface<P> {
    /// Looks whether a probe was answered, and sends one if the health counter is `stuck` and none is under way. Waits for nothing.
    ///
    /// # Errors
    /// The time for the answer is over: the device is lost.
    pub(crate) fn probe(&mut self, stuck: bool) -> Result<(), Error> {
        let (slot, now) = (self.queue.slot(CLASS), self.machine.clock.now());
        if let Some(deadline) = self.probe
            && (now >= deadline || self.queue.status_own(&self.machine.memory, slot)? & 1 == 0)
        {
            self.finish_probe()?;
        }
        if stuck && self.probe.is_none() && self.unanswered(CLASS).is_none() {
            let (head, output_len) = (&[0; QueryIssiIn::SIZE], QueryIssiOut::SIZE);
            let call = &mut Call { opcode: PROBE, head, list: (0, &mut |_| 0), output: &mut [], output_len };
            let sent = self.send(CLASS, slot, call);
            // It is `probe` that waits.
            *self.unanswered(CLASS) = None;
            self.probe = sent.ok().map(|_| now.after(PROBE_TIMEOUT.min(self.timeout)));
        }
        Ok(())
    }

    /// Waits for the answer to a probe, if one is under way. Any status is a sign of life, also that of a device without the command.
    pub(super) fn finish_probe(&mut self) -> Result<(), Error> {
        let Some(deadline) = self.probe else { return Ok(()) };
        if let Err(error) = self.wait(self.queue.slot(CLASS), PROBE.code() as u16, CLASS, deadline) {
            return Err(*self.dead.get_or_insert(error));
        }
        self.probe = None;
        Ok(())
    }
}

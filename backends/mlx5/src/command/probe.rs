//! A sign of life: a command that is sent now, and whose answer is looked for later.

use core::time::Duration;

use bareverbs::{Clock, Platform};
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
    /// Sends a command that asks for nothing but a sign of life, unless one is under way.
    pub(crate) fn start_probe(&mut self) {
        if self.probe.is_some() || self.unanswered(CLASS).is_some() {
            return;
        }
        let call = &mut Call {
            opcode: PROBE,
            head: &[0; QueryIssiIn::SIZE],
            list: (0, &mut |_| 0),
            output: &mut [],
            output_len: QueryIssiOut::SIZE,
        };
        let sent = self.send(CLASS, self.queue.slot(CLASS), call);
        // It is `probe` that waits.
        *self.unanswered(CLASS) = None;
        if sent.is_ok() {
            self.probe = Some(self.machine.clock.now().after(PROBE_TIMEOUT.min(self.timeout)));
        }
    }

    /// Looks whether a probe was answered, without waiting.
    ///
    /// # Errors
    /// The time for the answer is over: the device is lost.
    pub(crate) fn look_at_probe(&mut self) -> Result<(), Error> {
        let Some(deadline) = self.probe else { return Ok(()) };
        let is_answered = self.queue.status_own(&self.machine.memory, self.queue.slot(CLASS))? & 1 == 0;
        if is_answered || self.machine.clock.now() >= deadline { self.finish_probe() } else { Ok(()) }
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

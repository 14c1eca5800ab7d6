//! Commands that complete after their timeout.
//!
//! Slot and mailboxes of a command that timed out belong to the device until it completes, and so does the memory of an object
//! that the command creates. Before each command the driver checks for late completions and handles them:
//!
//! - *Created late*: the object has no owner and is destroyed again.
//! - *Destroyed late*: the outcome is recorded, and the next attempt to destroy the object returns it.
//! - *Pages late*: pages that the firmware took or returned are counted.
//! - *Modified late*: a queue pair is not destroyed before every modification of it has completed.

use bareverbs::{DmaFence, Platform};
use bareverbs_mlx5_spec::CmdOpcode;

use super::name::CmdName;
use super::object::number_of;
use super::pages::RECLAIM_OUTPUT;
use super::timed_out::{CommandId, LateAction, Orphan, SLOTS, TimedOutCommand};
use super::{Call, CommandClass, CommandInterface, Mailboxes};
use crate::dma::arena::PageUse;
use crate::error::{Error, PackedError};
use crate::log::log_event;

impl<P: Platform> CommandInterface<P> {
    /// Leaves slot, mailboxes and memory of a command to the device until it completes.
    pub(super) fn abandon(&mut self, class: CommandClass, slot: u32, call: &Call<'_>, mailboxes: &Mailboxes) {
        if let Some(range) = mailboxes.preallocated {
            self.arena.mark(range, PageUse::mailbox(slot));
            self.forget_preallocated(class);
        }
        if let LateAction::Destroy { memory, .. } | LateAction::Free { memory } = call.late {
            self.leak_memory(memory);
        }
        self.timed_out.command_ids = self.timed_out.command_ids.wrapping_add(1);
        let command_id = CommandId::new(self.timed_out.command_ids, slot);
        let opcode = call.opcode.code() as u16;
        let output_len = u16::try_from(call.output.len()).unwrap_or(u16::MAX);
        let timed_out = TimedOutCommand { command_id, opcode, output_len, output: mailboxes.output, action: call.late };
        if let Some(place) = self.timed_out.by_slot.get_mut(slot as usize) {
            *place = Some(timed_out);
        }
        self.abandoned = Some(command_id);
    }

    /// Handles abandoned commands that have completed since.
    pub(crate) fn collect_late_completions(&mut self) -> Result<(), PackedError> {
        for slot in 0..SLOTS {
            let Some(timed_out) = self.timed_out.by_slot.get(slot).copied().flatten() else { continue };
            let status_own = self.queue.status_own(&self.machine.memory, slot as u32)?;
            // A completion that there is no room to record waits in its slot.
            let full = match timed_out.action {
                LateAction::Destroy { .. } => self.timed_out.orphans.is_full(),
                LateAction::RecordOutcome => self.timed_out.outcomes.is_full(),
                _ => false,
            };
            if status_own & 1 != 0 || full {
                continue;
            }
            self.machine.fence.acquire();
            let done = self.handle_late_completion(&timed_out, status_own);
            if timed_out.action == LateAction::RecordOutcome {
                // There is room.
                let _ = self.timed_out.outcomes.push((timed_out.command_id, done));
            }
        }
        Ok(())
    }

    /// Handles a late completion and frees its slot. Returns whether the command was executed.
    fn handle_late_completion(&mut self, timed_out: &TimedOutCommand, status_own: u8) -> bool {
        let TimedOutCommand { command_id, opcode, output_len, output: blocks, action } = *timed_out;
        if let Some(place) = self.timed_out.by_slot.get_mut(command_id.slot() as usize) {
            *place = None;
        }
        let mut output = [0; RECLAIM_OUTPUT];
        // The longest output that an action reads is a list of pages.
        let bytes = output.get_mut(..usize::from(output_len).min(RECLAIM_OUTPUT)).unwrap_or_default();
        let result = self.collect(command_id.slot(), opcode, blocks, bytes, status_own);
        let done = result.is_ok();
        log_event!(warn, "command {:?} in slot {} completed late: {:?}", CmdName(opcode), command_id.slot(), result);
        match (action, result) {
            (LateAction::None | LateAction::RecordOutcome | LateAction::Modified { .. }, _) => {}
            (LateAction::Destroy { with, memory }, Ok(())) => {
                // There is room: `collect_late_completions` has checked.
                let _ = self.timed_out.orphans.push(Orphan { destroy: with, number: number_of(&output), memory });
            }
            (LateAction::Free { memory }, Ok(())) => self.free_memory(memory),
            (LateAction::Destroy { memory, .. }, Err(error)) if !error.may_still_complete() => self.free_memory(memory),
            (LateAction::PagesGiven { .. }, Err(error)) if error.may_still_complete() => {
                // The firmware may have the pages.
                let pages = self.arena.replace(PageUse::offered(command_id.slot()), PageUse::LEAKED);
                log_event!(warn, "{} pages that were offered are leaked: {:?}", pages, error);
            }
            (LateAction::PagesGiven { function }, _) => {
                let given = self.arena.end_offer(command_id.slot(), function, done);
                log_event!(debug, "{} pages for function {}, taken by the firmware: {}", given, function, done);
                if done {
                    self.stats.pages_given = self.stats.pages_given.wrapping_add(given);
                }
            }
            (LateAction::PagesReturned { function }, Ok(())) => {
                if let Err(error) = self.take_returned_pages(function, &output) {
                    log_event!(warn, "pages of function {} that came late: {:?}", function, error);
                }
            }
            (LateAction::Destroy { .. } | LateAction::Free { .. } | LateAction::PagesReturned { .. }, Err(error)) => {
                log_event!(warn, "the memory of command {:?} is leaked: {:?}", CmdName(opcode), error);
            }
        }
        self.release(command_id.slot(), true);
        done
    }

    /// Handles late completions, and destroys the objects that they created.
    pub(crate) fn destroy_orphans(&mut self) {
        if self.dead.is_some() {
            return;
        }
        loop {
            // Memory that cannot be read has no completions either.
            let _ = self.collect_late_completions();
            let Some(Orphan { destroy, number, memory }) = self.timed_out.orphans.pop() else { break };
            log_event!(warn, "object {:x} was created late: {:?} follows", number, CmdName(destroy.code() as u16));
            if let Err(error) = self.destroy_untracked(destroy, number, memory) {
                log_event!(warn, "object {:x} and its memory are leaked: {:?}", number, error);
            }
        }
    }

    /// Waits for the completion of modifications of a queue pair that timed out. Until then the device may still execute them,
    /// on another queue pair if that has got the number.
    pub(crate) fn wait_for_modify(&mut self, number: u32) -> Result<(), PackedError> {
        self.destroy_orphans();
        let of = |timed_out: &&TimedOutCommand| timed_out.action == LateAction::Modified { number };
        while let Some(TimedOutCommand { opcode, command_id, .. }) = self.timed_out.by_slot.iter().flatten().find(of).copied() {
            self.take_late_completion(opcode, command_id)?;
        }
        Ok(())
    }

    /// Returns whether the object of an earlier attempt is gone: `false` if the device refused to destroy it.
    pub(super) fn wait_for_late_completion(&mut self, opcode: CmdOpcode, command_id: CommandId) -> Result<bool, PackedError> {
        let opcode = opcode.code() as u16;
        if let Some(gone) = self.take_late_completion(opcode, command_id)? {
            return Ok(gone);
        }
        let outcomes = &mut self.timed_out.outcomes;
        let index = outcomes.iter().position(|(of, _)| *of == command_id).ok_or(Error::CommandTimeout { opcode }.pack())?;
        let gone = outcomes.get(index).is_some_and(|(_, gone)| *gone);
        // The last takes its place.
        if let Some(last) = outcomes.pop()
            && let Some(place) = outcomes.get_mut(index)
        {
            *place = last;
        }
        Ok(gone)
    }

    /// Waits for a late completion and takes it. Returns whether the command was executed, `None` if it was taken before.
    fn take_late_completion(&mut self, opcode: u16, command_id: CommandId) -> Result<Option<bool>, PackedError> {
        if let Some(reason) = self.dead {
            return Err(reason);
        }
        if self.timed_out.get(command_id).is_some() {
            let status_own = self.wait(command_id.slot(), opcode, CommandClass::Regular)?;
            // Unless it was recorded during the wait.
            if let Some(timed_out) = self.timed_out.get(command_id) {
                return Ok(Some(self.handle_late_completion(&timed_out, status_own)));
            }
        }
        Ok(None)
    }
}

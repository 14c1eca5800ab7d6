//! Answers that come after the deadline.
//!
//! The slot and the mailboxes of a command that did not answer in time belong to the device until it does, and so does the
//! memory of an object that the command was to create. Before each command the driver looks whether such an answer has come,
//! and takes all of it back:
//!
//! - An object that was created after all, and that nobody knows, is destroyed again.
//! - An object that was destroyed after all is gone for whoever tries to destroy it again.
//! - Pages that the firmware took or returned after all are counted.
//!
//! A queue pair is not destroyed before every change of it was answered.

use core::num::NonZeroU32;

use bareverbs::{DmaFence, Platform};
use bareverbs_mlx5_spec::CmdOpcode;

use super::mailbox::Row;
use super::object::{ObjectMemory, number_of};
use super::{Call, Lane, Mailboxes, SLOTS};
use crate::CmdName;
use crate::bring_up::pages::RECLAIM_OUTPUT;
use crate::dma::arena::PageUse;
use crate::driver::Driver;
use crate::error::{Error, Fault};
use crate::log::log_event;

/// What a late answer is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LateAction {
    /// Nothing.
    None,
    /// An object was created that nobody knows: destroy it, then free its memory.
    Destroy {
        /// The command that destroys it.
        with: CmdOpcode,
        /// Memory of the object.
        memory: ObjectMemory,
    },
    /// An object was destroyed: note it for who tries again.
    Note,
    /// A queue pair was changed: until then it is not destroyed.
    Modified {
        /// Its number.
        number: u32,
    },
    /// An object that nobody knows was destroyed: free its memory.
    Free {
        /// Memory of the object.
        memory: ObjectMemory,
    },
    /// The firmware has the pages that it was offered.
    Given {
        /// For this function.
        function: u16,
    },
    /// The firmware returned pages.
    Returned {
        /// For this function.
        function: u16,
    },
}

/// Names a command that did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket(NonZeroU32);

impl Ticket {
    /// Command number `count` that did not answer, in `slot`. After 2^26 of them the numbers begin again.
    fn new(count: u32, slot: u32) -> Self {
        Self(NonZeroU32::MIN | count << 6 | (slot & 31) << 1)
    }

    /// The slot of the command.
    pub(crate) const fn slot(self) -> u32 {
        self.0.get() >> 1 & 31
    }
}

/// A command that did not answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unanswered {
    ticket: Ticket,
    opcode: u16,
    /// Bytes of the output that are looked at.
    output_len: u16,
    /// Where the output lies.
    output: Row,
    action: LateAction,
}

/// An object of the device that nobody knows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Orphan {
    destroy: CmdOpcode,
    number: u32,
    memory: ObjectMemory,
}

impl<P: Platform> Driver<P> {
    /// Leaves slot, mailboxes and memory of a command to the device until it answers.
    pub(super) fn abandon(&mut self, lane: Lane, slot: u32, call: &Call<'_>, mailboxes: &Mailboxes) {
        if let Some(run) = mailboxes.standing {
            self.arena.mark(run, PageUse::mailbox(slot));
            self.commands.forget_standing(lane);
        }
        if let LateAction::Destroy { memory, .. } | LateAction::Free { memory } = call.late {
            self.lose_memory(memory);
        }
        self.commands.tickets = self.commands.tickets.wrapping_add(1);
        let ticket = Ticket::new(self.commands.tickets, slot);
        let opcode = call.opcode.code() as u16;
        let output_len = u16::try_from(call.output.len()).unwrap_or(u16::MAX);
        let unanswered = Unanswered { ticket, opcode, output_len, output: mailboxes.output, action: call.late };
        if let Some(place) = self.commands.unanswered.get_mut(slot as usize) {
            *place = Some(unanswered);
        }
        self.commands.abandoned = Some(ticket);
    }

    /// Takes back what belongs to commands that have answered since they were abandoned.
    pub(crate) fn collect_late_answers(&mut self) -> Result<(), Fault> {
        for slot in 0..SLOTS {
            let Some(unanswered) = self.commands.unanswered.get(slot).copied().flatten() else { continue };
            let status_own = self.commands.queue.status_own(&self.machine.memory, slot as u32)?;
            // What there is no room to note waits in its slot.
            let full = match unanswered.action {
                LateAction::Destroy { .. } => self.commands.orphans.is_full(),
                LateAction::Note => self.commands.outcomes.is_full(),
                _ => false,
            };
            if status_own & 1 != 0 || full {
                continue;
            }
            self.machine.fence.acquire();
            let done = self.handle_late_answer(&unanswered, status_own);
            if unanswered.action == LateAction::Note {
                // There is room.
                let _ = self.commands.outcomes.push((unanswered.ticket, done));
            }
        }
        Ok(())
    }

    /// Acts on a late answer and frees its slot; whether the command was carried out.
    fn handle_late_answer(&mut self, unanswered: &Unanswered, status_own: u8) -> bool {
        let Unanswered { ticket, opcode, output_len, output: row, action } = *unanswered;
        if let Some(place) = self.commands.unanswered.get_mut(ticket.slot() as usize) {
            *place = None;
        }
        let mut output = [0; RECLAIM_OUTPUT];
        // The longest that an action looks at is a list of pages.
        let bytes = output.get_mut(..usize::from(output_len).min(RECLAIM_OUTPUT)).unwrap_or_default();
        let result = self.collect(ticket.slot(), opcode, row, bytes, status_own);
        let done = result.is_ok();
        log_event!(warn, "command {:?} in slot {} answered late: {:?}", CmdName(opcode), ticket.slot(), result);
        match (action, result) {
            (LateAction::None | LateAction::Note | LateAction::Modified { .. }, _) => {}
            (LateAction::Destroy { with, memory }, Ok(())) => {
                // There is room: `collect_late_answers` has looked.
                let _ = self.commands.orphans.push(Orphan { destroy: with, number: number_of(&output), memory });
            }
            (LateAction::Free { memory }, Ok(())) => self.free_memory(memory),
            (LateAction::Destroy { memory, .. }, Err(error)) if !error.may_still_complete() => self.free_memory(memory),
            (LateAction::Given { .. }, Err(error)) if error.may_still_complete() => {
                // The firmware may have the pages.
                let pages = self.arena.replace(PageUse::offered(ticket.slot()), PageUse::LOST);
                log_event!(warn, "{} pages that were offered for this are given up: {:?}", pages, error);
            }
            (LateAction::Given { function }, _) => {
                let given = self.arena.end_offer(ticket.slot(), function, done);
                log_event!(debug, "{} pages for function {}, taken by the firmware: {}", given, function, done);
                if done {
                    self.stats.pages_given = self.stats.pages_given.wrapping_add(given);
                }
            }
            (LateAction::Returned { function }, Ok(())) => {
                if let Err(error) = self.take_returned_pages(function, &output) {
                    log_event!(warn, "pages of function {} that came late: {:?}", function, error);
                }
            }
            (LateAction::Destroy { .. } | LateAction::Free { .. } | LateAction::Returned { .. }, Err(error)) => {
                log_event!(warn, "the memory of command {:?} is given up: {:?}", CmdName(opcode), error);
            }
        }
        self.release(ticket.slot(), true);
        done
    }

    /// Takes back what belongs to commands that have answered late, and destroys the objects that they created.
    pub(crate) fn destroy_orphans(&mut self) {
        if self.commands.dead.is_some() {
            return;
        }
        loop {
            // Without memory to look into there are no answers either.
            let _ = self.collect_late_answers();
            let Some(Orphan { destroy, number, memory }) = self.commands.orphans.pop() else { break };
            log_event!(warn, "object {:x} was created late: {:?} follows", number, CmdName(destroy.code() as u16));
            if let Err(error) = self.destroy_for_good(destroy, number, memory) {
                log_event!(warn, "object {:x} and its memory are given up: {:?}", number, error);
            }
        }
    }

    /// Waits for the answers to changes of a queue pair that had none. Until then the device may still carry them out, on another
    /// queue pair if that has got the number.
    pub(crate) fn wait_for_modify(&mut self, number: u32) -> Result<(), Fault> {
        self.destroy_orphans();
        let of = |unanswered: &&Unanswered| unanswered.action == LateAction::Modified { number };
        while let Some(Unanswered { opcode, ticket, .. }) = self.commands.unanswered.iter().flatten().find(of).copied() {
            self.take_late_answer(opcode, ticket)?;
        }
        Ok(())
    }

    /// Whether the object of an earlier attempt is gone; `false` if the device refused that.
    pub(super) fn wait_for_late_answer(&mut self, opcode: CmdOpcode, ticket: Ticket) -> Result<bool, Fault> {
        let opcode = opcode.code() as u16;
        if let Some(gone) = self.take_late_answer(opcode, ticket)? {
            return Ok(gone);
        }
        let outcomes = &mut self.commands.outcomes;
        let index = outcomes.iter().position(|(of, _)| *of == ticket).ok_or(Error::CommandTimeout { opcode }.fault())?;
        let gone = outcomes.get(index).is_some_and(|(_, gone)| *gone);
        // The last takes its place.
        if let Some(last) = outcomes.pop()
            && let Some(place) = outcomes.get_mut(index)
        {
            *place = last;
        }
        Ok(gone)
    }

    /// Waits for a late answer and takes it; whether the command was carried out. `None` if it was taken before.
    fn take_late_answer(&mut self, opcode: u16, ticket: Ticket) -> Result<Option<bool>, Fault> {
        if let Some(reason) = self.commands.dead {
            return Err(reason);
        }
        if self.unanswered(ticket).is_some() {
            let status_own = self.wait(ticket.slot(), opcode, Lane::Regular)?;
            // Unless it was noted while this waited.
            if let Some(unanswered) = self.unanswered(ticket) {
                return Ok(Some(self.handle_late_answer(&unanswered, status_own)));
            }
        }
        Ok(None)
    }

    fn unanswered(&self, ticket: Ticket) -> Option<Unanswered> {
        let unanswered = self.commands.unanswered.get(ticket.slot() as usize)?;
        unanswered.filter(|unanswered| unanswered.ticket == ticket)
    }
}

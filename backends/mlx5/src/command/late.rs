//! Answers that come after the deadline.
//!
//! The slot and the mailboxes of a command that did not answer in time belong to the device until it does, and so does the
//! memory of an object that the command was to create. Before each command the driver looks whether such an answer has come,
//! and takes all of it back:
//!
//! - An object that was created after all, and that nobody knows, is destroyed again.
//! - An object that was destroyed after all is gone for whoever tries to destroy it again.
//! - Pages that the firmware took or returned after all are counted.

use core::num::NonZeroU32;

use bareverbs::{DmaFence, Platform};
use bareverbs_mlx5_spec::CmdOpcode;
use heapless::Vec;

use super::mailbox::Row;
use super::{Call, CommandInterface, Lane, Mailboxes, SHORT, naming, number_of};
use crate::CmdName;
use crate::bring_up::pages::RECLAIM_OUTPUT;
use crate::dma::arena::{PageUse, RECORD, Run};
use crate::driver::Driver;
use crate::error::Error;
use crate::log::log_event;

/// Memory that an object of the device lies in: its ring and its doorbell record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ObjectMemory {
    run: Option<Run>,
    /// Number of the record, counted from the start of the arena.
    record: Option<NonZeroU32>,
}

impl ObjectMemory {
    /// No memory of the driver's.
    pub(crate) const NONE: Self = Self { run: None, record: None };

    /// A ring, and the byte offset of a doorbell record, which is not at the start of the arena: the command queue lies there.
    pub(crate) fn new(run: Option<Run>, record: Option<usize>) -> Self {
        let record = record.and_then(|at| NonZeroU32::new(u32::try_from(at / RECORD).ok()?));
        Self { run, record }
    }
}

/// What a late answer is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LateAction {
    /// Nothing.
    None,
    /// An object was created that nobody knows: destroy it, then free its memory.
    Destroy {
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
pub(crate) struct Ticket {
    id: u32,
    slot: u8,
}

impl Ticket {
    /// The slot of the command.
    pub(crate) const fn slot(self) -> u32 {
        self.slot as u32
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

/// Removes an entry of a list; the last one takes its place.
fn remove<T: Copy, const N: usize>(list: &mut Vec<T, N>, index: usize) {
    if let Some(last) = list.pop()
        && let Some(place) = list.get_mut(index)
    {
        *place = last;
    }
}

/// What is known of an attempt to destroy an object that has not ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PendingDestroy(Option<Ticket>);

impl PendingDestroy {
    /// Nothing was tried.
    pub(crate) const NONE: Self = Self(None);
}

/// The command that undoes another.
fn undo(opcode: u16) -> Option<CmdOpcode> {
    Some(match CmdOpcode::from_code(u32::from(opcode))? {
        CmdOpcode::AllocPd => CmdOpcode::DeallocPd,
        CmdOpcode::AllocUar => CmdOpcode::DeallocUar,
        CmdOpcode::CreateMkey => CmdOpcode::DestroyMkey,
        CmdOpcode::CreateEq => CmdOpcode::DestroyEq,
        CmdOpcode::CreateCq => CmdOpcode::DestroyCq,
        CmdOpcode::CreateQp => CmdOpcode::DestroyQp,
        _ => return None,
    })
}

impl<P: Platform> CommandInterface<'_, P> {
    /// Leaves slot, mailboxes and memory of a command to the device until it answers.
    pub(super) fn abandon(&mut self, lane: Lane, slot: u32, call: &Call<'_>, mailboxes: &Mailboxes) -> Option<Ticket> {
        if let Some(run) = mailboxes.standing {
            self.arena.mark(run, PageUse::mailbox(slot));
            self.commands.forget_standing(lane);
        }
        if let LateAction::Destroy { memory } | LateAction::Free { memory } = call.late
            && let Some(run) = memory.run
        {
            self.arena.lose(run);
        }
        self.commands.tickets = self.commands.tickets.wrapping_add(1);
        let ticket = Ticket { id: self.commands.tickets, slot: slot as u8 };
        let opcode = call.opcode.code() as u16;
        let output_len = u16::try_from(call.output.len()).unwrap_or(u16::MAX);
        let unanswered = Unanswered { ticket, opcode, output_len, output: mailboxes.output, action: call.late };
        // There is a place for each slot.
        self.commands.unanswered.push(unanswered).ok()?;
        Some(ticket)
    }

    /// Takes back what belongs to commands that have answered since they were abandoned.
    pub(crate) fn collect_late_answers(&mut self) -> Result<(), Error> {
        let mut index = 0;
        while let Some(unanswered) = self.commands.unanswered.get(index).copied() {
            let status_own = self.commands.queue.status_own(&self.machine.memory, unanswered.ticket.slot())?;
            // What there is no room to note waits in its slot.
            let full = match unanswered.action {
                LateAction::Destroy { .. } => self.commands.orphans.is_full(),
                LateAction::Note => self.commands.outcomes.is_full(),
                _ => false,
            };
            if status_own & 1 != 0 || full {
                index += 1;
                continue;
            }
            self.machine.fence.acquire();
            remove(&mut self.commands.unanswered, index);
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
        let mut output = [0; RECLAIM_OUTPUT];
        // The longest that an action looks at is a list of pages.
        let bytes = output.get_mut(..usize::from(output_len).min(RECLAIM_OUTPUT)).unwrap_or_default();
        let result = self.collect(ticket.slot(), opcode, row, bytes, status_own);
        let done = result.is_ok();
        log_event!(warn, "command {:?} in slot {} answered late: {:?}", CmdName(opcode), ticket.slot(), result);
        match (action, result) {
            (LateAction::None | LateAction::Note | LateAction::Modified { .. }, _) => {}
            (LateAction::Destroy { memory }, Ok(())) => {
                let number = output.first_chunk().map_or(0, number_of);
                let orphan = undo(opcode).map(|destroy| Orphan { destroy, number, memory });
                if orphan.is_none_or(|orphan| self.commands.orphans.push(orphan).is_err()) {
                    log_event!(warn, "object {:x} that command {:?} created late is given up", number, CmdName(opcode));
                }
            }
            (LateAction::Free { memory }, Ok(())) => self.free_memory(memory),
            (LateAction::Destroy { memory }, Err(error)) if !error.may_still_complete() => self.free_memory(memory),
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

    /// Frees the memory of an object that is gone.
    fn free_memory(&mut self, memory: ObjectMemory) {
        if let Some(run) = memory.run {
            self.arena.free(run);
        }
        if let Some(record) = memory.record {
            self.arena.free_record(record.get() as usize * RECORD);
        }
    }
}

impl<P: Platform> Driver<P> {
    /// Takes back what belongs to commands that have answered late, and destroys the objects that they created.
    pub(crate) fn destroy_orphans(&mut self) {
        if self.commands.dead.is_some() {
            return;
        }
        loop {
            // Without memory to look into there are no answers either.
            let _ = self.command_interface().0.collect_late_answers();
            let Some(Orphan { destroy, number, memory }) = self.commands.orphans.pop() else { break };
            log_event!(warn, "object {:x} was created late: {:?} follows", number, CmdName(destroy.code() as u16));
            if let Err(error) = self.destroy_for_good(destroy, number, memory) {
                log_event!(warn, "object {:x} and its memory are given up: {:?}", number, error);
            }
        }
    }

    /// Destroys an object that nobody will try to destroy again, and frees its memory, now or when a late answer allows it.
    pub(crate) fn destroy_for_good(&mut self, opcode: CmdOpcode, number: u32, memory: ObjectMemory) -> Result<(), Error> {
        let mut call = Call {
            opcode,
            head: &naming(number),
            list: &mut core::iter::empty(),
            input_len: SHORT,
            output: &mut [0; SHORT],
            output_len: SHORT,
            late: LateAction::Free { memory },
        };
        self.call_regular(&mut call)?;
        self.command_interface().0.free_memory(memory);
        Ok(())
    }

    /// Destroys an object; its memory is the caller's to free after that. An attempt that had no answer is not repeated, it is
    /// waited for again: the device may still carry it out, and by then may have given the number to another object.
    pub(crate) fn destroy(&mut self, opcode: CmdOpcode, number: u32, pending: &mut PendingDestroy) -> Result<(), Error> {
        self.destroy_orphans();
        if let Some(ticket) = pending.0 {
            log_event!(debug, "object {:x}: an earlier {:?} may still be answered", number, CmdName(opcode.code() as u16));
            let gone = self.wait_for_late_answer(opcode, ticket)?;
            pending.0 = None;
            if gone {
                return Ok(());
            }
        }
        let call = Call {
            opcode,
            head: &naming(number),
            list: &mut core::iter::empty(),
            input_len: SHORT,
            output: &mut [0; SHORT],
            output_len: SHORT,
            late: LateAction::Note,
        };
        self.call(call).map_err(|failed| {
            pending.0 = failed.unanswered;
            failed.error
        })
    }

    /// Changes the queue pair of this number.
    pub(crate) fn modify<const I: usize>(&mut self, opcode: CmdOpcode, input: &[u8; I], number: u32) -> Result<(), Error> {
        let list = &mut core::iter::empty();
        let (output, output_len, late) = (&mut [0; SHORT], SHORT, LateAction::Modified { number });
        Ok(self.call(Call { opcode, head: input, list, input_len: I, output, output_len, late })?)
    }

    /// Waits for the answers to changes of a queue pair that had none. Until then the device may still carry them out, on another
    /// queue pair if that has got the number.
    pub(crate) fn wait_for_modify(&mut self, number: u32) -> Result<(), Error> {
        self.destroy_orphans();
        let of = |unanswered: &&Unanswered| unanswered.action == LateAction::Modified { number };
        while let Some(Unanswered { opcode, ticket, .. }) = self.commands.unanswered.iter().find(of).copied() {
            self.take_late_answer(opcode, ticket)?;
        }
        Ok(())
    }

    /// Whether the object of an earlier attempt is gone; `false` if the device refused that.
    fn wait_for_late_answer(&mut self, opcode: CmdOpcode, ticket: Ticket) -> Result<bool, Error> {
        let timeout = Error::CommandTimeout { opcode: opcode.code() as u16 };
        if let Some(gone) = self.take_late_answer(opcode.code() as u16, ticket)? {
            return Ok(gone);
        }
        let outcomes = &mut self.commands.outcomes;
        let index = outcomes.iter().position(|(of, _)| *of == ticket).ok_or(timeout)?;
        let gone = outcomes.get(index).is_some_and(|(_, gone)| *gone);
        remove(outcomes, index);
        Ok(gone)
    }

    /// Waits for a late answer and takes it; whether the command was carried out. `None` if it was taken before.
    fn take_late_answer(&mut self, opcode: u16, ticket: Ticket) -> Result<Option<bool>, Error> {
        if let Some(reason) = self.commands.dead {
            return Err(reason);
        }
        let (mut interface, mut work) = self.command_interface();
        if interface.commands.unanswered.iter().any(|unanswered| unanswered.ticket == ticket) {
            let status_own = interface.wait(ticket.slot(), opcode, &mut |interface| work.serve(interface))?;
            let list = &interface.commands.unanswered;
            // Unless it was noted while this waited.
            if let Some(index) = list.iter().position(|unanswered| unanswered.ticket == ticket)
                && let Some(unanswered) = list.get(index).copied()
            {
                remove(&mut interface.commands.unanswered, index);
                return Ok(Some(interface.handle_late_answer(&unanswered, status_own)));
            }
        }
        Ok(None)
    }
}

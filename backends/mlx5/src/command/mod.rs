//! The command interface: a command goes in, its answer comes out or the reason why there is none, in bounded time.
//!
//! A command that does not answer in time keeps its slot and its mailboxes until it does. What it then did is undone, or
//! noted for whoever asks again: see [`late`].

pub(crate) mod late;
mod mailbox;
pub(crate) mod object;
mod queue;

use core::time::Duration;

use bareverbs::{Clock, DmaFence, Platform, Registers};
use bareverbs_mlx5_spec::{CMD_INLINE, CmdIn, CmdOpcode, CmdOut, Command, InitialSeg, Layout, View, ViewMut};
use heapless::Vec;

use crate::dma::arena::{Arena, PageUse, Run};
use crate::driver::Driver;
use crate::error::{Error, Fault};
use crate::log::log_event;
use crate::{CmdName, Config};
use late::{LateAction, Orphan, Ticket, Unanswered};
use mailbox::{Chain, Row};
use queue::{CommandQueue, Post};

pub(crate) use queue::Lane;

/// The most slots of a command queue: bits of its doorbell.
const SLOTS: usize = 32;
/// The most objects that were created late and are not destroyed yet; more wait in their slots.
const ORPHANS: usize = 4;
/// The most outcomes of late commands that destroy which nobody asked for yet; more wait in their slots.
const OUTCOMES: usize = 4;
/// Blocks of each standing chain: the 4096 bytes of a capability page.
const STANDING_BLOCKS: usize = 8;
/// Blocks of each chain of the page lane.
const PAGE_LANE_BLOCKS: usize = 2;
/// How often a wait looks whether the device is still there.
const LOOK: Duration = Duration::from_millis(100);

/// A command: its lengths and where its bytes come from and go.
pub(crate) struct Call<'a> {
    /// Opcode, which goes into the first two bytes.
    pub(crate) opcode: CmdOpcode,
    /// Start of the input.
    pub(crate) head: &'a [u8],
    /// The 64-bit entries that follow the head, by their index.
    pub(crate) entry: &'a mut dyn FnMut(usize) -> u64,
    /// Bytes of the whole input: head, entries, zeros.
    pub(crate) input_len: usize,
    /// Start of the output.
    pub(crate) output: &'a mut [u8],
    /// Bytes of the whole output.
    pub(crate) output_len: usize,
    /// What is left to do if the answer comes after the deadline.
    pub(crate) late: LateAction,
}

/// State of the command interface.
#[derive(Debug)]
pub(crate) struct Commands {
    queue: CommandQueue,
    timeout: Duration,
    /// Whether the device signs its answers, so that they are checked.
    pub(crate) signatures: bool,
    /// Mailboxes that stay allocated: no command with a short list fails for lack of memory.
    regular: Option<Run>,
    pages: Option<Run>,
    /// Commands that did not answer, each at its slot.
    unanswered: [Option<Unanswered>; SLOTS],
    /// Outcomes of commands that destroy and answered late, for whoever tries again: whether the object is gone.
    outcomes: Vec<(Ticket, bool), OUTCOMES>,
    orphans: Vec<Orphan, ORPHANS>,
    tickets: u32,
    /// What the last command left to the device, which had no answer in time.
    abandoned: Option<Ticket>,
    /// Set once the device is known to answer no more, with the reason: no command is sent any more.
    pub(crate) dead: Option<Fault>,
}

impl Commands {
    /// An interface without queue.
    pub(crate) fn new(config: &Config) -> Self {
        // Each by itself: `Default` of an array is a store for each element.
        Self {
            queue: CommandQueue::default(),
            timeout: config.command_timeout,
            signatures: false,
            regular: None,
            pages: None,
            unanswered: [None; SLOTS],
            outcomes: Vec::new(),
            orphans: Vec::new(),
            tickets: 0,
            abandoned: None,
            dead: None,
        }
    }

    /// The queue lies in `run`.
    pub(crate) const fn start(&mut self, run: Run, log_size: u32, log_stride: u32) {
        self.queue = CommandQueue::new(run.at(), log_size, log_stride);
    }

    /// Slots whose commands have not answered.
    pub(crate) fn lost_slots(&self) -> u32 {
        self.unanswered.iter().flatten().count() as u32
    }

    /// The standing mailboxes of a lane, input blocks before output blocks, and the number of each.
    fn standing(&mut self, arena: &mut Arena, lane: Lane) -> Result<(Run, usize), Fault> {
        let (place, blocks) = match lane {
            Lane::Regular => (&mut self.regular, STANDING_BLOCKS),
            Lane::Pages => (&mut self.pages, PAGE_LANE_BLOCKS),
        };
        let run = match *place {
            Some(run) => run,
            None => *place.insert(arena.allocate(Chain::pages(2 * blocks))?),
        };
        Ok((run, blocks))
    }

    /// The last command, if it had no answer in time.
    pub(crate) const fn abandoned(&self) -> Option<Ticket> {
        self.abandoned
    }

    const fn forget_standing(&mut self, lane: Lane) {
        match lane {
            Lane::Regular => self.regular = None,
            Lane::Pages => self.pages = None,
        }
    }
}

/// The mailboxes of one command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mailboxes {
    input: Chain,
    output: Row,
    /// The standing ones, if any of them is used.
    standing: Option<Run>,
}

impl<P: Platform> Driver<P> {
    /// Does a command, and serves the firmware until it answers.
    pub(crate) fn call(&mut self, lane: Lane, call: &mut Call<'_>) -> Result<(), Fault> {
        self.commands.abandoned = None;
        if let Some(reason) = self.commands.dead {
            return Err(reason);
        }
        self.collect_late_answers()?;
        let opcode = call.opcode.code() as u16;
        let Some(slot) = self.commands.queue.reserve(lane) else {
            log_event!(warn, "command {:?}: every slot waits for an answer", CmdName(opcode));
            return Err(Error::NoCommandSlot.fault());
        };
        log_event!(trace, "command {:?} in slot {}", CmdName(opcode), slot);
        let mailboxes = match self.allocate_mailboxes(lane, slot, call) {
            Ok(mailboxes) => mailboxes,
            Err(error) => {
                self.commands.queue.release(slot);
                return Err(error);
            }
        };
        let result = match self.post(slot, &mailboxes, call) {
            Ok(()) => match self.wait(slot, opcode, lane) {
                Ok(status_own) => self.collect(slot, opcode, mailboxes.output, call.output, status_own),
                Err(error) => {
                    self.abandon(lane, slot, call, &mailboxes);
                    return Err(error);
                }
            },
            Err(error) => Err(error),
        };
        self.release(slot, mailboxes.input.is_scattered());
        // A command for pages may have been given up while this one was under way.
        self.commands.abandoned = None;
        if let Err(error) = result {
            log_event!(debug, "command {:?} failed: {:?}", CmdName(opcode), error);
        }
        result
    }

    /// Frees a slot, and the mailboxes that were its own, if it had any.
    fn release(&mut self, slot: u32, mailboxes: bool) {
        if mailboxes {
            self.arena.replace(PageUse::mailbox(slot), PageUse::FREE);
        }
        self.commands.queue.release(slot);
    }

    fn allocate_mailboxes(&mut self, lane: Lane, slot: u32, call: &Call<'_>) -> Result<Mailboxes, Fault> {
        let input = Chain::blocks_for(call.input_len.saturating_sub(CMD_INLINE));
        let output = Chain::blocks_for(call.output_len.saturating_sub(CMD_INLINE));
        if input == 0 && output == 0 {
            return Ok(Mailboxes { input: Chain::EMPTY, output: Row::EMPTY, standing: None });
        }
        let (standing, blocks) = self.commands.standing(&mut self.arena, lane)?;
        if output > blocks {
            return Err(Error::LimitExceeded { limit: blocks as u32 }.fault());
        }
        let input = if input <= blocks {
            Row::new(standing.at(), input).chain()
        } else {
            // A long list, of a region for instance. Its blocks are linked: they may lie anywhere.
            self.arena.allocate_scattered(Chain::pages(input), PageUse::mailbox(slot))?;
            Chain::in_pages(PageUse::mailbox(slot), input)
        };
        let output = Row::new(standing.at(), blocks).next(output);
        Ok(Mailboxes { input, output, standing: Some(standing) })
    }

    /// Writes a command and rings its doorbell.
    fn post(&mut self, slot: u32, mailboxes: &Mailboxes, call: &mut Call<'_>) -> Result<(), Fault> {
        let Self { machine, arena, commands, stats, .. } = self;
        let memory = &mut machine.memory;
        let token = commands.queue.next_token();
        let mut inline = [0; CMD_INLINE];
        let (first, rest) = call.head.split_at_checked(CMD_INLINE).unwrap_or((call.head, &[]));
        for (to, from) in inline.iter_mut().zip(first) {
            *to = *from;
        }
        ViewMut::<CmdIn>::of(&mut inline).set(CmdIn::OPCODE, call.opcode.code());
        let words = rest.len().div_ceil(8);
        let entries = call.input_len.saturating_sub(call.head.len()) / 8;
        mailboxes.input.write(memory, arena, token, &mut |index| match index.checked_sub(words) {
            Some(entry) if entry < entries => (call.entry)(entry).to_be_bytes(),
            Some(_) => [0; 8],
            None => {
                let mut bytes = [0; 8];
                for (to, from) in bytes.iter_mut().zip(rest.get(index * 8..).unwrap_or_default()) {
                    *to = *from;
                }
                bytes
            }
        })?;
        mailboxes.output.chain().write(memory, arena, token, &mut |_| [0; 8])?;
        let input_len = u32::try_from(call.input_len).unwrap_or(u32::MAX);
        let output_len = u32::try_from(call.output_len).unwrap_or(u32::MAX);
        let (input_addr, output_addr) = (mailboxes.input.addr(arena), mailboxes.output.chain().addr(arena));
        commands.queue.fill(memory, slot, &Post { inline, input_len, input_addr, output_len, output_addr, token })?;
        machine.fence.release();
        stats.commands = stats.commands.wrapping_add(1);
        machine.registers.write32(InitialSeg::COMMAND_DOORBELL_VECTOR.dword(), (1u32 << slot).to_be())?;
        machine.fence.flush();
        Ok(())
    }

    /// Waits for the device to give a slot back; its delivery status and owner bit.
    ///
    /// The owner bit decides, also when events announce completions: an event may be late or lost.
    fn wait(&mut self, slot: u32, opcode: u16, lane: Lane) -> Result<u8, Fault> {
        let start = self.machine.clock.now();
        let deadline = start.after(self.commands.timeout);
        let mut look = start.after(LOOK);
        loop {
            let late = self.machine.clock.now() >= deadline;
            self.serve(lane);
            let status_own = self.commands.queue.status_own(&self.machine.memory, slot)?;
            if status_own & 1 == 0 {
                self.machine.fence.acquire();
                return Ok(status_own);
            }
            if late {
                self.check_device()?;
                log_event!(warn, "command {:?} in slot {} did not answer in time", CmdName(opcode), slot);
                self.stats.timeouts = self.stats.timeouts.wrapping_add(1);
                return Err(Error::CommandTimeout { opcode }.fault());
            }
            if self.machine.clock.now() >= look {
                look = look.after(LOOK);
                self.check_device()?;
            }
            self.machine.clock.relax(deadline);
        }
    }

    /// Checks the answer of a command and copies it out.
    fn collect(&self, slot: u32, opcode: u16, row: Row, output: &mut [u8], status_own: u8) -> Result<(), Fault> {
        let (memory, queue, chain) = (&self.machine.memory, &self.commands.queue, row.chain());
        if status_own >> 1 != 0 {
            return Err(Error::CommandDelivery { opcode, status: status_own >> 1 }.fault());
        }
        if self.commands.signatures && !(queue.verify(memory, slot)? && chain.verify(memory, &self.arena)?) {
            return Err(Error::CommandSignature { opcode }.fault());
        }
        let first = queue.output(memory, slot)?;
        let answer = View::<CmdOut>::of(&first);
        if answer.is_set(CmdOut::STATUS) {
            let status = answer.get(CmdOut::STATUS) as u8;
            return Err(Error::CommandStatus { opcode, status, syndrome: answer.get(CmdOut::SYNDROME) }.fault());
        }
        for (to, from) in output.iter_mut().zip(first) {
            *to = from;
        }
        match output.get_mut(CMD_INLINE..) {
            Some(rest) => Ok(chain.read(memory, &self.arena, rest)?),
            None => Ok(()),
        }
    }
}

impl<P: Platform> Driver<P> {
    /// Does command `C`, which creates nothing and destroys nothing.
    #[inline(always)]
    pub(crate) fn command<C: Command>(&mut self, input: View<'_, C::In>, output: ViewMut<'_, C::Out>) -> Result<(), Fault> {
        let output = output.into_bytes();
        let len = output.len();
        self.execute(C::OPCODE, input.as_bytes(), output, len)
    }

    /// Does command `C`, of whose output only the status is looked at.
    #[inline(always)]
    pub(crate) fn tell<C: Command>(&mut self, input: View<'_, C::In>) -> Result<(), Fault> {
        self.execute(C::OPCODE, input.as_bytes(), &mut [], C::Out::SIZE)
    }

    /// Does a command that creates nothing and destroys nothing. Its whole output has `output_len` bytes.
    pub(crate) fn execute(
        &mut self,
        opcode: CmdOpcode,
        head: &[u8],
        output: &mut [u8],
        output_len: usize,
    ) -> Result<(), Fault> {
        let entry = &mut |_| 0;
        self.call_regular(&mut Call { opcode, head, entry, input_len: head.len(), output, output_len, late: LateAction::None })
    }

    /// Changes the queue pair of this number. The output has `output_len` bytes, of which none is of interest.
    pub(crate) fn modify(&mut self, opcode: CmdOpcode, head: &[u8], output_len: usize, number: u32) -> Result<(), Fault> {
        let (entry, output, late) = (&mut |_| 0, &mut [], LateAction::Modified { number });
        self.call_regular(&mut Call { opcode, head, entry, input_len: head.len(), output, output_len, late })
    }

    /// Any command but those of the page lane.
    pub(crate) fn call_regular(&mut self, call: &mut Call<'_>) -> Result<(), Fault> {
        self.destroy_orphans();
        self.call(Lane::Regular, call)
    }
}

#[cfg(test)]
mod tests;

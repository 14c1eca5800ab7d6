//! The command interface: a command goes in, its answer comes out or the reason why there is none, in bounded time.
//!
//! A command that does not answer in time keeps its slot and its mailboxes until it does. What it then did is undone, or
//! noted for whoever asks again: see [`late`].

pub(crate) mod late;
mod mailbox;
mod queue;

use core::time::Duration;

use bareverbs::{Clock, DmaFence, Platform, Registers};
use bareverbs_mlx5_spec::{CMD_INLINE, CmdOpcode, CmdOut, HealthBuffer, InitialSeg, View};
use heapless::Vec;

use crate::dma::arena::{Arena, PageUse, Run};
use crate::dma::machine::Machine;
use crate::driver::Driver;
use crate::error::Error;
use crate::log::log_event;
use crate::{CmdName, Config, Statistics};
use late::{LateAction, ObjectMemory, Orphan, Ticket, Unanswered};
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
/// Bytes of the input of most commands that destroy, and of the output of those that create.
const SHORT: usize = 16;

/// A command: its lengths and where its bytes come from and go.
pub(crate) struct Call<'a> {
    /// Opcode, which goes into the first two bytes.
    pub(crate) opcode: CmdOpcode,
    /// Start of the input.
    pub(crate) head: &'a [u8],
    /// 64-bit entries that follow the head.
    pub(crate) list: &'a mut dyn Iterator<Item = u64>,
    /// Bytes of the whole input: head and list, then zeros.
    pub(crate) input_len: usize,
    /// Start of the output.
    pub(crate) output: &'a mut [u8],
    /// Bytes of the whole output.
    pub(crate) output_len: usize,
    /// What is left to do if the answer comes after the deadline.
    pub(crate) late: LateAction,
}

/// Why a command failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallError {
    /// The reason.
    pub(crate) error: Error,
    /// The command, if the device may still answer it.
    pub(crate) unanswered: Option<Ticket>,
}

impl From<Error> for CallError {
    fn from(error: Error) -> Self {
        Self { error, unanswered: None }
    }
}

impl From<CallError> for Error {
    fn from(failed: CallError) -> Self {
        failed.error
    }
}

/// State of the command interface.
#[derive(Debug, Default)]
pub(crate) struct Commands {
    queue: CommandQueue,
    timeout: Duration,
    /// Whether the device signs its answers, so that they are checked.
    pub(crate) signatures: bool,
    /// Mailboxes that stay allocated: no command with a short list fails for lack of memory.
    regular: Option<Run>,
    pages: Option<Run>,
    unanswered: Vec<Unanswered, SLOTS>,
    /// Outcomes of commands that destroy and answered late, for whoever tries again: whether the object is gone.
    outcomes: Vec<(Ticket, bool), OUTCOMES>,
    orphans: Vec<Orphan, ORPHANS>,
    tickets: u32,
    /// Set once the device is known to answer no more, with the reason: no command is sent any more.
    pub(crate) dead: Option<Error>,
}

impl Commands {
    /// An interface without queue.
    pub(crate) fn new(config: &Config) -> Self {
        Self { timeout: config.command_timeout, ..Self::default() }
    }

    /// The queue lies in `run`.
    pub(crate) const fn start(&mut self, run: Run, log_size: u32, log_stride: u32) {
        self.queue = CommandQueue::new(run.at(), log_size, log_stride);
    }

    /// Slots whose commands have not answered.
    pub(crate) fn lost_slots(&self) -> u32 {
        self.unanswered.len() as u32
    }

    /// The standing mailboxes of a lane, input blocks before output blocks, and the number of each.
    fn standing(&mut self, arena: &mut Arena, lane: Lane) -> Result<(Run, usize), Error> {
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

/// What the command interface does while a command is under way.
pub(crate) type Idle<'a, P> = &'a mut dyn FnMut(&mut CommandInterface<'_, P>);

/// The command interface of a device, with what it needs of the driver.
pub(crate) struct CommandInterface<'a, P: Platform> {
    pub(crate) machine: &'a mut Machine<P>,
    pub(crate) arena: &'a mut Arena,
    pub(crate) commands: &'a mut Commands,
    pub(crate) stats: &'a mut Statistics,
}

impl<P: Platform> CommandInterface<'_, P> {
    /// Does a command, and `idle` again and again until it answers.
    pub(crate) fn call(&mut self, lane: Lane, call: &mut Call<'_>, idle: Idle<'_, P>) -> Result<(), CallError> {
        if let Some(reason) = self.commands.dead {
            return Err(reason.into());
        }
        self.collect_late_answers()?;
        let opcode = call.opcode.code() as u16;
        let Some(slot) = self.commands.queue.reserve(lane) else {
            log_event!(warn, "command {:?}: every slot waits for an answer", CmdName(opcode));
            return Err(Error::NoCommandSlot.into());
        };
        log_event!(trace, "command {:?} in slot {}", CmdName(opcode), slot);
        let mailboxes = match self.allocate_mailboxes(lane, slot, call) {
            Ok(mailboxes) => mailboxes,
            Err(error) => {
                self.commands.queue.release(slot);
                return Err(error.into());
            }
        };
        if let Err(error) = self.post(slot, &mailboxes, call) {
            self.release(slot, mailboxes.input.is_scattered());
            return Err(error.into());
        }
        let status_own = match self.wait(slot, opcode, idle) {
            Ok(status_own) => status_own,
            Err(error) => {
                let unanswered = self.abandon(lane, slot, call, &mailboxes);
                return Err(CallError { error, unanswered });
            }
        };
        let result = self.collect(slot, opcode, mailboxes.output, call.output, status_own);
        self.release(slot, mailboxes.input.is_scattered());
        if let Err(error) = result {
            log_event!(debug, "command {:?} failed: {:?}", CmdName(opcode), error);
        }
        Ok(result?)
    }

    /// Frees a slot, and the mailboxes that were its own, if it had any.
    fn release(&mut self, slot: u32, mailboxes: bool) {
        if mailboxes {
            self.arena.replace(PageUse::mailbox(slot), PageUse::FREE);
        }
        self.commands.queue.release(slot);
    }

    fn allocate_mailboxes(&mut self, lane: Lane, slot: u32, call: &Call<'_>) -> Result<Mailboxes, Error> {
        let input = Chain::blocks_for(call.input_len.saturating_sub(CMD_INLINE));
        let output = Chain::blocks_for(call.output_len.saturating_sub(CMD_INLINE));
        if input == 0 && output == 0 {
            return Ok(Mailboxes { input: Chain::EMPTY, output: Row::EMPTY, standing: None });
        }
        let (standing, blocks) = self.commands.standing(self.arena, lane)?;
        if output > blocks {
            return Err(Error::LimitExceeded { requested: output as u64, limit: blocks as u64 });
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
    fn post(&mut self, slot: u32, mailboxes: &Mailboxes, call: &mut Call<'_>) -> Result<(), Error> {
        let Self { machine, arena, commands, stats } = self;
        let memory = &mut machine.memory;
        let token = commands.queue.next_token();
        let mut inline = [0; CMD_INLINE];
        let (first, rest) = call.head.split_at_checked(CMD_INLINE).unwrap_or((call.head, &[]));
        for (to, from) in inline.iter_mut().zip(first) {
            *to = *from;
        }
        for (to, from) in inline.iter_mut().zip((call.opcode.code() as u16).to_be_bytes()) {
            *to = from;
        }
        let mut data = rest.iter().copied().chain((&mut *call.list).flat_map(u64::to_be_bytes));
        mailboxes.input.write(memory, arena, token, &mut data)?;
        mailboxes.output.chain().write(memory, arena, token, &mut core::iter::empty())?;
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
    fn wait(&mut self, slot: u32, opcode: u16, idle: Idle<'_, P>) -> Result<u8, Error> {
        let start = self.machine.clock.now();
        let deadline = start.after(self.commands.timeout);
        let mut look = start.after(LOOK);
        loop {
            let late = self.machine.clock.now() >= deadline;
            idle(self);
            let status_own = self.commands.queue.status_own(&self.machine.memory, slot)?;
            if status_own & 1 == 0 {
                self.machine.fence.acquire();
                return Ok(status_own);
            }
            if late {
                self.check_device()?;
                log_event!(warn, "command {:?} in slot {} did not answer in time", CmdName(opcode), slot);
                self.stats.timeouts = self.stats.timeouts.wrapping_add(1);
                return Err(Error::CommandTimeout { opcode });
            }
            if self.machine.clock.now() >= look {
                look = look.after(LOOK);
                self.check_device()?;
            }
            self.machine.clock.relax(deadline);
        }
    }

    /// [`Error::DeviceGone`] if reads give all ones, [`Error::DeviceFatal`] if the firmware stopped until a reset. No command is
    /// sent after either.
    pub(crate) fn check_device(&mut self) -> Result<(), Error> {
        let revision = self.machine.register(InitialSeg::FW_REV_MAJOR.dword())?;
        let interface = self.machine.register(InitialSeg::CMD_INTERFACE_REV.dword())?;
        if revision == u32::MAX && interface == u32::MAX {
            log_event!(error, "the device is gone");
            return self.mark_dead(Error::DeviceGone);
        }
        let buffer = InitialSeg::HEALTH_BUFFER.offset();
        if HealthBuffer::RFR.take(self.machine.register(buffer + HealthBuffer::RFR.dword())?) != 0 {
            let syndrome = HealthBuffer::SYND.take(self.machine.register(buffer + HealthBuffer::SYND.dword())?) as u8;
            if syndrome != 0 {
                log_event!(error, "the firmware stopped, health syndrome {:x}", syndrome);
                return self.mark_dead(Error::DeviceFatal { syndrome });
            }
        }
        Ok(())
    }

    /// Has every command end with `reason` from now on.
    fn mark_dead(&mut self, reason: Error) -> Result<(), Error> {
        self.commands.dead = Some(reason);
        Err(reason)
    }

    /// Checks the answer of a command and copies it out.
    fn collect(&self, slot: u32, opcode: u16, row: Row, output: &mut [u8], status_own: u8) -> Result<(), Error> {
        let (memory, queue, chain) = (&self.machine.memory, &self.commands.queue, row.chain());
        if status_own >> 1 != 0 {
            return Err(Error::CommandDelivery { opcode, status: status_own >> 1 });
        }
        if self.commands.signatures && !(queue.verify(memory, slot)? && chain.verify(memory, self.arena)?) {
            return Err(Error::CommandSignature { opcode });
        }
        let first = queue.output(memory, slot)?;
        let answer = View::<CmdOut>::of(&first);
        if answer.is_set(CmdOut::STATUS) {
            let status = answer.get(CmdOut::STATUS) as u8;
            return Err(Error::CommandStatus { opcode, status, syndrome: answer.get(CmdOut::SYNDROME) });
        }
        for (to, from) in output.iter_mut().zip(first) {
            *to = from;
        }
        match output.get_mut(CMD_INLINE..) {
            Some(rest) => Ok(chain.read(memory, self.arena, rest)?),
            None => Ok(()),
        }
    }
}

/// The number of an object in the output of a command that creates, and in the input of one that destroys.
const NUMBER: core::ops::Range<usize> = 8..12;

fn number_of(output: &[u8; SHORT]) -> u32 {
    let bytes = output.get(NUMBER).and_then(|bytes| bytes.first_chunk());
    bytes.map_or(0, |bytes| u32::from_be_bytes(*bytes) & 0xff_ffff)
}

fn naming(number: u32) -> [u8; SHORT] {
    let mut input = [0; SHORT];
    for (to, from) in input.iter_mut().skip(NUMBER.start).zip(number.to_be_bytes()) {
        *to = from;
    }
    input
}

impl<P: Platform> Driver<P> {
    /// A command that creates nothing and destroys nothing, with input and output of fixed sizes.
    pub(crate) fn command<const I: usize, const O: usize>(
        &mut self,
        opcode: CmdOpcode,
        input: &[u8; I],
        output: &mut [u8; O],
    ) -> Result<(), Error> {
        let list = &mut core::iter::empty();
        let call = Call { opcode, head: input, list, input_len: I, output, output_len: O, late: LateAction::None };
        Ok(self.call(call)?)
    }

    /// A command that creates an object; its number. `list` are `len` 64-bit entries after the input. If the answer comes too
    /// late the object is destroyed again, and its memory freed; after an error that [may still
    /// complete](Error::may_still_complete) the memory is not the caller's to free.
    pub(crate) fn create<const I: usize>(
        &mut self,
        opcode: CmdOpcode,
        input: &[u8; I],
        list: &mut dyn Iterator<Item = u64>,
        len: usize,
        memory: ObjectMemory,
    ) -> Result<u32, Error> {
        let input_len = len.saturating_mul(8).saturating_add(I);
        let mut output = [0; SHORT];
        let late = LateAction::Destroy { memory };
        self.call(Call { opcode, head: input, list, input_len, output: &mut output, output_len: SHORT, late })?;
        Ok(number_of(&output))
    }

    /// Any command. An error is the delivery's, the device's or the deadline's; the output is then not to be looked at.
    pub(crate) fn call(&mut self, mut call: Call<'_>) -> Result<(), CallError> {
        self.destroy_orphans();
        self.call_regular(&mut call)
    }

    fn call_regular(&mut self, call: &mut Call<'_>) -> Result<(), CallError> {
        let (mut interface, mut work) = self.command_interface();
        interface.call(Lane::Regular, call, &mut |interface| work.serve(interface))
    }

    /// [`CommandInterface::check_device`].
    pub(crate) fn check_device(&mut self) -> Result<(), Error> {
        self.command_interface().0.check_device()
    }
}

#[cfg(test)]
mod tests;

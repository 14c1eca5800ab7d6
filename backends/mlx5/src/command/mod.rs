//! The command interface: a command goes in, its answer comes out or the reason why there is none, in bounded time.

mod mailbox;
mod queue;

use core::time::Duration;

use bareverbs::{Clock, DmaFence, Platform, Registers};
use bareverbs_mlx5_spec::{CMD_INLINE, CmdOpcode, CmdOut, HealthBuffer, InitialSeg, View};

use crate::dma::arena::{Arena, Run};
use crate::driver::Driver;
use crate::error::Error;
use crate::log::log_event;
pub(crate) use mailbox::Chain;
use queue::Post;
pub(crate) use queue::{Call, Chains, CommandQueue, Lane};

/// Blocks of the standing chains: the 4096 bytes of a capability page.
const STANDING_BLOCKS: usize = 8;
/// Blocks of each chain of the page lane.
const PAGE_LANE_BLOCKS: usize = 2;
/// How often a wait looks whether the device is still there.
const LOOK: Duration = Duration::from_millis(100);

/// Standing chains of one lane and the pages that they lie in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Standing {
    run: Run,
    chains: Chains,
}

/// State of the command interface.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Commands {
    queue: CommandQueue,
    queue_run: Option<Run>,
    regular: Option<Standing>,
    pages: Option<Standing>,
    /// Set once the device is known to answer no more, with the reason: nothing is asked of it any more.
    pub(crate) dead: Option<Error>,
}

impl Commands {
    /// The queue lies in `run`.
    pub(crate) const fn start(&mut self, run: Run, log_size: u32, log_stride: u32) {
        self.queue = CommandQueue::new(run.at(), log_size, log_stride);
        self.queue_run = Some(run);
    }

    /// Slots whose commands never ended.
    pub(crate) const fn lost_slots(&self) -> u32 {
        self.queue.lost()
    }

    fn standing(&mut self, arena: &mut Arena, lane: Lane) -> Result<Standing, Error> {
        let (place, blocks) = match lane {
            Lane::Regular => (&mut self.regular, STANDING_BLOCKS),
            Lane::Pages => (&mut self.pages, PAGE_LANE_BLOCKS),
        };
        if let Some(standing) = *place {
            return Ok(standing);
        }
        let run = arena.allocate(Chain::pages(2 * blocks))?;
        let (input, output) = Chain::new(run).split(blocks);
        Ok(*place.insert(Standing { run, chains: Chains { input, output } }))
    }

    const fn forget_standing(&mut self, lane: Lane) {
        match lane {
            Lane::Regular => self.regular = None,
            Lane::Pages => self.pages = None,
        }
    }
}

/// The chains of one command, and the pages that were taken for it alone.
struct Mailboxes {
    chains: Chains,
    standing: Option<Run>,
    extra: Option<Run>,
}

impl<P: Platform> Driver<P> {
    /// A command whose input and output have fixed sizes.
    pub(crate) fn command<const I: usize, const O: usize>(
        &mut self,
        opcode: CmdOpcode,
        input: &[u8; I],
        output: &mut [u8; O],
    ) -> Result<(), Error> {
        let list = &mut core::iter::empty();
        self.call(Lane::Regular, Call { opcode, head: input, list, input_len: I, output, output_len: O })
    }

    /// A command whose input ends in a list of `len` 64-bit entries.
    pub(crate) fn command_with_list<const I: usize, const O: usize>(
        &mut self,
        opcode: CmdOpcode,
        input: &[u8; I],
        list: &mut dyn Iterator<Item = u64>,
        len: usize,
        output: &mut [u8; O],
    ) -> Result<(), Error> {
        let input_len = len.saturating_mul(8).saturating_add(I);
        self.call(Lane::Regular, Call { opcode, head: input, list, input_len, output, output_len: O })
    }

    /// Any command. An error is the delivery's, the device's or the deadline's; the output is then not to be looked at.
    pub(crate) fn call(&mut self, lane: Lane, mut call: Call<'_>) -> Result<(), Error> {
        if let Some(reason) = self.commands.dead {
            return Err(reason);
        }
        let opcode = call.opcode.code() as u16;
        let slot = self.commands.queue.slot(lane).ok_or(Error::NoCommandSlot)?;
        let input_blocks = Chain::blocks_for(call.input_len.saturating_sub(CMD_INLINE));
        let output_blocks = Chain::blocks_for(call.output_len.saturating_sub(CMD_INLINE));
        let mailboxes = self.allocate_mailboxes(lane, input_blocks, output_blocks)?;
        let result = self
            .post(slot, mailboxes.chains, &mut call, input_blocks, output_blocks)
            .and_then(|()| self.wait(slot, lane, opcode))
            .and_then(|status_own| self.collect(slot, mailboxes.chains, &mut call, output_blocks, status_own));
        if matches!(result, Err(Error::CommandTimeout { .. } | Error::DeviceGone | Error::DeviceFatal { .. })) {
            self.commands.queue.lose(slot);
            self.lose_mailboxes(lane, &mailboxes);
        } else if let Some(extra) = mailboxes.extra {
            self.arena.free(extra);
        }
        if let Err(error) = result {
            log_event!(debug, "command {:x} failed: {:?}", opcode, error);
        }
        result
    }

    fn allocate_mailboxes(&mut self, lane: Lane, input_blocks: usize, output_blocks: usize) -> Result<Mailboxes, Error> {
        if input_blocks == 0 && output_blocks == 0 {
            let chains = Chains { input: Chain::EMPTY, output: Chain::EMPTY };
            return Ok(Mailboxes { chains, standing: None, extra: None });
        }
        let standing = self.commands.standing(&mut self.arena, lane)?;
        let Chains { input, output } = standing.chains;
        if input_blocks <= input.blocks() && output_blocks <= output.blocks() {
            return Ok(Mailboxes { chains: standing.chains, standing: Some(standing.run), extra: None });
        }
        let extra = self.arena.allocate(Chain::pages(input_blocks.saturating_add(output_blocks)))?;
        let (input, output) = Chain::new(extra).split(input_blocks);
        Ok(Mailboxes { chains: Chains { input, output }, standing: None, extra: Some(extra) })
    }

    fn lose_mailboxes(&mut self, lane: Lane, mailboxes: &Mailboxes) {
        if let Some(run) = mailboxes.standing {
            self.arena.lose(run);
            self.commands.forget_standing(lane);
        }
        if let Some(run) = mailboxes.extra {
            self.arena.lose(run);
        }
    }

    /// Writes a command and tells the device.
    fn post(
        &mut self,
        slot: u32,
        chains: Chains,
        call: &mut Call<'_>,
        input_blocks: usize,
        output_blocks: usize,
    ) -> Result<(), Error> {
        let memory = &mut self.machine.memory;
        let token = self.commands.queue.next_token();
        let address = |chain: Chain, blocks| if blocks == 0 { 0 } else { self.arena.addr(chain.at()) };
        let (input_addr, output_addr) = (address(chains.input, input_blocks), address(chains.output, output_blocks));
        chains.input.link(memory, input_addr, input_blocks, token)?;
        chains.output.link(memory, output_addr, output_blocks, token)?;
        let mut inline = [0; CMD_INLINE];
        let (first, rest) = call.head.split_at_checked(CMD_INLINE).unwrap_or((call.head, &[]));
        for (to, from) in inline.iter_mut().zip(first) {
            *to = *from;
        }
        for (to, from) in inline.iter_mut().zip((call.opcode.code() as u16).to_be_bytes()) {
            *to = from;
        }
        chains.input.write(memory, 0, rest)?;
        for (offset, entry) in (rest.len()..).step_by(8).zip(&mut *call.list) {
            chains.input.write(memory, offset, &entry.to_be_bytes())?;
        }
        chains.input.sign(memory, input_blocks)?;
        chains.output.sign(memory, output_blocks)?;
        let input_len = u32::try_from(call.input_len).unwrap_or(u32::MAX);
        let output_len = u32::try_from(call.output_len).unwrap_or(u32::MAX);
        self.commands.queue.fill(memory, slot, &Post { inline, input_len, input_addr, output_len, output_addr, token })?;
        self.machine.fence.release();
        self.stats.commands = self.stats.commands.wrapping_add(1);
        self.machine.registers.write32(InitialSeg::COMMAND_DOORBELL_VECTOR.dword(), (1u32 << slot).to_be())?;
        self.machine.fence.flush();
        Ok(())
    }

    /// Waits for the device to give a slot back; its delivery status and owner bit.
    ///
    /// The owner bit decides, also when events tell of completions: an event may be late or lost.
    fn wait(&mut self, slot: u32, lane: Lane, opcode: u16) -> Result<u8, Error> {
        let start = self.machine.clock.now();
        let deadline = start.after(self.config.command_timeout);
        let mut look = start.after(LOOK);
        loop {
            let late = self.machine.clock.now() >= deadline;
            self.drain_command_events()?;
            let status_own = self.commands.queue.status_own(&self.machine.memory, slot)?;
            if status_own & 1 == 0 {
                self.machine.fence.acquire();
                return Ok(status_own);
            }
            if late {
                self.check_device()?;
                log_event!(warn, "command {:x} in slot {} did not end in time", opcode, slot);
                self.stats.timeouts = self.stats.timeouts.wrapping_add(1);
                return Err(Error::CommandTimeout { opcode });
            }
            if lane == Lane::Regular {
                // The command may wait for these very pages. If they cannot be given the firmware was told so, and ends
                // the command with a status of its own.
                let _ = self.serve_page_requests();
            }
            if self.machine.clock.now() >= look {
                look = look.after(LOOK);
                self.check_device()?;
            }
            self.machine.clock.relax();
        }
    }

    /// [`Error::DeviceGone`] if reads give all ones, [`Error::DeviceFatal`] if the firmware stopped until a reset. Nothing is asked
    /// of the device after either.
    pub(crate) fn check_device(&mut self) -> Result<(), Error> {
        let revision = self.machine.registers.read32(InitialSeg::FW_REV_MAJOR.dword())?;
        let interface = self.machine.registers.read32(InitialSeg::CMD_INTERFACE_REV.dword())?;
        if revision == u32::MAX && interface == u32::MAX {
            log_event!(error, "the device is gone");
            return self.mark_dead(Error::DeviceGone);
        }
        let buffer = InitialSeg::HEALTH_BUFFER.offset();
        if HealthBuffer::RFR.take(self.register(buffer + HealthBuffer::RFR.dword())?) != 0 {
            let syndrome = HealthBuffer::SYND.take(self.register(buffer + HealthBuffer::SYND.dword())?) as u8;
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
    fn collect(
        &self,
        slot: u32,
        chains: Chains,
        call: &mut Call<'_>,
        output_blocks: usize,
        status_own: u8,
    ) -> Result<(), Error> {
        let opcode = call.opcode.code() as u16;
        let memory = &self.machine.memory;
        if status_own >> 1 != 0 {
            return Err(Error::CommandDelivery { opcode, status: status_own >> 1 });
        }
        if self.signatures_checked
            && !(self.commands.queue.verify(memory, slot)? && chains.output.verify(memory, output_blocks)?)
        {
            return Err(Error::CommandSignature { opcode });
        }
        let first = self.commands.queue.output(memory, slot)?;
        let answer = View::<CmdOut>::of(&first);
        if answer.is_set(CmdOut::STATUS) {
            let status = answer.get(CmdOut::STATUS) as u8;
            return Err(Error::CommandStatus { opcode, status, syndrome: answer.get(CmdOut::SYNDROME) });
        }
        for (to, from) in call.output.iter_mut().zip(first) {
            *to = from;
        }
        match call.output.get_mut(CMD_INLINE..) {
            Some(rest) => Ok(chains.output.read(memory, 0, rest)?),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;

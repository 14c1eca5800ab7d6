//! The command interface: executes firmware commands with a timeout.
//!
//! The device is lost with the first command that it does not complete in time: it may execute the command at any time later,
//! and write its output. No further command is sent, each call fails with the reason, and nothing is freed. Only a reset ends
//! this.

mod init_segment;
mod mailbox;
mod object;
pub(crate) mod pages;
mod probe;
mod queue;

use core::time::Duration;

use bareverbs::platform::{Clock, DmaFence, DmaMemory, Instant, Machine, Platform, Registers};
use bareverbs_mlx5_spec::{
    Buffer, CMD_INLINE, CmdIn, CmdOpcode, CmdOut, CmdQueueEntry, Command, InitialSeg, Layout, PCI_CMD_XPORT, View, ViewMut,
};

use crate::config::Config;
use crate::dma::arena::{Arena, PageUse};
use crate::error::{CmdName, Error};
use crate::events::eq::Eq;
use crate::log::log_event;
use crate::statistics::Statistics;
use mailbox::MailboxChain;

pub(crate) use queue::{CommandClass, CommandQueue};

/// Interval at which a wait checks whether the device is still present.
const LIVENESS_INTERVAL: Duration = Duration::from_millis(100);

/// A command: where its bytes come from and go.
pub(crate) struct Call<'a> {
    pub(crate) opcode: CmdOpcode,
    /// Start of the input, into whose first two bytes the opcode goes.
    pub(crate) head: &'a [u8],
    /// How many 64-bit entries follow the head, and each by its index.
    pub(crate) list: List<'a>,
    /// Start of the output.
    pub(crate) output: &'a mut [u8],
    /// Bytes of the whole output.
    pub(crate) output_len: usize,
}

/// A number of 64-bit entries, and each by its index.
pub(crate) type List<'a> = (usize, &'a mut dyn FnMut(usize) -> u64);

impl Call<'_> {
    const fn input_len(&self) -> usize {
        self.list.0.saturating_mul(8).saturating_add(self.head.len())
    }
}

/// Copies as many bytes as both have.
#[inline(never)]
pub(crate) fn copy(to: &mut [u8], from: &[u8]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = *from;
    }
}

/// Sets fields of a structure.
pub(crate) trait Fill<L>: for<'a, 'b> FnOnce(&'a mut ViewMut<'b, L>) -> &'a mut ViewMut<'b, L> {}

impl<L, F: for<'a, 'b> FnOnce(&'a mut ViewMut<'b, L>) -> &'a mut ViewMut<'b, L>> Fill<L> for F {}

/// The command interface of one device: its registers and memory, and the commands that use them. `U` is the arena's
/// array in [`crate::Mlx5`] and a slice everywhere else, so that the code exists once.
// The fields are in the order with the least code: on Thumb-2 offsets up to 124 bytes are in the short instructions.
pub(crate) struct CommandInterface<P: Platform, U: ?Sized = [PageUse]> {
    pub(crate) machine: Machine<P>,
    pub(crate) stats: Statistics,
    /// The event queue for page requests, which a command in progress serves.
    pub(crate) page_requests: Option<Eq<P>>,
    pub(crate) queue: CommandQueue,
    /// Bits 31 to 12 of the queue's address, as the driver wrote them into their register. A reset clears it, while the health counter
    /// goes on and the health buffer says nothing. Linux relies on its value too (`mlx5_set_nic_state` of `health.c`).
    queue_page: u32,
    /// Whether a look at the register has found it. A device that does not show it is not suspected.
    queue_was_seen: bool,
    timeout: Duration,
    /// The command of each class that waits for its answer. An earlier call that ended by unwinding leaves its command here.
    unanswered: [Option<u16>; 2],
    /// The deadline of a probe whose answer nobody has seen yet.
    probe: Option<Instant>,
    /// The reason why the device does not respond any more. No command is sent once it is set, and no memory is freed.
    pub(crate) dead: Option<Error>,
    /// How many pages the firmware has, and may have. The machine's [`PageSource`](bareverbs::platform::PageSource) knows which they are.
    pub(crate) held: u32,
    page_limit: u32,
    /// Number of this function. Nobody else's gets pages: a driver that enables virtual functions gives them theirs.
    function: u16,
    pub(crate) arena: Arena<U>,
}

impl<P: Platform, const PAGES: usize> CommandInterface<P, [PageUse; PAGES]> {
    pub(crate) fn new(machine: Machine<P>, config: &Config) -> Self {
        let arena = Arena::new(machine.memory.device_addr());
        Self {
            machine,
            stats: Statistics::default(),
            page_requests: None,
            queue: CommandQueue::default(),
            queue_page: 0,
            queue_was_seen: false,
            timeout: config.command_timeout,
            unanswered: [None; 2],
            probe: None,
            dead: None,
            held: 0,
            page_limit: config.firmware_pages,
            function: 0,
            arena,
        }
    }
}

impl<P: Platform> CommandInterface<P> {
    /// Fails if no command may be sent any more.
    pub(crate) fn check_alive(&self) -> Result<(), Error> {
        self.dead.map_or(Ok(()), Err)
    }

    /// Executes a command, and serves page requests until it completes.
    pub(crate) fn call(&mut self, class: CommandClass, call: &mut Call<'_>) -> Result<(), Error> {
        let opcode = call.opcode.code() as u16;
        if class == CommandClass::Regular {
            self.finish_probe()?;
        }
        if let Some(opcode) = *self.unanswered(class) {
            self.dead.get_or_insert(Error::CommandTimeout { opcode });
        }
        self.check_alive()?;
        let slot = self.queue.slot(class);
        log_event!(trace, "command {:?} in slot {}", CmdName(opcode), slot);
        let result = match self.send(class, slot, call) {
            Ok(output) => match self.wait(slot, opcode, class, self.machine.clock.now().after(self.timeout)) {
                Ok(status_own) => self.collect(slot, status_own, output, call),
                Err(error) => Err(*self.dead.get_or_insert(error)),
            },
            Err(error) => Err(error),
        };
        if self.dead.is_none() {
            *self.unanswered(class) = None;
            // The page list of a large region took more mailbox pages than are kept.
            let (with, reserved) = class.mailboxes();
            if MailboxChain::blocks_for(call.input_len()) > reserved {
                self.arena.keep(with, MailboxChain::pages(2 * reserved));
            }
        }
        if let Err(error) = result {
            log_event!(debug, "command {:?} failed: {:?}", CmdName(opcode), error);
        }
        result
    }

    const fn unanswered(&mut self, class: CommandClass) -> &mut Option<u16> {
        let [regular, pages] = &mut self.unanswered;
        if matches!(class, CommandClass::Pages) { pages } else { regular }
    }

    /// Writes a command, rings its doorbell, and returns the mailboxes of its output.
    fn send(&mut self, class: CommandClass, slot: u32, call: &mut Call<'_>) -> Result<MailboxChain, Error> {
        let ((with, reserved), input_len) = (class.mailboxes(), call.input_len());
        let [input, output] = [input_len, call.output_len].map(|len| MailboxChain::blocks_for(len.saturating_sub(CMD_INLINE)));
        // The output lies first. A long list, of a region for instance, takes what it needs behind it.
        let before = reserved.max(output);
        if input != 0 || output != 0 {
            self.arena.extend(with, MailboxChain::pages(before + input.max(reserved)))?;
        }
        let chain = |first, blocks| MailboxChain { pages: with, first, blocks };
        let (input, output) = (chain(before, input), chain(0, output));
        let Self { machine, arena, queue, stats, .. } = self;
        let memory = &mut machine.memory;
        let token = queue.next_token();
        let mut inline = [0; CMD_INLINE];
        let (first, rest) = call.head.split_at_checked(CMD_INLINE).unwrap_or((call.head, &[]));
        copy(&mut inline, first);
        ViewMut::<CmdIn>::of(&mut inline).set(CmdIn::OPCODE, call.opcode.code());
        let words = rest.len().div_ceil(8);
        let (entries, entry) = &mut call.list;
        input.write(memory, arena, token, &mut |index| {
            let mut bytes = [0; 8];
            match index.checked_sub(words) {
                Some(index) if index < *entries => bytes = entry(index).to_be_bytes(),
                Some(_) => {}
                None => copy(&mut bytes, rest.get(index * 8..).unwrap_or_default()),
            }
            bytes
        })?;
        output.write(memory, arena, token, &mut |_| [0; 8])?;
        let mut entry = Buffer::zeroed();
        let (input_addr, output_addr) = (input.addr(arena), output.addr(arena));
        entry
            .view_mut()
            .set(CmdQueueEntry::TYPE, PCI_CMD_XPORT)
            .set(CmdQueueEntry::INPUT_LENGTH, u32::try_from(input_len).unwrap_or(u32::MAX))
            .set(CmdQueueEntry::INPUT_MAILBOX_POINTER_63_32, (input_addr >> 32) as u32)
            .set(CmdQueueEntry::INPUT_MAILBOX_POINTER_31_9, input_addr as u32 >> 9)
            .set_bytes(CmdQueueEntry::COMMAND_INPUT_INLINE_DATA, &inline)
            .set(CmdQueueEntry::OUTPUT_MAILBOX_POINTER_63_32, (output_addr >> 32) as u32)
            .set(CmdQueueEntry::OUTPUT_MAILBOX_POINTER_31_9, output_addr as u32 >> 9)
            .set(CmdQueueEntry::OUTPUT_LENGTH, call.output_len as u32)
            .set(CmdQueueEntry::TOKEN, u32::from(token))
            .set(CmdQueueEntry::OWNERSHIP, 1);
        queue.write(memory, slot, entry)?;
        stats.commands = stats.commands.wrapping_add(1);
        // Not before: what the caller's list does until here is of no concern to the device, also if it unwinds.
        *self.unanswered(class) = Some(call.opcode.code() as u16);
        let machine = &mut self.machine;
        machine.fence.release();
        machine.registers.write32(InitialSeg::COMMAND_DOORBELL_VECTOR.dword(), (1u32 << slot).to_be())?;
        machine.fence.flush();
        Ok(output)
    }

    /// Waits until the device returns a slot, and returns its delivery status and owner bit.
    /// The firmware gets the pages that it requests meanwhile; a page command gives none.
    ///
    /// The owner bit decides. Events could report completions too, and interrupt the CPU for each: no queue is created for them.
    fn wait(&mut self, slot: u32, opcode: u16, class: CommandClass, deadline: Instant) -> Result<u8, Error> {
        let mut next_check = self.machine.clock.now().after(LIVENESS_INTERVAL);
        loop {
            let late = self.machine.clock.now() >= deadline;
            if class == CommandClass::Regular {
                // If there are no pages, the firmware was notified and completes the command with an error status.
                let _ = self.serve_page_requests();
            }
            let status_own = self.queue.status_own(&self.machine.memory, slot)?;
            if status_own & 1 == 0 {
                self.machine.fence.acquire();
                return Ok(status_own);
            }
            // A page command meanwhile may have found the device lost.
            self.check_alive()?;
            if late {
                self.check_device()?;
                log_event!(error, "command {:?} in slot {} timed out: the device is lost", CmdName(opcode), slot);
                return Err(Error::CommandTimeout { opcode });
            }
            if self.machine.clock.now() >= next_check {
                next_check = next_check.after(LIVENESS_INTERVAL);
                self.check_device()?;
            }
            self.machine.clock.relax(deadline);
        }
    }

    fn collect(&self, slot: u32, status_own: u8, chain: MailboxChain, call: &mut Call<'_>) -> Result<(), Error> {
        let (memory, queue, opcode) = (&self.machine.memory, &self.queue, call.opcode.code() as u16);
        if status_own >> 1 != 0 {
            return Err(Error::CommandDelivery { opcode, status: status_own >> 1 });
        }
        let first = queue.output(memory, slot)?;
        let out = View::<CmdOut>::of(&first);
        if out.is_set(CmdOut::STATUS) {
            let status = out.get(CmdOut::STATUS) as u8;
            return Err(Error::CommandStatus { opcode, status, syndrome: out.get(CmdOut::SYNDROME) });
        }
        copy(call.output, &first);
        let rest = call.output.get_mut(CMD_INLINE..).unwrap_or_default();
        Ok(chain.read(memory, &self.arena, rest)?)
    }
}

impl<P: Platform> CommandInterface<P> {
    /// Executes command `C`, of whose input `fill` sets fields, and returns its output.
    #[inline(always)]
    pub(crate) fn query<C: Command>(&mut self, fill: impl Fill<C::In>) -> Result<Buffer<C::Out>, Error> {
        let (mut input, mut output) = (Buffer::zeroed(), Buffer::zeroed());
        fill(&mut input.view_mut());
        self.execute(C::OPCODE, input.as_bytes(), output.as_bytes_mut(), C::Out::SIZE)?;
        Ok(output)
    }

    /// Executes command `C`, of whose input `fill` sets fields, and of whose output only the status matters.
    #[inline(always)]
    pub(crate) fn perform<C: Command>(&mut self, fill: impl Fill<C::In>) -> Result<(), Error> {
        let mut input = Buffer::zeroed();
        fill(&mut input.view_mut());
        self.execute(C::OPCODE, input.as_bytes(), &mut [], C::Out::SIZE)
    }

    /// Executes a command that neither creates nor destroys an object. Its whole output has `output_len` bytes.
    pub(crate) fn execute(
        &mut self,
        opcode: CmdOpcode,
        head: &[u8],
        output: &mut [u8],
        output_len: usize,
    ) -> Result<(), Error> {
        let list: List<'_> = (0, &mut |_| 0);
        self.call(CommandClass::Regular, &mut Call { opcode, head, list, output, output_len })
    }
}

#[cfg(test)]
mod tests;

//! The command interface: executes firmware commands with a timeout.
//!
//! The device is lost with the first command that it does not complete in time: it may execute the command at any time later,
//! and write its output. No further command is sent, each call fails with the reason, and nothing is freed. Only a reset ends
//! this.

mod held_pages;
mod init_segment;
mod mailbox;
pub(crate) mod name;
pub(crate) mod object;
pub(crate) mod pages;
mod probe;
mod queue;
mod queue_address;

use core::time::Duration;

use bareverbs::{Clock, DmaFence, DmaMemory, Instant, Machine, Platform, Registers};
use bareverbs_mlx5_spec::{
    Buffer, CMD_INLINE, CmdIn, CmdOpcode, CmdOut, CmdQueueEntry, Command, InitialSeg, Layout, PCI_CMD_XPORT, View, ViewMut,
};

use crate::config::Config;
use crate::dma::arena::{Arena, PageRange, PageUse};
use crate::error::{Error, PackedError};
use crate::events::eq::Eq;
use crate::log::log_event;
use crate::statistics::Statistics;
use held_pages::HeldPages;
use mailbox::MailboxChain;
use name::CmdName;
use queue::CommandQueue;
use queue_address::QueueAddress;

pub(crate) use queue::CommandClass;

/// Interval at which a wait checks whether the device is still present.
const LIVENESS_INTERVAL: Duration = Duration::from_millis(100);

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
    queue: CommandQueue,
    queue_address: QueueAddress,
    timeout: Duration,
    /// The command of each class that waits for its answer. An earlier call that ended by unwinding leaves its command here.
    unanswered: [Option<u16>; 2],
    /// The deadline of a probe whose answer nobody has seen yet.
    probe: Option<Instant>,
    /// The reason why the device does not respond any more. No command is sent once it is set, and no memory is freed.
    pub(crate) dead: Option<PackedError>,
    /// Pages that the firmware has.
    pub(crate) held: HeldPages,
    pub(crate) arena: Arena<U>,
}

impl<P: Platform, const PAGES: usize> CommandInterface<P, [PageUse; PAGES]> {
    /// Creates an interface without a queue, which has not accessed its device.
    pub(crate) fn new(machine: Machine<P>, config: &Config) -> Self {
        let arena = Arena::new(machine.memory.device_addr());
        Self {
            machine,
            stats: Statistics::default(),
            page_requests: None,
            queue: CommandQueue::default(),
            queue_address: QueueAddress::default(),
            timeout: config.command_timeout,
            unanswered: [None; 2],
            probe: None,
            dead: None,
            held: HeldPages::new(config.firmware_pages),
            arena,
        }
    }
}

impl<P: Platform> CommandInterface<P> {
    /// Sets the place of the queue.
    pub(crate) const fn start(&mut self, range: PageRange, log_size: u32, log_stride: u32) {
        self.queue = CommandQueue::new(range.at(), log_size, log_stride);
    }

    /// Fails if no command may be sent any more.
    pub(crate) fn check_alive(&self) -> Result<(), PackedError> {
        self.dead.map_or(Ok(()), Err)
    }

    /// Executes a command, and serves page requests until it completes.
    pub(crate) fn call(&mut self, class: CommandClass, call: &mut Call<'_>) -> Result<(), PackedError> {
        let opcode = call.opcode.code() as u16;
        if class == CommandClass::Regular {
            self.finish_probe()?;
        }
        if let Some(opcode) = *self.unanswered(class) {
            self.dead.get_or_insert(Error::CommandTimeout { opcode }.pack());
        }
        self.check_alive()?;
        let slot = self.queue.slot(class);
        log_event!(trace, "command {:?} in slot {}", CmdName(opcode), slot);
        let result = match self.send(class, slot, call) {
            Ok(output) => match self.wait(slot, opcode, class, self.machine.clock.now().after(self.timeout)) {
                Ok(status_own) => self.collect(slot, opcode, output, call.output, status_own),
                Err(error) => Err(*self.dead.get_or_insert(error)),
            },
            Err(error) => Err(error),
        };
        if self.dead.is_none() {
            *self.unanswered(class) = None;
            // The page list of a large region took more mailbox pages than are kept.
            if MailboxChain::blocks_for(call.input_len) > class.blocks() {
                self.arena.keep(class.mailboxes(), MailboxChain::pages(2 * class.blocks()));
            }
        }
        if let Err(error) = result {
            log_event!(debug, "command {:?} failed: {:?}", CmdName(opcode), error);
        }
        result
    }

    const fn unanswered(&mut self, class: CommandClass) -> &mut Option<u16> {
        let [regular, pages] = &mut self.unanswered;
        match class {
            CommandClass::Regular => regular,
            CommandClass::Pages => pages,
        }
    }

    /// Allocates the mailboxes of a command, sends it, and returns those of its output.
    fn send(&mut self, class: CommandClass, slot: u32, call: &mut Call<'_>) -> Result<MailboxChain, PackedError> {
        let (with, reserved) = (class.mailboxes(), class.blocks());
        let input = MailboxChain::blocks_for(call.input_len.saturating_sub(CMD_INLINE));
        let output = MailboxChain::blocks_for(call.output_len.saturating_sub(CMD_INLINE));
        if output > reserved {
            return Err(Error::LimitExceeded { limit: reserved as u32 }.pack());
        }
        // The output lies first. A long list, of a region for instance, takes what it needs behind it.
        if input != 0 || output != 0 {
            self.arena.extend(with, MailboxChain::pages(reserved + input.max(reserved)))?;
        }
        let output = MailboxChain::new(with, 0, output);
        self.post(class, slot, MailboxChain::new(with, reserved, input), output, call)?;
        Ok(output)
    }

    /// Writes a command and rings its doorbell.
    fn post(
        &mut self,
        class: CommandClass,
        slot: u32,
        input: MailboxChain,
        output: MailboxChain,
        call: &mut Call<'_>,
    ) -> Result<(), PackedError> {
        let Self { machine, arena, queue, stats, .. } = self;
        let memory = &mut machine.memory;
        let token = queue.next_token();
        let mut inline = [0; CMD_INLINE];
        let (first, rest) = call.head.split_at_checked(CMD_INLINE).unwrap_or((call.head, &[]));
        for (to, from) in inline.iter_mut().zip(first) {
            *to = *from;
        }
        ViewMut::<CmdIn>::of(&mut inline).set(CmdIn::OPCODE, call.opcode.code());
        let words = rest.len().div_ceil(8);
        let entries = call.input_len.saturating_sub(call.head.len()) / 8;
        input.write(memory, arena, token, &mut |index| match index.checked_sub(words) {
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
        output.write(memory, arena, token, &mut |_| [0; 8])?;
        let mut entry = Buffer::zeroed();
        let (input_addr, output_addr) = (input.addr(arena), output.addr(arena));
        entry
            .view_mut()
            .set(CmdQueueEntry::TYPE, PCI_CMD_XPORT)
            .set(CmdQueueEntry::INPUT_LENGTH, u32::try_from(call.input_len).unwrap_or(u32::MAX))
            .set(CmdQueueEntry::INPUT_MAILBOX_POINTER_63_32, (input_addr >> 32) as u32)
            .set(CmdQueueEntry::INPUT_MAILBOX_POINTER_31_9, input_addr as u32 >> 9)
            .set_bytes(CmdQueueEntry::COMMAND_INPUT_INLINE_DATA, &inline)
            .set(CmdQueueEntry::OUTPUT_MAILBOX_POINTER_63_32, (output_addr >> 32) as u32)
            .set(CmdQueueEntry::OUTPUT_MAILBOX_POINTER_31_9, output_addr as u32 >> 9)
            .set(CmdQueueEntry::OUTPUT_LENGTH, u32::try_from(call.output_len).unwrap_or(u32::MAX))
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
        Ok(())
    }

    /// Waits until the device returns a slot, and returns its delivery status and owner bit.
    /// The firmware gets the pages that it requests meanwhile; a page command gives none.
    ///
    /// The owner bit decides. Events could report completions too, and interrupt the CPU for each: no queue is created for them.
    fn wait(&mut self, slot: u32, opcode: u16, class: CommandClass, deadline: Instant) -> Result<u8, PackedError> {
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
                return Err(Error::CommandTimeout { opcode }.pack());
            }
            if self.machine.clock.now() >= next_check {
                next_check = next_check.after(LIVENESS_INTERVAL);
                self.check_device()?;
            }
            self.machine.clock.relax(deadline);
        }
    }

    /// Checks the output of a command and copies it.
    fn collect(
        &mut self,
        slot: u32,
        opcode: u16,
        chain: MailboxChain,
        output: &mut [u8],
        status_own: u8,
    ) -> Result<(), PackedError> {
        let (memory, queue) = (&self.machine.memory, &self.queue);
        if status_own >> 1 != 0 {
            return Err(Error::CommandDelivery { opcode, status: status_own >> 1 }.pack());
        }
        let first = queue.output(memory, slot)?;
        let out = View::<CmdOut>::of(&first);
        if out.is_set(CmdOut::STATUS) {
            let status = out.get(CmdOut::STATUS) as u8;
            return Err(Error::CommandStatus { opcode, status, syndrome: out.get(CmdOut::SYNDROME) }.pack());
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

impl<P: Platform> CommandInterface<P> {
    /// Executes command `C`, which neither creates nor destroys an object.
    #[inline(always)]
    pub(crate) fn command<C: Command>(
        &mut self,
        input: View<'_, C::In>,
        output: ViewMut<'_, C::Out>,
    ) -> Result<(), PackedError> {
        let output = output.into_bytes();
        let len = output.len();
        self.execute(C::OPCODE, input.as_bytes(), output, len)
    }

    /// Executes command `C`, of whose output only the status matters.
    #[inline(always)]
    pub(crate) fn command_without_output<C: Command>(&mut self, input: View<'_, C::In>) -> Result<(), PackedError> {
        self.execute(C::OPCODE, input.as_bytes(), &mut [], C::Out::SIZE)
    }

    /// Executes command `C`, of whose input `fill` sets fields, and returns its output.
    #[inline(always)]
    pub(crate) fn query<C: Command>(&mut self, fill: impl Fill<C::In>) -> Result<Buffer<C::Out>, PackedError> {
        let (mut input, mut output) = (Buffer::zeroed(), Buffer::zeroed());
        fill(&mut input.view_mut());
        self.command::<C>(input.view(), output.view_mut())?;
        Ok(output)
    }

    /// Executes command `C`, of whose input `fill` sets fields, and of whose output only the status matters.
    #[inline(always)]
    pub(crate) fn perform<C: Command>(&mut self, fill: impl Fill<C::In>) -> Result<(), PackedError> {
        let mut input = Buffer::zeroed();
        fill(&mut input.view_mut());
        self.command_without_output::<C>(input.view())
    }

    /// Executes a command that neither creates nor destroys an object. Its whole output has `output_len` bytes.
    pub(crate) fn execute(
        &mut self,
        opcode: CmdOpcode,
        head: &[u8],
        output: &mut [u8],
        output_len: usize,
    ) -> Result<(), PackedError> {
        let entry = &mut |_| 0;
        let input_len = head.len();
        self.call(CommandClass::Regular, &mut Call { opcode, head, entry, input_len, output, output_len })
    }
}

#[cfg(test)]
mod tests;

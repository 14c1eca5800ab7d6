//! The command queue: fetching commands from host memory and writing their outputs.

use core::time::Duration;

use bareverbs::platform::Instant;
use bareverbs_mlx5_spec::{
    CMD_ENTRY, CMD_INLINE, CmdDeliveryStatus, CmdHcaCap, CmdIfBox, CmdOpcode, CmdQueueEntry, EventType, MAILBOX, MAILBOX_DATA,
    PCI_CMD_XPORT, View, ViewMut,
};

use crate::config::CommandTime;
use crate::fault::Fault;
use crate::firmware::Firmware;
use crate::firmware::event_queues::Event;
use crate::registers::init_segment::{LOG_SLOTS, LOG_STRIDE};
use crate::step::StepContext;
use crate::trace::Record;

/// Maximum input or output in bytes: a page list for a region of 8 GB in pages of 4096 bytes.
const MAX_LENGTH: usize = 16 << 20;

/// Byte of an entry that carries delivery status and ownership, written last.
const STATUS_OWNER: usize = 63;

/// Doorbells that wait for the firmware.
#[derive(Clone, Debug, Default)]
pub(crate) struct CommandQueue {
    waiting: u32,
    /// The slot whose turn is next.
    next: u32,
    /// When the firmware has time for the next command.
    free_at: Instant,
    /// Outputs that are delayed.
    late: Vec<LateAnswer>,
}

/// An output that is written later.
#[derive(Clone, Debug)]
struct LateAnswer {
    due: Instant,
    answer: Answer,
}

/// A command that was executed, and what it gave.
#[derive(Clone, Debug)]
struct Answer {
    slot: u32,
    /// Where its entry lies.
    addr: u64,
    entry: [u8; CMD_ENTRY],
    /// Where its output goes, and the output; `None` if it could not be fetched or delivered.
    result: Option<(Fetched, Vec<u8>)>,
    /// Delivery status.
    delivery: u32,
    /// Whether there was a queue for command events before it was executed.
    announced: bool,
}

/// A command as it lies in memory.
#[derive(Clone, Debug)]
struct Fetched {
    input: Vec<u8>,
    /// Where the output's mailbox blocks lie.
    output_blocks: Vec<u64>,
    output_len: usize,
    token: u8,
}

fn xor(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |sum, byte| sum ^ byte)
}

/// Returns whether the signatures of a mailbox block are right: all bytes, and those after the data alone, add up to 0xff.
fn block_signed(block: &[u8]) -> bool {
    xor(block) == 0xff && block.get(MAILBOX_DATA..MAILBOX - 1).is_some_and(|control| xor(control) == 0xff)
}

fn sign_block(block: &mut [u8]) {
    if let Some(mut view) = ViewMut::<CmdIfBox>::new(block) {
        view.set(CmdIfBox::CTRL_SIGNATURE, 0).set(CmdIfBox::SIGNATURE, 0);
    }
    let control = !block.get(MAILBOX_DATA..MAILBOX - 2).map_or(0, xor);
    if let Some(mut view) = ViewMut::<CmdIfBox>::new(block) {
        view.set(CmdIfBox::CTRL_SIGNATURE, control.into());
    }
    let whole = !xor(block);
    if let Some(mut view) = ViewMut::<CmdIfBox>::new(block) {
        view.set(CmdIfBox::SIGNATURE, whole.into());
    }
}

impl CommandQueue {
    /// Takes a command doorbell.
    pub(crate) fn ring(&mut self, slots: u32) {
        self.waiting |= slots;
    }

    /// Returns when there is next something to do.
    pub(crate) fn next_due(&self, now: Instant) -> Option<Instant> {
        let next = (self.waiting != 0).then(|| self.free_at.max(now));
        self.late.iter().map(|late| late.due).chain(next).min()
    }

    /// Forgets the doorbells.
    pub(crate) fn forget(&mut self) {
        self.waiting = 0;
        self.free_at = Instant::default();
        self.late.clear();
    }

    /// Executes the next waiting command of the queue at `addr`, by the order of their slots; how many that were, 0 or 1. A
    /// command may take long, so that one is enough for a turn.
    pub(crate) fn run(&mut self, firmware: &mut Firmware, ctx: &mut StepContext<'_>, addr: u64) -> u64 {
        let now = ctx.now;
        for late in self.late.extract_if(.., |late| late.due <= now) {
            late.answer.deliver(firmware, ctx);
        }
        if self.free_at > now {
            return 0;
        }
        let slots = 1_u32 << LOG_SLOTS;
        let mut turn = (self.next..slots).chain(0..self.next);
        let Some(slot) = turn.find(|slot| self.waiting >> slot & 1 != 0) else { return 0 };
        self.waiting &= !(1 << slot);
        self.next = if self.waiting == 0 { 0 } else { (slot + 1) % slots };
        let entry = addr.wrapping_add(u64::from(slot << LOG_STRIDE));
        let Some((answer, delay)) = execute(firmware, ctx, slot, entry) else { return 0 };
        self.free_at = now.after(answer.time(&firmware.config.command_time));
        let due = self.free_at.after(delay.unwrap_or_default());
        if due > now {
            self.late.push(LateAnswer { due, answer });
        } else {
            answer.deliver(firmware, ctx);
        }
        1
    }
}

/// Executes the command in the slot at `addr`: Returns its output and how long that is delayed; `None` if there is no command.
fn execute(firmware: &mut Firmware, ctx: &mut StepContext<'_>, slot: u32, addr: u64) -> Option<(Answer, Option<Duration>)> {
    let mut entry = [0; CMD_ENTRY];
    if ctx.memory.read(addr, &mut entry).is_err() {
        ctx.note(|| format!("no memory at the command queue's slot {slot} ({addr:#x})"));
        return None;
    }
    let owned = View::<CmdQueueEntry>::new(&entry).is_some_and(|entry| entry.is_set(CmdQueueEntry::OWNERSHIP));
    if !owned {
        ctx.note(|| format!("doorbell for slot {slot}, which is not the device's"));
        return None;
    }
    let signed = firmware.caps.general(CmdHcaCap::CMDIF_CHECKSUM) != 0;
    let announced = firmware.eqs.for_type(EventType::Cmd).is_some();
    let mut delay = None;
    let mut result = None;
    let delivery = match fetch(ctx, &entry, signed) {
        Ok(fetched) => {
            let opcode = fetched.input.first_chunk().map_or(0, |code| u16::from_be_bytes(*code));
            let stuck = ctx.faults.take(|fault| (*fault == Fault::StuckCommand { opcode }).then_some(()));
            if stuck.is_some() {
                ctx.note(|| format!("the command in slot {slot} stays stuck"));
                return None;
            }
            let failed = ctx.faults.take(|fault| match fault {
                Fault::DeliveryStatus { opcode: of, status } if *of == opcode => Some(u32::from(*status)),
                _ => None,
            });
            match failed {
                Some(status) => status,
                None => {
                    let mut output = super::decode::dispatch(firmware, ctx, &fetched.input, fetched.output_len);
                    corrupt(ctx, opcode, &mut output);
                    ctx.trace(Record::Command { slot: slot as u8, input: &fetched.input, output: &output });
                    delay = ctx.faults.take(|fault| match fault {
                        Fault::LateCommand { opcode: of, delay } if *of == opcode => Some(*delay),
                        _ => None,
                    });
                    result = Some((fetched, output));
                    0
                }
            }
        }
        Err(status) => {
            ctx.note(|| format!("slot {slot}: {}", status.name()));
            status.code()
        }
    };
    Some((Answer { slot, addr, entry, result, delivery, announced }, delay))
}

/// Changes the output of a command as an armed fault says.
fn corrupt(ctx: &mut StepContext<'_>, opcode: u16, output: &mut [u8]) {
    let changed = ctx.faults.take(|fault| match fault {
        Fault::CorruptOutput { opcode: of, offset, mask } if of.is_none_or(|of| of == opcode) => Some((*offset, *mask)),
        _ => None,
    });
    let Some((offset, mask)) = changed else { return };
    let at = usize::try_from(offset).unwrap_or(usize::MAX);
    if at < output.len() && mask != 0 {
        ctx.note(|| format!("the output of command {opcode:#x} is changed at {offset}, by {mask:#x}"));
    }
    for (byte, bits) in output.iter_mut().skip(at).zip(mask.to_be_bytes()) {
        *byte ^= bits;
    }
}

impl Answer {
    /// Returns how long the firmware works on the command.
    fn time(&self, times: &CommandTime) -> Duration {
        let opcode = self.result.as_ref().and_then(|(fetched, _)| fetched.input.first_chunk());
        match opcode.and_then(|code| CmdOpcode::from_code(u16::from_be_bytes(*code).into())) {
            Some(CmdOpcode::EnableHca | CmdOpcode::InitHca) => times.start,
            _ => times.other,
        }
    }

    /// Writes the answer and hands the slot back.
    fn deliver(self, firmware: &mut Firmware, ctx: &mut StepContext<'_>) {
        let Self { slot, addr, mut entry, result, mut delivery, announced } = self;
        if let Some((fetched, output)) = result {
            let signed = firmware.caps.general(CmdHcaCap::CMDIF_CHECKSUM) != 0;
            delivery = write_output(ctx, &mut entry, &fetched, &output, signed).err().map_or(0, CmdDeliveryStatus::code);
        }
        if let Some(mut view) = ViewMut::<CmdQueueEntry>::new(&mut entry) {
            view.set(CmdQueueEntry::STATUS, delivery).set(CmdQueueEntry::OWNERSHIP, 0).set(CmdQueueEntry::SIGNATURE, 0);
        }
        let signature = !xor(&entry);
        if let Some(mut view) = ViewMut::<CmdQueueEntry>::new(&mut entry) {
            view.set(CmdQueueEntry::SIGNATURE, signature.into());
        }
        // Inline output and signature first, the byte that hands the entry back last.
        let parts = [(32, 48), (61, 62), (STATUS_OWNER, CMD_ENTRY)];
        for (from, to) in parts {
            if let Some(bytes) = entry.get(from..to)
                && ctx.memory.write(addr.wrapping_add(from as u64), bytes).is_err()
            {
                ctx.note(|| format!("the result in slot {slot} cannot be written"));
            }
        }
        // The command that creates the command event queue was started by a driver that polls, and is not announced.
        if announced && firmware.eqs.for_type(EventType::Cmd).is_some() {
            firmware.eqs.post(ctx, Event::commands(1 << slot));
        }
    }
}

fn fetch(ctx: &mut StepContext<'_>, entry: &[u8; CMD_ENTRY], signed: bool) -> Result<Fetched, CmdDeliveryStatus> {
    let view = View::<CmdQueueEntry>::new(entry).ok_or(CmdDeliveryStatus::FwErr)?;
    if view.get(CmdQueueEntry::TYPE) != PCI_CMD_XPORT {
        return Err(CmdDeliveryStatus::CmdType);
    }
    if signed && xor(entry) != 0xff {
        return Err(CmdDeliveryStatus::SignatureErr);
    }
    let length = |field, error| match usize::try_from(view.get(field)) {
        Ok(length) if (8..=MAX_LENGTH).contains(&length) => Ok(length),
        _ => Err(error),
    };
    let input_len = length(CmdQueueEntry::INPUT_LENGTH, CmdDeliveryStatus::InLength)?;
    let output_len = length(CmdQueueEntry::OUTPUT_LENGTH, CmdDeliveryStatus::OutLength)?;
    let token = view.get(CmdQueueEntry::TOKEN);
    let pointer = |at: usize| entry.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |b| u64::from_be_bytes(*b));

    let inline = view.bytes(CmdQueueEntry::COMMAND_INPUT_INLINE_DATA);
    let mut input = inline.get(..input_len.min(CMD_INLINE)).unwrap_or_default().to_vec();
    let rest = input_len.saturating_sub(CMD_INLINE);
    walk(ctx, pointer(8), rest, token, signed, CmdDeliveryStatus::InPtrAlign, |_, block| {
        input.extend_from_slice(block.bytes(CmdIfBox::MAILBOX_DATA));
    })?;
    input.truncate(input_len);

    let mut output_blocks = Vec::new();
    let rest = output_len.saturating_sub(CMD_INLINE);
    // The output blocks' signatures become right only with the output in them.
    walk(ctx, pointer(48), rest, token, false, CmdDeliveryStatus::OutPtrAlign, |addr, _| output_blocks.push(addr))?;
    Ok(Fetched { input, output_blocks, output_len, token: token as u8 })
}

/// Visits the chain of mailbox blocks that carries `bytes` bytes. Ends after as many blocks as those bytes need, regardless of
/// the pointers say, and checks that each block is the one expected.
fn walk(
    ctx: &mut StepContext<'_>,
    first: u64,
    bytes: usize,
    token: u32,
    signed: bool,
    misaligned: CmdDeliveryStatus,
    mut visit: impl FnMut(u64, View<'_, CmdIfBox>),
) -> Result<(), CmdDeliveryStatus> {
    let mut addr = first;
    for number in 0..bytes.div_ceil(MAILBOX_DATA) {
        if addr == 0 || addr & 0x1ff != 0 {
            return Err(misaligned);
        }
        let mut bytes = [0; MAILBOX];
        ctx.memory.read(addr, &mut bytes).map_err(|_| CmdDeliveryStatus::FwErr)?;
        let block = View::<CmdIfBox>::new(&bytes).ok_or(CmdDeliveryStatus::FwErr)?;
        if block.get(CmdIfBox::TOKEN) != token {
            return Err(CmdDeliveryStatus::TokenErr);
        }
        if usize::try_from(block.get(CmdIfBox::BLOCK_NUMBER)) != Ok(number) {
            return Err(CmdDeliveryStatus::BadBlockNumber);
        }
        if signed && !block_signed(&bytes) {
            return Err(CmdDeliveryStatus::SignatureErr);
        }
        visit(addr, block);
        let low = block.get(CmdIfBox::NEXT_POINTER_31_10) << 10;
        addr = u64::from(block.get(CmdIfBox::NEXT_POINTER_63_32)) << 32 | u64::from(low);
    }
    Ok(())
}

/// Writes the output into the entry (to be written later) and into the mailbox blocks.
fn write_output(
    ctx: &mut StepContext<'_>,
    entry: &mut [u8; CMD_ENTRY],
    fetched: &Fetched,
    output: &[u8],
    signed: bool,
) -> Result<(), CmdDeliveryStatus> {
    let inline = output.get(..output.len().min(CMD_INLINE)).unwrap_or_default();
    if let Some(mut view) = ViewMut::<CmdQueueEntry>::new(entry) {
        view.set_bytes(CmdQueueEntry::COMMAND_OUTPUT_INLINE_DATA, &[0; CMD_INLINE]);
        view.set_bytes(CmdQueueEntry::COMMAND_OUTPUT_INLINE_DATA, inline);
    }
    let data = output.get(CMD_INLINE..).unwrap_or_default();
    for (addr, chunk) in fetched.output_blocks.iter().zip(data.chunks(MAILBOX_DATA)) {
        ctx.memory.write(*addr, chunk).map_err(|_| CmdDeliveryStatus::FwErr)?;
        if signed {
            let mut block = [0; MAILBOX];
            ctx.memory.read(*addr, &mut block).map_err(|_| CmdDeliveryStatus::FwErr)?;
            if let Some(mut view) = ViewMut::<CmdIfBox>::new(&mut block) {
                view.set(CmdIfBox::TOKEN, fetched.token.into());
            }
            sign_block(&mut block);
            ctx.memory.write(*addr, &block).map_err(|_| CmdDeliveryStatus::FwErr)?;
        }
    }
    Ok(())
}

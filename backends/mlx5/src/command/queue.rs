//! The command queue: slots, tokens, entries.

use bareverbs::{DmaMemory, OutOfRange};
use bareverbs_mlx5_spec::{CMD_ENTRY, CMD_INLINE, CmdQueueEntry, PCI_CMD_XPORT, ViewMut};

use super::mailbox::xor_of;

/// Byte of an entry that contains delivery status and owner.
const STATUS_OWN: usize = 63;

/// Which slots a command may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandClass {
    /// Anything but pages. One slot is always left for pages.
    Regular,
    /// Pages of the firmware, which another command may be waiting for.
    Pages,
}

/// The command queue in memory. A slot is reserved from the command until its completion, also after a timeout.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CommandQueue {
    at: usize,
    log_stride: u32,
    slots: u32,
    reserved: u32,
    token: u8,
}

impl CommandQueue {
    /// Returns a queue at byte `at` with `1 << log_size` slots, at most 32.
    pub(crate) const fn new(at: usize, log_size: u32, log_stride: u32) -> Self {
        Self { at, log_stride, slots: 1 << log_size, reserved: 0, token: 0 }
    }

    /// Reserves a slot: the highest that is free for pages, the lowest for other commands, if another one stays free.
    pub(crate) fn reserve(&mut self, class: CommandClass) -> Option<u32> {
        let mut free = (0..self.slots).filter(|slot| self.reserved & (1 << slot) == 0);
        let slot = match class {
            CommandClass::Pages => free.next_back(),
            CommandClass::Regular => free.next().filter(|_| free.next().is_some()),
        }?;
        self.reserved |= 1 << slot;
        Some(slot)
    }

    /// Ends a reservation.
    pub(crate) const fn release(&mut self, slot: u32) {
        self.reserved &= !(1 << (slot & 31));
    }

    /// Returns a token that is not zero and differs from the last one.
    pub(crate) const fn next_token(&mut self) -> u8 {
        self.token = if self.token == u8::MAX { 1 } else { self.token + 1 };
        self.token
    }

    const fn entry(&self, slot: u32) -> usize {
        self.at + ((slot as usize) << self.log_stride)
    }

    /// Writes the entry of a command, signed and owned by the device.
    pub(crate) fn fill(&self, memory: &mut impl DmaMemory, slot: u32, post: &Post) -> Result<(), OutOfRange> {
        let mut entry = [0; CMD_ENTRY];
        ViewMut::<CmdQueueEntry>::of(&mut entry)
            .set(CmdQueueEntry::TYPE, PCI_CMD_XPORT)
            .set(CmdQueueEntry::INPUT_LENGTH, post.input_len)
            .set(CmdQueueEntry::INPUT_MAILBOX_POINTER_63_32, (post.input_addr >> 32) as u32)
            .set(CmdQueueEntry::INPUT_MAILBOX_POINTER_31_9, post.input_addr as u32 >> 9)
            .set_bytes(CmdQueueEntry::COMMAND_INPUT_INLINE_DATA, &post.inline)
            .set(CmdQueueEntry::OUTPUT_MAILBOX_POINTER_63_32, (post.output_addr >> 32) as u32)
            .set(CmdQueueEntry::OUTPUT_MAILBOX_POINTER_31_9, post.output_addr as u32 >> 9)
            .set(CmdQueueEntry::OUTPUT_LENGTH, post.output_len)
            .set(CmdQueueEntry::TOKEN, u32::from(post.token))
            .set(CmdQueueEntry::OWNERSHIP, 1);
        let sum = !xor_of(&entry);
        ViewMut::<CmdQueueEntry>::of(&mut entry).set(CmdQueueEntry::SIGNATURE, u32::from(sum));
        memory.write(self.entry(slot), &entry)
    }

    /// Returns the delivery status and owner bit of a slot.
    pub(crate) fn status_own(&self, memory: &impl DmaMemory, slot: u32) -> Result<u8, OutOfRange> {
        memory.read_u8(self.entry(slot) + STATUS_OWN)
    }

    /// Returns the first bytes of a slot's output.
    pub(crate) fn output(&self, memory: &impl DmaMemory, slot: u32) -> Result<[u8; CMD_INLINE], OutOfRange> {
        let mut bytes = [0; CMD_INLINE];
        memory.read(self.entry(slot) + CmdQueueEntry::COMMAND_OUTPUT_INLINE_DATA.offset(), &mut bytes)?;
        Ok(bytes)
    }

    /// Returns whether the signature of a slot is right.
    pub(crate) fn verify(&self, memory: &impl DmaMemory, slot: u32) -> Result<bool, OutOfRange> {
        let mut entry = [0; CMD_ENTRY];
        memory.read(self.entry(slot), &mut entry)?;
        Ok(xor_of(&entry) == 0xff)
    }
}

/// Contents of a command queue entry.
pub(crate) struct Post {
    /// First bytes of the input, opcode included.
    pub(crate) inline: [u8; CMD_INLINE],
    /// Bytes of the whole input.
    pub(crate) input_len: u32,
    /// Device address of the rest of the input, 0 for none.
    pub(crate) input_addr: u64,
    /// Bytes of the whole output.
    pub(crate) output_len: u32,
    /// Device address of the rest of the output, 0 for none.
    pub(crate) output_addr: u64,
    /// Token of entry and blocks.
    pub(crate) token: u8,
}

//! The command queue: slots, tokens, entries.

use bareverbs::{DmaMemory, OutOfRange};
use bareverbs_mlx5_spec::{CMD_ENTRY, CMD_INLINE, CmdQueueEntry, PCI_CMD_XPORT, ViewMut};

use super::mailbox::xor_of;
use crate::dma::arena::PageUse;

/// Byte of an entry that contains delivery status and owner.
const STATUS_OWN: usize = 63;

/// Commands of which one at a time is in progress, in a slot and mailboxes of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandClass {
    /// Anything but pages.
    Regular,
    /// Pages of the firmware, for which a regular command may be waiting.
    Pages,
}

impl CommandClass {
    /// Returns the use of the pages with its mailboxes.
    pub(super) const fn mailboxes(self) -> PageUse {
        match self {
            Self::Regular => PageUse::Mailboxes,
            Self::Pages => PageUse::PageMailboxes,
        }
    }

    /// Returns the number of mailbox blocks that stay allocated for outputs, and for inputs: no command with a short list fails
    /// for lack of memory.
    pub(super) const fn blocks(self) -> usize {
        match self {
            // The 4096 bytes of a capability page.
            Self::Regular => 8,
            Self::Pages => 2,
        }
    }
}

/// The command queue in memory.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CommandQueue {
    at: usize,
    log_stride: u32,
    slots: u32,
    token: u8,
}

impl CommandQueue {
    /// Returns a queue at byte `at` with `1 << log_size` slots, at most 32.
    pub(crate) const fn new(at: usize, log_size: u32, log_stride: u32) -> Self {
        Self { at, log_stride, slots: 1 << log_size, token: 0 }
    }

    /// Returns the slot of a class: the last one for pages, same as in Linux.
    pub(crate) const fn slot(&self, class: CommandClass) -> u32 {
        match class {
            CommandClass::Regular => 0,
            CommandClass::Pages => self.slots.saturating_sub(1),
        }
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

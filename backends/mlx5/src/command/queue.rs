//! The command queue: slots, tokens, entries.

use bareverbs::platform::{DmaMemory, OutOfRange};
use bareverbs_mlx5_spec::{Buffer, CMD_INLINE, CmdQueueEntry};

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
    /// Returns the pages of its mailboxes, and how many blocks stay allocated for outputs, and for inputs: no command with a short list
    /// fails for lack of memory.
    pub(super) const fn mailboxes(self) -> (PageUse, usize) {
        match self {
            // The 4096 bytes of a capability page.
            Self::Regular => (PageUse::Mailboxes, 8),
            Self::Pages => (PageUse::PageMailboxes, 2),
        }
    }
}

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

    pub(crate) const fn next_token(&mut self) -> u8 {
        self.token = if self.token == u8::MAX { 1 } else { self.token + 1 };
        self.token
    }

    const fn entry(&self, slot: u32) -> usize {
        self.at + ((slot as usize) << self.log_stride)
    }

    /// Signs the entry of a command and writes it.
    pub(crate) fn write(
        &self,
        memory: &mut impl DmaMemory,
        slot: u32,
        mut entry: Buffer<CmdQueueEntry>,
    ) -> Result<(), OutOfRange> {
        let sum = !xor_of(entry.as_bytes());
        entry.view_mut().set(CmdQueueEntry::SIGNATURE, u32::from(sum));
        memory.write(self.entry(slot), entry.as_bytes())
    }

    pub(crate) fn status_own(&self, memory: &impl DmaMemory, slot: u32) -> Result<u8, OutOfRange> {
        memory.read_u8(self.entry(slot) + STATUS_OWN)
    }

    pub(crate) fn output(&self, memory: &impl DmaMemory, slot: u32) -> Result<[u8; CMD_INLINE], OutOfRange> {
        let mut bytes = [0; CMD_INLINE];
        memory.read(self.entry(slot) + CmdQueueEntry::COMMAND_OUTPUT_INLINE_DATA.offset(), &mut bytes)?;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 255 commands in a row have tokens of their own, none of which is 0.
    #[test]
    fn tokens_come_round_without_zero() {
        let mut queue = CommandQueue::new(0, 2, 6);
        for _ in 0..3 {
            for token in 1..=u8::MAX {
                assert_eq!(queue.next_token(), token);
            }
        }
    }

    /// Each size and stride that a device may have in a page: slots lie one behind the other, and the last is that of pages.
    #[test]
    fn slots_lie_one_behind_the_other() {
        for log_size in 0..=5 {
            for log_stride in 6..=12 - log_size {
                let queue = CommandQueue::new(0x3000, log_size, log_stride);
                let mut at = 0x3000;
                for slot in 0..32 >> (5 - log_size) {
                    assert_eq!(queue.entry(slot), at);
                    at += 64 << (log_stride - 6);
                }
                assert_eq!(queue.slot(CommandClass::Regular), 0);
                assert_eq!(queue.entry(queue.slot(CommandClass::Pages)) + (64 << (log_stride - 6)), at, "the last");
                assert!(at <= 0x4000);
            }
        }
    }
}

//! The commands that timed out, and what to do when they complete.

use core::num::NonZeroU32;

use bareverbs_mlx5_spec::CmdOpcode;
use heapless::Vec;

use super::mailbox::ContiguousBlocks;
use crate::dma::object_memory::ObjectMemory;

/// Maximum number of slots of a command queue: the bits of its doorbell.
pub(super) const SLOTS: usize = 32;
/// Maximum number of objects that were created late and wait for their destruction. More of them wait in their slots.
const ORPHANS: usize = 4;
/// Maximum number of recorded outcomes of late DESTROY commands. More of them wait in their slots.
const OUTCOMES: usize = 4;

/// What the driver does when a command that timed out completes after all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LateAction {
    /// Nothing.
    None,
    /// An object without an owner was created: destroy it, then free its memory.
    Destroy {
        /// The command that destroys it.
        with: CmdOpcode,
        /// Memory of the object.
        memory: ObjectMemory,
    },
    /// An object was destroyed: record the outcome for the next attempt.
    RecordOutcome,
    /// A queue pair was modified. It is not destroyed before.
    Modified {
        /// Its number.
        number: u32,
    },
    /// An object without an owner was destroyed: free its memory.
    Free {
        /// Memory of the object.
        memory: ObjectMemory,
    },
    /// The firmware has the offered pages.
    PagesGiven {
        /// For this function.
        function: u16,
    },
    /// The firmware returned pages.
    PagesReturned {
        /// For this function.
        function: u16,
    },
}

/// Identifies a command that timed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CommandId(NonZeroU32);

impl CommandId {
    /// Returns the id of the `count`-th command that timed out, in `slot`. Ids repeat after 2^26 of them.
    pub(super) fn new(count: u32, slot: u32) -> Self {
        Self(NonZeroU32::MIN | count << 6 | (slot & 31) << 1)
    }

    /// Returns the slot of the command.
    pub(crate) const fn slot(self) -> u32 {
        self.0.get() >> 1 & 31
    }
}

/// A command that timed out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimedOutCommand {
    pub(super) command_id: CommandId,
    pub(super) opcode: u16,
    /// Bytes of the output that the caller reads.
    pub(super) output_len: u16,
    /// Where the output lies.
    pub(super) output: ContiguousBlocks,
    pub(super) action: LateAction,
}

/// An object of the device without an owner.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Orphan {
    pub(super) destroy: CmdOpcode,
    pub(super) number: u32,
    pub(super) memory: ObjectMemory,
}

/// The commands that timed out, and what is left of them after they completed.
#[derive(Debug)]
pub(super) struct TimedOutCommands {
    /// Those that have not completed.
    pub(super) by_slot: [Option<TimedOutCommand>; SLOTS],
    /// Outcomes of DESTROY commands that completed late, for the next attempt: whether the object is gone.
    pub(super) outcomes: Vec<(CommandId, bool), OUTCOMES>,
    /// Objects that were created late, until they are destroyed.
    pub(super) orphans: Vec<Orphan, ORPHANS>,
    /// Number of ids in use so far.
    pub(super) command_ids: u32,
}

impl TimedOutCommands {
    /// Creates an empty table.
    pub(super) const fn new() -> Self {
        // Field by field: `Default` of an array is a store for each element.
        Self { by_slot: [None; SLOTS], outcomes: Vec::new(), orphans: Vec::new(), command_ids: 0 }
    }

    /// Returns the number of slots whose commands timed out and have not completed.
    pub(super) fn count(&self) -> u32 {
        self.by_slot.iter().flatten().count() as u32
    }

    /// Returns a command, if it has not completed.
    pub(super) fn get(&self, command_id: CommandId) -> Option<TimedOutCommand> {
        let timed_out = self.by_slot.get(command_id.slot() as usize)?;
        timed_out.filter(|timed_out| timed_out.command_id == command_id)
    }
}

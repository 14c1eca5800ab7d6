//! What came of an input.

use std::collections::BTreeSet;

/// Calls that have succeeded, of kinds that only some inputs have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Masked atomics that completed with success.
    pub masked_atomics: u64,
    /// Regions that were changed (`rereg_mr`, `rereg_mr_buffer`).
    pub changed_regions: u64,
    /// Completion queues whose moderation was changed.
    pub moderations: u64,
    /// Queue pairs that were put into a multicast group or taken out of one.
    pub groups: u64,
    /// Entries of the GID table that were set or emptied.
    pub gids: u64,
    /// Frames that were sent.
    pub frames_sent: u64,
    /// Frames that were received.
    pub frames_received: u64,
}

/// What came of an input, so that a test of many can see that they did something.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Completions that were polled.
    pub completions: u64,
    /// Those of them with success.
    pub successes: u64,
    /// Writes of the device that were changed.
    pub lies: u64,
    /// Calls that did not succeed.
    pub refused: u64,
    /// What has succeeded.
    pub done: Done,
    /// Opcodes of the commands that the driver has sent.
    pub opcodes: BTreeSet<u16>,
    /// Whether a completion queue had entries of 128 bytes.
    pub large_completions: bool,
    /// Whether the device came up.
    pub is_up: bool,
    /// Whether it was torn down without an error.
    pub is_down: bool,
}

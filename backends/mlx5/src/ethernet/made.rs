//! The objects of the queues for frames that exist.

use bareverbs_mlx5_spec::CmdOpcode;
use heapless::Vec;

use crate::dma::object_memory::ObjectMemory;

/// What was made, and what ends it.
pub(crate) enum Made {
    /// An object: the command that destroys it, its number, its memory.
    Object(CmdOpcode, u32, ObjectMemory),
    /// The flow table by its number; a group of its rules by that and its own; a rule by that and its index.
    Table(u32),
    Group(u32, u32),
    Rule(u32, u32),
    /// Broadcasts are in the port's multicast list on behalf of the queues.
    Listing,
    /// The port's filter is open for groups on behalf of the queues.
    Admission,
}

/// What exists, in the order in which it was made.
pub(crate) type FrameObjects = Vec<Made, 18>;

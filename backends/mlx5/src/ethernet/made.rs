//! The objects of the queues for frames that exist.

use heapless::Vec;

use crate::command::object::Object;

/// What was made, and what ends it.
pub(crate) enum Made {
    /// An object.
    Object(Object),
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

//! The objects of the queues for frames that exist.

use bareverbs_mlx5_spec::CmdOpcode;
use heapless::Vec;

use crate::object::Object;

/// What was made, and what ends it.
pub(crate) enum Made {
    /// An object.
    Object(Object),
    /// The flow table, a group of its rules, or a rule: the command that ends it, the table, the number of the group, the index of the rule.
    Flow(CmdOpcode, [u32; 3]),
    /// Broadcasts are in the port's multicast list on behalf of the queues.
    Listing,
    /// The port's filter is open for groups on behalf of the queues.
    Admission,
}

/// What exists, in the order in which it was made.
pub(crate) type FrameObjects = Vec<Made, 18>;

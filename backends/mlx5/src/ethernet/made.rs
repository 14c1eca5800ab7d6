//! The objects of the queues for frames that exist.

use bareverbs_mlx5_spec::CmdOpcode;
use heapless::Vec;

use crate::dma::object_memory::ObjectMemory;

/// What was made, and what ends it.
pub(crate) enum Made {
    /// An object with the command that destroys it, and its memory.
    Object {
        destroy: CmdOpcode,
        number: u32,
        memory: ObjectMemory,
    },
    /// A completion queue, which the driver counts.
    Cq {
        number: u32,
        memory: ObjectMemory,
    },
    /// The memory of the buffers.
    Buffers(ObjectMemory),
    /// The flow table, a group of its rules, and a rule.
    Table {
        table: u32,
    },
    Group {
        table: u32,
        group: u32,
    },
    Rule {
        table: u32,
        index: u32,
    },
    /// Broadcasts are in the port's multicast list on behalf of the queues.
    Listing,
    /// The port's filter is open for groups on behalf of the queues.
    Admission,
}

/// What exists, in the order in which it was made.
#[derive(Default)]
pub(crate) struct FrameObjects(Vec<Made, 18>);

impl FrameObjects {
    pub(crate) fn add(&mut self, made: Made) {
        let _ = self.0.push(made);
    }

    pub(crate) fn take_last(&mut self) -> Option<Made> {
        self.0.pop()
    }
}

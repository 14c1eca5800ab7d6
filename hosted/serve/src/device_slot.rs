//! One device of a server, and where the lines about it go.

use bareverbs_sim::{Device, DeviceCounts};

use crate::client_memory::Reach;
use crate::record::{Recording, Several};
use crate::trace::Sink;

/// One device.
pub(crate) struct DeviceSlot {
    pub(crate) device: Device<Reach, Several>,
    pub(crate) outputs: LineOutputs,
}

/// Where the lines about a device go. A slow file makes the thread that lets the device work wait.
#[derive(Default)]
pub(crate) struct LineOutputs {
    pub(crate) trace: Option<Sink>,
    pub(crate) recording: Option<Recording>,
}

impl LineOutputs {
    /// Whether the device can work without waiting for a file.
    pub(crate) fn have_room(&self) -> bool {
        self.trace.as_ref().is_none_or(Sink::has_room) && self.recording.as_ref().is_none_or(Recording::has_room)
    }
}

impl DeviceSlot {
    /// What its client has not given back, for people.
    pub(crate) fn left(&self) -> String {
        let counts = self.device.counts();
        let DeviceCounts { engine, eqs, uars, pds, xrcds, user_contexts, user_memories, pages_held, pages_lost } = counts;
        let named = [
            (engine.qps, "queue pairs"),
            (engine.cqs, "completion queues"),
            (engine.srqs, "shared receive queues"),
            (engine.mkeys, "memory keys"),
            (engine.device_memories, "pieces of device memory"),
            (eqs, "event queues"),
            (pds, "protection domains"),
            (xrcds, "XRC domains"),
            (uars, "UARs"),
            (engine.memberships, "multicast memberships"),
            (user_contexts, "user contexts"),
            (user_memories, "user memory objects"),
            (pages_held + pages_lost, "pages"),
        ];
        let left: Vec<String> =
            named.iter().filter(|(count, _)| *count > 0).map(|(count, name)| format!("{count} {name}")).collect();
        if left.is_empty() { "nothing left".into() } else { format!("left: {}", left.join(", ")) }
    }

    /// As at power-on: the client is gone, or asks for it.
    pub(crate) fn reset(&mut self) {
        self.device.reset();
        self.device.take_interrupts();
    }
}

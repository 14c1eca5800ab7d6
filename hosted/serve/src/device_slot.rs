//! One device of a server, and the outputs of its trace and recording.

use bareverbs_sim::{Device, DeviceCounts};

use crate::client_memory::ClientDma;
use crate::record::{Recording, Several};
use crate::trace::Sink;

/// One device.
pub(crate) struct DeviceSlot {
    pub(crate) device: Device<ClientDma, Several>,
    pub(crate) outputs: LineOutputs,
}

/// Outputs of the trace and the recording of a device. A slow file blocks the thread that runs the device.
#[derive(Default)]
pub(crate) struct LineOutputs {
    pub(crate) trace: Option<Sink>,
    pub(crate) recording: Option<Recording>,
}

impl LineOutputs {
    /// Returns whether the device can work without waiting for a file.
    pub(crate) fn have_room(&self) -> bool {
        self.trace.as_ref().is_none_or(Sink::has_room) && self.recording.as_ref().is_none_or(Recording::has_room)
    }
}

impl DeviceSlot {
    /// Returns the objects and pages that its client has not freed, as text.
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

    /// Resets the device to the state after power-on, after its client has disconnected or at its request.
    pub(crate) fn reset(&mut self) {
        self.device.reset();
        self.device.take_interrupts();
    }
}

//! What a device counts: live objects, and what happened since power-on.

use crate::config::{BROADCAST, is_group_address};

/// The device's own objects and what it was given: for leak tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounts {
    /// Keys and queues.
    pub engine: EngineCounts,
    /// Event queues.
    pub eqs: usize,
    /// User access regions.
    pub uars: usize,
    /// Protection domains.
    pub pds: usize,
    /// XRC domains.
    pub xrcds: usize,
    /// User contexts.
    pub user_contexts: usize,
    /// User memory objects.
    pub user_memories: usize,
    /// Pages that the firmware has.
    pub pages_held: usize,
    /// Pages that the firmware still had when the driver disabled the device.
    pub pages_lost: usize,
}

/// What happened since power-on: for reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceStats {
    /// Firmware commands executed.
    pub commands: u64,
    /// Events that found no queue or no room.
    pub events_dropped: u64,
    /// Interrupts raised.
    pub interrupts: u64,
    /// Writes to UAR pages.
    pub doorbells: u64,
    /// Frames sent.
    pub frames_sent: u64,
    /// Frames received.
    pub frames_received: u64,
    /// What the transport counted since the driver last brought the device up.
    pub engine: EngineStats,
}

/// How many objects there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineCounts {
    /// Memory keys, windows included.
    pub mkeys: usize,
    /// Memory windows that are bound.
    pub bound_windows: usize,
    /// Allocations of device memory.
    pub device_memories: usize,
    /// Completion queues.
    pub cqs: usize,
    /// Queue pairs.
    pub qps: usize,
    /// Shared receive queues of all kinds.
    pub srqs: usize,
    /// Memberships of queue pairs in multicast groups.
    pub memberships: usize,
}

/// Packets or frames, and their bytes: from LRH to ICRC, or of an Ethernet frame from the addresses on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub octets: u64,
}

impl Traffic {
    /// Counts a packet of `octets` bytes.
    pub(crate) fn count(&mut self, octets: usize) {
        self.packets += 1;
        self.octets += octets as u64;
    }

    /// Returns the sum of both.
    pub(crate) fn and(self, other: Self) -> Self {
        Self { packets: self.packets + other.packets, octets: self.octets + other.octets }
    }
}

/// Frames of an Ethernet port that are no packets of RoCE, in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameTraffic {
    /// For one station.
    pub unicast: Traffic,
    /// For groups, but not for all stations.
    pub multicast: Traffic,
    /// For all stations.
    pub broadcast: Traffic,
}

impl FrameTraffic {
    /// Returns the counts of frames to this MAC address.
    pub(crate) fn counts_of(&mut self, destination: [u8; 6]) -> &mut Traffic {
        if destination == BROADCAST {
            &mut self.broadcast
        } else if is_group_address(destination) {
            &mut self.multicast
        } else {
            &mut self.unicast
        }
    }

    /// Returns the sum of all.
    pub(crate) fn all(self) -> Traffic {
        self.unicast.and(self.multicast).and(self.broadcast)
    }
}

/// What went over the wire and what went wrong on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineStats {
    /// Packets sent to one port.
    pub sent: Traffic,
    /// Packets sent to multicast groups.
    pub sent_multicast: Traffic,
    /// Packets received and understood.
    pub received: Traffic,
    /// Packets received for multicast groups with a member here.
    pub received_multicast: Traffic,
    /// Frames of an Ethernet port that its queues sent.
    pub frames_sent: FrameTraffic,
    /// Frames that came to an Ethernet port and were no packets of RoCE for it.
    pub frames_received: FrameTraffic,
    /// Frames for other stations that came to an Ethernet port, whose filter dropped them.
    pub frames_for_others: Traffic,
    /// Notifications of congestion sent, for marked RoCEv2 packets.
    pub notifications_sent: u64,
    /// Notifications of congestion received, which change nothing.
    pub notifications_received: u64,
    /// Frames that were no packets, or for no queue pair here.
    pub dropped: u64,
    /// Those of them that were no packets.
    pub malformed: u64,
    /// Datagrams for the agent of subnet management for which there was no room.
    pub subnet_management_dropped: u64,
    /// Times that a requester went back and sent again.
    pub retries: u64,
    /// Sequence errors that peers reported.
    pub sequence_errors: u64,
    /// Times that a peer had no receive.
    pub receiver_not_ready: u64,
    /// Requests that came again.
    pub duplicates: u64,
    /// Packets for a queue pair of another partition (P_Key violations).
    pub pkey_violations: u64,
    /// Datagrams with another queue key than that of their queue pair (Q_Key violations).
    pub qkey_violations: u64,
}

/// What the queue pairs of one set of counters met, since it was last cleared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounts {
    /// RDMA WRITE requests received.
    pub writes: u64,
    /// RDMA READ requests received.
    pub reads: u64,
    /// Atomic requests received.
    pub atomics: u64,
    /// Messages for which no receive was posted.
    pub out_of_buffer: u64,
    /// Requests with a gap before them.
    pub out_of_sequence: u64,
    /// Requests that came again.
    pub duplicates: u64,
    /// Receiver not ready NAKs received.
    pub receiver_not_ready: u64,
    /// Sequence error NAKs received.
    pub sequence_errors: u64,
    /// Responses that a later one showed to be missing.
    pub missing_responses: u64,
    /// Acknowledge timers that ran out.
    pub timeouts: u64,
}

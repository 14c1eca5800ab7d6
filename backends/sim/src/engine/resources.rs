//! What all queue pairs share, and the context of one step of their work.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};

use super::config::EngineConfig;
use super::cq::CqTable;
use super::event::EngineEvent;
use super::link::PortLink;
use super::management_requests::ManagementRequests;
use super::memory::key::KeyTable;
use super::srq::SrqTable;
use crate::config::MIN_ETHERNET_FRAME;
use crate::fabric::frame_pool::{FramePool, MAX_FRAMES_PER_TURN};
use crate::management::Violation;
use crate::packet::Packet;
use crate::registry::Registry;
use crate::stats::{EngineStats, QueueCounts};
use crate::step::StepContext;
use crate::trace::Record;

/// Maximum frames that wait for the wire: beyond it queue pairs send nothing.
pub(in crate::engine) const MAX_FRAMES: usize = 1024;

/// What all queue pairs share.
#[derive(Debug)]
pub(in crate::engine) struct QpResources {
    pub(in crate::engine) config: EngineConfig,
    /// The link layer of the port.
    pub(in crate::engine) port: PortLink,
    pub(in crate::engine) registry: Registry,
    pub(in crate::engine) keys: KeyTable,
    pub(in crate::engine) cqs: CqTable,
    pub(in crate::engine) srqs: SrqTable,
    pub(in crate::engine) events: VecDeque<EngineEvent>,
    /// Frames for the wire, and those for this device itself.
    pub(in crate::engine) frames: VecDeque<Vec<u8>>,
    /// Requests to the management agents of the port.
    pub(in crate::engine) management_requests: ManagementRequests,
    pub(in crate::engine) loopback: VecDeque<Vec<u8>>,
    /// Packets with wrong keys that were not yet reported to the subnet manager: the first of each kind.
    pub(in crate::engine) violations: Vec<Violation>,
    /// The buffer of the payload that was sent last, for the next one: a fresh one would be filled with zeros first.
    payload: Vec<u8>,
    /// Buffers for frames.
    pub(in crate::engine) frame_pool: FramePool,
    pub(in crate::engine) stats: EngineStats,
    /// Counts of queue pairs, by [`Qpc::COUNTER_SET_ID`](bareverbs_mlx5_spec::Qpc::COUNTER_SET_ID), which has 8 bits.
    pub(in crate::engine) queue_counts: BTreeMap<u8, QueueCounts>,
}

impl QpResources {
    pub(in crate::engine) fn new(config: EngineConfig, port: PortLink, registry: Registry) -> Self {
        Self {
            config,
            port,
            registry,
            keys: KeyTable::default(),
            cqs: CqTable::default(),
            srqs: SrqTable::default(),
            events: VecDeque::new(),
            frames: VecDeque::new(),
            management_requests: ManagementRequests::default(),
            loopback: VecDeque::new(),
            violations: Vec::new(),
            payload: Vec::new(),
            frame_pool: FramePool::new(MAX_FRAMES_PER_TURN),
            stats: EngineStats::default(),
            queue_counts: BTreeMap::new(),
        }
    }

    /// Remembers a packet with a wrong key.
    pub(in crate::engine) fn report(&mut self, violation: Violation) {
        if self.violations.iter().all(|other| other.number() != violation.number()) {
            self.violations.push(violation);
        }
    }

    /// Returns whether more frames may wait.
    pub(in crate::engine) fn has_room(&self) -> bool {
        self.frames.len() < MAX_FRAMES && self.loopback.len() < MAX_FRAMES
    }
}

/// One step of a queue pair's work: what all queue pairs share, and the step's context.
pub(in crate::engine) struct QpStep<'a, 'e> {
    pub(in crate::engine) shared: &'a mut QpResources,
    pub(in crate::engine) ctx: &'a mut StepContext<'e>,
}

impl QpStep<'_, '_> {
    /// Returns a buffer of `len` bytes for the payload of a packet. What is in it is left from an earlier one: all of it must
    /// be written.
    pub(in crate::engine) fn payload(&mut self, len: usize) -> Vec<u8> {
        let mut payload = std::mem::take(&mut self.shared.payload);
        payload.resize(len, 0);
        payload
    }

    /// Sends a packet; one to this port comes back without the wire.
    pub(in crate::engine) fn transmit(&mut self, packet: Packet<'_>) {
        if !self.shared.port.may_send(&packet.link) {
            self.ctx.note(|| "packet not sent: the port has no such source address".to_owned());
            return;
        }
        let mut frame = self.shared.frame_pool.take(packet.transport.encoded_len());
        packet.encode_into(&mut frame);
        if self.shared.port.is_ethernet() {
            // A message without bytes makes a shorter packet than Ethernet has frames.
            frame.resize(frame.len().max(MIN_ETHERNET_FRAME), 0);
        }
        self.ctx.trace(Record::Sent { bytes: &frame });
        if !packet.link.is_multicast() {
            self.shared.stats.sent.count(frame.len());
        } else {
            self.shared.stats.sent_multicast.count(frame.len());
            // Members may be here as well as elsewhere.
            self.shared.loopback.push_back(frame.clone());
        }
        let queue = if self.shared.port.loops_back(&packet.link) { &mut self.shared.loopback } else { &mut self.shared.frames };
        queue.push_back(frame);
        if let Cow::Owned(payload) = packet.transport.payload {
            self.shared.payload = payload;
        }
    }
}

//! The half of the device that moves data: memory keys, completion queues, queue pairs and their transport.
//!
//! The other half (registers, firmware commands, event queues) creates and modifies the objects here by their contexts,
//! passes on doorbells and frames, and takes frames and events away. Nothing here waits, reads a clock or starts a
//! thread: [`Engine::advance`] does work that is due, up to a bound.

mod config;
mod cq;
mod credit;
mod failed_queues;
mod management_datagram;
mod memory;
mod multicast;
mod objects;
mod page_source;
mod psn;
mod qp;
mod requester;
mod responder;
mod ring;
mod srq;
mod work;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use bareverbs::Instant;
use bareverbs_mlx5_spec::{CqArm, EventType, QpcState, View};

use crate::env::Env;
use crate::packet::{Addressing, Packet, SUBNET_QPN};
use crate::registry::{FIRST_QPN, Registry, Resource};
use crate::spare_frames::SpareFrames;
use crate::trace::Record;

use failed_queues::FailedQueues;
use multicast::Groups;
use qp::Qp;
use work::{MAX_FRAMES, QpResources, Work};

pub use config::{EngineConfig, EngineCounts, EngineEvent, EngineStats, QueueCounts, Traffic};
pub(crate) use memory::device_memory::{LOG_MAX_ALIGNMENT, LOG_MIN_ALLOCATION};
pub(crate) use memory::key::LOG_MAX_KLMS;
pub(crate) use multicast::{LOG_MAX_GROUPS, MAX_MEMBERS};
pub use page_source::PageSource;
pub use srq::{SrqKind, SrqSpec};

/// Keys, queues and transport of one device.
#[derive(Debug)]
pub struct Engine {
    qps: BTreeMap<u32, Qp>,
    groups: Groups,
    shared: QpResources,
    /// Queue pairs that can go on at once.
    busy: BTreeSet<u32>,
    /// The number of the queue pair whose turn is next, 0 if the last turn came to all.
    next_busy: u32,
    /// Timers of queue pairs, and which each has.
    timers: BTreeSet<(Instant, u32)>,
    timer_of: BTreeMap<u32, Instant>,
    /// Queue pairs in error that have a receive ring of their own, where more may be posted.
    failed: FailedQueues,
    /// Management queue pairs: the number on the wire, and here.
    managers: BTreeSet<(u32, u32)>,
}

impl Engine {
    /// A device without objects.
    pub fn new(config: EngineConfig) -> Self {
        let registry = Registry::new(&config.limits, config.memory_limit);
        Self::with_registry(config, registry)
    }

    fn with_registry(config: EngineConfig, registry: Registry) -> Self {
        Self {
            qps: BTreeMap::new(),
            groups: Groups::default(),
            shared: QpResources::new(config, registry),
            busy: BTreeSet::new(),
            next_busy: 0,
            timers: BTreeSet::new(),
            timer_of: BTreeMap::new(),
            failed: FailedQueues::default(),
            managers: BTreeSet::new(),
        }
    }

    /// Replaces the configuration; objects stay, and so does how many there may be.
    pub fn configure(&mut self, config: EngineConfig) {
        self.shared.registry.set_memory_limit(config.memory_limit);
        self.shared.config = config;
    }

    /// The configuration in force.
    pub fn config(&self) -> &EngineConfig {
        &self.shared.config
    }

    /// What went over the wire since the last reset.
    pub fn stats(&self) -> EngineStats {
        self.shared.stats
    }

    /// What the queue pairs of a set of counters met since it was last cleared.
    pub fn queue_counts(&self, set: u8) -> QueueCounts {
        self.shared.queue_counts.get(&set).copied().unwrap_or_default()
    }

    /// Lets a set of counters begin at zero.
    pub fn clear_queue_counts(&mut self, set: u8) {
        self.shared.queue_counts.remove(&set);
    }

    /// Forgets all objects, frames, events and counts.
    pub fn reset(&mut self) {
        let none = Registry::new(&self.shared.config.limits, 0);
        let mut registry = std::mem::replace(&mut self.shared.registry, none);
        registry.clear(&self.shared.config.limits);
        *self = Self::with_registry(self.shared.config.clone(), registry);
    }

    /// Takes a send doorbell (the 8 bytes written): the send queue will run up to its doorbell record. `false` if there
    /// is no such queue.
    pub fn ring_send(&mut self, env: &mut Env<'_>, qpn: u32, doorbell: [u8; 8]) -> bool {
        let Some(qp) = self.qps.get_mut(&qpn).filter(|qp| qp.context.sq.is_some()) else { return false };
        if qp.context.state == QpcState::Rst {
            // The reset and the doorbell may come from different threads, and a late doorbell must not count after the next start.
            env.note(|| format!("doorbell of QP {qpn:#x}, which is reset"));
            return true;
        }
        let mut work = Work { shared: &mut self.shared, env };
        match qp.context.record(&work) {
            Some((_, posted)) => {
                qp.requester.post(posted);
                qp.requester.audit_doorbell(&qp.context, &mut work, doorbell);
            }
            None => qp.context.fail(&mut work, Some(EventType::WqCatasError)),
        }
        self.busy.insert(qpn);
        true
    }

    /// Arms a completion queue. `false` if there is no such queue.
    pub fn arm_cq(&mut self, env: &mut Env<'_>, cqn: u32, arm: View<'_, CqArm>) -> bool {
        let armed = self.shared.cqs.arm(cqn, env.now, arm, &mut self.shared.events);
        if !armed {
            env.note(|| format!("CQ {cqn:#x} armed, there is none"));
        }
        armed
    }

    /// Takes a frame (LRH to ICRC) from the wire. Answers are made by [`Engine::advance`].
    pub fn receive(&mut self, env: &mut Env<'_>, frame: &[u8]) {
        env.trace(Record::Received { bytes: frame });
        // The ICRC and the headers of a frame that nothing here takes are not worth their time.
        if Addressing::of(frame).is_some_and(|addressing| self.has_no_taker(&addressing)) {
            return self.drop_frame(env, "no queue pair accepts it");
        }
        let packet = match Packet::decode(frame) {
            Ok(packet) => packet,
            Err(error) => {
                env.note(|| format!("frame dropped: {error}"));
                self.shared.stats.dropped += 1;
                self.shared.stats.malformed += 1;
                return;
            }
        };
        if packet.payload.len() > usize::from(self.shared.config.max_mtu) {
            return self.drop_frame(env, "longer than the MTU of the port");
        }
        if packet.is_multicast() {
            return self.receive_multicast(env, &packet, frame.len());
        }
        if !packet.keeps_subnet_lane() {
            return self.drop_frame(env, "virtual lane 15 is for queue pair 0 alone");
        }
        if packet.grh.is_some_and(|route| !self.shared.config.has_gid(route.dgid)) {
            return self.drop_frame(env, "its route ends at another GID");
        }
        if self.is_management_request(&packet) {
            if self.shared.management_requests.len() >= MAX_FRAMES {
                env.note(|| "datagram for an agent dropped: too many wait".to_owned());
                self.shared.stats.dropped += 1;
                self.shared.stats.subnet_management_dropped += u64::from(packet.bth.dest_qpn == SUBNET_QPN);
                return;
            }
            self.shared.stats.received.count(frame.len());
            self.shared.management_requests.push_back(packet.into_owned());
            return;
        }
        let qpn = self.local_qpn(packet.bth.dest_qpn);
        let addressing = packet.addressing();
        let Some(taker) = self.qps.get(&qpn).filter(|qp| qp.accepts(&addressing, &self.shared)) else {
            return self.drop_frame(env, "no queue pair accepts it");
        };
        if !taker.accepts_global_route(&packet) {
            return self.drop_frame(env, "its route begins elsewhere than at the peer");
        }
        if !taker.shares_partition(&packet, &self.shared) {
            self.shared.stats.pkey_violations += 1;
            return self.drop_frame(env, "another partition");
        }
        self.shared.stats.received.count(frame.len());
        self.deliver(env, qpn, &packet);
    }

    /// Whether no queue pair here accepts a frame for a queue pair. Groups and the agents of the port are another matter.
    fn has_no_taker(&self, addressing: &Addressing) -> bool {
        let Addressing { lrh, dest_qpn, .. } = *addressing;
        let ordinary = dest_qpn >= FIRST_QPN && !lrh.is_multicast();
        ordinary && self.qps.get(&dest_qpn).is_none_or(|qp| !qp.accepts(addressing, &self.shared))
    }

    fn drop_frame(&mut self, env: &mut Env<'_>, why: &str) {
        env.note(|| format!("frame dropped: {why}"));
        self.shared.stats.dropped += 1;
    }

    fn deliver(&mut self, env: &mut Env<'_>, qpn: u32, packet: &Packet<'_>) {
        let Some(qp) = self.qps.get_mut(&qpn) else { return };
        let mut work = Work { shared: &mut self.shared, env };
        qp.handle_packet(&mut work, packet);
        self.busy.insert(qpn);
        self.reschedule(qpn, env.now);
    }

    /// Does work that is due at `env.now`, until [`Budget::TURN`](crate::Budget::TURN) is reached; more may be left
    /// ([`Engine::next_due`] says so). Queue pairs take turns.
    pub fn advance(&mut self, env: &mut Env<'_>) {
        for _ in 0..self.shared.loopback.len() {
            // What the queue pairs send themselves shall not keep them from sending.
            if env.meter.is_half_spent() {
                break;
            }
            let Some(frame) = self.shared.loopback.pop_front() else { break };
            env.meter.count(1);
            self.receive(env, &frame);
            self.shared.spare_frames.keep(frame);
        }
        self.shared.cqs.fire_due(env.now, env.meter, &mut self.shared.events);
        while let Some(&(due, qpn)) = self.timers.first()
            && due <= env.now
            && !env.meter.is_spent()
        {
            env.meter.count(1);
            self.timers.remove(&(due, qpn));
            self.timer_of.remove(&qpn);
            self.busy.insert(qpn);
        }
        self.poll_failed_queues(env);
        for _ in 0..self.busy.len() {
            let next = self.busy.range(self.next_busy..).next().or_else(|| self.busy.first());
            let Some(&qpn) = next else { break };
            self.busy.remove(&qpn);
            self.next_busy = qpn + 1;
            let Some(qp) = self.qps.get_mut(&qpn) else { continue };
            env.meter.count(1);
            let mut work = Work { shared: &mut self.shared, env };
            if qp.run(&mut work) {
                self.busy.insert(qpn);
            }
            self.reschedule(qpn, env.now);
            // At least one had its turn.
            if env.meter.is_spent() {
                return;
            }
        }
        self.next_busy = 0;
    }

    /// Management queue pairs have ordinary numbers here and fixed ones on the wire.
    fn local_qpn(&self, wire_qpn: u32) -> u32 {
        if wire_qpn >= FIRST_QPN {
            return wire_qpn;
        }
        self.managers.range((wire_qpn, 0)..=(wire_qpn, u32::MAX)).next().map_or(wire_qpn, |&(_, qpn)| qpn)
    }

    /// Receives have no doorbell, so queue pairs in the error state are polled for new ones.
    fn poll_failed_queues(&mut self, env: &mut Env<'_>) {
        let now = env.now;
        let work = Work { shared: &mut self.shared, env };
        self.busy.extend(self.failed.poll(now, |qpn| self.qps.get(&qpn).is_some_and(|qp| qp.has_unflushed(&work))));
    }

    /// Updates the timer of a queue pair, and whether it is polled for receives posted in the error state.
    fn reschedule(&mut self, qpn: u32, now: Instant) {
        let qp = self.qps.get(&qpn);
        if let Some(qp) = qp {
            self.shared.registry.set_memory(Resource::qp(qpn), qp.memory());
        }
        if qp.is_some_and(|qp| qp.context.state == QpcState::Err && qp.context.rq.is_some()) {
            self.failed.insert(qpn, now);
        } else {
            self.failed.remove(qpn);
        }
        let due = qp.and_then(Qp::next_timer);
        if self.timer_of.get(&qpn).copied() == due {
            return;
        }
        if let Some(old) = self.timer_of.remove(&qpn) {
            self.timers.remove(&(old, qpn));
        }
        if let Some(due) = due {
            self.timers.insert((due, qpn));
            self.timer_of.insert(qpn, due);
        }
    }

    /// When [`Engine::advance`] next has work: the past if it has some now, `None` if only the host or the wire can make any.
    pub fn next_due(&self) -> Option<Instant> {
        self.next_work().into_iter().chain(self.failed.next_due()).min()
    }

    /// As [`Engine::next_due`], without the polling of queue pairs in error.
    fn next_work(&self) -> Option<Instant> {
        let held_back = self.shared.frames.len() >= MAX_FRAMES;
        let waits_for_room = !self.busy.is_empty() || !self.shared.management_requests.is_empty();
        if !self.shared.loopback.is_empty() || (waits_for_room && !held_back) {
            return Some(Instant::default());
        }
        let timer = self.timers.first().map(|&(due, _)| due);
        timer.into_iter().chain(self.shared.cqs.next_due()).min()
    }

    /// The next frame for the wire, LRH to ICRC.
    pub fn transmit(&mut self) -> Option<Vec<u8>> {
        self.shared.frames.pop_front()
    }

    /// Buffers for the frames to come.
    pub(crate) fn spare_frames(&mut self) -> &mut SpareFrames {
        &mut self.shared.spare_frames
    }

    /// The next event for the host.
    pub fn next_event(&mut self) -> Option<EngineEvent> {
        self.shared.events.pop_front()
    }
}

//! The data path of the device: memory keys, completion queues, queue pairs and their transport.
//!
//! The other half (registers, firmware commands, event queues) creates and modifies the objects here by their contexts,
//! passes on doorbells and frames, and takes frames and events away. Nothing here waits, reads a clock or starts a
//! thread: [`Engine::advance`] does work that is due, up to a bound.

mod config;
mod congestion;
mod cq;
mod event;
mod frame_objects;
mod frame_queues;
mod frame_steering;
mod frames;
mod link;
mod management_datagram;
mod management_requests;
mod masked;
pub(crate) mod memory;
mod multicast;
mod nic;
mod objects;
mod packet_validation;
mod psn;
mod qp;
mod requester;
mod resources;
mod responder;
mod ring;
mod srq;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bareverbs::platform::Instant;
use bareverbs_mlx5_spec::{CmdStatus, CqArm, EventType, QpcState, View};

use crate::fabric::frame_pool::FramePool;
use crate::identity::PortIdentity;
use crate::registry::{FIRST_SQN, Registry, Resource};
use crate::stats::{EngineStats, QueueCounts};
use crate::step::StepContext;

use link::PortLink;
use multicast::Groups;
use nic::Nic;
use qp::Qp;
use resources::{MAX_FRAMES, QpResources, QpStep};
use responder::error_poll::FailedQueues;

pub(crate) use config::EngineConfig;
pub(crate) use event::EngineEvent;
pub(crate) use link::{FIRST_SOURCE_PORT, ROCE_ADDRESSES, RoceAddress};
pub(crate) use memory::device_memory::LOG_MAX_ALIGNMENT;
pub(crate) use memory::key::LOG_MAX_KLMS;
pub(crate) use memory::page_source::PageSource;
pub(crate) use multicast::{LOG_MAX_GROUPS, MAX_MEMBERS};
pub(crate) use nic::{
    Destination, FlowTableSpec, FrameFilter, LOG_MAX_COUNTER_QUERY, LOG_MAX_DESTINATIONS, LOG_MAX_QUEUE_TABLE,
    LOG_MAX_RULE_COUNTERS, LOG_MAX_TABLE_SIZE, LOG_MAX_WQ_SIZE, MAX_LEVEL, MatchCriteria, QueueMemory, RssSpec, Rule, TirSpec,
    TirTarget, TisSpec,
};
pub(crate) use srq::{SrqKind, SrqSpec};

/// Keys, queues and transport of one device.
#[derive(Debug)]
pub(crate) struct Engine {
    qps: BTreeMap<u32, Qp>,
    groups: Groups,
    shared: QpResources,
    /// The Ethernet side of the port.
    nic: Nic,
    /// Queue pairs that have work now.
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
    /// When the port may notify a peer of congestion again.
    next_notification: Instant,
}

impl Engine {
    /// Creates a device without objects, at a port.
    pub(crate) fn new(config: EngineConfig, identity: Arc<PortIdentity>) -> Self {
        let registry = Registry::new(&config.limits, config.memory_limit);
        Self::with_registry(config, PortLink::new(identity), registry)
    }

    fn with_registry(config: EngineConfig, port: PortLink, registry: Registry) -> Self {
        Self {
            qps: BTreeMap::new(),
            groups: Groups::default(),
            nic: Nic::default(),
            shared: QpResources::new(config, port, registry),
            busy: BTreeSet::new(),
            next_busy: 0,
            timers: BTreeSet::new(),
            timer_of: BTreeMap::new(),
            failed: FailedQueues::default(),
            managers: BTreeSet::new(),
            next_notification: Instant::default(),
        }
    }

    /// Replaces the configuration; objects stay, and so does how many there may be.
    pub(crate) fn configure(&mut self, config: EngineConfig) {
        self.shared.registry.set_memory_limit(config.memory_limit);
        self.shared.config = config;
    }

    /// Returns the queue pairs that complete into a completion queue, and their states.
    pub(crate) fn queue_pairs_of(&self, cqn: u32) -> Vec<(u32, QpcState)> {
        let pairs = self.qps.iter().filter(|(_, qp)| qp.context.cqs().contains(&cqn));
        pairs.map(|(qpn, qp)| (*qpn, qp.context.state)).collect()
    }

    /// Returns what went over the wire since the last reset.
    pub(crate) fn stats(&self) -> EngineStats {
        self.shared.stats
    }

    /// Returns what the queue pairs of a set of counters met since it was last cleared.
    pub(crate) fn queue_counts(&self, set: u8) -> QueueCounts {
        self.shared.queue_counts.get(&set).copied().unwrap_or_default()
    }

    /// Lets a set of counters begin at zero.
    pub(crate) fn clear_queue_counts(&mut self, set: u8) {
        self.shared.queue_counts.remove(&set);
    }

    /// Returns whether an Ethernet port takes and sends packets of RoCE.
    pub(crate) fn has_roce(&self) -> bool {
        self.shared.port.has_roce()
    }

    /// Lets an Ethernet port take and send packets of RoCE, or no longer.
    pub(crate) fn enable_roce(&mut self, enabled: bool) {
        self.shared.port.enable_roce(enabled);
    }

    /// Writes an entry of the address table of RoCE, or empties it. Refused with [`CmdStatus::BadParam`] beyond the table, and on
    /// a port without one.
    pub(crate) fn set_roce_address(&mut self, index: u32, address: Option<RoceAddress>) -> Result<(), CmdStatus> {
        self.shared.port.set_roce_address(index, address)
    }

    /// Returns an entry of the address table of RoCE, `None` if it is empty. Refused as [`Self::set_roce_address`].
    pub(crate) fn roce_address(&self, index: u32) -> Result<Option<RoceAddress>, CmdStatus> {
        self.shared.port.roce_address(index)
    }

    /// Forgets all objects, frames, events and counts, and what the driver has set of the port.
    pub(crate) fn reset(&mut self) {
        let none = Registry::new(&self.shared.config.limits, 0);
        let mut registry = std::mem::replace(&mut self.shared.registry, none);
        registry.clear(&self.shared.config.limits);
        *self = Self::with_registry(self.shared.config.clone(), self.shared.port.restarted(), registry);
    }

    /// Takes a send doorbell (the 8 bytes written): the send queue will run up to its doorbell record. Returns `false` if there
    /// is no such queue.
    pub(crate) fn ring_send(&mut self, ctx: &mut StepContext<'_>, qpn: u32, doorbell: [u8; 8]) -> bool {
        if qpn >= FIRST_SQN {
            return self.ring_frames(ctx, qpn);
        }
        let Some(qp) = self.qps.get_mut(&qpn).filter(|qp| qp.context.sq.is_some()) else { return false };
        if qp.context.state == QpcState::Rst {
            // The reset and the doorbell may come from different threads, and a late doorbell must not count after the next
            // start.
            ctx.note(|| format!("doorbell of QP {qpn:#x}, which is reset"));
            return true;
        }
        let mut step = QpStep { shared: &mut self.shared, ctx };
        match qp.context.record(&step) {
            Some((_, posted)) => {
                qp.requester.post(posted);
                qp.requester.audit_doorbell(&qp.context, &mut step, doorbell);
            }
            None => qp.context.fail(&mut step, Some(EventType::WqCatasError)),
        }
        self.busy.insert(qpn);
        true
    }

    /// Arms a completion queue. Returns `false` if there is no such queue.
    pub(crate) fn arm_cq(&mut self, ctx: &mut StepContext<'_>, cqn: u32, arm: View<'_, CqArm>) -> bool {
        let armed = self.shared.cqs.arm(cqn, ctx.now, arm, &mut self.shared.events);
        if !armed {
            ctx.note(|| format!("CQ {cqn:#x} armed, there is none"));
        }
        armed
    }

    /// Does work that is due at `ctx.now`, until [`Budget::TURN`](crate::Budget::TURN) is reached; more may be left
    /// ([`Engine::next_due`] says so). Queue pairs take turns.
    pub(crate) fn advance(&mut self, ctx: &mut StepContext<'_>) {
        self.receive_loopback(ctx);
        self.shared.cqs.fire_due(ctx.now, ctx.meter, &mut self.shared.events);
        while let Some(&(due, qpn)) = self.timers.first()
            && due <= ctx.now
            && !ctx.meter.is_spent()
        {
            ctx.meter.count(1);
            self.timers.remove(&(due, qpn));
            self.timer_of.remove(&qpn);
            self.busy.insert(qpn);
        }
        self.poll_failed_queues(ctx);
        ctx.meter.begin_last_part();
        self.send_frames(ctx);
        for _ in 0..self.busy.len() {
            let next = self.busy.range(self.next_busy..).next().or_else(|| self.busy.first());
            let Some(&qpn) = next else { break };
            self.busy.remove(&qpn);
            self.next_busy = qpn + 1;
            let Some(qp) = self.qps.get_mut(&qpn) else { continue };
            ctx.meter.count(1);
            let mut step = QpStep { shared: &mut self.shared, ctx };
            if qp.run(&mut step) {
                self.busy.insert(qpn);
            }
            self.reschedule(qpn, ctx.now);
            // At least one had its turn.
            if ctx.meter.is_spent() {
                return;
            }
        }
        self.next_busy = 0;
    }

    /// Takes loopback frames, until half of the turn is over at most, so that they leave time to send.
    fn receive_loopback(&mut self, ctx: &mut StepContext<'_>) {
        let part = ctx.meter.begin_part();
        for _ in 0..self.shared.loopback.len() {
            let Some(frame) = self.shared.loopback.pop_front() else { break };
            ctx.meter.count(1);
            self.receive(ctx, &frame);
            self.shared.frame_pool.keep(frame);
            if ctx.meter.is_part_spent(&part) {
                break;
            }
        }
    }

    /// Receives have no doorbell, so queue pairs in the error state are polled for new ones.
    fn poll_failed_queues(&mut self, ctx: &mut StepContext<'_>) {
        let now = ctx.now;
        let step = QpStep { shared: &mut self.shared, ctx };
        self.busy.extend(self.failed.poll(now, |qpn| self.qps.get(&qpn).is_some_and(|qp| qp.has_unflushed(&step))));
    }

    /// Updates the timer of a queue pair, and whether it is polled for receives posted in the error state.
    fn reschedule(&mut self, qpn: u32, now: Instant) {
        if let Some(qp) = self.qps.get_mut(&qpn) {
            self.shared.registry.set_memory(Resource::qp(qpn), qp.count_memory());
        }
        let qp = self.qps.get(&qpn);
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

    /// Returns when [`Engine::advance`] next has work: the past if it has some now, `None` if only the host or the wire can
    /// make any.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.next_work().into_iter().chain(self.failed.next_due()).min()
    }

    /// Same as [`Engine::next_due`], without the polling of queue pairs in error.
    fn next_work(&self) -> Option<Instant> {
        let held_back = self.shared.frames.len() >= MAX_FRAMES;
        let has_frames = !self.nic.busy.is_empty() || !self.nic.unsent.is_empty();
        let waits_for_room = !self.busy.is_empty() || has_frames || !self.shared.management_requests.is_empty();
        if !self.shared.loopback.is_empty() || (waits_for_room && !held_back) {
            return Some(Instant::default());
        }
        let timer = self.timers.first().map(|&(due, _)| due);
        timer.into_iter().chain(self.shared.cqs.next_due()).min()
    }

    /// Returns the next frame for the wire: LRH to ICRC, or an Ethernet frame without check sequence.
    pub(crate) fn transmit(&mut self) -> Option<Vec<u8>> {
        self.shared.frames.pop_front()
    }

    /// Returns the buffers for the frames to come.
    pub(crate) fn frame_pool(&mut self) -> &mut FramePool {
        &mut self.shared.frame_pool
    }

    /// Returns the next event for the host.
    pub(crate) fn next_event(&mut self) -> Option<EngineEvent> {
        self.shared.events.pop_front()
    }
}

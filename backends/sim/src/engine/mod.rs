//! The half of the device that moves data: memory keys, completion queues, queue pairs and their transport.
//!
//! The other half (registers, firmware commands, event queues) creates and modifies the objects here by their contexts,
//! passes on doorbells and frames, and takes frames and events away. Nothing here waits, reads a clock or starts a
//! thread: [`Engine::advance`] does a bounded piece of whatever is due.

use std::collections::VecDeque;

use bareverbs::Instant;
use bareverbs_mlx5_spec::{CmdOpcode, CmdStatus, CqArm, Cqc, EventType, Mkc, Qpc, View, ViewMut};

use crate::env::Env;

/// What the rest of the device decides about the data path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    /// Local identifier of the port; frames to another one are not for this device.
    pub lid: u16,
    /// GID of the port in wire order, the source of global routes.
    pub port_gid: [u8; 16],
    /// P_Key table of the port; an index beyond it means the default key 0xffff.
    pub pkeys: Vec<u16>,
    /// Atomics treat memory as little-endian 64-bit numbers; otherwise as big-endian ones.
    pub atomic_host_endian: bool,
    /// 1: completions carry the user index of their queue pair, 0: its number.
    pub cqe_version: u8,
    /// Most queue pairs.
    pub max_qp: u32,
    /// Most completion queues.
    pub max_cq: u32,
    /// Most memory keys.
    pub max_mkey: u32,
    /// Binary logarithm of the largest message in bytes.
    pub log_max_msg: u8,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            lid: 1,
            port_gid: [0; 16],
            pkeys: vec![0xffff],
            atomic_host_endian: true,
            cqe_version: 1,
            max_qp: 1 << 16,
            max_cq: 1 << 16,
            max_mkey: 1 << 20,
            log_max_msg: 30,
        }
    }
}

/// Something that the event queues shall tell the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineEvent {
    /// An armed completion queue has an entry.
    Completion {
        /// Event queue of the completion queue.
        eqn: u32,
        /// Completion queue.
        cqn: u32,
    },
    /// A completion queue can no longer be written.
    CqError {
        /// Completion queue.
        cqn: u32,
        /// 1: overrun; 2: its memory is not there.
        syndrome: u8,
    },
    /// An event of a queue pair.
    Qp {
        /// What happened.
        event: EventType,
        /// Queue pair.
        qpn: u32,
    },
}

/// How many objects there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineCounts {
    /// Memory keys, windows included.
    pub mkeys: usize,
    /// Memory windows that are bound.
    pub bound_windows: usize,
    /// Completion queues.
    pub cqs: usize,
    /// Queue pairs.
    pub qps: usize,
}

/// Keys, queues and transport of one device.
#[derive(Debug)]
pub struct Engine {
    config: EngineConfig,
    frames: VecDeque<Vec<u8>>,
    events: VecDeque<EngineEvent>,
}

impl Engine {
    /// A device without objects.
    pub fn new(config: EngineConfig) -> Self {
        Self { config, frames: VecDeque::new(), events: VecDeque::new() }
    }

    /// Replaces the configuration; objects stay.
    pub fn configure(&mut self, config: EngineConfig) {
        self.config = config;
    }

    /// The configuration in force.
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// Forgets all objects, frames and events.
    pub fn reset(&mut self) {
        *self = Self::new(self.config.clone());
    }

    /// Creates a key; `translations` are the raw entries (page addresses or KLMs) that followed the context. Returns the
    /// key's index.
    pub fn create_mkey(&mut self, env: &mut Env<'_>, mkc: View<'_, Mkc>, translations: &[u8]) -> Result<u32, CmdStatus> {
        let _ = (env, mkc, translations);
        Err(CmdStatus::NoResources)
    }

    /// Writes the context of a key to `out`.
    pub fn query_mkey(&self, index: u32, out: &mut ViewMut<'_, Mkc>) -> Result<(), CmdStatus> {
        let _ = (index, out);
        Err(CmdStatus::BadRes)
    }

    /// Destroys a key; refused with [`CmdStatus::ResBusy`] while a window is bound to it.
    pub fn destroy_mkey(&mut self, index: u32) -> Result<(), CmdStatus> {
        let _ = index;
        Err(CmdStatus::BadRes)
    }

    /// Creates a completion queue in the pages `pas`; returns its number.
    pub fn create_cq(&mut self, cqc: View<'_, Cqc>, pas: &[u64]) -> Result<u32, CmdStatus> {
        let _ = (cqc, pas);
        Err(CmdStatus::NoResources)
    }

    /// Writes the context of a completion queue to `out`.
    pub fn query_cq(&self, cqn: u32, env: &mut Env<'_>, out: &mut ViewMut<'_, Cqc>) -> Result<(), CmdStatus> {
        let _ = (cqn, env, out);
        Err(CmdStatus::BadRes)
    }

    /// Destroys a completion queue; refused with [`CmdStatus::ResBusy`] while a queue pair uses it.
    pub fn destroy_cq(&mut self, cqn: u32) -> Result<(), CmdStatus> {
        let _ = cqn;
        Err(CmdStatus::BadRes)
    }

    /// Creates a queue pair in the pages `pas`; returns its number.
    pub fn create_qp(&mut self, qpc: View<'_, Qpc>, pas: &[u64]) -> Result<u32, CmdStatus> {
        let _ = (qpc, pas);
        Err(CmdStatus::NoResources)
    }

    /// Takes a queue pair through `transition`, merging the fields of `qpc` that the transition takes.
    pub fn modify_qp(
        &mut self,
        env: &mut Env<'_>,
        qpn: u32,
        transition: CmdOpcode,
        opt_mask: u32,
        qpc: View<'_, Qpc>,
    ) -> Result<(), CmdStatus> {
        let _ = (env, qpn, transition, opt_mask, qpc);
        Err(CmdStatus::BadRes)
    }

    /// Writes the whole context of a queue pair to `out`.
    pub fn query_qp(&self, qpn: u32, out: &mut ViewMut<'_, Qpc>) -> Result<(), CmdStatus> {
        let _ = (qpn, out);
        Err(CmdStatus::BadRes)
    }

    /// Destroys a queue pair; nothing completes for it afterwards.
    pub fn destroy_qp(&mut self, qpn: u32) -> Result<(), CmdStatus> {
        let _ = qpn;
        Err(CmdStatus::BadRes)
    }

    /// Whether a key or a queue pair belongs to the protection domain.
    pub fn pd_in_use(&self, pd: u32) -> bool {
        let _ = pd;
        false
    }

    /// How many objects there are.
    pub fn counts(&self) -> EngineCounts {
        EngineCounts::default()
    }

    /// Takes a send doorbell (the 8 bytes written): the send queue will run up to its doorbell record. `false` if there
    /// is no such queue pair.
    pub fn ring_send(&mut self, env: &mut Env<'_>, qpn: u32, doorbell: [u8; 8]) -> bool {
        let _ = (env, qpn, doorbell);
        false
    }

    /// Arms a completion queue. `false` if there is no such queue.
    pub fn arm_cq(&mut self, env: &mut Env<'_>, cqn: u32, arm: View<'_, CqArm>) -> bool {
        let _ = (env, cqn, arm);
        false
    }

    /// Takes a frame (LRH to ICRC) from the wire. Answers are made by [`Engine::advance`].
    pub fn receive(&mut self, env: &mut Env<'_>, frame: &[u8]) {
        let _ = (env, frame);
    }

    /// Does work that is due at `env.now`, up to a bound; more may be left ([`Engine::next_due`] says so).
    pub fn advance(&mut self, env: &mut Env<'_>) {
        let _ = env;
    }

    /// When [`Engine::advance`] next has work: the past if it has some now, `None` if only the host or the wire can make any.
    pub fn next_due(&self) -> Option<Instant> {
        None
    }

    /// The next frame for the wire, LRH to ICRC.
    pub fn transmit(&mut self) -> Option<Vec<u8>> {
        self.frames.pop_front()
    }

    /// The next event for the host.
    pub fn take_event(&mut self) -> Option<EngineEvent> {
        self.events.pop_front()
    }
}

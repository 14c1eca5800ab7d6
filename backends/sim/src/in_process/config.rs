//! How a world behaves.

use std::time::Duration;

use crate::wire::{EgressLimits, WireFaults};

/// How a world behaves.
#[derive(Clone, Debug)]
pub struct WorldConfig {
    /// What the wire does to frames.
    pub faults: WireFaults,
    /// The rate of the switch's ports, and their queues. Without limits nothing waits there.
    pub egress: Option<EgressLimits>,
    /// Seed of the wire's choices.
    pub seed: u64,
    /// How long a frame is on its way.
    pub latency: Duration,
    /// How far time moves when a clock is asked to relax.
    pub step: Duration,
    /// How far it may move then if nothing has happened for long; not less than `step`.
    pub max_step: Duration,
    /// How far time moves when a clock is read.
    pub read_step: Duration,
}

impl Default for WorldConfig {
    fn default() -> Self {
        Self {
            faults: WireFaults::default(),
            egress: None,
            seed: 1,
            latency: Duration::from_nanos(500),
            step: Duration::from_micros(1),
            max_step: Duration::from_millis(1),
            read_step: Duration::from_nanos(20),
        }
    }
}

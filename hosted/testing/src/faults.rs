//! What the wire is and does to frames, and which choices it makes.

use std::time::Duration;

use bareverbs_sim::in_process::WorldConfig;
use bareverbs_sim::wire::{Probability, WireFaults};
use bareverbs_sim::{DeviceConfig, Profile};

/// What the wire does to frames. The same seed makes the same choices.
///
/// ```
/// use bareverbs_testing::{Faults, Probability, pair};
/// use std::time::Duration;
///
/// for seed in 0..3 {
///     let faults = Faults::none().loss(Probability::per_mille(50)).delay(Probability::per_mille(100), Duration::from_micros(50));
///     let [_a, _b] = pair(faults.seed(seed))?;
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    wire: WireFaults,
    seed: u64,
    latency: Option<Duration>,
    ethernet: bool,
}

impl Faults {
    /// No fault, and seed 0.
    pub const fn none() -> Self {
        Self::wire(WireFaults::NONE)
    }

    /// The faults `wire`, and seed 0.
    pub const fn wire(wire: WireFaults) -> Self {
        Self { wire, seed: 0, latency: None, ethernet: false }
    }

    /// Makes the ports of [`pair`](crate::pair) and [`nodes`](crate::nodes) Ethernet ports, behind a switch that learns: connections are
    /// RoCEv2. GID 0 of each port is its link-local address, as in Linux.
    ///
    /// ```
    /// use bareverbs::{Access, LinkLayer, SendWr, WcStatus};
    /// use bareverbs_testing::{Faults, connect, pair};
    ///
    /// let [mut a, mut b] = pair(Faults::none().ethernet())?;
    /// assert_eq!(a.verbs.query_port(1)?.link_layer, LinkLayer::Ethernet);
    /// let [mut qa, _qb] = connect(&mut a, &mut b)?;
    /// let target = b.register(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    /// qa.qp.send.post(&SendWr::write(target.remote(0), b"over UDP"))?;
    /// assert_eq!(qa.wait()?.status, WcStatus::Success);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub const fn ethernet(mut self) -> Self {
        self.ethernet = true;
        self
    }

    /// Returns a device like this card, with a port of this wire.
    pub(crate) fn device(&self, profile: Profile, lid: u16) -> DeviceConfig {
        let device = DeviceConfig::profile(profile, lid);
        if self.ethernet { device.with_ethernet() } else { device }
    }

    /// Frames are lost.
    #[must_use]
    pub const fn loss(mut self, how_often: Probability) -> Self {
        self.wire.loss = how_often;
        self
    }

    /// Frames arrive twice.
    #[must_use]
    pub const fn duplication(mut self, how_often: Probability) -> Self {
        self.wire.duplication = how_often;
        self
    }

    /// Frames are passed by the next one of the same source and destination.
    #[must_use]
    pub const fn reordering(mut self, how_often: Probability) -> Self {
        self.wire.reordering = how_often;
        self
    }

    /// Frames are late, by up to `most`.
    #[must_use]
    pub const fn delay(mut self, how_often: Probability, most: Duration) -> Self {
        self.wire.delay = how_often;
        self.wire.delay_time = most;
        self
    }

    /// Sets the time that each frame is on its way; 500 ns otherwise.
    #[must_use]
    pub const fn latency(mut self, latency: Duration) -> Self {
        self.latency = Some(latency);
        self
    }

    /// Decides which frames are hit.
    #[must_use]
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }
}

impl From<Faults> for WorldConfig {
    fn from(faults: Faults) -> Self {
        let default = Self::default();
        Self { faults: faults.wire, seed: faults.seed, latency: faults.latency.unwrap_or(default.latency), ..default }
    }
}

//! Waiting for a port that carries traffic.

use core::ops::ControlFlow;
use core::time::Duration;

use crate::backend::Provider;
use crate::error::{QueryError, WaitActiveError};
use crate::{LinkLayer, PhysState, PortAttr, PortState, Verbs};

/// First LID that is none of a port: those from here on are multicast, and 0xffff of a port without one (IBTA 4.1.3).
const MULTICAST: u16 = 0xc000;
/// Interval between two queries of a port: much less than link training and a sweep of a subnet manager take.
const QUERY_INTERVAL: Duration = Duration::from_millis(100);

impl PortAttr {
    /// Returns whether the port carries traffic: it is active, and has a LID if it is an InfiniBand port.
    pub const fn is_usable(&self) -> bool {
        let has_address = match self.link_layer {
            LinkLayer::InfiniBand => self.lid.get() != 0 && self.lid.get() < MULTICAST,
            LinkLayer::Ethernet => true,
        };
        matches!(self.state, PortState::Active) && has_address
    }
}

impl<P: Provider> Verbs<'_, P> {
    /// Waits until a port, from 1, is active, and has a LID if it is an InfiniBand port. Returns its attributes.
    ///
    /// A reset of a card takes its link down. Training it again takes seconds, and a subnet manager gives the LID at its next
    /// sweep: `opensm` sweeps every ten seconds. 60 seconds are a good timeout.
    ///
    /// The port is queried ten times a second, and [`Self::maintain`] is called meanwhile. No event is taken: those that come
    /// during the wait, of ports too, are for [`Self::poll_event`] afterwards.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use bareverbs_testing::{Faults, pair};
    /// # let [mut a, _b] = pair(Faults::none())?;
    /// let port = a.verbs.wait_active(1, Duration::from_secs(60))?;
    /// assert_eq!(port.lid.get(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// There is no such port, the device does not answer or is broken, or the port is not usable after `timeout`: the variant
    /// says what is missing.
    pub fn wait_active(&mut self, port: u8, timeout: Duration) -> Result<PortAttr, WaitActiveError<P::Error>> {
        self.wait_active_with(port, timeout, |_, _| ControlFlow::Continue(()))
    }

    /// Waits as [`Self::wait_active`] does, and calls `hook` after each query that finds the port not usable, with what was
    /// found and the time waited. If `hook` returns `Break`, the wait ends. It may sleep up to 100 ms, the interval of queries.
    ///
    /// ```
    /// # use std::ops::ControlFlow;
    /// # use std::time::Duration;
    /// # use bareverbs::error::WaitActiveError;
    /// # use bareverbs_testing::{Faults, pair};
    /// # let [mut a, _b] = pair(Faults::none())?;
    /// # a.set_link(false);
    /// let found = a.verbs.wait_active_with(1, Duration::from_secs(60), |port, waited| {
    ///     println!("{:?} after {} s", port.phys_state, waited.as_secs());
    ///     // Or when the user says so.
    ///     if waited >= Duration::from_secs(2) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    /// });
    /// assert!(matches!(found, Err(WaitActiveError::Stopped { port: 1, .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`WaitActiveError`]: there is no such port, the device does not answer or is broken, or the port is not usable after `timeout`.
    /// [`WaitActiveError::Stopped`] if the hook ended the wait.
    pub fn wait_active_with(
        &mut self,
        port: u8,
        timeout: Duration,
        mut hook: impl FnMut(&PortAttr, Duration) -> ControlFlow<()>,
    ) -> Result<PortAttr, WaitActiveError<P::Error>> {
        self.wait_for_port(port, timeout, &mut hook)
    }

    /// Exists once for all hooks.
    fn wait_for_port(
        &mut self,
        port: u8,
        timeout: Duration,
        hook: &mut dyn FnMut(&PortAttr, Duration) -> ControlFlow<()>,
    ) -> Result<PortAttr, WaitActiveError<P::Error>> {
        let start = self.provider.now();
        let deadline = start.after(timeout);
        loop {
            let attr = self.query_port(port).map_err(|error| match error {
                QueryError::Port { port } => WaitActiveError::Port { port },
                QueryError::Device(error) => WaitActiveError::Device(error),
            })?;
            if attr.is_usable() {
                return Ok(attr);
            }
            let now = self.provider.now();
            let waited = now.since(start);
            if hook(&attr, waited).is_break() {
                let PortAttr { state, phys_state, .. } = attr;
                return Err(WaitActiveError::Stopped { port, state, phys_state, waited });
            }
            if now >= deadline {
                return Err(missing(port, &attr, waited));
            }
            let next = now.after(QUERY_INTERVAL).min(deadline);
            loop {
                self.maintain().map_err(WaitActiveError::Device)?;
                if self.provider.now() >= next {
                    break;
                }
                self.provider.relax(next);
            }
        }
    }
}

/// Returns what a port lacks.
const fn missing<E>(port: u8, attr: &PortAttr, waited: Duration) -> WaitActiveError<E> {
    let PortAttr { state, phys_state, link_layer, .. } = *attr;
    match (state, phys_state) {
        (PortState::Down, PhysState::Sleep | PhysState::Disabled) => WaitActiveError::Disabled { port, phys_state, waited },
        (PortState::Down, PhysState::Training | PhysState::LinkErrorRecovery) => {
            WaitActiveError::Training { port, phys_state, waited }
        }
        (PortState::Down, PhysState::LinkUp) => WaitActiveError::FunctionDown { port, link_layer, waited },
        (PortState::Down, _) => WaitActiveError::NoLink { port, phys_state, waited },
        (PortState::Init, _) => WaitActiveError::NoSubnetManager { port, waited },
        (PortState::Armed, _) => WaitActiveError::NotActivated { port, waited },
        (PortState::Active, _) => WaitActiveError::NoLid { port, waited },
    }
}

//! Waiting for a port that carries traffic.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use bareverbs::{PortAttr, PortState};

use super::bring_up::Device;
use super::host::Host;
use crate::stop::Interrupted;

/// Timeout for a port: the reset of a card takes its link down, and subnet managers sweep every ten seconds.
const ACTIVE_TIMEOUT: Duration = Duration::from_secs(15);
/// Interval of queries.
const QUERY_INTERVAL: Duration = Duration::from_millis(100);

impl<H: Host> Device<H> {
    /// Waits until a port (from 1) is active and has a LID, or until `stop` is set.
    ///
    /// # Errors
    /// There is no such port, it did not become active (the error says what may help), or the device is broken. [`Interrupted`] if
    /// `stop` was set.
    pub fn active_port(&mut self, port: u8, stop: &AtomicBool) -> Result<PortAttr> {
        let deadline = self.host.now().after(ACTIVE_TIMEOUT);
        loop {
            let name = self.host.name();
            let attr = self.verbs.query_port(port).with_context(|| format!("{name}: query_port {port}"))?;
            if attr.state == PortState::Active && attr.lid.get() != 0 {
                return Ok(attr);
            }
            if stop.load(Ordering::Relaxed) {
                return Err(Interrupted.into());
            }
            if self.host.now() >= deadline {
                bail!("{name}: port {port} cannot carry traffic: {}", obstacle(&attr));
            }
            // The query itself raises an interrupt, so one wait may end at once.
            let next = self.host.now().after(QUERY_INTERVAL);
            while self.host.now() < next {
                self.host.wait(next.since(self.host.now()))?;
                self.check()?;
            }
        }
    }
}

/// Returns the reason why a port is not usable, and the remedy.
const fn obstacle(attr: &PortAttr) -> &'static str {
    match attr.state {
        PortState::Down => "there is no link; check the cable, and that the other end of it is switched on",
        PortState::Init => {
            "it has a link, but no subnet manager has configured it; start one (opensm) on this fabric, or check that it runs"
        }
        PortState::Armed => "the subnet manager has configured but not activated it; check the subnet manager (opensm)",
        PortState::Active => "it has no LID; check the subnet manager (opensm)",
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bareverbs_sim::DeviceConfig;
    use bareverbs_sim::in_process::{World, WorldConfig};

    use super::*;
    use crate::device::simulated::Simulated;

    #[test]
    fn a_port_without_a_link_is_an_error_with_the_remedy() {
        let host = World::new(WorldConfig::default()).add(DeviceConfig::default()).unwrap();
        let mut device = Device::bring_up(Simulated::new("card", host), &Arc::default()).unwrap();
        let stop = AtomicBool::new(false);
        assert_eq!(device.active_port(1, &stop).unwrap().lid.get(), 1);
        device.host.inner().with_device(|device| device.set_link(false));
        let start = device.host.now();
        let error = device.active_port(1, &stop).unwrap_err();
        assert!(error.to_string().starts_with("card: port 1 ") && error.to_string().contains("check the cable"), "{error}");
        assert!(device.host.now().since(start) >= ACTIVE_TIMEOUT);
        device.host.inner().with_device(|device| device.set_link(true));
        device.active_port(1, &stop).unwrap();
        assert!(device.active_port(2, &stop).unwrap_err().to_string().contains("query_port 2"));
    }
}

//! Waiting for a port that carries traffic, with a line that says how it is.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Error, Result};
use bareverbs::PortAttr;
use bareverbs::error::WaitActiveError;

use super::bring_up::Device;
use super::host::Host;
use crate::status_line::{QUIET_TIME, StatusLine};
use crate::stop::Interrupted;

/// Timeout for a port: the reset of a card takes its link down, whose training takes seconds, and subnet managers sweep every
/// ten seconds or more.
const ACTIVE_TIMEOUT: Duration = Duration::from_secs(120);
/// How long one call for the wait sleeps: the interval of its queries.
const PAUSE: Duration = Duration::from_millis(100);

impl<H: Host> Device<H> {
    /// Waits until a port (from 1) is active and has a LID, or until `stop` is set. If `has_line` and standard error is a
    /// terminal, a line there shows the state of the port.
    ///
    /// # Errors
    /// There is no such port, it did not become active (the error says what may help), or the device is broken. [`Interrupted`] if
    /// `stop` was set.
    pub fn active_port(&mut self, port: u8, has_line: bool, stop: &AtomicBool) -> Result<PortAttr> {
        self.active_port_within(ACTIVE_TIMEOUT, port, has_line, stop)
    }

    /// Waits as [`Self::active_port`] does, with another timeout.
    ///
    /// # Errors
    /// Same as [`Self::active_port`].
    pub fn active_port_within(&mut self, timeout: Duration, port: u8, has_line: bool, stop: &AtomicBool) -> Result<PortAttr> {
        let Self { host, verbs } = self;
        let mut failure = None;
        let line = has_line.then(StatusLine::new).flatten();
        let waited = verbs.wait_active_with(port, timeout, |attr, waited| {
            if stop.load(Ordering::Relaxed) {
                return ControlFlow::Break(());
            }
            if let Some(line) = line.as_ref().filter(|_| waited > QUIET_TIME) {
                line.show(text(host.name(), port, attr, waited, timeout));
            }
            match pause(host) {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => {
                    failure = Some(error);
                    ControlFlow::Break(())
                }
            }
        });
        match (waited, failure) {
            (Ok(attr), _) => Ok(attr),
            (Err(_), Some(failure)) => Err(failure),
            (Err(WaitActiveError::Stopped { .. }), None) => Err(Interrupted.into()),
            (Err(error), None) => Err(Error::new(error)).with_context(|| host.name().to_string()),
        }
    }
}

/// Sleeps for one interval. The query before has itself raised an interrupt, so one wait may end at once.
fn pause<H: Host>(host: &H) -> Result<()> {
    let end = host.now().after(PAUSE);
    while host.now() < end {
        host.wait(end.since(host.now()))?;
        host.check()?;
    }
    Ok(())
}

fn text(name: &str, port: u8, attr: &PortAttr, waited: Duration, timeout: Duration) -> String {
    let (waited, timeout) = (waited.as_secs(), timeout.as_secs());
    format!(
        "waiting for port {port} of {name}: {:?} ({:?}), LID {}, {waited} of {timeout} s",
        attr.state,
        attr.phys_state,
        attr.lid.get()
    )
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bareverbs::platform::Instant;
    use bareverbs::{Event, Lid, PhysState, PortState};
    use bareverbs_sim::in_process::{Host as SimHost, SimBuffer, SimPlatform, World, WorldConfig};
    use bareverbs_sim::{DeviceConfig, Profile};

    use super::*;
    use crate::device::simulated::Simulated;

    /// A simulated host to which something happens at each wait.
    struct Changing<F> {
        host: Simulated,
        at_wait: F,
    }

    impl<F: Fn(&SimHost, Instant) -> Result<()>> Host for Changing<F> {
        type Platform = SimPlatform;
        type Buffer = SimBuffer;

        fn name(&self) -> &str {
            self.host.name()
        }

        fn machine(&self, arena: usize) -> Result<bareverbs::platform::Machine<SimPlatform>> {
            self.host.machine(arena)
        }

        fn buffer(&self, len: usize) -> Result<SimBuffer> {
            self.host.buffer(len)
        }

        fn now(&self) -> Instant {
            self.host.now()
        }

        fn relax(&self) {
            self.host.relax();
        }

        fn wait(&self, timeout: Duration) -> Result<bool> {
            (self.at_wait)(self.host.inner(), self.now())?;
            self.host.wait(timeout)
        }

        fn pci_ids(&self) -> (u16, u8) {
            self.host.pci_ids()
        }
    }

    /// A device whose port is active from the start, unless the host changes it.
    fn instant() -> DeviceConfig {
        DeviceConfig::profile(Profile::Instant, 1)
    }

    fn device<F: Fn(&SimHost, Instant) -> Result<()>>(config: DeviceConfig, at_wait: F) -> Device<Changing<F>> {
        let host = World::new(WorldConfig::default()).add(config).unwrap();
        Device::bring_up(Changing { host: Simulated::new("card", host), at_wait }, &Arc::default()).unwrap()
    }

    #[test]
    fn a_port_without_a_link_is_an_error_with_the_remedy() {
        let mut device = device(instant(), |_, _| Ok(()));
        let stop = AtomicBool::new(false);
        assert_eq!(device.active_port(1, true, &stop).unwrap().lid.get(), 1);
        device.host.host.inner().with_device(|device| device.set_link(false));
        let start = device.host.now();
        let error = format!("{:#}", device.active_port(1, true, &stop).unwrap_err());
        assert!(error.starts_with("card: port 1 ") && error.contains("check the cable"), "{error}");
        assert!(device.host.now().since(start) >= ACTIVE_TIMEOUT);
        assert!(format!("{:#}", device.active_port(2, true, &stop).unwrap_err()).contains("no port 2"));
    }

    /// As of a real card, whose port reports LID 65535 meanwhile.
    #[test]
    fn a_port_without_a_cable_is_an_error_that_names_it() {
        let mut device = device(DeviceConfig { link_up: false, ..DeviceConfig::default() }, |_, _| Ok(()));
        let error = format!("{:#}", device.active_port(1, true, &AtomicBool::new(false)).unwrap_err());
        assert!(
            error.starts_with("card: port 1 has no cable or is switched off (Disabled) after 120 s: check the cable"),
            "{error}"
        );
    }

    #[test]
    fn a_link_may_come_late_and_its_events_are_there_afterwards() {
        let late = Instant::from_nanos(40_000_000_000);
        let mut device = device(instant(), move |host, now| {
            host.with_device(|device| device.set_link(now >= late));
            Ok(())
        });
        device.host.host.inner().with_device(|device| device.set_link(false));
        assert_eq!(device.active_port(1, false, &AtomicBool::new(false)).unwrap().lid.get(), 1);
        assert!(device.host.now() >= late && device.host.now().since(late) < Duration::from_secs(1));
        let events: Vec<_> = std::iter::from_fn(|| device.verbs.poll_event().unwrap()).collect();
        assert_eq!(events, [Event::PortDown(1), Event::PortActive(1)]);
    }

    #[test]
    fn a_managed_port_without_a_manager_lacks_that() {
        let mut device = device(DeviceConfig { managed: true, ..instant() }, |_, _| Ok(()));
        let error = format!("{:#}", device.active_port(1, false, &AtomicBool::new(false)).unwrap_err());
        assert!(error.contains("no subnet manager") && error.contains("opensm"), "{error}");
    }

    #[test]
    fn a_stop_and_a_failure_of_the_host_end_the_wait() {
        let stop = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&stop);
        let mut stopped = device(instant(), move |_, now| {
            asked.store(now >= Instant::from_nanos(5_000_000_000), Ordering::Relaxed);
            Ok(())
        });
        stopped.host.host.inner().with_device(|device| device.set_link(false));
        assert!(stopped.active_port(1, false, &stop).unwrap_err().is::<Interrupted>());
        assert!(stopped.host.now() < Instant::from_nanos(6_000_000_000));
        let mut removed = device(instant(), |_, _| anyhow::bail!("the card is being removed"));
        removed.host.host.inner().with_device(|device| device.set_link(false));
        let error = removed.active_port(1, false, &AtomicBool::new(false)).unwrap_err();
        assert_eq!(error.to_string(), "the card is being removed");
    }

    #[test]
    fn the_line_says_how_the_port_is() {
        let attr = PortAttr { state: PortState::Init, phys_state: PhysState::LinkUp, lid: Lid::new(0), ..PortAttr::default() };
        let expected = "waiting for port 1 of 0000:01:00.0: Init (LinkUp), LID 0, 12 of 120 s";
        assert_eq!(text("0000:01:00.0", 1, &attr, Duration::from_millis(12_900), ACTIVE_TIMEOUT), expected);
    }
}

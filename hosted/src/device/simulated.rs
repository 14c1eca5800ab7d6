//! Simulated hosts in this process, each with a device, joined by a wire.

use std::time::Duration;

use anyhow::Result;
use bareverbs::platform::{Clock as _, Instant, Machine};
use bareverbs_mlx5::Config;
use bareverbs_sim::in_process::{Host as SimHost, SimBuffer, SimPlatform};

use super::host::Host;
use bareverbs_serve::trace::{Printer, Sink};

/// A simulated host with its device.
#[derive(Clone, Debug)]
pub struct Simulated {
    name: String,
    host: SimHost,
}

impl Simulated {
    /// Creates a host whose device is called `name`.
    pub fn new(name: &str, host: SimHost) -> Self {
        Self { name: name.into(), host }
    }

    /// Returns the simulated machine, with faults, counters and findings of its device.
    pub const fn inner(&self) -> &SimHost {
        &self.host
    }

    /// Traces the device to `sink`, with the name `label` in each line.
    pub fn trace(&self, label: &str, sink: &Sink) {
        self.host.with_device(|device| {
            let printer = Printer::new(label, device.config().port, sink.clone());
            device.set_tracer(Some(Box::new(printer)));
        });
    }
}

impl Host for Simulated {
    type Platform = SimPlatform;
    type Buffer = SimBuffer;

    fn name(&self) -> &str {
        &self.name
    }

    fn config(&self) -> Config {
        // Faults make time run in small steps: the two minutes of a card's boot would be too many.
        let virtual_function = self.host.with_device(|device| device.config().virtual_function);
        Config { boot_timeout: Duration::from_secs(5), virtual_function, ..Config::DEFAULT }
    }

    fn machine(&self, arena: usize) -> Result<Machine<SimPlatform>> {
        Ok(self.host.machine(arena))
    }

    fn buffer(&self, len: usize) -> Result<SimBuffer> {
        Ok(self.host.memory(len).whole())
    }

    fn now(&self) -> Instant {
        self.host.world().now()
    }

    fn relax(&self) {
        self.host.clock().relax(self.now());
    }

    fn wait(&self, timeout: Duration) -> Result<bool> {
        // No other thread uses these devices: their time advances to the interrupt at once.
        let end = self.now().after(timeout);
        loop {
            if !self.host.take_interrupts().is_empty() {
                return Ok(true);
            }
            if self.now() >= end {
                return Ok(false);
            }
            self.relax();
        }
    }

    fn pci_ids(&self) -> (u16, u8) {
        (self.host.with_device(|device| device.config().pci_device_id), 0)
    }

    fn simulated(&self) -> Option<&SimHost> {
        Some(&self.host)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bareverbs::error::{DeviceLoss, PollCqError};
    use bareverbs::{Access, Completion};
    use bareverbs_mlx5_spec::CmdOpcode;
    use bareverbs_sim::fault::Fault;
    use bareverbs_sim::in_process::{World, WorldConfig};
    use bareverbs_sim::{DeviceConfig, Profile};

    use super::*;
    use crate::device::Device;

    /// A host whose device raises no interrupt for its port.
    fn host() -> Simulated {
        let config = DeviceConfig::profile(Profile::Instant, 1);
        Simulated::new("device", World::new(WorldConfig::default()).add(config).unwrap())
    }

    #[test]
    fn a_device_is_brought_up_used_and_taken_down() {
        let mut device = Device::bring_up(host(), &Arc::default()).unwrap();
        let pd = device.verbs.alloc_pd().unwrap();
        let buffer = device.host.buffer(100_000).unwrap();
        let region = device.verbs.reg_mr(pd, buffer, Access::LOCAL_WRITE).unwrap();
        device.check().unwrap();
        device.verbs.dereg_mr(region).unwrap();
        device.verbs.dealloc_pd(pd).unwrap();
        assert_eq!(device.teardown().unwrap().pages_kept, 0);
    }

    #[test]
    fn a_device_that_stops_is_an_error_with_its_name() {
        let mut device = Device::bring_up(host(), &Arc::default()).unwrap();
        device.host.inner().with_device(|device| device.set_removed(true));
        let error = (0..10)
            .find_map(|_| {
                device.host.inner().world().advance(Duration::from_secs(2));
                device.check().err()
            })
            .unwrap();
        assert!(format!("{error:#}").starts_with("device: "), "{error:#}");
    }

    #[test]
    fn firmware_that_stops_is_an_error_and_ends_the_wait_for_completions() {
        let mut device = Device::bring_up(host(), &Arc::default()).unwrap();
        let mut cq = device.verbs.create_cq(16).unwrap();
        device.check().unwrap();
        let opcode = CmdOpcode::QueryIssi.code() as u16;
        device.host.inner().with_device(|device| {
            device.freeze_health(true);
            device.faults_mut().arm(Fault::StuckCommand { opcode });
        });
        let error = (0..10)
            .find_map(|_| {
                device.host.inner().world().advance(Duration::from_secs(2));
                device.check().err()
            })
            .unwrap();
        assert!(format!("{error:#}").contains("timed out; the device is lost"), "{error:#}");
        let polled = cq.poll(&mut [Completion::EMPTY]);
        assert_eq!(polled, Err(PollCqError::DeviceLost { loss: DeviceLoss::NoAnswer }));
    }

    #[test]
    fn waiting_ends_with_an_interrupt_or_in_time() {
        let device = Device::bring_up(host(), &Arc::default()).unwrap();
        while device.host.wait(Duration::from_millis(1)).unwrap() {}
        let start = device.host.now();
        assert!(!device.host.wait(Duration::from_secs(1)).unwrap());
        assert!(device.host.now().since(start) >= Duration::from_secs(1));
    }
}

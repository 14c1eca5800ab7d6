//! A card of this machine, owned through VFIO.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use bareverbs::{AddressMap, Clock as _, Instant};
use bareverbs_mlx5::{Config, Machine};
use bareverbs_vfio::pci::Address;
use bareverbs_vfio::{Device, DmaBuffer, Interrupt, MonotonicClock, VfioPlatform, wait_any};

use super::Host;

/// MSI-X vectors in use: one for commands, asynchronous events and page requests, one for completions.
const VECTORS: u16 = 2;

/// A card that this process owns.
#[derive(Debug)]
pub struct Card {
    name: String,
    device: Device,
    interrupts: Vec<Interrupt>,
    clock: MonotonicClock,
}

impl Card {
    /// Takes the function at `address`.
    ///
    /// # Errors
    /// What stands in the way, and what mends it.
    pub fn open(address: Address) -> Result<Self> {
        let open = || {
            let device = Device::open(address)?;
            let interrupts = device.interrupts(VECTORS)?;
            Ok(Self { name: address.to_string(), device, interrupts, clock: MonotonicClock::new() })
        };
        open().map_err(with_remedy).with_context(|| address.to_string())
    }
}

/// The error with what mends it, for people.
fn with_remedy(error: bareverbs_vfio::Error) -> anyhow::Error {
    match error.remedy() {
        Some(remedy) => anyhow::anyhow!("{error}\n  {remedy}"),
        None => error.into(),
    }
}

impl Host for Card {
    type Platform = VfioPlatform;

    fn name(&self) -> &str {
        &self.name
    }

    fn config(&self) -> Config {
        self.device.driver_config()
    }

    fn machine(&self, arena: usize) -> Result<Machine<VfioPlatform>> {
        self.device.machine(arena).map_err(with_remedy).with_context(|| self.name().to_string())
    }

    fn memory(&self, len: usize) -> Result<DmaBuffer> {
        self.device.memory(len).map_err(with_remedy).with_context(|| self.name().to_string())
    }

    fn region<'a>(&self, memory: &'a DmaBuffer) -> (u64, &'a dyn AddressMap) {
        (memory.addr(), memory)
    }

    fn now(&self) -> Instant {
        self.clock.now()
    }

    fn relax(&self) {
        std::hint::spin_loop();
    }

    fn wait(&self, timeout: Duration) -> Result<bool> {
        let notices = [self.device.removal(), self.device.failure()].into_iter().flatten();
        let all: Vec<&Interrupt> = self.interrupts.iter().chain(notices).collect();
        if !wait_any(&all, timeout)? {
            return Ok(false);
        }
        let mut came = false;
        for interrupt in &self.interrupts {
            came |= interrupt.take()? != 0;
        }
        if !came {
            self.check()?;
        }
        Ok(came)
    }

    fn check(&self) -> Result<()> {
        let came = |notice: Option<&Interrupt>| notice.map_or(Ok(0), Interrupt::take);
        if came(self.device.removal())? != 0 {
            bail!("the kernel wants device {} back: it is being unbound or removed", self.name());
        }
        if came(self.device.failure())? != 0 {
            bail!("device {} is broken: the bus reported an error that cannot be corrected", self.name());
        }
        Ok(())
    }

    fn pci_device_id(&self) -> u16 {
        self.device.pci_device_id()
    }
}

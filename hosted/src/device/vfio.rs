//! A card of this machine, through VFIO.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, bail};
use bareverbs::platform::{Clock as _, Instant, Machine};
use bareverbs_mlx5::Config;
use bareverbs_vfio::pci::Address;
use bareverbs_vfio::{Device, DmaAllocation, FirmwarePages, Interrupt, MonotonicClock, VfioPlatform, wait_any};

use super::card_error::CardError;
use super::host::Host;
use crate::status_line::{QUIET_TIME, StatusLine};
use crate::stop::Interrupted;

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
    /// Opens the function at `address`, and waits for its answer as long as `stop` is not set. If standard error is a terminal, a line
    /// there shows the wait.
    ///
    /// # Errors
    /// The function cannot be used; the error contains the remedy. [`Interrupted`] if `stop` was set.
    pub fn open(address: Address, stop: &AtomicBool) -> Result<Self> {
        let name = address.to_string();
        let of_card = |error| of_card(&error, &name);
        let mut line = None;
        let hook = |waited: Duration| {
            if waited > QUIET_TIME
                && let Some(line) = line.get_or_insert_with(StatusLine::new)
            {
                line.show(format!("waiting for {name} to answer after its reset: {} s", waited.as_secs()));
            }
            if stop.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let device = match Device::open_with(address, hook) {
            Err(_) if stop.load(Ordering::Relaxed) => return Err(Interrupted.into()),
            opened => opened.map_err(of_card)?,
        };
        let interrupts = device.interrupts(VECTORS).map_err(of_card)?;
        Ok(Self { name, device, interrupts, clock: MonotonicClock::new() })
    }
}

/// Converts an error of the card at `address`.
fn of_card(error: &bareverbs_vfio::Error, address: &str) -> anyhow::Error {
    CardError::new(address, error, Some(error.remedy())).into()
}

impl Host for Card {
    type Platform = VfioPlatform;
    type Buffer = DmaAllocation;

    fn name(&self) -> &str {
        &self.name
    }

    fn config(&self) -> Config {
        Config { virtual_function: self.device.is_virtual_function(), ..Config::DEFAULT }
    }

    fn machine(&self, arena: usize) -> Result<Machine<VfioPlatform>> {
        self.device.machine(arena).map_err(|error| of_card(&error, self.name()))
    }

    fn pages_refused(&self, pages: &FirmwarePages) -> Option<anyhow::Error> {
        pages.refused().map(|error| of_card(error, self.name()))
    }

    fn buffer(&self, len: usize) -> Result<DmaAllocation> {
        self.device.memory(len).map_err(|error| of_card(&error, self.name()))
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

    fn pci_ids(&self) -> (u16, u8) {
        (self.device.pci_device_id(), self.device.pci_revision())
    }
}

#[cfg(test)]
mod tests {
    use bareverbs_vfio::Error;
    use bareverbs_vfio::pci::Obstacle;

    use super::*;

    #[test]
    fn an_error_names_its_card_once_and_the_remedy_below() {
        let address: Address = "0000:01:00.0".parse().unwrap();
        let text = |error: Error| of_card(&error, "0000:01:00.0").to_string();
        assert_eq!(
            text(Error::NoSuchFunction { address }),
            "there is no PCI function 0000:01:00.0\n  remedy: bareverbs devices (lists the functions that can be used)"
        );
        assert_eq!(
            text(Error::Obstacle(Obstacle::ModuleNotLoaded)),
            "0000:01:00.0: the kernel module vfio-pci is not loaded\n  remedy: sudo modprobe vfio-pci"
        );
        let silent = text(Error::NoRegisters { address, waited: Duration::from_millis(120_004) });
        assert!(
            silent.starts_with(
                "0000:01:00.0 does not answer: its registers (BAR0) read as all ones after 120 s, its configuration space does not\n  \
                 remedy: switch the power of the machine off and on"
            ),
            "{silent}"
        );
        let taken = text(Error::RegistersTaken);
        assert!(
            taken.starts_with("0000:01:00.0: the registers of the device were handed out before\n  remedy: keep them"),
            "{taken}"
        );
    }
}

//! The interface of subcommands to a machine with one device.

use std::time::Duration;

use anyhow::{Error, Result};
use bareverbs::DmaBuffer;
use bareverbs::platform::{Instant, Machine, Platform};
use bareverbs_mlx5::Config;
use bareverbs_sim::in_process::Host as SimHost;

/// A host with one device, simulated or behind VFIO.
pub trait Host {
    /// Registers, memory, fences and clock of the driver.
    type Platform: Platform + 'static;

    /// Memory to be registered.
    type Buffer: DmaBuffer + 'static;

    /// Returns the name of the device for messages: a PCI address, or the name of a simulated one.
    fn name(&self) -> &str;

    /// Returns the driver's configuration for this host.
    fn config(&self) -> Config {
        Config::DEFAULT
    }

    /// Creates the machine for the driver, with `arena` bytes of memory. Succeeds once.
    ///
    /// # Errors
    /// The device or the memory is not available.
    fn machine(&self, arena: usize) -> Result<Machine<Self::Platform>>;

    /// Returns why the pages for the firmware did not suffice, if the host knows more than their number.
    fn pages_refused(&self, _pages: &<Self::Platform as Platform>::Pages) -> Option<Error> {
        None
    }

    /// Allocates `len` zeroed bytes that the device can access, to be registered.
    ///
    /// # Errors
    /// The memory is not available, or cannot be mapped for the device.
    fn buffer(&self, len: usize) -> Result<Self::Buffer>;

    /// Returns the current time of the driver's clock.
    fn now(&self) -> Instant;

    /// Pauses between two polls of a completion queue; simulated devices work meanwhile.
    fn relax(&self);

    /// Waits up to `timeout` for an interrupt of the device. Returns whether there was one.
    ///
    /// # Errors
    /// The host cannot report interrupts any more.
    fn wait(&self, timeout: Duration) -> Result<bool>;

    /// Checks that the device is still present.
    ///
    /// # Errors
    /// The device is being unbound or removed, or the bus has reported a fatal error.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Returns device ID and revision in PCI configuration space, which the driver cannot read.
    fn pci_ids(&self) -> (u16, u8);

    /// Returns the simulated machine, if it is one: it also reports retries, findings and packets.
    fn simulated(&self) -> Option<&SimHost> {
        None
    }
}

//! What a subcommand needs of a machine with one device, beside the verbs.

use std::time::Duration;

use anyhow::Result;
use bareverbs::{DmaBuffer, Instant, Machine, Platform};
use bareverbs_mlx5::Config;
use bareverbs_sim::in_process::Host as SimHost;

/// A host with one device: what a subcommand needs beside the verbs.
pub trait Host {
    /// Registers, memory, fences and clock of the driver.
    type Platform: Platform + 'static;

    /// Memory to be registered.
    type Buffer: DmaBuffer + 'static;

    /// Name of the device as people know it: a PCI address, or the name of a simulated one.
    fn name(&self) -> &str;

    /// Returns the driver's configuration for this host.
    fn config(&self) -> Config {
        Config::DEFAULT
    }

    /// What the driver gets: the device's registers and `arena` bytes of memory. Works once.
    ///
    /// # Errors
    /// The device or the memory cannot be had.
    fn machine(&self, arena: usize) -> Result<Machine<Self::Platform>>;

    /// `len` zeroed bytes that the device reaches, to be registered.
    ///
    /// # Errors
    /// The memory cannot be had, or not be mapped for the device.
    fn buffer(&self, len: usize) -> Result<Self::Buffer>;

    /// The present moment of the driver's clock.
    fn now(&self) -> Instant;

    /// Called between two looks at a completion queue; simulated devices work meanwhile.
    fn relax(&self);

    /// Waits until the device interrupts, at most for `timeout`; whether it did.
    ///
    /// # Errors
    /// The host cannot report interrupts any more.
    fn wait(&self, timeout: Duration) -> Result<bool>;

    /// Looks whether the host still has its device.
    ///
    /// # Errors
    /// The device is being taken away, or the bus found it broken.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Device ID in PCI configuration space, which the driver does not see.
    fn pci_device_id(&self) -> u16;

    /// The simulated machine, if it is one: it also reports what a card does not (retries, findings, packets).
    fn simulated(&self) -> Option<&SimHost> {
        None
    }
}

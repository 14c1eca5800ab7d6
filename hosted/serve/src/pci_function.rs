//! The PCI function of a vfio-user client: regions, interrupts and memory.

use std::fs::File;
use std::io;
use std::sync::Arc;

use bareverbs_sim::{CONFIG_SPACE, Device};
use vfio_bindings::bindings::vfio::{
    VFIO_IRQ_INFO_EVENTFD, VFIO_IRQ_INFO_NORESIZE, VFIO_PCI_BAR0_REGION_INDEX, VFIO_PCI_CONFIG_REGION_INDEX,
    VFIO_PCI_MSIX_IRQ_INDEX,
};

use crate::client_memory::ClientMemory;
use crate::devices::DeviceHandle;
use crate::error::Gone;
use crate::interrupts::{self, Vectors};
use crate::log::RateLimited;
use crate::message_reader::MAX_DESCRIPTORS;
use crate::protocol::{Backend, Map};

/// Maximum length of an access to a region in bytes: more than a whole BlueFlame register.
const MAX_ACCESS: usize = 4096;

/// One function. The simulated device itself belongs to [`crate::devices::Devices`].
pub(crate) struct PciFunction {
    name: String,
    lines: Arc<RateLimited>,
    vectors: u16,
    handle: DeviceHandle,
    memory: Arc<ClientMemory>,
}

impl From<Gone> for io::Error {
    fn from(_: Gone) -> Self {
        Self::from(io::ErrorKind::NotConnected)
    }
}

fn wrong() -> io::Error {
    io::ErrorKind::InvalidInput.into()
}

impl PciFunction {
    pub(crate) fn new(
        name: String,
        lines: Arc<RateLimited>,
        vectors: u16,
        handle: DeviceHandle,
        memory: Arc<ClientMemory>,
    ) -> Self {
        Self { name, lines, vectors, handle, memory }
    }

    /// Returns the name of the function for messages.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the memory of its client.
    pub(crate) fn memory(&self) -> &ClientMemory {
        &self.memory
    }

    /// Resets the function after its client has disconnected, and removes the client's memory and event descriptors. Returns the
    /// objects that the client had not freed, as text.
    pub(crate) fn disconnect(&self) -> Result<String, Gone> {
        let left = self.handle.reset(|slot| slot.left())?;
        // In the other order, an interrupt raised before the reset could reach the next client.
        drop(self.handle.vectors(Vectors::clear)?);
        self.memory.disconnect();
        Ok(left)
    }
}

impl Backend for PciFunction {
    fn region_len(&self, region: u32) -> u64 {
        match region {
            VFIO_PCI_BAR0_REGION_INDEX => Device::bar_len(),
            VFIO_PCI_CONFIG_REGION_INDEX => CONFIG_SPACE as u64,
            _ => 0,
        }
    }

    /// Returns MSI-X only.
    fn interrupts(&self, index: u32) -> (u32, u32) {
        match index {
            VFIO_PCI_MSIX_IRQ_INDEX => (self.vectors.into(), VFIO_IRQ_INFO_EVENTFD | VFIO_IRQ_INFO_NORESIZE),
            _ => (0, 0),
        }
    }

    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> io::Result<()> {
        if data.len() > MAX_ACCESS {
            return Err(wrong());
        }
        self.handle.inspect(|slot| {
            match region {
                VFIO_PCI_BAR0_REGION_INDEX => slot.device.bar_read(offset, data),
                VFIO_PCI_CONFIG_REGION_INDEX => match usize::try_from(offset) {
                    Ok(offset) => slot.device.config_read(offset, data),
                    Err(_) => data.fill(0xff),
                },
                _ => return Err(wrong()),
            }
            Ok(())
        })?
    }

    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> io::Result<()> {
        if data.len() > MAX_ACCESS {
            return Err(wrong());
        }
        self.handle.ask(|slot| {
            match region {
                VFIO_PCI_BAR0_REGION_INDEX => slot.device.bar_write(offset, data),
                VFIO_PCI_CONFIG_REGION_INDEX => {
                    slot.device.config_write(usize::try_from(offset).map_err(|_| wrong())?, data);
                }
                _ => return Err(wrong()),
            }
            Ok(())
        })?
    }

    fn dma_map(&mut self, map: Map, file: Option<File>) -> io::Result<()> {
        let Map { addr, len, offset, writable } = map;
        self.memory.map(addr, len, writable, file, offset).map_err(|error| {
            self.lines.line(format_args!("memory at {addr:#x}, {len} bytes, is not taken: {error}"));
            error.into()
        })
    }

    fn dma_unmap(&mut self, range: Option<(u64, u64)>) -> io::Result<()> {
        match range {
            None => self.memory.clear(),
            Some((addr, len)) => self.memory.unmap(addr, len).map_err(|error| {
                self.lines.line(format_args!("memory at {addr:#x}, {len} bytes, is not given back: {error}"));
                io::Error::from(error)
            })?,
        }
        Ok(())
    }

    fn descriptors_lost(&mut self) {
        self.lines.line(format_args!(
            "a message is refused whose descriptors did not all arrive: {MAX_DESCRIPTORS} may come with one, or this process has \
             as many as it may (ulimit -n)"
        ));
    }

    fn reset(&mut self) -> io::Result<()> {
        Ok(self.handle.reset(|_| ())?)
    }

    fn set_irqs(&mut self, index: u32, flags: u32, start: u32, count: u32, fds: Vec<File>) -> io::Result<()> {
        match index {
            VFIO_PCI_MSIX_IRQ_INDEX => {
                // Closing an unknown descriptor may block: only this thread does so, without the lock.
                if !fds.iter().all(interrupts::is_event) {
                    return Err(wrong());
                }
                let mut unused = fds;
                self.handle.vectors(|vectors| vectors.set(flags, start, count, &mut unused))?
            }
            // Clients disable kinds of interrupts that the function does not have.
            _ if count == 0 => Ok(()),
            _ => Err(wrong()),
        }
    }
}

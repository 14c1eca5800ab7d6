//! The PCI function as a vfio-user client sees it: regions, interrupts, memory.

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

/// Longest access to a region: the greatest there is on a bus, a whole BlueFlame register, with room to spare.
const MAX_ACCESS: usize = 4096;

/// One function, as its client sees it. The devices own its device.
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

    /// Its name, for people.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// What it reaches of its client.
    pub(crate) fn memory(&self) -> &ClientMemory {
        &self.memory
    }

    /// The client is gone: nothing of it may be touched any more.
    /// Says what the client had not given back.
    pub(crate) fn disconnect(&self) -> Result<String, Gone> {
        let left = self.handle.reset(|slot| slot.left())?;
        // The other way round one that came up before could reach the next client.
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

    /// MSI-X only.
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
                // What closes a descriptor may wait for whatever it is: that is for this thread alone, without the lock.
                if !fds.iter().all(interrupts::is_event) {
                    return Err(wrong());
                }
                let mut unused = fds;
                self.handle.vectors(|vectors| vectors.set(flags, start, count, &mut unused))?
            }
            // Clients turn off kinds of interrupts that there are none of.
            _ if count == 0 => Ok(()),
            _ => Err(wrong()),
        }
    }
}

//! The PCI function as a vfio-user client sees it: regions, interrupts, memory.

use std::fs::File;
use std::io;
use std::sync::Arc;

use bareverbs_sim::{CONFIG_SPACE, Device};
use vfio_bindings::bindings::vfio::{
    VFIO_IRQ_INFO_EVENTFD, VFIO_IRQ_INFO_NORESIZE, VFIO_PCI_BAR0_REGION_INDEX, VFIO_PCI_CONFIG_REGION_INDEX,
    VFIO_PCI_MSIX_IRQ_INDEX, VFIO_PCI_NUM_IRQS, VFIO_PCI_NUM_REGIONS, VFIO_REGION_INFO_FLAG_READ, VFIO_REGION_INFO_FLAG_WRITE,
    vfio_region_info,
};
use vfio_user::{DmaMapFlags, DmaUnmapFlags, IrqInfo, ServerBackend, ServerRegion};

use super::memory::ClientMemory;
use super::subnet::{Gone, Handle};

/// Longest access to a region: the greatest there is on a bus, a whole BlueFlame register, with room to spare.
const LONGEST_ACCESS: usize = 4096;

/// One function. Its device lives in the subnet.
pub(crate) struct Function {
    handle: Handle,
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

impl Function {
    pub(crate) fn new(handle: Handle, memory: Arc<ClientMemory>) -> Self {
        Self { handle, memory }
    }

    /// The client is gone: nothing of it may be touched any more.
    /// Says what the client had not given back.
    pub(crate) fn disconnect(&self) -> Result<String, Gone> {
        self.handle.ask(|station| {
            let left = station.left();
            station.vectors.clear();
            station.reset();
            self.memory.clear();
            left
        })
    }
}

/// The regions of a function.
pub(crate) fn regions() -> Vec<ServerRegion> {
    (0..VFIO_PCI_NUM_REGIONS)
        .map(|index| {
            let size = match index {
                VFIO_PCI_BAR0_REGION_INDEX => Device::bar_len(),
                VFIO_PCI_CONFIG_REGION_INDEX => CONFIG_SPACE as u64,
                _ => 0,
            };
            let flags = if size > 0 { VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE } else { 0 };
            let argsz = size_of::<vfio_region_info>() as u32;
            let region_info = vfio_region_info { argsz, flags, index, size, ..Default::default() };
            ServerRegion { region_info, sparse_areas: Vec::new(), mmap_fd: None }
        })
        .collect()
}

/// The interrupts of a function: MSI-X only.
pub(crate) fn interrupts(vectors: u16) -> Vec<IrqInfo> {
    (0..VFIO_PCI_NUM_IRQS)
        .map(|index| match index {
            VFIO_PCI_MSIX_IRQ_INDEX => {
                IrqInfo { index, flags: VFIO_IRQ_INFO_EVENTFD | VFIO_IRQ_INFO_NORESIZE, count: vectors.into() }
            }
            _ => IrqInfo { index, flags: 0, count: 0 },
        })
        .collect()
}

impl ServerBackend for Function {
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> io::Result<()> {
        if data.len() > LONGEST_ACCESS {
            return Err(wrong());
        }
        self.handle.ask(|station| {
            match region {
                VFIO_PCI_BAR0_REGION_INDEX => station.device.bar_read(offset, data),
                VFIO_PCI_CONFIG_REGION_INDEX => match usize::try_from(offset) {
                    Ok(offset) => station.device.config_read(offset, data),
                    Err(_) => data.fill(0xff),
                },
                _ => return Err(wrong()),
            }
            Ok(())
        })?
    }

    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> io::Result<()> {
        if data.len() > LONGEST_ACCESS {
            return Err(wrong());
        }
        self.handle.ask(|station| {
            match region {
                VFIO_PCI_BAR0_REGION_INDEX => station.device.bar_write(offset, data),
                VFIO_PCI_CONFIG_REGION_INDEX => {
                    station.device.config_write(usize::try_from(offset).map_err(|_| wrong())?, data);
                }
                _ => return Err(wrong()),
            }
            Ok(())
        })?
    }

    fn dma_map(&mut self, flags: DmaMapFlags, offset: u64, address: u64, size: u64, fd: Option<File>) -> io::Result<()> {
        self.memory.map(address, size, flags.contains(DmaMapFlags::WRITE), fd, offset)?;
        Ok(())
    }

    fn dma_unmap(&mut self, flags: DmaUnmapFlags, address: u64, size: u64) -> io::Result<()> {
        if flags.contains(DmaUnmapFlags::UNMAP_ALL) {
            self.memory.clear();
            return Ok(());
        }
        self.memory.unmap(address, size)?;
        Ok(())
    }

    fn reset(&mut self) -> io::Result<()> {
        Ok(self.handle.ask(|station| station.reset())?)
    }

    fn set_irqs(&mut self, index: u32, flags: u32, start: u32, count: u32, fds: Vec<File>) -> io::Result<()> {
        match index {
            VFIO_PCI_MSIX_IRQ_INDEX => self.handle.ask(move |station| station.vectors.set(flags, start, count, fds))?,
            // Clients turn off kinds of interrupts that there are none of.
            _ if count == 0 => Ok(()),
            _ => Err(wrong()),
        }
    }
}

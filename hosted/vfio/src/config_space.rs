//! PCI configuration space through the descriptor of the device. Errors are returned, which `vfio-ioctls` only logs.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use crate::error::Error;

/// Vendor and device ID (PCI Local Bus Specification 3.0, 6.2.1).
const IDS: u64 = 0x00;
/// Command register.
const COMMAND: u64 = 0x04;
/// Revision ID.
const REVISION: u64 = 0x08;
/// Command: the device decodes accesses to its BARs (Memory Space).
const MEMORY: u16 = 1 << 1;
/// Command: the device may issue DMA and MSI (Bus Master).
const BUS_MASTER: u16 = 1 << 2;

/// Configuration space of a device, at `offset` of its descriptor.
#[derive(Debug)]
pub(crate) struct ConfigSpace {
    file: File,
    offset: u64,
}

impl ConfigSpace {
    pub(crate) const fn new(file: File, offset: u64) -> Self {
        Self { file, offset }
    }

    /// Returns the descriptor of the device, which contains configuration space.
    pub(crate) const fn descriptor(&self) -> &File {
        &self.file
    }

    fn read<const N: usize>(&self, at: u64) -> Result<[u8; N], Error> {
        let mut bytes = [0; N];
        let read = self.file.read_exact_at(&mut bytes, self.offset + at);
        read.map(|()| bytes).map_err(|error| Error::io("PCI configuration space cannot be read", error))
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Error> {
        let written = self.file.write_all_at(bytes, self.offset + at);
        written.map_err(|error| Error::io("PCI configuration space cannot be written", error))
    }

    /// Returns vendor and device ID.
    pub(crate) fn ids(&self) -> Result<(u16, u16), Error> {
        let [a, b, c, d] = self.read(IDS)?;
        Ok((u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d])))
    }

    /// Returns the revision.
    pub(crate) fn revision(&self) -> Result<u8, Error> {
        let [revision] = self.read(REVISION)?;
        Ok(revision)
    }

    /// Enables memory decoding and bus mastering.
    pub(crate) fn enable(&self) -> Result<(), Error> {
        let command = u16::from_le_bytes(self.read(COMMAND)?) | MEMORY | BUS_MASTER;
        self.write(COMMAND, &command.to_le_bytes())?;
        let now = u16::from_le_bytes(self.read(COMMAND)?);
        if now & (MEMORY | BUS_MASTER) == MEMORY | BUS_MASTER {
            return Ok(());
        }
        Err(Error::io("PCI command register", io::Error::other(format!("memory and bus mastering stay off ({now:#06x})"))))
    }

    /// Disables bus mastering.
    pub(crate) fn disable(&self) -> Result<(), Error> {
        let command = u16::from_le_bytes(self.read(COMMAND)?) & !BUS_MASTER;
        self.write(COMMAND, &command.to_le_bytes())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn space(bytes: &[u8]) -> ConfigSpace {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[0xee; 16]).unwrap();
        file.write_all(bytes).unwrap();
        ConfigSpace::new(file, 16)
    }

    #[test]
    fn only_the_two_bits_of_the_command_change() {
        let space = space(&[0xb3, 0x15, 0x1d, 0x10, 0x40, 0x01, 0x10, 0x00, 0x5a, 0x00, 0x00, 0x02]);
        assert_eq!(space.ids().unwrap(), (0x15b3, 0x101d));
        assert_eq!(space.revision().unwrap(), 0x5a);
        space.enable().unwrap();
        assert_eq!(space.read::<8>(0).unwrap(), [0xb3, 0x15, 0x1d, 0x10, 0x46, 0x01, 0x10, 0x00]);
        space.disable().unwrap();
        assert_eq!(space.read::<8>(0).unwrap(), [0xb3, 0x15, 0x1d, 0x10, 0x42, 0x01, 0x10, 0x00]);
    }

    #[test]
    fn a_short_configuration_space_is_an_error() {
        assert!(matches!(space(&[1, 2]).ids(), Err(Error::Io { .. })));
    }

    /// A command register that keeps nothing, as that of a function that is gone: /dev/zero takes every write and reads as zeros.
    #[test]
    fn a_command_that_does_not_stay_is_an_error() {
        let file = File::options().read(true).write(true).open("/dev/zero").unwrap();
        let refused = ConfigSpace::new(file, 0).enable().unwrap_err().to_string();
        assert!(refused.contains("memory and bus mastering stay off (0x0000)"), "{refused}");
        let read_only = ConfigSpace::new(File::open("/dev/zero").unwrap(), 0).enable().unwrap_err().to_string();
        assert!(read_only.starts_with("PCI configuration space cannot be written"), "{read_only}");
    }
}

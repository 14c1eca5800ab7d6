//! PCI configuration space: what firmware and kernel see before any driver.

mod gateway;

use self::gateway::{Gateway, Request};
use crate::registers::bar0::{BAR0_SIZE, MSIX_PENDING, MSIX_TABLE};

pub(crate) use self::gateway::MAILBOX_LEN;

/// Bytes of configuration space.
pub const CONFIG_SPACE: usize = 4096;

const VENDOR: u16 = 0x15b3;
const COMMAND: usize = 0x04;
const CLASS: usize = 0x08;
const BAR0: usize = 0x10;
const CAP_POWER: usize = 0x40;
const CAP_EXPRESS: usize = 0x60;
const CAP_MSIX: usize = 0x9c;
const CAP_VENDOR: usize = 0xb0;
/// Where extended capabilities begin.
const EXTENDED: usize = 0x100;
const DEVICE_CONTROL: usize = CAP_EXPRESS + 8;
const MSIX_CONTROL: usize = CAP_MSIX + 2;

/// What a write of configuration space asks of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConfigEffect {
    /// Nothing beyond the registers themselves.
    None,
    /// Function-level reset.
    Reset,
    /// The MSI-X control word may have changed: pending interrupts may be sent.
    Msix,
    /// The gateway is asked for the register at this byte of BAR0: [`ConfigSpace::scanned`] answers.
    Scan {
        /// Byte of BAR0.
        at: usize,
    },
    /// The gateway is asked for a command on its mailbox: [`ConfigSpace::mailbox`], [`ConfigSpace::commanded`].
    Command {
        /// Opcode.
        opcode: u16,
    },
}

/// Returns the number of the chip with a PCI device id, as its registers give it.
fn chip_number(device_id: u16) -> u32 {
    match device_id {
        0x1011 | 0x1012 => 0x1ff,
        0x1013 | 0x1014 => 0x209,
        0x1015 | 0x1016 => 0x20b,
        0x1017..=0x101a => 0x20d,
        0x101b | 0x101c => 0x20f,
        0x101d | 0x101e => 0x212,
        0x101f => 0x216,
        0x1021 => 0x218,
        0x1023 => 0x21e,
        0xa2d6 => 0x214,
        0xa2dc => 0x21c,
        // A chip whose firmware did not start shows its own number as device id.
        other => other.into(),
    }
}

/// Configuration space of the function.
#[derive(Clone, Debug)]
pub(crate) struct ConfigSpace {
    bytes: Vec<u8>,
    /// Bits that a write changes.
    writable: Vec<u8>,
    gateway: Gateway,
}

impl ConfigSpace {
    /// `scan_size`: bytes of BAR0's registers that the gateway shows.
    pub(crate) fn new(device_id: u16, vectors: u16, scan_size: u32) -> Self {
        let gateway = Gateway::new(scan_size, chip_number(device_id));
        let mut space = Self { bytes: vec![0; CONFIG_SPACE], writable: vec![0; CONFIG_SPACE], gateway };
        space.put16(0x00, VENDOR, 0);
        space.put16(0x02, device_id, 0);
        // Memory space, bus master, parity response, SERR, INTx disable.
        space.put16(COMMAND, 0, 0x0546);
        space.put16(0x06, 0x0010, 0);
        // Revision 0, class 0x020700: InfiniBand network controller.
        space.put32(CLASS, 0x0207_0000, 0);
        space.put32(0x0c, 0, 0x0000_00ff);
        // 64-bit, prefetchable; only the address bits above the size can be written, which answers a sizing write.
        space.put32(BAR0, 0x0000_000c, !(BAR0_SIZE as u32 - 1));
        space.put32(BAR0 + 4, 0, u32::MAX);
        space.put16(0x2c, VENDOR, 0);
        space.put16(0x2e, 0x0001, 0);
        space.put16(0x34, CAP_EXPRESS as u16, 0);
        space.put16(0x3c, 0, 0x00ff);

        // PCI Express endpoint, capability version 2, with function-level reset.
        space.put16(CAP_EXPRESS, (CAP_MSIX as u16) << 8 | 0x10, 0);
        space.put16(CAP_EXPRESS + 2, 0x0002, 0);
        space.put32(CAP_EXPRESS + 4, 1 << 28 | 1 << 15 | 2, 0);
        space.put16(DEVICE_CONTROL, 0x2810, 0x7fff);
        // 16 lanes at 16 GT/s, as capability and as state of the link.
        space.put32(CAP_EXPRESS + 0x0c, 16 << 4 | 4, 0);
        space.put16(CAP_EXPRESS + 0x10, 0, 0x01ff);
        space.put16(CAP_EXPRESS + 0x12, 16 << 4 | 4, 0);
        // Completion timeout ranges and disable; speeds up to 16 GT/s.
        space.put32(CAP_EXPRESS + 0x24, 0x1f, 0);
        space.put16(CAP_EXPRESS + 0x28, 0, 0x001f);
        space.put32(CAP_EXPRESS + 0x2c, 0x1e, 0);
        space.put16(CAP_EXPRESS + 0x30, 4, 0x000f);

        space.put16(CAP_MSIX, (CAP_POWER as u16) << 8 | 0x11, 0);
        space.put16(MSIX_CONTROL, vectors.saturating_sub(1) & 0x7ff, 0xc000);
        space.put32(CAP_MSIX + 4, MSIX_TABLE as u32, 0);
        space.put32(CAP_MSIX + 8, MSIX_PENDING as u32, 0);

        // Power management, version 3, state kept over D3hot.
        space.put16(CAP_POWER, (CAP_VENDOR as u16) << 8 | 0x0001, 0);
        space.put16(CAP_POWER + 2, 0x0003, 0);
        space.put16(CAP_POWER + 4, 0x0008, 0x0003);

        // The gateway, whose registers are in gateway.rs.
        space.put16(CAP_VENDOR, 0x0009, 0);
        space.put16(CAP_VENDOR + 2, gateway::SIZE as u16, 0);

        // Access control services, the only extended capability, with nothing to control: the function sends nothing to its
        // neighbours in the slot. Without it Linux puts all functions of a slot into one IOMMU group (`pci_acs_enabled`). ConnectX
        // cards have it so.
        space.put32(EXTENDED, 1 << 16 | 0x000d, 0);
        space.put32(EXTENDED + 4, 0, 0);
        space
    }

    fn put(&mut self, at: usize, value: &[u8], writable: &[u8]) {
        for (i, (value, writable)) in value.iter().zip(writable).enumerate() {
            if let (Some(byte), Some(mask)) = (self.bytes.get_mut(at + i), self.writable.get_mut(at + i)) {
                *byte = *value;
                *mask = *writable;
            }
        }
    }

    fn put16(&mut self, at: usize, value: u16, writable: u16) {
        self.put(at, &value.to_le_bytes(), &writable.to_le_bytes());
    }

    fn put32(&mut self, at: usize, value: u32, writable: u32) {
        self.put(at, &value.to_le_bytes(), &writable.to_le_bytes());
    }

    fn word(&self, at: usize) -> u16 {
        self.bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u16::from_le_bytes(*bytes))
    }

    /// Makes it the configuration space of an Ethernet controller.
    pub(crate) fn with_ethernet_class(mut self) -> Self {
        // Revision 0, class 0x020000.
        self.put32(CLASS, 0x0200_0000, 0);
        self
    }

    /// Copies registers out; what lies beyond the space reads as zero.
    pub(crate) fn read(&mut self, offset: usize, into: &mut [u8]) {
        for (i, byte) in into.iter_mut().enumerate() {
            *byte = self.bytes.get(offset.saturating_add(i)).copied().unwrap_or(0);
        }
        if let Some(at) = gateway_register(offset) {
            // Not more than the register in which the access begins.
            let register = self.gateway.read(at).to_le_bytes();
            into.iter_mut().zip(register.into_iter().skip(offset % 4)).for_each(|(to, from)| *to = from);
        }
    }

    /// Returns what a command of the gateway works on and leaves its answer in: dwords in network byte order.
    pub(crate) fn mailbox(&mut self) -> &mut [u8; MAILBOX_LEN] {
        self.gateway.mailbox()
    }

    /// The command that the gateway asked for is done, with this status.
    pub(crate) fn commanded(&mut self, status: u8) {
        self.gateway.commanded(status);
    }

    /// What the gateway asked for: the register at byte `at` of BAR0.
    pub(crate) fn scanned(&mut self, at: usize, value: u32) {
        self.gateway.scanned(at, value);
    }

    /// Writes registers; bits that are fixed keep their value.
    pub(crate) fn write(&mut self, offset: usize, from: &[u8]) -> ConfigEffect {
        if let Some(at) = gateway_register(offset) {
            return self.write_gateway(at, offset % 4, from);
        }
        let mut reset = false;
        for (i, value) in from.iter().enumerate() {
            let at = offset.saturating_add(i);
            if let (Some(byte), Some(mask)) = (self.bytes.get_mut(at), self.writable.get(at)) {
                *byte = (*byte & !mask) | (value & mask);
                reset |= at == DEVICE_CONTROL + 1 && value & 0x80 != 0;
            }
        }
        let end = offset.saturating_add(from.len());
        if reset {
            ConfigEffect::Reset
        } else if offset < MSIX_CONTROL + 2 && end > MSIX_CONTROL {
            ConfigEffect::Msix
        } else {
            ConfigEffect::None
        }
    }

    /// Writes the gateway's register `at` from its byte `first` on. Registers are written by whole dwords; the one that chooses
    /// the space also in part, as iPXE does (`mlx_pci_gw_set_space`).
    fn write_gateway(&mut self, at: usize, first: usize, from: &[u8]) -> ConfigEffect {
        let value = match (at, from.first_chunk()) {
            (_, Some(dword)) if first == 0 => u32::from_le_bytes(*dword),
            (gateway::CONTROL, _) => {
                let mut bytes = self.gateway.read(at).to_le_bytes();
                bytes.iter_mut().skip(first).zip(from).for_each(|(to, from)| *to = *from);
                u32::from_le_bytes(bytes)
            }
            _ => return ConfigEffect::None,
        };
        match self.gateway.write(at, value) {
            Some(Request::Scan(at)) => ConfigEffect::Scan { at },
            Some(Request::Command(opcode)) => ConfigEffect::Command { opcode },
            None => ConfigEffect::None,
        }
    }

    /// Returns whether the function answers in its BAR.
    pub(crate) fn memory_enabled(&self) -> bool {
        self.word(COMMAND) & 0x0002 != 0 && self.word(CAP_POWER + 4) & 3 == 0
    }

    /// Returns whether the function may reach host memory and raise interrupts.
    pub(crate) fn bus_master(&self) -> bool {
        self.word(COMMAND) & 0x0004 != 0 && self.word(CAP_POWER + 4) & 3 == 0
    }

    /// Returns whether MSI-X is on.
    pub(crate) fn msix_enabled(&self) -> bool {
        self.word(MSIX_CONTROL) & 0x8000 != 0
    }

    /// Returns whether all vectors are masked.
    pub(crate) fn msix_masked(&self) -> bool {
        self.word(MSIX_CONTROL) & 0x4000 != 0
    }

    /// Does what a kernel does before its driver starts: memory space, bus master and MSI-X on.
    pub(crate) fn enable(&mut self) {
        let command = self.word(COMMAND) | 0x0406;
        let control = (self.word(MSIX_CONTROL) | 0x8000) & !0x4000;
        self.write(COMMAND, &command.to_le_bytes());
        self.write(MSIX_CONTROL, &control.to_le_bytes());
    }
}

/// Returns the register of the gateway that a byte of the space belongs to.
fn gateway_register(offset: usize) -> Option<usize> {
    let registers = CAP_VENDOR + 4..CAP_VENDOR + gateway::SIZE;
    registers.contains(&offset).then(|| (offset - CAP_VENDOR) & !3)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dword(space: &mut ConfigSpace, at: usize) -> u32 {
        let mut bytes = [0; 4];
        space.read(at, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    #[test]
    fn identity_and_class() {
        let mut space = ConfigSpace::new(0x1021, 32, 0x240);
        assert_eq!(dword(&mut space, 0), 0x1021_15b3);
        assert_eq!(dword(&mut space, 8) >> 8, 0x02_07_00);
    }

    #[test]
    fn bar_0_answers_a_sizing_write() {
        let mut space = ConfigSpace::new(0x1021, 32, 0x240);
        space.write(BAR0, &[0xff; 8]);
        let low = dword(&mut space, BAR0);
        assert_eq!(low & 0xf, 0xc, "64-bit, prefetchable memory");
        let size = (!(u64::from(dword(&mut space, BAR0 + 4)) << 32 | u64::from(low & !0xf))).wrapping_add(1);
        assert_eq!(size, 32 << 20);
        space.write(BAR0, &0x1234_5678_fe00_0000_u64.to_le_bytes());
        assert_eq!(dword(&mut space, BAR0), 0xfe00_000c);
        assert_eq!(dword(&mut space, BAR0 + 4), 0x1234_5678);
    }

    #[test]
    fn the_capability_list_ends_and_names_express_msix_power_and_gateway() {
        let mut space = ConfigSpace::new(0x1021, 32, 0x240);
        let mut at = dword(&mut space, 0x34) as usize & 0xff;
        let mut found = Vec::new();
        while at != 0 && found.len() < 10 {
            found.push(dword(&mut space, at) & 0xff);
            at = (dword(&mut space, at) >> 8) as usize & 0xff;
        }
        assert_eq!(found, [0x10, 0x11, 0x01, 0x09]);
        assert_eq!(dword(&mut space, CAP_MSIX) >> 16, 31, "32 vectors");
        assert_eq!(dword(&mut space, CAP_MSIX + 4), 0x2000);
        assert_eq!(dword(&mut space, CAP_MSIX + 8), 0x3000);
    }

    #[test]
    fn access_control_is_there_with_nothing_to_control() {
        // PCI Express 7.7.8; `lspci -vvv` of a ConnectX-5: "Access Control Services", each service of ACSCap with a minus.
        let mut space = ConfigSpace::new(0x1021, 32, 0x240);
        assert_eq!(dword(&mut space, 0x100), 0x0001_000d, "version 1, the last capability");
        space.write(0x104, &[0xff; 4]);
        assert_eq!(dword(&mut space, 0x104), 0, "a service that is not there cannot be enabled");
    }

    #[test]
    fn the_command_register_gates_and_reset_is_asked_by_device_control() {
        let mut space = ConfigSpace::new(0x1021, 32, 0x240);
        assert!(!space.memory_enabled() && !space.bus_master());
        assert_eq!(space.write(COMMAND, &[0x06, 0]), ConfigEffect::None);
        assert!(space.memory_enabled() && space.bus_master());
        space.write(CAP_POWER + 4, &[3]);
        assert!(!space.memory_enabled(), "in D3hot");
        space.write(CAP_POWER + 4, &[0]);
        assert_eq!(space.write(MSIX_CONTROL, &0x8000_u16.to_le_bytes()), ConfigEffect::Msix);
        assert!(space.msix_enabled() && !space.msix_masked());
        assert_eq!(space.write(DEVICE_CONTROL, &0x8000_u16.to_le_bytes()), ConfigEffect::Reset);
        assert_eq!(dword(&mut space, DEVICE_CONTROL) & 0x8000, 0, "reads as zero");
    }

    #[test]
    fn the_gateway_is_reached_by_whole_dwords() {
        let mut space = ConfigSpace::new(0x1021, 32, 0x240);
        assert_eq!(dword(&mut space, CAP_VENDOR) >> 16, 0x18, "its length");
        assert_eq!(space.write(CAP_VENDOR + 4, &7_u32.to_le_bytes()), ConfigEffect::None);
        assert_eq!(dword(&mut space, CAP_VENDOR + 4), 1 << 29 | 1 << 28 | 7);
        assert_eq!(space.write(CAP_VENDOR + 0x10, &0x230_u32.to_le_bytes()), ConfigEffect::Scan { at: 0x230 });
        space.scanned(0x230, 0x1234_5678);
        assert_eq!(dword(&mut space, CAP_VENDOR + 0x14), 0x1234_5678);
        space.write(CAP_VENDOR + 0x0c, &[1]);
        assert_eq!(dword(&mut space, CAP_VENDOR + 0x0c), 0, "not by bytes");
    }

    #[test]
    fn the_space_is_chosen_by_a_word_and_its_status_read_by_a_byte() {
        // As iPXE's mlx_pci_gw_set_space does.
        let mut space = ConfigSpace::new(0x1021, 32, 0x240);
        for (number, there) in [(3_u16, 0x20), (0xa, 0x20), (4, 0)] {
            space.write(CAP_VENDOR + 4, &number.to_le_bytes());
            let mut status = [0xff];
            space.read(CAP_VENDOR + 7, &mut status);
            assert_eq!(status[0] & 0x20, there, "space {number}");
        }
    }

    #[test]
    fn accesses_beyond_the_space_do_nothing() {
        let mut space = ConfigSpace::new(0x1021, 32, 0x240);
        let mut bytes = [1; 4];
        space.read(usize::MAX, &mut bytes[..1]);
        space.read(4094, &mut bytes);
        assert_eq!(bytes, [0; 4]);
        space.write(usize::MAX - 1, &[1; 4]);
    }
}

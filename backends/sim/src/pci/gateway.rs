//! The vendor-specific capability: a gateway in configuration space that answers when BAR0 does not.
//!
//! Linux's mlx5_core uses it for crash dumps and around resets (`lib/pci_vsc.c`), iPXE for the speed of the link
//! (`mlx_pci_gw.c`, `mlx_icmd.c`) and mstflint for everything (`mtcr_ul_com.c`, `mtcr_ul_icmd_cif.c`). The protocol: a
//! semaphore taken with a unique number, a space chosen, an address written, data read or written.

/// Bytes of the capability.
pub(super) const SIZE: usize = 0x18;
/// Its registers, counted from its start.
pub(super) const CONTROL: usize = 0x04;
const COUNTER: usize = 0x08;
const SEMAPHORE: usize = 0x0c;
const ADDRESS: usize = 0x10;
const DATA: usize = 0x14;

/// In the control register: the space is there, and the address register shows its size until it is written.
const SPACE_EXISTS: u32 = 1 << 29;
const SIZE_VALID: u32 = 1 << 28;
const SPACE: u32 = 0xffff;
/// In the address register: data goes to the device (written), a read is done (read back), there is no such address.
const FLAG: u32 = 1 << 31;
const NO_ADDRESS: u32 = 1 << 30;
/// What reads where nothing is.
const NOTHING: u32 = 0xbada_cce5;

/// Spaces: the chip's registers; commands to the firmware, twice (mstflint checks for the first and uses the second);
/// registers one after another for dumps; semaphores of functions that share a device.
const CR_SPACE: u32 = 0x2;
const ICMD_EXT: u32 = 0x1;
const ICMD: u32 = 0x3;
const SCAN: u32 = 0x7;
const SEMAPHORES: u32 = 0xa;
const SEMAPHORE_COUNT: usize = 64;

/// Of the chip's registers: its number, and whether its firmware has still to be configured (bit 31), which each generation has
/// elsewhere.
const CHIP_NUMBER: u32 = 0xf_0014;
const NOT_CONFIGURED: [u32; 3] = [0xb_0004, 0xb_5e04, 0xb_5f04];

/// In the space of commands: opcode and status, bytes of the mailbox, the mailbox.
const COMMAND: u32 = 0x0;
const MAILBOX_SIZE: u32 = 0x1000;
const MAILBOX: u32 = 0x10_0000;
/// Bytes of the mailbox: more than the largest register with its headers.
pub(crate) const MAILBOX_LEN: usize = 1024;
/// In the command register: it is to be done, or in progress; the rest is the opcode, and above it the status.
const BUSY: u32 = 1;
const OPCODE_SHIFT: u32 = 16;
const STATUS_SHIFT: u32 = 8;

/// What the device is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// The register at this byte of BAR0, for a dump: [`Gateway::scanned`] answers.
    Scan(usize),
    /// The command with this opcode on the mailbox: [`Gateway::commanded`] answers.
    Command(u16),
}

/// The gateway's registers, and the semaphores and the mailbox behind it.
#[derive(Clone, Debug)]
pub(super) struct Gateway {
    control: u32,
    counter: u32,
    owner: u32,
    address: u32,
    data: u32,
    semaphores: [u32; SEMAPHORE_COUNT],
    /// Bytes of the registers that can be dumped.
    scan_size: u32,
    chip: u32,
    command: u32,
    /// Dwords in network byte order, as the firmware takes them.
    mailbox: [u8; MAILBOX_LEN],
}

impl Gateway {
    /// `scan_size`: bytes of the registers that can be dumped, a multiple of four; `chip`: number of the chip.
    pub(super) fn new(scan_size: u32, chip: u32) -> Self {
        Self {
            control: 0,
            counter: 0,
            owner: 0,
            address: 0,
            data: 0,
            semaphores: [0; SEMAPHORE_COUNT],
            scan_size,
            chip,
            command: 0,
            mailbox: [0; MAILBOX_LEN],
        }
    }

    /// Returns the register at byte `at` of the capability. Each read of the counter gives another number, never 0.
    pub(super) fn read(&mut self, at: usize) -> u32 {
        match at {
            CONTROL => self.control,
            COUNTER => {
                self.counter = self.counter.wrapping_add(1).max(1);
                self.counter
            }
            SEMAPHORE => self.owner,
            ADDRESS => self.address,
            DATA => self.data,
            _ => 0,
        }
    }

    /// Takes a register write. Returns what the device is asked for by it.
    pub(super) fn write(&mut self, at: usize, value: u32) -> Option<Request> {
        match at {
            CONTROL => self.choose(value & SPACE),
            SEMAPHORE if self.owner == 0 || value == 0 => self.owner = value,
            DATA => self.data = value,
            ADDRESS => return self.access(value),
            _ => {}
        }
        None
    }

    fn choose(&mut self, space: u32) {
        (self.control, self.address) = match space {
            SCAN => (SPACE_EXISTS | SIZE_VALID | space, self.scan_size),
            CR_SPACE | ICMD_EXT | ICMD | SEMAPHORES => (SPACE_EXISTS | space, 0),
            _ => (space, 0),
        };
    }

    fn access(&mut self, value: u32) -> Option<Request> {
        let address = value & !(FLAG | NO_ADDRESS);
        let writes = value & FLAG != 0;
        let done = match self.control & SPACE {
            SCAN if !writes && address < self.scan_size && address.is_multiple_of(4) => {
                return usize::try_from(address).ok().map(Request::Scan);
            }
            SEMAPHORES => self.access_semaphore(address, writes),
            CR_SPACE if !writes => match address {
                CHIP_NUMBER => Some(self.chip),
                address if NOT_CONFIGURED.contains(&address) => Some(0),
                _ => None,
            },
            ICMD_EXT | ICMD => self.access_command(address, writes),
            _ => None,
        };
        let commands = matches!(self.control & SPACE, ICMD_EXT | ICMD);
        let asked = writes && done.is_some() && commands && address == COMMAND;
        self.data = done.unwrap_or(NOTHING);
        self.finish(writes, if done.is_some() { address } else { address | NO_ADDRESS });
        (asked && self.command & BUSY != 0).then_some(Request::Command((self.command >> OPCODE_SHIFT) as u16))
    }

    /// Takes a free semaphore, releases one or reads one. Returns the data register afterwards.
    fn access_semaphore(&mut self, address: u32, writes: bool) -> Option<u32> {
        let owner = self.semaphores.get_mut(usize::try_from(address).ok()?)?;
        if !writes {
            return Some(*owner);
        }
        if *owner == 0 || self.data == 0 {
            *owner = self.data;
        }
        Some(self.data)
    }

    /// Reads or writes a register of the command space. Returns the data register afterwards.
    fn access_command(&mut self, address: u32, writes: bool) -> Option<u32> {
        match address {
            COMMAND if writes => self.command = self.data,
            COMMAND => return Some(self.command),
            MAILBOX_SIZE if !writes => return Some(MAILBOX_LEN as u32),
            _ => {
                let at = usize::try_from(address.checked_sub(MAILBOX)?).ok()?;
                let dword = self.mailbox.as_chunks_mut().0.get_mut(at / 4).filter(|_| at.is_multiple_of(4))?;
                if !writes {
                    return Some(u32::from_be_bytes(*dword));
                }
                *dword = self.data.to_be_bytes();
            }
        }
        Some(self.data)
    }

    /// The register that a write asked for; the next address is that of the next register.
    pub(super) fn scanned(&mut self, at: usize, value: u32) {
        self.data = value;
        self.finish(false, at as u32 + 4);
    }

    /// Returns what a command works on and leaves its answer in.
    pub(super) fn mailbox(&mut self) -> &mut [u8; MAILBOX_LEN] {
        &mut self.mailbox
    }

    /// The command that a write asked for is done, with this status.
    pub(super) fn commanded(&mut self, status: u8) {
        self.command = self.command >> OPCODE_SHIFT << OPCODE_SHIFT | u32::from(status) << STATUS_SHIFT;
    }

    fn finish(&mut self, wrote: bool, address: u32) {
        self.address = if wrote { address } else { address | FLAG };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Linux takes the gateway: free, a number, the number written, the number read back.
    fn lock(gateway: &mut Gateway) -> bool {
        if gateway.read(SEMAPHORE) != 0 {
            return false;
        }
        let number = gateway.read(COUNTER);
        gateway.write(SEMAPHORE, number);
        gateway.read(SEMAPHORE) == number
    }

    #[test]
    fn the_semaphore_has_one_owner_until_it_is_released() {
        let mut gateway = Gateway::new(0x240, 0x218);
        assert!(lock(&mut gateway));
        assert!(!lock(&mut gateway));
        let mine = gateway.read(SEMAPHORE);
        let other = gateway.read(COUNTER);
        assert_ne!(mine, other);
        gateway.write(SEMAPHORE, other);
        assert_eq!(gateway.read(SEMAPHORE), mine);
        gateway.write(SEMAPHORE, 0);
        assert!(lock(&mut gateway));
    }

    #[test]
    fn a_dump_walks_through_the_registers() {
        let mut gateway = Gateway::new(12, 0x218);
        gateway.write(CONTROL, 7);
        assert_eq!(gateway.read(CONTROL) >> 29, 1, "there is such a space");
        assert_eq!(gateway.read(CONTROL) >> 28 & 1, 1, "its size is shown");
        assert_eq!(gateway.read(ADDRESS), 12);
        let (mut at, mut seen) = (0, Vec::new());
        while at < 12 {
            let Some(Request::Scan(asked)) = gateway.write(ADDRESS, at) else { panic!("no register at {at}") };
            gateway.scanned(asked, 0x100 + at);
            assert_eq!(gateway.read(ADDRESS) >> 31, 1, "done");
            seen.push(gateway.read(DATA));
            let next = gateway.read(ADDRESS) & 0x3fff_ffff;
            assert!(next > at);
            at = next;
        }
        assert_eq!(seen, [0x100, 0x104, 0x108]);
        assert_eq!(gateway.write(ADDRESS, 12), None);
        assert_eq!((gateway.read(ADDRESS) >> 30, gateway.read(DATA)), (3, 0xbada_cce5), "past the end");
    }

    #[test]
    fn semaphores_of_functions() {
        let mut gateway = Gateway::new(12, 0x218);
        gateway.write(CONTROL, 0xa);
        let take = |gateway: &mut Gateway, number: u32| {
            gateway.write(DATA, number);
            assert_eq!(gateway.write(ADDRESS, 1 << 31 | 0x20), None);
            assert_eq!(gateway.read(ADDRESS) >> 31, 0, "written");
            gateway.write(ADDRESS, 0x20);
            assert_eq!(gateway.read(ADDRESS) >> 31, 1, "read");
            gateway.read(DATA)
        };
        assert_eq!(take(&mut gateway, 5), 5);
        assert_eq!(take(&mut gateway, 6), 5, "taken");
        assert_eq!(take(&mut gateway, 0), 0, "given back");
        assert_eq!(take(&mut gateway, 6), 6);
    }

    #[test]
    fn other_spaces_do_not_exist() {
        let mut gateway = Gateway::new(12, 0x218);
        for space in [0, 5, 0xffff] {
            gateway.write(CONTROL, space);
            assert_eq!(gateway.read(CONTROL), space, "no status");
            assert_eq!(gateway.write(ADDRESS, 0), None);
            assert_eq!(gateway.read(DATA), 0xbada_cce5);
        }
    }

    /// Reads an address of the space that was chosen. Returns whether there is one.
    fn look(gateway: &mut Gateway, address: u32) -> (bool, u32) {
        assert_eq!(gateway.write(ADDRESS, address), None);
        assert_eq!(gateway.read(ADDRESS) >> 31, 1, "read");
        (gateway.read(ADDRESS) >> 30 & 1 == 0, gateway.read(DATA))
    }

    fn put(gateway: &mut Gateway, address: u32, value: u32) -> Option<Request> {
        gateway.write(DATA, value);
        gateway.write(ADDRESS, 1 << 31 | address)
    }

    #[test]
    fn a_command_goes_through_its_mailbox() {
        // Addresses of mstflint's mtcr_ul_icmd_cif.c and of iPXE's mlx_icmd.h.
        let mut gateway = Gateway::new(12, 0x218);
        gateway.write(CONTROL, 3);
        assert_eq!(gateway.read(CONTROL) >> 29, 1, "there is such a space");
        assert_eq!(look(&mut gateway, 0x1000), (true, 1024), "bytes of the mailbox");
        assert_eq!(put(&mut gateway, 0x10_0000, 0x0801_0203), None);
        assert_eq!(put(&mut gateway, 0x10_03fc, 7), None);
        assert_eq!(put(&mut gateway, 0, 0x9001_0000), None, "an opcode without the busy bit");
        assert_eq!(put(&mut gateway, 0, 0x9001_0001), Some(Request::Command(0x9001)));
        assert_eq!(gateway.mailbox()[..4], [8, 1, 2, 3]);
        gateway.mailbox()[4..8].copy_from_slice(&[1, 2, 3, 4]);
        gateway.commanded(4);
        assert_eq!(look(&mut gateway, 0), (true, 0x9001_0400), "done, with a status");
        assert_eq!(look(&mut gateway, 0x10_0004), (true, 0x0102_0304));
        assert_eq!(look(&mut gateway, 0x10_03fc), (true, 7));
        for nowhere in [4, 0x10_0002, 0x10_0400, 0x3fff_fffc] {
            assert!(!look(&mut gateway, nowhere).0, "{nowhere:#x}");
        }
    }

    #[test]
    fn the_chip_tells_its_number() {
        // mstflint's mtcr_ul_icmd_cif.c: HW_ID_ADDR, STAT_CFG_NOT_DONE_ADDR_CX7 with bit 31.
        let mut gateway = Gateway::new(12, 0x218);
        gateway.write(CONTROL, 2);
        assert_eq!(gateway.read(CONTROL) >> 29, 1, "there is such a space");
        assert_eq!(look(&mut gateway, 0xf_0014), (true, 0x218));
        assert_eq!(look(&mut gateway, 0xb_5f04).1 >> 31, 0, "configured");
        assert_eq!(look(&mut gateway, 0), (false, 0xbada_cce5));
        put(&mut gateway, 0xf_0014, 0);
        assert_eq!(look(&mut gateway, 0xf_0014), (true, 0x218), "it cannot be written");
    }
}

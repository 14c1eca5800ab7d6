//! The vendor-specific capability: a gateway in configuration space that answers when BAR0 does not.
//!
//! Registers and protocol are those that Linux's mlx5_core uses for crash dumps and around resets (`lib/pci_vsc.c`): a
//! semaphore taken with a number of one's own, a space chosen, an address written, data read or written.

/// Bytes of the capability.
pub(super) const SIZE: usize = 0x18;
/// Its registers, counted from its start.
const CONTROL: usize = 0x04;
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

/// Spaces: registers one after another for dumps, and semaphores of functions that share a device.
const SCAN: u32 = 0x7;
const SEMAPHORES: u32 = 0xa;
const SEMAPHORE_COUNT: usize = 64;

/// The gateway's registers and the semaphores behind it.
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
}

impl Gateway {
    /// `scan_size`: bytes of the registers that can be dumped, a multiple of four.
    pub(super) fn new(scan_size: u32) -> Self {
        Self { control: 0, counter: 0, owner: 0, address: 0, data: 0, semaphores: [0; SEMAPHORE_COUNT], scan_size }
    }

    /// The register at byte `at` of the capability. Each look at the counter gives another number, never 0.
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

    /// Takes a register write. An address if the register there is to be read for a dump: [`Gateway::scanned`] answers.
    pub(super) fn write(&mut self, at: usize, value: u32) -> Option<usize> {
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
            SEMAPHORES => (SPACE_EXISTS | space, 0),
            _ => (space, 0),
        };
    }

    fn access(&mut self, value: u32) -> Option<usize> {
        let address = value & !(FLAG | NO_ADDRESS);
        let writes = value & FLAG != 0;
        let semaphore = self.semaphores.get_mut(address as usize);
        match (self.control & SPACE, semaphore) {
            (SCAN, _) if !writes && address < self.scan_size && address.is_multiple_of(4) => {
                return usize::try_from(address).ok();
            }
            (SEMAPHORES, Some(owner)) => {
                if writes && (*owner == 0 || self.data == 0) {
                    *owner = self.data;
                }
                if !writes {
                    self.data = *owner;
                }
                self.finish(writes, address);
            }
            _ => {
                self.data = NOTHING;
                self.finish(writes, address | NO_ADDRESS);
            }
        }
        None
    }

    /// The register that a write asked for; the next address is that of the next register.
    pub(super) fn scanned(&mut self, at: usize, value: u32) {
        self.data = value;
        self.finish(false, at as u32 + 4);
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
    fn one_holds_the_semaphore_until_it_gives_it_back() {
        let mut gateway = Gateway::new(0x240);
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
        let mut gateway = Gateway::new(12);
        gateway.write(CONTROL, 7);
        assert_eq!(gateway.read(CONTROL) >> 29, 1, "there is such a space");
        assert_eq!(gateway.read(CONTROL) >> 28 & 1, 1, "its size is shown");
        assert_eq!(gateway.read(ADDRESS), 12);
        let (mut at, mut seen) = (0, Vec::new());
        while at < 12 {
            let asked = gateway.write(ADDRESS, at).expect("a register");
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
        let mut gateway = Gateway::new(12);
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
        let mut gateway = Gateway::new(12);
        for space in [0, 2, 0xffff] {
            gateway.write(CONTROL, space);
            assert_eq!(gateway.read(CONTROL), space, "no status");
            assert_eq!(gateway.write(ADDRESS, 0), None);
            assert_eq!(gateway.read(DATA), 0xbada_cce5);
        }
    }
}

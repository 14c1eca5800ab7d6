//! Somebody's driver, as far as the command queue: it knows nothing of `bareverbs`.

/// What the driver is given by its machine: 32-bit registers of BAR0 in network byte order, a page that the device reaches, and time.
pub trait Machine {
    /// Reads a register.
    fn read(&mut self, offset: u64) -> u32;
    /// Writes a register.
    fn write(&mut self, offset: u64, value: u32);
    /// Where the device sees the page.
    fn page_address(&self) -> u64;
    /// Reads 64 bytes of the page.
    fn load(&mut self) -> [u8; 64];
    /// Writes 64 bytes of the page.
    fn store(&mut self, entry: [u8; 64]);
    /// Lets a microsecond pass.
    fn pause(&mut self);
}

/// Why the device cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// It initializes without an end.
    Initializing,
    /// It does not answer a command.
    NoAnswer,
    /// It has refused a command: delivery status, status.
    Refused(u8, u8),
    /// It answers what no device can mean.
    Absurd(u32),
}

/// Microseconds that anything may take.
const MAX_POLLS: u32 = 1000;
/// The most pages that this machine has.
pub const PAGES: u32 = 1 << 16;

/// Starts the device and returns how many pages its firmware wants at boot: never more than [`PAGES`].
pub fn start(machine: &mut impl Machine) -> Result<u32, Error> {
    const INITIALIZING: u64 = 0x1fc;
    if !(0..MAX_POLLS).any(|_| {
        machine.pause();
        machine.read(INITIALIZING) >> 31 == 0
    }) {
        return Err(Error::Initializing);
    }
    let address = machine.page_address();
    machine.write(0x10, (address >> 32) as u32);
    machine.write(0x14, address as u32);
    // ENABLE_HCA, then QUERY_PAGES for boot.
    command(machine, 0x104, 0)?;
    let pages = command(machine, 0x107, 1)?;
    if pages > PAGES { Err(Error::Absurd(pages)) } else { Ok(pages) }
}

/// Executes a command without mailboxes, and returns the last word of its output.
fn command(machine: &mut impl Machine, opcode: u16, modifier: u16) -> Result<u32, Error> {
    let mut entry = [0; 64];
    entry[0] = 7; // Its type.
    entry[7] = 16; // Bytes of input.
    entry[16..18].copy_from_slice(&opcode.to_be_bytes());
    entry[22..24].copy_from_slice(&modifier.to_be_bytes());
    entry[59] = 16; // Bytes of output.
    entry[63] = 1; // The device has it.
    machine.store(entry);
    machine.write(0x18, 1);
    for _ in 0..MAX_POLLS {
        machine.pause();
        let entry = machine.load();
        if entry[63] & 1 == 0 {
            let (delivery, status) = (entry[63] >> 1, entry[32]);
            let word = u32::from_be_bytes([entry[44], entry[45], entry[46], entry[47]]);
            return if (delivery, status) == (0, 0) { Ok(word) } else { Err(Error::Refused(delivery, status)) };
        }
    }
    Err(Error::NoAnswer)
}

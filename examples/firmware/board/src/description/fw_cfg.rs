//! QEMU's firmware configuration (`docs/specs/fw_cfg.rst` of QEMU), as far as a machine has its device tree there.

use super::MachineError;
use crate::arch::{inb, outw};

const SELECTOR: u16 = 0x510;
const DATA: u16 = 0x511;
const SIGNATURE: u16 = 0;
const DIRECTORY: u16 = 0x19;
/// More than QEMU has.
const FILES: u32 = 256;
/// Bytes of the name of a file.
const NAME: usize = 56;

fn read<const N: usize>() -> [u8; N] {
    core::array::from_fn(|_| inb(DATA))
}

/// Selects the file `name`, from its first byte on; gives its length.
///
/// # Errors
/// [`MachineError`].
pub(crate) fn open(name: &'static str) -> Result<usize, MachineError> {
    let what = "QEMU's firmware configuration (fw_cfg)";
    outw(SELECTOR, SIGNATURE);
    if read() != *b"QEMU" {
        return Err(MachineError::NotThere { what, address: SELECTOR.into() });
    }
    outw(SELECTOR, DIRECTORY);
    for _ in 0..u32::from_be_bytes(read()).min(FILES) {
        let len = u32::from_be_bytes(read());
        let [high, low, ..] = read::<4>();
        let found = read::<NAME>();
        if found.split(|byte| *byte == 0).next() == Some(name.as_bytes()) {
            outw(SELECTOR, u16::from_be_bytes([high, low]));
            return Ok(len as usize);
        }
    }
    Err(MachineError::Missing { what, needed: name })
}

/// Reads the next bytes of the file.
pub(crate) fn fill(bytes: &mut [u8]) {
    bytes.fill_with(|| inb(DATA));
}

//! QEMU's virt for RISC-V, with `aia=aplic-imsic`: described by a device tree.

use core::arch::asm;

use volatile_register::RW;

use crate::arch::Controllers;
use crate::description::device_tree::Tree;
use crate::description::{Description, MachineError};
use crate::registers::registers;
use crate::serial::ns16550::Ns16550;

/// Name of the machine.
pub const NAME: &str = "riscv64, virt";

/// Number of the external interrupt of M-mode, whose interrupt file is wanted.
const EXTERNAL_M: u32 = 11;
/// Where `mtimecmp` of hart 0 is among the registers of a CLINT.
const COMPARATOR: u64 = 0x4000;

/// The serial line.
pub(crate) type Uart = Ns16550;
/// For what is said before the description is read, or when it cannot be.
// SAFETY: the serial line of the machine.
pub(crate) const UART: Uart = unsafe { Ns16550::at(0x1000_0000) };

/// Ends the machine; needed when the description cannot be read, too.
const TEST: usize = 0x0010_0000;

/// Reads the description of the machine; `given` is what the loader gave.
///
/// # Errors
/// [`MachineError`].
pub(crate) fn describe(given: usize) -> Result<Description, MachineError> {
    // SAFETY: the loader's promise (a1); the tree lies in RAM, above the program, and is read only now.
    let (tree, span) = unsafe { Tree::at(given) }?;
    let mut used = tree.reserved()?;
    used.add(span)?;
    // The processor, and its interrupt.
    let of_m_mode = |interrupts: &[u8]| interrupts.get(4..8) == Some(&EXTERNAL_M.to_be_bytes());
    Ok(Description {
        ecam: tree.ecam()?,
        bars: tree.bars()?,
        memory: tree.memory()?,
        used,
        serial: Some(tree.registers("ns16550a", 0)?),
        controllers: Controllers {
            messages: tree.registers_if("riscv,imsics", 0, of_m_mode)?,
            comparator: tree.registers("riscv,clint0", 0)?.saturating_add(COMPARATOR),
            frequency: tree.of_processors("timebase-frequency")?,
        },
    })
}

/// Ends QEMU with this status, through its test device.
pub(crate) fn end(status: u8) -> ! {
    let word = if status == 0 { 0x5555 } else { 0x3333 | u32::from(status) << 16 };
    // SAFETY: the machine has the test device there; it does not come back.
    unsafe { registers::<RW<u32>>(TEST).write(word) };
    loop {
        // SAFETY: nothing is left to do.
        unsafe { asm!("wfi", options(nomem, nostack)) }
    }
}

//! QEMU's virt for AArch64: described by a device tree.

use core::arch::asm;

use crate::arch::Controllers;
use crate::description::device_tree::Tree;
use crate::description::{Description, MachineError};
use crate::serial::pl011::Pl011;

/// Name of the machine.
pub const NAME: &str = "aarch64, virt";

/// Where QEMU puts the device tree of a program that is no Linux: the start of RAM ("Hardware configuration information for
/// bare-metal programming" of its manual). Another loader gives the address to the program.
const TREE: usize = 0x4000_0000;

/// The serial line.
pub(crate) type Uart = Pl011;
/// For what is said before the description is read, or when it cannot be. The start-up code maps it.
pub(crate) const SERIAL: usize = 0x0900_0000;
// SAFETY: the first serial line of the machine.
pub(crate) const UART: Uart = unsafe { Pl011::at(SERIAL) };

/// Reads the description of the machine; `given` is what the loader gave.
///
/// # Errors
/// [`MachineError`].
pub(crate) fn describe(given: usize) -> Result<Description, MachineError> {
    // SAFETY: RAM, which the program leaves free for the tree; it is read only now.
    let (tree, span) = unsafe { Tree::at(if given == 0 { TREE } else { given }) }?;
    let mut used = tree.reserved()?;
    used.add(span)?;
    Ok(Description {
        ecam: tree.ecam()?,
        bars: tree.bars()?,
        memory: tree.memory()?,
        used,
        serial: Some(tree.registers("arm,pl011", 0)?),
        controllers: Controllers {
            distributor: tree.registers("arm,cortex-a15-gic", 0)?,
            interface: tree.registers("arm,cortex-a15-gic", 1)?,
            messages: tree.registers("arm,gic-v2m-frame", 0)?,
        },
    })
}

/// Ends QEMU with this status, by semihosting (SYS_EXIT, ADP_Stopped_ApplicationExit).
pub(crate) fn end(status: u8) -> ! {
    let block = [0x2_0026_u64, u64::from(status)];
    // SAFETY: the machine was started with semihosting: the call does not come back. The block is read by the host.
    unsafe { asm!("hlt #0xf000", in("x0") 0x18, in("x1") &raw const block, options(nostack)) };
    loop {
        // SAFETY: nothing is left to do.
        unsafe { asm!("wfi", options(nomem, nostack)) }
    }
}

//! QEMU's virt for RISC-V, with `aia=aplic-imsic`.

use core::arch::asm;

use volatile_register::RW;

use crate::pci::{Ecam, Window};
use crate::registers::registers;
use crate::serial::ns16550::Ns16550;

/// Name of the machine.
pub const NAME: &str = "riscv64, virt";
/// The ECAM of the machine.
pub(crate) const ECAM: Ecam = Ecam { base: 0x3000_0000, buses: 256 };
/// Its PCI addresses below 2 GiB.
pub(crate) const BARS: Window = Window { base: 0x4000_0000, end: 0x8000_0000 };

/// Interrupt file of hart 0 in M-mode.
pub(crate) const IMSIC: u64 = 0x2400_0000;
/// `mtimecmp` of hart 0.
pub(crate) const COMPARATOR: usize = 0x0200_4000;
/// Ticks of the `time` register a second, as the machine's device tree says.
pub(crate) const FREQUENCY: u64 = 10_000_000;

/// Ends the machine.
const TEST: usize = 0x0010_0000;

/// The serial line.
pub(crate) type Uart = Ns16550;
// SAFETY: the serial line of the machine.
pub(crate) const UART: Uart = unsafe { Ns16550::at(0x1000_0000) };

/// Sets up the serial line.
pub(crate) fn start() {
    UART.start();
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

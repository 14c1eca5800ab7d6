//! QEMU's virt for AArch64.

use core::arch::asm;

use crate::pci::{Ecam, Window};
use crate::serial::pl011::Pl011;

/// Name of the machine.
pub const NAME: &str = "aarch64, virt";
/// The high ECAM of the machine (`highmem-ecam`, on by default).
pub(crate) const ECAM: Ecam = Ecam { base: 0x40_1000_0000, buses: 256 };
/// Its PCI addresses below 1 GiB.
pub(crate) const BARS: Window = Window { base: 0x1000_0000, end: 0x3eff_0000 };

/// The GiB of addresses with the registers of the machine, that with the ECAM, and that with RAM.
pub(crate) const REGISTERS_GIB: u64 = 0;
pub(crate) const ECAM_GIB: u64 = (ECAM.base >> 30) as u64;
pub(crate) const RAM_GIB: u64 = 1;

/// The GICv2: distributor, interface of the processor, v2m frame.
pub(crate) const DISTRIBUTOR: usize = 0x0800_0000;
pub(crate) const CPU_INTERFACE: usize = 0x0801_0000;
pub(crate) const MESSAGES: usize = 0x0802_0000;

/// The serial line.
pub(crate) type Uart = Pl011;
// SAFETY: the first serial line of the machine.
pub(crate) const UART: Uart = unsafe { Pl011::at(0x0900_0000) };

/// Sets up the serial line.
pub(crate) fn start() {
    UART.start();
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

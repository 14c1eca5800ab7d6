//! QEMU's q35.

use core::arch::asm;

use crate::arch::{outb, outl, outw};
use crate::pci::{Ecam, Window};
use crate::serial::com_port::ComPort;

/// Name of the machine.
pub const NAME: &str = "x86_64, q35";
/// The memory that the chip set maps to configuration space, as [`start`] sets it up.
pub(crate) const ECAM: Ecam = Ecam { base: 0xb000_0000, buses: 256 };
/// Below the I/O APIC, above the ECAM. SeaBIOS gives out addresses from the end down, a few megabytes at most.
pub(crate) const BARS: Window = Window { base: 0xc000_0000, end: 0xf000_0000 };
/// The high precision event timer, by which the clock is calibrated.
pub(crate) const HPET: usize = 0xfed0_0000;

/// QEMU's isa-debug-exit: a byte `n` ends it with status `2n + 1`.
const DEBUG_EXIT: u16 = 0xf4;
/// Where the registers of power management are put ([`start`]).
const POWER_MANAGEMENT: u16 = 0x600;

/// The serial line.
pub(crate) type Uart = ComPort;
/// COM1.
pub(crate) const UART: Uart = ComPort::at(0x3f8);

/// Writes a dword of configuration space of bus 0 through the ports 0xcf8 and 0xcfc, which are there before the ECAM is.
fn configure(device: u32, function: u32, register: u32, value: u32) {
    outl(0xcf8, 1 << 31 | device << 11 | function << 8 | register);
    outl(0xcfc, value);
}

/// Sets up serial line and configuration space.
pub(crate) fn start() {
    UART.start();
    // PCIEXBAR of the host bridge: 256 MiB, on. PMBASE and ACPI_CNTL of the south bridge.
    configure(0, 0, 0x64, 0);
    configure(0, 0, 0x60, ECAM.base as u32 | 1);
    configure(31, 0, 0x40, u32::from(POWER_MANAGEMENT) | 1);
    configure(31, 0, 0x44, 0x80);
}

/// Turns the machine off (status 0) or, with another status, ends QEMU with `2 * status + 1`.
pub(crate) fn end(status: u8) -> ! {
    if status == 0 {
        // PM1 control: sleep type of soft off, sleep enable.
        outw(POWER_MANAGEMENT + 4, 0x2000);
    } else {
        outb(DEBUG_EXIT, status);
    }
    loop {
        // SAFETY: nothing is left to do.
        unsafe { asm!("cli", "hlt", options(nomem, nostack)) }
    }
}

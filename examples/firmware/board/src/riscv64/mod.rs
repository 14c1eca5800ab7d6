//! QEMU's virt for RISC-V, in M-mode, with the advanced interrupt architecture (`aia=aplic-imsic`) for message-signalled
//! interrupts.

use core::arch::{asm, global_asm};

use volatile_register::RW;

use crate::interrupts::{self, Message};
use crate::pci::{Ecam, Window};
use crate::start::fault;

global_asm!(include_str!("start.S"));

/// Name of the machine.
pub const NAME: &str = "riscv64, virt";
/// The ECAM of the machine.
pub(crate) const ECAM: Ecam = Ecam { base: 0x3000_0000, buses: 256 };
/// Its PCI addresses below 2 GiB.
pub(crate) const BARS: Window = Window { base: 0x4000_0000, end: 0x8000_0000 };

const UART: usize = 0x1000_0000;
/// Ends the machine.
const TEST: usize = 0x0010_0000;
/// Interrupt file of hart 0 in M-mode.
const IMSIC: u64 = 0x2400_0000;
/// `mtimecmp` of hart 0.
const COMPARATOR: usize = 0x0200_4000;
/// Ticks of the `time` register a second, as the machine's device tree says.
const FREQUENCY: u64 = 10_000_000;

/// The 16550, one byte a register.
#[repr(C)]
struct Ns16550 {
    data: RW<u8>,
    interrupts: RW<u8>,
    fifo: RW<u8>,
    line_control: RW<u8>,
    modem_control: RW<u8>,
    line_status: RW<u8>,
}

/// Registers that every machine of this kind has at this address.
///
/// # Safety
/// A block `T` of registers is there.
unsafe fn registers<T>(address: usize) -> &'static T {
    // SAFETY: promised by the caller; there is no translation, and these addresses are input and output.
    unsafe { &*core::ptr::with_exposed_provenance(address) }
}

/// The serial line: a 16550.
pub(crate) struct Uart;

impl Uart {
    fn registers() -> &'static Ns16550 {
        // SAFETY: the machine has its serial line there.
        unsafe { registers(UART) }
    }

    pub(crate) fn put(&mut self, byte: u8) {
        let uart = Self::registers();
        // Room in the transmitter; a line that never has any does not hold the program up.
        let _ = (0..100_000).find(|_| uart.line_status.read() & 0x20 != 0);
        // SAFETY: sends a byte.
        unsafe { uart.data.write(byte) };
    }

    pub(crate) fn get(&mut self) -> Option<u8> {
        let uart = Self::registers();
        (uart.line_status.read() & 1 != 0).then(|| uart.data.read())
    }
}

/// Returns the time since the counter began.
pub(crate) fn nanoseconds() -> u64 {
    let ticks: u64;
    // SAFETY: reads a counter.
    unsafe { asm!("rdtime {}", out(reg) ticks, options(nomem, nostack)) };
    (u128::from(ticks) * 1_000_000_000 / u128::from(FREQUENCY)) as u64
}

/// Sets up serial line and interrupts.
pub(crate) fn start() {
    let uart = Uart::registers();
    // SAFETY: no interrupts of the serial line, 8 bits, FIFO on. Of the interrupt file: delivery on, no threshold. The names
    // of these registers are younger than the assembler: miselect 0x350, mireg 0x351.
    unsafe {
        uart.interrupts.write(0);
        uart.line_control.write(3);
        uart.fifo.write(7);
        asm!("csrw 0x350, {}", "csrw 0x351, {}", in(reg) 0x70, in(reg) 1, options(nomem, nostack));
        asm!("csrw 0x350, {}", "csrw 0x351, zero", in(reg) 0x72, options(nomem, nostack));
        // External interrupts of M-mode, and interrupts at all.
        asm!("csrs mie, {}", "csrsi mstatus, 8", in(reg) 1 << 11, options(nomem, nostack));
    }
}

/// Holds interrupts back from now on; gives whether they came through before.
pub(crate) fn hold_interrupts() -> bool {
    let status: u64;
    // SAFETY: nothing but MIE changes. Not `nomem`: what is shared with a handler is not touched before.
    unsafe { asm!("csrrci {}, mstatus, 8", out(reg) status, options(nostack)) };
    status & 8 != 0
}

/// Lets interrupts through again.
pub(crate) fn let_interrupts_through() {
    // SAFETY: the handler is there since the start-up code.
    unsafe { asm!("csrsi mstatus, 8", options(nostack)) };
}

/// Sleeps until an interrupt comes, at the latest at `deadline`. One that is held back ends the sleep too.
pub(crate) fn sleep_until(deadline: u64) {
    let ticks = (u128::from(deadline) * u128::from(FREQUENCY) / 1_000_000_000) as u64;
    // SAFETY: the machine has the comparator there; its interrupt (bit 7) ends the sleep and never reaches the handler.
    unsafe {
        let comparator: &RW<u64> = registers(COMPARATOR);
        comparator.write(ticks);
        asm!("csrs mie, {0}", "wfi", "csrc mie, {0}", in(reg) 1 << 7, options(nomem, nostack));
        comparator.write(u64::MAX);
    }
}

/// Opens an interrupt of the interrupt file, and gives the message that raises it. Number 0 means none.
pub(crate) fn open_interrupt(index: usize) -> Option<Message> {
    let number = index + 1;
    // SAFETY: bit `number` of the first enable register (0xc0), for numbers up to 63.
    unsafe {
        asm!("csrw 0x350, {}", "csrs 0x351, {}", in(reg) 0xc0, in(reg) 1_u64 << (number & 63), options(nomem, nostack));
    }
    Some(Message { address: IMSIC, data: number as u32 })
}

#[unsafe(no_mangle)]
extern "C" fn board_trap(cause: u64, at: u64, address: u64) {
    // External interrupt of M-mode.
    if cause != 1 << 63 | 11 {
        fault("trap", cause, at, address);
    }
    let top: u64;
    // SAFETY: mtopei: takes the interrupt that comes first.
    unsafe { asm!("csrrw {}, 0x35c, zero", out(reg) top, options(nomem, nostack)) };
    if let Some(index) = ((top >> 16) as usize & 0x7ff).checked_sub(1) {
        interrupts::raised(index);
    }
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

//! RISC-V in M-mode, with the advanced interrupt architecture for message-signalled interrupts.

use core::arch::{asm, global_asm};

use volatile_register::RW;

use crate::interrupts::{self, Message};
use crate::machine::{COMPARATOR, FREQUENCY, IMSIC};
use crate::registers::registers;
use crate::start::fault;

global_asm!(include_str!("start.S"));

/// Returns the time since the counter began.
pub(crate) fn nanoseconds() -> u64 {
    let ticks: u64;
    // SAFETY: reads a counter.
    unsafe { asm!("rdtime {}", out(reg) ticks, options(nomem, nostack)) };
    (u128::from(ticks) * 1_000_000_000 / u128::from(FREQUENCY)) as u64
}

/// Sets up interrupts.
pub(crate) fn start() {
    // SAFETY: of the interrupt file: delivery on, no threshold. The names of these registers are younger than the assembler:
    // miselect 0x350, mireg 0x351.
    unsafe {
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

//! RISC-V in M-mode, with the advanced interrupt architecture for message-signalled interrupts.

use core::arch::{asm, global_asm};
use core::sync::atomic::{AtomicU32, Ordering};

use spin::Once;
use volatile_register::RW;

use crate::description::{MachineError, Span};
use crate::interrupts::{self, Message};
use crate::registers::registers;
use crate::start::fault;

global_asm!(include_str!("start.S"));

/// What the processor takes interrupts and the time from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Controllers {
    /// Interrupt file of hart 0 in M-mode.
    pub(crate) messages: u64,
    /// `mtimecmp` of hart 0.
    pub(crate) comparator: u64,
    /// Ticks of the `time` register a second.
    pub(crate) frequency: u32,
}

static CONTROLLERS: Once<Controllers> = Once::new();
/// As it is in [`CONTROLLERS`]: the time is asked before the description is read, too.
static FREQUENCY: AtomicU32 = AtomicU32::new(1);

fn frequency() -> u128 {
    FREQUENCY.load(Ordering::Relaxed).into()
}

/// Bits of a physical address.
const PHYSICAL: u32 = 56;

/// Returns that registers are reached: without translation every physical address is.
///
/// # Errors
/// [`MachineError::OutOfReach`].
pub(crate) fn map_registers(what: &'static str, span: Span) -> Result<(), MachineError> {
    (span.end <= 1 << PHYSICAL).then_some(()).ok_or(MachineError::OutOfReach { what, address: span.base })
}

/// Returns where registers are mapped so that the processor combines writes to them: nowhere.
pub(crate) const fn map_combining(_: Span) -> Option<u64> {
    None
}

/// Returns what of a range of RAM is reached.
pub(crate) fn map_memory(span: Span) -> Span {
    Span { end: span.end.min(1 << PHYSICAL), ..span }
}

/// Returns the time since the counter began.
pub(crate) fn nanoseconds() -> u64 {
    let ticks: u64;
    // SAFETY: reads a counter.
    unsafe { asm!("rdtime {}", out(reg) ticks, options(nomem, nostack)) };
    (u128::from(ticks) * 1_000_000_000 / frequency()) as u64
}

/// Sets up interrupts and the clock.
///
/// # Errors
/// [`MachineError`].
pub(crate) fn start(controllers: &Controllers) -> Result<(), MachineError> {
    for address in [controllers.messages, controllers.comparator] {
        map_registers("the interrupt controller", Span::of(address, size_of::<u64>() as u64))?;
    }
    if controllers.frequency == 0 {
        return Err(MachineError::Malformed { what: "'timebase-frequency' of the device tree" });
    }
    FREQUENCY.store(controllers.frequency, Ordering::Relaxed);
    CONTROLLERS.call_once(|| *controllers);
    // SAFETY: of the interrupt file: delivery on, no threshold. The names of these registers are younger than the assembler:
    // miselect 0x350, mireg 0x351.
    unsafe {
        asm!("csrw 0x350, {}", "csrw 0x351, {}", in(reg) 0x70, in(reg) 1, options(nomem, nostack));
        asm!("csrw 0x350, {}", "csrw 0x351, zero", in(reg) 0x72, options(nomem, nostack));
        // External interrupts of M-mode, and interrupts at all.
        asm!("csrs mie, {}", "csrsi mstatus, 8", in(reg) 1 << 11, options(nomem, nostack));
    }
    Ok(())
}

/// Enters the start-up code again, with what the loader gave.
pub(crate) fn restart(given: usize) -> ! {
    // SAFETY: the start-up code takes nothing over: it holds interrupts back, and sets stack and statics up.
    unsafe { asm!("la t0, start", "jr t0", in("a1") given, options(noreturn)) }
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
    let ticks = (u128::from(deadline) * frequency() / 1_000_000_000) as u64;
    let Some(controllers) = CONTROLLERS.get() else { return };
    // SAFETY: the description says that the comparator is there; its interrupt (bit 7) ends the sleep and never reaches the handler.
    unsafe {
        let comparator: &RW<u64> = registers(controllers.comparator as usize);
        comparator.write(ticks);
        asm!("csrs mie, {0}", "wfi", "csrc mie, {0}", in(reg) 1 << 7, options(nomem, nostack));
        comparator.write(u64::MAX);
    }
}

/// Opens an interrupt of the interrupt file, and gives the message that raises it. Number 0 means none.
pub(crate) fn open_interrupt(index: usize) -> Option<Message> {
    let number = index + 1;
    let address = CONTROLLERS.get()?.messages;
    // SAFETY: bit `number` of the first enable register (0xc0), for numbers up to 63.
    unsafe {
        asm!("csrw 0x350, {}", "csrs 0x351, {}", in(reg) 0xc0, in(reg) 1_u64 << (number & 63), options(nomem, nostack));
    }
    Some(Message { address, data: number as u32 })
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

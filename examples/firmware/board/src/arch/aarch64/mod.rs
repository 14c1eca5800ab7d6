//! AArch64 at EL1: the virtual timer, and an interrupt controller GICv2 with a v2m frame for message-signalled interrupts.

use core::arch::{asm, global_asm};
use core::sync::atomic::{AtomicU64, Ordering};

use spin::Once;
use volatile_register::{RO, RW, WO};

use crate::description::{MachineError, Span};
use crate::interrupts::{self, Message};
use crate::machine;
use crate::registers::registers;
use crate::start::fault;

global_asm!(include_str!("start.S"), registers = const machine::SERIAL >> GIB);

/// Bytes of an entry of the page table, as a power of two.
const GIB: u32 = 30;
/// Block, access flag, memory type 0, not executable.
const REGISTERS: u64 = 0x0060_0000_0000_0401;
/// Block, access flag, memory type 2, not executable.
const COMBINING: u64 = 0x0060_0000_0000_0409;
/// Block, access flag, inner shareable, memory type 1.
const MEMORY: u64 = 0x705;

unsafe extern "C" {
    /// The page table: a GiB each.
    static tables: [AtomicU64; 512];
}

/// Maps the GiB around a range that are not mapped yet, to themselves; returns what of the range is mapped in that way, from its
/// start on.
fn map(span: Span, how: u64) -> Span {
    // SAFETY: the start-up code has filled the table, which only this function changes.
    let table = unsafe { &tables };
    let mut end = span.base;
    while end < span.end {
        let gib = end >> GIB;
        let Some(entry) = table.get(gib as usize) else { break };
        let wanted = gib << GIB | how;
        let found = entry.compare_exchange(0, wanted, Ordering::Relaxed, Ordering::Relaxed);
        if found.is_err_and(|found| found != wanted) {
            break;
        }
        end = (gib + 1) << GIB;
    }
    // SAFETY: the table is written before what it maps is accessed. An entry was not valid before: nothing has to be forgotten.
    unsafe { asm!("dsb ishst", "isb", options(nostack)) };
    Span { end: end.min(span.end), ..span }
}

/// Maps registers.
///
/// # Errors
/// [`MachineError::OutOfReach`].
pub(crate) fn map_registers(what: &'static str, span: Span) -> Result<(), MachineError> {
    (map(span, REGISTERS) == span).then_some(()).ok_or(MachineError::OutOfReach { what, address: span.base })
}

/// Maps registers, which are mapped already, a second time at the end of all addresses, so that the processor combines writes to them.
/// Returns where: for doorbells into which requests are copied. Nothing else is that far up, and only one range is mapped so.
pub(crate) fn map_combining(span: Span) -> Option<u64> {
    let gib = span.base >> GIB;
    if (span.end - 1) >> GIB != gib {
        return None;
    }
    // SAFETY: as in `map`.
    let table = unsafe { &tables };
    let last = table.len() as u64 - 1;
    table.last()?.compare_exchange(0, gib << GIB | COMBINING, Ordering::Relaxed, Ordering::Relaxed).ok()?;
    // SAFETY: as in `map`.
    unsafe { asm!("dsb ishst", "isb", options(nostack)) };
    Some(last << GIB | span.base & ((1 << GIB) - 1))
}

/// Maps RAM; returns what of it is mapped.
pub(crate) fn map_memory(span: Span) -> Span {
    map(span, MEMORY)
}

/// Where the interrupt controller is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Controllers {
    /// The distributor of the GICv2.
    pub(crate) distributor: u64,
    /// The interface of the processor.
    pub(crate) interface: u64,
    /// The v2m frame.
    pub(crate) messages: u64,
}

static CONTROLLERS: Once<Controllers> = Once::new();

impl Controllers {
    /// More than the registers of each that are used.
    const LEN: u64 = 4096;

    fn distributor(&self) -> &'static Distributor {
        // SAFETY: the description says so, and `start` has mapped it.
        unsafe { registers(self.distributor as usize) }
    }

    fn interface(&self) -> &'static CpuInterface {
        // SAFETY: as above.
        unsafe { registers(self.interface as usize) }
    }

    fn frame(&self) -> &'static MessageFrame {
        // SAFETY: as above.
        unsafe { registers(self.messages as usize) }
    }
}

/// Interrupt of the virtual timer, which ends a sleep.
const VIRTUAL_TIMER: u32 = 27;

/// The distributor of the GICv2, as far as it is used here.
#[repr(C)]
struct Distributor {
    control: RW<u32>,
    reserved0: [u32; 63],
    enable: [RW<u32>; 32],
    reserved1: [u32; 0xa0],
    priority: [RW<u8>; 1024],
    target: [RW<u8>; 1024],
    configuration: [RW<u32>; 64],
}

/// The interface of one processor.
#[repr(C)]
struct CpuInterface {
    control: RW<u32>,
    priority_mask: RW<u32>,
    reserved0: u32,
    acknowledge: RO<u32>,
    end: WO<u32>,
}

/// The v2m frame: what is written to `set` becomes a shared interrupt.
#[repr(C)]
struct MessageFrame {
    reserved0: [u32; 2],
    /// Bits 25 to 16: the first interrupt; bits 9 to 0: how many.
    kind: RO<u32>,
    reserved1: [u32; 13],
    set: WO<u32>,
}

const _: () = {
    assert!(core::mem::offset_of!(Distributor, enable) == 0x100);
    assert!(core::mem::offset_of!(Distributor, priority) == 0x400);
    assert!(core::mem::offset_of!(Distributor, target) == 0x800);
    assert!(core::mem::offset_of!(Distributor, configuration) == 0xc00);
    assert!(core::mem::offset_of!(MessageFrame, set) == 0x40);
};

/// Returns the time since the counter began.
pub(crate) fn nanoseconds() -> u64 {
    let (ticks, frequency): (u64, u64);
    // SAFETY: reads the virtual counter (not before what comes before it in the program) and its frequency.
    unsafe {
        asm!("isb", "mrs {}, cntvct_el0", "mrs {}, cntfrq_el0", out(reg) ticks, out(reg) frequency, options(nomem, nostack));
    }
    (u128::from(ticks) * 1_000_000_000 / u128::from(frequency.max(1))) as u64
}

/// Sets up interrupts.
///
/// # Errors
/// [`MachineError::OutOfReach`].
pub(crate) fn start(controllers: &Controllers) -> Result<(), MachineError> {
    let Controllers { distributor, interface, messages } = *controllers;
    for address in [distributor, interface, messages] {
        map_registers("the interrupt controller", Span::of(address, Controllers::LEN))?;
    }
    let controllers = CONTROLLERS.call_once(|| *controllers);
    let (distributor, interface) = (controllers.distributor(), controllers.interface());
    let [private, ..] = &distributor.enable;
    // SAFETY: the distributor and the interface forward everything that is enabled.
    unsafe {
        distributor.control.write(1);
        private.write(1 << VIRTUAL_TIMER);
        interface.priority_mask.write(0xff);
        interface.control.write(1);
        asm!("msr daifclr, #2", options(nomem, nostack));
    }
    Ok(())
}

/// Enters the start-up code again, with what the loader gave.
pub(crate) fn restart(given: usize) -> ! {
    // SAFETY: the start-up code takes nothing over: it holds interrupts back, turns the MMU off, sets stack and statics up.
    unsafe { asm!("b start", in("x0") given, options(noreturn)) }
}

/// Holds interrupts back from now on; gives whether they came through before.
pub(crate) fn hold_interrupts() -> bool {
    let masks: u64;
    // SAFETY: nothing but the mask changes. Not `nomem`: what is shared with a handler is not touched before.
    unsafe { asm!("mrs {}, daif", "msr daifset, #2", out(reg) masks, options(nostack)) };
    // Bit 7: I.
    masks & 1 << 7 == 0
}

/// Lets interrupts through again.
pub(crate) fn let_interrupts_through() {
    // SAFETY: the handlers are there since the start-up code.
    unsafe { asm!("msr daifclr, #2", options(nostack)) };
}

/// Sleeps until an interrupt comes, at the latest at `deadline`. One that is held back ends the sleep too.
pub(crate) fn sleep_until(deadline: u64) {
    let frequency: u64;
    // SAFETY: reads a register.
    unsafe { asm!("mrs {}, cntfrq_el0", out(reg) frequency, options(nomem, nostack)) };
    let ticks = (u128::from(deadline) * u128::from(frequency) / 1_000_000_000) as u64;
    // SAFETY: the virtual timer raises its interrupt at this count, which ends the sleep, and is off after that.
    unsafe {
        asm!("msr cntv_cval_el0, {}", "msr cntv_ctl_el0, {}", in(reg) ticks, in(reg) 1_u64, options(nomem, nostack));
        asm!("isb", "wfi", "msr cntv_ctl_el0, xzr", "isb", options(nomem, nostack));
    }
}

impl MessageFrame {
    /// Returns the first interrupt of the frame, and how many it has.
    fn range(&self) -> (usize, usize) {
        let kind = self.kind.read();
        ((kind >> 16 & 0x3ff) as usize, (kind & 0x3ff) as usize)
    }
}

/// Opens a shared interrupt, and gives the message that raises it.
pub(crate) fn open_interrupt(index: usize) -> Option<Message> {
    let controllers = CONTROLLERS.get()?;
    let (first, count) = controllers.frame().range();
    let number = first + index;
    if index >= count {
        return None;
    }
    let distributor = controllers.distributor();
    let configuration = distributor.configuration.get(number / 16)?;
    // SAFETY: an interrupt of the frame, used only here: at an edge, for processor 0, with a middle priority.
    unsafe {
        configuration.write(configuration.read() | 2 << (2 * (number % 16)));
        distributor.target.get(number)?.write(1);
        distributor.priority.get(number)?.write(0x80);
        distributor.enable.get(number / 32)?.write(1 << (number % 32));
    }
    let set = controllers.messages + core::mem::offset_of!(MessageFrame, set) as u64;
    Some(Message { address: set, data: number as u32 })
}

#[unsafe(no_mangle)]
extern "C" fn board_interrupt() {
    // None comes before `start`.
    let Some(controllers) = CONTROLLERS.get() else { return };
    let interface = controllers.interface();
    let taken = interface.acknowledge.read();
    let number = (taken & 0x3ff) as usize;
    // From 1020 on: spurious, nothing to end.
    if number >= 1020 {
        return;
    }
    if let Some(index) = number.checked_sub(controllers.frame().range().0) {
        interrupts::raised(index);
    }
    // SAFETY: the end of the interrupt that was acknowledged.
    unsafe { interface.end.write(taken) };
}

#[unsafe(no_mangle)]
extern "C" fn board_fault(_entry: u64, syndrome: u64, at: u64, address: u64) -> ! {
    fault("exception, syndrome", syndrome, at, address)
}

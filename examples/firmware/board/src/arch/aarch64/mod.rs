//! AArch64 at EL1: the virtual timer, and an interrupt controller GICv2 with a v2m frame for message-signalled interrupts.

use core::arch::{asm, global_asm};

use volatile_register::{RO, RW, WO};

use crate::interrupts::{self, Message};
use crate::machine::{self, CPU_INTERFACE, DISTRIBUTOR, MESSAGES};
use crate::registers::registers;
use crate::start::fault;

global_asm!(
    include_str!("start.S"),
    registers = const machine::REGISTERS_GIB,
    ram = const machine::RAM_GIB,
    ecam = const machine::ECAM_GIB,
);

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
pub(crate) fn start() {
    // SAFETY: the machine has both there. The distributor and the interface forward everything that is enabled.
    unsafe {
        let distributor: &Distributor = registers(DISTRIBUTOR);
        distributor.control.write(1);
        let [private, ..] = &distributor.enable;
        private.write(1 << VIRTUAL_TIMER);
        let interface: &CpuInterface = registers(CPU_INTERFACE);
        interface.priority_mask.write(0xff);
        interface.control.write(1);
        asm!("msr daifclr, #2", options(nomem, nostack));
    }
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

/// Returns the first interrupt of the v2m frame, and how many it has.
fn message_range() -> (usize, usize) {
    // SAFETY: the machine has the frame there.
    let kind = unsafe { registers::<MessageFrame>(MESSAGES) }.kind.read();
    ((kind >> 16 & 0x3ff) as usize, (kind & 0x3ff) as usize)
}

/// Opens a shared interrupt, and gives the message that raises it.
pub(crate) fn open_interrupt(index: usize) -> Option<Message> {
    let (first, count) = message_range();
    let number = first + index;
    if index >= count {
        return None;
    }
    // SAFETY: the machine has the distributor there.
    let distributor: &Distributor = unsafe { registers(DISTRIBUTOR) };
    let configuration = distributor.configuration.get(number / 16)?;
    // SAFETY: an interrupt of the frame, used only here: at an edge, for processor 0, with a middle priority.
    unsafe {
        configuration.write(configuration.read() | 2 << (2 * (number % 16)));
        distributor.target.get(number)?.write(1);
        distributor.priority.get(number)?.write(0x80);
        distributor.enable.get(number / 32)?.write(1 << (number % 32));
    }
    let set = MESSAGES + core::mem::offset_of!(MessageFrame, set);
    Some(Message { address: set as u64, data: number as u32 })
}

#[unsafe(no_mangle)]
extern "C" fn board_interrupt() {
    // SAFETY: the machine has the interface there.
    let interface: &CpuInterface = unsafe { registers(CPU_INTERFACE) };
    let taken = interface.acknowledge.read();
    let number = (taken & 0x3ff) as usize;
    // From 1020 on: spurious, nothing to end.
    if number >= 1020 {
        return;
    }
    if let Some(index) = number.checked_sub(message_range().0) {
        interrupts::raised(index);
    }
    // SAFETY: the end of the interrupt that was acknowledged.
    unsafe { interface.end.write(taken) };
}

#[unsafe(no_mangle)]
extern "C" fn board_fault(_entry: u64, syndrome: u64, at: u64, address: u64) -> ! {
    fault("exception, syndrome", syndrome, at, address)
}

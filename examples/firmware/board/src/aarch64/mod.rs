//! QEMU's virt for AArch64, with an interrupt controller GICv2 and its v2m frame for message-signalled interrupts.

use core::arch::{asm, global_asm};

use volatile_register::{RO, RW, WO};

use crate::interrupts::{self, Message};
use crate::pci::{Ecam, Window};
use crate::start::fault;

global_asm!(include_str!("start.S"));

/// Name of the machine.
pub const NAME: &str = "aarch64, virt";
/// The high ECAM of the machine (`highmem-ecam`, on by default).
pub(crate) const ECAM: Ecam = Ecam { base: 0x40_1000_0000, buses: 256 };
/// Its PCI addresses below 1 GiB.
pub(crate) const BARS: Window = Window { base: 0x1000_0000, end: 0x3eff_0000 };

const UART: usize = 0x0900_0000;
const DISTRIBUTOR: usize = 0x0800_0000;
const CPU_INTERFACE: usize = 0x0801_0000;
const MESSAGES: usize = 0x0802_0000;
/// Interrupt of the virtual timer, which ends a sleep.
const VIRTUAL_TIMER: u32 = 27;

/// The PL011, as far as it is used here.
#[repr(C)]
struct Pl011 {
    data: RW<u32>,
    reserved0: [u32; 5],
    flags: RO<u32>,
    reserved1: [u32; 4],
    line_control: RW<u32>,
    control: RW<u32>,
}

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
    assert!(core::mem::offset_of!(Pl011, control) == 0x30);
    assert!(core::mem::offset_of!(Distributor, enable) == 0x100);
    assert!(core::mem::offset_of!(Distributor, priority) == 0x400);
    assert!(core::mem::offset_of!(Distributor, target) == 0x800);
    assert!(core::mem::offset_of!(Distributor, configuration) == 0xc00);
    assert!(core::mem::offset_of!(MessageFrame, set) == 0x40);
};

/// Registers that every machine of this kind has at this address.
///
/// # Safety
/// A block `T` of registers is there.
unsafe fn registers<T>(address: usize) -> &'static T {
    // SAFETY: promised by the caller; the start-up code maps these addresses as device memory.
    unsafe { &*core::ptr::with_exposed_provenance(address) }
}

/// The serial line: a PL011.
pub(crate) struct Uart;

impl Uart {
    fn registers() -> &'static Pl011 {
        // SAFETY: the machine has its first serial line there.
        unsafe { registers(UART) }
    }

    pub(crate) fn put(&mut self, byte: u8) {
        let uart = Self::registers();
        // Room in the transmitter; a line that never has any does not hold the program up.
        let _ = (0..100_000).find(|_| uart.flags.read() & 0x20 == 0);
        // SAFETY: sends a byte.
        unsafe { uart.data.write(u32::from(byte)) };
    }

    pub(crate) fn get(&mut self) -> Option<u8> {
        let uart = Self::registers();
        (uart.flags.read() & 0x10 == 0).then(|| uart.data.read() as u8)
    }
}

/// Returns the time since the counter began.
pub(crate) fn nanoseconds() -> u64 {
    let (ticks, frequency): (u64, u64);
    // SAFETY: reads the virtual counter (not before what comes before it in the program) and its frequency.
    unsafe {
        asm!("isb", "mrs {}, cntvct_el0", "mrs {}, cntfrq_el0", out(reg) ticks, out(reg) frequency, options(nomem, nostack));
    }
    (u128::from(ticks) * 1_000_000_000 / u128::from(frequency.max(1))) as u64
}

/// Sets up serial line and interrupts.
pub(crate) fn start() {
    let uart = Uart::registers();
    // SAFETY: 8 bits, FIFO on; then on, both ways. The distributor and the interface forward everything that is enabled.
    unsafe {
        uart.line_control.write(0x70);
        uart.control.write(0x301);
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

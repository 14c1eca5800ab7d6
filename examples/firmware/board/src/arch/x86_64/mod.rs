//! x86-64 as PCs have it: ports, the time stamp counter, the local APIC.

use core::arch::{asm, global_asm};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU64, Ordering};

use volatile_register::RW;

use crate::description::{MachineError, Span};
use crate::interrupts::{self, Message};
use crate::registers::registers;
use crate::start::fault;

global_asm!(include_str!("start.S"));

/// Vectors of the card: above the exceptions of the processor.
const FIRST_VECTOR: usize = 48;
const TIMER_VECTOR: usize = 62;

pub(crate) fn outb(port: u16, value: u8) {
    // SAFETY: the ports of this package are those of the serial line, the timer, the interrupt controllers and QEMU's devices.
    unsafe { asm!("out dx, al", in("dx") port, in("al") value, options(nomem, nostack, preserves_flags)) }
}

#[cfg(feature = "microvm")]
pub(crate) fn outw(port: u16, value: u16) {
    // SAFETY: as for `outb`.
    unsafe { asm!("out dx, ax", in("dx") port, in("ax") value, options(nomem, nostack, preserves_flags)) }
}

pub(crate) fn inb(port: u16) -> u8 {
    let value;
    // SAFETY: as for `outb`.
    unsafe { asm!("in al, dx", in("dx") port, out("al") value, options(nomem, nostack, preserves_flags)) }
    value
}

/// Ticks of the local APIC's timer in a millisecond.
static TIMER_TICKS: AtomicU64 = AtomicU64::new(1);

/// Nanoseconds for 2^32 ticks of the time stamp counter.
static SCALE: AtomicU64 = AtomicU64::new(1 << 32);

fn ticks() -> u64 {
    // SAFETY: reads a counter.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Returns the time since the counter began.
pub(crate) fn nanoseconds() -> u64 {
    ((u128::from(ticks()) * u128::from(SCALE.load(Ordering::Relaxed))) >> 32) as u64
}

/// The local APIC, as far as it is used here.
#[repr(C)]
struct LocalApic {
    reserved0: [u32; 0x2c],
    end_of_interrupt: RW<u32>,
    reserved1: [u32; 15],
    /// Bit 8: on; bits 7 to 0: vector of the spurious interrupt.
    spurious: RW<u32>,
    reserved2: [u32; 0x8b],
    /// Bit 16: masked; bits 7 to 0: vector of the timer.
    timer: RW<u32>,
    reserved3: [u32; 0x17],
    /// The timer counts down from here, once; 0 stops it.
    initial: RW<u32>,
    reserved4: [u32; 3],
    current: RW<u32>,
    reserved5: [u32; 0x13],
    /// 3: the timer counts every sixteenth tick.
    divide: RW<u32>,
}

const _: () = {
    assert!(core::mem::offset_of!(LocalApic, end_of_interrupt) == 0xb0);
    assert!(core::mem::offset_of!(LocalApic, spurious) == 0xf0);
    assert!(core::mem::offset_of!(LocalApic, timer) == 0x320);
    assert!(core::mem::offset_of!(LocalApic, initial) == 0x380);
    assert!(core::mem::offset_of!(LocalApic, current) == 0x390);
    assert!(core::mem::offset_of!(LocalApic, divide) == 0x3e0);
};

/// Where the start-up code maps RAM, cached.
const MEMORY: Span = Span { base: 0, end: 2 << 30 };
/// Where it maps registers, uncached.
const REGISTERS: Span = Span { base: 2 << 30, end: 4 << 30 };

/// Returns whether `len` bytes at an address, which is a multiple of `align`, lie where RAM is mapped.
pub(crate) fn is_memory(address: u64, len: u64, align: u64) -> bool {
    address.is_multiple_of(align) && MEMORY.contains(&Span::of(address, len))
}

/// Returns that the start-up code has mapped these registers.
///
/// # Errors
/// [`MachineError::OutOfReach`].
pub(crate) fn map_registers(what: &'static str, span: Span) -> Result<(), MachineError> {
    REGISTERS.contains(&span).then_some(()).ok_or(MachineError::OutOfReach { what, address: span.base })
}

/// Returns where registers are mapped so that the processor combines writes to them: nowhere.
pub(crate) const fn map_combining(_: Span) -> Option<u64> {
    None
}

/// Returns what of a range of RAM is mapped.
pub(crate) fn map_memory(span: Span) -> Span {
    Span { end: span.end.min(MEMORY.end), ..span }
}

/// The interrupt controllers: none that the processor does not know of itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Controllers;

/// Model-specific register with the address of the local APIC: bits 51 to 12.
const APIC_BASE: u32 = 0x1b;
/// Where messages go: to local APIC 0, physically (Intel SDM volume 3, 11.11.1).
const MESSAGES: u64 = 0xfee0_0000;

fn local_apic() -> &'static LocalApic {
    let (low, high): (u32, u32);
    // SAFETY: reads a register that every x86-64 has. The processor knows where its local APIC is.
    unsafe {
        asm!("rdmsr", in("ecx") APIC_BASE, out("eax") low, out("edx") high, options(nomem, nostack, preserves_flags));
        registers((u64::from(high & 0xf_ffff) << 32 | u64::from(low & 0xffff_f000)) as usize)
    }
}

/// Ticks of the timer of old in a second, and in the time that is measured: 2 ms.
const TIMER_FREQUENCY: u64 = 1_193_182;
const MEASURED: u16 = 2386;
/// Measurements at most, and good ones that are compared: something may hold the processor up in the middle of one (a hypervisor, the
/// machine's firmware).
const ATTEMPTS: usize = 20;
const GOOD: usize = 4;

/// The three counters at one time.
struct Counters {
    /// The timer of old (Intel 8254, counter 0), which falls.
    old: u16,
    /// The timer of the local APIC, which falls.
    apic: u32,
    /// The time stamp counter.
    stamp: u64,
    /// By how much the others may be off, in ticks of this one.
    apart: u64,
}

impl Counters {
    fn read(apic: &LocalApic) -> Self {
        let stamp = ticks();
        outb(0x43, 0);
        let (old, apic) = (u16::from_le_bytes([inb(0x40), inb(0x40)]), apic.current.read());
        Self { old, apic, stamp, apart: ticks().wrapping_sub(stamp) }
    }
}

/// Compares the time stamp counter and the timer of the local APIC with the timer of old for two milliseconds. A PC without
/// that timer would take the one that ACPI's table FADT names.
fn calibrate() {
    let apic = local_apic();
    // SAFETY: lets the timer run, masked.
    unsafe {
        apic.timer.write(1 << 16 | TIMER_VECTOR as u32);
        apic.divide.write(3);
        apic.initial.write(u32::MAX);
    }
    let (mut best, mut good) = (0, 0);
    for _ in 0..ATTEMPTS {
        // Counter 0, both bytes, mode 0: counts down once. Its interrupt is masked.
        for (port, value) in [(0x43, 0x30), (0x40, 0xff), (0x40, 0xff)] {
            outb(port, value);
        }
        let from = Counters::read(apic);
        // A counter that stands still ends the wait too.
        let to = (0..1_000_000).map(|_| Counters::read(apic)).find(|to| from.old.wrapping_sub(to.old) >= MEASURED);
        let Some(to) = to else { break };
        let counted = to.stamp.wrapping_sub(from.stamp);
        let nanoseconds = u64::from(from.old.wrapping_sub(to.old)) * 1_000_000_000 / TIMER_FREQUENCY;
        if counted == 0 || nanoseconds == 0 {
            break;
        }
        // To some hundredths.
        let is_good = from.apart.max(to.apart) < counted / 32;
        if !is_good && good != 0 {
            continue;
        }
        // The timer of old comes round every 55 ms: held up for longer, a measurement has too few nanoseconds, never too many.
        let scale = ((u128::from(nanoseconds) << 32) / u128::from(counted)) as u64;
        if scale > best || is_good && good == 0 {
            best = scale;
            SCALE.store(scale, Ordering::Relaxed);
            TIMER_TICKS.store(u64::from(from.apic.wrapping_sub(to.apic)) * 1_000_000 / nanoseconds, Ordering::Relaxed);
        }
        good += usize::from(is_good);
        if good == GOOD {
            break;
        }
    }
    // SAFETY: stops the timer.
    unsafe { apic.initial.write(0) };
}

/// Holds interrupts back from now on; gives whether they came through before.
pub(crate) fn hold_interrupts() -> bool {
    let flags: u64;
    // SAFETY: nothing but the interrupt flag changes. Not `nomem`: what is shared with a handler is not touched before.
    unsafe { asm!("pushfq", "pop {}", "cli", out(reg) flags) };
    // Bit 9: IF.
    flags & 1 << 9 != 0
}

/// Lets interrupts through again.
pub(crate) fn let_interrupts_through() {
    // SAFETY: the table of handlers is there since `start`.
    unsafe { asm!("sti", options(nostack)) };
}

/// Sleeps until an interrupt comes, at the latest at `deadline`; lets interrupts through.
pub(crate) fn sleep_until(deadline: u64) {
    let left = deadline.saturating_sub(nanoseconds());
    let ticks = (u128::from(left) * u128::from(TIMER_TICKS.load(Ordering::Relaxed)) / 1_000_000).clamp(1, u128::from(u32::MAX));
    // SAFETY: the timer's interrupt ends the sleep. No interrupt comes between `sti` and `hlt`.
    unsafe {
        let apic = local_apic();
        apic.timer.write(TIMER_VECTOR as u32);
        apic.initial.write(ticks as u32);
        asm!("sti", "hlt", "cli", options(nostack));
        apic.initial.write(0);
    }
}

/// The interrupt descriptor table.
#[repr(C, align(16))]
struct Descriptors(UnsafeCell<[[u64; 2]; 64]>);

// SAFETY: written once, by `start`, before the processor reads it.
unsafe impl Sync for Descriptors {}

static DESCRIPTORS: Descriptors = Descriptors(UnsafeCell::new([[0; 2]; 64]));

#[repr(C, packed)]
struct TablePointer {
    limit: u16,
    base: u64,
}

unsafe extern "C" {
    static vector_stubs: u8;
}

/// Sets up clock and interrupts.
///
/// # Errors
/// None on this processor.
pub(crate) fn start(_: &Controllers) -> Result<(), MachineError> {
    // The old interrupt controllers: everything masked, whatever the BIOS left.
    outb(0x21, 0xff);
    outb(0xa1, 0xff);
    // SAFETY: spurious interrupts are vector 63.
    unsafe { local_apic().spurious.write(0x100 | 63) };
    calibrate();
    let stubs = (&raw const vector_stubs).addr() as u64;
    for vector in 0..64 {
        let to = stubs + 16 * vector as u64;
        // Code segment 8, interrupt gate, present.
        let low = to & 0xffff | 8 << 16 | 0x8e00 << 32 | (to >> 16 & 0xffff) << 48;
        // SAFETY: 64 descriptors are there, and the processor does not use them yet.
        unsafe { DESCRIPTORS.0.get().cast::<[u64; 2]>().add(vector).write([low, to >> 32]) };
    }
    let pointer = TablePointer { limit: 64 * 16 - 1, base: DESCRIPTORS.0.get().addr() as u64 };
    // SAFETY: the table is filled and static; the handlers preserve what they use.
    unsafe {
        asm!("lidt [{}]", in(reg) &raw const pointer, options(nostack, preserves_flags));
        asm!("sti", options(nomem, nostack));
    }
    Ok(())
}

/// Enters the start-up code again, with what the loader gave.
pub(crate) fn restart(given: usize) -> ! {
    // SAFETY: the way back to the state in which a loader enters the start-up code, which takes nothing over.
    unsafe { asm!("jmp leave_long_mode", in("rdi") given, options(noreturn)) }
}

/// Returns the message of a vector: straight to the local APIC of processor 0.
pub(crate) fn open_interrupt(index: usize) -> Option<Message> {
    (FIRST_VECTOR + index < TIMER_VECTOR).then(|| Message { address: MESSAGES, data: (FIRST_VECTOR + index) as u32 })
}

/// What `start.S` pushes.
#[repr(C)]
struct Frame {
    registers: [u64; 9],
    vector: u64,
    code: u64,
    at: u64,
}

#[unsafe(no_mangle)]
extern "C" fn board_vector(frame: &Frame) {
    match usize::try_from(frame.vector) {
        Ok(vector @ FIRST_VECTOR..=TIMER_VECTOR) => {
            // The timer's has nothing to count: it ends a sleep.
            if vector != TIMER_VECTOR {
                interrupts::raised(vector - FIRST_VECTOR);
            }
            // SAFETY: the local APIC waits for the end of this interrupt.
            unsafe { local_apic().end_of_interrupt.write(0) };
        }
        // Spurious: nothing to end.
        Ok(63) => {}
        _ => {
            let address: u64;
            // SAFETY: reads the address of the last page fault.
            unsafe { asm!("mov {}, cr2", out(reg) address, options(nomem, nostack, preserves_flags)) };
            fault("exception", frame.vector << 32 | frame.code & 0xffff_ffff, frame.at, address)
        }
    }
}

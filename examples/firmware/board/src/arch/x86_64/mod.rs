//! x86-64 as PCs have it: ports, the time stamp counter, the local APIC.

use core::arch::{asm, global_asm};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU64, Ordering};

use volatile_register::RW;

use crate::interrupts::{self, Message};
use crate::machine::HPET;
use crate::registers::registers;
use crate::start::fault;

global_asm!(include_str!("start.S"));

/// Vectors of the card: above the exceptions of the processor.
const FIRST_VECTOR: usize = 48;
const TIMER_VECTOR: usize = 62;

pub(crate) fn outb(port: u16, value: u8) {
    // SAFETY: the ports of this package are those of the serial line, the chip set and the interrupt controllers.
    unsafe { asm!("out dx, al", in("dx") port, in("al") value, options(nomem, nostack, preserves_flags)) }
}

pub(crate) fn outw(port: u16, value: u16) {
    // SAFETY: as for `outb`.
    unsafe { asm!("out dx, ax", in("dx") port, in("ax") value, options(nomem, nostack, preserves_flags)) }
}

pub(crate) fn outl(port: u16, value: u32) {
    // SAFETY: as for `outb`.
    unsafe { asm!("out dx, eax", in("dx") port, in("eax") value, options(nomem, nostack, preserves_flags)) }
}

pub(crate) fn inb(port: u16) -> u8 {
    let value;
    // SAFETY: reading the registers of the serial line.
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

/// The high precision event timer, as far as it is used here.
#[repr(C)]
struct Hpet {
    /// Bits 63 to 32: femtoseconds of a tick.
    capabilities: RW<u64>,
    reserved0: u64,
    /// Bit 0: runs.
    configuration: RW<u64>,
    reserved1: [u64; 27],
    counter: RW<u64>,
}

const _: () = assert!(core::mem::offset_of!(Hpet, counter) == 0xf0);

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

const LOCAL_APIC: usize = 0xfee0_0000;

/// Compares the time stamp counter and the timer of the local APIC with the event timer for two milliseconds.
fn calibrate() {
    // SAFETY: the chip set has the event timer there, and every processor its local APIC.
    let (hpet, apic): (&Hpet, &LocalApic) = unsafe { (registers(HPET), registers(LOCAL_APIC)) };
    let femtoseconds = hpet.capabilities.read() >> 32;
    // SAFETY: lets the counter run, whose comparators are unused, and the timer, masked.
    unsafe {
        hpet.configuration.write(hpet.configuration.read() | 1);
        apic.timer.write(1 << 16 | TIMER_VECTOR as u32);
        apic.divide.write(3);
        apic.initial.write(u32::MAX);
    }
    if femtoseconds == 0 {
        return;
    }
    let wanted = 2_000_000_000_000 / femtoseconds;
    let (from, first) = (hpet.counter.read(), ticks());
    // A counter that stands still ends the wait too.
    let passed = (0..10_000_000).map(|_| hpet.counter.read().wrapping_sub(from)).find(|passed| *passed >= wanted);
    let counted = ticks().wrapping_sub(first);
    let timer = u32::MAX - apic.current.read();
    // SAFETY: stops the timer.
    unsafe { apic.initial.write(0) };
    if let (Some(passed), true) = (passed, counted != 0) {
        let nanoseconds = passed.saturating_mul(femtoseconds) / 1_000_000;
        SCALE.store(((u128::from(nanoseconds) << 32) / u128::from(counted)) as u64, Ordering::Relaxed);
        TIMER_TICKS.store(u64::from(timer) * 1_000_000 / nanoseconds.max(1), Ordering::Relaxed);
    }
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
        let apic: &LocalApic = registers(LOCAL_APIC);
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
pub(crate) fn start() {
    // SAFETY: the local APIC is there on every x86-64; spurious interrupts are vector 63.
    unsafe { registers::<LocalApic>(LOCAL_APIC).spurious.write(0x100 | 63) };
    calibrate();
    // The old interrupt controllers: everything masked, whatever the BIOS left.
    outb(0x21, 0xff);
    outb(0xa1, 0xff);
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
}

/// Returns the message of a vector: straight to the local APIC of processor 0.
pub(crate) fn open_interrupt(index: usize) -> Option<Message> {
    (FIRST_VECTOR + index < TIMER_VECTOR).then(|| Message { address: LOCAL_APIC as u64, data: (FIRST_VECTOR + index) as u32 })
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
            unsafe { registers::<LocalApic>(LOCAL_APIC).end_of_interrupt.write(0) };
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

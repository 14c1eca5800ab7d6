//! From the start-up code to the program, and from there to the end of the machine.

use core::panic::PanicInfo;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::description::{self, MachineError, Span};
use crate::failure::Failure;
use crate::{arch, console, machine, pci, println, stack};

/// Exit status of a program that failed.
const FAILED: u8 = 1;
/// Exit status of a program that panicked or did what the processor refuses.
const BROKEN: u8 = 2;

unsafe extern "Rust" {
    // SAFETY: `entry!` makes it, with this type; without it nothing links.
    safe fn firmware_main() -> Result<(), Failure>;
}

/// Names the function that runs when the machine is up; its error is printed, and the machine ends with status 1.
#[macro_export]
macro_rules! entry {
    ($main:path) => {
        // SAFETY: the only function of that name: a program has one entry.
        #[unsafe(no_mangle)]
        fn firmware_main() -> Result<(), $crate::Failure> {
            $main()
        }
    };
}

/// What the loader gave: the address of a device tree, or of the PVH start info.
static GIVEN: AtomicUsize = AtomicUsize::new(0);

/// Bytes of the registers of a serial line.
const SERIAL: u64 = 0x1000;

/// Reads what the machine is, and sets it up.
fn start(given: usize) -> Result<(), MachineError> {
    let description = description::start(machine::describe(given)?)?;
    if let Some(serial) = description.serial {
        arch::map_registers("the serial line", Span::of(serial, SERIAL))?;
        console::move_to(serial);
    }
    arch::start(&description.controllers)?;
    pci::start(description);
    Ok(())
}

/// Called by the start-up code, once, on the stack, with cleared statics.
#[unsafe(no_mangle)]
extern "C" fn board_start(given: usize) -> ! {
    stack::paint();
    GIVEN.store(given, Ordering::Relaxed);
    console::start();
    if let Err(error) = start(given) {
        println!("failed: what this machine is: {error}");
        machine::end(FAILED)
    }
    let result = firmware_main();
    println!("stack: {} of {} bytes were used", stack::used(), stack::size());
    match result {
        Ok(()) => {
            println!("done");
            machine::end(0)
        }
        Err(failure) => {
            println!("failed: {failure}");
            machine::end(FAILED)
        }
    }
}

/// Starts the program again, and nothing else of the machine: as a watchdog that resets the processor alone, and leaves the cards as
/// they are. Statics are cleared, but for those with a value other than 0: these are as the program left them.
pub fn restart() -> ! {
    arch::hold_interrupts();
    arch::restart(GIVEN.load(Ordering::Relaxed))
}

/// Ends the machine after what the processor refused: an unexpected exception.
pub(crate) fn fault(name: &str, number: u64, at: u64, address: u64) -> ! {
    // The interrupted code may hold the console.
    console::take_by_force();
    println!("failed: {name} {number:#x} at {at:#x}, address {address:#x}");
    machine::end(BROKEN)
}

#[panic_handler]
fn panicked(info: &PanicInfo<'_>) -> ! {
    console::take_by_force();
    match info.location() {
        Some(at) => println!("failed: panicked at {at}: {}", info.message()),
        None => println!("failed: panicked: {}", info.message()),
    }
    machine::end(BROKEN)
}

#[cfg(feature = "defmt")]
#[defmt::panic_handler]
fn panicked_in_log() -> ! {
    console::take_by_force();
    println!("failed: a panic that the log names");
    machine::end(BROKEN)
}

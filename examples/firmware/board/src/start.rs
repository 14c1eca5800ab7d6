//! From the start-up code to the program, and from there to the end of the machine.

use core::panic::PanicInfo;

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

/// Called by the start-up code, once, on the stack, with cleared statics.
#[unsafe(no_mangle)]
extern "C" fn board_start() -> ! {
    stack::paint();
    machine::start();
    arch::start();
    pci::start();
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

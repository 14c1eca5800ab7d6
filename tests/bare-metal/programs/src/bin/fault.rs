//! An instruction that no processor has.
#![no_std]
#![no_main]

use board::{Failure, println};

board::entry!(main);

fn main() -> Result<(), Failure> {
    println!("executing what is no instruction");
    // SAFETY: the processor refuses it, and the board's handler ends the machine.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        core::arch::asm!("ud2");
        #[cfg(target_arch = "aarch64")]
        core::arch::asm!("udf #0");
        #[cfg(target_arch = "riscv64")]
        core::arch::asm!("unimp");
    }
    Ok(())
}

//! The board support of the example programs, for a machine without an operating system. It has what the driver does not do:
//! start-up code, console, clock, PCI Express, interrupts, memory for the card, the end of a program.
//!
//! Four machines of QEMU are here: `q35` and (with the feature `microvm`) `microvm` of x86-64, `virt` of AArch64 and `virt` of RISC-V.
//! A board of one's own is one more file in `machine/`, which reads the machine's description by `description/`, and its linker
//! script; the code of the processor is in `arch/`.
#![no_std]

pub mod card;
pub mod console;
mod description;
pub mod dma;
pub mod failure;
pub mod interrupts;
#[cfg(feature = "defmt")]
mod log;
pub mod pci;
mod registers;
mod serial;
pub mod stack;
mod start;

#[cfg(target_arch = "x86_64")]
#[path = "arch/x86_64/mod.rs"]
mod arch;
#[cfg(target_arch = "x86_64")]
#[path = "machine/isa_debug_exit.rs"]
mod isa_debug_exit;
#[cfg(all(target_arch = "x86_64", not(feature = "microvm")))]
#[path = "machine/q35.rs"]
mod machine;
#[cfg(all(target_arch = "x86_64", feature = "microvm"))]
#[path = "machine/microvm.rs"]
mod machine;

#[cfg(target_arch = "aarch64")]
#[path = "arch/aarch64/mod.rs"]
mod arch;
#[cfg(target_arch = "aarch64")]
#[path = "machine/virt_aarch64.rs"]
mod machine;

#[cfg(target_arch = "riscv64")]
#[path = "arch/riscv64/mod.rs"]
mod arch;
#[cfg(target_arch = "riscv64")]
#[path = "machine/virt_riscv64.rs"]
mod machine;

pub use failure::{During, Failure};
pub use machine::NAME;
pub use start::restart;

use bareverbs::platform::{Clock, Instant, Platform};
use bareverbs_mmio::{CpuFence, MappedBar, MappedMemory, PageRanges};

/// The machine as the driver sees it: a BAR mapped uncached (on AArch64 its doorbells write-combining), memory that the card reaches under the CPU's addresses, the
/// barriers of the CPU, its counter.
#[derive(Clone, Copy, Debug)]
pub struct Board;

// SAFETY: the BAR, the memory and the barriers of this machine.
unsafe impl Platform for Board {
    type Registers = MappedBar;
    type Memory = MappedMemory;
    type Pages = PageRanges;
    type Fence = CpuFence;
    type Clock = Timer;
}

/// The counter of the CPU, in nanoseconds since it was turned on.
#[derive(Clone, Copy, Debug)]
pub struct Timer;

impl Clock for Timer {
    fn now(&self) -> Instant {
        Instant::from_nanos(arch::nanoseconds())
    }
}

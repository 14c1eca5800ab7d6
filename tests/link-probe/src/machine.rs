//! The machine of the probe: a mapped BAR, mapped memory, the barriers of the CPU, and a timer register.

use core::mem::size_of;
use core::ptr::NonNull;

use bareverbs::{Clock, Instant, Platform, Verbs};
use bareverbs_mlx5::Mlx5;
use bareverbs_mlx5::mmio::{CpuFence, MappedBar, MappedMemory};

/// Pages of the arena: what bring-up, firmware and the small configuration need.
pub const PAGES: usize = 256;

/// A timer that counts nanoseconds.
pub struct Timer(pub NonNull<u64>);

impl Clock for Timer {
    fn now(&self) -> Instant {
        // SAFETY: whoever made the value promised a register there.
        Instant::from_nanos(unsafe { self.0.as_ptr().read_volatile() })
    }
}

/// The machine.
pub struct Probe;

impl Platform for Probe {
    type Registers = MappedBar;
    type Memory = MappedMemory;
    type Fence = CpuFence;
    type Clock = Timer;
}

/// The driver.
pub type ProbeDriver = Mlx5<Probe, PAGES>;

/// The small configuration: 1 PD, 4 MR, 4 MW, 2 CQ, 2 QP of 64 send blocks and 64 receives.
pub type ProbeVerbs = Verbs<ProbeDriver, 1, 4, 4, 2, 2, 64, 64>;

/// The machine handed in.
#[cfg(feature = "whole")]
pub type ProbeMachine = bareverbs_mlx5::Machine<Probe>;

/// Bytes of the verbs with their tables and rings, the driver included.
#[unsafe(no_mangle)]
pub static RAM_VERBS_AND_DRIVER: [u8; size_of::<ProbeVerbs>()] = [0; size_of::<ProbeVerbs>()];

/// Bytes of the driver, its arena's page table included.
#[unsafe(no_mangle)]
pub static RAM_DRIVER: [u8; size_of::<ProbeDriver>()] = [0; size_of::<ProbeDriver>()];

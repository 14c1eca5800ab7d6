//! The CPU's barriers between DMA memory and device registers.

use core::sync::atomic::{Ordering, compiler_fence};

use bareverbs::platform::DmaFence;

/// The barriers of this CPU between ordinary memory and device registers.
///
/// | CPU | release | publish | acquire | read_before_write | flush |
/// |---|---|---|---|---|---|
/// | x86, BAR uncached | none: stores stay in order | none | none: loads stay in order | none | none |
/// | x86, BAR write-combining | `sfence` | none: memory is written back | none | none | `sfence` |
/// | AArch64 | `dmb oshst` | `dmb oshst` | `dmb oshld` | `dmb oshld` | `dsb st` |
/// | RISC-V | `fence iorw, ow` | `fence w, w` | `fence ir, ir` | `fence ir, ow` | `fence ow, ow` |
/// | Arm | `dmb` | `dmb` | `dmb` | `dmb` | `dsb` |
///
/// Each is a compiler barrier too. On other CPUs this does not compile, because a compiler barrier alone would be wrong where
/// the CPU reorders. A platform for such a CPU implements [`DmaFence`] itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct CpuFence {
    write_combining: bool,
}

impl CpuFence {
    /// For doorbells that are mapped uncached (device memory). The mlx5 driver's option `blue_flame` must be off.
    pub const UNCACHED: Self = Self { write_combining: false };
    /// For doorbells that are mapped write-combining ([`MappedBar::with_combining_doorbells`](crate::MappedBar::with_combining_doorbells), or
    /// the whole BAR), with the mlx5 driver's option `blue_flame` on.
    pub const WRITE_COMBINING: Self = Self { write_combining: true };
}

macro_rules! barrier {
    ($instruction:literal) => {{
        // SAFETY: a barrier changes no register and no memory.
        unsafe { core::arch::asm!($instruction, options(nostack, preserves_flags)) }
    }};
}

#[cfg(not(any(
    target_arch = "x86_64",
    target_arch = "x86",
    target_arch = "aarch64",
    target_arch = "riscv32",
    target_arch = "riscv64",
    target_arch = "arm"
)))]
compile_error!("the barriers between memory and device registers of this CPU are not known");

impl DmaFence for CpuFence {
    #[inline(always)]
    fn release(&self) {
        #[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
        if self.write_combining {
            barrier!("sfence");
        }
        #[cfg(target_arch = "aarch64")]
        barrier!("dmb oshst");
        #[cfg(any(target_arch = "riscv32", target_arch = "riscv64"))]
        barrier!("fence iorw, ow");
        #[cfg(target_arch = "arm")]
        barrier!("dmb");
        compiler_fence(Ordering::Release);
    }

    #[inline(always)]
    fn release_uncached(&self) {
        Self::UNCACHED.release();
    }

    #[inline(always)]
    fn publish(&self) {
        #[cfg(target_arch = "aarch64")]
        barrier!("dmb oshst");
        #[cfg(any(target_arch = "riscv32", target_arch = "riscv64"))]
        barrier!("fence w, w");
        #[cfg(target_arch = "arm")]
        barrier!("dmb");
        compiler_fence(Ordering::Release);
    }

    #[inline(always)]
    fn acquire(&self) {
        #[cfg(target_arch = "aarch64")]
        barrier!("dmb oshld");
        #[cfg(any(target_arch = "riscv32", target_arch = "riscv64"))]
        barrier!("fence ir, ir");
        #[cfg(target_arch = "arm")]
        barrier!("dmb");
        compiler_fence(Ordering::Acquire);
    }

    #[inline(always)]
    fn read_before_write(&self) {
        #[cfg(target_arch = "aarch64")]
        barrier!("dmb oshld");
        #[cfg(any(target_arch = "riscv32", target_arch = "riscv64"))]
        barrier!("fence ir, ow");
        #[cfg(target_arch = "arm")]
        barrier!("dmb");
        compiler_fence(Ordering::AcqRel);
    }

    #[inline(always)]
    fn flush(&self) {
        #[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
        if self.write_combining {
            barrier!("sfence");
        }
        #[cfg(target_arch = "aarch64")]
        barrier!("dsb st");
        #[cfg(any(target_arch = "riscv32", target_arch = "riscv64"))]
        barrier!("fence ow, ow");
        #[cfg(target_arch = "arm")]
        barrier!("dsb");
        compiler_fence(Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "instructions of the CPU")]
    fn each_barrier_runs_on_this_cpu() {
        for fence in [CpuFence::UNCACHED, CpuFence::WRITE_COMBINING] {
            fence.release();
            fence.acquire();
            fence.publish();
            fence.read_before_write();
            fence.flush();
        }
    }
}

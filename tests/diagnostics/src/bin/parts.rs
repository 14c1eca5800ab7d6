//! A platform of parts that are none.
//~ error: `*mut u32` is not the registers of a device
//~ note: a BAR is `bareverbs_vfio::Bar` on Linux, `bareverbs_mmio::MappedBar` where it is mapped, and `bareverbs_sim::in_process::SimRegisters` in tests
//~ error: `Vec<u8>` is not memory that CPU and device share
//~ note: slices and `Vec` are not: references to their bytes may exist while the device writes
//~ note: memory to be registered is a `DmaBuffer`
//~ error: `Vec<[u8; 4096]>` has no pages for the firmware of a device
//~ error: `()` does not order accesses of CPU and device
//~ error: `std::time::Instant` is not a clock
struct Board;

unsafe impl bareverbs::platform::Platform for Board {
    type Registers = *mut u32;
    type Memory = Vec<u8>;
    type Pages = Vec<[u8; 4096]>;
    type Fence = ();
    type Clock = std::time::Instant;
}

fn main() {}

//! A driver is brought up on what is no platform.
//~ error: `Board` does not name the registers, memory, pages, fence and clock of a machine
//~ note: platforms are `bareverbs_vfio::VfioPlatform` on Linux and `bareverbs_sim::in_process::SimPlatform` in tests; a machine without an operating system implements `Platform`
struct Board;

fn takes<P: bareverbs::platform::Platform>(_: P) {}

fn main() {
    takes(Board);
}

//! A simulated device, its wire, its cable and its trace, of what is none.
//~ error: `Vec<u8>` is not memory that a simulated device reaches
//~ note: it is reached through `&self`, since host and device share it: `in_process::MemoryMap` is the memory of a host in this process
//~ error: `Vec<u8>` is not a wire between ports
//~ error: `Vec<u8>` takes no frames of a port
//~ error: `Vec<u8>` does not look at frames
//~ error: `Vec<u8>` does not take records of a device
use bareverbs_sim::host_memory::HostMemory;

fn memory(_: impl HostMemory) {}
fn wire(_: impl bareverbs_sim::wire::Wire) {}
fn uplink(_: impl bareverbs_sim::fabric::Uplink) {}
fn tap(_: impl bareverbs_sim::fabric::Tap) {}
fn tracer(_: impl bareverbs_sim::trace::Tracer) {}

fn main() {
    memory(Vec::<u8>::new());
    wire(Vec::<u8>::new());
    uplink(Vec::<u8>::new());
    tap(Vec::<u8>::new());
    tracer(Vec::<u8>::new());
}

//! A driver on a device that lies: in what it writes to memory, and in the outputs of its commands. What must hold is in
//! `bareverbs_tests::lying_device`, which a test plays with inputs of a generator.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    bareverbs_tests::lying_device::play(bytes);
});

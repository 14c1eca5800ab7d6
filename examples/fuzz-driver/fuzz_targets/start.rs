//! The start of a driver on a device that lies as the input says.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| fuzz_driver::play(input));

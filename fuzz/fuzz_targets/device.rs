//! Anything that a hostile host or network can do to the simulated device, and to guests of other devices through it.
#![no_main]

use bareverbs_fuzz::device::{Act, Setup, play};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (Setup, Vec<Act>)| {
    let (setup, acts) = input;
    play(&setup, acts);
});

//! Anything that a hostile host or network can do to the simulated device.
#![no_main]

use bareverbs_fuzz::device::{Act, play};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (bool, Vec<Act>)| {
    let (pages, acts) = input;
    play(pages, acts);
});

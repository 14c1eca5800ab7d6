//! Arbitrary completions, written into the queue of a driver without a device, for a queue pair of each kind. Polling never panics, and
//! every posted request completes at most once, and in order where the device must keep it. The requests in flight add up, and everything
//! can be destroyed afterwards, unless the device is lost.
#![no_main]

use bareverbs_fuzz::completions::{Input, play};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: Input| {
    let _ = play(&input);
});

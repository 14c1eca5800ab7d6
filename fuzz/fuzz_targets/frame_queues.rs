//! What a guest may do with the queues for frames and the flow tables of its Ethernet port, beside two guests that exchange frames.
#![no_main]

use bareverbs_fuzz::frame_queues::{Act, play};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|acts: Vec<Act>| play(acts));

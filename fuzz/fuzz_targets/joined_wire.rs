//! Any bytes of a wire that joins the Ethernet of simulated devices, beside two hosts that talk over RoCEv2.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| bareverbs_fuzz::joined_wire::play(input));

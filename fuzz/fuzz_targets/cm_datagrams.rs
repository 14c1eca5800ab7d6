//! Arbitrary datagrams of connection management, between arbitrary calls of a program. Nothing panics, each connection has one end, and
//! what is released is closed in bounded time.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| bareverbs_fuzz::connections::play(input));

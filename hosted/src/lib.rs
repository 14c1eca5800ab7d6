//! The `bareverbs` command: decoders, the trace, the self-test, and jobs on one device, simulated or behind VFIO.
//!
//! Everything that needs an operating system lives here and nowhere else.

pub mod bind;
pub mod buffer;
pub mod cli;
pub mod decode;
pub mod device;
pub mod devices;
pub mod fields;
pub mod info;
pub mod names;
pub mod number;
pub mod output;
pub mod pattern;
pub mod perf;
pub mod pingpong;
pub mod progress;
pub mod record;
pub mod run;
pub mod selftest;
pub mod serve;
pub mod trace;
pub mod user;
pub mod writer;

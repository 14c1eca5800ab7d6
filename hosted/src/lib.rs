//! The `bareverbs` command: decoders, the trace, and the main job on two simulated devices.
//!
//! Everything that needs an operating system lives here and nowhere else.
#![forbid(unsafe_code)]

pub mod buffer;
pub mod cli;
pub mod decode;
pub mod device;
pub mod fields;
pub mod info;
pub mod main_job;
pub mod names;
pub mod record;
pub mod run;
pub mod serve;
pub mod simulated;
pub mod trace;

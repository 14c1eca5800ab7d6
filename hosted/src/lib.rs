//! The `bareverbs` command: self-test, measurements, decoders and trace, on simulated devices or cards behind VFIO.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod args;
pub mod bind;
pub mod cli;
pub mod data_pattern;
pub mod decode;
pub mod device;
pub mod devices;
pub mod doctor;
pub mod export;
pub mod info;
pub mod outcome;
pub mod output;
pub mod peer_connection;
pub mod perf;
pub mod pingpong;
pub mod progress;
pub mod rdma_cm;
pub mod rping;
pub mod run;
pub mod selftest;
pub mod serve;
mod status_line;
pub mod stop;
pub mod sudo_user;
pub mod trace;
pub mod ucmatose;
pub mod udaddy;
pub mod vm;

//! Decodes the structures that an mlx5 device reads and writes: WQEs, CQEs, EQEs and firmware commands.
//!
//! Every decoder accepts any bytes and returns a [`Decoded`]: the structures, each field with its name, value and meaning, and
//! findings. The fields come from the layouts of `bareverbs-mlx5-spec`; checks implement the rules that a layout cannot express. No
//! code is shared with the driver that writes these bytes.
//!
//! ```
//! use bareverbs_decode::send::{self, Transport};
//!
//! // A NOP of queue pair 0x4b that requests a completion: one unit of 16 bytes.
//! let wqe = [0, 0, 7, 0, 0, 0, 0x4b, 1, 0, 0, 0, 8, 0, 0, 0, 0];
//! let decoded = send::decode(&wqe, 0, Transport::Rc);
//! assert!(!decoded.has_errors());
//! assert!(decoded.title.starts_with("NOP"));
//! print!("{decoded}");
//! ```
//!
//! With the feature `serde`, [`Decoded`] implements `Serialize`; without it the package needs `bareverbs-mlx5-spec` alone.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod code_names;
pub mod command;
pub mod command_table;
pub mod completion;
mod decoded;
pub mod event;
pub mod field_printer;
pub mod kernel_log;
pub mod receive;
pub mod send;
#[cfg(test)]
mod tests;
mod umr;

pub use decoded::{Decoded, Finding, Section, Severity};

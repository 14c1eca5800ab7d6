//! The layout of every structure of an mlx5 (ConnectX) device and of its packets, each defined once.
//!
//! Driver, simulated device, tests and tools read and write through these definitions. A test compares each with the published
//! offsets. The package has no behaviour, and no dependency but that of the feature `defmt`.
//!
//! [`CmdOpcode`] is the table of firmware commands: number, input, output, and the objects that each names. [`cmd`] has each
//! command as a type. Segments, completions and doorbells also come as whole words, for code that loads and stores those.
#![no_std]
#![forbid(unsafe_code)]

mod all;
mod codes;
mod command;
mod cqe;
mod doorbell;
mod event;
mod init_segment;
mod layout;
mod packet_headers;
mod subnet_management;
mod view;
mod wqe;

pub use all::layouts;
pub use command::*;
pub use cqe::*;
pub use doorbell::*;
pub use event::*;
pub use init_segment::*;

#[doc(hidden)]
pub use layout::define;
pub use layout::{
    Bits, Bytes, Field, Field64, FieldInfo, Layout, LayoutInfo, Place, Sub, Tail, be_word, check_fields, from_be_word,
};
pub use packet_headers::*;
pub use subnet_management::*;
pub use view::{Buffer, View, ViewMut};
pub use wqe::*;

//! Frames of an Ethernet port: a send queue and a receive queue for a network interface beside RDMA.
//!
//! The queues and the buffers of their frames lie in the driver's arena, so that no reference to memory that the device writes
//! exists: a frame is copied in or out. The driver owns them, and [`Ethernet`] borrows the driver, so that no queue outlives a
//! device that is down.

mod config;
mod error;
mod interface;
mod made;
mod objects;
pub(crate) mod queues;

/// The code of `min_inline_mode`, which the configuration names as the layout does.
pub use bareverbs_mlx5_spec::InlineMode;
pub use config::{Checksums, EthernetConfig, FrameFilter};
pub use error::{FrameError, FrameQueueFault, OpenEthernetError};
pub use interface::Ethernet;
pub use queues::{EthernetStatistics, Received, Verified};

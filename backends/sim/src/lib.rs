#![doc = include_str!("../README.md")]
//!
//! A simulated ConnectX adapter at the level of its registers.
//!
//! [`Device`] is a PCI function with one port, of InfiniBand or Ethernet: configuration space, BAR0, firmware commands, queues, MSI-X, and
//! packets on a wire. An mlx5 driver drives it as it drives a card. It works in [`Device::advance`] alone, which is
//! bounded, and has no thread, no clock and no randomness. It reaches the host's memory through [`host_memory::HostMemory`].
//!
//! [`in_process`] puts devices, the wire between them and their time into one process, and offers the platform traits of the
//! crate `bareverbs`. So a driver such as `bareverbs-mlx5` runs on it in a unit test. The package `bareverbs-serve` serves a
//! device to virtual machines, where Linux's own driver uses it.
//!
//! # Where things are
//!
//! - [`in_process`]: worlds, hosts, simulated time; [`wire`]: wires and their faults; [`fabric`]: ports and inboxes of several devices
//! - [`capture`]: the frames on the wire as pcapng files
//! - [`fault`]: faults of a device, armed one by one; [`audit`]: mistakes of the driver; [`rejection`]: what a
//!   device refused and why; [`trace`]: all that it does
//! - [`packet`] and [`wqe_decode`]: packets and work queue elements as values
#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(unsafe_code)]

pub mod audit;
pub mod capture;
mod command;
mod config;
mod device;
mod engine;
pub mod fabric;
pub mod fault;
mod firmware;
pub mod host_memory;
pub mod identity;
pub mod in_process;
mod limits;
mod management;
pub mod packet;
mod pci;
mod port;
mod profile;
mod registers;
mod registry;
pub mod rejection;
mod stats;
mod step;
pub mod trace;
pub mod wire;
pub mod wqe_decode;

pub use bareverbs_mlx5_spec::QpcState;
pub use config::{
    CommandTime, ConfigError, DeviceConfig, FRAME_OVERHEAD, FirmwareVersion, InterruptRouting, LinkSpeed, LinkWidth,
    MAX_ETHERNET_FRAME, MIN_ETHERNET_FRAME, MIN_MEMORY_LIMIT, PageDemand, PortKind, RelaxedOrdering,
};
pub use device::Device;
pub use firmware::HcaState;
pub use limits::{Limit, LimitError, Limits};
pub use pci::CONFIG_SPACE;
pub use profile::{Figure, Profile};
pub use registers::bar0::{BAR0_SIZE, MSIX_PENDING, MSIX_TABLE};
pub use registers::health::HealthReport;
pub use stats::{DeviceCounts, DeviceStats, EngineCounts, EngineStats, FrameTraffic, QueueCounts, Traffic};
pub use step::Budget;

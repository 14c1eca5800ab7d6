//! A simulated ConnectX at the register level.
//!
//! [`Device`] is a PCI function with one InfiniBand port: configuration space, BAR0, interrupts, frames. It speaks to
//! whatever driver comes, knows none, and reaches host memory only through [`host_memory::HostMemory`]. It does all its work in
//! [`Device::advance`]: no thread, no wall clock, no randomness of its own. [`in_process`] puts devices, the wire between
//! them and their time into one process and offers the platform traits of the verbs crate on top.
#![deny(unsafe_code)]

pub mod audit;
mod command;
mod config;
mod device;
pub mod engine;
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
mod registers;
mod registry;
mod stats;
pub mod step;
pub mod trace;
pub mod wire;
pub mod wqe_decode;

pub use config::{DeviceConfig, FirmwareVersion, InterruptRouting, LinkSpeed, LinkWidth, MIN_MEMORY_LIMIT, PageDemand};
pub use device::Device;
pub use firmware::HcaState;
pub use limits::{Limit, LimitError, Limits};
pub use pci::CONFIG_SPACE;
pub use registers::bar0::{BAR0_SIZE, MSIX_PENDING, MSIX_TABLE};
pub use registers::health::HealthReport;
pub use stats::{DeviceCounts, DeviceStats, EngineCounts, EngineStats, QueueCounts, Traffic};
pub use step::{Budget, Meter};

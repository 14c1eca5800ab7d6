//! A simulated ConnectX at the register level.
//!
//! [`Device`] is a PCI function with one InfiniBand port: configuration space, BAR0, interrupts, frames. It speaks to
//! whatever driver comes, knows none, and reaches host memory only through [`memory::HostMemory`]. It does all its work in
//! [`Device::advance`]: no thread, no wall clock, no randomness of its own. [`in_process`] puts devices, the wire between
//! them and their time into one process and offers the platform traits of the verbs crate on top.
#![deny(unsafe_code)]

pub mod audit;
mod bar0;
mod budget;
mod capability;
mod command;
mod config;
mod device;
pub mod engine;
pub mod env;
mod eq;
pub mod fabric;
pub mod fault;
mod firmware;
mod health;
pub mod in_process;
mod init_segment;
mod limits;
mod management;
pub mod memory;
mod msix;
pub mod packet;
mod pages;
mod pci;
mod port;
mod registry;
mod spare_frames;
pub mod trace;
mod uar;
mod umem;
mod unsupported;
pub mod wire;
pub mod wqe;

pub use bar0::{BAR0_SIZE, MSIX_PENDING, MSIX_TABLE};
pub use budget::{Budget, Meter};
pub use config::{DeviceConfig, FirmwareVersion, InterruptRouting, LinkSpeed, LinkWidth, MIN_MEMORY_LIMIT, PageDemand};
pub use device::{Device, DeviceCounts, DeviceStats};
pub use firmware::HcaState;
pub use health::HealthReport;
pub use limits::{Limit, LimitError, Limits};
pub use pci::CONFIG_SPACE;

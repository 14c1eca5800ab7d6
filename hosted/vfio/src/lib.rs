//! A ConnectX owned by a Linux process through VFIO: the platform of the driver `bareverbs-mlx5`.
//!
//! [`Device::open`] opens a PCI function that is bound to vfio-pci and behind an IOMMU; [`pci`] lists functions and binds them. The
//! device provides the mapped registers of BAR0, locked memory at I/O virtual addresses ([`DmaAllocation`], in huge pages if any are
//! reserved), and MSI-X vectors as event descriptors ([`Interrupt`]).
//!
//! The IOMMU restricts the card to this memory, for any address that the card uses. Cards of one IOMMU group share an address
//! space, and can access the memory of each other. Only mapped memory can be registered: [`DmaAllocation`] and [`Mapping`] are the
//! buffers for `reg_mr`. Two cards never have memory at the same I/O virtual address at a time.
//!
//! A device is opened by its IOMMU group and a container, or by its own file and iommufd where the kernel has no groups or the process may
//! not open them ([`pci::Interface`]).
#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(unsafe_code)]

mod address_space;
mod bar;
mod clock;
mod config_space;
mod device;
mod dma;
mod error;
mod firmware_pages;
mod interrupt;
mod iova;
mod open_function;
mod opener;
pub mod pci;
mod platform;
mod space_info;

pub use bar::{Bar, BarDoorbell, BarWord};
pub use clock::MonotonicClock;
pub use device::Device;
pub use dma::{DmaAllocation, DmaAllocationRing, Mapping};
pub use error::Error;
pub use firmware_pages::FirmwarePages;
pub use interrupt::{Interrupt, wait_any};
pub use platform::VfioPlatform;

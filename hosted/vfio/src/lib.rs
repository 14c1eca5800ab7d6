//! A ConnectX owned by a Linux process through VFIO: the platform of the driver `bareverbs-mlx5`.
//!
//! [`Device::open`] takes a PCI function that is bound to vfio-pci and stands behind an IOMMU ([`pci`] finds it and binds it). It gives the driver its registers
//! (BAR0, mapped), memory that is locked and mapped at I/O virtual addresses ([`DmaAllocation`], in huge pages where there are some),
//! and MSI-X vectors as event descriptors ([`Interrupt`]).
//!
//! The card reaches nothing but this memory, as long as it lives: the IOMMU enforces it, whatever address the card is given.
//! (Cards of one IOMMU group reach each other's: they share an address space.) Only memory that is mapped can be registered: [`DmaAllocation`] and
//! [`Mapping`] are the buffers for `reg_mr`. Memory that was mapped for one card has no meaning for another: no address is given out
//! twice.
//!
//! With feature `cdev` the device is opened by VFIO's character device and iommufd instead of groups and containers. Kernels of
//! Debian 12 and 13 do not have them (`CONFIG_VFIO_DEVICE_CDEV`, `CONFIG_IOMMUFD`), so that this way has been compiled, not run.
#![deny(unsafe_code)]

mod address_space;
mod bar;
mod clock;
mod config_space;
mod device;
mod dma;
mod error;
mod interrupt;
mod iova;
mod open_function;
pub mod pci;
mod platform;

pub use bar::{Bar, BarDoorbell, BarWord};
pub use clock::MonotonicClock;
pub use device::Device;
pub use dma::{DmaAllocation, DmaAllocationRing, Mapping};
pub use error::Error;
pub use interrupt::{Interrupt, wait_any};
pub use platform::VfioPlatform;

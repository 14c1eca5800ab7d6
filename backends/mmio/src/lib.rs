//! Registers, DMA memory and barriers of a machine on which a driver accesses them by pointers.
//!
//! | type | platform trait | purpose |
//! |---|---|---|
//! | [`MappedBar`] | [`Registers`](bareverbs::platform::Registers) | a device's BAR, mapped into the address space |
//! | [`MappedMemory`], [`MappedRing`] | [`DmaMemory`](bareverbs::platform::DmaMemory), [`DmaRing`](bareverbs::platform::DmaRing) | memory that CPU and device share |
//! | [`PageRanges`] | [`PageSource`](bareverbs::platform::PageSource) | single pages for the firmware of a device, from ranges of memory |
//! | [`CpuFence`] | [`DmaFence`](bareverbs::platform::DmaFence) | the CPU's barriers between DMA memory and registers |
//! | [`IdentityBuffer`] | [`DmaBuffer`](bareverbs::DmaBuffer) | an application buffer where device addresses are the caller's |
//!
//! Firmware and VFIO build their platform from these types. A simulated device, or a machine with other buses or barriers,
//! implements the traits itself.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![no_std]
#![expect(unsafe_code, reason = "a mapped BAR and device memory are raw memory")]
#![warn(missing_debug_implementations)]

#[cfg(test)]
extern crate std;

mod bar;
mod fence;
mod identity_buffer;
mod memory;
mod pages;
mod ring;
#[cfg(test)]
mod test_memory;

pub use bar::{MappedBar, MappedDoorbell, MappedWord};
pub use fence::CpuFence;
pub use identity_buffer::IdentityBuffer;
pub use memory::MappedMemory;
pub use pages::PageRanges;
pub use ring::{MappedRing, MappedRingView};

#![no_std]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![doc = include_str!("../README.md")]
//! # What is checked, and when
//!
//! Before the driver has the machine: [`check_machine`], or its parts [`check_memory`], [`check_registers`], [`check_pages`] and
//! [`check_clock`]. [`check_clock_against`] compares a clock with another one, and [`check_buffer`] is for what programs register.
//!
//! On a card that the driver has brought up, or on a simulated one: [`check_traffic`]. Thousands of requests go over the loopback of its
//! port, and each byte is compared when the completion has come. So it sees what no look at the memory shows: that the device sees
//! what the CPU wrote before the doorbell, that the CPU sees what the device wrote before the completion, and that interrupts come.
//!
//! A platform that passes may still be wrong: an order that a fence does not keep is seen only where processor and device make use of
//! it.
//!
//! ```
//! use bareverbs_conformance::check_machine;
//! use bareverbs_sim::in_process::{World, WorldConfig};
//!
//! let (_world, host, _) = World::pair(WorldConfig::default());
//! let mut machine = host.machine(512 << 10);
//! check_machine(&mut machine, &mut [0; 64])?;
//! // The driver gets the machine now.
//! # Ok::<(), bareverbs_conformance::MachineFault>(())
//! ```

mod buffer;
mod bytes;
mod clock;
mod machine;
mod memory;
mod pages;
mod pattern;
mod registers;
mod ring;
mod traffic;

pub use buffer::{BufferFault, check_buffer};
pub use bytes::{Call, MemoryFault};
pub use clock::{ClockFault, ClockReport, check_clock, check_clock_against};
pub use machine::{MachineFault, check_machine};
pub use memory::check_memory;
pub use pages::{PageFault, check_pages};
pub use registers::{RegisterCall, RegisterFault, check_registers};
pub use traffic::{Step, Traffic, TrafficFault, TrafficReport, check_traffic};

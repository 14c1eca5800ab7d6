//! Simulated devices, their wire and their time in one process: what a driver needs to run on them, with no thread of its own
//! and no wall clock. Any thread may use any of it.
//!
//! A [`World`] contains the devices, the wire between them and the time. A [`Host`] is one machine with one device in it and
//! makes the parts of its platform: [`SimRegisters`], [`SimMemory`], [`SimPages`], [`SimFence`] and [`SimClock`].
//!
//! Simulated time moves when the program looks for something:
//!
//! - [`SimClock`]'s `relax` moves it a step on and lets devices and wire work; `now` moves it 20 ns on. So every wait with a
//!   deadline ends.
//! - A program that reads the same place of a queue or a [`SimBuffer`] 64 times in a row moves it to the next event. So
//!   `while cq.poll(&mut done)? == 0 {}` ends, as on hardware. If no event is due, it spins without end, as on hardware.
//! - [`World::advance`] moves it as far as it says.
//!
//! [`LyingMemory`] changes what a device writes, for a driver that is to be tried on a device that cannot be trusted.
//!
//! One thread that does the same sees the same, to the nanosecond.

mod capture;
mod config;
mod idle_reads;
mod lying_memory;
mod memory;
mod number;
mod order;
mod pages;
mod platform;
mod state;
mod world;

pub use capture::Capture;
pub use config::WorldConfig;
pub use lying_memory::LyingMemory;
pub use memory::{MemoryMap, SimBuffer, SimMemory, SimRing};
pub use order::{Access, OrderLog, Recorded, RecordedPlatform, RecordedRegister, RecordedRing};
pub use pages::SimPages;
pub use platform::{SimClock, SimFence, SimPlatform, SimRegister, SimRegisters};
pub use world::{Host, World};

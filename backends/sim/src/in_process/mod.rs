//! Simulated devices, their wire and their time in one process: what a driver needs to run on them, with no thread of its own
//! and no wall clock. Any thread may use any of it.
//!
//! A [`World`] holds the devices, the wire between them and the time. A [`Host`] is one machine with one device in it and
//! makes the parts of its platform: [`SimRegisters`], [`SimMemory`], [`SimFence`] and [`SimClock`]. Time passes only in
//! the clock: [`SimClock`]'s `relax` lets devices and wire work and moves on, and `now` moves on a little, so that every
//! wait ends.

mod memory;
mod order;
mod platform;
mod world;

pub use memory::{MemoryMap, SimBuffer, SimMemory, SimRing};
pub use order::{Access, OrderLog, Recorded, RecordedPlatform, RecordedRegister, RecordedRing};
pub use platform::{SimClock, SimFence, SimPlatform, SimRegister, SimRegisters};
pub use world::{Host, World, WorldConfig};

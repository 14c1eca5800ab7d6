#![doc = include_str!("../README.md")]
//!
//! # Time
//!
//! By default simulated time moves only while the program waits or polls ([`bareverbs_sim::in_process`]). A program of one thread
//! then does the same each time, to the nanosecond; another seed of [`Faults`] is another run. To compare two runs see [`comparable`]. A program of several threads, or one
//! that sleeps, wants time that passes by itself: [`Network::run_in_background`].
//!
//! # Faults
//!
//! | what | by |
//! |---|---|
//! | frames lost, duplicated, reordered, delayed | [`Faults`], or [`World::set_wire_faults`] while it runs |
//! | a partition, also of one direction | [`Network::cut`], [`Network::heal`] |
//! | a cable without its other end | [`Node::set_link`] |
//! | a device that is gone, now or at the n-th write to it | [`Node::remove`], [`Node::remove_after`] |
//! | a device that returns wrong data, or does not answer | [`Node::arm`] with a [`Fault`] |
//! | Ethernet ports, RoCEv2 | [`Faults::ethernet`] |
//! | devices like another card, in all tests | the environment variable `BAREVERBS_PROFILE` with a [`Profile::name`] |
//! | a device of another kind | [`Network::add`] with a [`DeviceConfig`], as [`DeviceConfig::profile`] makes it |
//!
//! # A test that fails
//!
//! A test that returns [`TestResult`] prints the text of its error, and the line. A device says less to its driver than it knows: one
//! status for every refused access, nothing of a datagram that it drops. [`Node::rejections`] says what, why, and with which numbers.
//!
//! # Threads
//!
//! The feature `multicore`, which is on by default, lets queues move to threads of their own. Without it `bareverbs` has no locks, and a
//! queue stays on its thread: `default-features = false` tests that.
//!
//! # Futures
//!
//! A task that awaits `cq.ready()` is woken by the interrupt handler, which [`Node::serve_interrupts`] runs. Without it, and without time that
//! passes by itself, nobody wakes the task.
//!
//! # What it is not
//!
//! It has no panic hook and no global state. A wait of this crate that is over is an error with the facts ([`Overdue`]), never a hang.
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod bring_up;
mod connection;
mod error;
mod faults;
#[cfg(feature = "multicore")]
mod interrupts;
mod network;
mod node;
mod repeat;
mod wait;

pub use bareverbs_sim::audit::Finding;
pub use bareverbs_sim::fault::Fault;
pub use bareverbs_sim::in_process::{Host, SimBuffer, World, WorldConfig};
pub use bareverbs_sim::rejection::{KeyFault, KeyUse, Rejection};
pub use bareverbs_sim::wire::{Probability, ProbabilityError, WireFaults, WireStats};
pub use bareverbs_sim::{DeviceConfig, HcaState, Profile, QpcState};

pub use bring_up::{await_port, bring_up, driver_config};
pub use connection::{Connection, End, connect, connect_with, connect_with_srq, join, path_to};
pub use error::{Error, Failure, TestResult};
pub use faults::Faults;
#[cfg(feature = "multicore")]
pub use interrupts::ServedInterrupts;
pub use network::{Network, Running};
pub use node::{Driver, Node, PAGES, nodes, pair};
pub use repeat::comparable;
pub use wait::{MAX_RNR_NAKS, Overdue, WAIT_TIMEOUT, WaitError, Waiter};

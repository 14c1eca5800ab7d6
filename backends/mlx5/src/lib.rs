//! An mlx5 (ConnectX) driver without an operating system and without a heap.
//!
//! [`Mlx5::bring_up`] takes a [`Machine`] (registers, memory, pages, fences, clock), brings the device up and implements the core's
//! [`Provider`](bareverbs::backend::Provider) on it. [`Mlx5::teardown`] returns the machine. The driver's own memory (queues, doorbell
//! records, mailboxes) comes from one arena, whose size is part of the type; the pages that the device's firmware wants come from a
//! [`PageSource`](bareverbs::platform::PageSource) of the machine. The driver checks each value from the device: an impossible number is an error, and
//! every wait has a deadline.
//!
//! The driver has no `unsafe` block: registers, memory and barriers are those of its [`Platform`]. The package `bareverbs-mmio`
//! has them for machines that access a device by pointers.
//!
//! # Example
//!
//! Verbs on the device of a machine:
//!
//! ```
//! use std::error::Error;
//!
//! use bareverbs::platform::{Machine, Platform};
//! use bareverbs::storage::QpRings;
//! use bareverbs::{Verbs, storage};
//! use bareverbs_mlx5::{Config, Mlx5};
//!
//! /// The driver, with an arena of 128 pages of 4096 bytes.
//! type Card<P> = Mlx5<P, 128>;
//! type Tables<'r, P> = storage!['r, Card<P>; pds: 1, mrs: 4, mws: 4, cqs: 2, qps: 1];
//!
//! fn show_port<P: Platform + 'static>(machine: Machine<P>) -> Result<(), Box<dyn Error>> {
//!     let card = Card::bring_up(machine, &Config::DEFAULT).map_err(|(error, _machine)| error)?;
//!     let rings = QpRings::<64, 16>::new();
//!     let mut tables = Tables::new([rings.view()]);
//!     let mut verbs = Verbs::new(card, &mut tables);
//!     let port = verbs.query_port(1)?;
//!     println!("LID {}, {:?}", port.lid.get(), port.state);
//!     Ok(())
//! }
//! ```
//!
//! `P` names the types of registers, memory, pages, fences and clock. The book of the project shows a whole program for firmware.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![no_std]
#![deny(unsafe_code)]
#![warn(missing_debug_implementations)]

#[cfg(test)]
extern crate std;

mod bring_up;
mod command;
mod config;
mod direct;
mod dma;
mod driver;
mod error;
#[cfg(feature = "ethernet")]
mod ethernet;
mod events;
mod listed;
mod log;
mod object;
mod objects;
mod provider;
mod ring;
mod statistics;
#[cfg(test)]
mod tests;

use core::ops::ControlFlow;

use bareverbs::platform::{Machine, Platform};

use bring_up::steps::Hook;
pub use bring_up::steps::{BringUpError, Progress, Step, TeardownError, TeardownReport};
pub use config::{Config, CqeSize};
pub use direct::Mlx5Direct;
pub use error::{CmdName, Error, Feature, PageCount};
#[cfg(feature = "ethernet")]
pub use ethernet::{
    Checksums, Ethernet, EthernetConfig, EthernetStatistics, FrameError, FrameFilter, FrameQueueFault, InlineMode,
    OpenEthernetError, Received, Verified,
};
pub use events::health::Health;
pub use object::Object;
pub use objects::mkey::{MkeyState, Mr};
pub use objects::qp::Qp;
pub use statistics::Statistics;

pub use events::completion::Mlx5CompletionEvents;
pub use objects::cq::ring::{Mlx5CqReader, Mlx5CqRing};
pub use objects::qp::recv_ring::Mlx5RecvRing;
pub use objects::qp::send_ring::{Mlx5SendRing, Mlx5SendWriter};

use dma::arena::{self, PAGE, PageUse};
use driver::Driver;
use log::format_as;

/// A device that is up, with an arena of `PAGES` pages of 4096 bytes.
pub struct Mlx5<P: Platform, const PAGES: usize> {
    driver: Driver<P, [PageUse; PAGES]>,
}

format_as!(
    [P: Platform, const PAGES: usize] Mlx5<P, PAGES>,
    "Mlx5(node {:x}, {} pages)",
    |this| this.driver.attr.node_guid.0, PAGES,
);

impl<P: Platform, const PAGES: usize> Mlx5<P, PAGES> {
    /// Bytes of memory that the machine must have.
    pub const ARENA: usize = PAGES * PAGE;

    /// Brings a device up.
    ///
    /// # Errors
    /// The failed step, its cause, and the machine. With [`BringUpError::needs_reset`] the device may still write into the machine's
    /// memory and pages, though the machine is yours again. Until you have reset the function, keep them as they are:
    /// not read, not written, not freed, and no buffer of anybody. Registered buffers are included that were not returned. A bring-up
    /// resets nothing, and begins by freeing all pages: reset the function before it.
    pub fn bring_up(machine: Machine<P>, config: &Config) -> Result<Self, (BringUpError, Machine<P>)> {
        Self::bring_up_with(machine, config, |_| ControlFlow::Continue(()))
    }

    /// Brings a device up and calls `hook` before each step and each batch of pages for the firmware. If `hook` returns `Break`,
    /// what was done is undone.
    ///
    /// # Errors
    /// The failed step, its cause, and the machine. The cause is [`Error::Stopped`] if the hook stopped the bring-up.
    // Not inlined, as `bring_up_in`.
    #[inline(never)]
    pub fn bring_up_with(
        machine: Machine<P>,
        config: &Config,
        mut hook: impl FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Self, (BringUpError, Machine<P>)> {
        let mut this = Self { driver: Driver::new(machine, *config) };
        match this.start(&mut hook) {
            Ok(()) => Ok(this),
            Err(error) => Err((error, this.driver.commands.machine)),
        }
    }

    /// Brings a device up in `place`, so that the driver with the tables of its arena is never moved. The verbs take the
    /// reference. After an error the driver is in `place` and down: [`Mlx5::teardown`] returns its machine.
    ///
    /// # Errors
    /// The failed step and its cause.
    // Not inlined: a driver that is made on the stack first is not in the frame of the caller, who keeps it for the life of a program.
    #[inline(never)]
    pub fn bring_up_in<'p>(
        place: &'p mut Option<Self>,
        machine: Machine<P>,
        config: &Config,
    ) -> Result<&'p mut Self, BringUpError> {
        let this = place.insert(Self { driver: Driver::new(machine, *config) });
        this.start(&mut |_| ControlFlow::Continue(()))?;
        Ok(this)
    }

    /// Performs all steps, or undoes those that were done before a failure.
    fn start(&mut self, hook: Hook<'_>) -> Result<(), BringUpError> {
        let view = self.view();
        view.bring_up(Self::ARENA, hook).map_err(|(step, cause)| {
            // The caller needs the first cause.
            let _ = view.tear_down();
            let pages_kept = view.commands.held;
            BringUpError { step, cause, pages_kept, needs_reset: view.needs_reset() }
        })
    }

    /// Takes the device down (event queues, UAR, HCA) and reclaims every page. Queue pairs, queues and keys that still exist
    /// are destroyed with it.
    ///
    /// # Errors
    /// The first command that failed. The machine is returned in any case. With [`TeardownReport::needs_reset`], which the error has
    /// too ([`TeardownError::report`]) and a report without error may have, what [`Self::bring_up`] says about its memory holds.
    pub fn teardown(mut self) -> Result<(Machine<P>, TeardownReport), (TeardownError, Machine<P>)> {
        match self.teardown_in_place() {
            Ok(report) => Ok((self.driver.commands.machine, report)),
            Err(error) => Err((error, self.driver.commands.machine)),
        }
    }

    /// Takes the device down and keeps the machine, for a driver made by [`Mlx5::bring_up_in`].
    ///
    /// # Errors
    /// The first command that failed.
    pub fn teardown_in_place(&mut self) -> Result<TeardownReport, TeardownError> {
        self.view().tear_down()
    }

    /// Returns the counters.
    pub fn statistics(&self) -> Statistics {
        let arena: &arena::Arena = &self.driver.commands.arena;
        Statistics {
            pages_held: self.driver.commands.held,
            pages_used: arena.used_pages(),
            pages_free: arena.free_pages(),
            ..self.driver.commands.stats
        }
    }

    /// Returns the machine's clock.
    pub const fn clock(&self) -> &P::Clock {
        &self.driver.commands.machine.clock
    }

    /// Returns the driver without the size of its arena in the type.
    fn view(&mut self) -> &mut Driver<P> {
        &mut self.driver
    }
}

//! An mlx5 (ConnectX) driver without an operating system and without a heap.
//!
//! [`Mlx5::bring_up`] takes registers, memory, fences and a clock, brings the device up and implements the core's
//! [`Provider`](bareverbs::Provider) on it; [`Mlx5::teardown`] gives everything back.
//! All memory of the device comes from one arena whose size the type promises. Nothing that the device says is believed: a
//! number that cannot be is an error value, and every wait has an end.
//!
//! The driver has no `unsafe` block: registers, memory and barriers are those of its [`Platform`]. The package `bareverbs-mmio` has
//! them for machines that access a device by pointers.
//!
//! # Example
//!
//! Verbs on the device of a machine:
//!
//! ```
//! use std::error::Error;
//!
//! use bareverbs::{Machine, Platform, QpRings, Storage, Verbs};
//! use bareverbs_mlx5::{Config, Mlx5};
//!
//! /// The driver, with an arena of 512 pages of 4096 bytes.
//! type Card<P> = Mlx5<P, 512>;
//!
//! fn show_port<P: Platform + 'static>(machine: Machine<P>) -> Result<(), Box<dyn Error>> {
//!     let card = Card::bring_up(machine, &Config::DEFAULT).map_err(|(error, _machine)| error)?;
//!     let rings = QpRings::<64, 16>::new();
//!     // 1 protection domain, 4 regions, 4 windows, 2 completion queues, 1 queue pair.
//!     let mut tables = Storage::<Card<P>, 1, 4, 4, 2, 1>::new([rings.view()]);
//!     let mut verbs = Verbs::new(card, &mut tables);
//!     let port = verbs.query_port(1)?;
//!     println!("LID {}, {:?}", port.lid.get(), port.state);
//!     Ok(())
//! }
//! ```
//!
//! `P` names the types of registers, memory, fences and clock. The book of the project shows a whole program for firmware.
#![no_std]
#![deny(unsafe_code)]
#![warn(missing_debug_implementations)]

#[cfg(test)]
extern crate std;

mod bring_up;
mod command;
mod config;
mod dma;
mod driver;
mod error;
mod events;
mod log;
#[cfg(test)]
mod mock;
mod objects;
mod provider;
mod ring;

use core::ops::ControlFlow;

use bareverbs::{Machine, Platform};

use bring_up::steps::Hook;
pub use bring_up::steps::{BringUpError, CmdName, Step, TeardownError, TeardownReport};
pub use config::Config;
pub use error::{Error, Feature};
pub use events::health::Health;
pub use objects::cq::Cq;
pub use objects::mkey::{MkeyState, Mr, Mw};
pub use objects::pd::Pd;
pub use objects::qp::Qp;

pub use events::completion::CompletionEvents;
pub use objects::cq::ring::{CqReader, CqRing};
pub use objects::qp::recv_ring::RecvRing;
pub use objects::qp::send_ring::{SendRing, SendWriter};

use dma::arena::{self, PAGE, PageUse};
use driver::Driver;
use log::format_as;

/// What the driver has counted since its bring-up; counters wrap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Statistics {
    /// Firmware commands issued.
    pub commands: u32,
    /// Commands that did not end in time.
    pub timeouts: u32,
    /// Command completions that came as events.
    pub command_events: u32,
    /// Asynchronous events.
    pub async_events: u32,
    /// Page requests of the firmware.
    pub page_requests: u32,
    /// Pages given to the firmware.
    pub pages_given: u32,
    /// Pages that came back.
    pub pages_back: u32,
    /// Pages that the firmware has now.
    pub pages_held: u32,
    /// Pages that the driver has now.
    pub pages_used: u32,
    /// Pages that a command which did not answer in time may still use; they come back if it answers after all.
    pub pages_lost: u32,
    /// Free pages.
    pub pages_free: u32,
}

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
    /// Bytes of memory that a machine must have.
    pub const ARENA: usize = PAGES * PAGE;

    /// Brings a device up. After an error the machine comes back; [`BringUpError::pages_kept`] and
    /// [`BringUpError::slots_lost`] say whether its memory may be used again.
    pub fn bring_up(machine: Machine<P>, config: &Config) -> Result<Self, (BringUpError, Machine<P>)> {
        Self::bring_up_with(machine, config, |_| ControlFlow::Continue(()))
    }

    /// Like [`Mlx5::bring_up`]; `hook` is called before each step and may stop there, which undoes the steps before.
    pub fn bring_up_with(
        machine: Machine<P>,
        config: &Config,
        mut hook: impl FnMut(Step) -> ControlFlow<()>,
    ) -> Result<Self, (BringUpError, Machine<P>)> {
        let mut this = Self { driver: Driver::new(machine, *config) };
        match this.start(&mut hook) {
            Ok(()) => Ok(this),
            Err(error) => Err((error, this.driver.machine)),
        }
    }

    /// Like [`Mlx5::bring_up`], in the place where the driver is to stay: what the verbs get is the reference, and the driver, with the
    /// tables of its arena, is not moved. After an error it is in its place and down; [`Mlx5::teardown`] gives its machine back.
    ///
    /// # Errors
    /// As of [`Mlx5::bring_up`].
    pub fn bring_up_in<'p>(
        place: &'p mut Option<Self>,
        machine: Machine<P>,
        config: &Config,
    ) -> Result<&'p mut Self, BringUpError> {
        let this = place.insert(Self { driver: Driver::new(machine, *config) });
        this.start(&mut |_| ControlFlow::Continue(()))?;
        Ok(this)
    }

    /// All steps up, or those that were done down again.
    fn start(&mut self, hook: Hook<'_>) -> Result<(), BringUpError> {
        let view = self.view();
        view.bring_up(Self::ARENA, hook).map_err(|(step, cause)| {
            // The cause is what the caller needs; what the undoing met on top of it shows in pages and slots.
            let _ = view.tear_down();
            let (pages_kept, slots_lost) = (view.arena.firmware_pages(), view.commands.lost_slots());
            BringUpError { step, cause: cause.into(), pages_kept, slots_lost }
        })
    }

    /// Takes the device down: event queues, UAR, HCA; every page comes back. Queue pairs, queues and keys that were not
    /// destroyed before go with it. The machine comes back in any case.
    pub fn teardown(mut self) -> Result<(Machine<P>, TeardownReport), (TeardownError, Machine<P>)> {
        match self.take_down() {
            Ok(report) => Ok((self.driver.machine, report)),
            Err(error) => Err((error, self.driver.machine)),
        }
    }

    /// Like [`Mlx5::teardown`] where the driver stays: it keeps its machine.
    ///
    /// # Errors
    /// As of [`Mlx5::teardown`].
    pub fn take_down(&mut self) -> Result<TeardownReport, TeardownError> {
        self.view().tear_down()
    }

    /// Looks whether the device lives: to be called about once a second.
    pub fn health(&mut self) -> Result<Health, Error> {
        Ok(self.view().check_health()?)
    }

    /// Firmware version: major, minor, sub-minor.
    pub const fn firmware_version(&self) -> [u16; 3] {
        self.driver.attr.fw_ver
    }

    /// What was counted.
    pub fn statistics(&self) -> Statistics {
        let arena: &arena::Arena = &self.driver.arena;
        Statistics {
            pages_held: arena.firmware_pages(),
            pages_used: arena.count(PageUse::DRIVER),
            pages_lost: arena.lost_pages(),
            pages_free: arena.free_pages(),
            ..self.driver.stats
        }
    }

    /// The machine's clock.
    pub const fn clock(&self) -> &P::Clock {
        &self.driver.machine.clock
    }

    /// The machine, for what the driver does not do.
    ///
    /// # Safety
    /// Registers and memory tell the device where to write: nothing is written to them that lets it write to memory that is not its
    /// own, and neither is exchanged for another device's.
    #[expect(unsafe_code, reason = "registers and memory tell the device where to write")]
    pub const unsafe fn machine(&mut self) -> &mut Machine<P> {
        &mut self.driver.machine
    }

    /// The driver with its arena's size forgotten.
    fn view(&mut self) -> &mut Driver<P> {
        &mut self.driver
    }
}

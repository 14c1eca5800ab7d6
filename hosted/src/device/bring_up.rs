//! Brings a device up, and provides the storage of its verbs.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result, bail};
use bareverbs::{Event, Machine, Platform, QpRings, Storage};
use bareverbs_mlx5::{Error, Mlx5, Progress, TeardownReport};

use super::card_error::CardError;
use super::host::Host;
use super::stoppable::{Stoppable, StoppableClock};
use crate::progress::Progress as ProgressBar;
use crate::stop::Interrupted;

/// Pages of 4096 bytes in the driver's arena, for its queues: 32 queue pairs of 40 pages, and completion queues with room for all.
pub(super) const PAGES: usize = 8192;

/// Bytes that the firmware of a card is expected to want, rounded up: a ConnectX-4 Lx wanted 50 MiB. They are mapped as it asks.
const FIRMWARE_MEMORY: u64 = 64 << 20;

/// Bytes for the messages of a job with default options, rounded up: the self-test, `pingpong` and `perf` map them besides the
/// driver's memory.
const JOB_MEMORY: u64 = 16 << 20;

/// Bytes that a subcommand locks for one card: the memory of the driver, of the firmware and of a job.
pub const LOCKED_MEMORY: u64 = PAGES as u64 * 4096 + FIRMWARE_MEMORY + JOB_MEMORY;

/// The driver on platform `P`.
pub(super) type Backend<P> = Mlx5<P, PAGES>;

/// The verbs on it.
pub type Verbs<P> = bareverbs::Verbs<'static, Backend<P>>;

/// Queue pairs of a device.
pub const QUEUE_PAIRS: usize = 32;
/// Blocks of 64 bytes of a send ring: 512 requests of up to four blocks (a bind of a window takes three).
pub const SEND_BLOCKS: usize = 2048;
/// Receives of a queue pair.
pub const RECEIVES: usize = 512;

/// Protection domains of a device.
pub const DOMAINS: usize = 2;
/// Memory regions of a device.
pub const REGIONS: usize = 8;
/// Memory windows of a device.
pub const WINDOWS: usize = 4;
/// Completion queues of a device.
pub const COMPLETION_QUEUES: usize = 8;

type Tables<P> = Storage<'static, Backend<P>, DOMAINS, REGIONS, WINDOWS, COMPLETION_QUEUES, QUEUE_PAIRS>;

/// Allocates the storage for the verbs on one device. It is leaked, so that the verbs may borrow it for the life of the process: a
/// process brings each of its devices up once.
fn storage<P: Platform + 'static>() -> &'static mut Tables<P> {
    let rings = std::array::from_fn(|_| {
        let rings: &'static QpRings<SEND_BLOCKS, RECEIVES> = Box::leak(Box::default());
        rings.view()
    });
    Box::leak(Box::new(Storage::new(rings)))
}

/// Returns what helps against the failure of a bring-up. The other causes say it themselves, or nothing is known.
fn remedy(cause: &Error) -> Option<String> {
    let text = match cause {
        Error::NotInitialized => {
            "wait some minutes and try again: the firmware of a BlueField is ready when the card's own system has booted (its console \
             shows how far it is); if it stays so, switch the power of the machine off and on"
        }
        Error::DeviceGone => "switch the power of the machine off and on: the card keeps its own through a restart",
        _ => return None,
    };
    Some(text.into())
}

/// A device that is up.
pub struct Device<H: Host> {
    /// Its host.
    pub host: H,
    /// Its verbs.
    pub verbs: Box<Verbs<Stoppable<H::Platform>>>,
}

impl<H: Host> Device<H> {
    /// Brings the device of a host up. If `stop` is set meanwhile, the bring-up is undone. Later waits of the driver also end soon after
    /// `stop` ([`StoppableClock`]).
    ///
    /// # Errors
    /// The host lacks a resource, or a step of the bring-up failed; the error names it. [`Interrupted`] if `stop` was set
    /// meanwhile.
    pub fn bring_up(host: H, stop: &Arc<AtomicBool>) -> Result<Self> {
        let Machine { registers, memory, pages, fence, clock } = host.machine(Backend::<H::Platform>::ARENA)?;
        let machine = Machine { registers, memory, pages, fence, clock: StoppableClock::new(clock, stop.clone()) };
        let is_stopped = || stop.load(Ordering::Relaxed);
        let mut bar = None;
        let hook = |progress| {
            match progress {
                Progress::Step(_) => bar = None,
                Progress::Pages { given, wanted } => bar
                    .get_or_insert_with(|| ProgressBar::new(u64::from(wanted), "pages", true, stop.clone()))
                    .move_to("firmware", u64::from(given)),
            }
            if is_stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        match Backend::bring_up_with(machine, &host.config(), hook) {
            Ok(backend) => Ok(Self { host, verbs: Box::new(Verbs::new(backend, storage())) }),
            Err(_) if is_stopped() => Err(Interrupted.into()),
            Err((error, machine)) => Err(match (error.cause, host.pages_refused(&machine.pages)) {
                (Error::TooFewPages { .. }, Some(reason)) => reason.context(error),
                (cause, _) => CardError::new(host.name(), &error, remedy(&cause)).into(),
            }),
        }
    }

    /// Polls events, answers page requests of the firmware, and checks the health of the device every two seconds. To be called while
    /// the job is idle.
    ///
    /// # Errors
    /// The device is broken or gone.
    pub fn check(&mut self) -> Result<()> {
        self.host.check()?;
        while let Some(event) = self.verbs.poll_event().with_context(|| self.host.name().to_string())? {
            if let Event::DeviceFatal(syndrome, extended) = event {
                bail!("device {} is broken: syndrome {syndrome:#x}, {extended:#x}", self.host.name());
            }
        }
        self.verbs.maintain().map(|_| ()).with_context(|| self.host.name().to_string())
    }

    /// Checks the health of the device now, which [`Self::check`] does every two seconds: the peer of a device that is gone may report
    /// an error before.
    ///
    /// # Errors
    /// The device is gone, or stopped until a reset.
    pub fn check_health(&mut self) -> Result<()> {
        self.verbs.provider_mut().health().map(|_| ()).with_context(|| self.host.name().to_string())
    }

    /// Tears the device down, with all verbs objects that are left on it.
    ///
    /// # Errors
    /// A command of the teardown failed; those after it were executed nevertheless.
    pub fn teardown(self) -> Result<TeardownReport> {
        let Self { host, verbs } = self;
        let Ok(backend) = (*verbs).into_provider() else { bail!("{}: queues of it are in use", host.name()) };
        match backend.teardown() {
            Ok((_machine, report)) => Ok(report),
            Err((error, _machine)) => Err(error).with_context(|| format!("teardown of {}", host.name())),
        }
    }
}

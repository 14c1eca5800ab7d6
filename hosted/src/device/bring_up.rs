//! A device that the driver has brought up, and the storage of its verbs.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result, bail};
use bareverbs::{Event, Machine, Platform, QpRings, Storage};
use bareverbs_mlx5::{Mlx5, TeardownReport};

use super::host::Host;
use super::stoppable::{Stoppable, StoppableClock};
use crate::stop::Interrupted;

/// Pages of 4096 bytes of the driver's arena: what the firmware of a card asks for, and the queues.
pub(super) const PAGES: usize = 16384;

/// Bytes for the messages of a job, with the defaults of its options: what the self-test, `pingpong` and `perf` map beside the
/// driver's memory, rounded up.
const JOB_MEMORY: u64 = 16 << 20;

/// Bytes that a subcommand locks on one card: the memory of the driver, and that of a job.
pub const LOCKED_MEMORY: u64 = PAGES as u64 * 4096 + JOB_MEMORY;

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

/// Objects of a device: 2 domains, 8 regions, 4 windows, 8 completion queues.
type Tables<P> = Storage<'static, Backend<P>, 2, 8, 4, 8, QUEUE_PAIRS>;

/// Storage for the verbs on one device. It is never freed, so that the verbs borrow from nothing that could go before them: a
/// process brings each of its devices up once.
fn storage<P: Platform + 'static>() -> &'static mut Tables<P> {
    let rings = std::array::from_fn(|_| {
        let rings: &'static QpRings<SEND_BLOCKS, RECEIVES> = Box::leak(Box::default());
        rings.view()
    });
    Box::leak(Box::new(Storage::new(rings)))
}

/// A device that is up.
pub struct Device<H: Host> {
    /// Where it is.
    pub host: H,
    /// Its verbs.
    pub verbs: Box<Verbs<Stoppable<H::Platform>>>,
}

impl<H: Host> Device<H> {
    /// Brings the device of a host up. Once `stop` is set the bring-up is undone, and every later wait of the driver ends soon
    /// ([`StoppableClock`]).
    ///
    /// # Errors
    /// The host does not give what the driver needs, or a step of the bring-up failed; the error names it. [`Interrupted`] if
    /// `stop` was set meanwhile.
    pub fn bring_up(host: H, stop: &Arc<AtomicBool>) -> Result<Self> {
        let Machine { registers, memory, fence, clock } = host.machine(Backend::<H::Platform>::ARENA)?;
        let machine = Machine { registers, memory, fence, clock: StoppableClock::new(clock, stop.clone()) };
        let is_stopped = || stop.load(Ordering::Relaxed);
        let before_step = |_| if is_stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
        match Backend::bring_up_with(machine, &host.config(), before_step) {
            Ok(backend) => Ok(Self { host, verbs: Box::new(Verbs::new(backend, storage())) }),
            Err(_) if is_stopped() => Err(Interrupted.into()),
            Err((error, _machine)) => Err(error).with_context(|| host.name().to_string()),
        }
    }

    /// Takes the events that are waiting, answers page requests of the firmware and looks about once a second whether the device
    /// lives. To be called while there is nothing else to do.
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

    /// Takes the device down. The verbs objects on it were destroyed before, or go with it.
    ///
    /// # Errors
    /// A command of the teardown failed; those after it were tried all the same.
    pub fn teardown(self) -> Result<TeardownReport> {
        let Self { host, verbs } = self;
        let Ok(backend) = (*verbs).into_provider() else { bail!("{}: queues of it are in use", host.name()) };
        match backend.teardown() {
            Ok((_machine, report)) => Ok(report),
            Err((error, _machine)) => Err(error).with_context(|| format!("teardown of {}", host.name())),
        }
    }
}

//! Brings a device up, and provides the storage of its verbs.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result, bail};
use bareverbs::platform::{Machine, Platform};
use bareverbs::storage::{QpRings, SrqEntries, Storage};
use bareverbs::{Event, storage};
use bareverbs_mlx5::{CmdName, Error, Mlx5, Progress, TeardownReport};

use super::card_error::CardError;
use super::host::Host;
use super::stoppable::{Stoppable, StoppableClock};
use crate::output;
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

/// Shared receive queues of a device.
const SHARED_RECEIVE_QUEUES: usize = 2;
/// Places of a shared receive queue, for the receives of all queue pairs.
const SHARED_RECEIVES: usize = 16_384;

/// Protection domains of a device.
pub const DOMAINS: usize = 2;
/// Memory regions of a device.
pub const REGIONS: usize = 8;
/// Memory windows of a device.
pub const WINDOWS: usize = 4;
/// Completion queues of a device.
pub const COMPLETION_QUEUES: usize = 8;

type Tables<P> = storage![
    'static, Backend<P>;
    pds: DOMAINS,
    mrs: REGIONS,
    mws: WINDOWS,
    cqs: COMPLETION_QUEUES,
    qps: QUEUE_PAIRS,
    srqs: SHARED_RECEIVE_QUEUES
];

/// Allocates the storage for the verbs on one device. It is leaked, so that the verbs may borrow it for the life of the process: a
/// process brings each of its devices up once.
fn storage<P: Platform + 'static>() -> &'static mut Tables<P> {
    let rings = std::array::from_fn(|_| {
        let rings: &'static QpRings<SEND_BLOCKS, RECEIVES> = Box::leak(Box::default());
        rings.view()
    });
    let shared = std::array::from_fn(|_| {
        // Built on the heap: it is larger than the stack of a thread may be.
        let entries: &'static SrqEntries<SHARED_RECEIVES> = Box::leak(Box::default());
        entries.view()
    });
    Box::leak(Box::new(Storage::with_srqs(rings, shared)))
}

/// Returns what helps against the failure of a bring-up. The other causes say it themselves.
fn remedy(cause: &Error) -> Option<String> {
    const AGAIN: &str = "try again: the kernel has reset the card; if it stays so, switch the power of the machine off and on, and update the card's \
                         firmware (mstflint -d ADDRESS query shows which it has)";
    const REFUSED: &str = "switch the power of the machine off and on; if it stays so, update the card's firmware (mstflint -d ADDRESS query shows \
                           which it has), or ask NVIDIA what the syndrome means";
    const DEFECT: &str = "report it as a defect of bareverbs, with the card's model and firmware (mstflint -d ADDRESS query)";
    let text = match cause {
        Error::CommandTimeout { .. } | Error::DeviceFatal { .. } | Error::CommandQueue { .. } => AGAIN,
        Error::CommandStatus { .. } | Error::CommandDelivery { .. } => REFUSED,
        Error::BadAnswer { .. }
        | Error::OutOfRange { .. }
        | Error::Unmapped { .. }
        | Error::Misaligned
        | Error::NoEntry { .. }
        | Error::Transition { .. } => DEFECT,
        Error::DeviceReset => "try again, and see who resets it: another program, or /sys/bus/pci/devices/ADDRESS/reset",
        Error::MadStatus { .. } => {
            "try again; if it stays so, update the card's firmware (mstflint -d ADDRESS query shows which it has)"
        }
        Error::LimitExceeded { .. } => "a card whose limits suffice: bareverbs info shows those of this one",
        Error::PagesKept { .. } => "echo 1 | sudo tee /sys/bus/pci/devices/ADDRESS/reset, then try again",
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
            Err((error, machine)) if is_stopped() => {
                if machine.clock.gave_up() {
                    report_busy(host.name(), &error.step);
                }
                Err(Interrupted.into())
            }
            Err((error, machine)) => Err(match (error.cause, host.pages_refused(&machine.pages)) {
                (Error::TooFewPages { .. }, Some(reason)) => reason.context(error),
                (cause, _) => {
                    let remedy = remedy(&cause).map(|text| text.replace("ADDRESS", host.name()));
                    CardError::new(host.name(), &error, remedy).into()
                }
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
        self.verbs.direct().health().map(|_| ()).with_context(|| self.host.name().to_string())
    }

    /// Tears the device down, with all verbs objects that are left on it.
    ///
    /// # Errors
    /// A command of the teardown failed; those after it were executed nevertheless. [`Interrupted`] if the device had not done it
    /// soon after `stop`: a line says so.
    pub fn teardown(self) -> Result<TeardownReport> {
        let Self { host, verbs } = self;
        let Ok(backend) = (*verbs).into_provider() else { bail!("{}: queues of it are in use", host.name()) };
        match backend.teardown() {
            Ok((_machine, report)) => Ok(report),
            Err((error, machine)) if machine.clock.gave_up() && is_late(&error.cause) => {
                let opcode = match error.cause {
                    Error::CommandTimeout { opcode } => CmdName(opcode),
                    _ => error.opcode,
                };
                report_busy(host.name(), &opcode);
                Err(Interrupted.into())
            }
            Err((error, _machine)) => Err(error).with_context(|| format!("teardown of {}", host.name())),
        }
    }

    /// Returns what was done on the device, with [`Interrupted`] instead of an error after a wait that `stop` ended: the teardown says
    /// with what the device was busy.
    ///
    /// # Errors
    /// That of `result`, or [`Interrupted`].
    pub fn unless_stopped<T>(&self, result: Result<T>) -> Result<T> {
        let gave_up = self.verbs.provider().clock().gave_up();
        result.map_err(|error| if gave_up { Interrupted.into() } else { error })
    }
}

/// Returns whether an error says no more than that the device was not waited for any longer.
const fn is_late(error: &Error) -> bool {
    matches!(error, Error::CommandTimeout { .. } | Error::PagesKept { .. })
}

/// Writes what a device was doing when the wait for it ended because of Ctrl-C. It is not the device's fault.
fn report_busy(name: &str, with: &impl fmt::Debug) {
    output::report(format_args!("interrupted: {name} was still busy with {with:?}, and was not waited for any longer"));
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bareverbs::QpState;
    use bareverbs_mlx5::Feature;
    use bareverbs_sim::fault::Fault;
    use bareverbs_sim::in_process::{World, WorldConfig};
    use bareverbs_sim::{CommandTime, DeviceConfig};

    use super::*;
    use crate::device::simulated::Simulated;

    fn host(time: Duration) -> Simulated {
        let config = DeviceConfig { command_time: CommandTime { other: time, start: time }, ..DeviceConfig::default() };
        Simulated::new("card", World::new(WorldConfig::default()).add(config).unwrap())
    }

    #[test]
    fn a_slow_card_is_taken_down_after_a_stop() {
        let stop = Arc::new(AtomicBool::new(false));
        let device = Device::bring_up(host(Duration::from_millis(600)), &stop).unwrap();
        let start = device.host.now();
        stop.store(true, Ordering::Relaxed);
        let simulated = device.host.clone();
        let report = device.teardown().unwrap();
        assert_eq!((report.pages_kept, report.needs_reset), (0, false));
        assert!(simulated.now().since(start) > Duration::from_secs(3));
    }

    #[test]
    fn a_card_that_was_not_waited_for_has_no_failure() {
        let stop = Arc::new(AtomicBool::new(false));
        let device = Device::bring_up(host(Duration::from_secs(4)), &stop).unwrap();
        stop.store(true, Ordering::Relaxed);
        assert!(device.unless_stopped(Ok(3)).is_ok());
        assert!(device.teardown().unwrap_err().is::<Interrupted>());
    }

    /// Each error of the driver, with the words of its text that say what to do; `None` if [`remedy`] does.
    fn errors() -> Vec<(Error, Option<&'static str>)> {
        vec![
            (Error::ArenaTooSmall { have: 1 }, Some("give it `Mlx5::ARENA` bytes")),
            (Error::ArenaFull { pages: 1, free: 0.into() }, Some("make it larger")),
            (Error::TooFewPages { wanted: 300, available: 1.into() }, Some("give the driver 2 MiB more")),
            (Error::PageLimit { wanted: 3, allowed: 1.into() }, Some("raise `Config::firmware_pages` by 2")),
            (Error::UnalignedPage { beyond: 1 }, Some("`PageSource::allocate`")),
            (Error::RecordsFull, Some("destroy queue pairs")),
            (Error::BarTooSmall { have: 1 }, Some("map all of BAR0")),
            (Error::OutOfRange { offset: 1 }, None),
            (Error::NotInitialized, None),
            (Error::CommandInterface { revision: 4 }, Some("update the card's firmware")),
            (Error::CommandQueue { log_size: 31, log_stride: 1 }, None),
            (Error::CommandStatus { opcode: 0x102, status: 1, syndrome: 5 }, None),
            (Error::CommandDelivery { opcode: 0x102, status: 1 }, None),
            (Error::CommandTimeout { opcode: 0x102 }, None),
            (Error::DeviceGone, None),
            (Error::DeviceReset, None),
            (Error::DeviceFatal { syndrome: 1 }, None),
            (Error::Issi { supported: 1 }, Some("update the card's firmware")),
            (Error::PortType { port_type: 7 }, Some("set the port's mode")),
            (Error::NoRoce, Some("turn it on")),
            (Error::NoMacAddress, Some("give the virtual function one")),
            (Error::NoPort { port: 2 }, Some("another port of the card is another function")),
            (Error::GrhRequired, Some("give the GIDs of both ends")),
            (Error::NoGid { index: 1 }, Some("set it (`set_gid`)")),
            (Error::GidFamily { index: 1 }, Some("name another entry")),
            (Error::BadAnswer { opcode: 0x102, value: 1 }, None),
            (Error::MadStatus { attribute: 0x11, status: 1 }, None),
            (Error::Unmapped { page: 1 }, None),
            (Error::Misaligned, None),
            (Error::ForeignPages { function: 1 }, Some("which its own driver has to give")),
            (Error::LimitExceeded { limit: 1 }, None),
            (Error::NoEntry { entries: 8 }, None),
            (Error::Unsupported { feature: Feature::Call }, Some("a call that the driver does not have")),
            (Error::EmbeddedCpu, Some("use the function that the host sees")),
            (Error::Transition { from: QpState::Reset, to: QpState::Rts }, None),
            // Ctrl-C, which is no obstacle.
            (Error::Stopped, Some("stopped by the caller")),
            (Error::PagesKept { pages: 1 }, None),
        ]
    }

    #[test]
    fn every_error_of_a_bring_up_says_what_helps() {
        for (error, says) in errors() {
            match says {
                Some(words) => assert!(error.to_string().contains(words), "{error}: {words}"),
                None => assert!(remedy(&error).is_some_and(|remedy| remedy.len() > 15), "{error}"),
            }
        }
        // A new error has to be in the table: its name stands before `=>` in the driver's list.
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../backends/mlx5/src/error.rs");
        let source = std::fs::read_to_string(source).unwrap();
        let (_, list) = source.split_once("\n    pub enum Error {\n").unwrap();
        let (list, _) = list.split_once("\n    }\n").unwrap();
        let name_of = |line: &str| line.split([' ', '{']).next().unwrap_or_default().to_string();
        let names =
            list.lines().filter_map(|line| line.strip_prefix("        ")).filter(|line| line.starts_with(char::is_uppercase));
        let names: Vec<_> = names.map(name_of).collect();
        let known: Vec<_> = errors().iter().map(|(error, _)| name_of(&format!("{error:?}"))).collect();
        assert_eq!(names, known);
    }

    #[test]
    fn the_remedy_of_a_refused_command_names_the_card() {
        let host = host(Duration::ZERO);
        let fault = Fault::CommandStatus { opcode: 0x102, status: 1, syndrome: 0x1234 };
        host.inner().with_device(|device| device.faults_mut().arm(fault));
        let Err(error) = Device::bring_up(host, &Arc::default()) else { panic!("it came up") };
        let text = error.to_string();
        assert!(text.contains("INIT_HCA") && text.contains("syndrome 0x1234"), "{text}");
        assert!(text.contains("\n  remedy: switch the power") && text.contains("mstflint -d card query"), "{text}");
    }
}

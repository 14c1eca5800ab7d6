//! `bareverbs perf`: bandwidth and latency of RDMA, in the manner of perftest.
//!
//! Two ends (`session`) measure together: both in this process, on one device or two, or each in a process of its own. Both
//! cases run the same state machine. They differ in the link for their messages (`exchange`) and in the loop that steps the ends.

pub mod args;
mod bandwidth;
mod buffer_layout;
mod end;
mod exchange;
mod latency;
pub mod parameters;
pub mod plot;
mod progress_line;
pub mod report;
mod session;
pub mod statistics;
#[cfg(test)]
mod tests;

use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use bareverbs_sim::in_process::{World, WorldConfig};
use bareverbs_vfio::pci::Address;

use self::args::PerfArgs;
use self::end::{EndPath, PORT};
use self::exchange::{LocalLink, StreamLink};
use self::parameters::{Parameters, QUEUE_PAIRS};
use self::progress_line::ProgressLine;
use self::report::Report;
use self::session::{Session, Step};
use crate::device::ethernet::PathArgs;
use crate::device::selection::DeviceSelection;
use crate::device::simulated::Simulated;
use crate::device::simulation_args::SimulationArgs;
use crate::device::vfio::Card;
use crate::device::{Device, Host};
use crate::outcome::Outcome;
use crate::output;
use crate::peer_connection::{self, Listener, Wait, host_and_port};
use crate::stop::Interrupted;

/// Polls without a completion in one step, if the process has one end.
const POLLS_PER_STEP: u32 = 256;
/// Maximum sleep before an end checks for messages of its peer.
const IDLE_SLEEP: Duration = Duration::from_millis(10);
/// Maximum sleep while another device of this process may have completions.
const SHORT_IDLE_SLEEP: Duration = Duration::from_micros(100);

/// Runs the measurements of a command line. `stop` ends them early. The report has the results so far even after a failure.
///
/// # Errors
/// The command line has a mistake; nothing was done.
pub fn run(args: &PerfArgs, stop: &Arc<AtomicBool>) -> Result<Report, String> {
    let placement = Placement::new(args)?;
    let parameters = args.parameters()?;
    placement.check(&parameters)?;
    args.path.check(placement.ends(), placement.devices()).map_err(|mistake| mistake.to_string())?;
    match placement {
        Placement::Simulated(count) => args.simulation.check(count as u16),
        _ => args.simulation.refuse(),
    }
    .map_err(|mistake| mistake.to_string())?;
    // A file that cannot be written is an error before the measurement, which may take minutes.
    let is_new = args.svg.as_deref().map(make_writable).transpose()?.unwrap_or(false);
    let report = Report { clock_ns: clock_ns(), ..Report::default() };
    let mut job = Job {
        stop,
        simulation: &args.simulation,
        path: &args.path,
        has_progress_line: !args.output.json && !args.quiet,
        report,
    };
    let result = job.run(placement, parameters);
    let mut report = job.report;
    let interrupted = report.outcome.interrupted || matches!(&result, Err(error) if error.is::<Interrupted>());
    let failure = result.err().filter(|error| !error.is::<Interrupted>()).map(|error| format!("{error:#}"));
    report.outcome = Outcome::new(failure, interrupted);
    if let Some(file) = &args.svg {
        let is_drawable = report.outcome.failure.is_none() && !(report.outcome.interrupted && report.results.is_empty());
        if is_drawable {
            let drawn =
                plot::svg(&report).and_then(|text| std::fs::write(file, text).with_context(|| file.display().to_string()));
            if let Err(error) = drawn {
                report.outcome.add_failure(format_args!("{error:#}"));
            }
        }
        if is_new && (!is_drawable || report.outcome.failure.is_some()) {
            // An error here is not reported: the report has the failure that left the file empty.
            let _ = std::fs::remove_file(file);
        }
    }
    Ok(report)
}

/// Checks that a file can be written, and creates it if it does not exist. Returns whether it was created.
fn make_writable(file: &Path) -> Result<bool, String> {
    let created = OpenOptions::new().create_new(true).write(true).open(file);
    let result = match created {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => OpenOptions::new().append(true).open(file).map(|_| false),
        Err(error) => Err(error),
    };
    result.map_err(|error| format!("{}: {error}", file.display()))
}

/// Which ends are in this process, and on which devices.
enum Placement {
    /// Both ends, on one or two simulated devices.
    Simulated(usize),
    /// Both ends, on one card or two.
    Pci(Address, Option<Address>),
    /// The server on a card, and the address at which it listens.
    Listen(Address, String),
    /// The client on a card, and the address of the server.
    Connect(Address, String),
}

impl Placement {
    fn new(args: &PerfArgs) -> Result<Self, String> {
        let listen = args.listen.as_ref().map(|text| host_and_port(text, "0.0.0.0", args.port)).transpose()?;
        let connect = args.connect.as_ref().map(|text| host_and_port(text, "", args.port)).transpose()?;
        let network = listen.map(|at| (true, at)).or(connect.map(|at| (false, at)));
        match (DeviceSelection::new(&args.device)?, network) {
            (DeviceSelection::Pci { first, given: 1, .. }, Some((true, at))) => Ok(Self::Listen(first, at)),
            (DeviceSelection::Pci { first, given: 1, .. }, Some((false, at))) => Ok(Self::Connect(first, at)),
            (DeviceSelection::Simulated(0), Some(_)) => Err("--listen and --connect need a card: --device ADDRESS".into()),
            (DeviceSelection::Simulated(_), Some(_)) => Err(
                "a simulated device of this process has no wire to another process; leave --listen and --connect out, or use \
                     --device ADDRESS of a card"
                    .into(),
            ),
            (DeviceSelection::Pci { .. }, Some(_)) => {
                Err("--listen and --connect take one --device: the other end has its own".into())
            }
            (DeviceSelection::Simulated(1), None) => Ok(Self::Simulated(1)),
            (DeviceSelection::Simulated(_), None) => Ok(Self::Simulated(2)),
            (DeviceSelection::Pci { first, second, .. }, None) => Ok(Self::Pci(first, second)),
        }
    }
}

impl Placement {
    /// Returns how many of the two ends are in this process.
    const fn ends(&self) -> usize {
        match self {
            Self::Simulated(_) | Self::Pci(..) => 2,
            Self::Listen(..) | Self::Connect(..) => 1,
        }
    }

    /// Returns how many devices they use.
    const fn devices(&self) -> usize {
        match self {
            Self::Simulated(count) => *count,
            Self::Pci(_, Some(_)) => 2,
            Self::Pci(_, None) | Self::Listen(..) | Self::Connect(..) => 1,
        }
    }

    /// Checks that the devices have enough queue pairs for the ends.
    fn check(&self, parameters: &Parameters) -> Result<(), String> {
        let is_shared = matches!(self, Self::Simulated(1) | Self::Pci(_, None));
        let most = QUEUE_PAIRS / 2;
        if is_shared && parameters.queue_pairs > most {
            return Err(format!("{} queue pairs: two ends on one device have {most} each", parameters.queue_pairs));
        }
        Ok(())
    }
}

/// Returns the mean time to read the clock, in nanoseconds.
fn clock_ns() -> f64 {
    const CLOCK_READS: u32 = 1000;
    let start = Instant::now();
    let mut last = start;
    for _ in 0..CLOCK_READS {
        last = Instant::now();
    }
    last.saturating_duration_since(start).as_nanos() as f64 / f64::from(CLOCK_READS)
}

/// A run of the command.
struct Job<'a> {
    stop: &'a Arc<AtomicBool>,
    simulation: &'a SimulationArgs,
    path: &'a PathArgs,
    has_progress_line: bool,
    report: Report,
}

impl Job<'_> {
    fn run(&mut self, placement: Placement, parameters: Parameters) -> Result<()> {
        match placement {
            Placement::Simulated(count) => {
                let world = World::new(self.simulation.world(WorldConfig::default()));
                let names = ["simulated a", "simulated b"].into_iter().zip(1..).take(count);
                let mut hosts = Vec::new();
                for (name, lid) in names {
                    let host = Simulated::new(name, world.add(self.simulation.device(lid))?);
                    self.simulation.arm(host.inner());
                    hosts.push(host);
                }
                self.run_both(hosts, parameters)
            }
            Placement::Pci(one, two) => {
                let addresses = [Some(one), two];
                let hosts =
                    addresses.into_iter().flatten().map(|address| Card::open(address, self.stop)).collect::<Result<_>>()?;
                self.run_both(hosts, parameters)
            }
            Placement::Listen(device, at) => {
                let mut device = self.bring_up(Card::open(device, self.stop)?)?;
                let result = self.await_port(&mut device).and_then(|()| self.serve(&mut device, &at));
                tear_down(result, [device])
            }
            Placement::Connect(device, at) => {
                let mut device = self.bring_up(Card::open(device, self.stop)?)?;
                let result = self.await_port(&mut device).and_then(|()| self.connect(&mut device, &at, parameters));
                tear_down(result, [device])
            }
        }
    }

    /// Returns the path of an end: the client is the first if both are here.
    fn end_path(&self, end: usize) -> EndPath {
        let PathArgs { gid_idx, peer_mac, .. } = *self.path;
        EndPath { gid_idx, entry: self.path.of_end(end), peer_mac }
    }

    fn bring_up<H: Host>(&mut self, host: H) -> Result<Device<H>> {
        self.report.devices.push(host.name().into());
        Device::bring_up(host, self.stop)
    }

    /// Waits for the port, before a peer waits for messages of this end.
    fn await_port<H: Host>(&self, device: &mut Device<H>) -> Result<()> {
        device.active_port(PORT, self.has_progress_line, self.stop).map(|_| ())
    }

    /// Runs both ends in this process.
    fn run_both<H: Host>(&mut self, hosts: Vec<H>, parameters: Parameters) -> Result<()> {
        self.report.role = "local";
        let mut devices = Vec::new();
        for host in hosts {
            match self.bring_up(host) {
                Ok(device) => devices.push(device),
                Err(error) => return tear_down(Err(error), devices),
            }
        }
        if let Err(error) = devices.iter_mut().try_for_each(|device| self.await_port(device)) {
            return tear_down(Err(error), devices);
        }
        let (client_link, server_link) = LocalLink::pair();
        let progress = ProgressLine::new(self.has_progress_line, Some(&parameters));
        self.report.parameters = Some(parameters.clone());
        let client = Session::client(client_link, parameters, self.end_path(0), Arc::clone(self.stop), progress)?;
        // Only the client reacts to Ctrl-C; it then ends the server.
        let server = Session::server(server_link, self.end_path(1), Arc::default(), ProgressLine::none());
        let mut ends = [client, server];
        let result = step_both(&mut devices, &mut ends);
        let [client, _] = &ends;
        self.report.outcome.interrupted = client.is_interrupted();
        self.report.results.clone_from(&client.rows);
        // The sessions own memory that the devices access, so they live until after the teardown.
        tear_down(result, devices)
    }

    fn serve<H: Host>(&mut self, device: &mut Device<H>, at: &str) -> Result<()> {
        self.report.role = "server";
        let listener = Listener::bind(at)?;
        if self.has_progress_line {
            output::report(format_args!("waiting for a client at {}", listener.local_addr()?));
        }
        let stream = listener.accept(None, &mut Wait::new(self.stop, &mut || device.check()))?;
        let session = Session::server(
            StreamLink::new(stream)?,
            self.end_path(0),
            Arc::clone(self.stop),
            ProgressLine::new(self.has_progress_line, None),
        );
        self.run_one(device, session)
    }

    fn connect<H: Host>(&mut self, device: &mut Device<H>, at: &str, parameters: Parameters) -> Result<()> {
        self.report.role = "client";
        let stream = peer_connection::connect(at, Duration::ZERO, &mut Wait::new(self.stop, &mut || device.check()))?;
        let progress = ProgressLine::new(self.has_progress_line, Some(&parameters));
        let session = Session::client(StreamLink::new(stream)?, parameters, self.end_path(0), Arc::clone(self.stop), progress)?;
        self.run_one(device, session)
    }

    /// Runs one end in this process.
    fn run_one<H: Host>(&mut self, device: &mut Device<H>, mut session: Session<H>) -> Result<()> {
        let result = step_one(device, &mut session);
        session.abandon(device);
        self.report.outcome.interrupted = session.is_interrupted();
        self.report.parameters.clone_from(&session.parameters);
        self.report.results = std::mem::take(&mut session.rows);
        result
    }
}

/// Tears devices down. Returns the first error, including that of `result`.
fn tear_down<H: Host>(result: Result<()>, devices: impl IntoIterator<Item = Device<H>>) -> Result<()> {
    devices.into_iter().fold(result, |result, device| {
        let result = device.unless_stopped(result);
        let down = device.teardown().map(drop);
        result.and(down)
    })
}

/// Steps both ends until they have finished: the first on the first device, the second on the last.
fn step_both<H: Host>(devices: &mut [Device<H>], ends: &mut [Session<H>; 2]) -> Result<()> {
    let last = devices.len().saturating_sub(1);
    let (mut waiting, mut idle) = (0_usize, 0_u32);
    loop {
        let (mut progressed, mut finished) = (false, 0);
        for (at, end) in ends.iter_mut().enumerate() {
            let device = devices.get_mut(at.min(last)).context("no device")?;
            match end.step(device, 1)? {
                Step::Progressed => progressed = true,
                Step::Finished => finished += 1,
                Step::Idle | Step::AwaitingPeer => {}
            }
        }
        if finished == ends.len() {
            return Ok(());
        }
        if progressed {
            continue;
        }
        let events = ends.iter().any(Session::waits_for_events);
        if !events {
            // A simulated device advances in `relax`. With a card, `relax` only yields to the other hardware thread, at the
            // cost of latency, so it is called rarely.
            idle = idle.wrapping_add(1);
            if let Some(device) = devices.first()
                && (device.host.simulated().is_some() || idle.is_multiple_of(POLLS_PER_STEP))
            {
                device.host.relax();
            }
            continue;
        }
        let mut woke = false;
        for device in &mut *devices {
            woke |= device.host.wait(Duration::ZERO)?;
            device.check()?;
        }
        if !woke {
            // One thread cannot wait for two devices at once, so it waits for them in turn.
            let sleep = if last == 0 { IDLE_SLEEP } else { SHORT_IDLE_SLEEP };
            waiting = if waiting == last { 0 } else { waiting + 1 };
            let device = devices.get_mut(waiting).context("no device")?;
            if !device.host.wait(sleep)? {
                ends.iter_mut().for_each(Session::check_soon);
            }
            device.check()?;
        }
    }
}

/// Steps one end until it has finished.
fn step_one<H: Host>(device: &mut Device<H>, session: &mut Session<H>) -> Result<()> {
    loop {
        match session.step(device, POLLS_PER_STEP)? {
            Step::Progressed => {}
            Step::Finished => return Ok(()),
            Step::AwaitingPeer => session.link.wait(IDLE_SLEEP),
            Step::Idle if session.waits_for_events() => {
                if !device.host.wait(IDLE_SLEEP)? {
                    session.check_soon();
                }
                device.check()?;
            }
            Step::Idle => device.host.relax(),
        }
    }
}

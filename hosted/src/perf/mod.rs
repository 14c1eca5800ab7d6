//! `bareverbs perf`: bandwidth and latency of RDMA, in the manner of perftest.
//!
//! Two ends (`session`) measure together: both in this process, on one device or two, or each in a process of its own. They go
//! the same way in either case; what differs is how their messages get across (`exchange`), and who steps them.

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
use std::net::{TcpListener, TcpStream, ToSocketAddrs as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use bareverbs_sim::DeviceConfig;
use bareverbs_sim::in_process::{World, WorldConfig};
use bareverbs_vfio::pci::Address;

use self::args::PerfArgs;
use self::exchange::{Lines, Link, Local};
use self::parameters::{Parameters, QUEUE_PAIRS};
use self::progress_line::ProgressLine;
use self::report::Report;
use self::session::{Session, Turn};
use crate::device::faults::FaultArgs;
use crate::device::selection::DeviceSelection;
use crate::device::simulated::Simulated;
use crate::device::vfio::Card;
use crate::device::{Device, Host};
use crate::output;
use crate::stop::Interrupted;

/// Looks for something new in one step of an end that has its process for itself.
const SPINS: u32 = 256;
/// How long an end sleeps at most before it looks after its peer.
const IDLE_SLEEP: Duration = Duration::from_millis(10);
/// The same if another end of this process, on another device, may have something to do.
const SHORT_IDLE_SLEEP: Duration = Duration::from_micros(100);
/// How long a connection may take to be made.
const CONNECT: Duration = Duration::from_secs(10);

/// Measures. `stop` ends it early, cleanly. The report says what was measured also if something failed.
///
/// # Errors
/// A mistake on the command line: nothing was done.
pub fn run(args: &PerfArgs, stop: &Arc<AtomicBool>) -> Result<Report, String> {
    let form = Form::new(args)?;
    let parameters = args.parameters()?;
    form.check(&parameters)?;
    match form {
        Form::Simulated(count) => args.faults.check(count as u16),
        _ => args.faults.refuse(),
    }
    .map_err(|mistake| mistake.to_string())?;
    // Before minutes of measuring, not after.
    let is_new = args.svg.as_deref().map(make_writable).transpose()?.unwrap_or(false);
    let report = Report { clock_ns: clock_ns(), ..Report::default() };
    let mut job = Job { stop, faults: &args.faults, is_shown: !args.json && !args.quiet, report };
    let result = job.run(form, parameters);
    let mut report = job.report;
    if let Err(error) = result {
        if error.is::<Interrupted>() {
            report.interrupted = true;
        } else {
            report.failure = Some(format!("{error:#}"));
        }
    }
    if let Some(file) = &args.svg {
        let is_drawable = report.failure.is_none() && !(report.interrupted && report.results.is_empty());
        if is_drawable {
            let drawn =
                plot::svg(&report).and_then(|text| std::fs::write(file, text).with_context(|| file.display().to_string()));
            report.failure = drawn.err().map(|error| format!("{error:#}"));
        }
        if is_new && (!is_drawable || report.failure.is_some()) {
            // Best effort: the failure that left it empty is the one that counts.
            let _ = std::fs::remove_file(file);
        }
    }
    report.ok = report.failure.is_none() && !report.interrupted;
    Ok(report)
}

/// Makes sure that a file can be written; whether it was created for that.
fn make_writable(file: &Path) -> Result<bool, String> {
    let created = OpenOptions::new().create_new(true).write(true).open(file);
    let result = match created {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => OpenOptions::new().append(true).open(file).map(|_| false),
        Err(error) => Err(error),
    };
    result.map_err(|error| format!("{}: {error}", file.display()))
}

/// Who is where.
enum Form {
    /// Both ends here, on one or two devices.
    Simulated(usize),
    Pci(Address, Option<Address>),
    /// The server, at an address.
    Listen(Address, String),
    /// The client, of a server.
    Connect(Address, String),
}

impl Form {
    fn new(args: &PerfArgs) -> Result<Self, String> {
        let listen = args.listen.as_ref().map(|text| address(text, "0.0.0.0", args.port)).transpose()?;
        let connect = args.connect.as_ref().map(|text| address(text, "", args.port)).transpose()?;
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

impl Form {
    /// Whether the devices have room for the ends.
    fn check(&self, parameters: &Parameters) -> Result<(), String> {
        let is_shared = matches!(self, Self::Simulated(1) | Self::Pci(_, None));
        let most = QUEUE_PAIRS / 2;
        if is_shared && parameters.queue_pairs > most {
            return Err(format!("{} queue pairs: two ends on one device have {most} each", parameters.queue_pairs));
        }
        Ok(())
    }
}

/// `HOST:PORT` of a text with or without a host or a port, or of an IPv6 address.
///
/// # Errors
/// It has a port that is none, or there is no host.
fn address(text: &str, usual: &str, port: u16) -> Result<String, String> {
    if text.parse::<std::net::Ipv6Addr>().is_ok() {
        return Ok(format!("[{text}]:{port}"));
    }
    let (host, port) = match text.rsplit_once(':') {
        // An IPv6 address in brackets, without a port.
        Some(_) if text.ends_with(']') => (text, port),
        Some((host, after)) => (host, after.parse::<u16>().map_err(|_| format!("{text}: {after:?} is no TCP port"))?),
        None => (text, port),
    };
    match (host, usual) {
        ("", "") => Err(format!("{text:?} names no host")),
        ("", _) => Ok(format!("{usual}:{port}")),
        _ => Ok(format!("{host}:{port}")),
    }
}

/// What a look at the clock takes, on average.
fn clock_ns() -> f64 {
    const CLOCK_READS: u32 = 1000;
    let start = Instant::now();
    let mut last = start;
    for _ in 0..CLOCK_READS {
        last = Instant::now();
    }
    last.saturating_duration_since(start).as_nanos() as f64 / f64::from(CLOCK_READS)
}

struct Job<'a> {
    stop: &'a Arc<AtomicBool>,
    faults: &'a FaultArgs,
    is_shown: bool,
    report: Report,
}

impl Job<'_> {
    fn run(&mut self, form: Form, parameters: Parameters) -> Result<()> {
        match form {
            Form::Simulated(count) => {
                let world = World::new(self.faults.world(WorldConfig::default()));
                let names = ["simulated a", "simulated b"].into_iter().zip(1..).take(count);
                let mut hosts = Vec::new();
                for (name, lid) in names {
                    let host = Simulated::new(name, world.add(DeviceConfig::with_lid(lid))?);
                    self.faults.arm(host.inner());
                    hosts.push(host);
                }
                self.local(hosts, parameters)
            }
            Form::Pci(one, two) => {
                let addresses = [Some(one), two];
                let hosts = addresses.into_iter().flatten().map(Card::open).collect::<Result<_>>()?;
                self.local(hosts, parameters)
            }
            Form::Listen(device, at) => {
                let mut device = self.bring_up(Card::open(device)?)?;
                let result = self.serve(&mut device, &at);
                finish(result, [device])
            }
            Form::Connect(device, at) => {
                let mut device = self.bring_up(Card::open(device)?)?;
                let result = self.connect(&mut device, &at, parameters);
                finish(result, [device])
            }
        }
    }

    fn bring_up<H: Host>(&mut self, host: H) -> Result<Device<H>> {
        self.report.devices.push(host.name().into());
        Device::bring_up(host, self.stop)
    }

    /// Both ends in this process.
    fn local<H: Host>(&mut self, hosts: Vec<H>, parameters: Parameters) -> Result<()> {
        self.report.role = "local";
        let mut devices = Vec::new();
        for host in hosts {
            match self.bring_up(host) {
                Ok(device) => devices.push(device),
                Err(error) => return finish(Err(error), devices),
            }
        }
        let (to, fro) = Local::pair();
        let progress = ProgressLine::new(self.is_shown, Some(&parameters));
        self.report.parameters = Some(parameters.clone());
        let client = Session::client(to, parameters, Arc::clone(self.stop), progress)?;
        // Ctrl-C is the client's to see.
        let server = Session::server(fro, Arc::default(), ProgressLine::none());
        let mut ends = [client, server];
        let result = both(&mut devices, &mut ends);
        let [client, _] = &ends;
        self.report.interrupted = client.is_interrupted();
        self.report.results.clone_from(&client.rows);
        // The memory of the ends stays until no device can reach it.
        finish(result, devices)
    }

    fn serve<H: Host>(&mut self, device: &mut Device<H>, at: &str) -> Result<()> {
        self.report.role = "server";
        let listener = TcpListener::bind(at).with_context(|| format!("listening at {at}"));
        let listener = listener.map_err(|error| match error.downcast_ref::<std::io::Error>().map(std::io::Error::kind) {
            Some(ErrorKind::AddrInUse) => anyhow!("listening at {at}: another program has this port; take another with --port"),
            _ => error,
        })?;
        listener.set_nonblocking(true)?;
        if self.is_shown {
            output::report(format_args!("waiting for a client at {}", listener.local_addr()?));
        }
        let stream = loop {
            match listener.accept() {
                Ok((stream, _)) => break stream,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) => return Err(error).context("no client"),
            }
            if self.stop.load(Ordering::Relaxed) {
                return Err(Interrupted.into());
            }
            device.check()?;
            std::thread::sleep(IDLE_SLEEP);
        };
        // A client that comes while this end is busy is refused at once, instead of waiting for an answer.
        drop(listener);
        stream.set_nodelay(true)?;
        let session = Session::server(Lines::new(stream)?, Arc::clone(self.stop), ProgressLine::new(self.is_shown, None));
        self.alone(device, session)
    }

    fn connect<H: Host>(&mut self, device: &mut Device<H>, at: &str, parameters: Parameters) -> Result<()> {
        self.report.role = "client";
        let stream = dial(at, self.stop)?;
        stream.set_nodelay(true)?;
        let progress = ProgressLine::new(self.is_shown, Some(&parameters));
        let session = Session::client(Lines::new(stream)?, parameters, Arc::clone(self.stop), progress)?;
        self.alone(device, session)
    }

    /// One end in this process.
    fn alone<H: Host, L: Link>(&mut self, device: &mut Device<H>, mut session: Session<H, L>) -> Result<()> {
        let result = one(device, &mut session);
        session.abandon(device);
        self.report.interrupted = session.is_interrupted();
        self.report.parameters.clone_from(&session.parameters);
        self.report.results = std::mem::take(&mut session.rows);
        result
    }
}

/// Takes devices down; an error before that is the one that counts.
fn finish<H: Host>(result: Result<()>, devices: impl IntoIterator<Item = Device<H>>) -> Result<()> {
    devices.into_iter().fold(result, |result, device| {
        let down = device.teardown().map(drop);
        result.and(down)
    })
}

/// Connects to a server, unless `stop` ends it first.
fn dial(at: &str, stop: &AtomicBool) -> Result<TcpStream> {
    let (sender, receiver) = mpsc::channel();
    let to = at.to_owned();
    // Neither looking up a name nor connecting can be ended early. Nobody waits for a thread that is left behind by Ctrl-C: it
    // ends on its own.
    std::thread::spawn(move || sender.send(dial_each(&to)));
    loop {
        if stop.load(Ordering::Relaxed) {
            return Err(Interrupted.into());
        }
        match receiver.recv_timeout(IDLE_SLEEP) {
            Ok(result) => return result,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => bail!("connecting to {at} ended without a result"),
        }
    }
}

/// Tries each address of a server.
fn dial_each(at: &str) -> Result<TcpStream> {
    let mut last = None;
    for address in at.to_socket_addrs().with_context(|| format!("the address {at}"))? {
        match TcpStream::connect_timeout(&address, CONNECT) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = Some(error),
        }
    }
    match last {
        Some(error) => Err(error).with_context(|| format!("no server at {at}: start it there with --listen")),
        None => bail!("{at} has no address"),
    }
}

/// Steps both ends until all is done: the first on the first device, the second on the last.
fn both<H: Host, L: Link>(devices: &mut [Device<H>], ends: &mut [Session<H, L>; 2]) -> Result<()> {
    let last = devices.len().saturating_sub(1);
    let (mut turn, mut idle) = (0_usize, 0_u32);
    loop {
        let (mut busy, mut finished) = (false, 0);
        for (at, end) in ends.iter_mut().enumerate() {
            let device = devices.get_mut(at.min(last)).context("no device")?;
            match end.step(device, 1)? {
                Turn::Busy => busy = true,
                Turn::Finished => finished += 1,
                Turn::Idle | Turn::Waiting => {}
            }
        }
        if finished == ends.len() {
            return Ok(());
        }
        if busy {
            continue;
        }
        let events = ends.iter().any(Session::waits_for_events);
        if !events {
            // A simulated device works meanwhile; to a card it is only a courtesy to the other threads of this processor core, and
            // costs time.
            idle = idle.wrapping_add(1);
            if let Some(device) = devices.first()
                && (device.host.simulated().is_some() || idle.is_multiple_of(SPINS))
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
            // Nobody can wait for two devices at once, so each gets a little of the time.
            let sleep = if last == 0 { IDLE_SLEEP } else { SHORT_IDLE_SLEEP };
            turn = if turn == last { 0 } else { turn + 1 };
            let device = devices.get_mut(turn).context("no device")?;
            if !device.host.wait(sleep)? {
                ends.iter_mut().for_each(Session::look_soon);
            }
            device.check()?;
        }
    }
}

/// Steps one end until all is done.
fn one<H: Host, L: Link>(device: &mut Device<H>, session: &mut Session<H, L>) -> Result<()> {
    loop {
        match session.step(device, SPINS)? {
            Turn::Busy => {}
            Turn::Finished => return Ok(()),
            Turn::Waiting => session.link.wait(IDLE_SLEEP),
            Turn::Idle if session.waits_for_events() => {
                if !device.host.wait(IDLE_SLEEP)? {
                    session.look_soon();
                }
                device.check()?;
            }
            Turn::Idle => device.host.relax(),
        }
    }
}

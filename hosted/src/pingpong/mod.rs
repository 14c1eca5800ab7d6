//! `bareverbs pingpong`: either end of `ibv_rc_pingpong` and `ibv_uc_pingpong` of rdma-core, or both.

pub mod address;
pub mod args;
pub mod end;
pub mod exchange;
pub mod report;

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use bareverbs::QpType;
use bareverbs_sim::DeviceConfig;
use bareverbs_sim::in_process::{World, WorldConfig};

use self::address::Address;
use self::args::{PingpongArgs, Transport};
use self::end::{LINGER, PingpongEnd, Plan};
use self::exchange::{ClientExchange, DEFAULT_PORT, Listener, Waiting};
use self::report::{Report, Timing};
use crate::args::UsageError;
use crate::device::selection::DeviceSelection;
use crate::device::simulated::Simulated;
use crate::device::vfio::Card;
use crate::device::{Device, DevicePair, Host, Role};
use crate::output;
use crate::progress::Progress;
use crate::trace;

/// How long, by the devices' time, nothing may happen.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest sleep before a look at the devices' health and at Ctrl-C.
const MAX_SLEEP: Duration = Duration::from_millis(100);
/// Looks at empty completion queues for one look at everything else.
const POLLS_PER_CHECK: u32 = 64;

/// Runs a ping-pong as the command line says. `stop` ends it early, cleanly.
///
/// # Errors
/// The command line asks for what there is not ([`UsageError`]), or a device or the trace cannot be opened.
pub fn run(args: &PingpongArgs, stop: Arc<AtomicBool>) -> Result<Report> {
    let reason = match args.transport {
        Transport::Rc | Transport::Uc => None,
        Transport::Ud => Some("ud: unsupported: the driver sends no datagrams yet: requests carry no address handle"),
        Transport::Srq => Some("srq: unsupported: the driver makes no shared receive queues yet"),
    };
    if let Some(reason) = reason {
        return Err(UsageError::new(format!("--transport {reason}; rc and uc are there")).into());
    }
    if args.host.is_some() && args.port == Some(0) {
        return Err(UsageError::new("-p 0: a client needs the port that its server listens on, from 1").into());
    }
    match DeviceSelection::new(&args.device).map_err(UsageError::new)? {
        DeviceSelection::Simulated(_) => {
            if let Some(host) = &args.host {
                return Err(UsageError::new(format!(
                    "{host}: a simulated device has no wire to another process; leave HOST out (both ends run here), or give \
                     a card with --device"
                ))
                .into());
            }
            run_simulated(args, stop)
        }
        DeviceSelection::Pci { first, second, given } => {
            args.faults.refuse()?;
            trace::refuse(&args.trace)?;
            if given == 2 && args.host.is_some() {
                return Err(UsageError::new("HOST: with --device twice both ends are here; leave one of them out").into());
            }
            let first = Card::open(first)?;
            if given == 1 {
                return Ok(run_one(args, first, stop));
            }
            let second = second.map(Card::open).transpose()?;
            Ok(run_both(args, first, second, stop))
        }
    }
}

fn run_simulated(args: &PingpongArgs, stop: Arc<AtomicBool>) -> Result<Report> {
    args.faults.check(2)?;
    let sink = trace::sink(&args.trace)?;
    let world = World::new(args.faults.world(WorldConfig::default()));
    let host = |label: &str, lid| {
        let host = Simulated::new(&format!("device {label}"), world.add(DeviceConfig::with_lid(lid))?);
        args.faults.arm(host.inner());
        if let Some(sink) = &sink {
            host.trace(label, sink);
        }
        Ok::<_, anyhow::Error>(host)
    };
    let mut report = run_both(args, host("a", 1)?, Some(host("b", 2)?), stop);
    report.ok &= trace::finish_job(sink.as_ref(), &mut report.failure);
    Ok(report)
}

/// Runs one end on the device of `host`: a client if the command line names a server, else a server.
pub fn run_one<H: Host>(args: &PingpongArgs, host: H, stop: Arc<AtomicBool>) -> Report {
    let role = if args.host.is_some() { "client" } else { "server" };
    Job::new(args, stop, role, &host).run(host, None, false)
}

/// Runs both ends in this process: the client on the device of `first`, the server on that of `second`, or on the first too.
pub fn run_both<H: Host>(args: &PingpongArgs, first: H, second: Option<H>, stop: Arc<AtomicBool>) -> Report {
    Job::new(args, stop, "both", &first).run(first, second, true)
}

struct Job<'a> {
    args: &'a PingpongArgs,
    stop: Arc<AtomicBool>,
    plan: Plan,
    report: Report,
}

impl<'a> Job<'a> {
    fn new<H: Host>(args: &'a PingpongArgs, stop: Arc<AtomicBool>, role: &'static str, host: &H) -> Self {
        let simulated = host.simulated().is_some();
        let (qp_type, transport) = if args.transport == Transport::Uc { (QpType::Uc, "UC") } else { (QpType::Rc, "RC") };
        let checked = args.chk || simulated;
        let plan = Plan {
            qp_type,
            port: args.ib_port,
            size: args.size,
            mtu: args.mtu,
            rx_depth: args.rx_depth,
            iters: args.iters,
            sl: args.sl,
            gid_idx: args.gid_idx,
            chk: checked,
            seed: RandomState::new().build_hasher().finish(),
        };
        let report = Report {
            transport,
            role,
            simulated,
            size: args.size,
            iters: args.iters,
            mtu: args.mtu.bytes(),
            checked,
            ..Report::default()
        };
        Self { args, stop, plan, report }
    }

    /// A line of the text.
    fn print(&self, line: impl std::fmt::Display) -> Result<()> {
        if self.args.json {
            return Ok(());
        }
        // A script that waits for a line gets it at once.
        output::write(&format!("{line}\n"))
    }

    fn run<H: Host>(mut self, first: H, second: Option<H>, both: bool) -> Report {
        let result = self.with_devices(first, second, both);
        self.report.interrupted = self.stop.load(Ordering::Relaxed);
        self.report.ok = result.is_ok() && !self.report.interrupted;
        // What Ctrl-C cut short is no failure.
        self.report.failure = result.err().filter(|_| !self.report.interrupted).map(|error| format!("{error:#}"));
        self.report
    }

    fn with_devices<H: Host>(&mut self, first: H, second: Option<H>, both: bool) -> Result<()> {
        let first = Device::bring_up(first, &self.stop)?;
        let second = match second.map(|host| Device::bring_up(host, &self.stop)).transpose() {
            Ok(second) => second,
            Err(error) => {
                // Why the other is not up matters more than how this one goes down.
                let _ = first.teardown();
                return Err(error);
            }
        };
        let mut devices = DevicePair::new(first, second);
        self.report.devices = devices.iter_mut().map(|device| device.host.name().to_string()).collect();
        let mut ends = Vec::new();
        let result = self.with_ends(&mut devices, &mut ends, both);
        // Everything goes, whatever went wrong before; the first error is reported.
        let result = ends.into_iter().fold(result, |result, end| {
            let side = end.side;
            result.and(end.destroy(devices.of(side)))
        });
        devices.into_devices().fold(result, |result, device| {
            let end = device.teardown();
            result.and(end.map(|_| ()))
        })
    }

    fn with_ends<H: Host>(&mut self, devices: &mut DevicePair<H>, ends: &mut Vec<PingpongEnd<H>>, both: bool) -> Result<()> {
        if both {
            let [a, b] = [Role::Client, Role::Server].map(|side| devices.name(side));
            let kind = if self.report.simulated { " (simulated, every message checked)" } else { "" };
            self.print(format_args!("both ends in this process{kind}: client {a}, server {b}"))?;
            for side in [Role::Client, Role::Server] {
                ends.push(self.end(devices, side)?);
            }
            self.exchange_here(devices, ends)?;
        } else {
            let side = if self.args.host.is_some() { Role::Client } else { Role::Server };
            ends.push(self.end(devices, side)?);
            if let [end] = ends.as_mut_slice() {
                self.exchange_with_peer(devices, end)?;
            }
        }
        let seconds = self.play(devices, ends)?;
        let timing = Timing::new(self.args.size, self.args.iters, seconds);
        let printed = self.print(timing);
        self.report.result = Some(timing);
        // The other end is served to its end also if nothing can be printed here.
        if !both && self.plan.qp_type == QpType::Rc {
            self.linger(devices)?;
        }
        printed
    }

    fn end<H: Host>(&mut self, devices: &mut DevicePair<H>, side: Role) -> Result<PingpongEnd<H>> {
        let both = devices.name(side);
        let device = devices.of(side);
        let name = if self.report.role == "both" { both } else { device.host.name().to_string() };
        device.active_port(self.args.ib_port, &self.stop)?;
        // Each end has a first PSN of its own.
        let seed = self.plan.seed.rotate_left(if side == Role::Client { 0 } else { 24 });
        PingpongEnd::new(side, &name, device, Plan { seed, ..self.plan }).context(name)
    }

    /// Both ends, over a TCP connection of this machine to itself.
    fn exchange_here<H: Host>(&mut self, devices: &mut DevicePair<H>, ends: &mut [PingpongEnd<H>]) -> Result<()> {
        let [client, server] = ends else { return Ok(()) };
        let stop = self.stop.clone();
        // Both ends take turns: nothing else is awaited meanwhile than what was sent before.
        let mut idle = || Ok(());
        let mut waiting = Waiting::new(&stop, &mut idle);
        let listener = Listener::bind_loopback(self.args.port.unwrap_or(0))?;
        self.print(format_args!("  local address:  {}", client.local))?;
        let client_side = ClientExchange::connect("127.0.0.1", listener.port()?, client.local, &mut waiting)?;
        let (mut server_side, to_client) = listener.accept(SILENCE_TIMEOUT, &mut waiting)?;
        server.connect(devices.of(Role::Server), &to_client)?;
        server_side.answer(server.local)?;
        let to_server = client_side.finish(&mut waiting)?;
        server_side.confirm(&mut waiting)?;
        client.connect(devices.of(Role::Client), &to_server)?;
        self.connected(&client.local, &to_server)
    }

    /// One end, with a tool or another process.
    fn exchange_with_peer<H: Host>(&mut self, devices: &mut DevicePair<H>, end: &mut PingpongEnd<H>) -> Result<()> {
        let (stop, port, local) = (self.stop.clone(), self.args.port.unwrap_or(DEFAULT_PORT), end.local);
        let device = devices.of(end.side);
        self.report.local = Some((&local).into());
        let remote = if let Some(host) = &self.args.host {
            self.print(format_args!("  local address:  {local}"))?;
            // While the other end is slow, the firmware's page requests are answered and its health is looked at.
            let mut idle = || device.check();
            let mut waiting = Waiting::new(&stop, &mut idle);
            let remote = ClientExchange::connect(host, port, local, &mut waiting)?.finish(&mut waiting)?;
            end.connect(device, &remote)?;
            remote
        } else {
            // A server listens before it says where it is.
            let listener = Listener::bind(port)?;
            let tcp_port = listener.port()?;
            self.report.tcp_port = Some(tcp_port);
            if port == 0 {
                let line = format!("  TCP port:       {tcp_port}");
                // The client is started with it, long before the JSON is there.
                if self.args.json { output::note(line) } else { self.print(line)? }
            }
            self.print(format_args!("  local address:  {local}"))?;
            let time = Duration::from_secs(self.args.wait.into());
            let (mut exchange, remote) = listener.accept(time, &mut Waiting::new(&stop, &mut || device.check()))?;
            end.connect(device, &remote)?;
            exchange.answer(local)?;
            exchange.confirm(&mut Waiting::new(&stop, &mut || device.check()))?;
            remote
        };
        self.connected(&local, &remote)
    }

    fn connected(&mut self, local: &Address, remote: &Address) -> Result<()> {
        self.report.local = Some(local.into());
        self.report.remote = Some(remote.into());
        self.print(format_args!("  remote address: {remote}"))
    }

    /// Moves the messages; gives the seconds by the wall clock.
    fn play<H: Host>(&self, devices: &mut DevicePair<H>, ends: &mut [PingpongEnd<H>]) -> Result<f64> {
        let wanted = !self.args.json && !self.args.trace.trace;
        let mut progress = Progress::new(u64::from(self.args.iters), wanted, self.stop.clone());
        let start = Instant::now();
        for end in ends.iter_mut() {
            end.start(devices.of(end.side))?;
        }
        let (mut looks, mut quiet_since, mut told) = (0_u32, None, 0);
        loop {
            let worked = match step(devices, ends) {
                Ok(worked) => worked,
                // A device that is gone is the cause of what its peer reports.
                Err(error) => return Err(devices.iter_mut().find_map(|device| device.check_health().err()).unwrap_or(error)),
            };
            if ends.iter().all(PingpongEnd::is_done) {
                return Ok(start.elapsed().as_secs_f64());
            }
            if worked {
                (looks, quiet_since) = (0, None);
                let received = ends.first().map_or(0, |end| end.received);
                // Counting each message would take part of its time.
                if received >= told + 1000 {
                    progress.advance("messages each way", (received - told).into());
                    told = received;
                    self.check_stop(&progress, ends)?;
                }
                continue;
            }
            if looks % POLLS_PER_CHECK == 0 {
                self.check_stop(&progress, ends)?;
                devices.iter_mut().try_for_each(Device::check)?;
                let now = devices.of(Role::Client).host.now();
                if now > quiet_since.get_or_insert(now).after(SILENCE_TIMEOUT) {
                    bail!("{}", self.silence(ends));
                }
            }
            looks = looks.wrapping_add(1);
            if self.args.events {
                sleep(devices, ends)?;
                // A sleep is long: everything else is looked at after each.
                looks = 0;
            } else {
                devices.of(Role::Client).host.relax();
            }
        }
    }

    fn check_stop<H: Host>(&self, progress: &Progress, ends: &[PingpongEnd<H>]) -> Result<()> {
        if progress.is_stopped() {
            bail!("stopped: {}", counts(ends));
        }
        Ok(())
    }

    fn silence<H: Host>(&self, ends: &[PingpongEnd<H>]) -> String {
        let cause = match self.plan.qp_type {
            QpType::Uc => "UC repeats no message that is lost; the other end may have ended, or have other options",
            _ => "the other end may have ended, or have another -n",
        };
        format!("nothing happened for {} s of the devices' time: {cause} ({})", SILENCE_TIMEOUT.as_secs(), counts(ends))
    }

    /// Answers what the other end repeats because an acknowledgement was lost, until it would have repeated.
    fn linger<H: Host>(&self, devices: &mut DevicePair<H>) -> Result<()> {
        let end = devices.of(Role::Client).host.now().after(LINGER);
        while devices.of(Role::Client).host.now() < end && !self.stop.load(Ordering::Relaxed) {
            devices.idle()?;
        }
        Ok(())
    }
}

/// One step of each end; whether any had something to do.
fn step<H: Host>(devices: &mut DevicePair<H>, ends: &mut [PingpongEnd<H>]) -> Result<bool> {
    let mut worked = false;
    for end in ends {
        worked |= end.step(devices.of(end.side))?;
    }
    Ok(worked)
}

/// Sleeps until the device of the end whose turn it is interrupts, unless something has come meanwhile.
fn sleep<H: Host>(devices: &mut DevicePair<H>, ends: &mut [PingpongEnd<H>]) -> Result<()> {
    for end in ends.iter() {
        end.arm(devices.of(end.side))?;
    }
    // What came before the queues were armed interrupts nobody.
    if step(devices, ends)? {
        return Ok(());
    }
    let side = match ends {
        [end] => end.side,
        [client, server] if client.begun() > server.received => server.side,
        [client, server] if server.begun() > client.received => client.side,
        [client, server] if client.begun() > client.sent => client.side,
        _ => Role::Server,
    };
    devices.of(side).host.wait(MAX_SLEEP).map(|_| ())
}

fn counts<H: Host>(ends: &[PingpongEnd<H>]) -> String {
    ends.iter().map(PingpongEnd::progress).collect::<Vec<_>>().join("; ")
}

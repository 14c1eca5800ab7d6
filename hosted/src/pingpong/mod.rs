//! `bareverbs pingpong`: either end of `ibv_rc_pingpong`, `ibv_uc_pingpong`, `ibv_ud_pingpong`, `ibv_srq_pingpong` and
//! `ibv_xsrq_pingpong` of rdma-core, or both.

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
use bareverbs::{Mac, QpType};
use bareverbs_sim::in_process::{World, WorldConfig};

use self::address::Address;
use self::args::{PingpongArgs, Transport};
use self::end::{LINGER, PingpongEnd, Plan};
use self::exchange::{ClientExchange, Format, MESSAGE_TIMEOUT, ServerExchange};
use self::report::{AddressReport, Report, Timing};
use crate::args::UsageError;
use crate::device::ethernet::EntryArgs;
use crate::device::selection::DeviceSelection;
use crate::device::simulated::Simulated;
use crate::device::vfio::Card;
use crate::device::{Device, DevicePair, Host, Role};
use crate::outcome::Outcome;
use crate::peer_connection::{self, DEFAULT_PORT, Listener, Wait, host_and_port};
use crate::progress::Progress;
use crate::{output, trace};

/// Maximum time, by the clock of the devices, without a completion.
const COMPLETION_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time for which a client retries to connect, because its server may be about to start.
const CONNECT_RETRY_TIME: Duration = Duration::from_secs(5);
/// Maximum sleep before a check of the devices' health and of Ctrl-C.
const MAX_SLEEP: Duration = Duration::from_millis(100);
/// Empty polls of the completion queues for one check of everything else.
const POLLS_PER_CHECK: u32 = 64;

/// Runs the ping-pong of a command line. `stop` ends it early.
///
/// # Errors
/// The command line has a mistake ([`UsageError`]), or a device or the trace cannot be opened.
pub fn run(args: &PingpongArgs, stop: Arc<AtomicBool>) -> Result<Report> {
    if args.transport == Transport::Srq && args.rx_depth < args.queue_pairs.into() {
        let (receives, queue_pairs) = (args.rx_depth, args.queue_pairs);
        return Err(UsageError::new(format!(
            "-r {receives}: {queue_pairs} queue pairs need a receive each, {queue_pairs} at least"
        ))
        .into());
    }
    if args.host.is_some() && args.port == Some(0) {
        return Err(UsageError::new("-p 0: a client needs the port that its server listens on, from 1").into());
    }
    let selection = DeviceSelection::new(&args.device).map_err(UsageError::new)?;
    let ends = if matches!(selection, DeviceSelection::Pci { given: 1, .. }) { 1 } else { 2 };
    let devices = if matches!(selection, DeviceSelection::Pci { second: None, .. }) { 1 } else { 2 };
    args.path.check(ends, devices)?;
    match selection {
        DeviceSelection::Simulated(_) => {
            if let Some(host) = &args.host {
                return Err(UsageError::new(format!(
                    "{host}: a simulated device has no wire to another process; leave HOST out to run both ends here, or use \
                     a card with --device"
                ))
                .into());
            }
            run_simulated(args, stop)
        }
        DeviceSelection::Pci { first, second, given } => {
            args.simulation.refuse()?;
            trace::refuse(&args.trace)?;
            if given == 2 && args.host.is_some() {
                return Err(UsageError::new("HOST: --device given twice runs both ends here; leave one of them out").into());
            }
            let first = Card::open(first, &stop)?;
            if given == 1 {
                return Ok(run_one(args, first, stop));
            }
            let second = second.map(|address| Card::open(address, &stop)).transpose()?;
            Ok(run_both(args, first, second, stop))
        }
    }
}

fn run_simulated(args: &PingpongArgs, stop: Arc<AtomicBool>) -> Result<Report> {
    args.simulation.check(2)?;
    let sink = trace::sink(&args.trace)?;
    let world = World::new(args.simulation.world(WorldConfig::default()));
    let host = |label: &str, lid| {
        let host = Simulated::new(&format!("device {label}"), world.add(args.simulation.device(lid))?);
        args.simulation.arm(host.inner());
        if let Some(sink) = &sink {
            host.trace(label, sink);
        }
        Ok::<_, anyhow::Error>(host)
    };
    let mut report = run_both(args, host("a", 1)?, Some(host("b", 2)?), stop);
    trace::finish_job(sink.as_ref(), &mut report.outcome);
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
    /// The connections to the peer, of XRC until the end.
    exchanges: (Option<ClientExchange>, Option<ServerExchange>),
}

impl<'a> Job<'a> {
    fn new<H: Host>(args: &'a PingpongArgs, stop: Arc<AtomicBool>, role: &'static str, host: &H) -> Self {
        let simulated = host.simulated().is_some();
        let size = args.size.unwrap_or(args.transport.default_size());
        let queue_pairs = if args.transport == Transport::Srq { args.queue_pairs.into() } else { 1 };
        let checked = args.chk || simulated;
        let plan = Plan {
            transport: args.transport,
            queue_pairs,
            port: args.ib_port,
            size,
            mtu: args.mtu,
            rx_depth: args.rx_depth,
            iters: args.iters,
            sl: args.sl,
            gid_idx: args.path.gid_idx,
            entry: EntryArgs::default(),
            chk: checked,
            seed: RandomState::new().build_hasher().finish(),
        };
        let report = Report {
            transport: args.transport.name(),
            role,
            simulated,
            queue_pairs,
            size,
            iters: args.iters,
            mtu: args.mtu.bytes(),
            checked,
            ..Report::default()
        };
        Self { args, stop, plan, report, exchanges: (None, None) }
    }

    /// Prints a line of the text output.
    fn print(&self, line: impl std::fmt::Display) -> Result<()> {
        if self.args.output.json {
            return Ok(());
        }
        // Each line is written at once, because a script may wait for it.
        output::write(&format!("{line}\n"))
    }

    fn run<H: Host>(mut self, first: H, second: Option<H>, both: bool) -> Report {
        let result = self.with_devices(first, second, both);
        self.report.outcome = Outcome::of(result, self.stop.load(Ordering::Relaxed));
        self.report
    }

    fn with_devices<H: Host>(&mut self, first: H, second: Option<H>, both: bool) -> Result<()> {
        let first = Device::bring_up(first, &self.stop)?;
        let second = match second.map(|host| Device::bring_up(host, &self.stop)).transpose() {
            Ok(second) => second,
            Err(error) => {
                // The first error is the one to report.
                let _ = first.teardown();
                return Err(error);
            }
        };
        let mut devices = DevicePair::new(first, second);
        self.report.devices = devices.iter_mut().map(|device| device.host.name().to_string()).collect();
        let mut ends = Vec::new();
        let result = self.with_ends(&mut devices, &mut ends, both);
        // All ends and devices are torn down even after an error. The first error is reported.
        let result = ends.into_iter().fold(result, |result, end| {
            let role = end.role;
            result.and(end.destroy(devices.of(role)))
        });
        devices.into_devices().fold(result, |result, device| {
            let end = device.teardown();
            result.and(end.map(|_| ()))
        })
    }

    fn with_ends<H: Host>(&mut self, devices: &mut DevicePair<H>, ends: &mut Vec<PingpongEnd<H>>, both: bool) -> Result<()> {
        if both {
            let [a, b] = [Role::Client, Role::Server].map(|role| devices.name(role));
            let kind = if self.report.simulated { " (simulated, every message checked)" } else { "" };
            self.print(format_args!("both ends in this process{kind}: client {a}, server {b}"))?;
            for role in [Role::Client, Role::Server] {
                ends.push(self.end(devices, role)?);
            }
            self.exchange_here(devices, ends)?;
        } else {
            let role = if self.args.host.is_some() { Role::Client } else { Role::Server };
            ends.push(self.end(devices, role)?);
            if let [end] = ends.as_mut_slice() {
                self.exchange_with_peer(devices, end)?;
            }
        }
        if self.plan.transport != Transport::Xrc {
            self.exchanges = (None, None);
        }
        let seconds = self.run_messages(devices, ends)?;
        self.end_exchanges(devices)?;
        let timing = Timing::new(self.plan.size, self.args.iters, seconds);
        let printed = self.print(timing);
        self.report.result = Some(timing);
        // The peer may need answers to retransmissions even if the result cannot be printed here.
        if !both && self.plan.transport.qp_type() == QpType::Rc {
            self.linger(devices)?;
        }
        printed
    }

    fn end<H: Host>(&mut self, devices: &mut DevicePair<H>, role: Role) -> Result<PingpongEnd<H>> {
        let name_in_pair = devices.name(role);
        let device = devices.of(role);
        let name = if self.report.role == "both" { name_in_pair } else { device.host.name().to_string() };
        device.active_port(self.args.ib_port, self.has_progress(), &self.stop)?;
        // The ends have different first PSNs.
        let seed = self.plan.seed.rotate_left(if role == Role::Client { 0 } else { 24 });
        let entry = self.args.path.of_end(usize::from(self.report.role == "both" && role == Role::Server));
        PingpongEnd::new(role, &name, device, Plan { seed, entry, ..self.plan }).context(name)
    }

    /// Exchanges the addresses of two ends in this process over a TCP connection to localhost.
    fn exchange_here<H: Host>(&mut self, devices: &mut DevicePair<H>, ends: &mut [PingpongEnd<H>]) -> Result<()> {
        let [client, server] = ends else { return Ok(()) };
        let stop = self.stop.clone();
        // One thread runs both ends: each reads only what the other has already sent.
        let mut idle = || Ok(());
        let mut wait = Wait::new(&stop, &mut idle);
        let listener = Listener::bind(&format!("127.0.0.1:{}", self.args.port.unwrap_or(0)))?;
        self.print_local(client)?;
        let stream = peer_connection::connect(&listener.local_addr()?.to_string(), Duration::ZERO, &mut wait)?;
        let mut client_side = ClientExchange::send(stream, MESSAGE_TIMEOUT, self.format(client), &client.locals)?;
        let stream = listener.accept(Some(COMPLETION_TIMEOUT), &mut wait)?;
        let (mut server_side, client_address) =
            ServerExchange::receive(stream, MESSAGE_TIMEOUT, self.format(server), &mut wait)?;
        server.connect(devices.of(Role::Server), &client_address, client.mac)?;
        server_side.answer(&server.locals)?;
        let server_address = client_side.finish(&mut wait)?;
        server_side.confirm(&mut wait)?;
        self.exchanges = (Some(client_side), Some(server_side));
        client.connect(devices.of(Role::Client), &server_address, server.mac)?;
        self.connected(client, &server_address, server.mac)
    }

    /// Exchanges addresses with a tool or another process.
    fn exchange_with_peer<H: Host>(&mut self, devices: &mut DevicePair<H>, end: &mut PingpongEnd<H>) -> Result<()> {
        let (stop, port, local) = (self.stop.clone(), self.args.port.unwrap_or(DEFAULT_PORT), end.locals.clone());
        let (format, peer_mac) = (self.format(end), self.args.path.peer_mac);
        let device = devices.of(end.role);
        self.report.local = local.first().map(|local| AddressReport::new(local, end.mac));
        let remote = if let Some(host) = &self.args.host {
            self.print_local(end)?;
            // While it waits, the device's page requests are answered and its health is checked.
            let mut idle = || device.check();
            let mut wait = Wait::new(&stop, &mut idle);
            let server = host_and_port(host, "", port).map_err(UsageError::new)?;
            let stream = peer_connection::connect(&server, CONNECT_RETRY_TIME, &mut wait)?;
            let mut exchange = ClientExchange::send(stream, MESSAGE_TIMEOUT, format, &local)?;
            let remote = exchange.finish(&mut wait)?;
            self.exchanges.0 = Some(exchange);
            end.connect(device, &remote, peer_mac)?;
            remote
        } else {
            // A server listens before it prints its address, after which a client may connect.
            let listener = Listener::bind_any(port)?;
            let tcp_port = listener.local_addr()?.port();
            self.report.tcp_port = Some(tcp_port);
            if port == 0 {
                let line = format!("  TCP port:       {tcp_port}");
                // The client needs the port long before the JSON document is printed.
                if self.args.output.json { output::note(line) } else { self.print(line)? }
            }
            self.print_local(end)?;
            let timeout = self.args.wait.time();
            let mut idle = || device.check();
            let mut wait = Wait::new(&stop, &mut idle);
            let stream = listener.accept(Some(timeout), &mut wait)?;
            let (mut exchange, remote) = ServerExchange::receive(stream, MESSAGE_TIMEOUT, format, &mut wait)?;
            end.connect(device, &remote, peer_mac)?;
            exchange.answer(&local)?;
            exchange.confirm(&mut Wait::new(&stop, &mut || device.check()))?;
            self.exchanges.1 = Some(exchange);
            remote
        };
        self.connected(end, &remote, peer_mac)
    }

    /// Returns what an end sends its peer.
    const fn format<H: Host>(&self, end: &PingpongEnd<H>) -> Format {
        match self.plan.transport {
            Transport::Srq => Format::shared(end.link_layer(), self.plan.queue_pairs),
            Transport::Xrc => Format::xrc(end.link_layer()),
            Transport::Rc | Transport::Uc | Transport::Ud => Format::single(end.link_layer()),
        }
    }

    /// Prints the addresses of an end. A peer of Linux needs the MAC address too, before it connects: nobody answers its kernel's question.
    fn print_local<H: Host>(&self, end: &PingpongEnd<H>) -> Result<()> {
        end.locals.iter().try_for_each(|local| self.print(format_args!("  local address:  {local}")))?;
        end.mac.map_or(Ok(()), |mac| self.print(format_args!("  local MAC:      {mac}")))
    }

    fn connected<H: Host>(&mut self, end: &PingpongEnd<H>, remotes: &[Address], peer_mac: Option<Mac>) -> Result<()> {
        self.report.local = end.locals.first().map(|local| AddressReport::new(local, end.mac));
        self.report.remote = remotes.first().map(|remote| AddressReport::new(remote, peer_mac));
        remotes.iter().try_for_each(|remote| self.print(format_args!("  remote address: {remote}")))
    }

    /// Returns whether a terminal shows the progress.
    const fn has_progress(&self) -> bool {
        !self.args.output.json && !self.args.trace.trace
    }

    /// Exchanges the messages. Returns the time in seconds by the wall clock.
    fn run_messages<H: Host>(&self, devices: &mut DevicePair<H>, ends: &mut [PingpongEnd<H>]) -> Result<f64> {
        let mut progress = Progress::new(u64::from(self.args.iters), "messages", self.has_progress(), self.stop.clone());
        let start = Instant::now();
        for end in ends.iter_mut() {
            end.start()?;
        }
        let (mut polls, mut idle_since, mut reported) = (0_u32, None, 0);
        loop {
            let progressed = match step(ends) {
                Ok(progressed) => progressed,
                // If a device was removed, that is the cause of the error that its peer reports.
                Err(error) => return Err(devices.iter_mut().find_map(|device| device.check_health().err()).unwrap_or(error)),
            };
            if ends.iter().all(PingpongEnd::is_done) {
                return Ok(start.elapsed().as_secs_f64());
            }
            if progressed {
                (polls, idle_since) = (0, None);
                let received = ends.first().map_or(0, |end| end.received);
                // The progress of each message would add to its latency.
                if received >= reported + 1000 {
                    progress.advance("messages each way", (received - reported).into());
                    reported = received;
                    self.check_stop(&progress, ends)?;
                }
                continue;
            }
            if polls % POLLS_PER_CHECK == 0 {
                self.check_stop(&progress, ends)?;
                devices.iter_mut().try_for_each(Device::check)?;
                let now = devices.of(Role::Client).host.now();
                if now > idle_since.get_or_insert(now).after(COMPLETION_TIMEOUT) {
                    bail!("{}", self.completion_timeout(ends));
                }
            }
            polls = polls.wrapping_add(1);
            if self.args.events {
                sleep(devices, ends)?;
                // A sleep is long, so everything else is checked after each.
                polls = 0;
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

    fn completion_timeout<H: Host>(&self, ends: &[PingpongEnd<H>]) -> String {
        let cause = match self.plan.transport {
            Transport::Uc => "UC does not retransmit lost messages; or the peer has ended, or has other options",
            Transport::Ud => {
                "UD does not retransmit lost messages; or the peer has ended, has other options, or is not reached"
            }
            Transport::Rc | Transport::Srq | Transport::Xrc => "the peer may have ended, or have another -n",
        };
        format!("no completion for {} s of the devices' time: {cause} ({})", COMPLETION_TIMEOUT.as_secs(), counts(ends))
    }

    /// Waits of XRC until the peer has all its messages. It has their acknowledgements then.
    fn end_exchanges<H: Host>(&mut self, devices: &mut DevicePair<H>) -> Result<()> {
        let stop = self.stop.clone();
        let mut idle = || devices.idle();
        let mut wait = Wait::new(&stop, &mut idle);
        let (client, server) = &mut self.exchanges;
        client.as_mut().map_or(Ok(()), ClientExchange::announce_end)?;
        server.as_mut().map_or(Ok(()), |server| server.end(&mut wait))?;
        client.as_mut().map_or(Ok(()), |client| client.await_end(&mut wait))
    }

    /// Answers retransmissions of the peer, whose last acknowledgement may be lost, until it would have retransmitted.
    fn linger<H: Host>(&self, devices: &mut DevicePair<H>) -> Result<()> {
        let end = devices.of(Role::Client).host.now().after(LINGER);
        while devices.of(Role::Client).host.now() < end && !self.stop.load(Ordering::Relaxed) {
            devices.idle()?;
        }
        Ok(())
    }
}

/// Steps each end. Returns whether any had completions.
fn step<H: Host>(ends: &mut [PingpongEnd<H>]) -> Result<bool> {
    let mut progressed = false;
    for end in ends {
        progressed |= end.step()?;
    }
    Ok(progressed)
}

/// Arms the completion queues, and sleeps until an interrupt of the device on which the next completion is due. Returns at once
/// if there are completions already.
fn sleep<H: Host>(devices: &mut DevicePair<H>, ends: &mut [PingpongEnd<H>]) -> Result<()> {
    for end in ends.iter_mut() {
        end.arm()?;
    }
    // A completion before the queues were armed raises no interrupt.
    if step(ends)? {
        return Ok(());
    }
    let role = match ends {
        [end] => end.role,
        [client, server] if client.posted_sends() > server.received => server.role,
        [client, server] if server.posted_sends() > client.received => client.role,
        [client, server] if client.posted_sends() > client.sent => client.role,
        _ => Role::Server,
    };
    devices.of(role).host.wait(MAX_SLEEP).map(|_| ())
}

fn counts<H: Host>(ends: &[PingpongEnd<H>]) -> String {
    ends.iter().map(PingpongEnd::progress).collect::<Vec<_>>().join("; ")
}

//! Runs the ends of a program that are in this process.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use bareverbs_sim::DeviceConfig;
use bareverbs_sim::in_process::{World, WorldConfig};

use super::args::CmArgs;
use super::link::PORT;
use super::program::{End, Program, Report};
use crate::args::UsageError;
use crate::device::selection::DeviceChoice;
use crate::device::simulated::Simulated;
use crate::device::vfio::Card;
use crate::device::{Device, Host, Role};
use crate::outcome::Outcome;
use crate::output;

/// Maximum time, by the clock of the devices, in which nothing happens. The peer's retries take less.
pub(crate) const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long an end stays to answer repetitions after its connections have ended.
const LINGER: Duration = Duration::from_millis(500);
/// Looks at the queues for one check of everything else.
const LOOKS_PER_CHECK: u32 = 64;

/// Runs a program. `stop` ends it early.
///
/// # Errors
/// The command line has a mistake ([`UsageError`]), or a device cannot be opened.
pub(crate) fn run<P: Program>(program: &P, stop: &Arc<AtomicBool>) -> Result<Report<P::Done>> {
    let args = program.cm();
    let device = args.device.clone().unwrap_or_default();
    let ends = if device == DeviceChoice::Simulated { 2 } else { 1 };
    args.path.check(ends, ends)?;
    args.check_private_data(P::ROOM)?;
    match device {
        DeviceChoice::Simulated => {
            if let Some(server) = args.server {
                return Err(UsageError::new(format!(
                    "{server}: a simulated device has no wire to another process; leave the server out to run both ends here, or \
                     use a card with --device"
                ))
                .into());
            }
            Ok(run_simulated(program, stop, WorldConfig::default()))
        }
        DeviceChoice::Pci(address) => Ok(run_ends(program, vec![(Card::open(address, stop)?, args.role())], stop)),
    }
}

/// Runs both ends on simulated devices of a world.
pub(crate) fn run_simulated<P: Program>(program: &P, stop: &Arc<AtomicBool>, world: WorldConfig) -> Report<P::Done> {
    let world = World::new(world);
    let hosts = [(Role::Server, "b", 2), (Role::Client, "a", 1)].map(|(role, name, lid)| {
        let host = world.add(DeviceConfig::with_lid(lid).with_ethernet())?;
        Ok::<_, anyhow::Error>((Simulated::new(&format!("device {name}"), host), role))
    });
    match hosts.into_iter().collect::<Result<Vec<_>>>() {
        Ok(hosts) => run_ends(program, hosts, stop),
        Err(error) => Report { outcome: Outcome::of(Err(error), false), ..Report::default() },
    }
}

/// Runs one end, or both, on these hosts.
pub(crate) fn run_ends<P: Program, H: Host>(program: &P, hosts: Vec<(H, Role)>, stop: &Arc<AtomicBool>) -> Report<P::Done> {
    let role = match hosts.as_slice() {
        [(_, role)] => role_name(*role),
        _ => "both",
    };
    let mut report = Report { role, ..Report::default() };
    let result = with_devices(program, hosts, stop, &mut report);
    report.outcome = Outcome::of(result, stop.load(Ordering::Relaxed));
    report
}

fn with_devices<P: Program, H: Host>(
    program: &P,
    hosts: Vec<(H, Role)>,
    stop: &Arc<AtomicBool>,
    report: &mut Report<P::Done>,
) -> Result<()> {
    let mut devices = Vec::new();
    let mut result = Ok(());
    for (host, role) in hosts {
        match Device::bring_up(host, stop) {
            Ok(device) => devices.push((device, role)),
            Err(error) => result = result.and(Err(error)),
        }
    }
    let mut ends: Vec<P::End<H>> = Vec::new();
    let result = result.and_then(|()| with_ends(program, &mut devices, &mut ends, stop));
    report.done = ends.iter().map(End::done).max().unwrap_or_default();
    report.rejected = ends.iter().any(End::has_rejected);
    report.private_data = ends.iter_mut().flat_map(|end| end.port().texts.drain(..)).collect();
    if result.is_err() {
        leave(&mut devices, &mut ends);
    }
    // All ends and devices are torn down even after an error. The first error is reported.
    let result = ends.into_iter().zip(&mut devices).fold(result, |result, (end, (device, _))| result.and(end.destroy(device)));
    devices.into_iter().fold(result, |result, (device, _)| {
        let ended = device.teardown();
        result.and(ended.map(|_| ()))
    })
}

fn with_ends<P: Program, H: Host>(
    program: &P,
    devices: &mut [(Device<H>, Role)],
    ends: &mut Vec<P::End<H>>,
    stop: &Arc<AtomicBool>,
) -> Result<()> {
    let args = program.cm();
    let here = devices.len();
    for (device, role) in devices.iter_mut() {
        device.active_port(PORT, !args.output.json, stop)?;
        let entry = args.path.of_end(usize::from(here == 2 && *role == Role::Server));
        let mut end = P::End::new(*role, device, program, entry)?;
        let name = device.host.name();
        let port = end.port();
        print(args, format_args!("{} {name}: address {}, {}", role_name(*role), port.local, port.link))?;
        ends.push(end);
    }
    let mut server = args.server;
    if let [first, second] = ends.as_mut_slice() {
        let (one, other) = (first.port(), second.port());
        one.link.meet(&other.link);
        other.link.meet(&one.link);
        let client_is_first = devices.first().is_some_and(|(_, role)| *role == Role::Client);
        server = Some(if client_is_first { other.local } else { one.local });
    }
    for (end, (device, role)) in ends.iter_mut().zip(devices.iter_mut()) {
        if *role == Role::Client {
            end.request(device, server.context("no server")?)?;
            end.port().transmit(device)?;
        }
    }
    run_to_end(args, devices, ends, stop)
}

const fn role_name(role: Role) -> &'static str {
    match role {
        Role::Client => "client",
        Role::Server => "server",
    }
}

fn print(args: &CmArgs, line: impl fmt::Display) -> Result<()> {
    // Each line is written at once, because a script may wait for it.
    if args.output.json { Ok(()) } else { output::write(&format!("{line}\n")) }
}

/// Releases the connections that are left after an error or Ctrl-C, and gives the peers a moment to answer. The error that led here
/// is the one to report.
fn leave<E: End<H>, H: Host>(devices: &mut [(Device<H>, Role)], ends: &mut [E]) {
    let mut open: Vec<_> = ends.iter_mut().zip(devices.iter_mut().map(|(device, _)| device)).collect();
    open.retain_mut(|(end, device)| end.leave(device.host.now()) && end.port().transmit(device).is_ok());
    let Some(since) = open.first().map(|(_, device)| device.host.now()) else { return };
    while let Some((_, device)) = open.first_mut()
        && device.host.now() < since.after(LINGER)
    {
        device.host.relax();
        open.retain_mut(|(end, device)| end.step(device).is_ok() && !end.is_done());
    }
}

/// Steps all ends until each is done, and has answered repetitions for a moment.
fn run_to_end<E: End<H>, H: Host>(
    args: &CmArgs,
    devices: &mut [(Device<H>, Role)],
    ends: &mut [E],
    stop: &AtomicBool,
) -> Result<()> {
    let (mut looks, mut idle_since, mut done_at) = (0_u32, None, None);
    loop {
        let mut progressed = false;
        for (end, (device, _)) in ends.iter_mut().zip(devices.iter_mut()) {
            let stepped = end.step(device);
            for news in end.port().news.drain(..) {
                print(args, news)?;
            }
            progressed |= stepped?;
        }
        let Some(((device, _), end)) = devices.first_mut().zip(ends.first()) else { return Ok(()) };
        let now = device.host.now();
        let timeout = if end.waits_for_client() { args.wait.time() } else { IDLE_TIMEOUT };
        if ends.iter().all(End::is_done) && now > done_at.get_or_insert(now).after(LINGER) {
            return Ok(());
        }
        if progressed {
            (looks, idle_since) = (0, None);
            continue;
        }
        if looks % LOOKS_PER_CHECK == 0 {
            if stop.load(Ordering::Relaxed) {
                bail!("stopped");
            }
            devices.iter_mut().try_for_each(|(device, _)| device.check())?;
            if now > idle_since.get_or_insert(now).after(timeout) {
                let progress = ends.first().map(End::progress).unwrap_or_default();
                bail!("nothing happened for {} s: {progress}", timeout.as_secs());
            }
        }
        looks = looks.wrapping_add(1);
        if let Some((device, _)) = devices.first_mut() {
            device.host.relax();
        }
    }
}

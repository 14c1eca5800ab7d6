//! `bareverbs rping`: either end of `rping` of rdma-core, or both. The ends meet by communication management (`rdma_cm`).

pub mod args;
mod end;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use bareverbs_cm::{IpPrivateData, Rej, Rep, Req};
use bareverbs_sim::DeviceConfig;
use bareverbs_sim::in_process::{World, WorldConfig};
use serde::Serialize;

use self::args::RpingArgs;
use self::end::{LINGER, RpingEnd};
use crate::args::UsageError;
use crate::device::selection::DeviceChoice;
use crate::device::simulated::Simulated;
use crate::device::vfio::Card;
use crate::device::{Device, Host, Role};
use crate::outcome::Outcome;
use crate::output;

/// Maximum time, by the clock of the devices, in which nothing happens. The peer's retries take less.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Looks at the queues for one check of everything else.
const LOOKS_PER_CHECK: u32 = 64;

/// Report of an rping.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// How it ended; `ok` says that the connection was made and ended as it should.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// Ends in this process: `client`, `server` or `both`.
    pub role: &'static str,
    /// Rounds that were done.
    pub rounds: u32,
    /// Bytes of each.
    pub size: u32,
    /// Whether a server has rejected the request of its client.
    pub rejected: bool,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.outcome.ok {
            return Ok(());
        }
        if self.rejected {
            return writeln!(f, "rejected the request of the client");
        }
        let compared = if self.role == "server" { "read and written back" } else { "read, written back and compared" };
        writeln!(f, "{} rounds: {compared}", self.rounds)
    }
}

/// Runs the rping of a command line. `stop` ends it early.
///
/// # Errors
/// The command line has a mistake ([`UsageError`]), or a device cannot be opened.
pub fn run(args: &RpingArgs, stop: &Arc<AtomicBool>) -> Result<Report> {
    let device = args.device.clone().unwrap_or_default();
    let ends = if device == DeviceChoice::Simulated { 2 } else { 1 };
    args.path.check(ends, ends)?;
    check_private_data(args)?;
    match device {
        DeviceChoice::Simulated => {
            if let Some(server) = args.server {
                return Err(UsageError::new(format!(
                    "{server}: a simulated device has no wire to another process; leave the server out to run both ends here, or \
                     use a card with --device"
                ))
                .into());
            }
            Ok(run_simulated(args, stop, WorldConfig::default()))
        }
        DeviceChoice::Pci(address) => {
            let role = if args.server.is_some() { Role::Client } else { Role::Server };
            Ok(run_ends(args, vec![(Card::open(address, stop)?, role)], stop))
        }
    }
}

/// Checks that every end here has room for the private data.
fn check_private_data(args: &RpingArgs) -> Result<(), UsageError> {
    let client = || ("a client", Req::PRIVATE_DATA - IpPrivateData::BYTES);
    let server = || if args.reject { ("a rejecting server", Rej::PRIVATE_DATA) } else { ("a server", Rep::PRIVATE_DATA) };
    // Only a server alone in this process has no client's limit, which is the smallest.
    let (who, room) = if args.server.is_none() && args.device.is_some() { server() } else { client() };
    if args.private_data.len() > room {
        return Err(UsageError::new(format!("--private-data: {who} has room for {room} bytes")));
    }
    Ok(())
}

/// Runs both ends on simulated devices of a world.
pub fn run_simulated(args: &RpingArgs, stop: &Arc<AtomicBool>, world: WorldConfig) -> Report {
    let world = World::new(world);
    let hosts = [(Role::Server, "b", 2), (Role::Client, "a", 1)].map(|(role, name, lid)| {
        let host = world.add(DeviceConfig::with_lid(lid).with_ethernet())?;
        Ok::<_, anyhow::Error>((Simulated::new(&format!("device {name}"), host), role))
    });
    match hosts.into_iter().collect::<Result<Vec<_>>>() {
        Ok(hosts) => run_ends(args, hosts, stop),
        Err(error) => Report { outcome: Outcome::of(Err(error), false), ..Report::default() },
    }
}

fn run_ends<H: Host>(args: &RpingArgs, hosts: Vec<(H, Role)>, stop: &Arc<AtomicBool>) -> Report {
    let role = match hosts.as_slice() {
        [(_, Role::Client)] => "client",
        [(_, Role::Server)] => "server",
        _ => "both",
    };
    let mut report = Report { role, size: args.size, ..Report::default() };
    let result = with_devices(args, hosts, stop, &mut report);
    report.outcome = Outcome::of(result, stop.load(Ordering::Relaxed));
    report
}

fn with_devices<H: Host>(args: &RpingArgs, hosts: Vec<(H, Role)>, stop: &Arc<AtomicBool>, report: &mut Report) -> Result<()> {
    let mut devices = Vec::new();
    let mut result = Ok(());
    for (host, role) in hosts {
        match Device::bring_up(host, stop) {
            Ok(device) => devices.push((device, role)),
            Err(error) => result = result.and(Err(error)),
        }
    }
    let mut ends = Vec::new();
    let result = result.and_then(|()| with_ends(args, &mut devices, &mut ends, stop));
    report.rounds = ends.iter().map(|end: &RpingEnd<H>| end.rounds).max().unwrap_or_default();
    report.rejected = ends.iter().any(|end| end.rejected);
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

fn with_ends<H: Host>(
    args: &RpingArgs,
    devices: &mut [(Device<H>, Role)],
    ends: &mut Vec<RpingEnd<H>>,
    stop: &Arc<AtomicBool>,
) -> Result<()> {
    let here = devices.len();
    for (device, role) in devices.iter_mut() {
        device.active_port(1, !args.output.json, stop)?;
        let entry = args.path.of_end(usize::from(here == 2 && *role == Role::Server));
        let end = RpingEnd::new(*role, device, args, entry)?;
        let name = device.host.name();
        print(args, format_args!("{} {name}: address {}, MAC address {}", role_name(*role), end.local, end.mac))?;
        ends.push(end);
    }
    if let [first, second] = ends.as_mut_slice() {
        first.peer_mac = Some(second.mac);
        second.peer_mac = Some(first.mac);
    }
    let here = ends.iter().find(|end| end.role == Role::Server).map(|server| server.local);
    for (end, (device, _)) in ends.iter_mut().zip(devices.iter_mut()).filter(|(end, _)| end.role == Role::Client) {
        let server = args.server.or(here).context("no server")?;
        end.request(device, server)?;
    }
    run_rounds(args, devices, ends, stop)
}

const fn role_name(role: Role) -> &'static str {
    match role {
        Role::Client => "client",
        Role::Server => "server",
    }
}

fn print(args: &RpingArgs, line: impl fmt::Display) -> Result<()> {
    // Each line is written at once, because a script may wait for it.
    if args.output.json { Ok(()) } else { output::write(&format!("{line}\n")) }
}

/// Releases the connections that are left after an error or Ctrl-C, and gives the peers a moment to answer. The error that led here
/// is the one to report.
fn leave<H: Host>(devices: &mut [(Device<H>, Role)], ends: &mut [RpingEnd<H>]) {
    let mut open: Vec<_> = ends.iter_mut().zip(devices.iter_mut().map(|(device, _)| device)).collect();
    open.retain_mut(|(end, device)| end.leave(device).unwrap_or(false));
    let Some(since) = open.first().map(|(_, device)| device.host.now()) else { return };
    while let Some((_, device)) = open.first_mut()
        && device.host.now() < since.after(LINGER)
    {
        device.host.relax();
        open.retain_mut(|(end, device)| end.step(device).is_ok() && !end.is_done());
    }
}

/// Steps all ends until each is done, and has answered repetitions for a moment.
fn run_rounds<H: Host>(
    args: &RpingArgs,
    devices: &mut [(Device<H>, Role)],
    ends: &mut [RpingEnd<H>],
    stop: &AtomicBool,
) -> Result<()> {
    let (mut looks, mut idle_since, mut done_at) = (0_u32, None, None);
    loop {
        let mut progressed = false;
        for (end, (device, _)) in ends.iter_mut().zip(devices.iter_mut()) {
            let stepped = end.step(device);
            for news in end.news.drain(..) {
                print(args, news)?;
            }
            progressed |= stepped?;
        }
        let Some(((device, _), end)) = devices.first_mut().zip(ends.first()) else { return Ok(()) };
        let now = device.host.now();
        let timeout = if end.waits_for_client() { args.wait.time() } else { IDLE_TIMEOUT };
        if ends.iter().all(RpingEnd::is_done) && now > done_at.get_or_insert(now).after(LINGER) {
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
                bail!("nothing happened for {} s", timeout.as_secs());
            }
        }
        looks = looks.wrapping_add(1);
        if let Some((device, _)) = devices.first_mut() {
            device.host.relax();
        }
    }
}

#[cfg(test)]
mod tests {
    use bareverbs_sim::wire::{Probability, WireFaults};
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};
    use crate::device::ethernet::EntryArgs;

    fn args(more: &[&str]) -> RpingArgs {
        match Cli::parse_from([&["bareverbs", "rping", "--json"], more].concat()).command {
            Some(Command::Rping(args)) => *args,
            _ => panic!("another command"),
        }
    }

    fn run(more: &[&str], loss: u16) -> Report {
        let often = Probability::per_mille(loss);
        let faults = WireFaults { loss: often, duplication: often, reordering: often, ..WireFaults::NONE };
        run_simulated(&args(more), &Arc::default(), WorldConfig { faults, ..WorldConfig::default() })
    }

    #[test]
    fn both_ends_meet_and_compare_every_byte() {
        for (more, rounds, size) in
            [(&[][..], 10, 64), (&["-C", "3", "-S", "1"], 3, 1), (&["-C", "2", "-S", "100000"], 2, 100_000)]
        {
            let report = run(more, 0);
            assert_eq!((report.outcome.ok, report.outcome.failure, report.rounds, report.size), (true, None, rounds, size));
        }
        let report = run(&["--private-data", "anybody?"], 50);
        assert_eq!((report.outcome.ok, report.outcome.failure, report.rounds), (true, None, 10));
    }

    #[test]
    fn a_rejection_is_said_with_its_text() {
        let report = run(&["--reject", "--private-data", "not today"], 0);
        let failure = report.outcome.failure.unwrap();
        assert_eq!(failure, "the peer rejected the connection: consumer reject, private data \"not today\"");
        assert!(report.rejected);
        let server =
            Report { outcome: Outcome::new(None, false), role: "server", rejected: report.rejected, ..Report::default() };
        assert_eq!(server.to_string(), "rejected the request of the client\n");
    }

    #[test]
    fn addresses_and_a_vlan_are_used() {
        let report = run(&["--address", "192.0.2.1", "--address", "192.0.2.2", "--vlan", "100", "-g", "3"], 0);
        assert_eq!((report.outcome.ok, report.outcome.failure, report.rounds), (true, None, 10));
        let report = run(&["--address", "192.0.2.1", "--address", "2001:db8::2"], 0);
        assert!(report.outcome.failure.unwrap().contains("different versions of IP"));
    }

    #[test]
    fn mistakes_of_the_command_line_are_refused() {
        let too_long = "x".repeat(57);
        for (more, why) in [
            (&["--private-data", &too_long][..], "a client has room for 56 bytes"),
            (&["--address", "192.0.2.1"], "give one for each"),
            (&["--peer-mac", "02:00:5e:00:53:01"], "leave it out"),
            (&["192.0.2.1"], "no wire to another process"),
        ] {
            let error = super::run(&args(more), &Arc::default()).unwrap_err();
            assert!(error.is::<UsageError>() && error.to_string().contains(why), "{error:#}");
        }
    }

    /// Runs a client alone on a device of a world.
    fn run_client(world: &World, more: &[&str]) -> Report {
        let host = world.add(DeviceConfig::with_lid(1).with_ethernet()).unwrap();
        run_ends(&args(more), vec![(Simulated::new("a", host), Role::Client)], &Arc::default())
    }

    #[test]
    fn a_client_whose_server_is_not_there_ends_in_bounded_time() {
        let world = World::new(WorldConfig::default());
        let report = run_client(&world, &["--peer-mac", "02:00:5e:00:53:01", "--address", "192.0.2.1", "192.0.2.2"]);
        let failure = report.outcome.failure.unwrap();
        assert!(failure.starts_with("the peer does not answer: ") && failure.contains("192.0.2.1"), "{failure}");
        let seconds = world.now().as_nanos() / 1_000_000_000;
        assert!((4..IDLE_TIMEOUT.as_secs()).contains(&seconds), "{seconds}");
    }

    /// Returns a server and a client on devices of their own, with these entries. The client has sent its request.
    fn pair(args: &RpingArgs, entries: [EntryArgs; 2]) -> (Vec<Device<Simulated>>, Vec<RpingEnd<Simulated>>) {
        let world = World::new(WorldConfig::default());
        let (mut devices, mut ends) = (Vec::new(), Vec::new());
        for ((role, lid), entry) in [(Role::Server, 2), (Role::Client, 1)].into_iter().zip(entries) {
            let host = world.add(DeviceConfig::with_lid(lid).with_ethernet()).unwrap();
            let mut device = Device::bring_up(Simulated::new("a", host), &Arc::default()).unwrap();
            device.active_port(1, false, &AtomicBool::default()).unwrap();
            ends.push(RpingEnd::new(role, &mut device, args, entry).unwrap());
            devices.push(device);
        }
        let server = ends[0].local;
        ends[1].request(&mut devices[1], server).unwrap();
        (devices, ends)
    }

    #[test]
    fn ends_of_different_vlans_do_not_meet() {
        let entries = [100, 101].map(|vlan| EntryArgs { vlan: Some(vlan), ..EntryArgs::default() });
        let (mut devices, mut ends) = pair(&args(&[]), entries);
        let why = loop {
            assert!(!ends[0].step(&mut devices[0]).unwrap(), "the server has got the request");
            match ends[1].step(&mut devices[1]) {
                Ok(_) => devices[1].host.relax(),
                Err(error) => break error.to_string(),
            }
        };
        assert!(why.starts_with("the peer does not answer: "), "{why}");
    }

    #[test]
    fn an_end_that_leaves_tells_its_peer() {
        let (mut devices, mut ends) = pair(&args(&["-C", "1000000"]), [EntryArgs::default(); 2]);
        while ends[1].rounds < 3 {
            for (end, device) in ends.iter_mut().zip(&mut devices) {
                if !end.step(device).unwrap() {
                    device.host.relax();
                }
            }
        }
        assert!(ends[0].leave(&mut devices[0]).unwrap());
        let mut why = None;
        for _ in 0..10_000 {
            for (end, device) in ends.iter_mut().zip(&mut devices) {
                match end.step(device) {
                    Ok(_) => device.host.relax(),
                    Err(error) => why = Some(format!("{error:#}")),
                }
            }
            if why.is_some() && ends[0].is_done() {
                break;
            }
        }
        let why = why.expect("the client has not heard of it");
        assert!(why.starts_with("the connection ended in round 3: "), "{why}");
        assert!(ends[0].is_done(), "the client has answered");
    }

    #[test]
    fn a_client_without_the_mac_address_of_its_server_says_how_to_give_it() {
        let report = run_client(&World::new(WorldConfig::default()), &["--address", "192.0.2.1", "192.0.2.2"]);
        let failure = report.outcome.failure.unwrap();
        assert!(failure.contains("192.0.2.2 does not tell its MAC address") && failure.contains("--peer-mac"), "{failure}");
    }
}

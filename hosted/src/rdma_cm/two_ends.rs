//! Two ends of a program in one process, which a test steps.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Result;
use bareverbs_sim::DeviceConfig;
use bareverbs_sim::in_process::{World, WorldConfig};
use bareverbs_sim::wire::{Probability, WireFaults};
use clap::{Args, Command};

use super::link::PORT;
use super::program::{End, Program, Report};
use super::run::{IDLE_TIMEOUT, run_ends, run_simulated};
use crate::device::ethernet::EntryArgs;
use crate::device::simulated::Simulated;
use crate::device::{Device, Host as _, Role};

/// More steps than any test takes.
const STEPS: usize = 1_000_000;

/// Returns the options of a program, with `--json`.
pub(crate) fn args<P: Program + Args>(more: &[&str]) -> P {
    let command = P::augment_args(Command::new("program"));
    let matches = command.try_get_matches_from([&["program", "--json"], more].concat()).unwrap();
    P::from_arg_matches(&matches).unwrap()
}

/// Runs both ends on a wire that loses, doubles and reorders as many of a thousand packets.
pub(crate) fn run<P: Program>(program: &P, per_mille: u16) -> Report<P::Done> {
    let often = Probability::per_mille(per_mille);
    let faults = WireFaults { loss: often, duplication: often, reordering: often, ..WireFaults::NONE };
    run_simulated(program, &Arc::default(), WorldConfig { faults, ..WorldConfig::default() })
}

/// Runs a client alone on a device of a world.
pub(crate) fn run_client<P: Program>(program: &P, world: &World) -> Report<P::Done> {
    let host = world.add(DeviceConfig::with_lid(1).with_ethernet()).unwrap();
    run_ends(program, vec![(Simulated::new("a", host), Role::Client)], &Arc::default())
}

/// Checks that a client whose server is not there ends with the reason, in bounded time.
pub(crate) fn ends_without_a_server<P: Program + Args>(more: &[&str]) {
    let world = World::new(WorldConfig::default());
    let alone = [&["--peer-mac", "02:00:5e:00:53:01", "--address", "192.0.2.1", "192.0.2.2"], more].concat();
    let failure = run_client(&args::<P>(&alone), &world).outcome.failure.unwrap();
    assert!(failure.starts_with("the peer does not answer: ") && failure.contains("192.0.2.1"), "{failure}");
    let seconds = world.now().as_nanos() / 1_000_000_000;
    assert!((4..IDLE_TIMEOUT.as_secs()).contains(&seconds), "{seconds}");
}

/// Checks that each end is given the private data of the other.
pub(crate) fn private_data_arrive_both_ways<P: Program + Args>() {
    let mut pair = Pair::<P>::of(&["--private-data", "welcome"], &["--private-data", "hello"]);
    assert_eq!(pair.run_until(|ends| ends.iter().all(End::is_done)), None);
    for (end, text) in
        pair.ends.iter_mut().zip(["  private data of the client: \"hello\"", "  private data of the server: \"welcome\""])
    {
        let news = &end.port().news;
        assert!(news.iter().any(|line| line == text), "{news:?}");
    }
}

/// Checks that both ends meet on InfiniBand ports and do all that they should, by LID and with a global route. That alone says the GID of
/// the peer, and does not arrive at another one.
pub(crate) fn meet_in_a_subnet<P: Program + Args>()
where
    P::Done: std::fmt::Debug,
{
    for (route, gid) in [(&[][..], None), (&[][..], Some("fe80::9")), (&["-g", "0"], None)] {
        let mut pair = Pair::<P>::in_subnet(route, gid);
        assert_eq!(pair.run_until(|ends| ends.iter().all(End::is_done)), None);
        let [server, client] = [0, 1].map(|end| pair.ends[end].done());
        assert!(server == client && server > <P::Done>::default(), "{server:?} {client:?}");
        let news = &pair.ends[0].port().news;
        assert!(news.iter().any(|line| line.starts_with("  request from 192.0.2.1, port ")), "{news:?}");
    }
    let (role, why) = Pair::<P>::in_subnet(&["-g", "0"], Some("fe80::9")).run_until(|_| false).expect("nobody has that GID");
    assert!(role == Role::Client && why.contains("it has ended, is not at LID 2 with GID fe80::9, or "), "{why}");
}

/// A server and a client on devices of their own.
pub(crate) struct Pair<P: Program> {
    /// The devices.
    pub(crate) devices: Vec<Device<Simulated>>,
    /// The server, and the client.
    pub(crate) ends: Vec<P::End<Simulated>>,
}

impl<P: Program> Pair<P> {
    /// Makes the two. The client asks with its first step.
    pub(crate) fn new(server: &P, client: &P, entries: [EntryArgs; 2]) -> Self {
        let world = World::new(WorldConfig::default());
        let mut pair = Self { devices: Vec::new(), ends: Vec::new() };
        for ((program, role, lid), entry) in [(server, Role::Server, 2), (client, Role::Client, 1)].into_iter().zip(entries) {
            pair.add(&world, DeviceConfig::with_lid(lid).with_ethernet(), role, program, entry).unwrap();
        }
        pair.request();
        pair
    }

    /// Makes the two on InfiniBand ports. The client is given the port of the server as the server's line says it, or another GID.
    pub(crate) fn in_subnet(options: &[&str], gid: Option<&str>) -> Self
    where
        P: Args,
    {
        let world = World::new(WorldConfig::default());
        let mut pair = Self { devices: Vec::new(), ends: Vec::new() };
        let [ours, theirs] = [1, 2].map(|host| EntryArgs { address: Some([192, 0, 2, host].into()), vlan: None });
        pair.add(&world, DeviceConfig::with_lid(2), Role::Server, &args(options), theirs).unwrap();
        let line = pair.ends[0].port().link.to_string();
        let after = |name: &str| line.split_once(name).unwrap().1.split(',').next().unwrap();
        let peer = ["--peer-lid", after("LID "), "--peer-gid", gid.unwrap_or(after("GID ")), "192.0.2.2"];
        pair.add(&world, DeviceConfig::with_lid(1), Role::Client, &args(&[options, &peer].concat()), ours).unwrap();
        pair.request();
        pair
    }

    fn add(&mut self, world: &World, config: DeviceConfig, role: Role, program: &P, entry: EntryArgs) -> Result<()> {
        let mut device = Device::bring_up(Simulated::new("a", world.add(config)?), &Arc::default())?;
        device.active_port(PORT, false, &AtomicBool::default())?;
        self.ends.push(P::End::new(role, &mut device, program, entry)?);
        self.devices.push(device);
        Ok(())
    }

    fn request(&mut self) {
        let server = self.ends[0].port().local;
        self.ends[1].request(&mut self.devices[1], server).unwrap();
    }

    /// Makes the two of these options, with addresses that the ends choose.
    pub(crate) fn of(server: &[&str], client: &[&str]) -> Self
    where
        P: Args,
    {
        Self::new(&args(server), &args(client), [EntryArgs::default(); 2])
    }

    /// Steps both ends until `is_reached`, or until one fails: returns then which one, and why.
    pub(crate) fn run_until(&mut self, is_reached: impl Fn(&[P::End<Simulated>]) -> bool) -> Option<(Role, String)> {
        for _ in 0..STEPS {
            if is_reached(&self.ends) {
                return None;
            }
            let mut any = false;
            for (end, (device, role)) in self.ends.iter_mut().zip(self.devices.iter_mut().zip([Role::Server, Role::Client])) {
                match end.step(device) {
                    Ok(progressed) => any |= progressed,
                    Err(error) => return Some((role, format!("{error:#}"))),
                }
            }
            if !any {
                self.devices[0].host.relax();
            }
        }
        panic!("they go on");
    }
}

//! Two ends of a program in one process, which a test steps.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bareverbs_sim::DeviceConfig;
use bareverbs_sim::in_process::{World, WorldConfig};
use bareverbs_sim::wire::{Probability, WireFaults};

use super::port::PORT;
use super::program::{End, Program, Report};
use super::run::{run_ends, run_simulated};
use crate::device::ethernet::EntryArgs;
use crate::device::simulated::Simulated;
use crate::device::{Device, Host as _, Role};

/// More steps than any test takes.
const STEPS: usize = 1_000_000;

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
        let (mut devices, mut ends) = (Vec::new(), Vec::new());
        for ((program, role, lid), entry) in [(server, Role::Server, 2), (client, Role::Client, 1)].into_iter().zip(entries) {
            let host = world.add(DeviceConfig::with_lid(lid).with_ethernet()).unwrap();
            let mut device = Device::bring_up(Simulated::new("a", host), &Arc::default()).unwrap();
            device.active_port(PORT, false, &AtomicBool::default()).unwrap();
            ends.push(P::End::new(role, &mut device, program, entry).unwrap());
            devices.push(device);
        }
        let server = ends[0].port().local;
        ends[1].request(&mut devices[1], server).unwrap();
        Self { devices, ends }
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

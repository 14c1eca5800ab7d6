//! Three devices with Ethernet ports at one switch, which are bound to their addresses. The guest of the first does anything with its
//! queues for frames: WQEs, doorbell records, objects, flow tables with rules, registers, memory that is taken away. It must not make the
//! device panic, hang or grow, and each step has a bound.
//!
//! The guests of the other two exchange frames, of which each byte is checked. One of them sends to the attacked port and to all ports too,
//! so that the attacker's rules and receive queues have something to work on.

mod actions;
mod end;
mod station;

#[cfg(test)]
mod tests;

use bareverbs_sim::fabric::{Fabric, Port};
use bareverbs_sim::wire::PerfectWire;
use bareverbs_sim::{DeviceConfig, Profile};

use self::end::FrameEnd;
use self::station::Station;
use crate::step_time::bounded;

pub use self::actions::{Act, Kind, Send};

/// Acts of an input that are played; the rest is ignored.
const MAX_ACTS: usize = 256;
/// Times that frames are carried from device to device after an act.
const ROUNDS: usize = 4;
/// Turns in which a frame of a well-behaved guest arrives, and how often it is sent: one that comes while the queue is full of the
/// attacker's is lost, as on every Ethernet.
const MAX_TURNS: u32 = 64;
const MAX_ATTEMPTS: u32 = 16;
/// Bytes that the attacked device may hold for its guest (`DeviceConfig::memory_limit` and what it always has).
const MAX_MEMORY: u64 = 512 << 20;

struct Lan {
    attacker: FrameEnd,
    stations: [Station; 2],
    fabric: Fabric<PerfectWire>,
    ports: [Port; 3],
    round: u32,
}

impl Lan {
    fn new() -> Self {
        let [attacked, first, second] =
            [1, 2, 3].map(|number| FrameEnd::new(DeviceConfig::profile(Profile::Instant, number).with_ethernet()));
        let mut fabric = Fabric::new(PerfectWire::default(), None);
        let ports = [&attacked, &first, &second].map(|end| {
            fabric.wire_mut().attach(end.guest.device.identity());
            let port = fabric.add_port();
            fabric.bind(port.id(), &[end.mac], &[]).expect("nobody else's");
            port
        });
        let [mut attacker, mut first, mut second] = [attacked, first, second];
        attacker.neighbors = vec![first.mac, second.mac];
        first.neighbors = vec![second.mac];
        second.neighbors = vec![first.mac];
        let mut lan = Self { attacker, stations: [Station::new(first), Station::new(second)], fabric, ports, round: 0 };
        lan.run(1000);
        lan
    }

    /// Lets the devices work and carries what they send.
    fn run(&mut self, nanos: u64) {
        let Self { attacker, stations, fabric, ports: [attacked, first, second], .. } = self;
        for round in 0..ROUNDS {
            let nanos = if round == 0 { nanos } else { 1 };
            let mut worked = bounded("a turn of the attacked device", || {
                let now = attacker.guest.pass(nanos);
                fabric.step(attacked, &mut attacker.guest.device, now) | fabric.deliver(now, |_| {})
            });
            for (station, port) in stations.iter_mut().zip([&mut *first, &mut *second]) {
                worked |= bounded("a turn of a well-behaved guest", || {
                    let now = station.end.guest.pass(nanos);
                    fabric.step(port, &mut station.end.guest.device, now) | fabric.deliver(now, |_| {})
                });
                station.end.guest.device.take_interrupts();
                station.take();
            }
            attacker.guest.device.take_interrupts();
            attacker.guest.device.take_unsupported();
            if !worked {
                break;
            }
        }
    }

    /// Has each well-behaved guest send the other one a frame, and checks that it arrives, with each of its bytes.
    fn check(&mut self) {
        self.round = self.round.wrapping_add(1);
        let [first, second] = self.stations.each_ref().map(|station| station.end.mac);
        for (from, to, address) in [(0, 1, second), (1, 0, first)] {
            let mut attempts = 0;
            while !self.stations[to].has_got(self.round) {
                assert!(attempts < MAX_ATTEMPTS, "the frame of round {} is lost", self.round);
                attempts += 1;
                self.stations[from].send(address, self.round);
                let mut turns = 0;
                while !self.stations[to].has_got(self.round) && turns < MAX_TURNS {
                    turns += 1;
                    self.run(1000 << (turns / 8).min(10));
                }
            }
        }
        // For the attacker's rules.
        let attacked = self.attacker.mac;
        self.stations[0].send(attacked, self.round);
        self.stations[1].send([0xff; 6], self.round);
        self.run(1000);
        self.stations.iter_mut().for_each(Station::check);
        let held = self.attacker.guest.device.memory_used();
        assert!(held < MAX_MEMORY, "{held} bytes are held for the attacker");
    }
}

/// Plays `acts` to a device on such an Ethernet.
pub fn play(acts: impl IntoIterator<Item = Act>) {
    let mut lan = Lan::new();
    lan.check();
    for act in acts.into_iter().take(MAX_ACTS) {
        bounded("an act", || lan.attacker.act(act));
        lan.run(1000);
        lan.check();
    }
    // Whatever is under way ends or waits for the host.
    for _ in 0..64 {
        lan.run(1_000_000);
    }
    lan.check();
    let device = &lan.attacker.guest.device;
    let _ = format!("{:?} {:?}", device.counts(), device.stats());
}

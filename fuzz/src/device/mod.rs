//! Three devices on one wire. The guest of the first, whose port comes first in the order of the wire, does anything. It uses
//! registers, configuration space, commands, requests, frames and resets. It unmaps memory in the middle of an access, and
//! attacks other ports. Its device may refuse whatever it likes; it must not panic, hang or grow, and each step has a bound.
//!
//! The guests of the other two exchange messages over the same wire. After each act their bytes, their completions and the
//! configuration of their ports are checked, and no other device may have reached them.

mod actions;
mod attack;
pub(crate) mod guest;
mod guest_objects;
mod mad;
mod memory;
mod pair;
mod request;
mod setup;
mod subnet_manager;
mod well_behaved_guest;

#[cfg(test)]
mod tests;

use bareverbs_sim::fabric::{Fabric, Port};
use bareverbs_sim::wire::{FaultyWire, PerfectWire, WireFaults};
use bareverbs_sim::{DeviceConfig, Profile};

use self::guest::Guest;
use self::pair::Pair;
use self::subnet_manager::{M_KEY, SubnetManager};
use self::well_behaved_guest::WellBehavedGuest;
use crate::step_time::bounded;

pub use self::actions::Act;
pub use self::attack::{Intrusion, ManagementDatagram, StrangeDatagram, Way};
pub use self::guest_objects::{Change, Key};
pub use self::request::{KeyChange, Request};
pub use self::setup::{Management, Setup};

/// Acts of an input that are played; the rest is ignored.
pub const MAX_ACTS: usize = 256;
/// Times that frames are carried from device to device after an act.
const ROUNDS: usize = 4;
/// Turns in which the messages of the well-behaved guests arrive, on a wire without faults and with them.
const MAX_TURNS: u32 = 64;
const MAX_TURNS_WITH_FAULTS: u32 = 512;
/// LIDs of the attacked port and of the well-behaved guests'.
const LIDS: [u16; 3] = [1, 2, 3];
/// Partitions that a subnet manager gives them.
const PARTITIONS: [u16; 3] = [2, 1, 1];
/// Seed of a wire with faults.
const WIRE_SEED: u64 = 1;

struct Subnet {
    attacker: Guest,
    pair: Pair,
    fabric: Fabric<FaultyWire<PerfectWire>>,
    ports: [Port; 3],
    max_turns: u32,
}

impl Subnet {
    fn new(setup: &Setup) -> Self {
        let managed = setup.management != Management::None;
        let config = |lid| DeviceConfig { managed, ..DeviceConfig::profile(Profile::Instant, lid) };
        let [attacked, first, second] = LIDS.map(config);
        let mut attacker = Guest::new(attacked, setup.pages);
        let mut guests = [WellBehavedGuest::new(first), WellBehavedGuest::new(second)];
        if !setup.pages {
            attacker.more_objects();
        }
        attacker.open_key = setup.management == Management::OpenKey;
        attacker.neighbors = guests.each_ref().map(WellBehavedGuest::as_neighbor).to_vec();
        let mut fabric = Fabric::new(FaultyWire::new(PerfectWire::default(), setup.faults, WIRE_SEED), None);
        let [first, second] = &guests;
        let ports = [&attacker, &first.guest, &second.guest].map(|guest| {
            fabric.wire_mut().inner_mut().attach(guest.device.identity());
            fabric.add_port()
        });
        let manager = SubnetManager { m_key: if setup.management == Management::ProtectedKey { M_KEY } else { 0 } };
        if managed {
            // A port whose driver has not started takes no packets yet.
            let ready = (!setup.pages).then_some(&mut attacker).into_iter();
            let [first, second] = &mut guests;
            let to_configure = ready.map(|guest| (guest, PARTITIONS[0]));
            let honest = [&mut first.guest, &mut second.guest].into_iter().zip(PARTITIONS.into_iter().skip(1));
            to_configure.chain(honest).for_each(|(guest, partition)| manager.configure(guest, partition));
        }
        for guest in &mut guests {
            guest.remember_port(manager.m_key);
            if managed {
                guest.listen();
            }
        }
        let max_turns = if setup.faults == WireFaults::NONE { MAX_TURNS } else { MAX_TURNS_WITH_FAULTS };
        let mut subnet = Self { attacker, pair: Pair::new(guests), fabric, ports, max_turns };
        subnet.run(1000);
        subnet
    }

    /// Lets the devices work and carries what they send.
    fn run(&mut self, nanos: u64) {
        let Self { attacker, pair, fabric, ports: [attacked, first, second], .. } = self;
        for round in 0..ROUNDS {
            let nanos = if round == 0 { nanos } else { 1 };
            let mut worked = bounded("a turn of the attacked device", || {
                let now = attacker.pass(nanos);
                fabric.step(attacked, &mut attacker.device, now) | fabric.deliver(now, |_| {})
            });
            for (guest, port) in pair.guests.iter_mut().zip([&mut *first, &mut *second]) {
                worked |= bounded("a turn of a well-behaved guest", || {
                    let now = guest.guest.pass(nanos);
                    fabric.step(port, &mut guest.guest.device, now) | fabric.deliver(now, |_| {})
                });
                guest.guest.device.take_interrupts();
            }
            attacker.device.take_interrupts();
            attacker.device.take_unsupported();
            if !worked {
                break;
            }
        }
    }

    /// Lets the well-behaved guests do their work, and checks that all of it is done and nothing else.
    fn check(&mut self) {
        self.pair.check();
        self.pair.post();
        let mut turns = 0;
        while !self.pair.poll() && turns < self.max_turns {
            turns += 1;
            // Longer and longer, up to a millisecond: retries have timers.
            self.run(1000 << (turns / 16).min(10));
        }
        self.pair.check_messages();
    }
}

/// Plays `acts` to a device in such a subnet.
pub fn play(setup: &Setup, acts: impl IntoIterator<Item = Act>) {
    let mut subnet = Subnet::new(setup);
    subnet.check();
    for act in acts.into_iter().take(MAX_ACTS) {
        bounded("an act", || subnet.attacker.act(act));
        subnet.run(1000);
        subnet.check();
    }
    // Whatever is under way ends or waits for the host.
    for _ in 0..64 {
        subnet.run(1_000_000);
    }
    subnet.check();
    let device = &subnet.attacker.device;
    let _ = format!("{:?} {:?}", device.counts(), device.stats());
}

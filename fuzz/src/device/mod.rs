//! Two devices on one wire. The guest of one does anything: registers, configuration space, commands, requests, frames,
//! resets, memory that is gone in the middle of an access. Its device may refuse whatever it likes; it must not panic, hang or
//! grow, and each step has a bound. The guest of the other one does honest work, which must go on.

mod actions;
mod guest;
mod guest_objects;
mod memory;
mod request;
mod well_behaved_guest;

use std::time::Duration;

use bareverbs_sim::fabric::{Fabric, Port};
use bareverbs_sim::wire::PerfectWire;
use rustix::time::{ClockId, clock_gettime};

use self::guest::Guest;
use self::well_behaved_guest::WellBehavedGuest;

pub use self::actions::Act;
pub use self::guest_objects::{Change, Key};
pub use self::request::{KeyChange, Request};

/// Processor time of this thread that one step of a device may take: a register access, a turn, a frame. Sanitizers make
/// it several times slower than it is served.
const STEP: Duration = Duration::from_millis(200);
/// Times that frames are carried from device to device after an act.
const ROUNDS: usize = 4;

/// Does `step` and checks how long it took.
fn bounded<R>(what: &str, step: impl FnOnce() -> R) -> R {
    let now = || {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
    };
    let start = now();
    let result = step();
    let took = now().saturating_sub(start);
    assert!(took < STEP, "{what} took {took:?}");
    result
}

struct Subnet {
    attacker: Guest,
    well_behaved: WellBehavedGuest,
    fabric: Fabric<PerfectWire>,
    ports: [Port; 2],
}

impl Subnet {
    fn new(pages: bool) -> Self {
        let (mut attacker, well_behaved) = (Guest::new(1, pages), WellBehavedGuest::new(2));
        if !pages {
            attacker.more_objects();
        }
        let mut fabric = Fabric::new(PerfectWire::default(), None);
        let ports = [&attacker, &well_behaved.guest].map(|guest| {
            fabric.wire_mut().attach(guest.device.identity());
            fabric.add_port()
        });
        Self { attacker, well_behaved, fabric, ports }
    }

    /// Lets both devices work and carries what they send.
    fn run(&mut self, nanos: u64) {
        let Self { attacker, well_behaved, fabric, ports: [first, second] } = self;
        for round in 0..ROUNDS {
            let nanos = if round == 0 { nanos } else { 1 };
            let mut worked = false;
            worked |= bounded("a turn of the attacked device", || {
                let now = attacker.pass(nanos);
                fabric.step(first, &mut attacker.device, now) | fabric.deliver(now, |_| {})
            });
            worked |= bounded("a turn of the well_behaved", || {
                let now = well_behaved.guest.pass(nanos);
                fabric.step(second, &mut well_behaved.guest.device, now) | fabric.deliver(now, |_| {})
            });
            attacker.device.take_interrupts();
            attacker.device.take_unsupported();
            well_behaved.guest.device.take_interrupts();
            if !worked {
                break;
            }
        }
    }
}

/// Plays `acts` to a device, which asks for firmware pages or has queue pairs ready.
pub fn play(pages: bool, acts: Vec<Act>) {
    let mut subnet = Subnet::new(pages);
    subnet.well_behaved.check();
    for act in acts {
        bounded("an act", || subnet.attacker.act(act));
        subnet.run(1000);
        bounded("the work of a well_behaved", || subnet.well_behaved.check());
    }
    // Whatever is under way ends or waits for the host.
    for _ in 0..64 {
        subnet.run(1_000_000);
    }
    bounded("the work of a well_behaved", || subnet.well_behaved.check());
    let device = &subnet.attacker.device;
    let _ = format!("{:?} {:?}", device.counts(), device.stats());
}

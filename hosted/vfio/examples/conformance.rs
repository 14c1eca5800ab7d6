//! Checks what VFIO gives to the driver: `conformance 0000:01:00.0`. Registers, memory, pages and clock before the driver has them, and
//! then all of it with the card, with an interrupt for each request.

use std::time::Duration;

use bareverbs::platform::{Clock, Instant};
use bareverbs::storage::QpRings;
use bareverbs::{LinkLayer, Verbs, storage};
use bareverbs_conformance::{Traffic, check_buffer, check_clock_against, check_machine, check_traffic};
use bareverbs_mlx5::{Config, Mlx5};
use bareverbs_vfio::{Device, VfioPlatform};

type Card = Mlx5<VfioPlatform, 512>;

/// For the training of the link after the card's reset, and the subnet manager.
const PORT_TIMEOUT: Duration = Duration::from_secs(60);
const REQUESTS: u32 = 500;

/// The clock of the standard library.
struct Std(std::time::Instant);

impl Clock for Std {
    fn now(&self) -> Instant {
        Instant::from_nanos(self.0.elapsed().as_nanos() as u64)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).ok_or("conformance ADDRESS")?;
    let device = Device::open(address.parse()?)?;
    let interrupts = device.interrupts(2)?;
    let mut machine = device.machine(Card::ARENA)?;
    check_machine(&mut machine, &mut [0; 300])?;
    let clock = Std(std::time::Instant::now());
    check_clock_against(&machine.clock, &clock, Duration::from_millis(200))?;
    let mut buffer = device.memory(128 << 10)?;
    check_buffer(&mut buffer)?;
    println!("registers, memory, pages and clock are right");

    let config = Config { virtual_function: device.is_virtual_function(), ..Config::DEFAULT };
    let card = Card::bring_up(machine, &config).map_err(|(error, _)| error)?;
    let rings = QpRings::<64, 16>::new();
    let mut storage = <storage![Card; pds: 1, mrs: 1, cqs: 1, qps: 1]>::new([rings.view()]);
    let mut verbs = Verbs::new(card, &mut storage);
    let port = verbs.wait_active(1, PORT_TIMEOUT)?;
    if port.link_layer == LinkLayer::Ethernet {
        verbs.set_gid(1, 0, &bareverbs::GidEntry::link_local(port.mac))?;
    }
    let mut taken = 0;
    let mut count = || {
        taken += interrupts.iter().map(|interrupt| interrupt.take().unwrap_or(0) as u32).sum::<u32>();
        taken
    };
    let traffic = Traffic { port: 1, requests: REQUESTS, timeout: Duration::from_secs(10), interrupts: Some(&mut count) };
    let (_, report) = check_traffic(&mut verbs, &clock, buffer, traffic)?;
    println!("{} requests, {} bytes, each checked; {taken} interrupts", report.requests, report.bytes);
    let card = verbs.into_provider().map_err(|_| "somebody has a queue")?;
    card.teardown().map_err(|(error, _)| error)?;
    Ok(())
}

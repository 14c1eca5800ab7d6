//! A machine's clock and the map of a buffer are anybody's code, and may panic in the middle of a registration.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use bareverbs::DmaBuffer;
use bareverbs::platform::{AddressMap, Clock, Extent, Instant, Machine, OutOfRange, Platform};
use bareverbs_mlx5::Mlx5;
use bareverbs_sim::in_process::{SimBuffer, SimPlatform, World, WorldConfig};
use bareverbs_tests::{ALL_ACCESS, PAGES, driver_config, instant, machine, verbs};

type Sim<T> = <SimPlatform as PlatformPart<T>>::Part;
trait PlatformPart<T> {
    type Part;
}
struct ClockPart;
impl PlatformPart<ClockPart> for SimPlatform {
    type Part = <SimPlatform as Platform>::Clock;
}

/// Panics after so many more looks.
struct Bomb {
    clock: Sim<ClockPart>,
    left: Rc<Cell<Option<u32>>>,
}

fn tick(left: &Cell<Option<u32>>) {
    match left.get() {
        Some(0) => {
            left.set(None);
            panic!("code of the program panics");
        }
        Some(more) => left.set(Some(more - 1)),
        None => {}
    }
}

impl Clock for Bomb {
    fn now(&self) -> Instant {
        tick(&self.left);
        self.clock.now()
    }

    fn relax(&self, deadline: Instant) {
        tick(&self.left);
        self.clock.relax(deadline);
    }
}

struct Board;

// SAFETY: the parts of the simulated host, and a clock, which promises nothing.
#[expect(unsafe_code, reason = "the trait is unsafe to implement")]
unsafe impl Platform for Board {
    type Registers = <SimPlatform as Platform>::Registers;
    type Memory = <SimPlatform as Platform>::Memory;
    type Pages = <SimPlatform as Platform>::Pages;
    type Fence = <SimPlatform as Platform>::Fence;
    type Clock = Bomb;
}

/// Bytes that say when they are freed, and whose map has an extent for each page.
struct Tracked(SimBuffer, Rc<Cell<bool>>, Rc<Cell<Option<u32>>>);

impl Drop for Tracked {
    fn drop(&mut self) {
        self.1.set(true);
    }
}

impl AddressMap for Tracked {
    fn extent(&self, addr: u64) -> Option<Extent> {
        tick(&self.2);
        let Extent { device_addr, len } = self.0.extent(addr)?;
        Some(Extent { device_addr, len: len.min(4096 - addr % 4096) })
    }
}

// SAFETY: as of the buffer inside.
#[expect(unsafe_code, reason = "the trait is unsafe to implement")]
unsafe impl DmaBuffer for Tracked {
    fn addr(&self) -> u64 {
        self.0.addr()
    }

    fn len(&self) -> u64 {
        self.0.len()
    }

    fn read(&self, at: usize, into: &mut [u8]) -> Result<(), OutOfRange> {
        self.0.read(at, into)
    }

    fn write(&mut self, at: usize, from: &[u8]) -> Result<(), OutOfRange> {
        self.0.write(at, from)
    }
}

#[test]
fn a_buffer_that_the_device_has_is_not_freed_when_a_registration_unwinds() {
    for looks in 0..8 {
        let host = World::new(WorldConfig::default()).add(instant(1)).unwrap();
        let left = Rc::new(Cell::new(None));
        let Machine { registers, memory, pages, fence, clock } = machine(&host);
        let machine: Machine<Board> = Machine { registers, memory, pages, fence, clock: Bomb { clock, left: left.clone() } };
        let driver = Mlx5::<Board, PAGES>::bring_up(machine, &driver_config(&host)).map_err(|(error, _)| error).unwrap();
        let mut verbs = verbs(driver);
        let pd = verbs.alloc_pd().unwrap();
        let mkeys = || host.with_device(|device| device.counts().engine.mkeys);
        let (before, freed) = (mkeys(), Rc::new(Cell::new(false)));
        let buffer = Tracked(host.memory(4096).whole(), freed.clone(), Rc::default());
        left.set(Some(looks));
        let unwound = catch_unwind(AssertUnwindSafe(|| drop(verbs.reg_mr(pd, buffer, ALL_ACCESS)))).is_err();
        left.set(None);
        host.clock().relax(Instant::default());
        assert!(!(unwound && freed.get() && mkeys() > before), "freed at look {looks}, and the device has a key for it");
    }
}

/// The device was told nothing of it by then.
#[test]
fn a_map_that_panics_loses_no_device() {
    for looks in 0..8 {
        let host = World::new(WorldConfig::default()).add(instant(1)).unwrap();
        let driver =
            bareverbs_tests::Driver::bring_up(machine(&host), &driver_config(&host)).map_err(|(error, _)| error).unwrap();
        let mut verbs = verbs(driver);
        let pd = verbs.alloc_pd().unwrap();
        let left = Rc::new(Cell::new(Some(looks)));
        let buffer = Tracked(host.memory(3 * 4096).whole(), Rc::default(), left.clone());
        let unwound = catch_unwind(AssertUnwindSafe(|| drop(verbs.reg_mr(pd, buffer, ALL_ACCESS)))).is_err();
        left.set(None);
        let made = verbs.alloc_pd().map(drop).map_err(|error| error.to_string());
        assert_eq!(made, Ok(()), "the device is lost; the map panicked at look {looks}: {unwound}");
    }
}

//! Pages for the firmware: one driver serves a card that wants few and one that wants many, and says it if there are too few.

use core::ops::ControlFlow;

use bareverbs::error::Errno;
use bareverbs::platform::{Instant, Machine, PageSource, Platform, TooFewPages};
use bareverbs_mlx5::{BringUpError, Config, Error, Mlx5, Progress, Step};
use bareverbs_mlx5_spec::{CmdIn, CmdOpcode, View, manage_pages};
use bareverbs_sim::in_process::{Host, SimPlatform, World, WorldConfig};
use bareverbs_sim::trace::{Record, Tracer};
use bareverbs_sim::{DeviceConfig, DeviceCounts, PageDemand};
use std::sync::{Arc, Mutex};

/// An arena for the driver alone.
type Driver = Mlx5<SimPlatform, 64>;

/// Boot and init pages: few, those of a ConnectX-4 Lx, and more.
const DEMANDS: [(u32, u32); 3] = [(17, 41), (6, 12_868), (40, 40_000)];

fn host(boot: u32, init: u32) -> Host {
    let pages = PageDemand { boot, init, ..PageDemand::FEW };
    World::new(WorldConfig::default()).add(DeviceConfig { pages, ..DeviceConfig::with_lid(1) }).unwrap()
}

fn machine(host: &Host, pages: u32) -> Machine<SimPlatform> {
    Machine { pages: host.pages(pages), ..host.machine(Driver::ARENA) }
}

fn held(host: &Host) -> usize {
    host.with_device(|device| device.counts().pages_held)
}

#[test]
fn one_driver_serves_every_demand_and_all_pages_come_back() {
    for (boot, init) in DEMANDS {
        let host = host(boot, init);
        let mut machine = machine(&host, boot + init + 100);
        for _ in 0..2 {
            let mut seen = Vec::new();
            let brought = Driver::bring_up_with(machine, &Config::DEFAULT, |next| {
                if let Progress::Pages { given, wanted } = next {
                    seen.push((given, wanted));
                }
                ControlFlow::Continue(())
            });
            let driver = brought.map_err(|(error, _)| error).unwrap();
            assert!(driver.statistics().pages_held >= boot + init);
            assert_eq!(held(&host), driver.statistics().pages_held as usize);
            // Batch after batch, of both demands.
            let of = |total| seen.iter().filter(move |(_, wanted)| *wanted == total).map(|(given, _)| *given);
            assert!(of(boot).next() == Some(0) && of(init).next() == Some(0), "{seen:?}");
            assert!(of(init).is_sorted() && of(init).count() >= init as usize / 512 && seen.len() < 1000);

            let (back, report) = driver.teardown().map_err(|(error, _)| error).unwrap();
            assert_eq!((report.pages_kept, report.pages_back, report.needs_reset), (0, report.pages_given, false));
            assert_eq!((back.pages.allocated(), held(&host)), (0, 0));
            machine = back;
        }
        host.with_device(|device| assert_eq!(device.counts(), DeviceCounts::default()));
    }
}

/// Pages that begin in the middle of pages.
struct Shifted(<SimPlatform as Platform>::Pages);

const SHIFT: u64 = 0x100;

// SAFETY: the device is not given the pages, which is tested.
#[expect(unsafe_code, reason = "the trait is unsafe to implement")]
unsafe impl PageSource for Shifted {
    fn reserve(&mut self, pages: u32) -> Result<(), TooFewPages> {
        self.0.reserve(pages)
    }

    fn allocate(&mut self) -> Option<u64> {
        self.0.allocate().map(|addr| addr + SHIFT)
    }

    fn free(&mut self, device_addr: u64) -> bool {
        self.0.free(device_addr - SHIFT)
    }

    fn free_all(&mut self) {
        self.0.free_all();
    }
}

/// The simulated platform, but for the pages.
struct ShiftedPages;

// SAFETY: as those of the simulated platform.
#[expect(unsafe_code, reason = "the trait is unsafe to implement")]
unsafe impl Platform for ShiftedPages {
    type Registers = <SimPlatform as Platform>::Registers;
    type Memory = <SimPlatform as Platform>::Memory;
    type Pages = Shifted;
    type Fence = <SimPlatform as Platform>::Fence;
    type Clock = <SimPlatform as Platform>::Clock;
}

#[test]
fn pages_that_are_not_aligned_are_not_given_and_the_error_says_so() {
    let host = host(1, 1);
    let Machine { registers, memory, pages, fence, clock } = machine(&host, 100);
    let machine: Machine<ShiftedPages> = Machine { registers, memory, pages: Shifted(pages), fence, clock };
    let Err((error, machine)) = Mlx5::<ShiftedPages, 64>::bring_up(machine, &Config::DEFAULT) else { panic!("it came up") };
    let cause = Error::UnalignedPage { beyond: 0x100 };
    assert_eq!(error, BringUpError { step: Step::BootPages, cause, pages_kept: 0, needs_reset: false });
    assert!(error.to_string().contains("begins 256 bytes after a multiple of 4096 (`PageSource::allocate`)"), "{error}");
    assert_eq!((held(&host), machine.pages.0.allocated()), (0, 0), "the card has none, and the source has them back");
}

/// The modes of MANAGE_PAGES, in order.
#[derive(Clone, Default)]
struct Modes(Arc<Mutex<Vec<u32>>>);

impl Tracer for Modes {
    fn record(&mut self, _: Instant, record: Record<'_>) {
        let Record::Command { input, .. } = record else { return };
        let head = View::<CmdIn>::new(input).unwrap();
        if head.get(CmdIn::OPCODE) == CmdOpcode::ManagePages.code() {
            self.0.lock().unwrap().push(head.get(CmdIn::OP_MOD));
        }
    }
}

#[test]
fn a_source_with_too_few_pages_is_an_error_with_both_numbers_before_any_is_given() {
    for (boot, init) in DEMANDS {
        for (pages, step, wanted, available, batches) in
            [(boot - 1, Step::BootPages, boot, boot - 1, 0), (boot + 40, Step::InitPages, init, 40, 1)]
        {
            let host = host(boot, init);
            let modes = Modes::default();
            host.with_device(|device| device.set_tracer(Some(Box::new(modes.clone()))));
            let Err((error, back)) = Driver::bring_up(machine(&host, pages), &Config::DEFAULT) else { panic!("it came up") };
            let cause = Error::TooFewPages { wanted, available: available.into() };
            assert_eq!(error, BringUpError { step, cause, pages_kept: 0, needs_reset: false });
            assert_eq!(cause.errno(), Errno::Enomem);
            let text = error.to_string();
            assert!(
                text.contains(&format!("wants {wanted} pages, {available} are left")) && text.contains("MiB more"),
                "{text}"
            );
            let given = modes.0.lock().unwrap().iter().filter(|mode| **mode == manage_pages::GIVE).count();
            assert_eq!(given, batches, "the boot pages at most");
            assert_eq!((back.pages.allocated(), held(&host)), (0, 0));
        }
    }
}

#[test]
fn a_bring_up_stops_between_two_batches_and_every_page_comes_back() {
    let host = host(6, 12_868);
    let mut most = 0;
    let Err((error, back)) = Driver::bring_up_with(machine(&host, u32::MAX), &Config::DEFAULT, |next| match next {
        Progress::Pages { given, wanted: 12_868 } if given > 2000 => {
            most = given;
            ControlFlow::Break(())
        }
        _ => ControlFlow::Continue(()),
    }) else {
        panic!("it came up")
    };
    assert_eq!(error, BringUpError { step: Step::InitPages, cause: Error::Stopped, pages_kept: 0, needs_reset: false });
    assert!((2000..2600).contains(&most));
    assert_eq!((back.pages.allocated(), held(&host)), (0, 0));
}

#[test]
fn pages_of_before_a_reset_are_free_after_it() {
    let host = host(17, 41);
    let driver = Driver::bring_up(machine(&host, 100), &Config::DEFAULT).map_err(|(error, _)| error).unwrap();
    host.with_device(|device| device.set_removed(true));
    let Err((error, back)) = driver.teardown() else { panic!("nothing answers") };
    assert!(error.report.needs_reset && back.pages.allocated() == error.report.pages_kept as usize);
    host.with_device(|device| {
        device.set_removed(false);
        device.reset();
        device.enable_function();
    });
    let driver = Driver::bring_up(back, &Config::DEFAULT).map_err(|(error, _)| error).unwrap();
    let (mut back, _) = driver.teardown().map_err(|(error, _)| error).unwrap();
    assert_eq!(back.pages.reserve(100), Ok(()));
}

//! A driver on a device that lies: an input chooses the calls of a program, the writes of the device that are changed, and the outputs
//! that are wrong. Whatever they are, nothing panics, each call ends in bounded time and work, each request completes at most once and
//! only if it was posted, bytes around and between the regions stay as they are, and an honest device works on the same memory afterwards.

mod frames;
mod input;
mod lab;
mod ledger;
mod lies;
mod memory;
mod mode;
mod objects;
mod outcome;
mod steps;

use core::time::Duration;

use bareverbs::Verbs;
use bareverbs::storage::{QpRings, SrqEntries, Storage};
use bareverbs_mlx5::Config;
#[cfg(feature = "large-completions")]
use bareverbs_mlx5::CqeSize;
use bareverbs_sim::DeviceConfig;
use bareverbs_sim::in_process::{World, WorldConfig};

use input::Input;
use lab::{Commands, Lab, Sent};
use lies::lying;
use memory::Memory;
use objects::{CQS, Driver, MRS, MWS, Objects, PDS, QPS, SRQS};
pub use outcome::{Done, Outcome};

/// Commands end soon here. What a device says of its own times in the bring-up may be longer.
const CONFIG: Config = Config {
    boot_timeout: Duration::from_millis(50),
    init_timeout: Duration::from_millis(50),
    command_timeout: Duration::from_millis(20),
    reclaim_timeout: Duration::from_millis(2),
    async_events: 64,
    page_events: 64,
    completion_events: 64,
    firmware_pages: 1024,
    ..Config::DEFAULT
};
/// Simulated time that one step may take, if the device is right about its times.
const STEP: Duration = Duration::from_secs(1);
/// The same for a device that may have said that its commands take ten minutes: one that does not end is the last one.
const PATIENT_STEP: Duration = Duration::from_secs(45 * 60);

/// Plays an input.
///
/// # Panics
/// One of the promises above is broken.
pub fn play(bytes: &[u8]) -> Outcome {
    let mut input = Input::new(bytes);
    let mode = input.byte();
    let world = World::new(WorldConfig { max_step: Duration::from_millis(10), ..WorldConfig::default() });
    let mut lies = None;
    let device = DeviceConfig { extended_atomics: true, ..crate::instant(1) };
    let device = if mode & mode::ETHERNET == 0 { device } else { device.with_ethernet() };
    let added = world.add_with_memory(device, |map| {
        let (memory, of_memory) = lying(&map);
        lies = Some(of_memory);
        memory
    });
    let host = added.expect("a device");
    let commands = Commands::default();
    host.with_device(|device| device.set_tracer(Some(Box::new(commands.clone()))));
    let from_the_beginning = mode & mode::FROM_THE_BEGINNING != 0;
    let limit = if from_the_beginning { PATIENT_STEP } else { STEP };
    let lab = Lab { host, lies: lies.expect("it has memory"), limit };
    let memory = Memory::new(&lab.host);
    if from_the_beginning {
        steps::lie(&lab, &mut input);
    }
    let mark = lab.mark();
    let brought = Driver::bring_up(lab.host.machine(Driver::ARENA), &config_of(mode));
    lab.check(mark, "the bring-up");
    let (outcome, machine) = match brought {
        Ok(driver) => {
            let (outcome, driver) = program(&lab, driver, memory, mode, &mut input);
            let mark = lab.mark();
            let torn = driver.teardown();
            lab.check(mark, "the teardown");
            let is_down = torn.is_ok();
            (Outcome { is_down, ..outcome }, torn.map_or_else(|(_, machine)| machine, |(machine, _)| machine))
        }
        Err((error, machine)) => {
            assert!(!error.to_string().is_empty());
            (Outcome::default(), machine)
        }
    };
    // A reset lets go of all memory. From here on it is honest.
    lab.lies.lock().unwrap().clear();
    lab.host.with_device(|device| {
        *device.faults_mut() = bareverbs_sim::fault::Faults::default();
        device.reset();
        device.enable_function();
    });
    let again = Driver::bring_up(machine, &CONFIG).map_err(|(error, _)| error).expect("an honest device comes up");
    let (_, report) = again.teardown().map_err(|(error, _)| error).expect("an honest device is torn down");
    assert_eq!((report.pages_kept, report.needs_reset), (0, false));
    let lies = lab.lies.lock().unwrap().changed;
    let Sent { opcodes, large_completions } = commands.0.lock().unwrap().clone();
    let unknown: Vec<_> = opcodes.iter().filter(|opcode| !steps::OPCODES.contains(opcode)).collect();
    assert!(unknown.is_empty(), "no lie can be about commands that the driver sends: {unknown:#x?}");
    Outcome { lies, opcodes, large_completions, ..outcome }
}

#[cfg(feature = "large-completions")]
fn config_of(mode: u8) -> Config {
    Config { cqe_size: if mode & mode::LARGE_COMPLETIONS == 0 { CqeSize::Bytes64 } else { CqeSize::Bytes128 }, ..CONFIG }
}

#[cfg(not(feature = "large-completions"))]
const fn config_of(_: u8) -> Config {
    CONFIG
}

/// Returns the opcodes of the commands that a lie, a refusal or an answer that does not come can be about.
pub const fn opcodes_of_lies() -> &'static [u16] {
    &steps::OPCODES
}

/// Runs the program of an input, and gives the driver back.
fn program(lab: &Lab, driver: Driver, memory: Memory, mode: u8, input: &mut Input<'_>) -> (Outcome, Driver) {
    let rings: [QpRings<64, 16>; QPS] = core::array::from_fn(|_| QpRings::new());
    let shared: [SrqEntries<16>; SRQS] = core::array::from_fn(|_| SrqEntries::new());
    let mut tables = Storage::<'_, Driver, PDS, MRS, MWS, CQS, QPS, SRQS>::with_srqs(
        rings.each_ref().map(QpRings::view),
        shared.each_ref().map(SrqEntries::view),
    );
    let mut objects = Objects::new(Verbs::new(driver, &mut tables), memory);
    steps::prepare(&mut objects, lab, mode);
    while let Some(step) = input.next() {
        let mark = lab.mark();
        steps::step(&mut objects, lab, step, input);
        lab.check(mark, &format!("step {}", step % steps::STEPS));
    }
    let mark = lab.mark();
    steps::end(&mut objects, lab, mode);
    lab.check(mark, "the end");
    objects.memory.check();
    let outcome = Outcome {
        completions: objects.ledger.completions,
        successes: objects.ledger.successes,
        refused: objects.refused,
        done: Done { masked_atomics: objects.ledger.masked, ..objects.done },
        is_up: true,
        ..Outcome::default()
    };
    let Ok(driver) = objects.into_verbs().into_provider() else { panic!("each queue was dropped") };
    (outcome, driver)
}

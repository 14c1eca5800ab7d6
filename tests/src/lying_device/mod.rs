//! A driver on a device that lies: an input chooses the calls of a program, the writes of the device that are changed, and the outputs
//! that are wrong. Whatever they are, nothing panics, each call ends in bounded time and work, each request completes at most once and
//! only if it was posted, bytes around and between the regions stay as they are, and an honest device works on the same memory afterwards.

mod frames;
mod input;
mod lab;
mod ledger;
mod lies;
mod memory;
mod objects;
mod steps;

use core::time::Duration;
use std::collections::BTreeSet;

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

/// Bits of the first byte of an input.
mod mode {
    /// Lies from the beginning; else the device comes up and gets its queues before the first.
    pub(super) const FROM_THE_BEGINNING: u8 = 1;
    /// The third queue pair is one of UC; else of UD.
    pub(super) const UC: u8 = 2;
    /// The driver is torn down with what there is; else each object is destroyed before.
    pub(super) const KEPT: u8 = 4;
    /// The port is an Ethernet port, with queues for frames; else an InfiniBand port.
    pub(super) const ETHERNET: u8 = 8;
    /// Completions have 128 bytes, if the driver has such; else 64.
    #[cfg(feature = "large-completions")]
    pub(super) const LARGE_COMPLETIONS: u8 = 16;
}

/// Calls that have succeeded, of kinds that only some inputs have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Masked atomics that completed with success.
    pub masked_atomics: u64,
    /// Regions that were changed (`rereg_mr`, `rereg_mr_buffer`).
    pub changed_regions: u64,
    /// Completion queues whose moderation was changed.
    pub moderations: u64,
    /// Queue pairs that were put into a multicast group or taken out of one.
    pub groups: u64,
    /// Entries of the GID table that were set or emptied.
    pub gids: u64,
    /// Frames that were sent.
    pub frames_sent: u64,
    /// Frames that were received.
    pub frames_received: u64,
}

/// What came of an input, so that a test of many can see that they did something.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Completions that were polled.
    pub completions: u64,
    /// Those of them with success.
    pub successes: u64,
    /// Writes of the device that were changed.
    pub lies: u64,
    /// Calls that did not succeed.
    pub refused: u64,
    /// What has succeeded.
    pub done: Done,
    /// Opcodes of the commands that the driver has sent.
    pub opcodes: BTreeSet<u16>,
    /// Whether a completion queue had entries of 128 bytes.
    pub large_completions: bool,
    /// Whether the device came up.
    pub is_up: bool,
    /// Whether it was torn down without an error.
    pub is_down: bool,
}

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

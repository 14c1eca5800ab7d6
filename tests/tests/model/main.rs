//! Random programs on two simulated devices that the driver drives, compared with a model of what each request does. The model
//! knows every byte, status, order of completions and key. Queue pairs of RC, UC, UD and XRC in two protection domains share completion
//! queues and shared receive queues. There are windows, regions, fast registrations, resizes, errors, a wire that loses or
//! reaches nobody, commands that fail, threads that post and poll, and devices that are lost, reset and brought up again.
//!
//! `BAREVERBS_MODEL_OPERATIONS` is how many operations are run at least (30,000 if it is not set), `BAREVERBS_MODEL_SEED` the first
//! seed. A failure names its seed, how many operations it took to find it, and the shortest program that was found to fail in
//! `BAREVERBS_MODEL_SHRINK` further runs (20,000 if it is not set).

mod expected;
mod fast;
mod hosts;
mod program;
mod run;
mod xrc;

use std::env;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

/// Operations of a program at most.
const OPS: usize = 400;

/// Programs that are drawn from one seed.
const PROGRAMS: u32 = 8;

fn number(name: &str, default: u64) -> u64 {
    env::var(name).map_or(default, |value| value.parse().unwrap_or_else(|_| panic!("{name}={value}: not a number")))
}

/// Operations of all programs that were run, and of those until the first failed.
static OPERATIONS: AtomicU64 = AtomicU64::new(0);
static UNTIL_FAILURE: OnceLock<u64> = OnceLock::new();

/// Runs a program, and returns how many work requests it had.
fn run_program(program: &program::Program) -> Result<u64, TestCaseError> {
    let operations = OPERATIONS.fetch_add(program.ops.len() as u64, Ordering::Relaxed) + program.ops.len() as u64;
    run::run(program).map_err(|why| {
        UNTIL_FAILURE.get_or_init(|| operations);
        TestCaseError::fail(why)
    })
}

/// Runs the programs of one seed, and returns how many work requests these were.
fn run_seed(seed: u64) -> u64 {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let max_shrink_iters = number("BAREVERBS_MODEL_SHRINK", 20_000) as u32;
    let config = Config { cases: PROGRAMS, failure_persistence: None, max_shrink_iters, ..Config::default() };
    let requests = AtomicU64::new(0);
    let result = TestRunner::new_with_rng(config, rng).run(&program::program(OPS), |program| {
        requests.fetch_add(run_program(&program)?, Ordering::Relaxed);
        Ok(())
    });
    match result {
        Ok(()) => requests.into_inner(),
        Err(TestError::Fail(why, program)) => {
            let operations = UNTIL_FAILURE.get().copied().unwrap_or_default();
            panic!(
                "BAREVERBS_MODEL_SEED={seed}, after {operations} operations: {why}\nthe shortest program that fails: {program}"
            )
        }
        Err(TestError::Abort(why)) => panic!("BAREVERBS_MODEL_SEED={seed}: {why}"),
    }
}

#[test]
fn devices_do_what_the_model_says() {
    let wanted = number("BAREVERBS_MODEL_OPERATIONS", 30_000);
    let first = number("BAREVERBS_MODEL_SEED", 1);
    let (requests, seeds) = (AtomicU64::new(0), AtomicU64::new(first));
    let work = || {
        while OPERATIONS.load(Ordering::Relaxed) < wanted {
            requests.fetch_add(run_seed(seeds.fetch_add(1, Ordering::Relaxed)), Ordering::Relaxed);
        }
    };
    thread::scope(|scope| {
        for _ in 1..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
        work();
    });
    let (requests, seeds) = (requests.into_inner(), seeds.into_inner());
    let operations = OPERATIONS.load(Ordering::Relaxed);
    println!(
        "{requests} work requests, {operations} operations in {} programs, seeds {first} to {}",
        (seeds - first) * u64::from(PROGRAMS),
        seeds - 1
    );
}

//! Runs every operation of the data path a thousand times, each in a function of its own, for a profiler that counts
//! instructions (`tests/scripts/instructions`). With the argument `blue-flame` those that BlueFlame changes run with it; with `roce`
//! they run on an Ethernet port. Prints the name of each function, that of its operation, and how many requests it made.
#![expect(unsafe_code, reason = "the driver's own register file and memory over plain memory are what is measured")]

mod by_hand;
mod fixture;
mod operations;

use fixture::{Fixtures, Path};
use operations::OPERATIONS;

/// Runs of each operation.
const RUNS: u64 = 960;

fn main() {
    let has = |name| std::env::args().skip(1).any(|argument| argument == name);
    let path = Path { blue_flame: has("blue-flame"), roce: has("roce") };
    let mut fixtures = Fixtures::new(path);
    for operation in OPERATIONS.iter().filter(|operation| path.concerns(operation)) {
        fixtures.of(operation).run(operation, RUNS, |fixture, turns| (operation.run)(fixture, turns));
        println!("{}\t{}\t{}", operation.symbol, operation.name, RUNS * u64::from(operation.requests));
    }
}

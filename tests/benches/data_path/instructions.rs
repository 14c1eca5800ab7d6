//! Runs every operation of the data path a thousand times, each in a function of its own, for a profiler that counts
//! instructions: see `tests/scripts/instructions`. An argument names the only function to run. Prints, for each, the function's name and the requests that it did.
#![expect(unsafe_code, reason = "the driver's own register file and memory over plain memory are what is measured")]

mod fixture;
mod operations;

use bareverbs_mmio::CpuFence;

use fixture::Fixture;
use operations::OPERATIONS;

/// Runs of each operation.
const RUNS: u64 = 960;

fn main() {
    let mut fixture = Fixture::new(CpuFence::WRITE_COMBINING);
    let only = std::env::args().nth(1);
    for operation in OPERATIONS.iter().filter(|operation| only.as_deref().is_none_or(|only| only == operation.symbol)) {
        fixture.run(operation, RUNS, |fixture, turns| (operation.run)(fixture, turns));
        println!("{}\t{}\t{}", operation.symbol, operation.name, RUNS * u64::from(operation.requests));
    }
}

//! What posted requests and polled completions cost, with every check on: checks, WQE, fences, doorbell record, doorbell; and
//! for completions: owner, copy, checks, consumer index. In nanoseconds; `instructions` counts instructions of the same
//! operations.
#![expect(unsafe_code, reason = "the driver's own register file and memory over plain memory are what is measured")]

mod by_hand;
mod fixture;
#[expect(dead_code, reason = "the names of functions are for the program that counts instructions")]
mod operations;

use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};

use fixture::{Fixtures, Path};
use operations::OPERATIONS;

/// Measures every operation with doorbells, and those that BlueFlame changes with BlueFlame.
fn data_path(criterion: &mut Criterion) {
    for (name, blue_flame) in [("doorbell", false), ("BlueFlame", true)] {
        let path = Path { blue_flame, roce: false };
        let mut group = criterion.benchmark_group(name);
        let mut fixtures = Fixtures::new(path);
        for operation in OPERATIONS.iter().filter(|operation| path.concerns(operation)) {
            group.throughput(Throughput::Elements(u64::from(operation.requests)));
            group.bench_function(operation.name, |bencher| {
                bencher.iter_custom(|iterations| {
                    let mut total = Duration::ZERO;
                    fixtures.of(operation).run(operation, iterations, |fixture, turns| {
                        let start = Instant::now();
                        (operation.run)(fixture, turns);
                        total += start.elapsed();
                    });
                    total
                });
            });
        }
        group.finish();
    }
}

criterion_group!(benches, data_path);
criterion_main!(benches);

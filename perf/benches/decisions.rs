//! Times the steps of a request's way one by one:
//! `cargo bench --bench decisions [NAME]`.

use criterion::{Criterion, criterion_group, criterion_main};
use std::time::Instant;
use symphony_perf::operations;

fn decisions(criterion: &mut Criterion) {
    for operation in operations::all() {
        let mut repeat = operation.ready();
        criterion.bench_function(&operation.name, |bencher| {
            bencher.iter_custom(|times| {
                let before = Instant::now();
                repeat(times);
                before.elapsed()
            });
        });
    }
}

criterion_group!(benches, decisions);
criterion_main!(benches);

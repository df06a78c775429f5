//! The steps of a request's way, one by one. The criterion benchmarks time them and `instructions`
//! counts their instructions, so that a name means the same in both. Each is made with warm state
//! and is repeated any number of times.

use std::time::{Duration, Instant};

mod both_threads;
mod model_queue;
mod orloj;
mod rank_state;
mod rings_and_timers;

/// A step that can be repeated.
pub struct Operation {
    /// The name, as in the baseline and on the command line.
    pub name: String,
    /// A description of one repetition.
    pub about: &'static str,
    make: Box<dyn Fn() -> Repeat>,
}

/// A closure that repeats an operation the given number of times.
pub type Repeat = Box<dyn FnMut(u64)>;

impl Operation {
    fn new(name: impl Into<String>, about: &'static str, make: impl Fn() -> Repeat + 'static) -> Operation {
        Operation { name: name.into(), about, make: Box::new(make) }
    }

    /// Returns the operation with its state made and warm, after a thousand repetitions.
    pub fn ready(&self) -> Repeat {
        let mut repeat = (self.make)();
        repeat(1_000);
        repeat
    }
}

/// The length of a timed stretch of repetitions: shorter than a time slice of another program.
const STRETCH: Duration = Duration::from_micros(50);

/// The number of rounds in which each operation is timed, and of stretches in each.
const ROUNDS: usize = 30;
const STRETCHES: usize = 30;

/// Returns the time of a repetition of each operation in ns: the 10th percentile over many short
/// stretches. Operations are timed in rounds, and most stretches that another program disturbs are
/// left out, so that two operations can be compared on a machine that is not idle.
pub fn times(operations: &[Operation]) -> Vec<f64> {
    let mut ready: Vec<(Repeat, u64, Vec<f64>)> = operations.iter().map(timed).collect();
    for _ in 0..ROUNDS {
        for (repeat, times, stretches) in &mut ready {
            for _ in 0..STRETCHES {
                let before = Instant::now();
                repeat(*times);
                stretches.push(before.elapsed().as_nanos() as f64 / *times as f64);
            }
        }
    }
    let tenth = |(_, _, mut stretches): (Repeat, u64, Vec<f64>)| {
        stretches.sort_by(f64::total_cmp);
        stretches[stretches.len() / 10]
    };
    ready.into_iter().map(tenth).collect()
}

/// Prepares an operation and computes the number of its repetitions in a stretch.
fn timed(operation: &Operation) -> (Repeat, u64, Vec<f64>) {
    const FIRST: u32 = 1_000;
    let mut repeat = operation.ready();
    let before = Instant::now();
    repeat(u64::from(FIRST));
    let each = (before.elapsed() / FIRST).max(Duration::from_nanos(1));
    let times = (STRETCH.as_nanos() / each.as_nanos()).max(1) as u64;
    (repeat, times, Vec::with_capacity(ROUNDS * STRETCHES))
}

/// Returns every operation, in the order of a request's way.
pub fn all() -> Vec<Operation> {
    let mut operations = rings_and_timers::operations();
    operations.extend(model_queue::operations());
    operations.extend(rank_state::operations());
    operations.extend(both_threads::operations());
    operations.extend(orloj::operations());
    operations
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_operation_has_a_name_of_its_own_and_runs() {
        let mut names = HashSet::new();
        for operation in all() {
            operation.ready()(2_000);
            assert!(names.insert(operation.name.clone()), "{} twice", operation.name);
        }
    }
}

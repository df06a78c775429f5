//! The steps of a request's way, one by one: what the criterion benchmarks time and what the
//! instruction counts count, so that both mean the same by a name. Each is made with its state warm
//! and is run any number of times.

use std::time::{Duration, Instant};

mod queues;
mod ranks;
mod threads;
mod transport;

/// A step that can be repeated.
pub struct Operation {
    /// Its name, as in the baseline and on the command line.
    pub name: String,
    /// What one repetition does.
    pub about: &'static str,
    make: Box<dyn Fn() -> Repeat>,
}

/// Repeats an operation so many times.
pub type Repeat = Box<dyn FnMut(u64)>;

impl Operation {
    fn new(name: impl Into<String>, about: &'static str, make: impl Fn() -> Repeat + 'static) -> Operation {
        Operation { name: name.into(), about, make: Box::new(make) }
    }

    /// The operation with its state made and warm: a thousand repetitions have been done.
    pub fn ready(&self) -> Repeat {
        let mut repeat = (self.make)();
        repeat(1_000);
        repeat
    }
}

/// How long a stretch of repetitions is whose time is taken: shorter than what another program gets
/// of a core.
const STRETCH: Duration = Duration::from_micros(50);

/// Each operation is timed so many rounds, so many stretches in each.
const ROUNDS: usize = 30;
const STRETCHES: usize = 30;

/// What a repetition of each operation takes, in ns: the fastest tenth of many short stretches is
/// as slow. Operations take turns, and most of what another program on the core costs a stretch is
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

/// An operation, and how often it is repeated in a stretch.
fn timed(operation: &Operation) -> (Repeat, u64, Vec<f64>) {
    const FIRST: u32 = 1_000;
    let mut repeat = operation.ready();
    let before = Instant::now();
    repeat(u64::from(FIRST));
    let each = (before.elapsed() / FIRST).max(Duration::from_nanos(1));
    let times = (STRETCH.as_nanos() / each.as_nanos()).max(1) as u64;
    (repeat, times, Vec::with_capacity(ROUNDS * STRETCHES))
}

/// Every operation, in the order of a request's way.
pub fn all() -> Vec<Operation> {
    let mut operations = transport::operations();
    operations.extend(queues::operations());
    operations.extend(ranks::operations());
    operations.extend(threads::operations());
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

//! The steps of a request's way, one by one: what the criterion benchmarks time and what the instruction counts
//! count, so that both mean the same by a name. Each is made with its state warm and is run any number of times.

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

//! The progress of the engine's threads. A pinned thread makes millions of duty cycles a second, a
//! napping one thousands; one that makes none for ten seconds hangs, or its core was taken from it.

use crate::runtime::counters::{Counters, CountersSnapshot};
use crate::runtime::rank_role;
use std::fmt;
use symphony_scheduler::profile::Profile;
use symphony_transport::Nanos;

/// The interval between two observations of the threads.
const OBSERVE_EVERY: Nanos = Nanos::from_millis(250);

/// The time without a duty cycle after which a thread counts as stuck. An executor runs its batches
/// within its duty cycles: it gets ten times the longest batch on top.
pub(super) const STUCK_AFTER: Nanos = Nanos::from_secs(10);

/// The multiple of its profile that a batch may take before its executor counts as stuck.
pub(super) const SLOWER_THAN_PROFILED: u64 = 10;

/// The most time that is counted between two observations: if the whole process was stopped, no
/// thread is at fault.
const LONGEST_GAP: Nanos = Nanos::from_secs(1);

/// The reason why requests can't be served.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NotReady {
    /// The engine is shutting down.
    Draining,
    /// The engine has no model.
    NoModel,
    /// A thread of this name has died.
    Dead(String),
    /// A scheduler thread of this name has made no duty cycle for this number of seconds.
    Stuck(String, u64),
    /// None of this number of executors has made a duty cycle for this number of seconds.
    ExecutorsStuck(usize, u64),
}

impl fmt::Display for NotReady {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotReady::Draining => f.write_str("the server is shutting down"),
            NotReady::NoModel => f.write_str("no model is loaded"),
            NotReady::Dead(thread) => write!(f, "the engine's thread {thread} has died"),
            NotReady::Stuck(thread, seconds) => {
                write!(f, "the engine's thread {thread} has not moved for {seconds} s")
            }
            NotReady::ExecutorsStuck(1, seconds) => write!(f, "the executor has not moved for {seconds} s"),
            NotReady::ExecutorsStuck(many, seconds) => {
                write!(f, "none of the {many} executor threads has moved for {seconds} s")
            }
        }
    }
}

/// The observed progress of one thread.
#[derive(Debug)]
struct ThreadProgress {
    role: String,
    is_executor: bool,
    cycles: u64,
    /// The time for which it has made no duty cycle, as far as was observed.
    still: Nanos,
}

/// The observed progress of all threads.
#[derive(Debug)]
pub(super) struct ThreadHealth {
    threads: Vec<ThreadProgress>,
    executor_stuck_after: Nanos,
    observed: Nanos,
    dead: Option<String>,
}

impl ThreadHealth {
    /// Makes the state before the first observation. Executors run batches of these profiles.
    pub(super) fn new(profiles: &[Profile]) -> ThreadHealth {
        let longest = profiles.iter().map(|profile| profile.latency(profile.max_batch())).max();
        let longest = longest.unwrap_or_default().0.saturating_mul(SLOWER_THAN_PROFILED);
        ThreadHealth {
            threads: Vec::new(),
            executor_stuck_after: STUCK_AFTER + Nanos(longest),
            observed: Nanos::ZERO,
            dead: None,
        }
    }

    /// Observes the threads, unless that was just done.
    pub(super) fn observe(&mut self, now: Nanos, counters: &Counters, dead: Option<&str>) {
        self.dead = dead.map(str::to_owned).or(self.dead.take());
        if now >= self.observed + OBSERVE_EVERY {
            self.observe_now(now, &counters.snapshot());
        }
    }

    fn observe_now(&mut self, now: Nanos, counters: &CountersSnapshot) {
        let gap = (now - self.observed).min(LONGEST_GAP);
        self.observed = now;
        let models = counters.models.iter().enumerate();
        let models = models.map(|(at, tally)| (format!("model-{at}"), false, tally.cycles.all));
        let ranks = counters.ranks.iter().enumerate();
        let ranks = ranks.map(|(at, tally)| (rank_role(at), false, tally.cycles.all));
        let backends = counters.backends.iter();
        let backends = backends.map(|(role, tally)| (role.clone(), true, tally.cycles.all));
        for (at, (role, is_executor, cycles)) in models.chain(ranks).chain(backends).enumerate() {
            match self.threads.get_mut(at) {
                Some(thread) if thread.cycles == cycles => thread.still += gap,
                Some(thread) => (thread.cycles, thread.still) = (cycles, Nanos::ZERO),
                None => self.threads.push(ThreadProgress { role, is_executor, cycles, still: Nanos::ZERO }),
            }
        }
    }

    /// Returns every reason why the engine can't be trusted with requests.
    pub(super) fn trouble(&self) -> Vec<NotReady> {
        let dead = self.dead.iter().map(|thread| NotReady::Dead(thread.clone()));
        let stuck = self.threads.iter().filter(|thread| !thread.is_executor && thread.still >= STUCK_AFTER);
        let stuck = stuck.map(|thread| NotReady::Stuck(thread.role.clone(), seconds(thread.still)));
        let executors = || self.threads.iter().filter(|thread| thread.is_executor);
        let least =
            executors().map(|thread| thread.still).min().filter(|&still| still >= self.executor_stuck_after);
        let executors = least.map(|still| NotReady::ExecutorsStuck(executors().count(), seconds(still)));
        dead.chain(stuck).chain(executors).collect()
    }
}

fn seconds(time: Nanos) -> u64 {
    time.0 / 1_000_000_000
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::counters::{BackendTally, DutyCycles, ModelTally, RankTally};

    fn counters(model: u64, rank: u64, executors: [u64; 2]) -> CountersSnapshot {
        let cycles = |all| DutyCycles { all, ..DutyCycles::default() };
        let backend = |(at, all)| {
            (format!("cpu-{at}"), BackendTally { cycles: cycles(all), ..BackendTally::default() })
        };
        CountersSnapshot {
            models: vec![ModelTally { cycles: cycles(model), ..ModelTally::default() }],
            ranks: vec![RankTally { cycles: cycles(rank), ..RankTally::default() }],
            backends: executors.into_iter().enumerate().map(backend).collect(),
        }
    }

    /// Observes the counters `of` each second from 1 to `seconds`.
    fn after(seconds: u64, of: impl Fn(u64) -> CountersSnapshot) -> Vec<NotReady> {
        let profile = Profile::linear(Nanos::from_millis(10), Nanos::ZERO, 10).unwrap();
        let mut health = ThreadHealth::new(&[profile]);
        (1..=seconds).for_each(|second| health.observe_now(Nanos::from_secs(second), &of(second)));
        health.trouble()
    }

    #[test]
    fn threads_that_make_progress_are_no_trouble() {
        assert_eq!(after(100, |n| counters(n, n, [n, n])), []);
    }

    #[test]
    fn a_scheduler_thread_that_hangs_is_named() {
        assert_eq!(after(10, |n| counters(n, 7, [n, n])), []);
        assert_eq!(after(11, |n| counters(n, 7, [n, n])), [NotReady::Stuck("rank".into(), 10)]);
        assert_eq!(after(40, |n| counters(1, n, [n, n])), [NotReady::Stuck("model-0".into(), 39)]);
    }

    #[test]
    fn executors_are_trouble_once_none_moves_for_ten_of_their_longest_batches() {
        assert_eq!(after(40, |n| counters(n, n, [n, 7])), []);
        assert_eq!(after(11, |n| counters(n, n, [7, 7])), []);
        assert_eq!(after(12, |n| counters(n, n, [7, 7])), [NotReady::ExecutorsStuck(2, 11)]);
    }

    #[test]
    fn a_process_that_was_stopped_blames_nobody() {
        let mut health = ThreadHealth::new(&[]);
        health.observe_now(Nanos::from_secs(1), &counters(1, 1, [1, 1]));
        health.observe_now(Nanos::from_secs(1_000), &counters(1, 1, [1, 1]));
        assert_eq!(health.trouble(), []);
    }
}

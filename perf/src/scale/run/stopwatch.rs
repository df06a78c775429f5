//! A stopwatch around an agent: the number of duty cycles that found work, their duration, and the
//! times at which the machine took the core. A cycle's length is the difference of the `now` of two
//! cycles, so no clock is read for it.
//!
//! **Disturbances.** A cycle of more than 3 us without work was interrupted by the machine. A long
//! cycle with work was interrupted if the thread's CPU time fell behind the clock by more than a
//! microsecond. Such a thread is *disturbed* from the beginning of that cycle until it has caught
//! up, at the end of its next cycle without work.

use crate::scale::machine::{CpuTime, ThreadDelay};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use symphony::runtime::threads::Agent;
use symphony_transport::Nanos;

/// The length above which a cycle may have been interrupted by the machine.
const GAP: Nanos = Nanos::from_micros(3);

/// The part of a run that is measured, `from <= now < until`.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// The first instant.
    pub from: Nanos,
    /// The end, which is not part of it.
    pub until: Nanos,
}

impl Window {
    /// The whole run.
    pub const ALL: Window = Window { from: Nanos::ZERO, until: Nanos::MAX };

    /// Returns true if `now` is in the window.
    #[inline]
    pub fn holds(&self, now: Nanos) -> bool {
        self.from <= now && now < self.until
    }
}

/// The duty cycles of a thread within the window.
#[derive(Clone, Copy, Debug, Default)]
pub struct DutyCycles {
    /// The number of all cycles.
    pub all: u64,
    /// The number of cycles that found work.
    pub working: u64,
    /// The total duration of cycles that found work.
    pub busy: Nanos,
    /// The total duration of all cycles.
    pub total: Nanos,
    /// The longest cycle.
    pub longest: Nanos,
    /// The time that the thread was ready to run while other threads had its core, from the first
    /// cycle of the run on, the warm-up included. `None` where the system does not count it.
    pub delayed: Option<Nanos>,
}

/// The end of a thread's last disturbance, written by its stopwatch and read by other threads.
#[derive(Clone, Debug, Default)]
pub struct Disturbance(Arc<AtomicU64>);

impl Disturbance {
    /// Returns the end of the last disturbance; [`Nanos::MAX`] while one lasts.
    #[inline]
    pub fn until(&self) -> Nanos {
        // Acquire: a thread that received a message of a disturbed thread sees the disturbance.
        Nanos(self.0.load(Ordering::Acquire))
    }

    fn set(&self, until: Nanos) {
        self.0.store(until.0, Ordering::Release);
    }
}

/// An agent whose duty cycles can be measured.
pub trait Measurable: Agent {
    /// The agent's own results of a run.
    type Tally;

    /// Records the results of the previous duty cycle. `disturbed_until` is this thread's
    /// [`Disturbance::until`].
    fn book(&mut self, disturbed_until: Nanos);

    /// Returns the agent's own results.
    fn tally(&self) -> Self::Tally;
}

/// An agent with a stopwatch, which is an agent too.
pub struct Stopwatch<A: Measurable> {
    agent: A,
    window: Window,
    last: Nanos,
    found_work: bool,
    cycles: DutyCycles,
    disturbance: Disturbance,
    is_disturbed: bool,
    cpu: CpuTime,
    at_start: Option<ThreadDelay>,
    results: Sender<(DutyCycles, A::Tally)>,
}

impl<A: Measurable> Stopwatch<A> {
    /// Measures `agent` within `window`. When it is stopped, its duty cycles and its tally are sent
    /// to `results`.
    pub fn new(
        agent: A,
        window: Window,
        disturbance: Disturbance,
        results: Sender<(DutyCycles, A::Tally)>,
    ) -> Stopwatch<A> {
        Stopwatch {
            agent,
            window,
            last: Nanos::MAX,
            found_work: false,
            cycles: DutyCycles::default(),
            disturbance,
            is_disturbed: false,
            cpu: CpuTime::default(),
            at_start: None,
            results,
        }
    }

    #[inline]
    fn cycle_over(&mut self, now: Nanos) {
        let length = now - self.last;
        self.cycles.all += 1;
        self.cycles.total += length;
        self.cycles.longest = self.cycles.longest.max(length);
        if self.found_work {
            self.cycles.working += 1;
            self.cycles.busy += length;
        }
    }

    #[inline]
    fn look_for_gap(&mut self, now: Nanos) {
        let is_long = now - self.last > GAP;
        // Read regularly between gaps too, so that the two clocks have no time to drift apart.
        let taken = (is_long || self.cpu.is_stale(now)) && self.cpu.fell_behind(now);
        if is_long && (taken || !self.found_work) {
            self.is_disturbed = true;
            self.disturbance.set(Nanos::MAX);
        } else if self.is_disturbed && !self.found_work {
            self.is_disturbed = false;
            self.disturbance.set(now);
        }
    }
}

impl<A: Measurable> Agent for Stopwatch<A> {
    #[inline]
    fn poll(&mut self, now: Nanos) -> usize {
        if self.last == Nanos::MAX {
            self.at_start = ThreadDelay::of_this_thread();
        } else {
            self.look_for_gap(now);
            self.agent.book(self.disturbance.until());
            if self.window.holds(self.last) {
                self.cycle_over(now);
            }
        }
        let work = self.agent.poll(now);
        (self.last, self.found_work) = (now, work > 0);
        work
    }

    fn stop(&mut self, now: Nanos) {
        let at_end = ThreadDelay::of_this_thread();
        self.cycles.delayed = self.at_start.zip(at_end).map(|(start, end)| end.since(start));
        self.agent.stop(now);
        // The receiver is gone only if the run was given up.
        let _ = self.results.send((self.cycles, self.agent.tally()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[derive(Default)]
    struct EveryOther {
        polls: usize,
        disturbed_until: Vec<Nanos>,
    }

    impl Agent for EveryOther {
        fn poll(&mut self, _now: Nanos) -> usize {
            self.polls += 1;
            self.polls % 2
        }

        fn stop(&mut self, _now: Nanos) {}
    }

    impl Measurable for EveryOther {
        type Tally = (usize, Vec<Nanos>);

        fn book(&mut self, disturbed_until: Nanos) {
            self.disturbed_until.push(disturbed_until);
        }

        fn tally(&self) -> (usize, Vec<Nanos>) {
            (self.polls, self.disturbed_until.clone())
        }
    }

    fn measure(window: Window, cycles: &[u64]) -> (DutyCycles, (usize, Vec<Nanos>)) {
        let (results, received) = channel();
        let mut agent = Stopwatch::new(EveryOther::default(), window, Disturbance::default(), results);
        for &now in cycles {
            agent.poll(Nanos(now));
        }
        agent.stop(Nanos(99));
        received.recv().unwrap()
    }

    #[test]
    fn turns_within_the_window_are_measured_by_the_next_ones_start() {
        let window = Window { from: Nanos(10), until: Nanos(50) };
        let (cycles, (polls, _)) = measure(window, &[0, 10, 20, 35, 50, 90]);
        assert_eq!(polls, 6);
        // The cycles of 10, 20 and 35 count; that of 20 found work.
        assert_eq!((cycles.all, cycles.working, cycles.busy), (3, 1, Nanos(15)));
        assert_eq!((cycles.total, cycles.longest), (Nanos(40), Nanos(15)));
    }

    #[test]
    fn a_long_turn_without_work_disturbs_until_the_next_without_work() {
        // The second cycle, from 10 on, finds nothing and is long; so is the fourth, and then it is
        // short.
        let (_, (_, until)) = measure(Window::ALL, &[0, 10, 9_000, 9_010, 9_020, 9_030]);
        let lasts = Nanos::MAX;
        assert_eq!(until, [Nanos(0), lasts, lasts, Nanos(9_020), Nanos(9_020)]);
    }
}

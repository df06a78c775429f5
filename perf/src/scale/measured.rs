//! An agent with a stopwatch: how many turns found work, how long those took, and when the machine
//! took the core away meanwhile. A turn's length is the distance between the `now` of two turns, so
//! no clock is read for it.
//!
//! **When the machine took the core.** A turn of more than 3 us that found nothing to do did not
//! take that long by itself. Of one that found work only the system can tell: it counts as taken if
//! the thread's CPU time fell behind the clock by more than a microsecond. Such a thread is
//! *disturbed* from the beginning of that turn until it has caught up, which is the end of its next
//! turn without work.

use super::machine::{CpuTime, ThreadDelay};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use symphony::runtime::threads::Agent;
use symphony_transport::Nanos;

/// A turn that is longer than this may have been held up by the machine.
const GAP: Nanos = Nanos::from_micros(3);

/// The part of a run that counts.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// From here on …
    pub from: Nanos,
    /// … and before this.
    pub until: Nanos,
}

impl Window {
    /// All of a run.
    pub const ALL: Window = Window { from: Nanos::ZERO, until: Nanos::MAX };

    /// Whether `now` counts.
    #[inline]
    pub fn holds(&self, now: Nanos) -> bool {
        self.from <= now && now < self.until
    }
}

/// A thread's turns within the window.
#[derive(Clone, Copy, Debug, Default)]
pub struct DutyCycles {
    /// All of them.
    pub all: u64,
    /// Those that found work.
    pub working: u64,
    /// How long the latter took together.
    pub busy: Nanos,
    /// How long all took together.
    pub total: Nanos,
    /// The longest of all.
    pub longest: Nanos,
    /// How long the thread was ready to run and did not: other threads had its core. Not in a
    /// turn's length alone: it covers the run from the first turn on. `None` where the system does
    /// not tell.
    pub delayed: Option<Nanos>,
}

/// Until when a thread was disturbed: kept by its stopwatch, read by other threads.
#[derive(Clone, Debug, Default)]
pub struct Disturbance(Arc<AtomicU64>);

impl Disturbance {
    /// When the last disturbance ended; [`Nanos::MAX`] while one lasts.
    #[inline]
    pub fn until(&self) -> Nanos {
        // Acquire: who acts on what a disturbed thread sent sees that it was disturbed.
        Nanos(self.0.load(Ordering::Acquire))
    }

    fn set(&self, until: Nanos) {
        self.0.store(until.0, Ordering::Release);
    }
}

/// An agent whose turns can be measured.
pub trait Measurable: Agent {
    /// What it has to tell when the run is over.
    type Tally;

    /// A turn is over: what was done in it can be booked. `disturbed_until`: as
    /// [`Disturbance::until`], of this thread.
    fn book(&mut self, disturbed_until: Nanos);

    /// What it has to tell.
    fn tally(&self) -> Self::Tally;
}

/// See the module's description.
pub struct Measured<A: Measurable> {
    agent: A,
    window: Window,
    last: Nanos,
    found_work: bool,
    turns: DutyCycles,
    disturbance: Disturbance,
    is_disturbed: bool,
    cpu: CpuTime,
    at_start: Option<ThreadDelay>,
    results: Sender<(DutyCycles, A::Tally)>,
}

impl<A: Measurable> Measured<A> {
    /// Measures `agent` within `window`. When it is stopped, its turns and its tally go to
    /// `results`.
    pub fn new(
        agent: A,
        window: Window,
        disturbance: Disturbance,
        results: Sender<(DutyCycles, A::Tally)>,
    ) -> Measured<A> {
        Measured {
            agent,
            window,
            last: Nanos::MAX,
            found_work: false,
            turns: DutyCycles::default(),
            disturbance,
            is_disturbed: false,
            cpu: CpuTime::default(),
            at_start: None,
            results,
        }
    }

    #[inline]
    fn turn_over(&mut self, now: Nanos) {
        let length = now - self.last;
        self.turns.all += 1;
        self.turns.total += length;
        self.turns.longest = self.turns.longest.max(length);
        if self.found_work {
            self.turns.working += 1;
            self.turns.busy += length;
        }
    }

    #[inline]
    fn look_for_gap(&mut self, now: Nanos) {
        let is_long = now - self.last > GAP;
        // Also looked at now and then between gaps, so that the two clocks have no time to drift
        // apart.
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

impl<A: Measurable> Agent for Measured<A> {
    #[inline]
    fn poll(&mut self, now: Nanos) -> usize {
        if self.last == Nanos::MAX {
            self.at_start = ThreadDelay::of_this_thread();
        } else {
            self.look_for_gap(now);
            self.agent.book(self.disturbance.until());
            if self.window.holds(self.last) {
                self.turn_over(now);
            }
        }
        let work = self.agent.poll(now);
        (self.last, self.found_work) = (now, work > 0);
        work
    }

    fn stop(&mut self, now: Nanos) {
        let at_end = ThreadDelay::of_this_thread();
        self.turns.delayed = self.at_start.zip(at_end).map(|(start, end)| end.since(start));
        self.agent.stop(now);
        // Nobody listens only if the run was given up.
        let _ = self.results.send((self.turns, self.agent.tally()));
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

    fn measure(window: Window, turns: &[u64]) -> (DutyCycles, (usize, Vec<Nanos>)) {
        let (results, received) = channel();
        let mut agent = Measured::new(EveryOther::default(), window, Disturbance::default(), results);
        for &now in turns {
            agent.poll(Nanos(now));
        }
        agent.stop(Nanos(99));
        received.recv().unwrap()
    }

    #[test]
    fn turns_within_the_window_are_measured_by_the_next_ones_start() {
        let window = Window { from: Nanos(10), until: Nanos(50) };
        let (turns, (polls, _)) = measure(window, &[0, 10, 20, 35, 50, 90]);
        assert_eq!(polls, 6);
        // The turns of 10, 20 and 35 count; that of 20 found work.
        assert_eq!((turns.all, turns.working, turns.busy), (3, 1, Nanos(15)));
        assert_eq!((turns.total, turns.longest), (Nanos(40), Nanos(15)));
    }

    #[test]
    fn a_long_turn_without_work_disturbs_until_the_next_without_work() {
        // The second turn, from 10 on, finds nothing and is long; so is the fourth, and then it is
        // short.
        let (_, (_, until)) = measure(Window::ALL, &[0, 10, 9_000, 9_010, 9_020, 9_030]);
        let lasts = Nanos::MAX;
        assert_eq!(until, [Nanos(0), lasts, lasts, Nanos(9_020), Nanos(9_020)]);
    }
}

//! A stopwatch around an agent: the number of duty cycles that found work, their duration, and the
//! times at which the machine took the core. A cycle's length is the difference of the `now` of two
//! cycles, so no clock is read for it.
//!
//! **Disturbances.** A cycle of more than 3 us without work was interrupted by the machine. A long
//! cycle with work was interrupted if the thread's CPU time fell behind the clock by more than a
//! microsecond. Such a thread is *disturbed* from the beginning of that cycle until it has caught
//! up, at the end of its next cycle without work.
//!
//! **What a disturbance explains.** While a thread has not caught up, the time that the machine
//! took from it explains as much delay of arrivals and no more: a thread that is too slow by itself
//! falls further behind than that. Batches are late in a gap and shortly after it, in its
//! *recovery*, which is bounded by a multiple of the gap, so that a thread that never catches up is
//! not excused for ever ([`RecoveryTimes`]).

use super::recovery::RecoveryTimes;
use crate::scale::machine::{CpuTime, ThreadDelay};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use symphony::runtime::threads::Agent;
use symphony_transport::Nanos;

/// The length above which a cycle may have been interrupted by the machine.
const GAP: Nanos = Nanos::from_micros(3);

/// The recovery from a gap, as a multiple of its length: enough for threads that are busy for two
/// thirds of their time; batches that were due in the gap are sent first.
const RECOVERY: u64 = 2;

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
    /// The number of times that the machine took the core.
    pub stalls: u64,
    /// The time that it took, in all.
    pub stalled: Nanos,
    /// The longest of these times.
    pub longest_stall: Nanos,
}

/// The interruptions of a thread by the machine, as of its current duty cycle.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Interruptions {
    /// The end of the last disturbance; [`Nanos::MAX`] while one lasts.
    pub disturbed_until: Nanos,
    /// The time that the machine took since the thread last had nothing to do.
    pub taken: Nanos,
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

    fn set(&self, now: Interruptions) {
        self.0.store(now.disturbed_until.0, Ordering::Release);
    }
}

/// An agent whose duty cycles can be measured.
pub trait Measurable: Agent {
    /// The agent's own results of a run.
    type Tally;

    /// Records the results of the previous duty cycle of this thread, with its interruptions.
    fn book(&mut self, interruptions: Interruptions);

    /// Returns the agent's own results.
    fn tally(&self) -> Self::Tally;
}

/// What a stopwatch found, and its agent.
#[derive(Debug)]
pub struct ThreadResults<T> {
    /// The thread's duty cycles.
    pub cycles: DutyCycles,
    /// The times at which it was interrupted or recovered.
    pub recovering: RecoveryTimes,
    /// The agent's own results.
    pub tally: T,
}

/// An agent with a stopwatch, which is an agent too.
pub struct Stopwatch<A: Measurable> {
    agent: A,
    window: Window,
    last: Nanos,
    found_work: bool,
    cycles: DutyCycles,
    disturbance: Disturbance,
    interruptions: Interruptions,
    recovering: RecoveryTimes,
    cpu: CpuTime,
    at_start: Option<ThreadDelay>,
    results: Sender<ThreadResults<A::Tally>>,
}

impl<A: Measurable> Stopwatch<A> {
    /// Measures `agent` within `window`. When it is stopped, what was found is sent to `results`.
    pub fn new(
        agent: A,
        window: Window,
        disturbance: Disturbance,
        results: Sender<ThreadResults<A::Tally>>,
    ) -> Stopwatch<A> {
        Stopwatch {
            agent,
            window,
            last: Nanos::MAX,
            found_work: false,
            cycles: DutyCycles::default(),
            disturbance,
            interruptions: Interruptions::default(),
            recovering: RecoveryTimes::none(window),
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
        let length = now - self.last;
        let is_long = length > GAP;
        // Read regularly between gaps too, so that the two clocks have no time to drift apart.
        let lost = if is_long || self.cpu.is_stale(now) { self.cpu.lost(now) } else { Nanos::ZERO };
        if is_long && !self.found_work {
            self.interrupted(length, now);
        } else if is_long && lost > Nanos::ZERO {
            self.interrupted(lost.min(length), now);
        } else if self.interruptions.disturbed_until == Nanos::MAX && !self.found_work {
            self.interruptions.disturbed_until = now;
            self.interruptions.taken = Nanos::ZERO;
            self.disturbance.set(self.interruptions);
        }
    }

    /// Notes that the machine took `lost` of the cycle that ended at `now`.
    #[cold]
    fn interrupted(&mut self, lost: Nanos, now: Nanos) {
        self.recovering.note(self.last, now + Nanos(RECOVERY * lost.0));
        let taken = self.interruptions.taken + lost;
        self.interruptions = Interruptions { disturbed_until: Nanos::MAX, taken };
        self.disturbance.set(self.interruptions);
        if self.window.holds(self.last) {
            self.cycles.stalls += 1;
            self.cycles.stalled += lost;
            self.cycles.longest_stall = self.cycles.longest_stall.max(lost);
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
            self.agent.book(self.interruptions);
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
        // A ModelThread that has stopped has no rings left to count by.
        let tally = self.agent.tally();
        self.agent.stop(now);
        let recovering = std::mem::replace(&mut self.recovering, RecoveryTimes::none(self.window));
        // The receiver is gone only if the run was given up.
        let _ = self.results.send(ThreadResults { cycles: self.cycles, recovering, tally });
    }
}

#[cfg(test)]
mod tests {
    use super::super::recovery::RequestTimes;
    use super::*;
    use std::sync::mpsc::channel;

    #[derive(Default)]
    struct EveryOther {
        polls: usize,
        interruptions: Vec<Interruptions>,
    }

    impl Agent for EveryOther {
        fn poll(&mut self, _now: Nanos) -> usize {
            self.polls += 1;
            self.polls % 2
        }

        fn stop(&mut self, _now: Nanos) {}
    }

    impl Measurable for EveryOther {
        type Tally = (usize, Vec<Interruptions>);

        fn book(&mut self, interruptions: Interruptions) {
            self.interruptions.push(interruptions);
        }

        fn tally(&self) -> (usize, Vec<Interruptions>) {
            (self.polls, self.interruptions.clone())
        }
    }

    fn measure(window: Window, cycles: &[u64]) -> ThreadResults<(usize, Vec<Interruptions>)> {
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
        let ThreadResults { cycles, tally: (polls, _), .. } = measure(window, &[0, 10, 20, 35, 50, 90]);
        assert_eq!(polls, 6);
        // The cycles of 10, 20 and 35 count; that of 20 found work.
        assert_eq!((cycles.all, cycles.working, cycles.busy), (3, 1, Nanos(15)));
        assert_eq!((cycles.total, cycles.longest), (Nanos(40), Nanos(15)));
    }

    #[test]
    fn a_long_turn_without_work_disturbs_until_the_next_without_work() {
        // The second cycle, from 10 on, finds nothing and is long; so is the fourth, and then it is
        // short.
        let window = Window { from: Nanos(0), until: Nanos::from_millis(1) };
        let ThreadResults { cycles, recovering, tally: (_, seen) } =
            measure(window, &[0, 10, 9_000, 9_010, 9_020, 9_030]);
        let until: Vec<Nanos> = seen.iter().map(|seen| seen.disturbed_until).collect();
        let lasts = Nanos::MAX;
        assert_eq!(until, [Nanos(0), lasts, lasts, Nanos(9_020), Nanos(9_020)]);
        // It took 8,990 ns, which explain delays until the thread has caught up, and twice as long
        // that batches are late.
        let taken: Vec<Nanos> = seen.iter().map(|seen| seen.taken).collect();
        assert_eq!(taken, [Nanos(0), Nanos(8_990), Nanos(8_990), Nanos(0), Nanos(0)]);
        let mut requests = RequestTimes::none(window);
        for at in [9_500, 26_000, 70_000] {
            requests.count(Nanos(at), 1, 1);
        }
        assert_eq!(requests.without(&recovering), (1, 1));
        assert_eq!((cycles.stalls, cycles.stalled, cycles.longest_stall), (1, Nanos(8_990), Nanos(8_990)));
    }
}

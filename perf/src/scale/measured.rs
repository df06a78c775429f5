//! An agent with a stopwatch: how many turns found work, and how long those took. It reads no clock of its own: a
//! turn's length is the distance between the `now` of two turns.

use super::machine::ThreadDelay;
use std::sync::mpsc::Sender;
use symphony::clock::Nanos;
use symphony::runtime::threads::Agent;

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
pub struct Turns {
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
    /// How long the thread was ready to run and did not: other threads had its core. Not in a turn's length
    /// alone: it covers the run from the first turn on. `None` where the system does not tell.
    pub delayed: Option<Nanos>,
}

/// See the module's description.
pub struct Measured<A, R> {
    agent: A,
    window: Window,
    last: Nanos,
    found_work: bool,
    turns: Turns,
    at_start: Option<ThreadDelay>,
    result: fn(&A) -> R,
    results: Sender<(Turns, R)>,
}

impl<A, R> Measured<A, R> {
    /// Measures `agent` within `window`. When it is stopped, its turns and what `result` says of it go to `results`.
    pub fn new(agent: A, window: Window, result: fn(&A) -> R, results: Sender<(Turns, R)>) -> Measured<A, R> {
        Measured {
            agent,
            window,
            last: Nanos::MAX,
            found_work: false,
            turns: Turns::default(),
            at_start: None,
            result,
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
}

impl<A: Agent, R> Agent for Measured<A, R> {
    #[inline]
    fn poll(&mut self, now: Nanos) -> usize {
        if self.last == Nanos::MAX {
            self.at_start = ThreadDelay::of_this_thread();
        } else if self.window.holds(self.last) {
            self.turn_over(now);
        }
        let work = self.agent.poll(now);
        (self.last, self.found_work) = (now, work > 0);
        work
    }

    fn stop(&mut self, now: Nanos) {
        let at_end = ThreadDelay::of_this_thread();
        self.turns.delayed = self.at_start.zip(at_end).map(|(start, end)| end.since(start));
        let result = (self.result)(&self.agent);
        self.agent.stop(now);
        // Nobody listens only if the run was given up.
        let _ = self.results.send((self.turns, result));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    struct EveryOther(usize);

    impl Agent for EveryOther {
        fn poll(&mut self, _now: Nanos) -> usize {
            self.0 += 1;
            self.0 % 2
        }

        fn stop(&mut self, _now: Nanos) {}
    }

    #[test]
    fn turns_within_the_window_are_measured_by_the_next_ones_start() {
        let (results, received) = channel();
        let window = Window { from: Nanos(10), until: Nanos(50) };
        let mut agent = Measured::new(EveryOther(0), window, |agent| agent.0, results);
        for now in [0, 10, 20, 35, 50, 90] {
            agent.poll(Nanos(now));
        }
        agent.stop(Nanos(99));
        let (turns, polls) = received.recv().unwrap();
        assert_eq!(polls, 6);
        // The turns of 10, 20 and 35 count; that of 20 found work.
        assert_eq!((turns.all, turns.working, turns.busy), (3, 1, Nanos(15)));
        assert_eq!((turns.total, turns.longest), (Nanos(40), Nanos(15)));
    }
}

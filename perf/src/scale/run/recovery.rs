//! The requests of a run by the time at which they were decided, and the times at which threads
//! recovered from stalls of the machine. A thread that is stalled can tell nobody of it, and the
//! other threads' requests end meanwhile: so both are kept in bins of time, and which requests a
//! stall explains is found after the run.

use super::stopwatch::Window;
use symphony_transport::Nanos;

/// The shortest bin: a bin is the least time that an interruption excuses.
const SHORTEST: Nanos = Nanos::from_micros(20);

/// The most bins.
const MOST: u64 = 1 << 20;

/// The bins of a window.
#[derive(Clone, Copy, Debug)]
struct Bins {
    from: Nanos,
    length: u64,
    count: u64,
}

impl Bins {
    fn of(window: Window) -> Bins {
        let duration = (window.until - window.from).0;
        let length = duration.div_ceil(MOST).max(SHORTEST.0);
        Bins { from: window.from, length, count: duration.div_ceil(length) }
    }

    /// Returns the bin of `at`: that of the window's end for all that is later.
    #[inline]
    fn at(&self, at: Nanos) -> usize {
        ((at - self.from).0 / self.length).min(self.count - 1) as usize
    }
}

/// The times of a window at which a thread was interrupted by the machine or recovered from it.
#[derive(Clone, Debug)]
pub struct RecoveryTimes {
    window: Window,
    bins: Bins,
    is_recovering: Vec<bool>,
}

impl RecoveryTimes {
    /// Returns those of a thread that was never interrupted within `window`.
    pub fn none(window: Window) -> RecoveryTimes {
        let bins = Bins::of(window);
        RecoveryTimes { window, bins, is_recovering: vec![false; bins.count as usize] }
    }

    /// Notes an interruption that began at `from`, whose recovery ended at `until`.
    pub fn note(&mut self, from: Nanos, until: Nanos) {
        if until >= self.window.from && from < self.window.until {
            self.is_recovering[self.bins.at(from)..=self.bins.at(until)].fill(true);
        }
    }

    /// Adds the times of another thread of the same run.
    pub fn merge(&mut self, other: &RecoveryTimes) {
        for (one, &other) in self.is_recovering.iter_mut().zip(&other.is_recovering) {
            *one |= other;
        }
    }
}

/// The numbers of requests in a bin.
#[derive(Clone, Copy, Default, Debug)]
struct RequestCounts {
    all: u32,
    bad: u32,
}

/// The requests of a window by the time at which they were sent or dropped.
#[derive(Clone, Debug)]
pub struct RequestTimes {
    bins: Bins,
    counts: Vec<RequestCounts>,
}

impl RequestTimes {
    /// Returns those of a window without requests.
    pub fn none(window: Window) -> RequestTimes {
        let bins = Bins::of(window);
        RequestTimes { bins, counts: vec![RequestCounts::default(); bins.count as usize] }
    }

    /// Counts requests of which so many were bad.
    #[inline]
    pub fn count(&mut self, at: Nanos, all: u32, bad: u32) {
        let counts = &mut self.counts[self.bins.at(at)];
        counts.all += all;
        counts.bad += bad;
    }

    /// Returns the number of requests while no thread recovered, and that of the bad ones.
    pub fn without(&self, recovering: &RecoveryTimes) -> (u64, u64) {
        let bins = self.counts.iter().zip(&recovering.is_recovering);
        let left = bins.filter(|(_, is_recovering)| !**is_recovering).map(|(counts, _)| counts);
        left.fold((0, 0), |(all, bad), counts| (all + u64::from(counts.all), bad + u64::from(counts.bad)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_a_stall_and_its_recovery_are_left_out_whoever_was_stalled() {
        let us = Nanos::from_micros;
        let window = Window { from: us(1_000), until: us(3_000) };
        let mut requests = RequestTimes::none(window);
        for (at, all, bad) in [(1_000, 5, 0), (1_499, 7, 7), (1_700, 3, 2), (2_999, 2, 1), (3_500, 1, 1)] {
            requests.count(us(at), all, bad);
        }
        let none = RecoveryTimes::none(window);
        assert_eq!(requests.without(&none), (18, 11));
        let (mut model, mut rank) = (none.clone(), none);
        model.note(us(1_690), us(1_701));
        rank.note(us(1_480), us(1_500));
        // Of the warm-up, and after the end.
        rank.note(us(100), us(900));
        rank.note(us(3_000), us(4_000));
        assert_eq!(requests.without(&rank), (11, 4));
        rank.merge(&model);
        assert_eq!(requests.without(&rank), (8, 2));
    }

    #[test]
    fn a_window_of_any_length_has_bins() {
        for until in [Nanos(1), Nanos::from_millis(2_000), Nanos::MAX] {
            let window = Window { from: Nanos::ZERO, until };
            let mut requests = RequestTimes::none(window);
            requests.count(until, 1, 0);
            let mut recovering = RecoveryTimes::none(window);
            assert_eq!(requests.without(&recovering), (1, 0));
            recovering.note(Nanos::ZERO, Nanos::MAX);
            assert_eq!(requests.without(&recovering), (0, 0));
        }
    }
}

//! The gaps of a core: times at which the machine does not run its thread, found by a thread that
//! only reads the clock; and the lag of decisions that they alone cause. A virtual machine's host
//! takes a core for microseconds at a time, mostly without any trace in the system's counters.
//!
//! **The lag.** Work comes steadily and keeps a thread busy for a share u of its time. In a gap of
//! length g no work is done. Work that comes at time t after its beginning waits for the rest of
//! the gap, g - t, and for the work that came before it, u t:
//!
//! ```text
//! lag(t) = g - (1 - u) t    until t = g / (1 - u), when the thread has caught up
//! ```
//!
//! So for each gap the lag exceeds x for a time (g - x) / (1 - u), if g > x. Their sum over a time
//! T is the share of T in which lags exceed x. A decision passes each of its threads, so their
//! shares add up (two gaps at once are too rare to matter).

use serde::Serialize;
use symphony::runtime::clock::Clock;
use symphony::runtime::{Idle, Placement};
use symphony_transport::Nanos;

/// The time for which each core is watched.
const WATCHED: Nanos = Nanos::from_millis(1000);

/// The least time between two readings of the clock that counts as a gap.
const GAP: Nanos = Nanos::from_micros(1);

/// The most gaps that are kept: a core that loses over a quarter of its time may have more.
const MAX_GAPS: usize = 1 << 18;

/// The gaps of a core.
#[derive(Clone, Debug)]
pub struct Gaps {
    /// The core.
    pub core: usize,
    /// The time for which it was watched.
    pub watched: Nanos,
    /// The length of each gap.
    pub lengths: Vec<Nanos>,
}

/// A summary of the gaps of a core.
#[derive(Clone, Debug, Serialize)]
pub struct GapFigures {
    /// The core.
    pub core: usize,
    /// The share of the core's time that was lost.
    pub share: f64,
    /// The number of gaps of over 5 us per second.
    pub over_5_us_per_s: f64,
    /// The number of gaps of over 50 us per second.
    pub over_50_us_per_s: f64,
    /// The longest gap.
    pub longest_us: f64,
}

impl Gaps {
    /// Watches these cores for a second, all at once.
    pub fn of(cores: &[usize]) -> Vec<Gaps> {
        std::thread::scope(|scope| {
            let watching: Vec<_> = cores.iter().map(|&core| scope.spawn(move || Gaps::watch(core))).collect();
            watching.into_iter().filter_map(|watched| watched.join().ok()).collect()
        })
    }

    fn watch(core: usize) -> Gaps {
        Placement { core: Some(core), idle: Idle::Spin }.take("the gaps");
        let clock = Clock::start();
        let mut lengths = Vec::with_capacity(MAX_GAPS);
        let start = clock.now();
        let mut last = start;
        while last - start < WATCHED {
            let now = clock.now();
            if now - last > GAP && lengths.len() < MAX_GAPS {
                lengths.push(now - last);
            }
            last = now;
        }
        Gaps { core, watched: last - start, lengths }
    }

    /// Summarises the gaps.
    pub fn figures(&self) -> GapFigures {
        let seconds = self.watched.as_secs_f64();
        let over = |us| self.lengths.iter().filter(|&&gap| gap > Nanos::from_micros(us)).count() as f64;
        GapFigures {
            core: self.core,
            share: self.lost_beyond(Nanos::ZERO),
            over_5_us_per_s: over(5) / seconds,
            over_50_us_per_s: over(50) / seconds,
            longest_us: self.lengths.iter().max().map_or(0.0, |gap| gap.as_micros_f64()),
        }
    }

    /// Returns the share of time that is further than `lag` from the end of its gap.
    fn lost_beyond(&self, lag: Nanos) -> f64 {
        let lost: u64 = self.lengths.iter().map(|&gap| (gap - lag).0).sum();
        lost as f64 / self.watched.0 as f64
    }
}

/// Returns the lag that a share `quantile` of decisions does not exceed if only these gaps delay
/// them. `threads` has the gaps of each thread's core and the share of its time that it is busy.
/// `None` where a thread has no time to catch up.
pub fn lag_of_gaps(threads: &[(&Gaps, f64)], quantile: f64) -> Option<Nanos> {
    if threads.iter().any(|&(_, busy)| busy >= 1.0) {
        return None;
    }
    let later_than =
        |lag| threads.iter().map(|(gaps, busy)| gaps.lost_beyond(lag) / (1.0 - busy)).sum::<f64>();
    let (mut within, mut beyond) = (Nanos::ZERO, Nanos::from_millis(1000));
    while beyond - within > Nanos(1) {
        let middle = Nanos((within.0 + beyond.0) / 2);
        if later_than(middle) > 1.0 - quantile { within = middle } else { beyond = middle }
    }
    Some(beyond)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gaps(us: &[u64]) -> Gaps {
        Gaps { core: 0, watched: WATCHED, lengths: us.iter().map(|&us| Nanos::from_micros(us)).collect() }
    }

    #[test]
    fn a_gap_delays_work_that_comes_in_it_and_work_queued_behind() {
        // 10 ms of a second: an idle thread is over 1 ms late for 9 ms of it, one that is half busy
        // for 18 ms.
        let one = gaps(&[10_000]);
        let us = |busy, quantile| lag_of_gaps(&[(&one, busy)], quantile).unwrap().as_micros_f64().round();
        assert_eq!(us(0.0, 0.991), 1_000.0);
        assert_eq!(us(0.5, 0.982), 1_000.0);
        assert_eq!(us(0.0, 0.98), 0.0, "98 % of time has no gap");
        assert_eq!(lag_of_gaps(&[(&one, 1.0)], 0.5), None);
    }

    #[test]
    fn two_threads_gaps_add_up() {
        let (one, other) = (gaps(&[1_000; 10]), gaps(&[1_000; 10]));
        // Both together are over 0.5 ms late for 10 ms of a second.
        let lag = lag_of_gaps(&[(&one, 0.0), (&other, 0.0)], 0.99).unwrap();
        assert_eq!(lag.as_micros_f64().round(), 500.0);
    }

    #[test]
    fn figures_count_by_length() {
        let GapFigures { share, over_5_us_per_s, over_50_us_per_s, longest_us, .. } =
            gaps(&[2, 6, 60, 1_932]).figures();
        assert!((share - 0.002).abs() < 1e-9);
        assert_eq!((over_5_us_per_s, over_50_us_per_s, longest_us), (3.0, 2.0, 1_932.0));
    }

    #[test]
    fn a_core_can_be_watched() {
        let [gaps] = &Gaps::of(&[0])[..] else { panic!("one core") };
        assert!(gaps.watched >= WATCHED && gaps.figures().share < 1.0);
    }
}

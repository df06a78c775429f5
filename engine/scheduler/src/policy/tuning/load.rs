//! The load for which settings were compared, and whether recent requests are of another one.
//! Bursts make the rate of a short time vary; so a rate counts as another only beyond what the
//! variation within that time and before explains.

use alloc::collections::VecDeque;
use symphony_transport::message::Request;

/// The factor by which the rate changes that makes all that was found void.
const CHANGE: f64 = 1.25;

/// The number of standard errors that the change of the rate has to be larger than.
const ERRORS: f64 = 4.0;

/// The parts of the time in which requests are counted, for the error of their rate.
const SLICES: usize = 16;

/// The part of what was found before that a look keeps. An early one keeps more of what replays
/// found.
pub(super) const KEPT: f64 = 0.8;

/// The load until now.
#[derive(Debug, Default)]
pub(super) struct Load {
    /// Requests per second.
    rate: f64,
    /// The standard error of the rate.
    error: f64,
    /// The seconds in which they came; 0 before the first.
    span: f64,
    /// The highest rate of a look, faded from look to look.
    peak: f64,
}

impl Load {
    /// Returns the rate, in requests per second, or that of a recent look if it was higher.
    pub(super) fn highest(&self) -> f64 {
        self.rate.max(self.peak)
    }

    /// Adds recent requests, in the order of their arrival. If the load until then was another one,
    /// it is forgotten, and how many times as high the rate is now is returned.
    pub(super) fn add(&mut self, recent: &VecDeque<Request>) -> Option<f64> {
        let (Some(first), Some(last)) = (recent.front(), recent.back()) else { return None };
        let span = (last.arrival - first.arrival).as_secs_f64().max(1e-3);
        let rate = recent.len() as f64 / span;
        let far = rate.max(self.rate) > CHANGE * rate.min(self.rate);
        let error = standard_error(recent, span);
        let changed = self.span > 0.0 && far && (rate - self.rate).abs() > ERRORS * error.hypot(self.error);
        let times = changed.then(|| rate / self.rate);
        let peak = rate.max(KEPT * self.peak);
        if changed {
            *self = Load::default();
        }
        let both = self.span + span;
        *self = Load {
            rate: (self.rate * self.span + rate * span) / both,
            error: (self.error * self.span).hypot(error * span) / both,
            span: both,
            peak,
        };
        times
    }
}

/// The standard error of the rate of requests that came within `span` seconds.
fn standard_error(recent: &VecDeque<Request>, span: f64) -> f64 {
    let mut counts = [0.0_f64; SLICES];
    let start = recent[0].arrival;
    for request in recent {
        let part = (request.arrival - start).as_secs_f64() / span;
        counts[((part * SLICES as f64) as usize).min(SLICES - 1)] += 1.0;
    }
    let mean = recent.len() as f64 / SLICES as f64;
    let squares: f64 = counts.iter().map(|count| (count - mean).powi(2)).sum();
    // Requests that come evenly vary less than independent ones would, by chance or in order.
    let variance = (squares / (SLICES - 1) as f64).max(mean);
    (SLICES as f64 * variance).sqrt() / span
}

#[cfg(test)]
mod tests {
    use super::*;
    use symphony_transport::Nanos;

    /// Requests in bursts of `burst`, each `gap_us` after the last.
    fn bursts(count: u64, burst: u64, gap_us: u64) -> VecDeque<Request> {
        let at = |id: u64| Nanos::from_micros(id / burst * gap_us);
        (0..count).map(|id| Request { id, arrival: at(id), ..Request::default() }).collect()
    }

    #[test]
    fn another_rate_is_another_load_and_bursts_are_not() {
        let mut load = Load::default();
        assert_eq!(load.add(&VecDeque::new()), None);
        // A thousand requests per second, then 1,200, then 2,000.
        assert_eq!(load.add(&bursts(1_000, 1, 1_000)), None);
        assert_eq!(load.add(&bursts(1_000, 1, 833)), None);
        assert!(load.add(&bursts(1_000, 1, 500)).is_some_and(|times| times > 1.8));
        assert_eq!(load.add(&bursts(1_000, 1, 500)), None, "it is the load from then on");
        assert!(load.add(&bursts(1_000, 1, 1_000)).is_some_and(|times| times < 0.6));
        // Three bursts of 300 instead of two: as many as chance brings.
        let mut bursty = Load::default();
        assert_eq!(bursty.add(&bursts(3_000, 300, 300_000)), None);
        assert_eq!(bursty.add(&bursts(900, 300, 300_000)), None);
        // A look in the midst of bursts, then one between two of them.
        let mut first = Load::default();
        assert_eq!(first.add(&bursts(900, 300, 300_000)), None);
        assert_eq!(first.add(&bursts(150, 1, 3_333)), None);
        // The same rate, evenly.
        let mut even = Load { rate: 1_000.0, span: 3.0, ..Load::default() };
        assert!(even.add(&bursts(900, 1, 667)).is_some());
    }

    #[test]
    fn a_load_that_was_higher_is_remembered_for_some_looks() {
        let mut load = Load::default();
        load.add(&bursts(1_000, 1, 500));
        let highest = [(); 8].map(|()| {
            load.add(&bursts(1_000, 1, 1_000));
            load.highest()
        });
        assert!(highest[0] > 1_500.0 && highest[1] > 1_200.0 && highest[7] < 1_010.0, "{highest:?}");
    }
}

//! How predictable executions are, after Clockwork's Figures 2 and 10: [`isolation`] runs one model
//! again and again and nothing else; [`served`] loads `symphony serve` and compares what its
//! scheduler expected of each batch with what came. The command `predictability` prints both and
//! draws their distributions.

pub mod chart;
pub mod isolation;
pub mod served;

use serde::Serialize;
use symphony_transport::Nanos;

/// Times, sorted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SortedTimes(Vec<Nanos>);

/// The percentiles of times, milliseconds.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[expect(missing_docs, reason = "percentiles")]
pub struct TimePercentiles {
    pub count: usize,
    pub p50_ms: f64,
    pub p90_ms: f64,
    pub p99_ms: f64,
    pub p999_ms: f64,
    pub p9999_ms: f64,
    pub max_ms: f64,
}

impl SortedTimes {
    /// Sorts times.
    pub fn new(mut times: Vec<Nanos>) -> SortedTimes {
        times.sort_unstable();
        SortedTimes(times)
    }

    /// Returns the times, rising.
    pub fn as_slice(&self) -> &[Nanos] {
        &self.0
    }

    /// Returns the least time that a share of all do not exceed: one of them; 0 of none.
    pub fn at(&self, share: f64) -> Nanos {
        // A product just above a whole number, where the exact one is that number, is not the next.
        let rank = (self.0.len() as f64 * share - 1e-6).ceil().max(1.0) as usize;
        self.0.get(rank.min(self.0.len()).wrapping_sub(1)).copied().unwrap_or_default()
    }

    /// Returns the percentiles.
    pub fn percentiles(&self) -> TimePercentiles {
        let ms = |share| self.at(share).as_millis_f64();
        TimePercentiles {
            count: self.0.len(),
            p50_ms: ms(0.5),
            p90_ms: ms(0.9),
            p99_ms: ms(0.99),
            p999_ms: ms(0.999),
            p9999_ms: ms(0.9999),
            max_ms: ms(1.0),
        }
    }

    /// Returns the 99.99th percentile over the median; `None` if there are fewer than 10,000 times,
    /// of which it would be the slowest.
    pub fn tail_ratio(&self) -> Option<f64> {
        let median = self.at(0.5).0;
        (self.0.len() >= 10_000 && median > 0).then(|| self.at(0.9999).0 as f64 / median as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_the_least_time_that_so_many_do_not_exceed() {
        let times = SortedTimes::new((1..=100_000).rev().map(Nanos).collect());
        assert_eq!(
            [0.5, 0.99, 0.9999, 1.0].map(|share| times.at(share).0),
            [50_000, 99_000, 99_990, 100_000]
        );
        assert_eq!(times.tail_ratio(), Some(99_990.0 / 50_000.0));
        assert_eq!(SortedTimes::new(vec![Nanos(7)]).at(0.5), Nanos(7));
        assert_eq!(SortedTimes::new(Vec::new()).at(0.99), Nanos::ZERO);
        assert_eq!(SortedTimes::new(vec![Nanos(7); 9_999]).tail_ratio(), None);
    }
}

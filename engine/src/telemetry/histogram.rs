//! Histograms of latencies: a [`Histogram`] belongs to the thread that records in it, a
//! [`Latencies`] is a copy of one or the sum of several.

use crate::runtime::counters::count::Count;
use symphony_transport::Nanos;

/// The mantissas of a decade's bounds.
const MANTISSAS: [u64; 6] = [10, 15, 20, 30, 50, 70];

/// The number of decades of bounds: 10 us to 10 s.
const DECADES: usize = 6;

/// The number of bounds.
const BOUNDS: usize = DECADES * MANTISSAS.len() + 1;

/// The upper bound of each bucket: 10, 15, 20, 30, 50, 70, 100 us, …, 10 s. One more bucket has no
/// bound.
pub const LATENCY_BOUNDS: [Nanos; BOUNDS] = {
    let mut bounds = [Nanos::ZERO; BOUNDS];
    let (mut at, mut unit) = (0, 1_000);
    while at < BOUNDS {
        bounds[at] = Nanos(MANTISSAS[at % MANTISSAS.len()] * unit);
        at += 1;
        if at.is_multiple_of(MANTISSAS.len()) {
            unit *= 10;
        }
    }
    bounds
};

/// A histogram to which one thread adds.
#[derive(Debug)]
pub(super) struct Histogram {
    buckets: [Count; BOUNDS],
    beyond: Count,
    sum_ns: Count,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { buckets: [const { Count::new() }; BOUNDS], beyond: Count::new(), sum_ns: Count::new() }
    }
}

impl Histogram {
    /// Empties the histogram. Called by the owner only.
    pub(super) fn clear(&self) {
        self.buckets.iter().chain([&self.beyond, &self.sum_ns]).for_each(Count::clear);
    }

    /// Counts one latency. Called by the owner only.
    pub(super) fn record(&self, latency: Nanos) {
        let at = LATENCY_BOUNDS.partition_point(|&bound| bound < latency);
        self.buckets.get(at).unwrap_or(&self.beyond).add(1);
        self.sum_ns.add(latency.0);
    }
}

/// A copy of a histogram, or the sum of several.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Latencies {
    /// The number of latencies up to each of [`LATENCY_BOUNDS`] and above the one before.
    pub buckets: [u64; BOUNDS],
    /// The number of latencies above all bounds.
    pub beyond: u64,
    /// The sum of all latencies.
    pub sum: Nanos,
}

impl Default for Latencies {
    fn default() -> Latencies {
        Latencies { buckets: [0; BOUNDS], beyond: 0, sum: Nanos::ZERO }
    }
}

impl Latencies {
    /// Adds the current counts of a histogram.
    pub(super) fn add(&mut self, histogram: &Histogram) {
        self.buckets.iter_mut().zip(&histogram.buckets).for_each(|(sum, count)| *sum += count.get());
        self.beyond += histogram.beyond.get();
        self.sum += Nanos(histogram.sum_ns.get());
    }

    /// Returns the number of latencies.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum::<u64>() + self.beyond
    }

    /// Returns each bound whose first digit is 1, 2 or 5, with the number of latencies up to it.
    pub(super) fn up_to(&self) -> impl Iterator<Item = (Nanos, u64)> + '_ {
        let mut below = 0;
        let all = LATENCY_BOUNDS.iter().zip(&self.buckets).enumerate();
        all.filter_map(move |(at, (&bound, count))| {
            below += count;
            (at % 2 == 0).then_some((bound, below))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_round_and_rise() {
        assert!(LATENCY_BOUNDS.windows(2).all(|pair| pair[0] < pair[1]));
        assert_eq!(LATENCY_BOUNDS[0], Nanos::from_micros(10));
        assert_eq!(LATENCY_BOUNDS[7], Nanos::from_micros(150));
        assert_eq!(LATENCY_BOUNDS[BOUNDS - 1], Nanos::from_secs(10));
    }

    #[test]
    fn a_latency_is_counted_under_the_least_bound_that_holds_it() {
        let histogram = Histogram::default();
        for us in [0, 10, 11, 20, 9_999_999, 10_000_000, 10_000_001] {
            histogram.record(Nanos::from_micros(us));
        }
        let mut read = Latencies::default();
        read.add(&histogram);
        assert_eq!(read.buckets[..3], [2, 1, 1]);
        assert_eq!((read.buckets[BOUNDS - 1], read.beyond, read.count()), (2, 1, 7));
        assert_eq!(read.sum, Nanos::from_micros(30_000_041));
        let up_to: Vec<_> = read.up_to().collect();
        assert_eq!(up_to[..2], [(Nanos::from_micros(10), 2), (Nanos::from_micros(20), 4)]);
        assert_eq!(up_to.last(), Some(&(Nanos::from_secs(10), 6)));
        assert_eq!(up_to.len(), 19);
    }
}

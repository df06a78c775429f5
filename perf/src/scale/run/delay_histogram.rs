//! A histogram of delays, a nanosecond per record: 16 buckets for each power of two, so that a
//! quantile is at most 6 % too high. It is owned by the thread that records into it and merged
//! after the run.

use symphony_transport::Nanos;

const SUB_BITS: u32 = 4;
const SUB: usize = 1 << SUB_BITS;
const BUCKETS: usize = (u64::BITS - SUB_BITS + 1) as usize * SUB;

/// The numbers of delays by length, in logarithmic buckets.
#[derive(Clone, Debug)]
pub struct DelayHistogram {
    counts: Box<[u64]>,
    max: Nanos,
}

impl Default for DelayHistogram {
    fn default() -> DelayHistogram {
        DelayHistogram { counts: vec![0; BUCKETS].into_boxed_slice(), max: Nanos::ZERO }
    }
}

impl DelayHistogram {
    /// Counts a delay `times` times.
    #[inline]
    pub fn record(&mut self, lag: Nanos, times: u64) {
        self.counts[bucket(lag.0)] += times;
        self.max = self.max.max(lag);
    }

    /// Returns the number of delays recorded.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the longest delay, exactly; zero if none was recorded.
    pub fn max(&self) -> Nanos {
        self.max
    }

    /// Returns the delay that a share `q` of all does not exceed; zero if none was recorded.
    pub fn quantile(&self, q: f64) -> Nanos {
        let rank = (self.count() as f64 * q).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (at, &count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return Nanos(largest_of(at)).min(self.max);
            }
        }
        self.max
    }

    /// Adds the delays that another thread recorded.
    pub fn merge(&mut self, other: &DelayHistogram) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.max = self.max.max(other.max);
    }
}

/// Returns the bucket of a value: its highest bit and the four bits after it.
#[inline]
fn bucket(value: u64) -> usize {
    let above = (u64::BITS - value.leading_zeros()).saturating_sub(SUB_BITS + 1);
    if value < SUB as u64 {
        return value as usize;
    }
    (above as usize + 1) * SUB + ((value >> above) as usize & (SUB - 1))
}

/// Returns the largest value of a bucket.
fn largest_of(bucket: usize) -> u64 {
    if bucket < SUB {
        return bucket as u64;
    }
    let above = bucket / SUB - 1;
    let first = ((SUB + bucket % SUB) as u64) << above;
    first + ((1 << above) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_lies_in_a_bucket_that_ends_at_most_a_sixteenth_above_it() {
        for shift in 0..64 {
            for offset in [0, 1, 3] {
                let value = (1u64 << shift).saturating_add(offset << (shift / 2));
                let largest = largest_of(bucket(value));
                assert!(largest >= value && largest - value <= value / 16, "{value} in {largest}");
            }
        }
        assert!(bucket(u64::MAX) < BUCKETS);
    }

    #[test]
    fn quantiles_are_those_of_the_records() {
        let mut lags = DelayHistogram::default();
        let mut more = DelayHistogram::default();
        lags.record(Nanos(10), 98);
        more.record(Nanos(5_000), 2);
        lags.merge(&more);
        assert_eq!((lags.quantile(0.5), lags.quantile(0.98)), (Nanos(10), Nanos(10)));
        assert_eq!((lags.quantile(0.99), lags.max()), (Nanos(5_000), Nanos(5_000)));
        assert_eq!(DelayHistogram::default().quantile(0.5), Nanos::ZERO);
    }
}

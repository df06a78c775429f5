//! A histogram of delays that costs a nanosecond a record: 16 buckets to each power of two, so a
//! quantile is at most 6 % too high. Owned by the thread that records into it; merged after the
//! run.

use symphony_transport::Nanos;

const SUB_BITS: u32 = 4;
const SUB: usize = 1 << SUB_BITS;
const BUCKETS: usize = (u64::BITS - SUB_BITS + 1) as usize * SUB;

/// Delays seen, by size. See the module's description.
#[derive(Clone, Debug)]
pub struct Lags {
    counts: Box<[u64]>,
    max: Nanos,
}

impl Default for Lags {
    fn default() -> Lags {
        Lags { counts: vec![0; BUCKETS].into_boxed_slice(), max: Nanos::ZERO }
    }
}

impl Lags {
    /// Counts a delay `times` times.
    #[inline]
    pub fn record(&mut self, lag: Nanos, times: u64) {
        self.counts[bucket(lag.0)] += times;
        self.max = self.max.max(lag);
    }

    /// How many were recorded.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The longest, exact; zero if none was recorded.
    pub fn max(&self) -> Nanos {
        self.max
    }

    /// The delay that a share `q` of all does not exceed; zero if none was recorded.
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

    /// Adds what another thread recorded.
    pub fn merge(&mut self, other: &Lags) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.max = self.max.max(other.max);
    }
}

/// The bucket of a value: its highest bit and the four bits after it.
#[inline]
fn bucket(value: u64) -> usize {
    let above = (u64::BITS - value.leading_zeros()).saturating_sub(SUB_BITS + 1);
    if value < SUB as u64 {
        return value as usize;
    }
    (above as usize + 1) * SUB + ((value >> above) as usize & (SUB - 1))
}

/// The largest value of a bucket.
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
        let mut lags = Lags::default();
        let mut more = Lags::default();
        lags.record(Nanos(10), 98);
        more.record(Nanos(5_000), 2);
        lags.merge(&more);
        assert_eq!((lags.quantile(0.5), lags.quantile(0.98)), (Nanos(10), Nanos(10)));
        assert_eq!((lags.quantile(0.99), lags.max()), (Nanos(5_000), Nanos(5_000)));
        assert_eq!(Lags::default().quantile(0.5), Nanos::ZERO);
    }
}

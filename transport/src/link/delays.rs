//! High percentiles of delays: [`DelayWindow`]. A link has one of the peer's frames on their way
//! here; who reads tensors keeps another. Symphony, section 5.5: it is the tail that costs goodput,
//! not the mean.

use crate::Nanos;

/// Steps of each power of two: a percentile is at most an eighth above the delay that it is.
const STEPS: u32 = 8;

/// Powers of two, from the least delay that is told apart, 1 us, to about 17 s.
const POWERS: u32 = 24;

const BUCKETS: usize = (STEPS * POWERS) as usize + 1;

/// The bits below the least delay that is told apart: 2^10 ns.
const LEAST_BITS: u32 = 10;

/// The delays of a half of the window, at least.
const EPOCH: u64 = 4096;

/// Counts of delays by size: those of the last `EPOCH` to twice as many, so that a tail that is
/// over is forgotten. A fixed memory; a delay costs a few instructions.
///
/// ```
/// use symphony_transport::Nanos;
/// use symphony_transport::link::DelayWindow;
///
/// let mut delays = DelayWindow::default();
/// (1..=1000).for_each(|us| delays.record(Nanos::from_micros(us)));
/// let p99 = delays.percentile(0.99).unwrap();
/// assert!(Nanos::from_micros(990) <= p99 && p99 < Nanos::from_micros(1120));
/// ```
#[derive(Clone, Debug)]
pub struct DelayWindow {
    /// The counts of the epoch before, and of the present one.
    counts: [[u32; BUCKETS]; 2],
    totals: [u64; 2],
}

impl Default for DelayWindow {
    fn default() -> DelayWindow {
        DelayWindow { counts: [[0; BUCKETS]; 2], totals: [0; 2] }
    }
}

/// The bucket of a delay.
fn bucket(delay: Nanos) -> usize {
    let scaled = delay.0 >> LEAST_BITS;
    if scaled == 0 {
        return 0;
    }
    let power = scaled.ilog2();
    // The three bits below the highest.
    let step = (delay.0 >> (power + LEAST_BITS - STEPS.ilog2())) & u64::from(STEPS - 1);
    1 + ((power * STEPS) as usize + step as usize).min(BUCKETS - 2)
}

/// The end of a bucket: no delay in it is longer, but in the last.
fn end(bucket: usize) -> Nanos {
    let Some(at) = bucket.checked_sub(1) else { return Nanos(1 << LEAST_BITS) };
    let (power, step) = (at as u32 / STEPS, at as u64 % u64::from(STEPS));
    Nanos((u64::from(STEPS) + step + 1) << (power + LEAST_BITS - STEPS.ilog2()))
}

impl DelayWindow {
    /// Takes a delay in.
    pub fn record(&mut self, delay: Nanos) {
        if self.totals[1] == EPOCH {
            self.counts[0] = std::mem::replace(&mut self.counts[1], [0; BUCKETS]);
            self.totals = [EPOCH, 0];
        }
        self.counts[1][bucket(delay)] += 1;
        self.totals[1] += 1;
    }

    /// Returns the delays in the window.
    pub fn count(&self) -> u64 {
        self.totals.iter().sum()
    }

    /// Returns a delay that a share of those in the window does not exceed, an eighth more at most;
    /// `None` if there are none.
    pub fn percentile(&self, share: f64) -> Option<Nanos> {
        let rank = (self.count() as f64 * share).ceil().max(1.0) as u64;
        let mut seen = 0;
        let [before, present] = &self.counts;
        let counts = before.iter().zip(present).map(|(before, present)| u64::from(before + present));
        counts.enumerate().find_map(|(bucket, count)| {
            seen += count;
            (seen >= rank).then(|| end(bucket))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: if cfg!(miri) { 4 } else { 256 },
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn a_percentile_is_that_delay_and_at_most_an_eighth_more(
            delays in proptest::collection::vec(prop_oneof![0u64..5_000, 0u64..10_000_000_000], 1..400),
            share in 0.0f64..=1.0,
        ) {
            let mut window = DelayWindow::default();
            delays.iter().for_each(|&delay| window.record(Nanos(delay)));
            let mut sorted = delays.clone();
            sorted.sort_unstable();
            let rank = (delays.len() as f64 * share).ceil().max(1.0) as usize;
            let (exact, found) = (sorted[rank - 1], window.percentile(share).unwrap().0);
            prop_assert!(exact <= found && found <= exact + exact / STEPS as u64 + (1 << LEAST_BITS));
        }
    }

    #[test]
    fn a_tail_that_is_over_is_forgotten() {
        let mut window = DelayWindow::default();
        assert_eq!(window.percentile(0.99), None);
        (0..100).for_each(|_| window.record(Nanos::from_millis(50)));
        (0..2 * EPOCH).for_each(|_| window.record(Nanos::from_micros(20)));
        assert!(window.percentile(1.0).unwrap() < Nanos::from_micros(24));
        assert!(window.count() <= 2 * EPOCH);
        window.record(Nanos::MAX);
        assert!(window.percentile(1.0).unwrap() > Nanos::from_secs(10));
    }
}

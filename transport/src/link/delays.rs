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

/// The time of an epoch, at least: a tail that is over costs goodput for twice as long.
const EPOCH: Nanos = Nanos::from_millis(500);

/// Counts of delays by size: those of the present epoch, and of the one before. An epoch is over
/// after half a second, once it has enough delays, so that a tail that is over is forgotten, but
/// not before something newer is known. A fixed memory; a delay costs a few instructions.
///
/// ```
/// use symphony_transport::Nanos;
/// use symphony_transport::link::DelayWindow;
///
/// let mut delays = DelayWindow::new(64);
/// (1..=1000).for_each(|us| delays.record(Nanos::from_micros(us), Nanos::ZERO));
/// let p99 = delays.percentile(0.99).unwrap();
/// assert!(Nanos::from_micros(990) <= p99 && p99 < Nanos::from_micros(1120));
/// ```
#[derive(Clone, Debug)]
pub struct DelayWindow {
    /// The counts of the epoch before, and of the present one.
    counts: [[u32; BUCKETS]; 2],
    totals: [u64; 2],
    /// When the present epoch began.
    since: Nanos,
    /// The delays of an epoch, at least.
    least: u64,
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
    /// Makes an empty window whose epochs have at least so many delays.
    pub fn new(least: u64) -> DelayWindow {
        DelayWindow { counts: [[0; BUCKETS]; 2], totals: [0; 2], since: Nanos::ZERO, least }
    }

    /// Takes a delay in.
    pub fn record(&mut self, delay: Nanos, now: Nanos) {
        if self.is_over(now) {
            self.begin_epoch(now);
        }
        self.counts[1][bucket(delay)] += 1;
        self.totals[1] += 1;
    }

    /// Returns true if the present epoch has as many delays as one has at least.
    pub fn has_enough(&self) -> bool {
        self.totals[1] >= self.least
    }

    /// Returns true if the present epoch is over.
    pub fn is_over(&self, now: Nanos) -> bool {
        self.has_enough() && now >= self.since + EPOCH
    }

    /// Begins an epoch: what was known before the last one is forgotten.
    pub fn begin_epoch(&mut self, now: Nanos) {
        self.counts[0] = std::mem::replace(&mut self.counts[1], [0; BUCKETS]);
        self.totals = [self.totals[1], 0];
        self.since = now;
    }

    /// Keeps what was usual, the median, and forgets what was not: for a window whose delays come
    /// so rarely that its tail may be that of an outage long over.
    pub fn forget_tail(&mut self) {
        let Some(median) = self.percentile(0.5) else { return };
        let (count, usual) = (self.count(), median.0 - 1);
        self.counts = [[0; BUCKETS]; 2];
        self.counts[0][bucket(Nanos(usual))] = count.min(self.least) as u32;
        self.totals = [count.min(self.least), 0];
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

    /// Returns [`DelayWindow::percentile`] once there are as many delays as an epoch has at least:
    /// fewer have no tail.
    pub fn tail(&self, share: f64) -> Option<Nanos> {
        (self.count() >= self.least).then(|| self.percentile(share))?
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LEAST: u64 = 64;

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
            let mut window = DelayWindow::new(LEAST);
            delays.iter().for_each(|&delay| window.record(Nanos(delay), Nanos::ZERO));
            let mut sorted = delays.clone();
            sorted.sort_unstable();
            let rank = (delays.len() as f64 * share).ceil().max(1.0) as usize;
            let (exact, found) = (sorted[rank - 1], window.percentile(share).unwrap().0);
            prop_assert!(exact <= found && found <= exact + exact / STEPS as u64 + (1 << LEAST_BITS));
        }
    }

    #[test]
    fn the_median_is_left_of_a_window_without_its_tail() {
        let mut window = DelayWindow::new(LEAST);
        window.forget_tail();
        assert_eq!(window.count(), 0);
        (0..60).for_each(|_| window.record(Nanos::from_micros(300), Nanos::ZERO));
        (0..40).for_each(|_| window.record(Nanos::from_millis(45), Nanos::ZERO));
        let median = window.percentile(0.5);
        // Again changes nothing.
        for _ in 0..2 {
            window.forget_tail();
            assert_eq!((window.count(), window.percentile(0.01)), (LEAST, median));
            assert_eq!(window.tail(0.99), median);
        }
    }

    #[test]
    fn a_tail_that_is_over_is_forgotten_once_there_is_another() {
        let mut window = DelayWindow::new(LEAST);
        assert_eq!(window.percentile(0.99), None);
        let mut record = |delay: Nanos, count: u64, now: Nanos| {
            (0..count).for_each(|_| window.record(delay, now));
            (window.count(), window.percentile(1.0).unwrap())
        };
        let (long, short) = (Nanos::from_millis(50), Nanos::from_micros(20));
        record(long, 100, Nanos::ZERO);
        let (count, longest) = record(short, 2 * LEAST, EPOCH);
        assert!(count == 100 + 2 * LEAST && longest > long);
        // Long ago, yet nothing newer says what a delay is now.
        let (count, longest) = record(short, 1, Nanos::from_secs(60));
        assert!(count == 2 * LEAST + 1 && longest < Nanos::from_micros(24));
        let (count, longest) = record(Nanos::MAX, 1, Nanos::from_secs(70));
        assert!(count == 2 * LEAST + 2 && longest > Nanos::from_secs(10), "too few for an epoch");
    }
}

//! The rate meter: requests per second of one model, as the mean of the last samples
//! (docs/design/specification.md, "Quantities"). Owned by the model's queue, which tells it of each
//! request and asks for the rate when a sample ends.

use crate::limits::{RATE_SAMPLE, RATE_SAMPLES};
use symphony_transport::Nanos;

/// A sliding window of [`RATE_SAMPLES`] counts, each over [`RATE_SAMPLE`]. Counting is an addition;
/// once a sample, a count leaves the window.
#[derive(Clone, Debug)]
pub struct RateMeter {
    counts: [u32; RATE_SAMPLES],
    /// Where the sample under way will be put.
    at: usize,
    /// Finished samples in the window.
    filled: usize,
    sum: u64,
    current: u32,
    sample_ends: Nanos,
}

/// The state of a [`RateMeter`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RateParts {
    /// The window's counts.
    pub counts: [u32; RATE_SAMPLES],
    /// Where the sample under way will be put.
    pub at: u32,
    /// Finished samples in the window.
    pub filled: u32,
    /// The sample under way.
    pub current: u32,
    /// When it ends.
    pub sample_ends: Nanos,
}

impl RateMeter {
    /// A meter whose first sample starts at `now`.
    pub fn new(now: Nanos) -> RateMeter {
        RateMeter {
            counts: [0; RATE_SAMPLES],
            at: 0,
            filled: 0,
            sum: 0,
            current: 0,
            sample_ends: now + RATE_SAMPLE,
        }
    }

    /// A meter that has seen `rate_rps` requests per second until `now`.
    pub fn steady(now: Nanos, rate_rps: f64) -> RateMeter {
        let mut meter = RateMeter::new(now);
        let by = |samples: usize| (rate_rps * RATE_SAMPLE.as_secs_f64() * samples as f64) as u64;
        for (at, count) in meter.counts.iter_mut().enumerate() {
            *count = (by(at + 1) - by(at)).min(u64::from(u32::MAX >> 1)) as u32;
        }
        meter.sum = meter.counts.iter().map(|&count| u64::from(count)).sum();
        meter.filled = RATE_SAMPLES;
        meter
    }

    /// Ends the samples that are over at `now` and returns their number. If there are any, the rate
    /// has changed its value.
    #[inline]
    pub fn advance(&mut self, now: Nanos) -> u64 {
        if now < self.sample_ends { 0 } else { self.roll(now) }
    }

    /// Counts one request in the sample under way.
    #[inline]
    pub fn count(&mut self) {
        self.current += 1;
    }

    /// Requests per second, 0 before the first sample has ended.
    pub fn rate(&self) -> f64 {
        if self.filled == 0 {
            return 0.0;
        }
        self.sum as f64 / (self.filled as f64 * RATE_SAMPLE.as_secs_f64())
    }

    /// Returns the meter's state.
    pub fn parts(&self) -> RateParts {
        RateParts {
            counts: self.counts,
            at: self.at as u32,
            filled: self.filled as u32,
            current: self.current,
            sample_ends: self.sample_ends,
        }
    }

    /// The meter whose state this was; `None` if none can have been in it.
    pub fn from_parts(parts: &RateParts) -> Option<RateMeter> {
        let RateParts { counts, at, filled, current, sample_ends } = *parts;
        // Counts go up by one a request: half their range leaves room for all that a file can hold.
        let possible = at < RATE_SAMPLES as u32 && filled <= RATE_SAMPLES as u32 && current < 1 << 31;
        let sum = counts.iter().map(|&count| u64::from(count)).sum();
        let (at, filled) = (at as usize, filled as usize);
        possible.then_some(RateMeter { counts, at, filled, sum, current, sample_ends })
    }

    #[cold]
    #[inline(never)]
    fn roll(&mut self, now: Nanos) -> u64 {
        let ended = 1 + (now - self.sample_ends).0 / RATE_SAMPLE.0;
        self.sum = self.sum + u64::from(self.current) - u64::from(self.counts[self.at]);
        self.counts[self.at] = core::mem::take(&mut self.current);
        // Nothing came in the samples after it: at most all are zero, however many there were.
        let next = (self.at + 1) % RATE_SAMPLES;
        let silent = (ended - 1).min(RATE_SAMPLES as u64) as usize;
        let wrapped = (next + silent).saturating_sub(RATE_SAMPLES);
        for part in [next..next + silent - wrapped, 0..wrapped] {
            let counts = &mut self.counts[part];
            self.sum -= counts.iter().map(|&count| u64::from(count)).sum::<u64>();
            counts.fill(0);
        }
        self.at = (next + ((ended - 1) % RATE_SAMPLES as u64) as usize) % RATE_SAMPLES;
        self.filled = (self.filled + 1 + silent).min(RATE_SAMPLES);
        self.sample_ends += Nanos(ended * RATE_SAMPLE.0);
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_the_mean_of_the_samples_that_ended() {
        let mut meter = RateMeter::new(Nanos::ZERO);
        assert_eq!(meter.rate(), 0.0);
        for _ in 0..10 {
            meter.count();
        }
        assert_eq!(meter.advance(Nanos::from_millis(49)), 0);
        assert_eq!(meter.advance(Nanos::from_millis(50)), 1);
        assert_eq!(meter.rate(), 200.0);
        assert_eq!(meter.advance(Nanos::from_millis(100)), 1);
        assert_eq!(meter.rate(), 100.0);
    }

    #[test]
    fn an_hour_of_silence_empties_the_window() {
        let mut meter = RateMeter::new(Nanos::ZERO);
        for step in 0..1_000 {
            meter.advance(Nanos::from_millis(step));
            meter.count();
        }
        assert!((meter.rate() - 1000.0).abs() < 60.0);
        meter.advance(Nanos::from_secs(3_600));
        assert_eq!(meter.rate(), 0.0);
        meter.count();
        meter.advance(Nanos::from_secs(3_600) + RATE_SAMPLE);
        assert_eq!(meter.rate(), 1.0 / 5.0);
    }

    proptest::proptest! {
        #[test]
        fn samples_that_end_at_once_are_those_that_end_one_by_one(
            steps in proptest::collection::vec((0u64..3, 0u64..260), 1..60),
        ) {
            let mut now = Nanos::ZERO;
            let mut at_once = RateMeter::new(now);
            let mut one_by_one = RateMeter::new(now);
            for (requests, samples) in steps {
                for meter in [&mut at_once, &mut one_by_one] {
                    (0..requests).for_each(|_| meter.count());
                }
                let ended = (0..samples).map(|_| {
                    now += RATE_SAMPLE;
                    one_by_one.advance(now)
                });
                let ended: u64 = ended.sum();
                proptest::prop_assert_eq!(at_once.advance(now), ended);
                proptest::prop_assert_eq!(at_once.parts(), one_by_one.parts());
                proptest::prop_assert_eq!(at_once.rate().to_bits(), one_by_one.rate().to_bits());
            }
        }
    }
}

//! The GPUs on which early candidates may start: the lowest-numbered ones, enough of them to carry
//! nine tenths of what the pool was asked for lately. What does not fit there waits until it is due
//! and then takes any GPU, as the published rule has it.
//!
//! So the GPUs in use follow the load, without any measurement of it. If the limit is higher than
//! it need be, batches on the GPUs below it are small, nothing spills over, and the limit becomes
//! nine tenths of itself. As it falls, batches grow, until a tenth of the work spills over. If it
//! is too low, more spills over and raises it. A pool that is short of GPUs has due candidates
//! waiting; each counts as several GPUs, so that early candidates soon may have all of them.

use symphony_transport::Nanos;

/// The part of what was asked for that early candidates' GPUs carry.
const CARRIED: f64 = 0.9;

/// The part of the pool that comes on top, with half a GPU, so that one GPU is always among them.
const SPARE: f64 = 0.04;
const SPARE_GPUS: f64 = 0.5;

/// How many GPUs a due candidate that waits for one counts as.
const SHORT: usize = 4;

/// How long what was asked for is remembered, in seconds.
const MEMORY: f64 = 1.0;

/// What was asked of a pool of GPUs lately.
///
/// The average is brought up to date where something else is asked for, or the limit is wanted: a
/// division each, so not for every request.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Packing {
    /// GPUs asked for, on average over the last second or so.
    pub average: f64,
    /// GPUs asked for since `since`.
    pub asked: usize,
    /// See `asked`.
    pub since: Nanos,
}

impl Packing {
    /// The number of `gpus` GPUs on which early candidates may start now.
    #[inline]
    pub fn limit(&mut self, now: Nanos, gpus: usize) -> usize {
        self.pass(now);
        let limit = CARRIED * self.average + SPARE * gpus as f64 + SPARE_GPUS;
        // Rounded up; `f64::ceil` is a call of the C library, as `f64::round` is.
        let whole = limit as usize;
        (whole + usize::from(limit > whole as f64)).min(gpus)
    }

    /// Notes the number of busy GPUs and of due candidates that wait for one, from now on.
    #[inline]
    pub fn ask(&mut self, now: Nanos, busy: usize, waiting: usize) {
        let asked = busy + SHORT * waiting;
        if asked != self.asked {
            self.pass(now);
            self.asked = asked;
        }
    }

    /// Brings the average up to date.
    #[inline]
    fn pass(&mut self, now: Nanos) {
        if now > self.since {
            let passed = (now - self.since).as_secs_f64();
            self.average += (self.asked as f64 - self.average) * passed / (MEMORY + passed);
            self.since = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The limit of 100 GPUs after so many milliseconds of so many busy and waiting.
    fn after(packing: &mut Packing, ms: u64, busy: usize, waiting: usize) -> usize {
        let (from, mut limit) = (packing.since, 0);
        packing.ask(from, busy, waiting);
        for ms in 1..=ms {
            let now = from + Nanos::from_millis(ms);
            limit = packing.limit(now, 100);
            packing.ask(now, busy, waiting);
        }
        limit
    }

    #[test]
    fn one_gpu_is_always_among_them() {
        for gpus in 1..100 {
            assert!(Packing::default().limit(Nanos::ZERO, gpus) >= 1);
        }
        assert_eq!(Packing::default().limit(Nanos::ZERO, 1), 1);
    }

    #[test]
    fn it_follows_what_is_asked_for_within_seconds() {
        let mut packing = Packing::default();
        assert_eq!(after(&mut packing, 10_000, 50, 0), 50);
        assert_eq!(after(&mut packing, 10_000, 80, 0), 77);
        assert_eq!(after(&mut packing, 10_000, 10, 0), 14);
    }

    #[test]
    fn a_pool_that_is_short_has_no_limit() {
        let mut packing = Packing::default();
        assert_eq!(after(&mut packing, 10_000, 100, 0), 95);
        assert_eq!(after(&mut packing, 5_000, 100, 3), 100);
    }

    #[test]
    fn how_often_it_is_looked_at_makes_no_difference() {
        let mut often = Packing::default();
        after(&mut often, 2_000, 60, 1);
        let mut seldom = Packing { asked: 64, ..Packing::default() };
        seldom.limit(Nanos::from_millis(1), 100);
        seldom.ask(Nanos::from_millis(1), 60, 1);
        for ms in [500, 1_000, 1_500, 2_000] {
            seldom.limit(Nanos::from_millis(ms), 100);
        }
        assert!((often.average - seldom.average).abs() < 6.0, "{often:?} {seldom:?}");
    }
}

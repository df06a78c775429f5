//! The random draws of a simulation: all of them come from its seed.

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use symphony_transport::Nanos;

/// A source of random draws.
pub(super) struct Dice(Pcg64Mcg);

impl Dice {
    /// Makes the dice of this seed; those of another `stream` are independent of them.
    pub(super) fn new(seed: u64, stream: u64) -> Dice {
        Dice(Pcg64Mcg::seed_from_u64(seed ^ stream.rotate_left(48)))
    }

    /// Draws a number below `count`, which is not zero.
    #[inline]
    pub(super) fn below(&mut self, count: usize) -> usize {
        ((u128::from(self.0.random::<u64>()) * count as u128) >> 64) as usize
    }

    /// Draws a number in `low..=high`.
    pub(super) fn count(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    /// Draws a number between `low` and `high`.
    pub(super) fn number(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.0.random::<f64>()
    }

    /// Draws a time between `low` and `high`, each power of two as often as the next: short ones
    /// are as likely as long ones.
    pub(super) fn time(&mut self, low: Nanos, high: Nanos) -> Nanos {
        Nanos(self.number((low.0.max(1) as f64).ln(), (high.0 as f64).ln()).exp() as u64)
    }

    /// Draws the time to the next event of those that come at random, this far apart on average.
    #[inline]
    pub(super) fn gap(&mut self, mean_ns: f64) -> Nanos {
        Nanos((-self.0.random::<f64>().max(1e-12).ln() * mean_ns) as u64)
    }

    /// Returns true in this share of all draws.
    #[inline]
    pub(super) fn chance(&mut self, share: f64) -> bool {
        self.0.random::<f64>() < share
    }
}

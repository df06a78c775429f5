//! The gaps between the requests of a random stream, on a scale of their own: at every rate they
//! are the same numbers, times the scale of that rate. So those of runs at many rates are drawn
//! once.

use alloc::vec::Vec;
use rand_distr::{Distribution, Exp1, Gamma};
use rand_pcg::Pcg64Mcg;

/// The distribution of random gaps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Law {
    /// Exponential ones of mean 1.
    Exponential,
    /// Gamma-distributed ones of scale 1.
    Gamma(Gamma<f64>),
}

impl Law {
    /// Draws the next gap.
    #[inline]
    pub(crate) fn sample(&self, rng: &mut Pcg64Mcg) -> f64 {
        match self {
            Law::Exponential => Exp1.sample(rng),
            Law::Gamma(gamma) => gamma.sample(rng),
        }
    }
}

/// The first gaps of a random stream, drawn beforehand:
/// [`drawn`](crate::sim::arrivals::drawn).
#[derive(Clone, Debug, PartialEq)]
pub struct DrawnGaps {
    /// The seed of the stream.
    pub(crate) seed: u64,
    pub(crate) law: Law,
    pub(crate) gaps: Vec<f64>,
    /// What draws those behind them.
    pub(crate) behind: Pcg64Mcg,
}

impl DrawnGaps {
    /// Draws the first `count` gaps of the stream of this seed, whose generator is `rng`.
    pub(crate) fn new(seed: u64, law: Law, mut rng: Pcg64Mcg, count: usize) -> DrawnGaps {
        let gaps = (0..count).map(|_| law.sample(&mut rng)).collect();
        DrawnGaps { seed, law, gaps, behind: rng }
    }
}

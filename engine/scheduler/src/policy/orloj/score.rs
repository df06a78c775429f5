//! The priority of a request (Yu's dissertation, section 4.4.1, equation 4.2): how much lower the
//! expected cost of missing its deadline is if it runs now than if it waits on, for each
//! millisecond of GPU time. It depends on the time that is left and on the distribution of the
//! batch's time only, so all requests of one application share one curve.
//!
//! The dissertation keeps requests as points (alpha, beta) of alpha e^(bt) + beta on a dynamic
//! convex hull, with powers of e that overflow after a while. The curve over the time left says the
//! same with bounded numbers: where it rises, later deadlines come first, where it falls, earlier
//! ones. So requests stay in the order of their deadlines, and the best of each rising or falling
//! piece is at one end of a range, found by bisection.

use crate::run_time::RunTimeHistogram;
use alloc::vec::Vec;

/// b: the rate of the exponential distribution of the anticipated delay, in 1/ms (section 4.4.4).
const DELAY_RATE: f64 = 1e-4;

/// The priority over the time that is left.
#[derive(Clone, Debug)]
pub(super) struct ScoreCurve {
    lowest_ms: f64,
    width_ms: f64,
    /// The part of the curve that comes from the bins before, without e^(-bx): for each bin, and
    /// for what lies behind the last.
    before: Vec<f64>,
    /// The density of each bin.
    density: Vec<f64>,
    /// 1 / (E\[L\] b).
    scale: f64,
    pieces: Vec<Piece>,
}

/// A range of the time left in which the curve only rises or only falls.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Piece {
    /// The range, ms; its end is not in it.
    pub(super) from_ms: f64,
    /// See `from_ms`.
    pub(super) to_ms: f64,
    /// True if it rises.
    pub(super) rises: bool,
}

impl ScoreCurve {
    /// Returns the curve of requests whose batch takes as long as `batch_times` says, where a batch
    /// takes `expected_ms` on average.
    pub(super) fn new(batch_times: &RunTimeHistogram, expected_ms: f64) -> ScoreCurve {
        let RunTimeHistogram { lowest_ms, width_ms, ref parts } = *batch_times;
        let density: Vec<f64> = parts.iter().map(|part| part / width_ms).collect();
        let grown = |ms: f64| (DELAY_RATE * ms).exp();
        let edge = |at: usize| lowest_ms + width_ms * at as f64;
        let mut before = vec![0.0];
        for (at, density) in density.iter().enumerate() {
            before.push(before[at] + density * (grown(edge(at + 1)) - grown(edge(at))));
        }
        let mut pieces: Vec<Piece> = Vec::new();
        for (at, density) in density.iter().enumerate() {
            let rises = density * grown(edge(at)) > before[at];
            match pieces.last_mut().filter(|last| last.rises == rises) {
                Some(last) => last.to_ms = edge(at + 1),
                None => pieces.push(Piece { from_ms: edge(at), to_ms: edge(at + 1), rises }),
            }
        }
        pieces.push(Piece { from_ms: edge(density.len()), to_ms: f64::INFINITY, rises: false });
        let scale = 1.0 / (expected_ms * DELAY_RATE);
        ScoreCurve { lowest_ms, width_ms, before, density, scale, pieces }
    }

    /// Returns the priority of a request whose deadline is in `left_ms`, for a missed deadline's
    /// cost of 1.
    pub(super) fn at(&self, left_ms: f64) -> f64 {
        if left_ms < self.lowest_ms {
            return 0.0;
        }
        let bin = (((left_ms - self.lowest_ms) / self.width_ms) as usize).min(self.density.len());
        let start = self.lowest_ms + self.width_ms * bin as f64;
        // Of this bin, what is certain to be over in time.
        let own = self
            .density
            .get(bin)
            .map_or(0.0, |density| density * (1.0 - (DELAY_RATE * (start - left_ms)).exp()));
        self.scale * (self.before[bin] * (-DELAY_RATE * left_ms).exp() + own)
    }

    /// Returns the pieces in which the curve rises or falls, in order; before the first it is 0.
    pub(super) fn pieces(&self) -> &[Piece] {
        &self.pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Equation 4.2, bin by bin, with the deadline at `left` and the time at 0.
    fn equation(histogram: &RunTimeHistogram, expected: f64, left: f64) -> f64 {
        let b = DELAY_RATE;
        let bin = |(at, part): (usize, &f64)| {
            let (l1, l2) = (
                histogram.lowest_ms + histogram.width_ms * at as f64,
                histogram.lowest_ms + histogram.width_ms * (at + 1) as f64,
            );
            let scale = part / histogram.width_ms / (expected * b);
            if left > l2 {
                scale * ((b * l2).exp() - (b * l1).exp()) * (-b * left).exp()
            } else if left > l1 {
                scale - scale * (b * l1).exp() * (-b * left).exp()
            } else {
                0.0
            }
        };
        histogram.parts.iter().enumerate().map(bin).sum()
    }

    proptest! {
        #[test]
        fn the_curve_is_the_sum_over_the_bins_and_its_pieces_are_monotone(
            weights in prop::collection::vec(0.0f64..1.0, 1..30),
            lowest in 0.0f64..100.0,
            width in 0.01f64..50.0,
        ) {
            prop_assume!(weights.iter().sum::<f64>() > 0.01);
            let histogram = RunTimeHistogram::of_weights(lowest, width, &weights).unwrap();
            let curve = ScoreCurve::new(&histogram, histogram.mean());
            let times = (0..400).map(|at| histogram.highest_ms() * 1.5 * f64::from(at) / 400.0);
            for left in times {
                let expected = equation(&histogram, histogram.mean(), left);
                prop_assert!((curve.at(left) - expected).abs() < 1e-9 * (1.0 + expected), "{left}");
            }
            prop_assert_eq!(curve.pieces()[0].from_ms, histogram.lowest_ms);
            for piece in curve.pieces() {
                let to = piece.to_ms.min(piece.from_ms + 1_000.0);
                let values: Vec<f64> = (0..=20)
                    .map(|at| curve.at(piece.from_ms + (to - piece.from_ms) * f64::from(at) / 20.0))
                    .collect();
                let slack = 1e-12;
                let monotone = values.windows(2).all(|two| if piece.rises {
                    two[1] >= two[0] - slack
                } else {
                    two[1] <= two[0] + slack
                });
                prop_assert!(monotone, "{piece:?} {values:?}");
            }
        }
    }
}

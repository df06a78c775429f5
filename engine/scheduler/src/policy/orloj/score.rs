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
//!
//! Where a request's cost has several steps (appendix C.2), its priority is the sum of those of
//! each step by itself. A step that is earlier by some time is the same curve moved by that time,
//! and the sum of such curves is that of the summed densities: one curve over the time left to the
//! last step, in more pieces.

use crate::run_time::RunTimeHistogram;
use crate::step_costs::OneStep;
use alloc::vec::Vec;

/// The priority over the time that is left.
#[derive(Clone, Debug)]
pub(super) struct ScoreCurve {
    /// The edges of the bins, ms.
    edges_ms: Vec<f64>,
    /// The part of the curve at each edge that comes from the bins before it, without `scale`.
    before: Vec<f64>,
    /// The density of each bin: of the time by which a batch must start, weighted by what missing
    /// that costs.
    density: Vec<f64>,
    /// b, the rate of the exponential distribution of the anticipated delay, in 1/ms (section
    /// 4.4.4).
    delay_rate: f64,
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
    /// takes `expected_ms` on average, and whose cost is the sum of `costs`. `delay_rate` is above
    /// 0.
    pub(super) fn new(
        batch_times: &RunTimeHistogram,
        expected_ms: f64,
        costs: &[OneStep],
        delay_rate: f64,
    ) -> ScoreCurve {
        let (edges_ms, density) = summed_densities(batch_times, costs);
        let mut before = vec![0.0];
        for (at, density) in density.iter().enumerate() {
            before.push(after(before[at], *density, delay_rate * (edges_ms[at + 1] - edges_ms[at])));
        }
        let mut pieces: Vec<Piece> = Vec::new();
        for (at, density) in density.iter().enumerate() {
            let rises = *density > before[at];
            match pieces.last_mut().filter(|last| last.rises == rises) {
                Some(last) => last.to_ms = edges_ms[at + 1],
                None => pieces.push(Piece { from_ms: edges_ms[at], to_ms: edges_ms[at + 1], rises }),
            }
        }
        pieces.push(Piece { from_ms: edges_ms[density.len()], to_ms: f64::INFINITY, rises: false });
        let scale = 1.0 / (expected_ms * delay_rate);
        ScoreCurve { edges_ms, before, density, delay_rate, scale, pieces }
    }

    /// Returns the priority of a request whose deadline, that of the last step, is in `left_ms`.
    pub(super) fn at(&self, left_ms: f64) -> f64 {
        let Some(bin) = self.edges_ms.partition_point(|edge| *edge <= left_ms).checked_sub(1) else {
            return 0.0;
        };
        let density = self.density.get(bin).copied().unwrap_or(0.0);
        self.scale * after(self.before[bin], density, self.delay_rate * (left_ms - self.edges_ms[bin]))
    }

    /// Returns the pieces in which the curve rises or falls, in order; before the first it is 0.
    pub(super) fn pieces(&self) -> &[Piece] {
        &self.pieces
    }
}

/// Returns the part of the curve a time behind an edge, where it is `before` at the edge and there
/// is a bin of this density behind it. `decay` is b times that time: nothing here is larger than
/// both.
fn after(before: f64, density: f64, decay: f64) -> f64 {
    before * (-decay).exp() - density * (-decay).exp_m1()
}

/// Returns the edges of bins, and the density of each: the sum of the batch times' density, moved
/// and weighted as each of `costs` says.
fn summed_densities(batch_times: &RunTimeHistogram, costs: &[OneStep]) -> (Vec<f64>, Vec<f64>) {
    let RunTimeHistogram { lowest_ms, width_ms, ref parts } = *batch_times;
    let edges_of = |cost: &OneStep| {
        let first = lowest_ms + cost.before_last_ms;
        (0..=parts.len()).map(move |at| first + width_ms * at as f64)
    };
    let mut edges: Vec<f64> = costs.iter().flat_map(edges_of).collect();
    edges.sort_unstable_by(f64::total_cmp);
    edges.dedup();
    let density = |bin: &[f64]| {
        let middle = (bin[0] + bin[1]) / 2.0;
        let of = |cost: &OneStep| {
            let at = (middle - cost.before_last_ms - lowest_ms) / width_ms;
            // Before the first bin there is nothing: a negative number is no index.
            let part = if at < 0.0 { 0.0 } else { parts.get(at as usize).copied().unwrap_or(0.0) };
            cost.cost * (part / width_ms)
        };
        costs.iter().map(of).sum()
    };
    let densities = edges.windows(2).map(density).collect();
    (edges, densities)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Equation 4.2, bin by bin, with the deadline at `left` and the time at 0.
    fn equation(histogram: &RunTimeHistogram, expected: f64, left: f64, b: f64) -> f64 {
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
            steps in prop::collection::vec((0.0f64..300.0, 0.1f64..5.0), 0..4),
            delay_rate in prop::sample::select(vec![1e-5, 1e-4, 1e-2, 1e-1]),
        ) {
            prop_assume!(weights.iter().sum::<f64>() > 0.01);
            let histogram = RunTimeHistogram::of_weights(lowest, width, &weights).unwrap();
            let earlier = steps.iter().map(|&(before_last_ms, cost)| OneStep { before_last_ms, cost });
            let costs: Vec<OneStep> = earlier.chain([OneStep::SLO]).collect();
            let curve = ScoreCurve::new(&histogram, histogram.mean(), &costs, delay_rate);
            let times = (0..400).map(|at| (histogram.highest_ms() + 300.0) * 1.5 * f64::from(at) / 400.0);
            for left in times {
                let of = |one: &OneStep| {
                    let left = left - one.before_last_ms;
                    one.cost * equation(&histogram, histogram.mean(), left, delay_rate)
                };
                let expected: f64 = costs.iter().map(of).sum();
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

    #[test]
    fn no_delay_rate_makes_the_curve_overflow() {
        // e^(bt) is beyond the numbers here.
        let histogram = RunTimeHistogram::of_weights(0.0, 1e4, &[1.0, 2.0, 1.0]).unwrap();
        for delay_rate in [1e-9, 1.0, 1e3] {
            let curve = ScoreCurve::new(&histogram, histogram.mean(), &[OneStep::SLO], delay_rate);
            for left_ms in [1.0, 5e3, 2.9e4, 1e5, 1e9] {
                let score = curve.at(left_ms);
                assert!((0.0..=1.0 / delay_rate).contains(&score), "{delay_rate} {left_ms}: {score}");
            }
        }
    }
}

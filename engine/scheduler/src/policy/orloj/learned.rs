//! What is learned of each application's run times from batches that have run. Of a batch only the
//! longest run time shows, so the distribution of single requests is found by inverting that of the
//! maximum (Yu's dissertation, equation 4.6): each batch adds the bins in which its requests are
//! expected to have been, given where the longest was, and older batches fade. This is the
//! expectation-maximisation algorithm, one batch a step.

use crate::run_time::{RunTimeHistogram, VaryingModel};
use alloc::vec::Vec;

/// The bins that the run times of a model's applications are counted in.
const BINS: usize = 64;

/// The room above the longest run time that is known at the start, in parts of it.
const ROOM: f64 = 0.25;

/// The requests that what is known at the start counts as.
const KNOWN: f64 = 200.0;

/// The requests of an application after which one before them has faded to a third.
const MEMORY: f64 = 1_000.0;

/// The probability that every bin has at least, before all are made to sum to 1: what never was may
/// be.
const LEAST: f64 = 1e-6;

/// The run times of a model's applications. See the module's description.
#[derive(Clone, Debug)]
pub(super) struct LearnedRunTimes {
    /// The width of a bin; the first begins at 0.
    width_ms: f64,
    /// The requests of each application that are taken to have been in each bin.
    counted: Vec<[f64; BINS]>,
    /// The requests of each application that have run, fading.
    requests: Vec<f64>,
}

impl LearnedRunTimes {
    /// Starts with what a workload says of its applications.
    pub(super) fn new(model: &VaryingModel) -> LearnedRunTimes {
        let most = model.mixture().highest_ms() * (1.0 + ROOM);
        let width_ms = most / BINS as f64;
        let counted = |of: &RunTimeHistogram| {
            let parts = of.binned(0.0, width_ms, BINS);
            core::array::from_fn(|at| KNOWN * parts[at].max(LEAST))
        };
        let shares = model.shares();
        LearnedRunTimes {
            width_ms,
            counted: model.applications.iter().map(|one| counted(&one.run_times)).collect(),
            requests: model.applications.iter().map(|one| KNOWN * one.share / shares).collect(),
        }
    }

    /// Returns the run times of an application.
    pub(super) fn of(&self, application: usize) -> RunTimeHistogram {
        self.histogram(&self.counted[application])
    }

    /// Returns the run times of all applications together.
    pub(super) fn mixture(&self) -> RunTimeHistogram {
        let mut weights = [0.0; BINS];
        for (counted, requests) in self.counted.iter().zip(&self.requests) {
            let total: f64 = counted.iter().sum();
            weights.iter_mut().zip(counted).for_each(|(sum, part)| *sum += part * requests / total);
        }
        self.histogram(&weights)
    }

    fn histogram(&self, weights: &[f64; BINS]) -> RunTimeHistogram {
        RunTimeHistogram::of_weights(0.0, self.width_ms, weights).expect("no bin is empty")
    }

    /// Notes a batch with so many requests of each application, of which the longest took
    /// `longest_ms`.
    pub(super) fn note(&mut self, counts: &[u32], longest_ms: f64) {
        let longest = ((longest_ms / self.width_ms).max(0.0) as usize).min(BINS - 1);
        let ran: Vec<usize> = (0..counts.len()).filter(|&at| counts[at] > 0).collect();
        let below: Vec<[f64; BINS + 1]> = ran.iter().map(|&at| cumulative(&self.counted[at])).collect();
        // The probability that all requests are in the first so many bins, but for one of `but`.
        let all_within = |bins: usize, but: Option<usize>| -> f64 {
            let of = |(at, &application): (usize, &usize)| {
                let count = counts[application] - u32::from(but == Some(at));
                below[at][bins].powi(count as i32)
            };
            ran.iter().enumerate().map(of).product()
        };
        let longest_there = all_within(longest + 1, None) - all_within(longest, None);
        if longest_there <= 0.0 {
            return;
        }
        for (at, &application) in ran.iter().enumerate() {
            let count = f64::from(counts[application]);
            let in_longest = all_within(longest + 1, Some(at)) / longest_there;
            let in_shorter = in_longest - all_within(longest, Some(at)) / longest_there;
            let counted = &mut self.counted[application];
            let fade = (1.0 - count / MEMORY).max(0.0);
            let total: f64 = counted.iter().sum();
            for (bin, sum) in counted.iter_mut().enumerate() {
                let part = below[at][bin + 1] - below[at][bin];
                let expected = match bin {
                    bin if bin < longest => count * part * in_shorter,
                    bin if bin == longest => count * part * in_longest,
                    _ => 0.0,
                };
                *sum = (*sum * fade + expected).max(total * LEAST);
            }
            self.requests[application] = self.requests[application] * fade + count;
        }
    }
}

/// Returns the probabilities of the first so many bins.
fn cumulative(counted: &[f64; BINS]) -> [f64; BINS + 1] {
    let total: f64 = counted.iter().sum();
    let mut sum = 0.0;
    core::array::from_fn(|at| {
        sum += at.checked_sub(1).map_or(0.0, |bin| counted[bin] / total);
        sum.min(1.0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_time::{Application, Mode};
    use symphony_transport::Nanos;

    fn model(means: &[f64]) -> VaryingModel {
        let application = |&mean_ms: &f64| Application {
            share: 1.0,
            costs: None,
            run_times: RunTimeHistogram::of_modes(&[Mode {
                weight: 1.0,
                mean_ms,
                deviation_ms: mean_ms / 10.0,
            }])
            .unwrap(),
        };
        let applications = means.iter().map(application).collect::<Vec<_>>();
        VaryingModel { fixed: Nanos::ZERO, per_request: 1.0, applications: applications.into() }
    }

    #[test]
    fn the_run_times_of_single_requests_are_found_from_the_longest_of_each_batch() {
        // It starts with both applications alike, at 100 ms; they are at 30 and 110.
        let mut learned = LearnedRunTimes::new(&model(&[100.0, 100.0]));
        let real = model(&[30.0, 110.0]);
        for batch in 0..12_000u64 {
            let rows: Vec<_> = (0..1 + batch % 4).map(|row| real.draw(3, batch * 4 + row)).collect();
            let mut counts = [0, 0];
            rows.iter().for_each(|row| counts[usize::from(row.application)] += 1);
            learned.note(&counts, rows.iter().map(|row| row.run_time_ms).fold(0.0, f64::max));
        }
        let [short, long] = [learned.of(0), learned.of(1)];
        assert!((short.mean() - 30.0).abs() < 3.0, "{}", short.mean());
        assert!((long.mean() - 110.0).abs() < 4.0, "{}", long.mean());
        assert!((learned.mixture().mean() - 70.0).abs() < 5.0, "{}", learned.mixture().mean());
    }

    #[test]
    fn a_time_beyond_all_bins_is_counted_in_the_last() {
        let mut learned = LearnedRunTimes::new(&model(&[100.0]));
        let before = learned.of(0).below(learned.width_ms * (BINS - 1) as f64);
        (0..50).for_each(|_| learned.note(&[1], 1e9));
        assert!(learned.of(0).below(learned.width_ms * (BINS - 1) as f64) < before - 0.1);
        learned.note(&[0], 5.0);
        learned.note(&[3], -1.0);
        assert!((learned.of(0).parts.iter().sum::<f64>() - 1.0).abs() < 1e-9);
    }
}

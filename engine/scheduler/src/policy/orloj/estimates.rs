//! How long a model's batches take, for each batch size, from the distributions of its
//! applications' run times (Yu's dissertation, sections 4.4.2 and 4.4.3). The longest of
//! independent run times is below l with the product of their probabilities; this is what its
//! equations 4.6 and 4.8 say of run times of like and of unlike distributions. Which requests will
//! be in a batch is not known when their priorities are, so the others are taken to be of all
//! applications, by their shares.

use super::learned::LearnedRunTimes;
use super::score::ScoreCurve;
use crate::profile::Profile;
use crate::run_time::{Application, RunTimeHistogram, VaryingModel};
use crate::step_costs::OneStep;
use alloc::boxed::Box;
use alloc::vec::Vec;
use symphony_transport::Nanos;

/// The width of the one bin of a time that is known, in parts of it.
const KNOWN_WIDTH: f64 = 1e-6;

/// The estimates of a model.
pub(super) struct Estimates {
    sizes: Box<[usize]>,
    of_sizes: Vec<SizeEstimate>,
}

/// The estimates of one batch size.
struct SizeEstimate {
    /// The mean time of a batch, of requests of all applications.
    expected: Nanos,
    /// The estimates of a batch with a request of each application.
    of_applications: Vec<ApplicationEstimate>,
}

struct ApplicationEstimate {
    expected: Nanos,
    curve: ScoreCurve,
}

impl Estimates {
    /// Returns the estimates of a model whose batches take what its profile says. `delay_rate` is
    /// that of [`ScoreCurve::new`].
    pub(super) fn of_profile(sizes: &[usize], profile: &Profile, delay_rate: f64) -> Estimates {
        let of_size = |&size: &usize| {
            let expected = profile.latency(size);
            let ms = expected.as_millis_f64();
            let times = RunTimeHistogram { lowest_ms: ms, width_ms: ms * KNOWN_WIDTH, parts: vec![1.0] };
            let curve = ScoreCurve::new(&times, ms, &[OneStep::SLO], delay_rate);
            SizeEstimate { expected, of_applications: vec![ApplicationEstimate { expected, curve }] }
        };
        Estimates { sizes: sizes.into(), of_sizes: sizes.iter().map(of_size).collect() }
    }

    /// Returns the estimates of a model by what was learned of its applications. `delay_rate` is
    /// that of [`ScoreCurve::new`].
    pub(super) fn of_distributions(
        sizes: &[usize],
        model: &VaryingModel,
        learned: &LearnedRunTimes,
        delay_rate: f64,
    ) -> Estimates {
        let mixture = learned.mixture();
        let of_application = |(at, one): (usize, &Application)| (learned.of(at), one.cost_parts());
        let own: Vec<_> = model.applications.iter().enumerate().map(of_application).collect();
        let of_size = |&size: &usize| {
            let mean = batch_times(model, size, &longest(&mixture, &mixture, size)).mean();
            let of_application = |(own, costs): &(RunTimeHistogram, Vec<OneStep>)| {
                let times = batch_times(model, size, &longest(own, &mixture, size));
                ApplicationEstimate {
                    expected: Nanos::from_millis_f64(times.mean()),
                    curve: ScoreCurve::new(&times, mean, costs, delay_rate),
                }
            };
            SizeEstimate {
                expected: Nanos::from_millis_f64(mean),
                of_applications: own.iter().map(of_application).collect(),
            }
        };
        Estimates { sizes: sizes.into(), of_sizes: sizes.iter().map(of_size).collect() }
    }

    /// Returns the batch sizes, the smallest first.
    pub(super) fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    /// Returns the mean time of a batch of the size at this index.
    pub(super) fn expected(&self, at: usize) -> Nanos {
        self.of_sizes[at].expected
    }

    /// Returns the mean time of one that has a request of this application.
    pub(super) fn expected_with(&self, at: usize, application: usize) -> Nanos {
        self.of_sizes[at].of_applications[application].expected
    }

    /// Returns the priority of the application's requests in such a batch.
    pub(super) fn curve(&self, at: usize, application: usize) -> &ScoreCurve {
        &self.of_sizes[at].of_applications[application].curve
    }
}

/// Returns the distribution of the longest run time of `size` requests: one of `own` and the others
/// of `others`, which has the same bins.
fn longest(own: &RunTimeHistogram, others: &RunTimeHistogram, size: usize) -> RunTimeHistogram {
    let (mut own_below, mut others_below, mut before) = (0.0, 0.0, 0.0);
    let bin = |(own, other): (&f64, &f64)| {
        own_below += own;
        others_below += other;
        let below = own_below * f64::powi(others_below, size as i32 - 1);
        let part = below - before;
        before = below;
        part
    };
    RunTimeHistogram { parts: own.parts.iter().zip(&others.parts).map(bin).collect(), ..own.clone() }
}

/// Returns the distribution of the time of a batch of `size` whose longest run time is so
/// distributed (equation 4.9).
fn batch_times(model: &VaryingModel, size: usize, longest: &RunTimeHistogram) -> RunTimeHistogram {
    RunTimeHistogram {
        lowest_ms: model.batch_ms(size, longest.lowest_ms),
        width_ms: model.per_request * size as f64 * longest.width_ms,
        parts: longest.parts.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_time::Mode;

    #[test]
    fn the_mean_time_of_batches_is_that_of_drawn_ones() {
        let application = |mean_ms: f64| Application {
            share: 1.0,
            costs: None,
            run_times: RunTimeHistogram::of_modes(&[Mode {
                weight: 1.0,
                mean_ms,
                deviation_ms: mean_ms / 8.0,
            }])
            .unwrap(),
        };
        let applications = [application(20.0), application(80.0)];
        let model = VaryingModel {
            fixed: Nanos::from_millis(3),
            per_request: 0.4,
            applications: applications.into(),
        };
        let sizes = [1, 2, 4, 8];
        let estimates = Estimates::of_distributions(&sizes, &model, &LearnedRunTimes::new(&model), 1e-4);
        let mean_of = |size: usize, with: Option<u8>| {
            let batches: Vec<f64> = (0..20_000u64)
                .map(|batch| (0..size as u64).map(|row| model.draw(2, batch * 8 + row)).collect::<Vec<_>>())
                .filter(|rows| with.is_none_or(|with| rows[0].application == with))
                .map(|rows| model.batch_ms(size, rows.iter().map(|row| row.run_time_ms).fold(0.0, f64::max)))
                .collect();
            batches.iter().sum::<f64>() / batches.len() as f64
        };
        for (at, &size) in sizes.iter().enumerate() {
            let pairs = [
                (estimates.expected(at), mean_of(size, None)),
                (estimates.expected_with(at, 0), mean_of(size, Some(0))),
                (estimates.expected_with(at, 1), mean_of(size, Some(1))),
            ];
            for (estimate, drawn) in pairs {
                assert!(
                    (estimate.as_millis_f64() / drawn - 1.0).abs() < 0.03,
                    "{size}: {estimate:?} {drawn}"
                );
            }
        }
    }
}

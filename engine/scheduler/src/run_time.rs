//! Requests of one model whose run times differ: an early-exit network, a text of any length. Each
//! request has a run time of its own, which nobody knows before it has run; what is known is the
//! application that it comes from, and the histogram of that application's run times. A batch of k
//! requests is padded to the longest, so it takes c0 + c1 k max(l) (Yu's dissertation, section
//! 4.4.2, equations 4.3 and 4.4).

use crate::profile::{Profile, ProfileError};
use crate::step_costs::{OneStep, StepCosts};
use alloc::sync::Arc;
use alloc::vec::Vec;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, LogNormal, Normal};
use rand_pcg::Pcg64Mcg;
use symphony_transport::Nanos;

/// The bins of a histogram that is made of a distribution.
const BINS: usize = 128;

/// The samples that such a histogram is made of.
const SAMPLES: usize = 200_000;

/// The share of an application's batches, in percent, that take no longer than the default's
/// profile of it says (docs/varying.md).
pub const WITHIN_PERCENT: usize = 85;

/// The share of its batches of one, in percent, that take no longer than the profile says that they
/// do [at best](Profile::at_best).
pub const AT_BEST_PERCENT: usize = 33;

/// The applications of a model at most: a request's message has a byte for its own.
pub const MAX_APPLICATIONS: usize = 256;

/// How long batches take whose requests have run times of their own.
#[derive(Clone, Debug, PartialEq)]
pub struct VaryingModel {
    /// c0: the part of a batch's time that does not depend on its requests.
    pub fixed: Nanos,
    /// c1: the part of the longest run time that each request adds to its batch.
    pub per_request: f64,
    /// Where the requests come from, at most [`MAX_APPLICATIONS`].
    pub applications: Arc<[Application]>,
}

/// An application that sends requests to a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Application {
    /// The application's part of the model's requests, compared with the others'.
    pub share: f64,
    /// The run times of its requests.
    pub run_times: RunTimeHistogram,
    /// What a request costs by its latency; `None` where missing the SLO costs 1, and nothing else
    /// anything.
    pub costs: Option<StepCosts>,
}

impl Application {
    /// Returns the functions of one step whose sum a request's cost is.
    pub fn cost_parts(&self) -> Vec<OneStep> {
        self.costs.as_ref().map_or_else(|| vec![OneStep::SLO], StepCosts::parts)
    }
}

/// What a simulation knows of a request that no scheduler does.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct DrawnRequest {
    /// The index of the application that it comes from.
    pub application: u8,
    /// The request's own run time, ms.
    pub run_time_ms: f64,
}

impl VaryingModel {
    /// Returns the time of a batch of `size` requests the longest of which has this run time, ms.
    pub fn batch_ms(&self, size: usize, longest_ms: f64) -> f64 {
        self.fixed.as_millis_f64() + self.per_request * size as f64 * longest_ms
    }

    /// Returns the longest run time, ms, of the requests of a batch of `size` that took `batch_ms`:
    /// the inverse of [`VaryingModel::batch_ms`].
    pub fn longest_ms(&self, size: usize, batch_ms: f64) -> f64 {
        (batch_ms - self.fixed.as_millis_f64()) / (self.per_request * size as f64)
    }

    /// Returns the sum of the applications' shares.
    pub fn shares(&self) -> f64 {
        self.applications.iter().map(|one| one.share).sum()
    }

    /// Returns true if the requests of any application have costs of their own.
    pub fn has_costs(&self) -> bool {
        self.applications.iter().any(|one| one.costs.is_some())
    }

    /// Returns what a request of an application costs that was answered after `latency`, in time or
    /// not; that was never answered, where it is `None`.
    pub fn cost(&self, application: u8, latency: Option<Nanos>, in_time: bool) -> f64 {
        match &self.applications[usize::from(application)].costs {
            None => {
                if in_time {
                    0.0
                } else {
                    1.0
                }
            }
            Some(costs) => latency.map_or_else(|| costs.most(), |latency| costs.of(latency)),
        }
    }

    /// Draws the request of this number: always the same one for a seed.
    pub fn draw(&self, seed: u64, number: u64) -> DrawnRequest {
        let mut random = Pcg64Mcg::seed_from_u64(seed ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let mut left = random.random::<f64>() * self.shares();
        let chosen = self.applications.iter().position(|one| {
            left -= one.share;
            left < 0.0
        });
        let at = chosen.unwrap_or(self.applications.len() - 1);
        let run_time_ms = self.applications[at].run_times.quantile(random.random());
        DrawnRequest { application: at as u8, run_time_ms }
    }

    /// Returns the histogram of all applications' requests together.
    pub fn mixture(&self) -> RunTimeHistogram {
        let least = self.applications.iter().map(|one| one.run_times.lowest_ms).fold(f64::INFINITY, f64::min);
        let most = self.applications.iter().map(|one| one.run_times.highest_ms()).fold(0.0, f64::max);
        let mut mixture = RunTimeHistogram {
            lowest_ms: least,
            width_ms: (most - least) / BINS as f64,
            parts: vec![0.0; BINS],
        };
        let total = self.shares();
        for one in &*self.applications {
            let binned = one.run_times.binned(mixture.lowest_ms, mixture.width_ms, BINS);
            mixture.parts.iter_mut().zip(binned).for_each(|(sum, part)| *sum += part * one.share / total);
        }
        mixture
    }

    /// Returns the profile that stands for the model where a scheduler wants one number for each
    /// batch size, up to `max_batch`: by the mean run time, or so that a batch exceeds it with a
    /// probability of 1 - `estimate`.
    ///
    /// Errors: those of [`Profile::measured`].
    pub fn profile(&self, estimate: RunTimeEstimate, max_batch: usize) -> Result<Profile, ProfileError> {
        let mixture = self.mixture();
        let longest = |size: usize| match estimate {
            RunTimeEstimate::Mean => mixture.mean(),
            // The longest of k is below l with a probability of F(l)^k (equation 4.6).
            RunTimeEstimate::Quantile(quantile) => mixture.quantile(quantile.powf(1.0 / size as f64)),
        };
        let latency = |size| Nanos::from_millis_f64(self.batch_ms(size, longest(size)));
        Profile::measured(&(1..=max_batch).map(latency).collect::<Vec<_>>())
    }
}

/// The number that stands for run times that differ.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RunTimeEstimate {
    /// The mean of the requests' run times, as if all had it.
    Mean,
    /// The run time that the longest request of a batch exceeds with the probability that is left.
    Quantile(f64),
}

/// A distribution of run times, in bins of one width: within a bin all are equally likely.
#[derive(Clone, Debug, PartialEq)]
pub struct RunTimeHistogram {
    /// The lower edge of the first bin, ms.
    pub lowest_ms: f64,
    /// The width of a bin, ms.
    pub width_ms: f64,
    /// The probability of each bin; they sum to 1.
    pub parts: Vec<f64>,
}

/// The reason why numbers are no histogram of run times.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum HistogramError {
    /// Bins without any part above 0, or no bins.
    #[error("it has no bin with a weight above 0")]
    Empty,
    /// A number is not finite, or below 0, or a width is 0.
    #[error("{0} is {1}; it must be a finite number {2}")]
    Number(&'static str, f64, &'static str),
}

/// A mode of a distribution: a normal distribution, of which what is below a hundredth of the mean
/// is left out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mode {
    /// The mode's part, compared with the others'.
    pub weight: f64,
    /// The mean, ms.
    pub mean_ms: f64,
    /// The standard deviation, ms.
    pub deviation_ms: f64,
}

impl RunTimeHistogram {
    /// Returns the histogram of bins from `lowest_ms` on, with these weights.
    ///
    /// Errors: numbers that make none.
    pub fn of_weights(
        lowest_ms: f64,
        width_ms: f64,
        weights: &[f64],
    ) -> Result<RunTimeHistogram, HistogramError> {
        let number = |name, value: f64, above: bool| {
            let right = if above { "above 0" } else { "of 0 or more" };
            let is_right = value.is_finite() && (value > 0.0 || (!above && value == 0.0));
            if is_right { Ok(()) } else { Err(HistogramError::Number(name, value, right)) }
        };
        number("the first edge", lowest_ms, false)?;
        number("the width of a bin", width_ms, true)?;
        weights.iter().try_for_each(|&weight| number("a weight", weight, false))?;
        let total: f64 = weights.iter().sum();
        if total <= 0.0 {
            return Err(HistogramError::Empty);
        }
        Ok(RunTimeHistogram {
            lowest_ms,
            width_ms,
            parts: weights.iter().map(|weight| weight / total).collect(),
        })
    }

    /// Returns a mixture of normal distributions.
    ///
    /// Errors: numbers that make none.
    pub fn of_modes(modes: &[Mode]) -> Result<RunTimeHistogram, HistogramError> {
        let total: f64 = modes.iter().map(|mode| mode.weight).sum();
        let mut random = Pcg64Mcg::seed_from_u64(1);
        let mut samples = Vec::with_capacity(SAMPLES);
        for mode in modes {
            let normal = Normal::new(mode.mean_ms, mode.deviation_ms).map_err(|_| {
                HistogramError::Number("a standard deviation", mode.deviation_ms, "of 0 or more")
            })?;
            if !(mode.mean_ms.is_finite() && mode.mean_ms > 0.0) {
                return Err(HistogramError::Number("a mean", mode.mean_ms, "above 0"));
            }
            let count = (SAMPLES as f64 * mode.weight / total) as usize;
            let least = mode.mean_ms / 100.0;
            samples.extend(normal.sample_iter(&mut random).filter(|&sample| sample >= least).take(count));
        }
        RunTimeHistogram::of_samples(&samples)
    }

    /// Returns a log-normal distribution of this median, ms, and this standard deviation of the
    /// logarithm.
    ///
    /// Errors: numbers that make none.
    pub fn log_normal(median_ms: f64, sigma: f64) -> Result<RunTimeHistogram, HistogramError> {
        if !(median_ms.is_finite() && median_ms > 0.0) {
            return Err(HistogramError::Number("the median", median_ms, "above 0"));
        }
        let distribution = LogNormal::new(median_ms.ln(), sigma)
            .map_err(|_| HistogramError::Number("sigma", sigma, "of 0 or more"))?;
        let random = Pcg64Mcg::seed_from_u64(1);
        RunTimeHistogram::of_samples(&distribution.sample_iter(random).take(SAMPLES).collect::<Vec<_>>())
    }

    /// Returns the histogram of samples, ms. The thousandth that is longest is counted into the
    /// last bin.
    ///
    /// Errors: there is none.
    pub fn of_samples(samples: &[f64]) -> Result<RunTimeHistogram, HistogramError> {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (Some(&least), Some(&most)) =
            (sorted.first(), sorted.get(sorted.len().saturating_sub(1) * 999 / 1000))
        else {
            return Err(HistogramError::Empty);
        };
        // A constant has a bin too.
        let width = ((most - least) / BINS as f64).max(least * 1e-6);
        let mut weights = vec![0.0; BINS];
        for sample in sorted {
            weights[(((sample - least) / width) as usize).min(BINS - 1)] += 1.0;
        }
        RunTimeHistogram::of_weights(least, width, &weights)
    }

    /// Returns the upper edge of the last bin, ms.
    pub fn highest_ms(&self) -> f64 {
        self.lowest_ms + self.width_ms * self.parts.len() as f64
    }

    /// Returns the mean, ms.
    pub fn mean(&self) -> f64 {
        let middle = |at: usize| self.lowest_ms + self.width_ms * (at as f64 + 0.5);
        self.parts.iter().enumerate().map(|(at, part)| part * middle(at)).sum()
    }

    /// Returns the probability of at most this run time.
    pub fn below(&self, ms: f64) -> f64 {
        let bins = ((ms - self.lowest_ms) / self.width_ms).clamp(0.0, self.parts.len() as f64);
        let whole = bins as usize;
        let part = self.parts.get(whole).map_or(0.0, |part| part * (bins - whole as f64));
        self.parts[..whole].iter().sum::<f64>() + part
    }

    /// Returns the run time, ms, that is not exceeded with this probability.
    pub fn quantile(&self, probability: f64) -> f64 {
        let mut left = probability;
        for (at, &part) in self.parts.iter().enumerate() {
            if left <= part && part > 0.0 {
                return self.lowest_ms + self.width_ms * (at as f64 + left / part);
            }
            left -= part;
        }
        self.highest_ms()
    }

    /// Returns the probabilities of `count` other bins; what is beyond them is in the outer ones.
    pub fn binned(&self, lowest_ms: f64, width_ms: f64, count: usize) -> Vec<f64> {
        let upto = |at: usize| match at {
            0 => 0.0,
            at if at == count => 1.0,
            at => self.below(lowest_ms + width_ms * at as f64),
        };
        (0..count).map(|at| upto(at + 1) - upto(at)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bimodal() -> VaryingModel {
        let mode = |weight, mean_ms| Mode { weight, mean_ms, deviation_ms: 1.0 };
        let short = RunTimeHistogram::of_modes(&[mode(1.0, 10.0)]).unwrap();
        let long = RunTimeHistogram::of_modes(&[mode(1.0, 100.0)]).unwrap();
        let applications = [(3.0, short), (1.0, long)].map(|(share, run_times)| Application {
            share,
            run_times,
            costs: None,
        });
        VaryingModel { fixed: Nanos::from_millis(5), per_request: 0.5, applications: applications.into() }
    }

    #[test]
    fn a_number_draws_the_same_request_again_and_numbers_draw_the_distribution() {
        let model = bimodal();
        let drawn: Vec<DrawnRequest> = (0..20_000).map(|number| model.draw(7, number)).collect();
        assert_eq!(model.draw(7, 123), drawn[123]);
        assert_ne!(model.draw(8, 123), drawn[123]);
        let long = drawn.iter().filter(|one| one.application == 1).count();
        assert!((4_700..5_300).contains(&long), "{long}");
        assert!(drawn.iter().all(|one| (one.run_time_ms > 50.0) == (one.application == 1)));
        let mean = drawn.iter().map(|one| one.run_time_ms).sum::<f64>() / drawn.len() as f64;
        assert!((mean / model.mixture().mean() - 1.0).abs() < 0.02, "{mean}");
    }

    #[test]
    fn the_profile_of_the_mean_is_short_of_most_batches_and_that_of_a_quantile_of_few() {
        let model = bimodal();
        let mean = model.profile(RunTimeEstimate::Mean, 8).unwrap();
        let high = model.profile(RunTimeEstimate::Quantile(0.95), 8).unwrap();
        let exceeded = |profile: &Profile| {
            let batch = |number: u64| {
                let longest =
                    (0..8).map(|row| model.draw(1, 8 * number + row).run_time_ms).fold(0.0, f64::max);
                Nanos::from_millis_f64(model.batch_ms(8, longest)) > profile.latency(8)
            };
            (0..2_000).filter(|&number| batch(number)).count()
        };
        assert!(exceeded(&mean) > 1_600);
        assert!((50..150).contains(&exceeded(&high)), "{}", exceeded(&high));
    }

    #[test]
    fn the_longest_run_time_follows_from_the_time_of_a_batch() {
        let model = bimodal();
        assert!((model.longest_ms(6, model.batch_ms(6, 80.0)) - 80.0).abs() < 1e-9);
    }

    #[test]
    fn a_quantile_is_the_inverse_of_the_share_below() {
        for histogram in [bimodal().mixture(), RunTimeHistogram::log_normal(20.0, 0.5).unwrap()] {
            for probability in [0.01, 0.3, 0.5, 0.9, 0.99] {
                let ms = histogram.quantile(probability);
                assert!((histogram.below(ms) - probability).abs() < 1e-9, "{probability}: {ms}");
            }
            assert!((histogram.binned(0.0, 3.0, 100).iter().sum::<f64>() - 1.0).abs() < 1e-9);
        }
    }

    #[test]
    fn numbers_that_are_no_distribution_are_refused() {
        assert_eq!(RunTimeHistogram::of_weights(0.0, 1.0, &[0.0, 0.0]), Err(HistogramError::Empty));
        assert!(RunTimeHistogram::of_weights(0.0, 0.0, &[1.0]).is_err());
        assert!(RunTimeHistogram::of_weights(0.0, 1.0, &[-1.0]).is_err());
        assert!(
            RunTimeHistogram::of_modes(&[Mode { weight: 1.0, mean_ms: 0.0, deviation_ms: 1.0 }]).is_err()
        );
        assert!(RunTimeHistogram::log_normal(f64::NAN, 1.0).is_err());
    }
}

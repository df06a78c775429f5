//! The search for a workload's goodput: the highest total rate at which every model's and every
//! query's bad rate is at most 1 %.

use super::arrivals::ArrivalError;
use super::gpus::Fault;
use super::report::{ModelReport, Report, of_highest};
use super::simulation::{simulate, simulate_until};
use super::traffic::Traffic;
use crate::policy::{Policy, PolicyOptions};
use crate::workload::Workload;

/// The bad rate that a model may have.
pub const ALLOWED_BAD_RATE: f64 = 0.01;

/// The search ends when the rates known to be good and bad are this close.
const RESOLUTION: f64 = 1.005;

/// Below this share of the GPUs' ideal rate the search gives up: not even single requests pass.
const HOPELESS: f64 = 1e-4;

/// The part of the requests that may be bad on average, from which on it is likely that a model has
/// more.
const LIKELY: f64 = 0.8;

/// Searches for the goodput and returns the report of the best run that passed, its `goodput_rps`
/// set to the rate that it was really offered; where no rate passes, that of the lowest rate tried,
/// with a goodput of 0. `progress` is called with each rate before
/// it is tried.
///
/// Errors: those of [`simulate`].
pub fn search(
    workload: &Workload,
    policy: &dyn Policy,
    options: &PolicyOptions,
    progress: &mut dyn FnMut(f64),
) -> Result<Report, ArrivalError> {
    let at = |rate: f64| Workload { rate_rps: rate, ..workload.clone() };
    let mut passes = |rate: f64| {
        progress(rate);
        passing(&at(rate), policy, options)
    };
    let ideal = ideal_rate(workload);
    let mut bad = ideal * 1.05;
    let mut best = loop {
        let rate = bad / 1.5;
        if let Some(report) = passes(rate)? {
            break report;
        }
        if rate < ideal * HOPELESS {
            return Ok(Report { goodput_rps: Some(0.0), ..simulate(&at(rate), policy, options)? });
        }
        bad = rate;
    };
    while bad / best.rate_rps > RESOLUTION {
        let rate = (bad * best.rate_rps).sqrt();
        match passes(rate)? {
            Some(report) => best = report,
            None => bad = rate,
        }
    }
    best.goodput_rps = Some(best.offered_rps);
    Ok(best)
}

/// Runs `workload` under `policy` and returns the report if every model's and query's bad rate is
/// at most 1 %. A run ends as soon as a model can't have that any more.
///
/// Errors: those of [`simulate`].
pub fn passing(
    workload: &Workload,
    policy: &dyn Policy,
    options: &PolicyOptions,
) -> Result<Option<Report>, ArrivalError> {
    let mut offered = vec![None; workload.models.len()];
    let mut lost = false;
    let is_over = |models: &[ModelReport], traffic: &Traffic| {
        lost = of_highest(models).any(|(at, counts)| {
            // Those to come are drawn beforehand only where that is likely to end the run.
            let expected = workload.rate_rps * workload.models[at].share * workload.duration.as_secs_f64();
            let bad = counts.bad() as f64;
            bad > LIKELY * ALLOWED_BAD_RATE * expected
                && bad / *offered[at].get_or_insert_with(|| counts.offered as f64 + traffic.left(at) as f64)
                    > ALLOWED_BAD_RATE
        });
        lost
    };
    let report = simulate_until(workload, policy, options, Fault::default(), &mut (), is_over)?;
    Ok((!lost && report.worst_bad_rate <= ALLOWED_BAD_RATE).then_some(report))
}

/// Returns the rate at which GPUs that always ran the largest batches that the SLOs allow would be
/// full: no schedule passes above it.
pub fn ideal_rate(workload: &Workload) -> f64 {
    let seconds_per_request: f64 = workload
        .models
        .iter()
        .zip(workload.request_shares())
        .map(|(model, share)| {
            let least = (1..=model.profile.max_batch())
                .filter(|&size| size == 1 || model.profile.latency(size) <= model.slo)
                .map(|size| model.profile.latency(size).as_secs_f64() / size as f64)
                .fold(f64::INFINITY, f64::min);
            share * least
        })
        .sum();
    workload.gpus as f64 / seconds_per_request
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy;
    use crate::profile::Profile;
    use crate::workload::{Arrival, WorkloadModel};
    use symphony_transport::Nanos;
    use symphony_transport::message::Class;

    #[test]
    fn a_run_that_ends_early_passes_where_a_whole_one_does() {
        let model = |slo_ms: u64, shape: f64| {
            let profile = Profile::linear(Nanos::from_millis(1), Nanos::from_millis(5), 32).unwrap();
            let model = WorkloadModel::new("m", profile, Nanos::from_millis(slo_ms));
            WorkloadModel { arrival: Arrival::Gamma(shape), ..model }
        };
        let mut models = vec![model(25, 0.3), model(60, 1.0), model(20, 0.5)];
        models[2].class = Class::new(1).unwrap();
        let policy = policy::by_name("work-conserving").unwrap();
        let options = PolicyOptions::default();
        let mut counts = [0; 2];
        for seed in 0..5 {
            for load in 12..32 {
                let workload = Workload { seed, ..Workload::of_models(3, 1.0, models.clone()) };
                let rate_rps = f64::from(load) * 0.05 * ideal_rate(&workload);
                let workload = Workload { rate_rps, duration: Nanos::from_secs(10), ..workload };
                let whole = simulate(&workload, policy, &options).unwrap();
                let passes = whole.worst_bad_rate <= ALLOWED_BAD_RATE;
                let early = passing(&workload, policy, &options).unwrap();
                assert_eq!(early.map(|one| one.events), passes.then_some(whole.events), "{rate_rps} {seed}");
                counts[usize::from(passes)] += 1;
            }
        }
        assert!(counts.iter().all(|&count| count > 10), "{counts:?}");
    }

    #[test]
    fn rules_that_defer_come_near_the_ideal_rate_where_large_batches_take_longer_for_each_request() {
        // 5 ms up to 16 requests, and 2 ms more for each further one.
        let latency = |size: u64| Nanos::from_millis(5 + 2 * size.saturating_sub(16));
        let profile = Profile::measured(&(1..=32).map(latency).collect::<Vec<_>>()).unwrap();
        let model = WorkloadModel::new("m", profile, Nanos::from_millis(45));
        let model = WorkloadModel { arrival: Arrival::Gamma(0.3), ..model };
        let workload = Workload::of_models(4, 1.0, vec![model; 4]);
        let rate_rps = 0.9 * ideal_rate(&workload);
        let workload = Workload { rate_rps, duration: Nanos::from_secs(5), ..workload };
        for name in ["symphony", "symphony-published", "work-conserving"] {
            let policy = policy::by_name(name).unwrap();
            let passes = passing(&workload, policy, &PolicyOptions::default()).unwrap();
            assert!(passes.is_some_and(|report| report.mean_batch <= 16.0), "{name}");
        }
    }
}

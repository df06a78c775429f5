//! The search for a workload's goodput: the highest total rate at which every model's and every
//! query's bad rate is at most 1 %.

use super::arrivals::ArrivalError;
use super::report::Report;
use super::simulation::simulate;
use crate::policy::{Policy, PolicyOptions};
use crate::workload::Workload;

/// The bad rate that a model may have.
pub const ALLOWED_BAD_RATE: f64 = 0.01;

/// The search ends when the rates known to be good and bad are this close.
const RESOLUTION: f64 = 1.005;

/// Below this share of the GPUs' ideal rate the search gives up: not even single requests pass.
const HOPELESS: f64 = 1e-4;

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
    let mut run = |rate: f64| {
        progress(rate);
        simulate(&Workload { rate_rps: rate, ..workload.clone() }, policy, options)
    };
    let passes = |report: &Report| report.worst_bad_rate <= ALLOWED_BAD_RATE;
    let ideal = ideal_rate(workload);
    let mut bad = ideal * 1.05;
    let mut best = loop {
        let rate = bad / 1.5;
        let report = run(rate)?;
        if passes(&report) {
            break report;
        }
        if rate < ideal * HOPELESS {
            return Ok(Report { goodput_rps: Some(0.0), ..report });
        }
        bad = rate;
    };
    while bad / best.rate_rps > RESOLUTION {
        let report = run((bad * best.rate_rps).sqrt())?;
        if passes(&report) {
            best = report;
        } else {
            bad = report.rate_rps;
        }
    }
    best.goodput_rps = Some(best.offered_rps);
    Ok(best)
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

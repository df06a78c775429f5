//! The goodput of a rule on a workload, found with few runs: rates are points of a grid, the search
//! starts from the point that was found for a part of the workload, for another rule or for another
//! seed, and doubles its strides until the point lies between two.
//!
//! Every rule sees the same requests at a point, so two rules that decide the same have the same
//! goodput to the last digit.

use super::generator::at_rate;
use super::rules::Rule;
use symphony_scheduler::sim::arrivals::{ArrivalError, stream_seed};
use symphony_scheduler::sim::goodput::ideal_rate;
use symphony_scheduler::sim::grid::{bisect, highest};
use symphony_scheduler::workload::Workload;
use symphony_transport::Nanos;

/// The ratio of neighbouring rates.
const STEP: f64 = 1.01;

/// Point 0 in multiples of the ideal rate: no rule passes there, but for the requests that may be
/// bad.
const HIGHEST: f64 = 1.05;

/// The last point, at a ten-thousandth of the ideal rate: below it a goodput is 0.
pub(super) const LAST: usize = 930;

/// The point at which the first search of a workload starts: 0.7 of the ideal rate.
pub(super) const FIRST: usize = 41;

/// The part of the duration in which the search looks for the neighbourhood.
const BRIEF: u64 = 8;

/// The shortest such time.
const BRIEF_LEAST: Nanos = Nanos::from_secs(1);

/// The first stride of a search in a neighbourhood that is not known, and in one that is.
const STRIDES: [usize; 2] = [8, 2];

/// The parts into which [`refined_goodput`] divides a step of the grid.
const REFINED: usize = 8;

/// What was found for a rule on a workload.
#[derive(Clone, Debug, PartialEq)]
pub struct Goodputs {
    /// Requests per second, for each seed; 0 where no rate passes.
    pub rps: Vec<f64>,
    /// The point of the first seed: where a search for another rule may start.
    pub point: usize,
}

/// Searches the goodput of `rule` on `workload` with `seeds` seeds. `near`: the point of another
/// rule, if one is known.
///
/// Errors: those of [`Rule::passes`].
pub fn goodputs(
    rule: &Rule,
    workload: &Workload,
    seeds: usize,
    near: Option<usize>,
) -> Result<Goodputs, ArrivalError> {
    let at = |seed: usize, point: usize| {
        let seed = stream_seed(workload.seed, seed as u64);
        Workload { seed, ..at_rate(workload, rate(workload, point as f64)) }
    };
    let mut point = near.unwrap_or(FIRST);
    let found = highest(point, STRIDES[0], LAST, |point| {
        let whole = at(0, point);
        let duration = Nanos(whole.duration.0 / BRIEF).max(BRIEF_LEAST).min(whole.duration);
        Ok(rule.passes(&Workload { duration, ..whole })?.is_some())
    })?;
    point = found.unwrap_or(LAST);
    let mut result = Goodputs { rps: Vec::new(), point };
    for seed in 0..seeds {
        let mut offered = 0.0;
        let found = highest(point, STRIDES[1], LAST, |point| {
            let rate = rule.passes(&at(seed, point))?;
            offered = rate.unwrap_or(offered);
            Ok(rate.is_some())
        })?;
        result.rps.push(if found.is_some() { offered } else { 0.0 });
        point = found.unwrap_or(LAST);
        result.point = if seed == 0 { point } else { result.point };
    }
    Ok(result)
}

/// Searches the goodput of `rule` on `workload` with the workload's own seed, on a grid 8 times as
/// fine.
///
/// Errors: those of [`Rule::passes`].
pub fn refined_goodput(rule: &Rule, workload: &Workload) -> Result<f64, ArrivalError> {
    let mut offered = 0.0;
    let mut passes = |point: f64| {
        let found = rule.passes(&Workload { rate_rps: rate(workload, point), ..workload.clone() })?;
        offered = found.unwrap_or(offered);
        Ok(found.is_some())
    };
    let Some(point) = highest(FIRST, STRIDES[0], LAST, |point| passes(point as f64))? else { return Ok(0.0) };
    if let Some(bad) = point.checked_sub(1) {
        bisect(0, REFINED, |part| passes(bad as f64 + part as f64 / REFINED as f64))?;
    }
    Ok(offered)
}

/// The rate of a point of the grid, or of one between two.
pub(super) fn rate(workload: &Workload, point: f64) -> f64 {
    HIGHEST * ideal_rate(workload) * STEP.powf(-point)
}

#[cfg(test)]
mod tests {
    use super::*;
    use symphony_scheduler::profile::Profile;
    use symphony_scheduler::workload::WorkloadModel;

    #[test]
    fn the_goodput_is_that_of_the_exact_search() {
        let profile = Profile::linear(Nanos(1_053_000), Nanos(5_072_000), 18).unwrap();
        let model = WorkloadModel::new("ResNet50", profile, Nanos::from_millis(25));
        let workload = Workload::of_models(8, 1.0, vec![model]);
        let rule: Rule = "symphony-published:window".parse().unwrap();
        let found = goodputs(&rule, &workload, 2, None).unwrap();
        // Figure of the paper's Table 4, with the default's search.
        assert!(found.rps.iter().all(|rps| (rps / 5_330.0 - 1.0).abs() < 0.02), "{found:?}");
        let again = goodputs(&rule, &workload, 1, Some(found.point + 3)).unwrap();
        assert_eq!(again.rps[0], found.rps[0]);
        let seed = stream_seed(workload.seed, 0);
        let refined = refined_goodput(&rule, &Workload { seed, ..workload }).unwrap() / found.rps[0];
        assert!((1.0..1.011).contains(&refined), "{refined}");
    }
}

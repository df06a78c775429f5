//! The goodput of a rule on a workload, found with few runs: rates are points of a grid, the search
//! starts from the point that one rule has with a part of the workload, doubles its strides until
//! the goodput lies between two points, and looks a few steps beyond. What is found depends on the
//! rule, the workload and its seeds alone.
//!
//! Every rule sees the same requests at a point, so two rules that decide the same have the same
//! goodput to the last digit.

use super::generator::at_rate;
use super::rules::Rule;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use symphony_scheduler::sim::arrivals::{ArrivalError, drawn, stream_seed};
use symphony_scheduler::sim::goodput::ideal_rate;
use symphony_scheduler::sim::grid::{beyond, bisect, highest};
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

/// The steps above a rate that passes at which the search looks for another one: where bad rates
/// stay at 1 % over a range of rates, the nearest rate that fails says little.
const BEYOND: [usize; 3] = [1, 3, 6];

/// The arrivals that are drawn beforehand, in those that a run in the neighbourhood has; and at
/// most so many for each seed, which is 32 MiB.
const DRAWN: (f64, f64) = (1.1, 4e6);

/// The rule by which the neighbourhood is found: the default without its tuner, which takes most of
/// the time of a run, at the setting that is best where one has to do for all. At a
/// price of 0 its own drop rule is `timeout`, but for the precedence of overloaded models.
const GUIDE: &str = "symphony:timeout@0/3/1";

/// Returns the point near which the goodputs of good rules on `workload` are, by a part of the
/// workload.
///
/// Errors: those of [`Rule::passes`].
pub fn neighbourhood(workload: &Workload) -> Result<usize, ArrivalError> {
    let guide: Rule = GUIDE.parse().expect("it is a rule");
    let first = of_seed(workload, 0);
    let found = highest(FIRST, STRIDES[0], LAST, |point| {
        let whole = at(&first, point);
        let duration = Nanos(whole.duration.0 / BRIEF).max(BRIEF_LEAST).min(whole.duration);
        Ok(guide.passes(&Workload { duration, ..whole })?.is_some())
    })?;
    Ok(found.unwrap_or(LAST))
}

/// Returns the workload with the seed of this number.
pub(super) fn of_seed(workload: &Workload, number: usize) -> Workload {
    Workload { seed: stream_seed(workload.seed, number as u64), ..workload.clone() }
}

/// Returns the workload at the rate of this point.
fn at(workload: &Workload, point: usize) -> Workload {
    at_rate(workload, rate(workload, point as f64))
}

/// Returns about how many requests a run of the workload simulates.
pub(super) fn requests(workload: &Workload) -> f64 {
    workload.rate_rps * (workload.warmup + workload.duration).as_secs_f64()
}

/// Returns the workload with each of `seeds` seeds. What a run at the point `near` needs is drawn:
/// all rules and rates that are tried with a seed have the same requests.
///
/// Errors: an arrival process that can't be sampled.
pub fn of_seeds(workload: &Workload, seeds: usize, near: usize) -> Result<Vec<Workload>, ArrivalError> {
    let requests = (DRAWN.0 * requests(&at(workload, near))).min(DRAWN.1);
    let with_arrivals = |number| {
        let mut workload = of_seed(workload, number);
        for (index, model) in workload.models.iter_mut().enumerate() {
            let seed = stream_seed(workload.seed, index as u64);
            model.arrival = drawn(&model.arrival, seed, (model.share * requests) as usize)?;
        }
        Ok(workload)
    };
    (0..seeds).map(with_arrivals).collect()
}

/// Searches the goodput of `rule` on each of `workloads`, those [`of_seeds`], in requests per
/// second; 0 where no rate passes. It starts at `near`, the workload's [`neighbourhood`].
///
/// Errors: those of [`Rule::passes`].
pub fn goodputs(rule: &Rule, workloads: &[Workload], near: usize) -> Result<Vec<f64>, ArrivalError> {
    let mut start = near;
    let mut result = Vec::new();
    for (seed, workload) in workloads.iter().enumerate() {
        let mut offered = BTreeMap::new();
        let mut passes = |point: usize| {
            let offered = match offered.entry(point) {
                Entry::Occupied(known) => *known.get(),
                Entry::Vacant(new) => *new.insert(rule.passes(&at(workload, point))?),
            };
            Ok(offered.is_some())
        };
        let found = match highest(start, STRIDES[1], LAST, &mut passes)? {
            Some(nearest) => beyond(nearest, &BEYOND, passes)?,
            None => LAST,
        };
        result.push(offered.get(&found).copied().flatten().unwrap_or(0.0));
        // The other seeds' goodputs are near the first one's.
        start = if seed == 0 { found } else { start };
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
        let near = neighbourhood(&workload).unwrap();
        let workloads = of_seeds(&workload, 2, near).unwrap();
        let found = goodputs(&rule, &workloads, near).unwrap();
        // Figure of the paper's Table 4, with the default's search.
        assert!(found.iter().all(|rps| (rps / 5_330.0 - 1.0).abs() < 0.02), "{found:?}");
        let refined = refined_goodput(&rule, &of_seed(&workload, 0)).unwrap() / found[0];
        assert!((1.0..1.011).contains(&refined), "{refined}");
    }
}

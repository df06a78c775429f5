//! What is known of settings beside what they did with recent requests: the models, the GPUs, and
//! how requests come. The highest load that a setting serves, its limit, is searched with made-up
//! requests like those that have come. A setting with a low limit has to prove itself on more
//! requests.

use super::arrived::Arrived;
use super::replay::{ReplayOutcome, ReplayedRequests, ReplayedRule, replay};
use crate::deferral::Deferral;
use crate::drop_rule::DropRule;
use crate::rule_setting::RuleSetting;
use crate::sim::arrivals::{Arrivals, stream_seed};
use crate::sim::goodput::{ALLOWED_BAD_RATE, ideal_rate};
use crate::sim::grid::highest;
use crate::workload::{Arrival, Workload};
use alloc::vec::Vec;
use core::convert::Infallible;
use symphony_transport::Nanos;
use symphony_transport::message::{ModelId, NO_DEADLINE, Request};

/// The made-up requests of a search while little is known of those that come.
const FEW: usize = 5_000;

/// The independent requests that those of a later search are worth, and the most of them.
const REQUESTS: (f64, usize) = (10_000.0, 20_000);

/// The steps of the loads that are tried, in an octave; the first of all is what the GPUs could do
/// with full batches.
const STEPS: usize = 12;

/// The last of these loads: a hundredth of the first.
const LAST: usize = 80;

/// The load where the first search starts.
const START: usize = 6;

/// The first stride of each search.
const STRIDE: usize = 1;

/// The bad requests with which a setting is charged whose limit is half of the best one, which is
/// the most; one in between by the logarithm.
const CHARGE: f64 = 96.0;

/// How many times the limit of a classic rule that of another setting has to be to count as much:
/// the best of many settings is also the luckiest one.
const MORE: f64 = 1.1;

/// The number of independent requests by which a model's bad rate is drawn to that of all.
const DRAWN_BY: f64 = 50.0;

/// The highest load that each setting serves.
#[derive(Clone, Debug, Default)]
pub(super) struct Limits {
    /// Where each was found on the grid of loads; nothing, before anything was searched.
    points: Vec<usize>,
    /// The same in requests per second, and as much as it counts: less for what is no classic rule.
    rates: Vec<(f64, f64)>,
}

impl Limits {
    /// True before anything was searched.
    pub(super) fn are_unknown(&self) -> bool {
        self.points.is_empty()
    }

    /// Searches the limits of the settings where requests come like those that have arrived.
    pub(super) fn search(
        &mut self,
        workload: &Workload,
        arrived: &Arrived,
        drop: DropRule,
        deferral: &'static dyn Deferral,
        settings: &[RuleSetting],
    ) {
        let mut workload = workload.clone();
        for (model, share) in workload.models.iter_mut().zip(arrived.shares()) {
            model.share = share;
        }
        workload.queries.clear();
        let full = ideal_rate(&workload);
        let rates: Vec<f64> = workload.models.iter().map(|model| model.share * full).collect();
        let shape = arrived.shape();
        let count = if arrived.is_known() { ((REQUESTS.0 / shape) as usize).min(REQUESTS.1) } else { FEW };
        let requests = made_up(&workload, &rates, &arrived.shapes(), count);
        let Some(last) = requests.last() else { return };
        let counted = Nanos(last.arrival.0 / 8)..last.arrival;
        let full_load =
            ReplayedRequests { requests: (&requests).into(), rates: (&rates).into(), counted, amid: false };
        let mut best = LAST;
        // A setting's limit is near that of the one before, and later near where it was, or as far
        // from there as that of the one before.
        let (mut point, mut moved) = (START, 0);
        for (at, &setting) in settings.iter().enumerate() {
            let rule = ReplayedRule { drop, deferral, setting };
            let serves = |point: usize| {
                // Below half of the best limit the charge is the same.
                if point >= best.saturating_add(STEPS) {
                    return Ok::<_, Infallible>(true);
                }
                let fails = |found: &ReplayOutcome| found.worst_bad_rate(DRAWN_BY / shape) > ALLOWED_BAD_RATE;
                Ok(!fails(&replay(&workload, &rule, &full_load.faster(load(point)), fails)))
            };
            let before = self.points.get(at).copied();
            let start = before.map_or(point, |before| before.saturating_add_signed(moved).min(LAST));
            let Ok(found) = highest(start, STRIDE, LAST, serves);
            point = found.unwrap_or(LAST);
            best = best.min(point);
            match before {
                None => self.points.push(point),
                Some(before) => {
                    moved = point as isize - before as isize;
                    self.points[at] = point;
                }
            }
        }
        let counts = |(&point, setting): (&usize, &RuleSetting)| {
            let limit = full * load(point);
            (limit, limit / if setting.is_classic() { 1.0 } else { MORE })
        };
        self.rates = self.points.iter().zip(settings).map(counts).collect();
    }

    /// Returns the bad requests with which each setting is charged if loads of up to `most`
    /// requests per second may come.
    pub(super) fn charges(&self, most: f64) -> impl Iterator<Item = f64> {
        let best = self.rates.iter().map(|rate| rate.1).fold(0.0, f64::max);
        let charge = move |&(limit, counts): &(f64, f64)| {
            CHARGE * (best / counts).min(most / limit).log2().clamp(0.0, 1.0)
        };
        self.rates.iter().map(charge)
    }
}

/// The load of a point of the grid, in parts of what the GPUs could do with full batches.
fn load(point: usize) -> f64 {
    (point as f64 / -(STEPS as f64)).exp2()
}

/// Returns `count` requests of all models at these rates, by arrival. The gaps between those of a
/// model are of a gamma distribution of its shape.
fn made_up(workload: &Workload, rates: &[f64], shapes: &[f64], count: usize) -> Vec<Request> {
    let end = Nanos::from_secs_f64(count as f64 / rates.iter().sum::<f64>());
    let mut requests = Vec::new();
    for (index, (model, (&rate, &shape))) in workload.models.iter().zip(rates.iter().zip(shapes)).enumerate()
    {
        let stream = Arrivals::new(&Arrival::Gamma(shape), rate, stream_seed(1, index as u64));
        let due = |at: Nanos| if model.slo < NO_DEADLINE { at + model.slo } else { NO_DEADLINE };
        let arrivals = stream.into_iter().flatten().take_while(|&at| at < end);
        requests.extend(arrivals.map(|arrival| Request {
            arrival,
            deadline: due(arrival),
            queue: ModelId(index as u32).only_queue(),
            ..Request::default()
        }));
    }
    requests.sort_by_key(|request| request.arrival);
    requests
}

#[cfg(test)]
mod tests {
    use super::super::contender::CANDIDATES;
    use super::*;
    use crate::policy;
    use crate::profile::Profile;
    use crate::workload::WorkloadModel;

    fn limits_of(gpus: usize, models: &[(f64, f64, f64)]) -> Limits {
        let mut limits = Limits::default();
        search(&mut limits, gpus, models, 0);
        limits
    }

    /// Searches when so many requests have come in bursts of five.
    fn search(limits: &mut Limits, gpus: usize, models: &[(f64, f64, f64)], came: usize) {
        let model = |&(alpha, beta, slo): &(f64, f64, f64)| {
            let [alpha, beta, slo] = [alpha, beta, slo].map(Nanos::from_millis_f64);
            WorkloadModel::new("m", Profile::linear(alpha, beta, 256).unwrap(), slo)
        };
        let workload = Workload::of_models(gpus, 1.0, models.iter().map(model).collect());
        let deferral = policy::by_name("symphony").and_then(policy::Policy::deferral).unwrap();
        let [rates, shapes] = [100.0, 0.2].map(|each| vec![each; models.len()]);
        let mut arrived = Arrived::none_of(models.len());
        arrived.add(&made_up(&workload, &rates, &shapes, came).into(), true);
        limits.search(&workload, &arrived, DropRule::Exchange, deferral, &CANDIDATES);
    }

    fn charges_of(gpus: usize, models: &[(f64, f64, f64)]) -> Vec<f64> {
        limits_of(gpus, models).charges(f64::INFINITY).collect()
    }

    #[test]
    fn who_starts_long_batches_early_is_charged_where_others_are_in_a_hurry() {
        // Batches of 100 ms and more, and three models that have 1 to 2 ms for a request.
        let mixed = [(2.0, 104.0, 455.0), (0.25, 0.2, 0.9), (0.27, 0.5, 2.2), (0.07, 0.4, 1.1)];
        let charges = charges_of(7, &mixed);
        let [waits, never_waits] = [charges[6], charges[7]];
        assert!(never_waits > waits + CHARGE / 4.0 && charges[0] > waits, "{charges:?}");
        assert!(charges.contains(&0.0), "{charges:?}");
    }

    #[test]
    fn one_model_charges_little() {
        let charges = charges_of(8, &[(1.0, 5.0, 25.0)]);
        assert!(charges[0] < CHARGE / 4.0, "{charges:?}");
    }

    #[test]
    fn only_loads_that_may_come_are_a_reason_for_charges() {
        let limits =
            Limits { points: Vec::new(), rates: vec![(100.0, 100.0), (800.0, 800.0), (600.0, 400.0)] };
        let charges = |most| limits.charges(most).collect::<Vec<_>>();
        assert_eq!(charges(f64::INFINITY), [CHARGE, 0.0, CHARGE]);
        assert!((charges(720.0)[2] - CHARGE * 1.2_f64.log2()).abs() < 1e-9);
        assert_eq!(charges(600.0), [CHARGE, 0.0, 0.0]);
        assert_eq!(charges(100.0), [0.0; 3]);
    }

    #[test]
    fn a_later_search_of_more_requests_ends_near_the_first_one() {
        let mixed = [(0.5, 10.0, 60.0), (0.25, 0.5, 9.0)];
        let first = limits_of(2, &mixed);
        let mut later = first.clone();
        search(&mut later, 2, &mixed, 2_000);
        for (at, (one, other)) in first.points.iter().zip(&later.points).enumerate() {
            assert!(one.abs_diff(*other) <= STEPS / 2, "{at}: {first:?} {later:?}");
        }
        assert!(first.points != later.points, "it has four times as many requests");
    }
}

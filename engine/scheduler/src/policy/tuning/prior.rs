//! What is known of settings beside what they did with recent requests: the models, the GPUs, and
//! how requests come. Made-up requests like those that have come are replayed under every setting
//! at rising loads. A setting that breaks down at a lower load than the others do has to prove
//! itself on more requests.

use super::arrived::Arrived;
use super::replay::{ReplayedRule, replay};
use crate::deferral::Deferral;
use crate::drop_rule::DropRule;
use crate::rule_setting::RuleSetting;
use crate::sim::arrivals::{Arrivals, stream_seed};
use crate::workload::{Arrival, Workload, WorkloadModel};
use alloc::vec::Vec;
use core::f64::consts::SQRT_2;
use symphony_transport::Nanos;
use symphony_transport::message::{ModelId, NO_DEADLINE, Request};

/// The loads, in parts of what the GPUs could do with full batches: the first, and their number.
/// Each is the square root of two times the one before.
const LOADS: (f64, usize) = (1.0 / 16.0, 9);

/// The requests of each model on average, and the least and the most of all.
const REQUESTS: [usize; 3] = [100, 2_000, 5_000];

/// The bad rate of the worst model at which a load is lost.
const LOST: f64 = 0.05;

/// The bad requests with which a setting is charged for each load that is lost under it only.
const CHARGE: f64 = 16.0;

/// The number of requests by which a model's bad rate is drawn to that of all.
const DRAWN_BY: f64 = 50.0;

/// What the settings are charged with for a load that some of them lose.
#[derive(Clone, Debug)]
pub(super) struct LoadCharges {
    /// The load, in requests per second.
    pub(super) rate: f64,
    /// The bad requests with which each setting is charged.
    pub(super) bad: Vec<f64>,
}

/// Returns the bad requests with which each of the settings is charged for each load, where
/// requests come like those that have arrived.
pub(super) fn charges(
    workload: &Workload,
    arrived: &Arrived,
    drop: DropRule,
    deferral: &'static dyn Deferral,
    settings: &[RuleSetting],
) -> Vec<LoadCharges> {
    let shares = arrived.shares();
    let rate = full_rate(workload, &shares);
    let rates: Vec<f64> = shares.iter().map(|share| share * rate).collect();
    let requests = made_up(workload, &rates, arrived.shape());
    let Some(last) = requests.last() else { return Vec::new() };
    let counted = Nanos(last.arrival.0 / 8)..last.arrival;
    let mut bad = vec![0.0; settings.len()];
    let mut charges = Vec::new();
    for load in core::iter::successors(Some(LOADS.0), |load| Some(load * SQRT_2)).take(LOADS.1) {
        for (bad, &setting) in bad.iter_mut().zip(settings) {
            // What is lost at a load is lost at all that are higher.
            if *bad < LOST {
                let rule = ReplayedRule { drop, deferral, setting };
                let found = replay(workload, &rule, &rates, requests.iter(), counted.clone(), load);
                *bad = found.worst_bad_rate(DRAWN_BY).min(LOST);
            }
        }
        let least = bad.iter().copied().fold(LOST, f64::min);
        let charge = |bad: &f64| CHARGE * (bad - least) / LOST;
        charges.push(LoadCharges { rate: load * rate, bad: bad.iter().map(charge).collect() });
        if least >= LOST {
            break;
        }
    }
    charges
}

/// Returns the rate, in requests per second, at which the GPUs would be busy with batches that take
/// half of their SLOs, where each model has its share of the requests.
fn full_rate(workload: &Workload, shares: &[f64]) -> f64 {
    let models = workload.models.iter().zip(shares);
    let gpu_time: f64 = models.map(|(model, share)| share * gpu_seconds(model)).sum();
    workload.gpus as f64 / gpu_time.max(1e-9)
}

/// The GPU time of a request of the model in a batch that takes half of the SLO, in seconds.
fn gpu_seconds(model: &WorkloadModel) -> f64 {
    let fits = |size: &usize| *size == 1 || model.profile.latency(*size) <= Nanos(model.slo.0 / 2);
    let size = (1..=model.profile.max_batch()).rev().find(fits).unwrap_or(1);
    model.profile.latency(size).as_secs_f64() / size as f64
}

/// Returns requests of all models at these rates, by arrival. The gaps between those of a model are
/// of a gamma distribution of this shape.
fn made_up(workload: &Workload, rates: &[f64], shape: f64) -> Vec<Request> {
    let [of_each, least, most] = REQUESTS;
    let count = (of_each * workload.models.len()).clamp(least, most);
    let end = Nanos::from_secs_f64(count as f64 / rates.iter().sum::<f64>());
    let mut requests = Vec::new();
    for (index, (model, &rate)) in workload.models.iter().zip(rates).enumerate() {
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

    fn charges_of(gpus: usize, models: &[(f64, f64, f64)]) -> Vec<f64> {
        let model = |&(alpha, beta, slo): &(f64, f64, f64)| {
            let [alpha, beta, slo] = [alpha, beta, slo].map(Nanos::from_millis_f64);
            WorkloadModel::new("m", Profile::linear(alpha, beta, 256).unwrap(), slo)
        };
        let workload = Workload::of_models(gpus, 1.0, models.iter().map(model).collect());
        let deferral = policy::by_name("symphony").and_then(policy::Policy::deferral).unwrap();
        let none = Arrived::none_of(models.len());
        let loads = charges(&workload, &none, DropRule::Exchange, deferral, &CANDIDATES);
        assert!(loads.is_sorted_by(|one, next| one.rate < next.rate));
        (0..CANDIDATES.len()).map(|at| loads.iter().map(|load| load.bad[at]).sum()).collect()
    }

    #[test]
    fn who_starts_long_batches_early_is_charged_where_others_are_in_a_hurry() {
        // Batches of 100 ms and more, and three models that have 1 to 2 ms for a request.
        let mixed = [(2.0, 104.0, 455.0), (0.25, 0.2, 0.9), (0.27, 0.5, 2.2), (0.07, 0.4, 1.1)];
        let charges = charges_of(7, &mixed);
        let [waits, never_waits] = [charges[6], charges[7]];
        assert!(never_waits > waits + CHARGE && charges[0] > waits, "{charges:?}");
        assert!(charges.iter().any(|&charge| charge < CHARGE / 4.0), "{charges:?}");
    }

    #[test]
    fn one_model_charges_little() {
        let charges = charges_of(8, &[(1.0, 5.0, 25.0)]);
        assert!(charges.iter().all(|charge| (0.0..2.0 * CHARGE).contains(charge)), "{charges:?}");
        assert!(charges[0] < CHARGE / 2.0, "{charges:?}");
    }
}

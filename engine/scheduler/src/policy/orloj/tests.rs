use super::*;
use crate::policy;
use crate::run_time::{Application, Mode, RunTimeEstimate, RunTimeHistogram};
use crate::sim::simulate;
use crate::step_costs::{CostStep, StepCosts};
use proptest::prelude::*;
use std::sync::LazyLock;

/// A model with applications of these mean run times, ms, each with as much of the rate.
fn model(means: &[f64], slo_ms: f64) -> WorkloadModel {
    let application = |&mean_ms: &f64| Application {
        share: 1.0,
        costs: None,
        run_times: RunTimeHistogram::of_modes(&[Mode { weight: 1.0, mean_ms, deviation_ms: mean_ms / 10.0 }])
            .unwrap(),
    };
    let applications = means.iter().map(application).collect::<Vec<_>>().into();
    let varying = VaryingModel { fixed: Nanos::from_millis(5), per_request: 0.3, applications };
    let profile = varying.profile(RunTimeEstimate::Mean, 16).unwrap();
    WorkloadModel {
        varying: Some(varying),
        ..WorkloadModel::new("m", profile, Nanos::from_millis_f64(slo_ms))
    }
}

/// Returns the number of requests that wait.
fn waiting_in(model: &OrlojModel) -> usize {
    model.queues.iter().map(|queue| queue.from(Nanos::ZERO, usize::MAX).1).sum()
}

proptest! {
    #[test]
    fn the_best_are_those_that_a_sort_by_priority_finds(
        requests in prop::collection::vec((0u8..3, 1u64..2_000), 1..60),
        at in 0usize..4,
    ) {
        static MODEL: LazyLock<WorkloadModel> = LazyLock::new(|| model(&[20.0, 60.0, 200.0], 1_000.0));
        let mut model = OrlojModel::new(&MODEL, 1e-4);
        for (id, &(application, ms)) in (0..).zip(&requests) {
            let deadline = Nanos::from_millis(ms);
            let request = Request { id, application, deadline, ..Request::default() };
            model.queues[usize::from(application)].add(request).unwrap();
        }
        let now = Nanos::from_millis(100);
        let score = |request: &(u8, u64)| {
            let (application, left) = (usize::from(request.0), request.1.checked_sub(100)?);
            let feasible = Nanos::from_millis(left) >= model.estimates.expected_with(at, application);
            feasible.then(|| model.estimates.curve(at, application).at(left as f64))
        };
        let mut scores: Vec<f64> = requests.iter().filter_map(score).collect();
        scores.sort_by(|a, b| b.total_cmp(a));
        scores.truncate(model.estimates.sizes()[at]);
        let curves: Vec<_> = (0..3).map(|application| model.estimates.curve(at, application).clone()).collect();
        let waiting = waiting_in(&model);
        let taken = model.take_best(now, at);
        prop_assert_eq!(waiting_in(&model), waiting - taken.len());
        let mut found: Vec<f64> = taken
            .iter()
            .map(|request| curves[usize::from(request.application)].at((request.deadline - now).as_millis_f64()))
            .collect();
        found.sort_by(|a, b| b.total_cmp(a));
        prop_assert_eq!(found.len(), scores.len());
        for (found, score) in found.iter().zip(&scores) {
            prop_assert!((found - score).abs() < 1e-12, "{found} {score}");
        }
    }
}

#[test]
fn the_most_urgent_request_decides_the_size() {
    let network = Network::default();
    let mut model = OrlojModel::new(&model(&[20.0], 1_000.0), 1e-4);
    let push = |model: &mut OrlojModel, ms: u64, count: u64| {
        (0..count).for_each(|id| {
            let request = Request { id, deadline: Nanos::from_millis(ms), ..Request::default() };
            model.queues[0].add(request).unwrap();
        });
    };
    assert_eq!(model.choose(Nanos::ZERO, network), None);
    push(&mut model, 500, 5);
    // A batch of four takes some 30 ms.
    assert_eq!(
        model.choose(Nanos::ZERO, network),
        Some(SizeChoice { deadline: Nanos::from_millis(500), at: 2 })
    );
    push(&mut model, 14, 1);
    // One that only a batch of one still serves.
    assert_eq!(
        model.choose(Nanos::ZERO, network),
        Some(SizeChoice { deadline: Nanos::from_millis(14), at: 0 })
    );
}

#[test]
fn more_requests_are_in_time_than_where_the_mean_stands_for_all() {
    let mut model = model(&[20.0, 200.0], 600.0);
    let varying = VaryingModel { fixed: Nanos::ZERO, per_request: 1.0, ..model.varying.unwrap() };
    model.profile = varying.profile(RunTimeEstimate::Mean, 16).unwrap();
    model.varying = Some(varying);
    let mut workload = Workload::of_models(1, 6.0, vec![model]);
    workload.duration = Nanos::from_secs(300);
    let of = |name: &str| {
        let policy = policy::by_name(name).unwrap();
        1.0 - simulate(&workload, policy, &PolicyOptions::default()).unwrap().bad_rate
    };
    let [orloj, clockwork, default] = ["orloj", "clockwork", "symphony"].map(of);
    assert!(orloj > clockwork + 0.05, "{orloj} {clockwork}");
    // By application, and by what three in four batches do not exceed.
    assert!(default > orloj - 0.01, "{default} {orloj}");
}

#[test]
fn requests_of_one_run_time_are_served_as_well_as_by_others() {
    let profile = crate::profile::Profile::linear(Nanos::from_millis(1), Nanos::from_millis(5), 16).unwrap();
    let model = WorkloadModel::new("m", profile, Nanos::from_millis(25));
    let workload = Workload::of_models(2, 800.0, vec![model]);
    let report = simulate(&workload, &Orloj, &PolicyOptions::default()).unwrap();
    assert!(report.bad_rate < 0.01, "{}", report.bad_rate);
}

/// ORLOJ without a look at what the workload says of costs.
#[derive(Debug)]
struct BlindToCosts;

impl Policy for BlindToCosts {
    fn name(&self) -> &'static str {
        "blind"
    }

    fn about(&self) -> &'static str {
        "orloj for costs of 1"
    }

    fn options(&self) -> &'static [&'static str] {
        &[]
    }

    fn scheduler(&self, workload: &Workload, options: &PolicyOptions) -> Box<dyn Scheduler> {
        let mut blind = workload.clone();
        for varying in blind.models.iter_mut().filter_map(|model| model.varying.as_mut()) {
            let without = |one: &Application| Application { costs: None, ..one.clone() };
            varying.applications = varying.applications.iter().map(without).collect();
        }
        Orloj.scheduler(&blind, options)
    }
}

#[test]
fn what_requests_cost_is_less_where_the_steps_of_their_costs_are_known() {
    let costs = |steps: &[(u64, f64)]| {
        let step = |&(after_ms, cost): &(u64, f64)| CostStep { after: Nanos::from_millis(after_ms), cost };
        Some(StepCosts::new(steps.iter().map(step).collect()).unwrap())
    };
    let mut model = model(&[40.0, 40.0], 1_000.0);
    let varying = model.varying.as_mut().unwrap();
    // The one half is nearly worthless after a fifth of a second, the other as good as before.
    let [urgent, patient] = [costs(&[(200, 9.0), (1_000, 10.0)]), costs(&[(1_000, 1.0)])];
    let applications = varying.applications.iter().zip([urgent, patient]);
    varying.applications = applications.map(|(one, costs)| Application { costs, ..one.clone() }).collect();
    let mut workload = Workload::of_models(1, 55.0, vec![model]);
    workload.duration = Nanos::from_secs(300);
    let run = |policy: &dyn Policy| simulate(&workload, policy, &PolicyOptions::default()).unwrap();
    let cost = |policy: &dyn Policy| run(policy).models[0].mean_cost.unwrap();
    let (knowing, blind) = (cost(&Orloj), cost(&BlindToCosts));
    assert!(knowing < 0.8 * blind, "{knowing} {blind}");
    // A cost of 1 at the SLO is the rate of bad requests, and no other.
    let varying = workload.models[0].varying.as_mut().unwrap();
    let same = |one: &Application| Application { costs: costs(&[(1_000, 1.0)]), ..one.clone() };
    varying.applications = varying.applications.iter().map(same).collect();
    let run = |policy: &dyn Policy| simulate(&workload, policy, &PolicyOptions::default()).unwrap();
    let (one, other) = (run(&Orloj), run(&BlindToCosts));
    assert!((one.models[0].mean_cost.unwrap() - one.bad_rate).abs() < 1e-9);
    assert_eq!(one.models[0].good, other.models[0].good);
}

//! Priority classes, in virtual time: under any load of lower classes, the highest class is served
//! as without it.

use symphony_scheduler::policy::{PolicyOptions, by_name};
use symphony_scheduler::profile::Profile;
use symphony_scheduler::sim::goodput::search;
use symphony_scheduler::sim::report::{ModelReport, Report};
use symphony_scheduler::sim::{Audit, Fault, simulate, simulate_observed};
use symphony_scheduler::workload::{Workload, WorkloadModel};
use symphony_transport::Nanos;
use symphony_transport::message::{Class, NO_DEADLINE};

fn model(name: &str, (alpha_ms, beta_ms): (f64, f64), slo_ms: Option<f64>, class: u8) -> WorkloadModel {
    let (alpha, beta) = (Nanos::from_millis_f64(alpha_ms), Nanos::from_millis_f64(beta_ms));
    let slo = slo_ms.map_or(NO_DEADLINE, Nanos::from_millis_f64);
    let largest = ((slo - beta).0 / alpha.0).clamp(1, 64) as usize;
    let profile = Profile::linear(alpha, beta, largest).unwrap();
    WorkloadModel { class: Class::new(class).unwrap(), ..WorkloadModel::new(name, profile, slo) }
}

/// Returns a workload of `upper` models at `rate` together, and of `lower` ones at `lower_rate`
/// together.
fn workload(
    gpus: usize,
    (upper, rate): (&[WorkloadModel], f64),
    (lower, lower_rate): (&[WorkloadModel], f64),
) -> Workload {
    let rate_rps = rate + lower_rate;
    let share = |models: &[WorkloadModel], rate: f64| -> Vec<WorkloadModel> {
        let share = rate / rate_rps / models.len().max(1) as f64;
        models.iter().map(|model| WorkloadModel { share, ..model.clone() }).collect()
    };
    Workload {
        seed: 7,
        warmup: Nanos::from_secs(2),
        duration: Nanos::from_secs(8),
        models: share(upper, rate).into_iter().chain(share(lower, lower_rate)).collect(),
        ..Workload::of_models(gpus, rate_rps, Vec::new())
    }
}

fn run(workload: &Workload, policy: &str) -> Report {
    simulate(workload, by_name(policy).unwrap(), &PolicyOptions::default()).unwrap()
}

fn bad(models: &[ModelReport]) -> u64 {
    models.iter().map(|model| model.offered - model.good).sum()
}

const RESNET: (f64, f64) = (1.053, 5.072);

fn resnets(count: usize, slo_ms: f64) -> Vec<WorkloadModel> {
    (0..count).map(|n| model(&format!("m{n}"), RESNET, Some(slo_ms), 0)).collect()
}

fn goodput(gpus: usize, upper: &[WorkloadModel], policy: &str) -> f64 {
    let alone = workload(gpus, (upper, 100.0 * gpus as f64), (&[], 0.0));
    search(&alone, by_name(policy).unwrap(), &PolicyOptions::default(), &mut |_| ())
        .unwrap()
        .goodput_rps
        .unwrap()
}

/// The share of its requests that the highest class may lose more, at each part of its goodput,
/// where lower classes send three times that goodput.
const MOST_MORE_BAD: f64 = 0.001;

fn assert_unharmed(gpus: usize, upper: &[WorkloadModel], policy: &str) {
    let lower = [model("batch", RESNET, None, 3), model("soon", RESNET, Some(200.0), 1)];
    assert_unharmed_by(&lower, gpus, upper, policy);
}

fn assert_unharmed_by(lower: &[WorkloadModel], gpus: usize, upper: &[WorkloadModel], policy: &str) {
    let goodput = goodput(gpus, upper, policy);
    let mut harmed = false;
    for part in [0.5, 0.8, 0.95] {
        let upper = (upper, part * goodput);
        let without = run(&workload(gpus, upper, (&[], 0.0)), policy);
        let with = run(&workload(gpus, upper, (lower, 3.0 * goodput)), policy);
        let with = &with.models[..upper.0.len()];
        let offered: u64 = with.iter().map(|model| model.offered).sum();
        assert_eq!(offered, without.models.iter().map(|model| model.offered).sum::<u64>());
        let (before, after) = (bad(&without.models), bad(with));
        println!("{policy}, {gpus} GPUs at {part} of goodput: {before} of {offered} bad, then {after}");
        harmed |= after > before + (MOST_MORE_BAD * offered as f64) as u64;
    }
    assert!(!harmed, "more than {MOST_MORE_BAD} of the requests became bad: see above");
}

#[test]
fn lower_classes_cost_the_highest_at_most_one_request_in_a_thousand_more() {
    for policy in ["symphony", "symphony-published"] {
        assert_unharmed(1, &resnets(1, 25.0), policy);
        assert_unharmed(8, &resnets(1, 25.0), policy);
        assert_unharmed(8, &resnets(10, 100.0), policy);
        assert_unharmed(32, &resnets(12, 60.0), policy);
    }
}

#[test]
fn who_loses_requests_to_lower_classes_reserves_sooner() {
    // Of so many batches more start at once than on average, and nearly all GPUs are in use.
    let upper = [0, 1].map(|n| model(&format!("m{n}"), (1.143, 0.8), Some(5.2), 0));
    let lower = [model("soon", (0.17, 1.48), Some(12.6), 1), model("batch", (1.71, 1.19), None, 3)];
    for policy in ["symphony", "symphony-published"] {
        assert_unharmed_by(&lower, 34, &upper, policy);
    }
}

#[test]
fn a_model_of_many_gpus_loses_nothing_at_four_fifths_of_its_goodput() {
    let upper = resnets(1, 25.0);
    let rate = 0.8 * goodput(8, &upper, "symphony");
    let lower = [model("batch", RESNET, None, 3)];
    let with = run(&workload(8, (&upper, rate), (&lower, 20_000.0)), "symphony");
    assert_eq!(bad(&with.models[..1]), 0, "{:?}", with.models);
    assert!(with.models[1].good > 0, "{:?}", with.models);
}

#[test]
fn lower_classes_get_most_of_what_a_third_of_the_load_leaves() {
    let upper = resnets(1, 25.0);
    let rate = 0.3 * goodput(8, &upper, "symphony");
    let without = run(&workload(8, (&upper, rate), (&[], 0.0)), "symphony").gpu_utilization;
    let lower = [model("batch", RESNET, None, 3)];
    let with = run(&workload(8, (&upper, rate), (&lower, 20_000.0)), "symphony").gpu_utilization;
    assert!(with - without > 0.5 * (1.0 - without), "busy {without}, then {with}");
}

#[test]
fn of_two_lower_classes_the_higher_is_served_first() {
    let lower = [model("second", RESNET, Some(300.0), 1), model("third", RESNET, Some(300.0), 2)];
    // Too many for one GPU, few enough for it to serve all of one of the classes.
    let report = run(&workload(1, (&resnets(1, 60.0), 1.0), (&lower, 800.0)), "symphony");
    let [_, second, third] = &report.models[..] else { panic!("three models") };
    assert!(second.good as f64 > 0.9 * second.offered as f64, "{second:?}");
    assert!((third.good as f64) < 0.9 * third.offered as f64, "{third:?}");
}

#[test]
fn a_request_without_a_deadline_waits_and_is_never_dropped() {
    let lower = [model("batch", RESNET, None, 3)];
    // While requests arrive they are more than the GPU can serve; in the end all are served.
    let mut mixed = workload(1, (&resnets(1, 60.0), 50.0), (&lower, 300.0));
    mixed.duration = Nanos::from_secs(5);
    let report = run(&mixed, "symphony");
    let batch = &report.models[1];
    assert_eq!((batch.good, batch.dropped, batch.late), (batch.offered, 0, 0), "{batch:?}");
    assert_eq!((batch.priority, report.models[0].priority), (3, 0));
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { failure_persistence: None, ..proptest::prelude::ProptestConfig::with_cases(24) })]

    /// Checks for all models, rates and classes that each request with a deadline ends once, and
    /// that none without one is dropped or late.
    #[test]
    fn every_request_of_every_class_ends_once(
        gpus in 1usize..12,
        upper in proptest::collection::vec((0.1f64..3.0, 0.0f64..20.0, 1.2f64..6.0), 0..5),
        lower in proptest::collection::vec((0.1f64..3.0, 0.0f64..20.0, 1.2f64..6.0, 1u8..4, proptest::bool::ANY), 1..5),
        rate in 1.0f64..3_000.0,
        lower_rate in 1.0f64..6_000.0,
        policy in proptest::sample::select(symphony_scheduler::policy::deferring()),
    ) {
        let slo = |alpha: f64, beta: f64, slack: f64| Some((alpha + beta) * slack + 1.0);
        let upper: Vec<_> = upper
            .into_iter()
            .map(|(alpha, beta, slack)| model("upper", (alpha, beta), slo(alpha, beta, slack), 0))
            .collect();
        let lower: Vec<_> = lower
            .into_iter()
            .map(|(alpha, beta, slack, class, due)| {
                model("lower", (alpha, beta), slo(alpha, beta, slack).filter(|_| due), class)
            })
            .collect();
        let mut mixed = workload(gpus, (&upper, rate), (&lower, lower_rate));
        (mixed.warmup, mixed.duration) = (Nanos::ZERO, Nanos::from_secs(2));
        let mut audit = Audit::new(&mixed);
        let (policy, options) = (by_name(policy).unwrap(), PolicyOptions::default());
        let report = simulate_observed(&mixed, policy, &options, Fault::default(), &mut audit).unwrap();
        proptest::prop_assert_eq!(audit.check(), Ok(()));
        for (model, of) in report.models.iter().zip(&mixed.models) {
            let ended = model.good + model.dropped + model.late + model.rejected;
            if of.slo == NO_DEADLINE {
                // A request that would delay the highest class whenever it ran waits for ever.
                proptest::prop_assert!(model.dropped + model.late == 0 && ended <= model.offered, "{:?}", model);
            } else {
                proptest::prop_assert_eq!(ended, model.offered);
            }
        }
    }
}

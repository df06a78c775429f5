//! The policy as a whole, in the simulator.

use super::super::epoch::EPOCH;
use super::*;
use crate::sim::report::Report;
use crate::sim::simulate;
use crate::workload::Arrival;

fn options(drop: DropRule, frontends: usize) -> PolicyOptions {
    PolicyOptions { frontends, ..PolicyOptions::from(drop) }
}

fn run(workload: &Workload, frontends: usize) -> Report {
    simulate(workload, &Nexus, &options(DropRule::Window, frontends)).unwrap()
}

/// A model of (alpha, beta) and an SLO, ms.
fn model(name: &str, (alpha, beta): (f64, f64), slo: f64) -> WorkloadModel {
    let profile = Profile::linear(Nanos::from_millis_f64(alpha), Nanos::from_millis_f64(beta), 64);
    WorkloadModel::new(name, profile.unwrap(), Nanos::from_millis_f64(slo))
}

/// Eight GPUs, one model as in the Symphony paper's table 4.
fn resnet50(rate_rps: f64) -> Workload {
    Workload::of_models(8, rate_rps, vec![model("ResNet50", (1.053, 5.072), 25.0)])
}

#[test]
fn no_batch_is_larger_than_the_schedule_says() {
    let report = run(&resnet50(6_000.0), 1);
    assert_eq!(report.batch_histogram.len() - 1, 7, "the largest b with 2 l(b) <= 25 ms");
}

#[test]
fn an_overloaded_cluster_keeps_running_full_batches() {
    let report = run(&resnet50(8_000.0), 1);
    assert!(report.good_rps > 4_200.0, "{}", report.good_rps);
}

#[test]
fn frontends_that_share_no_state_lose_goodput() {
    let one = run(&resnet50(4_000.0), 1);
    let eight = run(&resnet50(4_000.0), 8);
    assert!(eight.bad_rate > 2.0 * one.bad_rate, "{} and {}", one.bad_rate, eight.bad_rate);
}

#[test]
fn early_drop_serves_more_than_lazy_drop_when_a_batch_costs_much() {
    let workload = Workload::of_models(1, 450.0, vec![model("flat", (1.0, 25.0), 100.0)]);
    let good = |rule| simulate(&workload, &Nexus, &options(rule, 1)).unwrap().bad_rate;
    assert!(good(DropRule::Window) < good(DropRule::Timeout));
}

#[test]
fn an_epoch_later_gpus_follow_the_measured_rates() {
    let offsets = |rate: f64, seconds: f64| {
        let count = (rate * seconds) as usize;
        Arrival::Trace((0..count).map(|at| Nanos::from_secs_f64(at as f64 / rate)).collect())
    };
    let mut models = vec![model("busy", (1.0, 5.0), 25.0), model("quiet", (1.0, 5.0), 25.0)];
    for (model, rate) in models.iter_mut().zip([1_600.0, 10.0]) {
        model.arrival = offsets(rate, 90.0);
    }
    // The workload gives both the same rate; a plan for that drops requests of the busy one.
    let equal = Workload { warmup: Nanos::ZERO, duration: EPOCH, ..Workload::of_models(4, 1_600.0, models) };
    let before = run(&equal, 1);
    let later = Workload { warmup: EPOCH + Nanos::from_secs(1), duration: Nanos::from_secs(25), ..equal };
    let after = run(&later, 1);
    assert!(before.models[0].dropped > before.models[0].offered / 10, "{:?}", before.models[0]);
    assert_eq!(after.models[0].dropped, 0);
}

//! The policy as a whole, in the simulator.

use super::super::epoch::EPOCH;
use super::super::watched::{Watch, model, watch, workload, workloads};
use super::*;
use crate::sim::report::Report;
use crate::sim::{Fault, simulate};
use crate::workload::Arrival;
use proptest::prelude::*;

fn options(drop: DropRule, frontends: usize) -> Options {
    Options { frontends, ..Options::from(drop) }
}

fn run(workload: &Workload, frontends: usize) -> (Watch, Report) {
    watch(workload, &NEXUS, &options(DropRule::Window, frontends), Fault::default())
}

/// Eight GPUs, one model as in the Symphony paper's table 4.
fn resnet50(rate_rps: f64) -> Workload {
    workload(8, rate_rps, vec![model("ResNet50", 1.053, 5.072, 25.0)])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn every_request_ends_once_and_a_gpu_runs_one_batch_at_a_time(
        workload in workloads(),
        rule in prop::sample::select(DropRule::ALL.map(|rule| rule.0).to_vec()),
        frontends in 1usize..5,
        slowdown in prop_oneof![Just(0.0), Just(0.3)],
    ) {
        let options = options(rule, frontends);
        let (first, report) = watch(&workload, &NEXUS, &options, Fault { slowdown });
        let (second, _) = watch(&workload, &NEXUS, &options, Fault { slowdown });
        prop_assert_eq!(first.decisions, second.decisions);
        if rule != DropRule::Fcfs && slowdown == 0.0 {
            prop_assert!(report.models.iter().all(|model| model.late == 0));
        }
    }
}

#[test]
fn no_batch_is_larger_than_the_schedule_says() {
    let (_, report) = run(&resnet50(6_000.0), 1);
    assert_eq!(report.batch_histogram.len() - 1, 7, "the largest b with 2 l(b) <= 25 ms");
}

#[test]
fn an_overloaded_cluster_keeps_running_full_batches() {
    let (_, report) = run(&resnet50(8_000.0), 1);
    assert!(report.good_rps > 4_200.0, "{}", report.good_rps);
}

#[test]
fn frontends_that_do_not_know_of_each_other_lose_goodput() {
    let (_, one) = run(&resnet50(4_000.0), 1);
    let (_, eight) = run(&resnet50(4_000.0), 8);
    assert!(eight.bad_rate > 2.0 * one.bad_rate, "{} and {}", one.bad_rate, eight.bad_rate);
}

#[test]
fn early_drop_serves_more_than_lazy_drop_when_a_batch_costs_much() {
    let workload = workload(1, 450.0, vec![model("flat", 1.0, 25.0, 100.0)]);
    let good = |rule| simulate(&workload, &NEXUS, &options(rule, 1)).unwrap().bad_rate;
    assert!(good(DropRule::Window) < good(DropRule::Timeout));
}

#[test]
fn an_epoch_later_gpus_follow_the_measured_rates() {
    let offsets = |rate: f64, seconds: f64| {
        let count = (rate * seconds) as usize;
        Arrival::Trace((0..count).map(|at| Nanos::from_secs_f64(at as f64 / rate)).collect())
    };
    let mut models = vec![model("busy", 1.0, 5.0, 25.0), model("quiet", 1.0, 5.0, 25.0)];
    for (model, rate) in models.iter_mut().zip([1_600.0, 10.0]) {
        model.arrival = offsets(rate, 90.0);
    }
    // The workload says that both come equally often; a plan for that drops what one model's GPUs
    // can't do.
    let equal = Workload { warmup: Nanos::ZERO, duration: EPOCH, ..workload(4, 1_600.0, models) };
    let (_, before) = run(&equal, 1);
    let later = Workload { warmup: EPOCH + Nanos::from_secs(1), duration: Nanos::from_secs(25), ..equal };
    let (_, after) = run(&later, 1);
    assert!(before.models[0].dropped > before.models[0].offered / 10, "{:?}", before.models[0]);
    assert_eq!(after.models[0].dropped, 0);
}

//! The scheduler event by event, and the policy as a whole in the simulator.

use super::super::epoch::EPOCH;
use super::*;
use crate::sim::{Audit, Fault, simulate_observed};

const MS: u64 = 1_000_000;

/// A model of l(b) = b + `beta` ms.
fn model(name: &str, beta: f64, slo: f64) -> WorkloadModel {
    let profile = Profile::linear(Nanos(MS), Nanos::from_millis_f64(beta), 64);
    WorkloadModel::new(name, profile.unwrap(), Nanos::from_millis_f64(slo))
}

/// Lists the decisions; a GPU's batch can be preempted until `complete`.
#[derive(Default)]
struct DecisionLog {
    lines: Vec<String>,
    running: Vec<(GpuId, Vec<Request>)>,
}

impl Decisions for DecisionLog {
    fn run(&mut self, _batch: BatchHeader, _requests: (&[Request], &[Request])) {
        unreachable!("every batch may be preempted");
    }

    fn run_preemptible(&mut self, batch: BatchHeader, requests: (&[Request], &[Request])) {
        let all: Vec<_> = requests.0.iter().chain(requests.1).copied().collect();
        let ids: Vec<_> = all.iter().map(|request| request.id.to_string()).collect();
        self.lines.push(format!("model {} on {}: {}", batch.model.0, batch.gpu.0, ids.join(" ")));
        self.running.push((batch.gpu, all));
    }

    fn preempt(&mut self, gpu: GpuId, back: &mut Vec<Request>) -> bool {
        self.lines.push(format!("preempt {}", gpu.0));
        let at = self.running.iter().position(|running| running.0 == gpu).unwrap();
        back.extend(self.running.remove(at).1);
        true
    }

    fn end(&mut self, request: &Request, _ending: Ending, _now: Nanos) {
        self.lines.push(format!("drop {}", request.id));
    }
}

/// One GPU; l(b) = b + 10 ms; models 0 and 1 have SLOs of 100 and 40 ms.
struct Bench {
    scheduler: FlexScheduler,
    log: DecisionLog,
    next_id: u64,
}

impl Bench {
    fn new(factor: f64) -> Bench {
        let models = vec![model("slow", 10.0, 100.0), model("tight", 10.0, 40.0)];
        Bench {
            scheduler: FlexScheduler::new(&Workload::of_models(1, 100.0, models), factor),
            log: DecisionLog::default(),
            next_id: 0,
        }
    }

    fn request(&mut self, ms: u64, model: u32) {
        let slo = self.scheduler.models[model as usize].slo;
        let arrival = Nanos(ms * MS);
        let request = Request {
            id: self.next_id,
            arrival,
            deadline: arrival + slo,
            queue: ModelId(model).only_queue(),
            ..Request::default()
        };
        self.next_id += 1;
        self.scheduler.on_request(arrival, request, &mut self.log);
    }

    fn complete(&mut self, ms: u64) {
        self.log.running.clear();
        let completion = Completion { gpu: GpuId(0), ..Completion::default() };
        self.scheduler.on_completion(Nanos(ms * MS), completion, &mut self.log);
    }

    fn lines(&mut self) -> Vec<String> {
        core::mem::take(&mut self.log.lines)
    }
}

#[test]
fn a_free_gpu_takes_the_largest_batch_of_any_model() {
    let mut bench = Bench::new(f64::INFINITY);
    for model in [0, 0, 1, 1, 1] {
        bench.request(0, model);
    }
    bench.complete(11);
    assert_eq!(bench.lines(), ["model 0 on 0: 0", "model 1 on 0: 2 3 4"]);
    bench.complete(24);
    assert_eq!(bench.lines(), ["model 0 on 0: 1"]);
}

#[test]
fn a_batch_is_preempted_by_its_own_model_when_it_could_be_larger_by_the_factor() {
    let mut bench = Bench::new(3.0);
    bench.request(0, 0);
    bench.request(1, 0);
    assert_eq!(bench.lines(), ["model 0 on 0: 0"]);
    bench.request(2, 0);
    assert_eq!(bench.lines(), ["preempt 0", "model 0 on 0: 0 1 2"]);
}

#[test]
fn a_batch_is_preempted_by_another_model_and_its_requests_wait_again() {
    let mut bench = Bench::new(3.0);
    bench.request(0, 0);
    (1..=3).for_each(|ms| bench.request(ms, 1));
    assert_eq!(bench.lines(), ["model 0 on 0: 0", "preempt 0", "model 1 on 0: 1 2 3"]);
    bench.complete(16);
    assert_eq!(bench.lines(), ["model 0 on 0: 0"]);
}

#[test]
fn a_batch_that_would_miss_its_first_deadline_if_run_anew_is_not_preempted_by_its_own_model() {
    let mut bench = Bench::new(2.0);
    bench.request(0, 0);
    bench.request(1, 1);
    bench.complete(20);
    // 21 ms + l(2) = 33 ms would do for the deadline of 41 ms; 30 ms + l(2) = 42 ms does not.
    bench.request(30, 1);
    assert_eq!(bench.lines(), ["model 0 on 0: 0", "model 1 on 0: 1"]);
}

#[test]
fn a_request_that_can_no_longer_run_alone_is_dropped_when_that_time_comes() {
    let mut bench = Bench::new(f64::INFINITY);
    bench.request(0, 0);
    bench.request(0, 1);
    let due = bench.scheduler.next_timer();
    assert_eq!(due, Nanos(29 * MS + 1));
    bench.scheduler.on_timer(due, &mut bench.log);
    assert_eq!(bench.lines(), ["model 0 on 0: 0", "drop 1"]);
    assert_eq!(bench.scheduler.next_timer(), Nanos::MAX);
}

#[test]
fn busy_time_includes_wasted_time() {
    let models = vec![model("slow", 10.0, 100.0), model("tight", 10.0, 40.0)];
    let workload = Workload::of_models(2, 300.0, models);
    let options = PolicyOptions { preempt: 2.0, ..PolicyOptions::default() };
    let mut audit = Audit::new(&workload);
    let report = simulate_observed(&workload, &Shepherd, &options, Fault::default(), &mut audit).unwrap();
    assert_eq!(audit.check(), Ok(()));
    assert!(audit.preemptions() > 0 && report.preemptions > 0);
    let run: f64 =
        report.batch_histogram.iter().enumerate().skip(1).map(|(b, &n)| n as f64 * (10.0 + b as f64)).sum();
    let busy: f64 = report.gpu_busy.iter().sum::<f64>() * 20_000.0;
    let wasted = report.gpu_wasted * 2.0 * 20_000.0;
    // A batch at each end of the window counts in part.
    assert!((busy - run - wasted).abs() < 2.0 * 2.0 * 74.0, "{busy} {run} {wasted}");
}

#[test]
fn groups_change_with_the_measured_rates_and_lose_no_request() {
    let models = (0..6).map(|at| model("model", 5.0, 40.0 + f64::from(at))).collect();
    let long =
        Workload { duration: EPOCH + Nanos::from_secs(2), ..Workload::of_models(130, 2_000.0, models) };
    let scheduler = FlexScheduler::new(&long, 3.03);
    assert_eq!(scheduler.groups.len(), 3);
    let mut audit = Audit::new(&long);
    let (options, fault) = (PolicyOptions::default(), Fault::default());
    let report = simulate_observed(&long, &Shepherd, &options, fault, &mut audit).unwrap();
    assert_eq!(audit.check(), Ok(()));
    assert!(report.bad_rate < 0.01, "{}", report.bad_rate);
}

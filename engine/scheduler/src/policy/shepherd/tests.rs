//! The scheduler told by hand what happens, and the policy as a whole in the simulator.

use super::super::epoch::EPOCH;
use super::super::watched::{model, watch, workload, workloads};
use super::*;
use crate::sim::Fault;
use proptest::prelude::*;

const MS: u64 = 1_000_000;

/// Writes down what is decided; a GPU's batch can be preempted until `complete`.
#[derive(Default)]
struct Tape {
    lines: Vec<String>,
    running: Vec<(GpuId, Vec<Request>)>,
}

impl Decisions for Tape {
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
struct Desk {
    herds: Herds,
    tape: Tape,
    next_id: u64,
}

impl Desk {
    fn new(factor: f64) -> Desk {
        let models = vec![model("slow", 1.0, 10.0, 100.0), model("tight", 1.0, 10.0, 40.0)];
        Desk { herds: Herds::new(&workload(1, 100.0, models), factor), tape: Tape::default(), next_id: 0 }
    }

    fn request(&mut self, ms: u64, model: u32) {
        let slo = self.herds.models[model as usize].slo;
        let arrival = Nanos(ms * MS);
        let request = Request {
            id: self.next_id,
            arrival,
            deadline: arrival + slo,
            queue: ModelId(model).only_queue(),
            ..Request::default()
        };
        self.next_id += 1;
        self.herds.on_request(arrival, request, &mut self.tape);
    }

    fn complete(&mut self, ms: u64) {
        self.tape.running.clear();
        let completion = Completion { gpu: GpuId(0), ..Completion::default() };
        self.herds.on_completion(Nanos(ms * MS), completion, &mut self.tape);
    }

    fn lines(&mut self) -> Vec<String> {
        core::mem::take(&mut self.tape.lines)
    }
}

#[test]
fn a_free_gpu_takes_the_largest_batch_of_any_model() {
    let mut desk = Desk::new(f64::INFINITY);
    for model in [0, 0, 1, 1, 1] {
        desk.request(0, model);
    }
    desk.complete(11);
    assert_eq!(desk.lines(), ["model 0 on 0: 0", "model 1 on 0: 2 3 4"]);
    desk.complete(24);
    assert_eq!(desk.lines(), ["model 0 on 0: 1"]);
}

#[test]
fn a_batch_is_preempted_by_its_own_model_when_it_could_be_so_many_times_as_large() {
    let mut desk = Desk::new(3.0);
    desk.request(0, 0);
    desk.request(1, 0);
    assert_eq!(desk.lines(), ["model 0 on 0: 0"]);
    desk.request(2, 0);
    assert_eq!(desk.lines(), ["preempt 0", "model 0 on 0: 0 1 2"]);
}

#[test]
fn a_batch_is_preempted_by_another_model_and_its_requests_wait_again() {
    let mut desk = Desk::new(3.0);
    desk.request(0, 0);
    (1..=3).for_each(|ms| desk.request(ms, 1));
    assert_eq!(desk.lines(), ["model 0 on 0: 0", "preempt 0", "model 1 on 0: 1 2 3"]);
    desk.complete(16);
    assert_eq!(desk.lines(), ["model 0 on 0: 0"]);
}

#[test]
fn a_batch_that_would_miss_its_first_deadline_if_run_anew_is_not_preempted_by_its_own_model() {
    let mut desk = Desk::new(2.0);
    desk.request(0, 0);
    desk.request(1, 1);
    desk.complete(20);
    // 21 ms + l(2) = 33 ms would do for the deadline of 41 ms; 30 ms + l(2) = 42 ms does not.
    desk.request(30, 1);
    assert_eq!(desk.lines(), ["model 0 on 0: 0", "model 1 on 0: 1"]);
}

#[test]
fn a_request_that_can_no_longer_run_alone_is_dropped_when_that_time_comes() {
    let mut desk = Desk::new(f64::INFINITY);
    desk.request(0, 0);
    desk.request(0, 1);
    let due = desk.herds.next_timer();
    assert_eq!(due, Nanos(29 * MS + 1));
    desk.herds.on_timer(due, &mut desk.tape);
    assert_eq!(desk.lines(), ["model 0 on 0: 0", "drop 1"]);
    assert_eq!(desk.herds.next_timer(), Nanos::MAX);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_request_ends_once_and_a_gpu_runs_one_batch_at_a_time(
        workload in workloads(),
        preempt in prop_oneof![Just(1.0), 1.0f64..4.0, Just(f64::INFINITY)],
        slowdown in prop_oneof![Just(0.0), Just(0.3)],
    ) {
        let options = Options { preempt, ..Options::default() };
        let (first, report) = watch(&workload, &SHEPHERD, &options, Fault { slowdown });
        let (second, _) = watch(&workload, &SHEPHERD, &options, Fault { slowdown });
        prop_assert_eq!(first.decisions, second.decisions);
        prop_assert_eq!(first.preemptions, second.preemptions);
        prop_assert!(preempt.is_finite() || first.preemptions == 0);
        if slowdown == 0.0 {
            prop_assert!(report.models.iter().all(|model| model.late == 0));
        }
    }
}

#[test]
fn busy_time_counts_what_was_wasted() {
    let models = vec![model("slow", 1.0, 10.0, 100.0), model("tight", 1.0, 10.0, 40.0)];
    let workload = workload(2, 300.0, models);
    let (watch, report) =
        watch(&workload, &SHEPHERD, &Options { preempt: 2.0, ..Options::default() }, Fault::default());
    assert!(watch.preemptions > 0 && report.preemptions > 0);
    let run: f64 =
        report.batch_histogram.iter().enumerate().skip(1).map(|(b, &n)| n as f64 * (10.0 + b as f64)).sum();
    let busy: f64 = report.gpu_busy.iter().sum::<f64>() * 20_000.0;
    let wasted = report.gpu_wasted * 2.0 * 20_000.0;
    // A batch at each end of the window counts in part.
    assert!((busy - run - wasted).abs() < 2.0 * 2.0 * 74.0, "{busy} {run} {wasted}");
}

#[test]
fn groups_change_with_the_measured_rates_and_lose_no_request() {
    let models = (0..6).map(|at| model("model", 1.0, 5.0, 40.0 + f64::from(at))).collect();
    let long = Workload { duration: EPOCH + Nanos::from_secs(2), ..workload(130, 2_000.0, models) };
    let herds = Herds::new(&long, 3.03);
    assert_eq!(herds.groups.len(), 3);
    let (_, report) = watch(&long, &SHEPHERD, &Options::default(), Fault::default());
    assert!(report.bad_rate < 0.01, "{}", report.bad_rate);
}

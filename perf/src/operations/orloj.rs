//! The work of the policy `orloj` for a request, with 10,000 others waiting.

use super::{Operation, Repeat};
use std::hint::black_box;
use symphony_scheduler::policy::{self, Decisions, PolicyOptions};
use symphony_scheduler::run_time::{Application, RunTimeEstimate, RunTimeHistogram, VaryingModel};
use symphony_scheduler::workload::{Workload, WorkloadModel};
use symphony_transport::Nanos;
use symphony_transport::message::{BatchHeader, Completion, Ending, GpuId, Request};

/// The time between two requests.
const GAP: Nanos = Nanos::from_micros(1);

/// The longest time to a deadline: half of it times the rate are the requests that wait.
const LONGEST: Nanos = Nanos::from_millis(20);

/// The requests after which the GPU's batch is over.
const BATCH_EVERY: u64 = 256;

/// The requests that come before an operation is measured: then 10,000 wait.
const WARM: u64 = 40_000;

/// A sink that remembers the last batch.
#[derive(Default)]
struct LastBatch(Option<BatchHeader>);

impl Decisions for LastBatch {
    fn run(&mut self, batch: BatchHeader, requests: (&[Request], &[Request])) {
        black_box(requests);
        self.0 = Some(batch);
    }

    fn run_preemptible(&mut self, batch: BatchHeader, requests: (&[Request], &[Request])) {
        self.run(batch, requests);
    }

    fn preempt(&mut self, _: GpuId, _: &mut Vec<Request>) -> bool {
        false
    }

    fn end(&mut self, request: &Request, ending: Ending, _: Nanos) {
        black_box((request, ending));
    }
}

pub(super) fn operations() -> Vec<Operation> {
    vec![Operation::new(
        "orloj_10000_waiting",
        "a request joins 10,000 that wait, with any deadline, and one of them leaves; a batch every 256",
        a_request,
    )]
}

fn workload() -> Workload {
    let application = |median_ms| Application {
        share: 1.0,
        costs: None,
        run_times: RunTimeHistogram::log_normal(median_ms, 0.3).expect("the numbers are a distribution's"),
    };
    let applications = [application(0.01), application(0.05)].into();
    let varying = VaryingModel { fixed: Nanos::from_micros(10), per_request: 0.5, applications };
    let profile = varying.profile(RunTimeEstimate::Mean, 16).expect("run times are above 0");
    let model = WorkloadModel { varying: Some(varying), ..WorkloadModel::new("m", profile, LONGEST) };
    Workload::of_models(1, 1e6, vec![model])
}

fn a_request() -> Repeat {
    let orloj = policy::by_name("orloj").expect("it is a policy");
    let mut scheduler = orloj.scheduler(&workload(), &PolicyOptions::default());
    let (mut last, mut id, mut drawn) = (LastBatch::default(), 0u64, 1u64);
    let mut repeat = move |times: u64| {
        for _ in 0..times {
            id += 1;
            let now = Nanos(id * GAP.0);
            // Knuth's multiplier: any sequence does that is in no order.
            drawn = drawn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let left = Nanos((drawn >> 33) % LONGEST.0);
            let application = (drawn >> 32) as u8 & 1;
            let request =
                Request { id, arrival: now, deadline: now + left, application, ..Request::default() };
            scheduler.on_request(now, request, &mut last);
            if id.is_multiple_of(BATCH_EVERY)
                && let Some(BatchHeader { batch, exec_at, model, gpu, .. }) = last.0.take()
            {
                let completion = Completion { batch, started: exec_at, finished: now, model, gpu };
                scheduler.on_completion(now, completion, &mut last);
            }
        }
    };
    repeat(WARM);
    Box::new(repeat)
}

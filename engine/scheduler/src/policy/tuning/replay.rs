//! Recent arrivals, replayed under a setting of the rule: what would have become of them. The same
//! queues and the same matching as anywhere, on GPUs that take exactly what the profiles say. It
//! starts from nothing but the models' rates, so it needs no state of the scheduler that it is to
//! advise, and two settings see the very same requests.

use crate::deferral::Deferral;
use crate::drop_rule::DropRule;
use crate::policy::deferred::Deferred;
use crate::policy::interface::{Decisions, Scheduler};
use crate::rule_setting::RuleSetting;
use crate::workload::Workload;
use alloc::borrow::Cow;
use alloc::collections::BinaryHeap;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::ops::Range;
use symphony_transport::Nanos;
use symphony_transport::message::{BatchHeader, Completion, Ending, GpuId, ModelId, NO_DEADLINE, Request};

/// The requests of a model in replays.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct ReplayTally {
    /// The requests that came.
    pub offered: f64,
    /// Requests that were not answered in time.
    pub bad: f64,
}

/// The parts of a replay's time in which bad requests are counted apart.
pub const SLICES: usize = 16;

/// What became of arrivals under a setting.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ReplayOutcome {
    /// The requests of each model.
    pub models: Vec<ReplayTally>,
    /// The time for which GPUs ran, in seconds.
    pub busy_s: f64,
    /// The time that requests took until they were answered, in seconds, all together.
    pub latency_s: f64,
    /// The bad requests of one replay by the time of their arrival, in slices of equal length.
    pub bad_in: [f64; SLICES],
}

impl ReplayOutcome {
    /// Adds what became of other arrivals, but for their slices.
    pub fn add(&mut self, more: &ReplayOutcome) {
        self.models.resize(more.models.len().max(self.models.len()), ReplayTally::default());
        for (sum, one) in self.models.iter_mut().zip(&more.models) {
            sum.offered += one.offered;
            sum.bad += one.bad;
        }
        self.busy_s += more.busy_s;
        self.latency_s += more.latency_s;
    }

    /// Leaves a part of it, but for the slices.
    pub fn fade(&mut self, part: f64) {
        for sum in &mut self.models {
            sum.offered *= part;
            sum.bad *= part;
        }
        self.busy_s *= part;
        self.latency_s *= part;
    }

    /// Returns the number of requests that came.
    pub fn offered(&self) -> f64 {
        self.models.iter().map(|model| model.offered).sum()
    }

    /// Returns the share of bad requests among all.
    pub fn bad_rate(&self) -> f64 {
        self.models.iter().map(|model| model.bad).sum::<f64>() / self.offered().max(1.0)
    }

    /// Returns the bad rate of each model, drawn to that of all by `drawn_by` requests, since few
    /// requests say little.
    pub fn bad_rates(&self, drawn_by: f64) -> impl Iterator<Item = f64> {
        let all = self.bad_rate();
        self.models.iter().map(move |model| (model.bad + drawn_by * all) / (model.offered + drawn_by))
    }

    /// Returns the bad rate of the model that has the highest: see [`ReplayOutcome::bad_rates`].
    pub fn worst_bad_rate(&self, drawn_by: f64) -> f64 {
        self.bad_rates(drawn_by).fold(0.0, f64::max)
    }
}

/// The rule that is replayed.
#[derive(Clone, Copy, Debug)]
pub struct ReplayedRule {
    /// What is dropped.
    pub drop: DropRule,
    /// How long batches are held back.
    pub deferral: &'static dyn Deferral,
    /// The setting.
    pub setting: RuleSetting,
}

/// Requests that are replayed.
#[derive(Clone, Debug)]
pub struct ReplayedRequests<'a> {
    /// The requests, in the order of their arrival.
    pub requests: Cow<'a, [Request]>,
    /// The rates at which requests of each model came before, in requests per second.
    pub rates: Cow<'a, [f64]>,
    /// The time in which requests count. Those that arrive later do too.
    pub counted: Range<Nanos>,
    /// True if others came before, at these rates: a pool that is overloaded runs batches from the
    /// start.
    pub amid: bool,
}

impl ReplayedRequests<'_> {
    /// Returns the same requests, `stress` times as fast as they came, each with as much time until
    /// its deadline as it had.
    pub fn faster(&self, stress: f64) -> ReplayedRequests<'static> {
        let start = self.requests.first().map_or(Nanos::ZERO, |first| first.arrival);
        let pressed = |at: Nanos| start + Nanos::from_secs_f64((at - start).as_secs_f64() / stress);
        ReplayedRequests {
            requests: self.requests.iter().map(|request| moved(request, pressed(request.arrival))).collect(),
            rates: self.rates.iter().map(|rate| rate * stress).collect(),
            counted: pressed(self.counted.start)..pressed(self.counted.end),
            amid: self.amid,
        }
    }
}

/// The request, as if it had come at `arrival`.
fn moved(request: &Request, arrival: Nanos) -> Request {
    let deadline = match request.deadline {
        NO_DEADLINE => NO_DEADLINE,
        deadline => arrival + (deadline - request.arrival),
    };
    Request { arrival, deadline, ..*request }
}

/// Replays requests on the pool of `workload`.
///
/// It ends early once `is_enough` says so of what was found until then, which it is asked whenever
/// requests have become bad. The requests that are to come are among the offered ones from the
/// start.
pub fn replay(
    workload: &Workload,
    rule: &ReplayedRule,
    replayed: &ReplayedRequests<'_>,
    is_enough: impl Fn(&ReplayOutcome) -> bool,
) -> ReplayOutcome {
    let Some(first) = replayed.requests.first() else { return ReplayOutcome::default() };
    let mut scheduler = Deferred::new(workload, rule.drop, rule.deferral, rule.setting);
    let running = scheduler.expect(first.arrival, &replayed.rates, replayed.amid);
    let counted = replayed.counted.clone();
    let mut models = vec![ReplayTally::default(); workload.models.len()];
    for request in replayed.requests.iter().filter(|request| request.arrival >= counted.start) {
        models[request.queue.0 as usize].offered += 1.0;
    }
    let outcome = ReplayOutcome { models, ..ReplayOutcome::default() };
    let mut arrivals = replayed.requests.iter().peekable();
    let completions = running.into_iter().map(|batch| Reverse(batch.into())).collect();
    let mut gpus = ReplayedGpus { counted, completions, again: Vec::new(), outcome, lost: false };
    loop {
        let arrival = arrivals.peek().map_or(Nanos::MAX, |next| next.arrival);
        let completion = gpus.completions.peek().map_or(Nanos::MAX, |next| next.0.finished);
        let timer = scheduler.next_timer();
        let now = arrival.min(timer).min(completion);
        // As in the simulator: completions first, then requests, then timers.
        if now == Nanos::MAX {
            return gpus.outcome;
        } else if completion <= now {
            let done = gpus.take_completion();
            scheduler.on_completion(now, done, &mut gpus);
        } else if let Some(request) = arrivals.next_if(|next| next.arrival <= now) {
            scheduler.on_request(now, *request, &mut gpus);
        } else {
            scheduler.on_timer(now, &mut gpus);
        }
        while let Some(again) = gpus.again.pop() {
            scheduler.on_request(now, again, &mut gpus);
        }
        if core::mem::take(&mut gpus.lost) && is_enough(&gpus.outcome) {
            return gpus.outcome;
        }
    }
}

/// A batch on its GPU, ordered by the time at which it finishes, then by its number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct ReplayedBatch {
    finished: Nanos,
    batch: u64,
    started: Nanos,
    model: ModelId,
    gpu: GpuId,
}

impl From<Completion> for ReplayedBatch {
    fn from(Completion { batch, started, finished, model, gpu }: Completion) -> ReplayedBatch {
        ReplayedBatch { finished, batch, started, model, gpu }
    }
}

/// GPUs that take what the profiles say: a batch starts when it is to start.
struct ReplayedGpus {
    /// When the requests come that count.
    counted: Range<Nanos>,
    /// Requests that were dropped and are made once more.
    again: Vec<Request>,
    completions: BinaryHeap<Reverse<ReplayedBatch>>,
    outcome: ReplayOutcome,
    /// True if requests have become bad since this was last asked.
    lost: bool,
}

impl ReplayedGpus {
    fn take_completion(&mut self) -> Completion {
        let Reverse(ReplayedBatch { finished, batch, started, model, gpu }) =
            self.completions.pop().expect("only called when there is one");
        Completion { batch, started, finished, model, gpu }
    }

    fn lost(&mut self, request: &Request) {
        if request.arrival >= self.counted.start {
            self.lost = true;
            self.outcome.models[request.queue.0 as usize].bad += 1.0;
            let span = (self.counted.end - self.counted.start).0.max(1);
            let slice = (request.arrival - self.counted.start).0 * SLICES as u64 / span;
            self.outcome.bad_in[(slice as usize).min(SLICES - 1)] += 1.0;
        }
    }
}

impl Decisions for ReplayedGpus {
    fn run(&mut self, batch: BatchHeader, requests: (&[Request], &[Request])) {
        let BatchHeader { batch: number, exec_at: started, duration, model, gpu, .. } = batch;
        let finished = started + duration;
        self.completions.push(Reverse(ReplayedBatch { finished, batch: number, started, model, gpu }));
        if started >= self.counted.start {
            self.outcome.busy_s += duration.as_secs_f64();
        }
        for request in requests.0.iter().chain(requests.1) {
            if finished > request.deadline {
                self.lost(request);
            } else if request.arrival >= self.counted.start {
                self.outcome.latency_s += (finished - request.arrival).as_secs_f64();
            }
        }
    }

    fn run_preemptible(&mut self, batch: BatchHeader, requests: (&[Request], &[Request])) {
        self.run(batch, requests);
    }

    fn preempt(&mut self, _: GpuId, _: &mut Vec<Request>) -> bool {
        false
    }

    fn end(&mut self, request: &Request, _: Ending, _: Nanos) {
        match request.again() {
            Some(again) => self.again.push(again),
            None => self.lost(request),
        }
    }
}

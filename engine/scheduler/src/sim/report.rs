//! The result of a simulation: a [`Report`] is what `simulate` prints; its builder counts while the
//! simulation runs.
//! The report's fields, in JSON, are those of docs/design/specification.md, "Simulation", and are
//! fixed.

pub use super::queries::{QueryReport, StageReport};
use crate::run_time::VaryingModel;
use crate::workload::{Workload, WorkloadModel};
use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;
use hdrhistogram::Histogram;
use serde::Serialize;
use symphony_transport::Nanos;
use symphony_transport::message::{BatchHeader, Ending, Request};

/// The result of one simulation. Requests count that arrived in [warm-up, warm-up + duration); so
/// do the part of a GPU's time in that window, and batches that start in it.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The workload's name.
    pub workload: String,
    /// The policy's name.
    pub policy: String,
    /// The drop rule's name, "own" where the policy has its own.
    pub drop: String,
    /// The number of GPUs.
    pub gpus: usize,
    /// The nominal rate, requests per second.
    pub rate_rps: f64,
    /// The highest rate with at most 1 % bad for every model; only where it was searched for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub goodput_rps: Option<f64>,
    /// Requests and queries that arrived, per second.
    pub offered_rps: f64,
    /// Requests that were answered in time and queries that were over in time, per second.
    pub good_rps: f64,
    /// Dropped, late and rejected ones over offered ones.
    pub bad_rate: f64,
    /// The largest bad rate of a single query, or model of the highest class that there is.
    pub worst_bad_rate: f64,
    /// The mean of `gpu_busy`.
    pub gpu_utilization: f64,
    /// The share of time in which each GPU ran a batch.
    pub gpu_busy: Vec<f64>,
    /// Batches that were preempted, while they ran or before; only where there were any.
    #[serde(skip_serializing_if = "is_zero")]
    pub preemptions: u64,
    /// The part of `gpu_utilization` that went to preempted batches; only where there were any.
    #[serde(skip_serializing_if = "is_nothing")]
    pub gpu_wasted: f64,
    /// Requests per batch, of those that ran to their end.
    pub mean_batch: f64,
    /// Entry b is the count of batches of size b.
    pub batch_histogram: Vec<u64>,
    /// Time from arrival to start of execution, of requests that ran, as `models` has them.
    pub queueing_ms: Queueing,
    /// Time from arrival to the result at the frontend, of requests that ran, as `models` has
    /// them.
    pub latency_ms: Latency,
    /// The requests of each model, those of queries' stages left out.
    pub models: Vec<ModelReport>,
    /// The queries of each graph; only where there are any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub queries: Vec<QueryReport>,
    /// Wall-clock time of the simulation, seconds. The simulator has no clock: it leaves 0 here for
    /// its caller to fill in.
    pub wall_s: f64,
    /// Events processed: arrivals, completions and timers.
    pub events: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

fn is_nothing(share: &f64) -> bool {
    *share == 0.0
}

/// Percentiles of time in the queue, milliseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Queueing {
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Longest.
    pub max: f64,
}

/// Percentiles of latency, milliseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Latency {
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
    /// Longest.
    pub max: f64,
}

/// One model's requests.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ModelReport {
    /// The model's name.
    pub name: String,
    /// The priority class of its requests, from 0.
    pub priority: u8,
    /// Requests that arrived.
    pub offered: u64,
    /// Requests answered in time.
    pub good: u64,
    /// Requests dropped from the queue or cancelled at the GPU.
    pub dropped: u64,
    /// Requests answered late.
    pub late: u64,
    /// Requests refused since the queue was full.
    pub rejected: u64,
    /// Mean cost of a request, by its latency; only where the workload gives costs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_cost: Option<f64>,
}

impl ModelReport {
    /// Returns the number of requests that were not answered in time.
    pub fn bad(&self) -> u64 {
        self.dropped + self.late + self.rejected
    }

    fn bad_rate(&self) -> f64 {
        match self.offered {
            0 => 0.0,
            offered => self.bad() as f64 / offered as f64,
        }
    }
}

/// The longest time that is recorded; longer ones count as this.
const LONGEST: Nanos = Nanos::from_secs(3_600);

/// What the requests of a model cost, whose workload gives costs.
struct CountedCosts {
    model: VaryingModel,
    sum: f64,
}

/// A report under construction, while the simulation runs.
pub(super) struct ReportBuilder {
    from: Nanos,
    to: Nanos,
    result_delay: Nanos,
    models: Vec<ModelReport>,
    costs: Vec<Option<CountedCosts>>,
    busy: Vec<Nanos>,
    preemptions: u64,
    wasted: Nanos,
    batch_histogram: Vec<u64>,
    queueing: Histogram<u64>,
    latency: Histogram<u64>,
    /// True if requests have become bad since this was last asked.
    lost: bool,
}

impl CountedCosts {
    fn of(model: &WorkloadModel) -> Option<CountedCosts> {
        let varying = model.varying.as_ref().filter(|varying| varying.has_costs())?;
        Some(CountedCosts { model: varying.clone(), sum: 0.0 })
    }
}

impl ReportBuilder {
    pub(super) fn new(workload: &Workload) -> ReportBuilder {
        let of = |model: &WorkloadModel| ModelReport {
            name: model.name.clone(),
            priority: model.class.number(),
            ..ModelReport::default()
        };
        let histogram = || {
            let bounds = Histogram::new_with_bounds(1, LONGEST.0, 3);
            bounds.expect("three significant digits of up to an hour are supported")
        };
        ReportBuilder {
            from: workload.warmup,
            to: workload.warmup + workload.duration,
            result_delay: workload.network.result,
            models: workload.models.iter().map(of).collect(),
            costs: workload.models.iter().map(CountedCosts::of).collect(),
            busy: vec![Nanos::ZERO; workload.gpus],
            preemptions: 0,
            wasted: Nanos::ZERO,
            batch_histogram: vec![0],
            queueing: histogram(),
            latency: histogram(),
            lost: false,
        }
    }

    /// Returns the models' counts if requests have become bad since this was last asked.
    pub(super) fn more_are_bad(&mut self) -> Option<&[ModelReport]> {
        core::mem::take(&mut self.lost).then_some(&self.models)
    }

    fn counts(&self, request: &Request) -> bool {
        (self.from..self.to).contains(&request.arrival)
    }

    pub(super) fn arrived(&mut self, request: &Request) {
        if self.counts(request) {
            self.models[request.queue.0 as usize].offered += 1;
        }
    }

    pub(super) fn ended(&mut self, request: &Request, ending: Ending) {
        if self.counts(request) {
            let model = &mut self.models[request.queue.0 as usize];
            match ending {
                Ending::Overloaded => model.rejected += 1,
                _ => model.dropped += 1,
            }
            self.lost = true;
            self.count_cost(request, None);
        }
    }

    /// Counts what a request costs that was answered at `finished`, or never.
    fn count_cost(&mut self, request: &Request, finished: Option<Nanos>) {
        let latency = finished.map(|finished| finished + self.result_delay - request.arrival);
        let in_time = finished.is_some_and(|finished| finished <= request.deadline);
        if let Some(costs) = &mut self.costs[request.queue.0 as usize] {
            costs.sum += costs.model.cost(request.application, latency, in_time);
        }
    }

    pub(super) fn ran(
        &mut self,
        batch: &BatchHeader,
        requests: (&[Request], &[Request]),
        started: Option<Nanos>,
        finished: Nanos,
    ) {
        let all = requests.0.iter().chain(requests.1);
        let Some(started) = started else {
            all.for_each(|request| self.ended(request, Ending::DroppedAtBackend));
            return;
        };
        let busy = self.within(started, finished);
        self.busy[batch.gpu.0 as usize] += busy;
        if (self.from..self.to).contains(&started) {
            let size = batch.size as usize;
            self.batch_histogram.resize(self.batch_histogram.len().max(size + 1), 0);
            self.batch_histogram[size] += 1;
        }
        for request in all {
            self.answered(request, started, finished);
        }
    }

    /// Counts a batch that was preempted at `stopped`; its requests have not ended.
    pub(super) fn preempted(&mut self, batch: &BatchHeader, started: Nanos, stopped: Nanos) {
        let wasted = self.within(started, stopped);
        self.busy[batch.gpu.0 as usize] += wasted;
        self.wasted += wasted;
        self.preemptions += u64::from((self.from..self.to).contains(&stopped));
    }

    /// Returns the part of the time between two instants that counts.
    fn within(&self, from: Nanos, to: Nanos) -> Nanos {
        to.clamp(self.from, self.to) - from.clamp(self.from, self.to)
    }

    fn answered(&mut self, request: &Request, started: Nanos, finished: Nanos) {
        if !self.counts(request) {
            return;
        }
        let model = &mut self.models[request.queue.0 as usize];
        if finished <= request.deadline {
            model.good += 1;
        } else {
            model.late += 1;
            self.lost = true;
        }
        self.count_cost(request, Some(finished));
        self.queueing.saturating_record((started - request.arrival).0);
        self.latency.saturating_record((finished + self.result_delay - request.arrival).0);
    }

    pub(super) fn finish(
        mut self,
        workload: &Workload,
        policy: &str,
        drop: &str,
        events: u64,
        queries: Vec<QueryReport>,
    ) -> Report {
        for (model, costs) in self.models.iter_mut().zip(&self.costs) {
            model.mean_cost = costs.as_ref().map(|costs| costs.sum / model.offered.max(1) as f64);
        }
        let window_s = (self.to - self.from).as_secs_f64();
        let offered = self.models.iter().map(|model| model.offered);
        let offered: u64 = offered.chain(queries.iter().map(|query| query.offered)).sum();
        let good = self.models.iter().map(|model| model.good);
        let good: u64 = good.chain(queries.iter().map(|query| query.good)).sum();
        let batches: u64 = self.batch_histogram.iter().sum();
        let batched: u64 = self.batch_histogram.iter().enumerate().map(|(size, n)| size as u64 * n).sum();
        let gpu_busy: Vec<f64> = self.busy.iter().map(|busy| busy.as_secs_f64() / window_s).collect();
        let ms = |histogram: &Histogram<u64>, q: f64| histogram.value_at_quantile(q) as f64 / 1e6;
        Report {
            workload: workload.name.clone(),
            policy: policy.to_owned(),
            drop: drop.to_owned(),
            gpus: workload.gpus,
            rate_rps: workload.rate_rps,
            goodput_rps: None,
            offered_rps: offered as f64 / window_s,
            good_rps: good as f64 / window_s,
            bad_rate: if offered == 0 { 0.0 } else { (offered - good) as f64 / offered as f64 },
            worst_bad_rate: (queries.iter().map(|query| query.bad_rate))
                .fold(worst_bad_rate(&self.models), f64::max),
            gpu_utilization: gpu_busy.iter().sum::<f64>() / gpu_busy.len().max(1) as f64,
            preemptions: self.preemptions,
            gpu_wasted: self.wasted.as_secs_f64() / (window_s * gpu_busy.len().max(1) as f64),
            gpu_busy,
            mean_batch: if batches == 0 { 0.0 } else { batched as f64 / batches as f64 },
            batch_histogram: self.batch_histogram,
            queueing_ms: Queueing {
                p50: ms(&self.queueing, 0.5),
                p99: ms(&self.queueing, 0.99),
                max: self.queueing.max() as f64 / 1e6,
            },
            latency_ms: Latency {
                p50: ms(&self.latency, 0.5),
                p99: ms(&self.latency, 0.99),
                p999: ms(&self.latency, 0.999),
                max: self.latency.max() as f64 / 1e6,
            },
            models: self.models,
            queries,
            wall_s: 0.0,
            events,
        }
    }
}

fn worst_bad_rate(models: &[ModelReport]) -> f64 {
    of_highest(models).map(|(_, model)| model.bad_rate()).fold(0.0, f64::max)
}

/// Returns the models of the highest class that there is, and their indices.
pub(super) fn of_highest(models: &[ModelReport]) -> impl Iterator<Item = (usize, &ModelReport)> {
    let highest = models.iter().map(|model| model.priority).min();
    models.iter().enumerate().filter(move |(_, model)| Some(model.priority) == highest)
}

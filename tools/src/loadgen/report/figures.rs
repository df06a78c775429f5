//! The figures of a run under the names that its JSON has. The first fourteen are relied on by
//! others and fixed; more may be added after them.

use crate::loadgen::measure::{End, ModelTally, Tally};
use crate::loadgen::schedule::PlannedModel;
use hdrhistogram::{Counter, Histogram};
use serde::{Deserialize, Serialize};
use symphony_transport::Nanos;

/// The figures, under the names that `--json` prints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Requests whose time came.
    pub offered: u64,
    /// Requests that went out.
    pub sent: u64,
    /// Answered in time.
    pub good: u64,
    /// All others: late + dropped + rejected + failed.
    pub bad: u64,
    /// Answered too late.
    pub late: u64,
    /// Given up by the server, since they could not be in time.
    pub dropped: u64,
    /// Not taken by the server.
    pub rejected: u64,
    /// Ended in an error, or without an answer, or never sent.
    pub failed: u64,
    /// Requests offered per second.
    pub offered_rps: f64,
    /// Good requests per second.
    pub good_rps: f64,
    /// bad / offered.
    pub bad_rate: f64,
    /// Latency from the intended send time to the answer, of good and late requests.
    pub latency_ms: Latency,
    /// Requests per batch, as far as the server states it; else 0.
    pub mean_batch: f64,
    /// The generator's own lateness.
    pub lateness_ms: Lateness,
    /// The p99 lateness from which the run is of no use; without an SLO there is none.
    #[serde(default)]
    pub lateness_limit_ms: Option<f64>,
    /// Failed requests that were never sent or never answered.
    #[serde(default)]
    pub unanswered: u64,
    /// The bad rate of the worst model.
    #[serde(default)]
    pub worst_bad_rate: f64,
    /// Seconds over which requests counted.
    #[serde(default)]
    pub window_s: f64,
    /// The durations of each stage, if the server states them.
    #[serde(default)]
    pub stages_ms: Option<StageFigures>,
    /// Requests by the size of the batch that they ran in, if the server states it: pairs of size
    /// and requests.
    #[serde(default)]
    pub batch_sizes: Vec<(u32, u64)>,
    /// Every model of the plan.
    #[serde(default)]
    pub models: Vec<ModelFigures>,
    /// The settings of the run.
    #[serde(default)]
    pub run: RunInfo,
    /// Latency from the real send time to the answer: what it would have been, had the generator
    /// sent each request in time and the server taken as long for it.
    #[serde(default)]
    pub latency_from_sent_ms: Option<Latency>,
    /// The machine's stalls while load was sent.
    #[serde(default)]
    pub machine_stalls: MachineStalls,
    /// The figures without the requests that a stall disturbed.
    #[serde(default)]
    pub without_stalls: Option<WithoutStalls>,
    /// The highest rate at which every model's bad rate was at most 1 %, if it was searched for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goodput_rps: Option<f64>,
    /// The steps of that search, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<Step>,
}

/// Quantiles of latency, milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names are the quantiles")]
pub struct Latency {
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

/// Quantiles of lateness, milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names are the quantiles")]
pub struct Lateness {
    pub p99: f64,
    pub max: f64,
}

/// Stalls of the machine: late awakenings of a thread that only sleeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MachineStalls {
    /// The number of stalls.
    pub count: u64,
    /// The duration of all stalls together.
    pub total_ms: f64,
    /// The duration of the longest stall.
    pub longest_ms: f64,
}

/// Figures of the requests that no stall of the machine disturbed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct WithoutStalls {
    /// The number of requests that no stall disturbed.
    pub offered: u64,
    /// The part of them that was bad.
    pub bad_rate: f64,
    /// The bad rate of the worst model.
    pub worst_bad_rate: f64,
    /// Latency from the intended send time to the answer.
    pub latency_ms: Latency,
    /// The generator's own lateness.
    pub lateness_ms: Lateness,
}

/// Quantiles of one stage, or of one model's latency, milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names are the quantiles")]
pub struct Quantiles {
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub max: f64,
}

/// The stages of a request, in their order: see [`crate::loadgen::measure::STAGES`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StageFigures {
    /// The time from the arrival at the server until the batch was formed.
    pub queue: Quantiles,
    /// The time from there to the batch's start on the GPU.
    pub wait: Quantiles,
    /// The time on the GPU.
    pub execution: Quantiles,
    /// The time from there until the answer was ready to be sent.
    pub answer: Quantiles,
    /// The remaining time: both ways over the network, the server's reading and writing, the
    /// client.
    pub network_and_client: Quantiles,
}

impl StageFigures {
    /// Each stage with its name.
    pub fn named(&self) -> [(&'static str, Quantiles); 5] {
        [
            ("queue", self.queue),
            ("wait", self.wait),
            ("execution", self.execution),
            ("answer", self.answer),
            ("network and client", self.network_and_client),
        ]
    }
}

/// One model of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelFigures {
    /// The model's name.
    pub name: String,
    /// Requests whose time came.
    pub offered: u64,
    /// Requests answered in time.
    pub good: u64,
    /// See [`Figures`].
    pub late: u64,
    /// See [`Figures`].
    pub dropped: u64,
    /// See [`Figures`].
    pub rejected: u64,
    /// See [`Figures`].
    pub failed: u64,
    /// bad / offered.
    pub bad_rate: f64,
    /// The SLO, if it is known.
    pub slo_ms: Option<f64>,
    /// Latency of good and late requests.
    pub latency_ms: Quantiles,
}

/// The settings of a run: enough to run it again, and to see whether two runs can be compared.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunInfo {
    /// The server's address, or the CONFIG of an engine in the process.
    pub target: String,
    /// `http`, `grpc` or `in-process`.
    pub protocol: String,
    /// The form of tensors: `json`, `binary` or `shared memory`.
    pub tensors: String,
    /// The rate asked for, all models together; none in a closed loop.
    pub rate_rps: Option<f64>,
    /// ClosedLoopClient of a closed loop.
    pub concurrency: Option<usize>,
    /// Rows in each request.
    pub rows: usize,
    /// Threads that sent.
    pub threads: usize,
    /// The seed.
    pub seed: u64,
}

/// One rate that a search for the goodput tried.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// The rate asked for.
    pub rate_rps: f64,
    /// The rate that came of it.
    pub offered_rps: f64,
    /// The bad rate of the worst model.
    pub worst_bad_rate: f64,
    /// Latency of all models' good and late requests, p99.
    pub p99_ms: f64,
    /// True if every model's bad rate was low enough, without the requests that a stall of the
    /// machine disturbed.
    pub passed: bool,
    /// The bad rate of the worst model without those requests; none where most were disturbed.
    #[serde(default)]
    pub worst_bad_rate_without_stalls: Option<f64>,
}

fn ms<C: Counter>(histogram: &Histogram<C>, q: f64) -> f64 {
    histogram.value_at_quantile(q) as f64 / 1e6
}

impl Latency {
    fn of<C: Counter>(histogram: &Histogram<C>) -> Latency {
        Latency {
            p50: ms(histogram, 0.5),
            p90: ms(histogram, 0.9),
            p99: ms(histogram, 0.99),
            p999: ms(histogram, 0.999),
            max: ms(histogram, 1.0),
        }
    }
}

impl Lateness {
    fn of(histogram: &Histogram<u64>) -> Lateness {
        Lateness { p99: ms(histogram, 0.99), max: ms(histogram, 1.0) }
    }
}

impl MachineStalls {
    fn of(tally: &Tally) -> MachineStalls {
        let (count, total, longest) = tally.stalls().so_far();
        MachineStalls { count, total_ms: total.as_millis_f64(), longest_ms: longest.as_millis_f64() }
    }
}

impl WithoutStalls {
    /// Sums up, if at least half of the requests offered were not disturbed: fewer say nothing
    /// about the rest.
    fn of(tally: &Tally) -> Option<WithoutStalls> {
        let models: Vec<[u64; 2]> = tally.models.iter().map(ModelTally::undisturbed).collect();
        let sum = |of: usize| models.iter().map(|model| model[of]).sum::<u64>();
        let (offered, all) = (sum(0), tally.models.iter().map(|model| model.offered).sum::<u64>());
        if offered == 0 || 2 * offered < all {
            return None;
        }
        let rate = |[of, bad]: [u64; 2]| if of == 0 { 0.0 } else { bad as f64 / of as f64 };
        let [latency, lateness] = &tally.undisturbed;
        Some(WithoutStalls {
            offered,
            bad_rate: rate([offered, sum(1)]),
            worst_bad_rate: models.into_iter().map(rate).fold(0.0, f64::max),
            latency_ms: Latency::of(latency),
            lateness_ms: Lateness::of(lateness),
        })
    }
}

impl Quantiles {
    /// Returns the quantiles of a histogram of nanoseconds.
    pub fn of<C: Counter>(histogram: &Histogram<C>) -> Quantiles {
        Quantiles {
            p50: ms(histogram, 0.5),
            p90: ms(histogram, 0.9),
            p99: ms(histogram, 0.99),
            max: ms(histogram, 1.0),
        }
    }
}

impl ModelFigures {
    pub(super) fn new(planned: &PlannedModel, slo: Option<Nanos>, counted: &ModelTally) -> ModelFigures {
        let [good, late, dropped, rejected, ended_failed] = counted.ends;
        let unanswered = counted.unanswered();
        ModelFigures {
            name: planned.name.clone(),
            offered: counted.offered,
            good,
            late,
            dropped,
            rejected,
            failed: ended_failed + unanswered,
            bad_rate: counted.bad_rate(),
            slo_ms: slo.map(Nanos::as_millis_f64),
            latency_ms: Quantiles::of(&counted.latency),
        }
    }
}

impl Figures {
    pub(super) fn new(
        tally: &Tally,
        models: Vec<ModelFigures>,
        lateness_limit_ms: Option<f64>,
        run: RunInfo,
    ) -> Figures {
        let window_s = (tally.to - tally.from).as_secs_f64();
        let offered: u64 = tally.models.iter().map(|model| model.offered).sum();
        let mut ends = [0; End::COUNT];
        for model in &tally.models {
            ends.iter_mut().zip(model.ends).for_each(|(sum, n)| *sum += n);
        }
        let [good, late, dropped, rejected, failed] = ends;
        let unanswered = offered.saturating_sub(ends.iter().sum());
        let bad = offered - good;
        let per_second = |count: u64| if window_s > 0.0 { count as f64 / window_s } else { 0.0 };
        let stages_ms =
            tally.stages.histograms().map(|[queue, wait, execution, answer, rest]| StageFigures {
                queue: Quantiles::of(queue),
                wait: Quantiles::of(wait),
                execution: Quantiles::of(execution),
                answer: Quantiles::of(answer),
                network_and_client: Quantiles::of(rest),
            });
        Figures {
            offered,
            sent: tally.sent,
            good,
            bad,
            late,
            dropped,
            rejected,
            failed: failed + unanswered,
            offered_rps: per_second(offered),
            good_rps: per_second(good),
            bad_rate: if offered > 0 { bad as f64 / offered as f64 } else { 0.0 },
            latency_ms: Latency::of(&tally.latency),
            mean_batch: mean_batch(&tally.batch_sizes),
            lateness_ms: Lateness::of(&tally.lateness),
            lateness_limit_ms,
            unanswered,
            worst_bad_rate: models.iter().map(|model| model.bad_rate).fold(0.0, f64::max),
            window_s,
            stages_ms,
            batch_sizes: tally.batch_sizes.iter().map(|(&size, &n)| (size, n)).collect(),
            models,
            run,
            latency_from_sent_ms: Some(Latency::of(&tally.latency_from_sent)),
            machine_stalls: MachineStalls::of(tally),
            without_stalls: WithoutStalls::of(tally),
            goodput_rps: None,
            steps: Vec::new(),
        }
    }
}

impl Figures {
    /// Returns the bad rate of the worst model by which a rate is judged: without the requests that
    /// a stall of the machine disturbed, unless these are most.
    pub fn judged_bad_rate(&self) -> f64 {
        self.without_stalls.map_or(self.worst_bad_rate, |without| without.worst_bad_rate)
    }

    /// Returns the generator's p99 lateness by which a run is judged, ms, likewise.
    pub fn judged_lateness_ms(&self) -> f64 {
        self.without_stalls.map_or(self.lateness_ms, |without| without.lateness_ms).p99
    }

    /// Returns by how much the generator's lateness may have raised each percentile of latency, ms,
    /// with the percentile's name.
    pub fn raised_by_lateness_ms(&self) -> Option<[(&'static str, f64); 5]> {
        let (all, sent) = (self.latency_ms, self.latency_from_sent_ms?);
        Some([
            ("p50", all.p50 - sent.p50),
            ("p90", all.p90 - sent.p90),
            ("p99", all.p99 - sent.p99),
            ("p99.9", all.p999 - sent.p999),
            ("max", all.max - sent.max),
        ])
    }
}

/// Requests per batch: a batch of b appears in each of its b answers, so each stands for 1/b of a
/// batch.
fn mean_batch(requests_by_size: &std::collections::BTreeMap<u32, u64>) -> f64 {
    let requests: u64 = requests_by_size.values().sum();
    let batches: f64 = requests_by_size.iter().map(|(&size, &n)| n as f64 / f64::from(size)).sum();
    if requests > 0 { requests as f64 / batches } else { 0.0 }
}

//! The report of a run: one JSON object, or the same figures as lines to read.

use super::machine::Machine;
use super::machine::gaps::{GapFigures, Gaps, lag_of_gaps};
use super::run::Outcome;
use super::run::delay_histogram::DelayHistogram;
use super::run::stopwatch::DutyCycles;
use serde::Serialize;
use symphony_transport::Nanos;

/// The figures of a run, as `--json` prints them.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// True if few arrivals were taken up late and few requests were bad, the machine's stalls
    /// aside.
    pub passed: bool,
    /// The reason for which the run failed.
    pub failure: Option<String>,
    /// True if it had passed with the machine's stalls too, which once failed a run.
    pub passed_with_stalls: bool,
    /// The reason for which it had not.
    pub failure_with_stalls: Option<String>,
    /// Requests per second asked for.
    pub rate: f64,
    /// Requests per second taken up.
    pub requests_per_s: f64,
    /// Requests per second taken up by a ModelThread, the mean.
    pub per_model_thread: f64,
    /// Grants per second that became batches.
    pub grants_per_s: f64,
    /// The share of ModelThreads' duty cycles that found work.
    pub model_thread_busy: f64,
    /// The share of RankThreads' duty cycles that found work.
    pub rank_thread_busy: f64,
    /// The share of ModelThreads' time that those duty cycles took.
    pub model_thread_busy_time: f64,
    /// The share of RankThreads' time that those duty cycles took.
    pub rank_thread_busy_time: f64,
    /// The time of ModelThreads' duty cycles that found work, per request, with the stream's cost.
    pub ns_per_request: f64,
    /// The cost of the stream of requests alone.
    pub stream_ns_per_request: f64,
    /// The time of RankThreads' duty cycles that found work, per grant.
    pub rank_ns_per_grant: f64,
    /// Requests per batch.
    pub batch_mean: f64,
    /// Dropped and late requests, as a share of all.
    pub bad_rate: f64,
    /// The same without requests while a thread recovered from a stall of the machine; `None` where
    /// too few are left.
    pub bad_rate_without_stalls: Option<f64>,
    /// The delays with which arrivals were taken up.
    pub arrival_lag_us: ArrivalLag,
    /// The same delays, less the time that the machine took from their threads.
    pub arrival_lag_without_stalls_us: ArrivalLag,
    /// The times at which the machine took a thread's core.
    pub thread_stalls: ThreadStalls,
    /// The delays from the frontrun (and a free GPU) until the batch was sent.
    pub decision_lag_us: DecisionLag,
    /// The delays of the decisions that the machine did not disturb.
    pub decision_lag_undisturbed_us: DecisionLag,
    /// The disturbed decisions, as a share of all.
    pub decisions_disturbed: f64,
    /// The longest duty cycle of a ModelThread and of a RankThread.
    pub longest_turn_us: [f64; 2],
    /// ModelThreads.
    pub model_threads: usize,
    /// RankThreads.
    pub rank_threads: usize,
    /// Models in all.
    pub models: usize,
    /// GPUs in all.
    pub gpus: usize,
    /// The SLO.
    pub slo_ms: f64,
    /// l(1) and l(2) of each model.
    pub first_latencies_ms: [f64; 2],
    /// The length of the window.
    pub seconds: f64,
    /// Cores that the threads were pinned to, RankThreads' first.
    pub cores: Vec<usize>,
    /// True if threads shared cores: no figure is then that of a thread on a core of its own.
    pub shared_cores: bool,
    /// The time that the machine took from the threads.
    pub stolen: Stolen,
    /// The gaps of each of those cores when idle, watched after the run. Empty where threads shared
    /// cores.
    pub machine_gaps: Vec<GapFigures>,
    /// The decision lag that such gaps alone cause for threads that are as busy as these; `None` if
    /// not measured.
    pub decision_lag_of_gaps_us: Option<LagOfGaps>,
    /// The name of the threads' observation.
    pub watch: &'static str,
    /// The machine that it ran on.
    pub machine: Machine,
}

/// Delays of arrivals.
#[derive(Clone, Debug, Serialize)]
pub struct ArrivalLag {
    /// The median.
    pub p50: f64,
    /// The 95th percentile.
    pub p95: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The longest delay.
    pub max: f64,
}

/// Stalls of all threads within the window, as far as the system has a trace of them.
#[derive(Clone, Debug, Serialize)]
pub struct ThreadStalls {
    /// The number of stalls.
    pub count: u64,
    /// The time that they took, in all.
    pub total_ms: f64,
    /// The longest.
    pub longest_us: f64,
}

/// Delays of decisions.
#[derive(Clone, Debug, Serialize)]
pub struct DecisionLag {
    /// The median.
    pub p50: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The 99.9th percentile.
    pub p999: f64,
    /// The longest delay.
    pub max: f64,
}

/// Delays of decisions that gaps alone cause.
#[derive(Clone, Debug, Serialize)]
pub struct LagOfGaps {
    /// The 99th percentile.
    pub p99: f64,
    /// The 99.9th percentile.
    pub p999: f64,
}

/// Time that the machine took from the scheduler.
#[derive(Clone, Debug, Serialize)]
pub struct Stolen {
    /// The time that the host took from all cores; `None` where the system does not count it.
    pub by_host_ms: Option<f64>,
    /// The time that threads waited for their cores while others ran there, the warm-up included;
    /// `None` where the system does not count it.
    pub by_other_threads_ms: Option<f64>,
    /// The longest gap between two readings of the clock; `None` if no core was left to measure it
    /// on.
    pub longest_gap_us: Option<f64>,
}

impl Report {
    /// Makes the report of a run on `machine`, whose cores have these gaps, in the order of
    /// `outcome.cores`.
    pub fn new(outcome: &Outcome, machine: Machine, stream_ns: f64, gaps: &[Gaps]) -> Report {
        let plan = &outcome.plan;
        let seconds = plan.duration.as_secs_f64();
        let (models, ranks) = (Sum::of(&outcome.model_cycles), Sum::of(&outcome.rank_cycles));
        let ran = &outcome.ran;
        let requests_per_s = outcome.requests as f64 / seconds;
        let delayed: Option<Vec<Nanos>> =
            outcome.model_cycles.iter().chain(&outcome.rank_cycles).map(|cycles| cycles.delayed).collect();
        let failure = outcome.failure();
        Report {
            passed: failure.is_none(),
            failure,
            passed_with_stalls: outcome.failure_with_stalls().is_none(),
            failure_with_stalls: outcome.failure_with_stalls(),
            rate: plan.rate,
            requests_per_s,
            per_model_thread: requests_per_s / plan.model_threads as f64,
            grants_per_s: ran.batches as f64 / seconds,
            model_thread_busy: models.working as f64 / models.all,
            rank_thread_busy: ranks.working as f64 / ranks.all,
            model_thread_busy_time: models.busy_ns / models.total_ns,
            rank_thread_busy_time: ranks.busy_ns / ranks.total_ns,
            ns_per_request: models.busy_ns / outcome.requests.max(1) as f64,
            stream_ns_per_request: stream_ns,
            rank_ns_per_grant: ranks.busy_ns / ran.batches.max(1) as f64,
            batch_mean: ran.requests as f64 / ran.batches.max(1) as f64,
            bad_rate: outcome.bad_rate(),
            bad_rate_without_stalls: outcome.bad_rate_without_stalls(),
            arrival_lag_us: arrival_lag(&outcome.arrival),
            arrival_lag_without_stalls_us: arrival_lag(&outcome.arrival_unexplained),
            thread_stalls: ThreadStalls::of(outcome),
            decision_lag_us: decision_lag(&ran.decision),
            decision_lag_undisturbed_us: decision_lag(&ran.undisturbed),
            decisions_disturbed: 1.0 - ran.undisturbed.count() as f64 / ran.decision.count().max(1) as f64,
            longest_turn_us: [models.longest.as_micros_f64(), ranks.longest.as_micros_f64()],
            model_threads: plan.model_threads,
            rank_threads: plan.rank_threads,
            models: plan.models,
            gpus: plan.gpus,
            slo_ms: plan.slo.as_millis_f64(),
            first_latencies_ms: [1, 2].map(|size| plan.profile.latency(size).as_millis_f64()),
            seconds,
            cores: outcome.cores.clone(),
            shared_cores: outcome.shared,
            stolen: Stolen {
                by_host_ms: outcome.stolen.map(Nanos::as_millis_f64),
                by_other_threads_ms: delayed.map(|all| all.iter().map(|d| d.as_millis_f64()).sum()),
                longest_gap_us: outcome.longest_gap.map(Nanos::as_micros_f64),
            },
            machine_gaps: gaps.iter().map(Gaps::figures).collect(),
            decision_lag_of_gaps_us: lag_of(outcome, gaps),
            watch: plan.watch.name(),
            machine,
        }
    }

    /// Formats the figures as lines to read.
    pub fn lines(&self) -> String {
        let mark = if self.shared_cores { " *" } else { "" };
        let Report { arrival_lag_us: arrival, decision_lag_us: decision, stolen, .. } = self;
        let undisturbed = &self.decision_lag_undisturbed_us;
        let aside = &self.arrival_lag_without_stalls_us;
        let bad_aside = self
            .bad_rate_without_stalls
            .map_or("not measured".to_owned(), |bad| format!("{:.3} %", bad * 100.0));
        let with_stalls = self.failure_with_stalls.as_deref().unwrap_or("passed");
        let measured = |value: Option<f64>, unit: &str| match value {
            Some(value) => format!("{value:.0} {unit}"),
            None => "not measured".to_owned(),
        };
        let mut lines = vec![
            format!("requests      {:.3} M/s{mark} ({})", self.requests_per_s / 1e6, self.verdict()),
            format!(
                "  a request   {:.1} ns on its ModelThread, {:.1} ns of them its making{mark}",
                self.ns_per_request, self.stream_ns_per_request
            ),
            format!(
                "batches       {:.1} requests each; {:.3} M grants/s, {:.0} ns each on the RankThread{mark}",
                self.batch_mean,
                self.grants_per_s / 1e6,
                self.rank_ns_per_grant
            ),
            format!("  all stalls  counted: {with_stalls}"),
            format!("bad           {:.3} %; {bad_aside} without the machine's stalls", self.bad_rate * 100.0),
            format!(
                "busy          ModelThreads {:.1} % of time, RankThreads {:.1} %{mark}",
                self.model_thread_busy_time * 100.0,
                self.rank_thread_busy_time * 100.0
            ),
            format!(
                "arrival lag   p50 {:.1}, p99 {:.1}, max {:.1} us{mark}",
                arrival.p50, arrival.p99, arrival.max
            ),
            format!(
                "  no stalls   p50 {:.1}, p95 {:.1}, max {:.1} us{mark}",
                aside.p50, aside.p95, aside.max
            ),
            format!(
                "decision lag  p50 {:.1}, p99 {:.1}, p99.9 {:.1}, max {:.1} us{mark}",
                decision.p50, decision.p99, decision.p999, decision.max
            ),
            format!(
                "  undisturbed p50 {:.1}, p99 {:.1}, p99.9 {:.1}, max {:.1} us, without {:.3} % of decisions{mark}",
                undisturbed.p50,
                undisturbed.p99,
                undisturbed.p999,
                undisturbed.max,
                self.decisions_disturbed * 100.0
            ),
            match &self.decision_lag_of_gaps_us {
                Some(lag) => format!(
                    "  by gaps     p99 {:.1}, p99.9 {:.1} us: the lag that gaps of an idle core alone would cause",
                    lag.p99, lag.p999
                ),
                None => "  by gaps     not measured".to_owned(),
            },
            format!(
                "threads       {} ModelThreads, {} RankThreads on cores {:?}; {} models, {} GPUs",
                self.model_threads, self.rank_threads, self.cores, self.models, self.gpus
            ),
            format!(
                "threads lost  their cores {} times, {:.1} ms in all, {:.0} us at the longest",
                self.thread_stalls.count, self.thread_stalls.total_ms, self.thread_stalls.longest_us
            ),
            format!(
                "machine took  by its host {}, by other threads {}, longest gap of an idle core {}",
                measured(stolen.by_host_ms, "ms"),
                measured(stolen.by_other_threads_ms, "ms"),
                measured(stolen.longest_gap_us, "us")
            ),
            format!(
                "machine       {}, {} cores, Linux {}",
                self.machine.cpu, self.machine.cores, self.machine.kernel
            ),
        ];
        if self.shared_cores {
            lines.push("* threads shared cores: not the figure of a thread on a core of its own".to_owned());
        }
        lines.join("\n")
    }

    fn verdict(&self) -> String {
        self.failure.clone().unwrap_or_else(|| "passed".to_owned())
    }
}

impl ThreadStalls {
    fn of(outcome: &Outcome) -> ThreadStalls {
        let threads = || outcome.model_cycles.iter().chain(&outcome.rank_cycles);
        ThreadStalls {
            count: threads().map(|cycles| cycles.stalls).sum(),
            total_ms: threads().map(|cycles| cycles.stalled.as_millis_f64()).sum(),
            longest_us: threads().map(|cycles| cycles.longest_stall.as_micros_f64()).fold(0.0, f64::max),
        }
    }
}

/// The duty cycles of several threads together.
struct Sum {
    all: f64,
    working: u64,
    busy_ns: f64,
    total_ns: f64,
    longest: Nanos,
}

impl Sum {
    fn of(threads: &[DutyCycles]) -> Sum {
        Sum {
            all: threads.iter().map(|t| t.all).sum::<u64>().max(1) as f64,
            working: threads.iter().map(|t| t.working).sum(),
            busy_ns: threads.iter().map(|t| t.busy.0).sum::<u64>() as f64,
            total_ns: threads.iter().map(|t| t.total.0).sum::<u64>().max(1) as f64,
            longest: threads.iter().map(|t| t.longest).max().unwrap_or_default(),
        }
    }
}

/// Returns the lag that gaps cause for the first RankThread and the first ModelThread.
fn lag_of(outcome: &Outcome, gaps: &[Gaps]) -> Option<LagOfGaps> {
    let busy = |threads: &[DutyCycles]| Sum::of(threads).busy_ns / Sum::of(threads).total_ns;
    let rank = (gaps.first()?, busy(&outcome.rank_cycles));
    let model = (gaps.get(outcome.plan.rank_threads)?, busy(&outcome.model_cycles));
    let us = |quantile| lag_of_gaps(&[rank, model], quantile).map(Nanos::as_micros_f64);
    Some(LagOfGaps { p99: us(0.99)?, p999: us(0.999)? })
}

fn arrival_lag(lags: &DelayHistogram) -> ArrivalLag {
    let us = |q| lags.quantile(q).as_micros_f64();
    ArrivalLag { p50: us(0.5), p95: us(0.95), p99: us(0.99), max: lags.max().as_micros_f64() }
}

fn decision_lag(lags: &DelayHistogram) -> DecisionLag {
    let us = |q| lags.quantile(q).as_micros_f64();
    DecisionLag { p50: us(0.5), p99: us(0.99), p999: us(0.999), max: lags.max().as_micros_f64() }
}

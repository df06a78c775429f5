//! What `scale` says of a run: one JSON object, or the same as lines to read.

use super::gaps::{GapFigures, Gaps, lag_of_gaps};
use super::lags::Lags;
use super::machine::Machine;
use super::measured::DutyCycles;
use super::world::Outcome;
use serde::Serialize;
use symphony_transport::Nanos;

/// A run's figures, as `--json` prints them.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Whether no arrival was taken up late and few requests were bad.
    pub passed: bool,
    /// Why not.
    pub failure: Option<String>,
    /// Requests per second asked for.
    pub rate: f64,
    /// Requests per second taken up.
    pub requests_per_s: f64,
    /// The same by ModelThread, the mean.
    pub per_model_thread: f64,
    /// Grants per second that became batches.
    pub grants_per_s: f64,
    /// The share of ModelThreads' turns that found work.
    pub model_thread_busy: f64,
    /// The share of RankThreads' turns that found work.
    pub rank_thread_busy: f64,
    /// The share of ModelThreads' time that those turns took.
    pub model_thread_busy_time: f64,
    /// The share of RankThreads' time that those turns took.
    pub rank_thread_busy_time: f64,
    /// The time of ModelThreads' turns that found work, per request; the stream's share is in it.
    pub ns_per_request: f64,
    /// What the stream of requests costs by itself.
    pub stream_ns_per_request: f64,
    /// The time of RankThreads' turns that found work, per grant.
    pub rank_ns_per_grant: f64,
    /// Requests to a batch.
    pub batch_mean: f64,
    /// Dropped and late requests, as a share of all.
    pub bad_rate: f64,
    /// How late arrivals were taken up.
    pub arrival_lag_us: ArrivalLag,
    /// From frontrun (and a GPU free) to the batch sent.
    pub decision_lag_us: DecisionLag,
    /// The same without the decisions that the machine held up.
    pub decision_lag_undisturbed_us: DecisionLag,
    /// Those, as a share of all decisions.
    pub decisions_disturbed: f64,
    /// The longest turn of a ModelThread and of a RankThread.
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
    /// The window.
    pub seconds: f64,
    /// Cores that the threads were pinned to, RankThreads' first.
    pub cores: Vec<usize>,
    /// Whether threads had to share cores: then no figure is that of a thread on a core of its own.
    pub shared_cores: bool,
    /// What the machine took meanwhile.
    pub stolen: Stolen,
    /// What each of those cores loses with nobody's work on it, watched after the run. Empty where
    /// threads shared cores.
    pub machine_gaps: Vec<GapFigures>,
    /// What such gaps alone make of the decision lag of threads that are as busy as these; `None`:
    /// not measured.
    pub decision_lag_of_gaps_us: Option<LagOfGaps>,
    /// What watched the threads meanwhile.
    pub watch: &'static str,
    /// Where it ran.
    pub machine: Machine,
}

/// Delays of arrivals.
#[derive(Clone, Debug, Serialize)]
pub struct ArrivalLag {
    /// Half are at most this.
    pub p50: f64,
    /// 99 of 100 are at most this.
    pub p99: f64,
    /// The longest.
    pub max: f64,
}

/// Delays of decisions.
#[derive(Clone, Debug, Serialize)]
pub struct DecisionLag {
    /// Half are at most this.
    pub p50: f64,
    /// 99 of 100 are at most this.
    pub p99: f64,
    /// 999 of 1,000 are at most this.
    pub p999: f64,
    /// The longest.
    pub max: f64,
}

/// Delays of decisions that gaps alone explain.
#[derive(Clone, Debug, Serialize)]
pub struct LagOfGaps {
    /// 99 of 100 are at most this.
    pub p99: f64,
    /// 999 of 1,000 are at most this.
    pub p999: f64,
}

/// Time that was not the scheduler's.
#[derive(Clone, Debug, Serialize)]
pub struct Stolen {
    /// What the host took from all cores; `None` where the system does not tell.
    pub by_host_ms: Option<f64>,
    /// How long threads waited for their cores while others ran there, the warm-up included;
    /// likewise.
    pub by_other_threads_ms: Option<f64>,
    /// The longest gap that a thread saw which only looks at the clock; `None`: no core was left to
    /// measure it on.
    pub longest_gap_us: Option<f64>,
}

impl Report {
    /// The figures of a run on `machine`, whose cores have these gaps, in the order of
    /// `outcome.cores`.
    pub fn new(outcome: &Outcome, machine: Machine, stream_ns: f64, gaps: &[Gaps]) -> Report {
        let plan = &outcome.plan;
        let seconds = plan.duration.as_secs_f64();
        let (models, ranks) = (Sum::of(&outcome.model_turns), Sum::of(&outcome.rank_turns));
        let ran = &outcome.ran;
        let requests_per_s = outcome.requests as f64 / seconds;
        let delayed: Option<Vec<Nanos>> =
            outcome.model_turns.iter().chain(&outcome.rank_turns).map(|turns| turns.delayed).collect();
        let failure = outcome.failure();
        Report {
            passed: failure.is_none(),
            failure,
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
            arrival_lag_us: arrival_lag(&outcome.arrival),
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

    /// The figures as lines to read.
    pub fn lines(&self) -> String {
        let mark = if self.shared_cores { " *" } else { "" };
        let Report { arrival_lag_us: arrival, decision_lag_us: decision, stolen, .. } = self;
        let undisturbed = &self.decision_lag_undisturbed_us;
        let told = |value: Option<f64>, unit: &str| match value {
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
            format!("bad           {:.3} %", self.bad_rate * 100.0),
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
                    "  by gaps     p99 {:.1}, p99.9 {:.1} us: what gaps of an idle core alone would make of it",
                    lag.p99, lag.p999
                ),
                None => "  by gaps     not measured".to_owned(),
            },
            format!(
                "threads       {} ModelThreads, {} RankThreads on cores {:?}; {} models, {} GPUs",
                self.model_threads, self.rank_threads, self.cores, self.models, self.gpus
            ),
            format!(
                "machine took  by its host {}, by other threads {}, longest gap of an idle core {}",
                told(stolen.by_host_ms, "ms"),
                told(stolen.by_other_threads_ms, "ms"),
                told(stolen.longest_gap_us, "us")
            ),
            format!(
                "machine       {}, {} cores, Linux {}",
                self.machine.cpu, self.machine.cores, self.machine.kernel
            ),
        ];
        if self.shared_cores {
            lines.push("* threads shared cores: not what a thread on a core of its own does".to_owned());
        }
        lines.join("\n")
    }

    fn verdict(&self) -> String {
        self.failure.clone().unwrap_or_else(|| "passed".to_owned())
    }
}

/// The turns of several threads together.
struct Sum {
    all: f64,
    working: u64,
    busy_ns: f64,
    total_ns: f64,
    longest: Nanos,
}

impl Sum {
    fn of(turns: &[DutyCycles]) -> Sum {
        Sum {
            all: turns.iter().map(|t| t.all).sum::<u64>().max(1) as f64,
            working: turns.iter().map(|t| t.working).sum(),
            busy_ns: turns.iter().map(|t| t.busy.0).sum::<u64>() as f64,
            total_ns: turns.iter().map(|t| t.total.0).sum::<u64>().max(1) as f64,
            longest: turns.iter().map(|t| t.longest).max().unwrap_or_default(),
        }
    }
}

/// Of a RankThread and a ModelThread: the first of each.
fn lag_of(outcome: &Outcome, gaps: &[Gaps]) -> Option<LagOfGaps> {
    let busy = |turns: &[DutyCycles]| Sum::of(turns).busy_ns / Sum::of(turns).total_ns;
    let rank = (gaps.first()?, busy(&outcome.rank_turns));
    let model = (gaps.get(outcome.plan.rank_threads)?, busy(&outcome.model_turns));
    let us = |quantile| lag_of_gaps(&[rank, model], quantile).map(Nanos::as_micros_f64);
    Some(LagOfGaps { p99: us(0.99)?, p999: us(0.999)? })
}

fn arrival_lag(lags: &Lags) -> ArrivalLag {
    let us = |q| lags.quantile(q).as_micros_f64();
    ArrivalLag { p50: us(0.5), p99: us(0.99), max: lags.max().as_micros_f64() }
}

fn decision_lag(lags: &Lags) -> DecisionLag {
    let us = |q| lags.quantile(q).as_micros_f64();
    DecisionLag { p50: us(0.5), p99: us(0.99), p999: us(0.999), max: lags.max().as_micros_f64() }
}

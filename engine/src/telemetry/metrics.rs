//! The metrics of one API core: a [`Metrics`] belongs to the core's thread, which reports every
//! request, answer and connection to it; its numbers are atomics that this thread alone adds to, so
//! that any core can answer for all of them.

use super::histogram::{Histogram, Latencies};
use super::outcome::InferOutcome;
use crate::config::MAX_SERVED_QUERIES;
use crate::runtime::counters::count::Count;
use crate::runtime::frontend::{Answer, Outcome, Timeline};
use crossbeam_utils::CachePadded;
use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::{Arc, OnceLock};
use symphony_scheduler::limits;
use symphony_transport::Nanos;
use symphony_transport::message::ModelId;

/// The stages of a request that has run, in order: each one's name in metrics and its description.
pub const STAGES: [(&str, &str); Timeline::STAGES] = [
    ("queue", "queued to batched: waiting for others to join"),
    ("dispatch", "batched to started: on the way to the GPU and waiting for it"),
    ("run", "started to finished: on the GPU"),
    ("answer", "finished to answered: back to the API core"),
];

/// The number of buckets of latency as a share of the SLO. The last has no upper bound.
pub const SLO_BUCKETS: usize = 64;

/// The number of buckets of latency up to the SLO: each is a fortieth of it wide.
pub const SLO_BUCKETS_IN_TIME: usize = 40;

/// The duration beyond which a turn of an API core's task is counted as long.
pub(crate) const LONG_TURN: Nanos = Nanos::from_millis(2);

/// The number of HTTP statuses, from 100 on.
const STATUSES: usize = 500;

/// The counts of one model on an API core.
#[derive(Debug)]
struct ModelRequestCounts {
    accepted: Count,
    answered: Count,
    /// The number of requests by outcome.
    outcomes: [Count; InferOutcome::COUNT],
    /// The number of rows of requests that ran, late or not.
    rows: Count,
    stages: [Histogram; STAGES.len()],
    whole: Histogram,
    of_slo: [Count; SLO_BUCKETS],
}

impl ModelRequestCounts {
    fn new() -> CachePadded<ModelRequestCounts> {
        CachePadded::new(ModelRequestCounts {
            accepted: Count::default(),
            answered: Count::default(),
            outcomes: Default::default(),
            rows: Count::default(),
            stages: Default::default(),
            whole: Histogram::default(),
            of_slo: [const { Count::new() }; SLO_BUCKETS],
        })
    }
}

impl ModelRequestCounts {
    /// Counts a request that ran.
    fn ran(&self, rows: usize, timeline: &Timeline, slo: Nanos) {
        self.rows.add(rows as u64);
        for (stage, (start, end)) in self.stages.iter().zip(timeline.stages()) {
            stage.record(end - start);
        }
        let whole = timeline.total();
        self.whole.record(whole);
        let share = whole.0.saturating_mul(SLO_BUCKETS_IN_TIME as u64) / slo.0.max(1);
        self.of_slo[(share as usize).min(SLO_BUCKETS - 1)].add(1);
    }

    fn clear(&self) {
        let ModelRequestCounts { accepted, answered, outcomes, rows, stages, whole, of_slo } = self;
        [accepted, answered, rows].into_iter().chain(outcomes).chain(of_slo).for_each(Count::clear);
        stages.iter().chain([whole]).for_each(Histogram::clear);
    }
}

/// The counts of an API core.
#[derive(Debug)]
pub(super) struct CoreCounts {
    /// The name of the core's thread.
    thread: String,
    /// The counts of each model, and then of each query; present from the first request on.
    models: Box<[OnceLock<Box<CachePadded<ModelRequestCounts>>>]>,
    /// The number of responses by HTTP status.
    responses: Box<[Count]>,
    opened: CachePadded<Count>,
    closed: Count,
    panics: Count,
    long_turns: Count,
    longest_turn_ns: Count,
}

/// The turns of the tasks of an API core: in one, it serves nobody else.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CoreTurns {
    /// The name of the core's thread.
    pub thread: String,
    /// The number of turns that took more than 2 ms.
    pub long: u64,
    /// The duration of the longest.
    pub longest: Nanos,
}

impl CoreCounts {
    pub(super) fn new(thread: &str) -> CoreCounts {
        CoreCounts {
            thread: thread.to_owned(),
            models: (0..limits::MAX_MODELS + MAX_SERVED_QUERIES).map(|_| OnceLock::new()).collect(),
            responses: (0..STATUSES).map(|_| Count::default()).collect(),
            opened: CachePadded::default(),
            closed: Count::default(),
            panics: Count::default(),
            long_turns: Count::default(),
            longest_turn_ns: Count::default(),
        }
    }

    fn model(&self, model: ModelId) -> &ModelRequestCounts {
        self.models[model.0 as usize].get_or_init(|| Box::new(ModelRequestCounts::new()))
    }

    /// Adds the counts of a model to `sum`. Returns true if there were any.
    pub(super) fn read_model(&self, model: ModelId, sum: &mut ModelRequests) -> bool {
        let Some(counts) = self.models.get(model.0 as usize).and_then(OnceLock::get) else { return false };
        // The answered before the accepted: their difference is never below zero.
        sum.answered += counts.answered.get();
        sum.accepted += counts.accepted.get();
        sum.outcomes.iter_mut().zip(&counts.outcomes).for_each(|(sum, count)| *sum += count.get());
        sum.rows += counts.rows.get();
        sum.stages.iter_mut().zip(&counts.stages).for_each(|(sum, stage)| sum.add(stage));
        sum.whole.add(&counts.whole);
        sum.of_slo.iter_mut().zip(&counts.of_slo).for_each(|(sum, count)| *sum += count.get());
        true
    }

    /// Returns true if there was any request for a model.
    pub(super) fn was_asked_for(&self, model: ModelId) -> bool {
        self.models.get(model.0 as usize).is_some_and(|counts| counts.get().is_some())
    }

    /// Adds the outcomes of a model's requests to `sum`.
    pub(super) fn read_outcomes(&self, model: ModelId, sum: &mut [u64; InferOutcome::COUNT]) {
        if let Some(counts) = self.models.get(model.0 as usize).and_then(OnceLock::get) {
            sum.iter_mut().zip(&counts.outcomes).for_each(|(sum, count)| *sum += count.get());
        }
    }

    /// Returns the numbers of HTTP responses by status, for the statuses that occurred.
    pub(super) fn responses(&self) -> impl Iterator<Item = (u16, u64)> + '_ {
        let all = self.responses.iter().enumerate();
        all.map(|(at, count)| (at as u16 + 100, count.get())).filter(|&(_, count)| count > 0)
    }

    /// Returns the number of connections ever opened, and of those open now.
    pub(super) fn connections(&self) -> (u64, u64) {
        let closed = self.closed.get();
        let opened = self.opened.get();
        (opened, opened.saturating_sub(closed))
    }

    /// Returns the number of panics of the handlers of requests.
    pub(super) fn panics(&self) -> u64 {
        self.panics.get()
    }

    /// Returns the turns of the core's tasks.
    pub(super) fn turns(&self) -> CoreTurns {
        let longest = Nanos(self.longest_turn_ns.get());
        CoreTurns { thread: self.thread.clone(), long: self.long_turns.get(), longest }
    }
}

/// The counts of a model on all API cores.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ModelRequests {
    /// The number of requests that the engine accepted.
    pub accepted: u64,
    /// The number of accepted requests that the engine has answered.
    pub answered: u64,
    /// The number of infer requests by [`InferOutcome`].
    pub outcomes: [u64; InferOutcome::COUNT],
    /// The number of rows of the requests that ran, late or not.
    pub rows: u64,
    /// The durations of the [`STAGES`] of requests that ran.
    pub stages: [Latencies; STAGES.len()],
    /// The times from queued to answered, of requests that ran.
    pub whole: Latencies,
    /// The times from queued to answered as a share of the model's SLO, in steps of a fortieth.
    pub of_slo: [u64; SLO_BUCKETS],
}

impl Default for ModelRequests {
    fn default() -> ModelRequests {
        ModelRequests {
            accepted: 0,
            answered: 0,
            outcomes: Default::default(),
            rows: 0,
            stages: Default::default(),
            whole: Latencies::default(),
            of_slo: [0; SLO_BUCKETS],
        }
    }
}

impl ModelRequests {
    /// Returns the number of requests in the engine now.
    pub fn in_flight(&self) -> u64 {
        self.accepted.saturating_sub(self.answered)
    }

    /// Returns the number of requests with this outcome.
    pub fn ended(&self, outcome: InferOutcome) -> u64 {
        self.outcomes[outcome as usize]
    }
}

/// The counting end of an API core. Its thread owns it: it can't be shared, only moved.
#[derive(Debug)]
pub struct Metrics {
    counts: Arc<CoreCounts>,
    one_thread: PhantomData<Cell<()>>,
}

impl Metrics {
    pub(super) fn new(counts: Arc<CoreCounts>) -> Metrics {
        Metrics { counts, one_thread: PhantomData }
    }

    /// Clears the counts of a model slot, which has got another model.
    pub fn forget(&self, model: ModelId) {
        let counts = self.counts.models.get(model.0 as usize).and_then(OnceLock::get);
        counts.into_iter().for_each(|counts| counts.clear());
    }

    /// Counts a request that the engine accepted.
    pub fn accepted(&self, model: ModelId) {
        self.counts.model(model).accepted.add(1);
    }

    /// Counts an answer of the engine, whether a client waits for it or not. `slo` is the model's.
    pub fn answered(&self, answer: &Answer<'_>, slo: Nanos) {
        let counts = self.counts.model(answer.model);
        counts.answered.add(1);
        if !matches!(answer.outcome, Outcome::Good | Outcome::Late(_)) {
            return;
        }
        counts.ran(answer.rows, &answer.timeline, slo);
    }

    /// Counts the end of a query that was [accepted](Metrics::accepted), with a result or without.
    pub fn query_ended(&self, query: ModelId) {
        self.counts.model(query).answered.add(1);
    }

    /// Counts a query of `rows` rows that has its result. `slo` is the query's.
    pub fn query_ran(&self, query: ModelId, rows: usize, timeline: &Timeline, slo: Nanos) {
        self.counts.model(query).ran(rows, timeline, slo);
    }

    /// Counts the outcome of an infer request: once for each, whether the engine accepted it or
    /// not.
    pub fn ended(&self, model: ModelId, outcome: InferOutcome) {
        self.counts.model(model).outcomes[outcome as usize].add(1);
    }

    /// Counts an HTTP response of any kind with this status.
    pub fn responded(&self, status: u16) {
        if let Some(count) = self.counts.responses.get(usize::from(status).wrapping_sub(100)) {
            count.add(1);
        }
    }

    /// Counts a connection that was opened.
    pub fn opened(&self) {
        self.counts.opened.add(1);
    }

    /// Counts a panic of a request's handler, or of a connection's.
    pub fn handler_panicked(&self) {
        self.counts.panics.add(1);
    }

    /// Counts a turn of a task of the core.
    #[inline]
    pub fn turn_took(&self, time: Nanos) {
        if time > LONG_TURN || time.0 > self.counts.longest_turn_ns.get() {
            self.note_turn(time);
        }
    }

    #[cold]
    fn note_turn(&self, time: Nanos) {
        let CoreCounts { long_turns, longest_turn_ns, .. } = &*self.counts;
        long_turns.add(u64::from(time > LONG_TURN));
        longest_turn_ns.set(longest_turn_ns.get().max(time.0));
    }

    /// Counts a connection that was closed.
    pub fn closed(&self) {
        self.counts.closed.add(1);
    }
}

//! What one API core counts: a [`Metrics`] belongs to the core's thread, which tells it of every
//! request, answer and connection; its numbers are atomics that this thread alone adds to, so that
//! any core can answer for all of them.

use super::histogram::{Histogram, Latencies};
use super::outcome::InferOutcome;
use crate::runtime::counters::count::Count;
use crate::runtime::frontend::{Answer, Outcome, Timeline};
use crossbeam_utils::CachePadded;
use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::{Arc, OnceLock};
use symphony_scheduler::limits;
use symphony_transport::Nanos;
use symphony_transport::message::ModelId;

/// The stages of a request that has run, in order: what each is called in metrics and what it is.
pub const STAGES: [(&str, &str); Timeline::STAGES] = [
    ("queue", "queued to batched: waiting for others to join"),
    ("dispatch", "batched to started: on the way to the GPU and waiting for it"),
    ("run", "started to finished: on the GPU"),
    ("answer", "finished to answered: back to the API core"),
];

/// Buckets of latency as a share of the SLO. The last has no upper bound.
pub const SLO_BUCKETS: usize = 64;

/// Buckets of latency up to the SLO: each is a fortieth of it wide.
pub const SLO_BUCKETS_IN_TIME: usize = 40;

/// HTTP statuses, from 100 on.
const STATUSES: usize = 500;

/// What a core counts of one model.
#[derive(Debug)]
struct ModelCounts {
    accepted: Count,
    answered: Count,
    /// Requests by outcome.
    outcomes: [Count; InferOutcome::COUNT],
    /// Rows of requests that ran, late or not.
    rows: Count,
    stages: [Histogram; STAGES.len()],
    whole: Histogram,
    of_slo: [Count; SLO_BUCKETS],
}

impl ModelCounts {
    fn new() -> CachePadded<ModelCounts> {
        CachePadded::new(ModelCounts {
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

impl ModelCounts {
    fn clear(&self) {
        let ModelCounts { accepted, answered, outcomes, rows, stages, whole, of_slo } = self;
        [accepted, answered, rows].into_iter().chain(outcomes).chain(of_slo).for_each(Count::clear);
        stages.iter().chain([whole]).for_each(Histogram::clear);
    }
}

/// What a core counts.
#[derive(Debug)]
pub(super) struct CoreCounts {
    /// By model; there from the model's first request on.
    models: Box<[OnceLock<Box<CachePadded<ModelCounts>>>]>,
    /// By HTTP status.
    responses: Box<[Count]>,
    opened: CachePadded<Count>,
    closed: Count,
}

impl CoreCounts {
    pub(super) fn new() -> CoreCounts {
        CoreCounts {
            models: (0..limits::MAX_MODELS).map(|_| OnceLock::new()).collect(),
            responses: (0..STATUSES).map(|_| Count::default()).collect(),
            opened: CachePadded::default(),
            closed: Count::default(),
        }
    }

    fn model(&self, model: ModelId) -> &ModelCounts {
        self.models[model.0 as usize].get_or_init(|| Box::new(ModelCounts::new()))
    }

    /// Adds what was counted of a model to `sum`, and says whether there was anything.
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

    /// Whether there was any request for a model.
    pub(super) fn was_asked_for(&self, model: ModelId) -> bool {
        self.models.get(model.0 as usize).is_some_and(|counts| counts.get().is_some())
    }

    /// Adds how requests of a model ended to `sum`.
    pub(super) fn read_outcomes(&self, model: ModelId, sum: &mut [u64; InferOutcome::COUNT]) {
        if let Some(counts) = self.models.get(model.0 as usize).and_then(OnceLock::get) {
            sum.iter_mut().zip(&counts.outcomes).for_each(|(sum, count)| *sum += count.get());
        }
    }

    /// HTTP responses by status, those that there were.
    pub(super) fn responses(&self) -> impl Iterator<Item = (u16, u64)> + '_ {
        let all = self.responses.iter().enumerate();
        all.map(|(at, count)| (at as u16 + 100, count.get())).filter(|&(_, count)| count > 0)
    }

    /// Connections ever opened, and those open now.
    pub(super) fn connections(&self) -> (u64, u64) {
        let closed = self.closed.get();
        let opened = self.opened.get();
        (opened, opened.saturating_sub(closed))
    }
}

/// What all API cores have counted of a model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ModelRequests {
    /// Requests that the engine took.
    pub accepted: u64,
    /// Those of them that it has answered.
    pub answered: u64,
    /// Infer requests by [`InferOutcome`].
    pub outcomes: [u64; InferOutcome::COUNT],
    /// Rows of the requests that ran, late or not.
    pub rows: u64,
    /// How long the [`STAGES`] of requests that ran took.
    pub stages: [Latencies; STAGES.len()],
    /// Queued to answered, of requests that ran.
    pub whole: Latencies,
    /// The same as a share of the model's SLO, in steps of a fortieth.
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
    /// Requests with the engine now.
    pub fn in_flight(&self) -> u64 {
        self.accepted.saturating_sub(self.answered)
    }

    /// How many ended so.
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

    /// The model's place has another model from now on, of which nothing was counted.
    pub fn forget(&self, model: ModelId) {
        let counts = self.counts.models.get(model.0 as usize).and_then(OnceLock::get);
        counts.into_iter().for_each(|counts| counts.clear());
    }

    /// The engine took a request.
    pub fn accepted(&self, model: ModelId) {
        self.counts.model(model).accepted.add(1);
    }

    /// The engine answered a request, whether somebody waits for that or not. `slo` is the model's.
    pub fn answered(&self, answer: &Answer<'_>, slo: Nanos) {
        let counts = self.counts.model(answer.model);
        counts.answered.add(1);
        if !matches!(answer.outcome, Outcome::Good | Outcome::Late(_)) {
            return;
        }
        counts.rows.add(answer.rows as u64);
        for (stage, (start, end)) in counts.stages.iter().zip(answer.timeline.stages()) {
            stage.record(end - start);
        }
        let whole = answer.timeline.total();
        counts.whole.record(whole);
        let share = whole.0.saturating_mul(SLO_BUCKETS_IN_TIME as u64) / slo.0.max(1);
        counts.of_slo[(share as usize).min(SLO_BUCKETS - 1)].add(1);
    }

    /// An infer request ended so: told once for each, whether the engine ever had it or not.
    pub fn ended(&self, model: ModelId, outcome: InferOutcome) {
        self.counts.model(model).outcomes[outcome as usize].add(1);
    }

    /// An HTTP response of any kind went out with this status.
    pub fn responded(&self, status: u16) {
        if let Some(count) = self.counts.responses.get(usize::from(status).wrapping_sub(100)) {
            count.add(1);
        }
    }

    /// A connection was opened.
    pub fn opened(&self) {
        self.counts.opened.add(1);
    }

    /// A connection was closed.
    pub fn closed(&self) {
        self.counts.closed.add(1);
    }
}

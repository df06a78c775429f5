//! Counts, logs and traces infer requests, each once, however it ends.

use super::engine_client::EngineReply;
use super::settings::LogSettings;
use super::statistics::CoreStatistics;
use crate::api::headers::{TRACE_PARENT, TRACE_STATE};
use crate::api::problem::Problem;
use crate::runtime::frontend::{Ask, Class, ModelInfo};
use crate::telemetry::otlp::{Call, Parent, Traced, TracedRun, TracedStage, Tracer};
use crate::telemetry::{FailureLog, InferOutcome, Metrics, Telemetry};
use hyper::header::HeaderMap;
use std::rc::Rc;
use std::sync::Arc;

/// The accounts of one API core's infer requests.
pub(in crate::api) struct InferAccounting {
    /// The metrics that this core counts.
    pub(in crate::api) metrics: Rc<Metrics>,
    /// The metrics of all cores, and the clock.
    pub(in crate::api) telemetry: Arc<Telemetry>,
    /// The statistics that Triton's clients ask for.
    pub(in crate::api) statistics: CoreStatistics,
    /// The lines about failures.
    pub(in crate::api) failures: FailureLog,
    /// The spans of requests, if they are traced.
    pub(in crate::api) tracer: Tracer,
    /// The setting that adds a line for each request.
    pub(in crate::api) log: Arc<LogSettings>,
}

impl InferAccounting {
    /// Returns the span that a request with these headers belongs to, if requests are traced.
    pub(in crate::api) fn parent_span(&self, headers: &HeaderMap) -> Option<Parent> {
        if !self.tracer.is_on() {
            return None;
        }
        let state = headers.get(TRACE_STATE).map(|value| value.as_bytes()).unwrap_or_default();
        Parent::parse(headers.get(TRACE_PARENT)?.as_bytes(), state)
    }

    /// Starts the record of an infer request. When the record is dropped, the request is counted
    /// with the outcome given to [`InferRecord::end`], or as one whose client left, and traced; as
    /// failed if its handler panics.
    pub(in crate::api) fn begin<'a>(
        &'a self,
        model: &'a ModelInfo,
        call: Call,
        parent: Option<Parent>,
    ) -> InferRecord<'a> {
        let trace = self.tracer.begin(call, parent, model, || self.telemetry.now());
        InferRecord { accounting: self, model, outcome: InferOutcome::Gone, trace }
    }
}

/// The record of one infer request: see [`InferAccounting::begin`].
pub(in crate::api) struct InferRecord<'a> {
    accounting: &'a InferAccounting,
    model: &'a ModelInfo,
    outcome: InferOutcome,
    trace: Option<Box<Traced>>,
}

impl<'a> InferRecord<'a> {
    /// Counts the request for this size class of its model from here on.
    pub(in crate::api) fn runs_on(&mut self, class: &'a ModelInfo) {
        self.model = class;
    }

    /// Adds the engine's reply.
    pub(in crate::api) fn answered(&mut self, ask: &Ask, reply: &EngineReply) {
        self.accounting.statistics.count(self.model, ask.rows, reply);
        if let Some(trace) = &mut self.trace {
            trace.set_run(traced_run(ask.rows, ask.class, reply));
        }
    }

    /// Adds the engine's reply to a stage of a query, which is a request of `rows` rows for
    /// `model`.
    pub(in crate::api) fn stage_over(
        &mut self,
        (name, model): (&str, &ModelInfo),
        (rows, class): (usize, Class),
        reply: &EngineReply,
        outcome: InferOutcome,
    ) {
        self.accounting.statistics.count(model, rows, reply);
        if let Some(trace) = &mut self.trace {
            trace.add_stage(TracedStage {
                name: name.to_owned(),
                model: model.name.clone(),
                version: model.version,
                outcome,
                ran: traced_run(rows, class, reply),
            });
        }
    }

    /// Sets and returns the outcome, and logs a failure.
    pub(in crate::api) fn end<T>(&mut self, result: &Result<T, Problem>) -> InferOutcome {
        let accounting = self.accounting;
        self.outcome = result.as_ref().err().map_or(InferOutcome::Good, |problem| problem.outcome);
        if let Err(problem) = result {
            let now = accounting.telemetry.now();
            accounting.failures.note(now, &self.model.name, self.outcome, &problem.message);
        }
        if accounting.log.is_verbose() {
            tracing::info!(model = self.model.name, outcome = self.outcome.name(), "infer");
        }
        self.outcome
    }
}

fn traced_run(rows: usize, class: Class, reply: &EngineReply) -> TracedRun {
    let EngineReply { timeline, batch_size, gpu, .. } = *reply;
    TracedRun { rows, class: class.number(), timeline, batch_size, gpu }
}

impl Drop for InferRecord<'_> {
    fn drop(&mut self) {
        if self.outcome == InferOutcome::Gone && std::thread::panicking() {
            self.outcome = InferOutcome::Failed;
        }
        self.accounting.metrics.ended(self.model.id, self.outcome);
        if let Some(trace) = self.trace.take() {
            self.accounting.tracer.end(trace, self.outcome, self.accounting.telemetry.now());
        }
    }
}
